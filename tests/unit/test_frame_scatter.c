/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every variant against a naive copy and sum: parts of one segment and of several, of even and odd lengths, over places of all lengths
 * and alignments; parts that are wrong by one bit; and not a byte outside the places.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/frame_scatter.c"
#include "kernel_variants.h"
#include "offload_packet.h"

#define ROUNDS 1000
#define SEGMENTS_MAX 40
#define PLACES_MAX 400
#define UNTOUCHED 0xa5

struct variant {
	const char *name;
	bool (*scatter)(const struct frame *, const struct scatter_place *);
	bool present;
};

static struct variant variants[] = {
	{.name = "chosen", .scatter = frame_scatter_verified},
#ifdef __x86_64__
	{.name = "sse2", .scatter = scatter_sse2},
	{.name = "avx2", .scatter = scatter_avx2},
	{.name = "vnni", .scatter = scatter_vnni},
#endif
};

static int find_variants(void **state)
{
	for (unsigned i = 0; i < ARRAY_SIZE(variants); i++)
		variants[i].present = variant_runs(variants[i].name);
	return 0;
}

static uint64_t seed = 1;

/* A frame without a head; each segment in memory of its exact size, so that a sanitizer sees a read beyond it. */
struct source {
	struct frame frame;
	struct frame_segment segments[SEGMENTS_MAX];
	uint8_t *memory[SEGMENTS_MAX];
	uint32_t sums[SEGMENTS_MAX];
	uint32_t parts;
};

/* @most: bytes of a segment. */
static void make_source(struct source *s, uint32_t most)
{
	const uint32_t count = 1 + dice(&seed, SEGMENTS_MAX), fill = dice(&seed, 8);
	uint32_t sum = 0, bytes = 0;

	memset(s, 0, sizeof(*s));
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t offset = dice(&seed, 67), length = 1 + dice(&seed, dice(&seed, 4) ? most : 20);

		s->memory[i] = malloc(offset + length);
		for (uint32_t k = 0; k < length; k++)
			s->memory[i][offset + k] = (uint8_t)(fill ? dice(&seed, 256) : 0xff); /* ff: lanes at their highest */
		s->segments[i] = (struct frame_segment){.data = s->memory[i] + offset, .length = length};
		for (uint32_t k = 0; k < length; k++, bytes++)
			sum += bytes & 1 ? s->segments[i].data[k] : s->segments[i].data[k] * 256u;
		s->frame.length += length;
		if (i + 1 < count && dice(&seed, 4) == 0)
			continue; /* the part goes on */
		while (sum >> 16)
			sum = (sum & 0xffff) + (sum >> 16);
		s->sums[i] = FRAME_SUM_CHECK | (htobe16((uint16_t)~sum) + 0xffff * dice(&seed, 3));
		s->parts++;
		sum = bytes = 0;
	}
	s->frame.segments = s->segments;
	s->frame.segment_count = (uint16_t)count;
	s->frame.offload.sums = s->sums;
}

static void free_source(struct source *s)
{
	for (uint32_t i = 0; i < s->frame.segment_count; i++)
		free(s->memory[i]);
}

/* Return: what the variant says of the frame. */
static bool scatter_and_compare(const struct variant *v, const struct source *s, uint32_t most)
{
	static struct scatter_place places[PLACES_MAX];
	static uint8_t memory[PLACES_MAX * 80 + PACKET_MAX * 2];
	const uint8_t *from = s->segments[0].data;
	uint32_t left = s->frame.length, from_left = s->segments[0].length, segment = 0, count = 0;
	uint8_t *at = memory, touched = 0;
	bool good;

	for (; left; count++) {
		uint32_t n = dice(&seed, 8) ? 1 + dice(&seed, most) : dice(&seed, 3);

		n = count + 1 == PLACES_MAX ? left : min_u32(n, left);
		at += 1 + dice(&seed, 70);
		places[count] = (struct scatter_place){at, n};
		at += n;
		left -= n;
	}
	memset(memory, UNTOUCHED, sizeof(memory));
	good = v->scatter(&s->frame, places);
	at = memory;
	for (uint32_t i = 0; i < count; i++) {
		for (; at < places[i].to; at++)
			touched |= *at ^ UNTOUCHED;
		for (; at < places[i].to + places[i].length; at++, from++, from_left--) {
			if (!from_left) {
				from = s->segments[++segment].data;
				from_left = s->segments[segment].length;
			}
			if (*at != *from)
				fail_msg("%s: wrong byte in place %u", v->name, i);
		}
	}
	for (; at < memory + sizeof(memory); at++)
		touched |= *at ^ UNTOUCHED;
	if (touched)
		fail_msg("%s: wrote outside the places", v->name);
	return good;
}

static void pieces_of_all_kinds(void **state)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		const uint32_t of_segments = round % 2 ? 1448 : 200, of_places = round / 2 % 2 ? 1600 : 150;
		struct source s;
		uint32_t wrong;

		make_source(&s, of_segments);
		for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
			if (variants[k].present && !scatter_and_compare(&variants[k], &s, of_places))
				fail_msg("%s: a right frame was found wrong in round %u", variants[k].name, round);
		/* One bit of one part. */
		wrong = dice(&seed, s.frame.segment_count);
		s.memory[wrong][s.segments[wrong].data - s.memory[wrong] + dice(&seed, s.segments[wrong].length)] ^= (uint8_t)(1u << dice(&seed, 8));
		for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
			if (variants[k].present && scatter_and_compare(&variants[k], &s, of_places))
				fail_msg("%s: a wrong frame was found right in round %u", variants[k].name, round);
		free_source(&s);
	}
}

/* Two parts whose errors cancel each other out are both wrong. */
static void errors_that_cancel(void **state)
{
	static uint8_t first[1000], second[1000], to[2000];
	const struct frame_segment segments[] = {{first, sizeof(first)}, {second, sizeof(second)}};
	const uint32_t sums[] = {FRAME_SUM_CHECK | 1, FRAME_SUM_CHECK | 0xfffe};
	const struct frame frame = {.segments = segments, .segment_count = 2, .length = 2000, .offload.sums = sums};
	const struct scatter_place place = {to, sizeof(to)};

	for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
		if (variants[k].present)
			assert_false(variants[k].scatter(&frame, &place));
}

/* What was verified before needs no sum, and lends none to the part behind it. */
static void verified_before(void **state)
{
	static uint8_t first[777], second[999], third[500], to[2500];
	const struct frame_segment segments[] = {{first, sizeof(first)}, {second, sizeof(second)}, {third, sizeof(third)}};
	const uint32_t sums[] = {FRAME_SUM_VERIFIED, FRAME_SUM_CHECK | 0xffff, FRAME_SUM_VERIFIED};
	const struct frame frame = {.segments = segments, .segment_count = 3, .length = 2276, .offload.sums = sums};
	const struct scatter_place place = {to, sizeof(to)};

	memset(first, 0x12, sizeof(first));
	memset(third, 0x34, sizeof(third));
	for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
		if (variants[k].present)
			assert_true(variants[k].scatter(&frame, &place));
	second[500] = 1;
	for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
		if (variants[k].present)
			assert_false(variants[k].scatter(&frame, &place));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_of_all_kinds),
		cmocka_unit_test(errors_that_cancel),
		cmocka_unit_test(verified_before),
	};

	return cmocka_run_group_tests_name("frame_scatter", tests, find_variants, NULL);
}
