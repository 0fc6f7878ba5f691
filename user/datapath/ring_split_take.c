/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * from_guest: chains into frames. A burst runs in two passes, so that the misses of many entries overlap: first heads
 * and first descriptors of all of them, then frame by frame, the buffers of a later frame being fetched while one is
 * copied.
 *
 * Used entries are written as chains are taken; the guest sees them when ring_take_done() moves the index.
 */
#include "datapath/ring_split_private.h"

/*
 * Descriptors: a burst that walked more ends with the frame at hand, so that one call costs some ten microseconds whatever
 * the chains. A full burst of chains as drivers make them, of 2 to 19 descriptors, stays below.
 */
#define WALK_BUDGET_PER_TAKE 1280

enum taken {
	TAKEN_FRAME,
	TAKEN_NOTHING,	/* chain taken, its frame dropped and counted */
	TAKEN_LATER,	/* does not fit what is left of the burst */
	TAKEN_FAULT,
};

static inline void vnet_read(uint32_t header_length, const uint8_t *from, struct vnet_header *to)
{
	if (likely(header_length == VNET_HEADER_MODERN)) {
		__builtin_memcpy(to, from, VNET_HEADER_MODERN);
	} else {
		__builtin_memcpy(to, from, VNET_HEADER_LEGACY);
		to->num_buffers = 0;
	}
}

/* A chain of one piece with a frame of FRAME_LENGTH_MIN .. FRAME_LENGTH_MAX. */
static inline enum taken take_piece(struct frame_burst *burst, struct frame *frame, uint8_t *head, const uint8_t *at,
				    uint32_t header_length, uint32_t length)
{
	const uint8_t *data = at + header_length;

	frame->head = head;
	frame->segments = NULL;
	frame->length = length;
	frame->offload = (struct frame_offload){0};
	vnet_read(header_length, at, &frame->vnet);
	if (likely(length <= FRAME_HEAD_MAX)) {
		frame->head_length = (uint16_t)length;
		frame->segment_count = 0;
		copy_head(head, data, length);
		return TAKEN_FRAME;
	}
	if (unlikely(burst->segment_count == FRAME_SEGMENTS))
		return TAKEN_LATER;
	copy_head(head, data, FRAME_HEAD_MAX);
	burst->segments[burst->segment_count] = (struct frame_segment){data + FRAME_HEAD_MAX, length - FRAME_HEAD_MAX};
	frame->segments = &burst->segments[burst->segment_count++];
	frame->head_length = FRAME_HEAD_MAX;
	frame->segment_count = 1;
	return TAKEN_FRAME;
}

static enum taken take_drop(uint64_t *counter)
{
	ring_count(counter, 1);
	return TAKEN_NOTHING;
}

/* Any chain: header, head and segments split wherever the guest liked. Nothing is kept of what is not taken. */
static __attribute__((noinline)) enum taken take_chain(struct ring *ring, struct frame_burst *burst,
						       struct frame *frame, uint8_t *head, const struct ring_slot *slot,
						       uint32_t *budget)
{
	uint8_t header[VNET_HEADER_MODERN];
	uint32_t header_length = 0, length = 0, segments = 0, piece;
	uint32_t segments_free = FRAME_SEGMENTS - burst->segment_count;
	struct frame_segment *segment = &burst->segments[burst->segment_count];
	enum chain_result result;
	struct chain chain;
	uint8_t *at;

	if (!chain_start(ring, &chain, slot, 0))
		return TAKEN_FAULT;
	while ((result = chain_next(ring, &chain, budget, &at, &piece)) == CHAIN_PIECE) {
		if (header_length < ring->header_length) {
			uint32_t n = min_u32(piece, ring->header_length - header_length);

			memcpy(header + header_length, at, n);
			header_length += n;
			at += n;
			piece -= n;
		}
		if (piece > FRAME_LENGTH_MAX - length)
			return take_drop(&ring->counters.frames_long);
		if (length < FRAME_HEAD_MAX) {
			uint32_t n = min_u32(piece, FRAME_HEAD_MAX - length);

			copy_head(head + length, at, n);
			length += n;
			at += n;
			piece -= n;
		}
		if (!piece)
			continue;
		if (segments == segments_free)
			return burst->segment_count ? TAKEN_LATER : take_drop(&ring->counters.segments_exhausted);
		segment[segments++] = (struct frame_segment){at, piece};
		length += piece;
	}
	if (result == CHAIN_FAULT)
		return TAKEN_FAULT;
	if (header_length < ring->header_length)
		return take_drop(&ring->counters.header_bad);
	if (length < FRAME_LENGTH_MIN)
		return take_drop(&ring->counters.frames_short);
	vnet_read(ring->header_length, header, &frame->vnet);
	frame->offload = (struct frame_offload){0};
	frame->head = head;
	frame->length = length;
	frame->head_length = (uint16_t)min_u32(length, FRAME_HEAD_MAX);
	frame->segments = segments ? segment : NULL;
	frame->segment_count = (uint16_t)segments;
	burst->segment_count += segments;
	return TAKEN_FRAME;
}

static inline enum taken take_slot(struct ring *ring, struct frame_burst *burst, struct frame *frame, uint8_t *head,
				   const struct ring_slot *slot, uint32_t *budget)
{
	uint32_t header_length = ring->header_length;

	if (likely(slot->at)) {
		uint32_t length = slot->desc.len - header_length;

		if (likely(length - FRAME_LENGTH_MIN <=
			   FRAME_LENGTH_MAX - FRAME_LENGTH_MIN)) /* false too if one wraps */
			return take_piece(burst, frame, head, slot->at, header_length, length);
	}
	return take_chain(ring, burst, frame, head, slot, budget);
}

/* How many entries may be served now, at most max. */
static unsigned take_look(struct ring *ring, unsigned max)
{
	unsigned waiting = (uint16_t)(ring->avail_seen - ring->last_avail);

	if (waiting < max) {
		if (!ring_look(ring))
			return 0;
		waiting = (uint16_t)(ring->avail_seen - ring->last_avail);
	}
	return min_u32(waiting, max);
}

unsigned ring_take(struct ring *ring, struct frame_burst *burst, unsigned max)
{
	struct ring_slot slots[FRAME_BURST + PREFETCH_FRAMES];
	struct frame *frame = burst->frames;
	uint8_t *head = burst->heads[0] + FRAME_HEADROOM;
	uint32_t budget = WALK_BUDGET_PER_TAKE + CHAIN_STEPS_MAX;
	uint16_t used = ring->used_next;
	unsigned waiting, i;
	uint64_t bytes = 0;

	burst->count = 0;
	burst->segment_count = 0;
	if (unlikely(!ring_usable(ring)))
		return 0;
	waiting = take_look(ring, min_u32(max, FRAME_BURST));
	if (!waiting)
		return 0;

	for (i = 0; i < waiting; i++)
		slot_read(ring, (uint16_t)(ring->last_avail + i), 0, &slots[i]);
	for (i = 0; i < PREFETCH_FRAMES; i++) {
		slots[waiting + i].at = NULL;
		if (slots[i].at)
			prefetch_frame_read(slots[i].at);
	}
	for (i = 0; i < waiting && budget > CHAIN_STEPS_MAX; i++) {
		enum taken taken;

		if (likely(slots[i + PREFETCH_FRAMES]
				   .at)) /* a prefetch of NULL is not free: it walks the page table in vain */
			prefetch_frame_read(slots[i + PREFETCH_FRAMES].at);
		taken = take_slot(ring, burst, frame, head, &slots[i], &budget);
		if (likely(taken == TAKEN_FRAME)) {
			frame->origin = slots[i].head;
			bytes += frame->length;
			frame++;
			head += sizeof(burst->heads[0]);
		} else if (taken != TAKEN_NOTHING) {
			break;
		}
		used_write(ring, used++, slots[i].head, 0);
	}
	ring->used_next = used;
	ring->last_avail += i;
	burst->count = (uint32_t)(frame - burst->frames);
	ring_count(&ring->counters.frames, burst->count);
	ring_count(&ring->counters.bytes, bytes);
	return burst->count;
}

void ring_take_done(struct ring *ring)
{
	if (ring->running)
		ring_publish(ring);
}
