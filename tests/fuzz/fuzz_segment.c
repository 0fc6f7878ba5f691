/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A guest's frame with its virtio header, both hostile: judged, and if it passes, segmented and copied as a lane or a ring
 * would. The payload must come out whole and in order, headers must be lawful, checksums right for what was asked.
 *
 * Input: shape of a lawful packet, its cut into pieces, then patches to header and frame. So most inputs get past the first check.
 */
#include "datapath/frame_checksum.h"
#include "datapath/segment.h"
#include "fuzz.h"
#include "../unit/offload_packet.h"

static uint8_t bytes[PACKET_MAX], out[PACKET_MAX];
static struct segment_burst burst;

static struct packet shape(struct input *in)
{
	const uint8_t bits = input_byte(in);
	struct packet p = bits & 1 ? packet_udp4 : packet_tcp4;

	p.family = bits & 2 ? 6 : 4;
	p.tags = bits >> 2 & 1;
	p.ip_options = 8 * (bits >> 3 & 3);
	p.tcp_options = p.udp ? 0 : 4 * (bits >> 5 & 3);
	p.flags = p.udp ? 0 : input_byte(in);
	p.payload = input_word(in);
	if (!(p.payload & 0x100)) /* small ones are more, and faster */
		p.payload %= 20000;
	if (packet_places(&p).length > FRAME_LENGTH_MAX)
		p.payload -= packet_places(&p).length - FRAME_LENGTH_MAX;
	return p;
}

static void check_copy(const struct frame *frame)
{
	uint8_t *contiguous = malloc(frame->length);
	struct frame_checksum c;
	uint32_t at = 0;

	frame_copy(frame, contiguous, true);
	/* In pieces it must come out the same. */
	frame_checksum_start(&c, frame);
	for (uint32_t i = 0; i <= frame->segment_count; i++) {
		const uint8_t *from = i ? frame->segments[i - 1].data : frame->head;
		uint32_t left = i ? frame->segments[i - 1].length : frame->head_length;

		while (left) {
			const uint32_t n = left < 333 ? left : 333;

			frame_checksum_copy(&c, out + at, from, n);
			from += n;
			at += n;
			left -= n;
		}
	}
	frame_checksum_finish(&c);
	MUST(at == frame->length && !memcmp(out, contiguous, at));
	free(contiguous);
}

/* What receivers believe of lengths, of a segment in @out. */
static void check_lengths(const struct frame *segment)
{
	struct layout layout;

	layout_parse(out, segment->length, &layout);
	MUST(layout.level == LAYOUT_TRANSPORT && layout.end == segment->length);
	if (layout.protocol == 17)
		MUST((uint32_t)(out[layout.transport + 4] << 8 | out[layout.transport + 5]) == segment->length - layout.transport);
}

static void check_segments(const struct frame *frame)
{
	const uint32_t headers = frame->offload.header_length;
	struct segmenter s;
	uint32_t at = headers, count = 0;

	MUST(frame->offload.needs_checksum);
	MUST(segment_start(&s, frame) == SEGMENT_GOOD);
	while (segment_next(&s, &burst)) {
		for (uint32_t i = 0; i < burst.count; i++, count++) {
			const struct frame *segment = burst.list[i];
			const uint32_t payload = segment->length - headers;

			check_copy(segment);
			MUST(segment->head_length == headers && payload && payload <= frame->offload.gso_size);
			MUST(payload == frame->offload.gso_size || at + payload == frame->length);
			check_lengths(segment);
			MUST(!memcmp(out + headers, bytes + at, payload));
			MUST(!memcmp(out, bytes, 12));
			at += payload;
		}
	}
	MUST(at == frame->length && count == segment_count(frame));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	const struct packet p = shape(&in);
	const uint32_t length = packet_make(&p, bytes, true), piece = input_word(&in);
	struct vnet_header header = packet_header(&p, input_word(&in));
	const uint64_t features = input_byte(&in) ? EVERY_SENDER_FEATURE : VNET_F_CSUM | VNET_F_HOST_TSO4;
	uint64_t seed = input_byte(&in);
	struct vnet_header to_guest;
	struct scattered s;

	for (unsigned i = input_byte(&in) % 4; i; i--)
		((uint8_t *)&header)[input_byte(&in) % sizeof(header)] = input_byte(&in);
	for (unsigned i = input_byte(&in) % 8; i; i--)
		bytes[input_byte(&in) % length] = input_byte(&in);
	scatter(&s, bytes, length, FRAME_HEAD_MAX, piece, &seed);
	s.frame.vnet = header;
	if (vnet_judge(&s.frame, features) == VNET_GOOD) {
		vnet_header_for(&s.frame, EVERY_RECEIVER_FEATURE, &to_guest);
		vnet_header_for(&s.frame, VNET_F_GUEST_CSUM, &to_guest);
		if (s.frame.offload.gso != FRAME_GSO_NONE)
			check_segments(&s.frame);
		else
			check_copy(&s.frame);
	}
	scatter_free(&s);
	return 0;
}
