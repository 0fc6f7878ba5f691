/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What segmentation in software costs: a guest's frame of 64 KB into segments of 1448 bytes with their checksums, copied
 * into 2 KiB chunks as a lane does it, against the plain copy of the same bytes into the same chunks. Both in turn in one
 * run; the ratio is of each turn's own two times.
 *
 *   bench_segment [ROUNDS]
 *   valgrind --tool=callgrind --toggle-collect=segment_round bench_segment 100      instructions of one of the two
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/util.h"
#include "datapath/frame_checksum.h"
#include "datapath/segment.h"
#include "measure.h"
#include "../unit/offload_packet.h"

#define MSS 1448
#define CHUNK 2048
#define CHUNK_OFFSET 64 /* where a lane's frame starts in its chunk */
#define PAYLOAD (45 * MSS)

struct bench {
	struct frame frame;
	struct segment_burst burst;
	uint8_t *chunks;
	uint32_t chunk_count, next;
	uint32_t lengths[FRAME_BURST]; /* of the last round's frames */
	uint64_t bytes;
};

static uint8_t *next_chunk(struct bench *b)
{
	return b->chunks + (size_t)(b->next++ % b->chunk_count) * CHUNK + CHUNK_OFFSET;
}

/* @from: as many bytes as the segments have together. */
static __attribute__((noinline)) void copy_round(struct bench *b, const uint8_t *from)
{
	for (uint32_t i = 0; i < PAYLOAD / MSS; i++) {
		memcpy(next_chunk(b), from, b->lengths[i]);
		from += b->lengths[i];
	}
}

static __attribute__((noinline)) void segment_round(struct bench *b, const struct frame *frame)
{
	struct segmenter s;

	if (segment_start(&s, frame) != SEGMENT_GOOD)
		abort();
	while (segment_next(&s, &b->burst)) {
		for (uint32_t i = 0; i < b->burst.count; i++) {
			b->lengths[i] = b->burst.list[i]->length;
			frame_copy(b->burst.list[i], next_chunk(b), true);
		}
	}
}

/* One frame in pieces of @piece bytes; @sources of them, used in turn; as many chunks. */
static void run(const char *where, unsigned sources, uint32_t chunk_count, uint32_t piece, unsigned rounds)
{
	static struct bench b;
	struct packet p = packet_tcp4;
	struct frame *frames = calloc(sources, sizeof(*frames));
	uint8_t **memory = calloc(sources, sizeof(*memory));
	double *ratios = calloc(rounds, sizeof(*ratios)), *copies = calloc(rounds, sizeof(*copies)), *cuts = calloc(rounds, sizeof(*cuts));

	p.payload = PAYLOAD;
	b.chunk_count = chunk_count;
	b.chunks = aligned_alloc(4096, (size_t)chunk_count * CHUNK);
	memset(b.chunks, 1, (size_t)chunk_count * CHUNK);
	for (unsigned i = 0; i < sources; i++) {
		static struct frame_segment segments[FRAME_SEGMENTS];
		uint32_t length, count = 0;

		memory[i] = aligned_alloc(4096, 1 << 17);
		memset(memory[i], 1, 1 << 17);
		length = packet_make(&p, memory[i], true);
		frames[i] = (struct frame){.head = memory[i], .head_length = FRAME_HEAD_MAX, .length = length, .vnet = packet_header(&p, MSS)};
		for (uint32_t at = FRAME_HEAD_MAX; at < length; at += piece, count++)
			segments[count] = (struct frame_segment){memory[i] + at, min_u32(piece, length - at)};
		frames[i].segments = memcpy(malloc(sizeof(segments)), segments, sizeof(segments));
		frames[i].segment_count = (uint16_t)count;
		if (vnet_judge(&frames[i], EVERY_SENDER_FEATURE) != VNET_GOOD)
			abort();
	}
	segment_round(&b, &frames[0]); /* sets lengths */
	for (unsigned r = 0; r < rounds; r++) {
		uint64_t spent[2];

		for (unsigned turn = 0; turn < 2; turn++) {
			const unsigned which = (turn + r) % 2; /* ABBA */
			const unsigned source = (2 * r + turn) % sources;
			const uint64_t start = now_ns();

			for (unsigned k = 0; k < 4; k++) {
				if (which)
					segment_round(&b, &frames[(source + k) % sources]);
				else
					copy_round(&b, memory[(source + k) % sources]);
			}
			spent[which] = now_ns() - start;
		}
		copies[r] = (double)spent[0] / 4;
		cuts[r] = (double)spent[1] / 4;
		ratios[r] = (double)spent[1] / (double)spent[0];
	}
	printf("%-14s pieces of %5u B: copy %7.0f ns, segmentation %7.0f ns, ratio %.2f\n", where, piece, median(copies, rounds),
	       median(cuts, rounds), median(ratios, rounds));
	for (unsigned i = 0; i < sources; i++) {
		free((void *)(uintptr_t)frames[i].segments);
		free(memory[i]);
	}
	free(b.chunks);
	free(ratios);
	free(copies);
	free(cuts);
	free(frames);
	free(memory);
}

int main(int argc, char **argv)
{
	const unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 4000;
	static const uint32_t pieces[] = {65536, 32768, 4096, 1000};

	if (rounds < 10) {
		fprintf(stderr, "bench_segment: ROUNDS must be 10 or more\n");
		return 2;
	}
	printf("%u B of payload into %u segments of %u B\n", PAYLOAD, PAYLOAD / MSS, MSS);
	for (unsigned i = 0; i < ARRAY_SIZE(pieces); i++)
		run("in cache", 1, 64, pieces[i], rounds);
	for (unsigned i = 0; i < ARRAY_SIZE(pieces); i++)
		run("out of cache", 64, 4096, pieces[i], rounds); /* 4 MiB and 8 MiB: more than a second-level cache */
	return 0;
}
