/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A burst from the wire, hostile in part: coalesced, segmented again, and compared with what came. Every frame must come out
 * once, byte by byte, and frames that went into one must have been neighbours in their flow.
 *
 * Input: for each frame which of two flows it continues and how it is disturbed; patches with or without checksums made
 * right again.
 */
#include "datapath/coalesce.h"
#include "datapath/frame_checksum.h"
#include "datapath/frame_scatter.h"
#include "datapath/segment.h"
#include "fuzz.h"
#include "../unit/offload_packet.h"

static uint8_t bytes[FRAME_BURST][4096], got[PACKET_MAX];
static struct coalesce_scratch scratch;
static struct segment_burst burst;

/* Disturbs a description: its checksums will be right. */
static void disturb(struct packet *p, struct input *in)
{
	const uint8_t value = input_byte(in);

	switch (input_byte(in) % 16) {
	case 0: p->flags = value; break;
	case 1: p->payload = value; break;
	case 2: p->seq += value; break;
	case 3: p->ack += value; break;
	case 4: p->window = value; break;
	case 5: p->id += value; break;
	case 6: p->fragment = (uint16_t)(value << 8); break;
	case 7: p->tos = value; break;
	case 8: p->ttl = value; break;
	case 9: p->tcp_options = 4 * (value % 11); break;
	case 10: p->options_seed = value; break;
	case 11: p->ip_options = 8 * (value % 6); break;
	case 12: p->tags = value % 3; break;
	case 13: p->reserved = value & 15; break;
	case 14: p->urgent = value; break;
	case 15: p->flow_label = value; break;
	}
}

static uint32_t make_frame(struct packet *flow, uint8_t *to, struct input *in)
{
	const uint8_t how = input_byte(in);
	struct packet p = *flow;
	uint32_t length;

	if (how & 4)
		disturb(&p, in);
	if (p.udp)
		p.tcp_options = 0;
	length = packet_make(&p, to, false);
	for (unsigned i = how & 8 ? input_byte(in) % 4 : 0; i; i--)
		to[input_word(in) % length] = input_byte(in);
	flow->seq += p.payload;
	flow->stream += p.payload;
	flow->id += !(how & 16);
	return length;
}

/* The first frame not yet seen that is this one. */
static void tick_off(const struct frame *frame, const struct scattered *frames, uint32_t count, bool *seen)
{
	frame_copy(frame, got, true);
	for (uint32_t i = 0; i < count; i++) {
		if (seen[i] || frames[i].frame.length != frame->length || memcmp(got, bytes[i], frame->length))
			continue;
		seen[i] = true;
		return;
	}
	MUST(!"a frame that nobody sent");
}

/* Return: false if the copy finds a part wrong. */
static bool copy_good(const struct frame *frame)
{
	static uint8_t scattered[FRAME_LENGTH_MAX];
	const uint32_t border = 1 + frame->length % 1536;
	const struct scatter_place place[] = {{scattered, border}, {scattered + border, sizeof(scattered) - border}};
	struct frame_checksum c;

	if (!frame->offload.sums)
		return true;
	frame_checksum_start(&c, frame);
	frame_checksum_copy(&c, got, frame->head, frame->head_length);
	for (uint32_t i = 0; i < frame->segment_count; i++)
		frame_checksum_copy(&c, got, frame->segments[i].data, frame->segments[i].length);
	MUST(frame_scatter_verified(frame, place) == !c.bad);
	return frame_checksum_finish(&c);
}

static void tick_off_all(const struct frame *frame, uint32_t kinds, const struct scattered *frames, uint32_t count, bool *seen)
{
	struct frame *const *parts;
	struct segmenter s;

	if (frame->offload.gso == FRAME_GSO_NONE) {
		tick_off(frame, frames, count, seen);
		return;
	}
	MUST(kinds & 1u << frame->offload.gso);
	MUST(frame->length <= FRAME_LENGTH_MAX && (!frame->offload.ecn || kinds & COALESCE_ECN));
	if (!copy_good(frame)) {
		for (uint32_t k = coalesce_parts(&scratch, frame, &parts); k--;)
			tick_off(parts[k], frames, count, seen);
		return;
	}
	MUST(segment_start(&s, frame) == SEGMENT_GOOD);
	while (segment_next(&s, &burst))
		for (uint32_t k = 0; k < burst.count; k++)
			tick_off(burst.list[k], frames, count, seen);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	struct packet flows[2] = {packet_tcp4, packet_udp4};
	struct scattered frames[FRAME_BURST];
	struct frame *list[FRAME_BURST];
	bool seen[FRAME_BURST] = {false};
	uint32_t count, out, kinds;
	uint64_t seed = input_byte(&in);

	kinds = input_byte(&in);
	for (unsigned f = 0; f < 2; f++) {
		const uint8_t bits = input_byte(&in);

		flows[f].family = bits & 1 ? 6 : 4;
		flows[f].payload = 1 + bits % 64 * 20;
		flows[f].tags = bits >> 7;
	}
	for (count = 0; count < FRAME_BURST && in.left; count++) {
		const uint32_t length = make_frame(&flows[*in.at & 1], bytes[count], &in);

		scatter(&frames[count], bytes[count], length, seed & 1 ? 200 : 3840, 100, &seed);
		list[count] = &frames[count].frame;
	}
	out = coalesce_frames(list, count, kinds, &scratch);
	MUST(out <= count);
	for (uint32_t i = 0; i < out; i++)
		tick_off_all(scratch.list[i], kinds, frames, count, seen);
	for (uint32_t i = 0; i < count; i++) {
		MUST(seen[i]);
		scatter_free(&frames[i]);
	}
	return 0;
}
