/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/vnet.h"

#include <endian.h>
#include <netinet/in.h>

#include "common/util.h"
#include "datapath/frame.h"
#include "datapath/layout.h"

#define TCP_CHECKSUM_OFFSET 16
#define UDP_CHECKSUM_OFFSET 6
#define SCTP_CHECKSUM_OFFSET 8 /* of a CRC; no protocol with an Internet checksum has it there */
#define TCP_FLAGS_OFFSET 13
#define TCP_FLAG_CWR 0x80
#define IPV6_HEADER_LENGTH 40
#define IP_LENGTH_MAX 65535u /* what the length field of an IP header can say: of IPv4 with the header, of IPv6 without */
_Static_assert(FRAME_LENGTH_MAX <= ETHERNET_HEADER_LENGTH + IPV6_HEADER_LENGTH + IP_LENGTH_MAX, "no frame holds too much for IPv6");

#define VNET_VERDICT_TEXT(name, text) [VNET_##name] = text,
const char *const vnet_verdict_names[VNET_VERDICT_COUNT] = {VNET_VERDICTS(VNET_VERDICT_TEXT)};

/* By enum frame_gso: how it is asked for, and who may. */
static const struct gso_kind {
	uint8_t type; /* enum vnet_gso */
	uint8_t family, protocol, checksum_offset;
	uint64_t sender, receiver; /* features */
} gso_kinds[] = {
	[FRAME_GSO_TCP4] = {VNET_GSO_TCP4, 4, IPPROTO_TCP, TCP_CHECKSUM_OFFSET, VNET_F_HOST_TSO4, VNET_F_GUEST_TSO4},
	[FRAME_GSO_TCP6] = {VNET_GSO_TCP6, 6, IPPROTO_TCP, TCP_CHECKSUM_OFFSET, VNET_F_HOST_TSO6, VNET_F_GUEST_TSO6},
	[FRAME_GSO_UDP4] = {VNET_GSO_UDP, 4, IPPROTO_UDP, UDP_CHECKSUM_OFFSET, VNET_F_HOST_USO, VNET_F_GUEST_USO4},
	[FRAME_GSO_UDP6] = {VNET_GSO_UDP, 6, IPPROTO_UDP, UDP_CHECKSUM_OFFSET, VNET_F_HOST_USO, VNET_F_GUEST_USO6},
};

/* Where the transport header is known, the driver must mean it; where it is not (tunnels, fragments), its word is taken. */
static enum vnet_verdict judge_checksum(const struct frame *frame, const struct layout *layout, uint32_t start, uint32_t offset)
{
	/* Of the longest frames, tags that are pushed later could move what begins at the end out of the field's range. */
	if (start < ETHERNET_HEADER_LENGTH || start >= frame->length || start > UINT16_MAX - FRAME_HEADROOM)
		return VNET_CSUM_START;
	if (layout->transport ? start < layout->transport : start <= layout->network)
		return VNET_CSUM_START;
	if (offset % 2 || start + offset + 2 > frame->length)
		return VNET_CSUM_OFFSET;
	if (offset == SCTP_CHECKSUM_OFFSET || (layout->protocol == IPPROTO_SCTP && start == layout->transport))
		return VNET_CSUM_PROTOCOL;
	if (layout->level == LAYOUT_TRANSPORT && start == layout->transport &&
	    offset != (layout->protocol == IPPROTO_TCP ? TCP_CHECKSUM_OFFSET : UDP_CHECKSUM_OFFSET))
		return VNET_CSUM_OFFSET;
	return VNET_GOOD;
}

static enum frame_gso find_kind(uint8_t type, uint8_t family)
{
	for (enum frame_gso kind = FRAME_GSO_TCP4; kind < ARRAY_SIZE(gso_kinds); kind++)
		if (gso_kinds[kind].type == type && (type != VNET_GSO_UDP || gso_kinds[kind].family == family))
			return kind;
	return FRAME_GSO_NONE;
}

/* ->offload already holds the checksum's part. */
static enum vnet_verdict judge_gso(struct frame *frame, const struct layout *layout, uint64_t negotiated)
{
	const uint8_t type = frame->vnet.gso_type & (uint8_t)~VNET_GSO_ECN;
	const bool ecn = frame->vnet.gso_type & VNET_GSO_ECN;
	const uint16_t size = le16toh(frame->vnet.gso_size);
	const enum frame_gso gso = find_kind(type, layout->family == 6 ? 6 : 4);
	const struct gso_kind *kind = &gso_kinds[gso];
	struct frame_offload *offload = &frame->offload;
	uint32_t payload;

	if (gso == FRAME_GSO_NONE || (ecn && kind->protocol != IPPROTO_TCP))
		return VNET_GSO_TYPE;
	if (!(negotiated & kind->sender) || (ecn && !(negotiated & VNET_F_HOST_ECN)))
		return VNET_NOT_NEGOTIATED;
	if (!offload->needs_checksum)
		return VNET_GSO_NO_CSUM;
	if (layout->level != LAYOUT_TRANSPORT || layout->family != kind->family || layout->protocol != kind->protocol ||
	    (layout->flags & LAYOUT_AUTHENTICATED) || layout->payload > FRAME_HEAD_MAX)
		return VNET_GSO_PROTOCOL;
	if (offload->csum_start != layout->transport)
		return VNET_CSUM_START;
	payload = frame->length - layout->payload;
	if (size == 0 || (kind->protocol == IPPROTO_TCP && size < VNET_GSO_SIZE_MIN_TCP) ||
	    (kind->protocol == IPPROTO_UDP && payload > (uint32_t)size * VNET_GSO_DATAGRAMS_MAX))
		return VNET_GSO_SIZE;
	if (payload <= size)
		return VNET_GOOD;
	if (layout->family == 4 && layout->payload + size > layout->network + IP_LENGTH_MAX)
		return VNET_GSO_SIZE;
	offload->gso = (uint8_t)gso;
	offload->gso_size = size;
	offload->ecn = ecn || (kind->protocol == IPPROTO_TCP && (frame->head[layout->transport + TCP_FLAGS_OFFSET] & TCP_FLAG_CWR));
	return VNET_GOOD;
}

static enum vnet_verdict judge(struct frame *frame, uint64_t negotiated)
{
	enum vnet_verdict verdict;
	struct layout layout;

	layout_parse(frame->head, frame->head_length, &layout);
	if (frame->vnet.flags & VNET_NEEDS_CSUM) {
		if (!(negotiated & VNET_F_CSUM))
			return VNET_NOT_NEGOTIATED;
		verdict = judge_checksum(frame, &layout, le16toh(frame->vnet.csum_start), le16toh(frame->vnet.csum_offset));
		if (verdict != VNET_GOOD)
			return verdict;
		frame->offload.needs_checksum = true;
		frame->offload.csum_start = le16toh(frame->vnet.csum_start);
		frame->offload.csum_offset = le16toh(frame->vnet.csum_offset);
		frame->offload.header_length = layout.payload;
		frame->offload.plain_checksum = layout_is_plain(&layout) && frame->offload.csum_start == layout.transport;
	}
	if (frame->vnet.gso_type == VNET_GSO_NONE)
		return VNET_GOOD;
	return judge_gso(frame, &layout, negotiated);
}

enum vnet_verdict vnet_judge(struct frame *frame, uint64_t negotiated)
{
	enum vnet_verdict verdict;

	frame->offload = (struct frame_offload){0};
	if (likely(vnet_header_plain(&frame->vnet)))
		return VNET_GOOD;
	verdict = judge(frame, negotiated);
	if (unlikely(verdict != VNET_GOOD))
		frame->offload = (struct frame_offload){0};
	return verdict;
}

bool vnet_receiver_takes(const struct frame *frame, uint64_t negotiated)
{
	const struct frame_offload *offload = &frame->offload;

	if (offload->needs_checksum && !(negotiated & VNET_F_GUEST_CSUM))
		return false;
	if (offload->gso == FRAME_GSO_NONE)
		return true;
	if (unlikely(frame->length < FRAME_LENGTH_PADDED)) /* padding would be taken for payload when the guest cuts it */
		return false;
	return (negotiated & gso_kinds[offload->gso].receiver) && (!offload->ecn || (negotiated & VNET_F_GUEST_ECN));
}

void vnet_header_for(const struct frame *frame, uint64_t negotiated, struct vnet_header *header)
{
	const struct frame_offload *offload = &frame->offload;

	*header = (struct vnet_header){0};
	if (!(negotiated & VNET_F_GUEST_CSUM))
		return;
	if (!offload->needs_checksum) {
		header->flags = offload->verified ? VNET_DATA_VALID : 0;
		return;
	}
	if (!vnet_receiver_takes(frame, negotiated))
		return;
	header->flags = VNET_NEEDS_CSUM;
	header->csum_start = htole16(offload->csum_start);
	header->csum_offset = htole16(offload->csum_offset);
	header->hdr_len = htole16(offload->header_length);
	if (offload->gso != FRAME_GSO_NONE) {
		header->gso_type = gso_kinds[offload->gso].type | (offload->ecn ? VNET_GSO_ECN : 0);
		header->gso_size = htole16(offload->gso_size);
	}
}

void frame_offload_shift(struct frame *frame, int bytes)
{
	struct frame_offload *offload = &frame->offload;

	if (offload->needs_checksum)
		offload->csum_start = (uint16_t)(offload->csum_start + bytes);
	if (offload->header_length)
		offload->header_length = (uint16_t)(offload->header_length + bytes);
}
