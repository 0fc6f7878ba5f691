/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * What all full segments share is worked out once: a template of the headers with lengths, the open transport checksum and
 * the flags of a middle segment. Each segment copies it and gets its own sequence number, identification and IPv4 checksum; the
 * first and the last get their flags, the last its lengths.
 *
 * The transport checksum field holds the sum of the pseudo-header, of which only the length differs between frame and
 * segments. It is changed by that difference (RFC 1624), so addresses play no part and routing headers do no harm.
 */
#include "datapath/segment.h"

#include "common/util.h"
#include "datapath/checksum.h"
#include "datapath/layout.h"

#define IPV4_TOTAL_LENGTH 2
#define IPV4_IDENTIFICATION 4
#define IPV4_CHECKSUM 10
#define IPV6_PAYLOAD_LENGTH 4
#define IPV6_HEADER_LENGTH 40
#define UDP_LENGTH 4
#define TCP_SEQUENCE 4
#define TCP_FLAGS 13
#define TCP_FIN 0x01
#define TCP_PSH 0x08
#define TCP_CWR 0x80

#define SEGMENT_VERDICT_TEXT(name, text) [SEGMENT_##name] = text,
const char *const segment_verdict_names[SEGMENT_VERDICT_COUNT] = {SEGMENT_VERDICTS(SEGMENT_VERDICT_TEXT)};

/* Lengths of headers for @payload bytes, and with them the sums that cover lengths. */
static void set_lengths(struct segmenter *s, uint8_t *head, uint32_t payload)
{
	uint8_t *ip = head + s->network, *transport = head + s->transport;
	uint8_t *field = transport + s->offload.csum_offset;
	const uint32_t total = s->header_length + payload;
	const uint32_t before = s->frame->length - s->transport;
	const uint32_t after = total - s->transport;

	if (s->ipv4) {
		store_be16(ip + IPV4_TOTAL_LENGTH, (uint16_t)(total - s->network));
		store_word(ip + IPV4_IDENTIFICATION, 0);
		store_word(ip + IPV4_CHECKSUM, 0);
		s->id_sum = checksum_fold(checksum_sum(ip, (ip[0] & 0xf) * 4u));
	} else {
		store_be16(ip + IPV6_PAYLOAD_LENGTH, (uint16_t)(total - s->network - IPV6_HEADER_LENGTH));
	}
	if (!s->tcp)
		store_be16(transport + UDP_LENGTH, (uint16_t)after);
	/* From the frame's field, not from the one in @head, so that this can be done again. Lengths may exceed a word. */
	store_word(field, checksum_fold((uint64_t)load_word(s->frame->head + s->transport + s->offload.csum_offset) +
					(uint16_t)~checksum_fold(htobe32(before)) + htobe32(after)));
}

enum segment_verdict segment_start(struct segmenter *s, const struct frame *frame)
{
	const struct frame_offload *offload = &frame->offload;
	struct layout layout;

	if (offload->gso == FRAME_GSO_NONE || offload->gso_size == 0)
		return SEGMENT_NO_GSO;
	layout_parse(frame->head, frame->head_length, &layout);
	if (layout.level != LAYOUT_TRANSPORT || layout.payload > SEGMENT_HEAD_MAX)
		return SEGMENT_HEADERS;
	s->tcp = offload->gso == FRAME_GSO_TCP4 || offload->gso == FRAME_GSO_TCP6;
	s->ipv4 = offload->gso == FRAME_GSO_TCP4 || offload->gso == FRAME_GSO_UDP4;
	if (layout.family != (s->ipv4 ? 4 : 6) || layout.protocol != (s->tcp ? 6 : 17) || layout.transport != offload->csum_start)
		return SEGMENT_PROTOCOL;
	if (frame->length == layout.payload)
		return SEGMENT_NO_GSO;

	s->frame = frame;
	s->at = (struct segment_cursor){
		.piece = {frame->head + layout.payload, frame->head_length - (uint32_t)layout.payload},
		.left = frame->length - layout.payload,
	};
	s->header_length = layout.payload;
	s->size = offload->gso_size;
	s->network = layout.network;
	s->transport = layout.transport;
	s->fixed_id = offload->fixed_id;
	s->offload = (struct frame_offload){
		.needs_checksum = true,
		.csum_start = layout.transport,
		.csum_offset = s->tcp ? 16 : 6,
		.header_length = layout.payload,
		.plain_checksum = layout_is_plain(&layout),
	};
	memcpy(s->head, frame->head, layout.payload);
	if (s->ipv4)
		s->at.identification = load_be16(s->head + s->network + IPV4_IDENTIFICATION);
	set_lengths(s, s->head, min_u32(s->size, s->at.left));
	if (s->tcp) {
		uint8_t *flags = s->head + s->transport + TCP_FLAGS;

		s->at.sequence = load_be32(s->head + s->transport + TCP_SEQUENCE);
		s->first_flags = *flags & TCP_CWR;
		s->last_flags = *flags & (TCP_FIN | TCP_PSH);
		*flags &= (uint8_t)~(TCP_CWR | TCP_FIN | TCP_PSH);
	}
	return SEGMENT_GOOD;
}

/* The headers of the next segment into @head, @payload bytes long. */
static inline void write_head(struct segmenter *s, const struct segment_cursor *at, uint8_t *head, uint32_t payload, bool first)
{
	const uint32_t length = s->header_length;
	uint8_t *transport = head + s->transport;

	/* Whole 16 byte pieces: both ends have room, and short copies of unknown length cost calls. */
	for (uint32_t i = 0; i < length; i += 16)
		__builtin_memcpy(head + i, s->head + i, 16);
	if (unlikely(payload < s->size))
		set_lengths(s, head, payload);
	if (s->ipv4) {
		uint8_t *ip = head + s->network;
		const uint16_t identification = htobe16(at->identification);

		store_word(ip + IPV4_IDENTIFICATION, identification);
		store_word(ip + IPV4_CHECKSUM, (uint16_t)~checksum_fold((uint64_t)s->id_sum + identification));
	}
	if (s->tcp) {
		store_be32(transport + TCP_SEQUENCE, at->sequence);
		if (unlikely(first))
			transport[TCP_FLAGS] |= s->first_flags;
		if (unlikely(payload == at->left))
			transport[TCP_FLAGS] |= s->last_flags;
	}
}

/* Slices of the next @payload bytes. Return: how many; 0 = there are more than @room. */
static inline uint32_t cut_payload(const struct frame *frame, struct segment_cursor *at, struct frame_segment *slice, uint32_t room,
				   uint32_t payload)
{
	uint32_t count = 0;

	while (payload) {
		uint32_t n;

		if (unlikely(count == room))
			return 0;
		while (unlikely(!at->piece.length)) /* there is another as long as ->left is not 0 */
			at->piece = frame->segments[at->next_segment++];
		n = min_u32(at->piece.length, payload);
		slice[count++] = (struct frame_segment){at->piece.data, n};
		at->piece.data += n;
		at->piece.length -= n;
		payload -= n;
	}
	return count;
}

uint32_t segment_next(struct segmenter *s, struct segment_burst *burst)
{
	const struct frame_offload offload = s->offload;
	const uint32_t header_length = s->header_length, whole = s->frame->length - header_length;
	struct segment_cursor at = s->at; /* in registers, not in memory that stores to heads might be thought to reach */
	struct frame_segment *slices = burst->slices;
	uint32_t count = 0;

	while (at.left && count < FRAME_BURST) {
		const struct segment_cursor before = at;
		const uint32_t payload = min_u32(s->size, at.left);
		uint8_t *head = burst->heads[count] + FRAME_HEADROOM;
		struct frame *frame = &burst->frames[count];
		const uint32_t slice_count =
			cut_payload(s->frame, &at, slices, (uint32_t)(burst->slices + SEGMENT_SLICES - slices), payload);

		if (unlikely(!slice_count)) { /* for the next burst */
			at = before;
			break;
		}
		write_head(s, &at, head, payload, at.left == whole);
		*frame = (struct frame){
			.head = head,
			.segments = slices,
			.length = header_length + payload,
			.head_length = (uint16_t)header_length,
			.segment_count = (uint16_t)slice_count,
			.offload = offload,
		};
		burst->list[count++] = frame;
		slices += slice_count;
		at.left -= payload;
		at.sequence += payload;
		at.identification = (uint16_t)(at.identification + !s->fixed_id);
	}
	s->at = at;
	burst->count = count;
	burst->slice_count = (uint32_t)(slices - burst->slices);
	return count;
}
