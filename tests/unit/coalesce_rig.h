/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * For tests of coalescing: a burst as a lane makes it, and always the same proof: what comes out, segmented again with checksums
 * completed, is byte by byte what went in, in the order in which each flow sent it.
 */
#ifndef TESTS_UNIT_COALESCE_RIG_H
#define TESTS_UNIT_COALESCE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/coalesce.h"
#include "datapath/frame_checksum.h"
#include "datapath/frame_scatter.h"
#include "datapath/segment.h"
#include "offload_packet.h"

#define ALL (COALESCE_TCP4 | COALESCE_TCP6 | COALESCE_UDP4 | COALESCE_UDP6 | COALESCE_ECN)

/* A burst as a lane makes it. */
struct arrival {
	uint32_t count;
	struct scattered frames[FRAME_BURST];
	struct frame *list[FRAME_BURST];
	uint8_t *bytes[FRAME_BURST];
	uint32_t flow[FRAME_BURST];
};

static struct arrival arrival;
static struct coalesce_scratch *scratch;
static struct segment_burst *burst;
static uint8_t made[PACKET_MAX], got[PACKET_MAX];
static uint64_t seed = 1;

static inline int allocate(void **state)
{
	scratch = malloc(sizeof(*scratch));
	burst = malloc(sizeof(*burst));
	return scratch && burst ? 0 : -1;
}

static inline int release(void **state)
{
	free(scratch);
	free(burst);
	return 0;
}

/* The bytes in @made arrive: whole in the head, or its first bytes there and the rest in chunks. */
static inline void arrive_bytes(uint32_t length, uint32_t flow)
{
	const uint32_t i = arrival.count++, head = dice(&seed, 4) ? 3840 : 150 + dice(&seed, 400);

	assert_true(i < FRAME_BURST);
	scatter(&arrival.frames[i], made, length, head, 2000, &seed);
	arrival.list[i] = &arrival.frames[i].frame;
	arrival.bytes[i] = malloc(length);
	memcpy(arrival.bytes[i], made, length);
	arrival.flow[i] = flow;
}

static inline void arrive(const struct packet *p)
{
	arrive_bytes(packet_make(p, made, false), p->source_port);
}

static inline void forget(void)
{
	for (uint32_t i = 0; i < arrival.count; i++) {
		scatter_free(&arrival.frames[i]);
		free(arrival.bytes[i]);
	}
	arrival.count = 0;
}

/* After a test that failed, too. */
static inline int forget_all(void **state)
{
	forget();
	return 0;
}

/* One frame that came out (or a segment of it): it must be the next of its flow. */
static inline void expect_next(const struct frame *frame, bool *seen)
{
	uint32_t flow = UINT32_MAX;

	frame_copy(frame, got, true);
	for (uint32_t i = 0; i < arrival.count; i++) {
		const uint32_t length = arrival.frames[i].frame.length;

		if (seen[i] || arrival.flow[i] == flow || length != frame->length || memcmp(got, arrival.bytes[i], length))
			continue;
		for (uint32_t k = 0; k < i; k++)
			if (!seen[k] && arrival.flow[k] == arrival.flow[i])
				fail_msg("frame %u came before frame %u of its flow", i, k);
		seen[i] = true;
		return;
	}
	fail_msg("a frame of %u bytes that nobody sent", frame->length);
}

static inline void check_large(const struct frame *frame)
{
	const struct frame_offload *o = &frame->offload;

	assert_true(o->needs_checksum);
	assert_true(o->gso_size > 0 && frame->length - o->header_length > o->gso_size);
	assert_true(frame->length <= FRAME_LENGTH_MAX);
	assert_int_equal(frame->head_length, o->header_length);
}

/* The payload in one call, to buffers of all sizes, one behind the other. */
static inline bool scatter_and_verify(const struct frame *frame, uint8_t *to)
{
	static struct scatter_place places[FRAME_LENGTH_MAX];
	uint32_t left = frame->length - frame->head_length, count = 0;

	for (const uint32_t most = dice(&seed, 2) ? 4096 : 200; left; count++) {
		places[count] = (struct scatter_place){to, min_u32(left, 1 + dice(&seed, most))};
		to += places[count].length;
		left -= places[count].length;
	}
	return frame_scatter_verified(frame, places);
}

/* Copies piece by piece, as into a ring's buffers. Return: false if a part was found wrong. */
static inline bool copy_and_verify(const struct frame *frame)
{
	static uint8_t scattered[PACKET_MAX];
	struct frame_checksum c;
	uint32_t at = 0;

	assert_true(frame_checksum_wanted(frame, true));
	frame_checksum_start(&c, frame);
	for (uint32_t i = 0; i <= frame->segment_count; i++) {
		const uint8_t *from = i ? frame->segments[i - 1].data : frame->head;
		uint32_t left = i ? frame->segments[i - 1].length : frame->head_length;

		while (left) {
			uint32_t n = 1 + dice(&seed, 1500);

			n = n < left ? n : left;
			frame_checksum_copy(&c, got + at, from, n);
			from += n;
			at += n;
			left -= n;
		}
	}
	assert_int_equal(at, frame->length);
	assert_int_equal(scatter_and_verify(frame, scattered), !c.bad);
	assert_memory_equal(scattered, got + frame->head_length, frame->length - frame->head_length);
	return frame_checksum_finish(&c);
}

static inline uint32_t expect_segments(const struct frame *frame, bool *seen)
{
	struct segmenter segmenter;
	uint32_t count = 0;

	check_large(frame);
	assert_int_equal(segment_start(&segmenter, frame), SEGMENT_GOOD);
	while (segment_next(&segmenter, burst)) {
		for (uint32_t k = 0; k < burst->count; k++)
			expect_next(burst->list[k], seen);
		count += burst->count;
	}
	return count;
}

/* Left alone: the very frame, behind all that were left alone before it. */
static inline void expect_alone(const struct frame *frame, bool *seen, uint32_t *last_alone)
{
	uint32_t k = *last_alone;

	while (k < arrival.count && arrival.list[k] != frame)
		k++;
	assert_true(k < arrival.count);
	*last_alone = k;
	expect_next(frame, seen);
}

static inline void expect_all(const bool *seen)
{
	for (uint32_t i = 0; i < arrival.count; i++)
		assert_true(seen[i]);
}

/* Checksums verified by whoever copies: in the end the same frames must have arrived. Return: how many frames came out. */
static inline uint32_t check_verified_later(uint32_t kinds)
{
	uint32_t count, last_alone = 0, merged = 0;
	bool seen[FRAME_BURST] = {false};

	for (uint32_t i = 0; i < arrival.count; i++)
		arrival.list[i]->offload.verified = false;
	count = coalesce_frames(arrival.list, arrival.count, kinds | COALESCE_VERIFY_LATER, scratch);
	for (uint32_t i = 0; i < count; i++) {
		const struct frame *frame = scratch->list[i];
		struct frame *const *parts;
		uint32_t part_count;

		if (frame->offload.gso == FRAME_GSO_NONE) {
			expect_alone(frame, seen, &last_alone);
			continue;
		}
		part_count = coalesce_parts(scratch, frame, &parts);
		assert_true(part_count >= 2);
		merged += part_count;
		if (copy_and_verify(frame)) {
			assert_int_equal(expect_segments(frame, seen), part_count);
			continue;
		}
		for (uint32_t k = 0; k < part_count; k++)
			expect_next(parts[k], seen);
	}
	expect_all(seen);
	assert_int_equal(scratch->counters.merged, merged);
	return count;
}

/* Return: how many frames came out. */
static inline uint32_t coalesce_and_check(uint32_t kinds)
{
	const uint32_t later = check_verified_later(kinds);
	uint32_t count, last_alone = 0, merged = 0, large = 0;
	bool seen[FRAME_BURST] = {false};

	count = coalesce_frames(arrival.list, arrival.count, kinds, scratch);
	for (uint32_t i = 0; i < count; i++) {
		const struct frame *frame = scratch->list[i];

		if (frame->offload.gso == FRAME_GSO_NONE) {
			expect_alone(frame, seen, &last_alone);
			continue;
		}
		assert_null(frame->offload.sums);
		large++;
		merged += expect_segments(frame, seen);
	}
	expect_all(seen);
	if (!scratch->counters.bad_sums)
		assert_int_equal(later, count);
	assert_int_equal(scratch->counters.made, large);
	assert_int_equal(scratch->counters.merged, merged);
	return count;
}

/* @p cut into payloads of @size arrives. */
static inline void arrive_stream(const struct packet *p, uint32_t size)
{
	for (uint32_t i = 0; i * size < p->payload; i++) {
		const struct packet part = packet_part(p, size, i);

		arrive(&part);
	}
}

#endif
