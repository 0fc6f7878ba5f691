/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compiled once for each kind of CPU, with its way of copying inside. Pieces are short and of all lengths, so what comes between
 * them counts: sums stay in vectors until a part ends, and nothing is stored but the bytes. Stores wait for the cache in
 * order, and the more of them wait, the less of what follows can be begun meanwhile.
 */
#include "datapath/frame_scatter.h"

#include "datapath/checksum_kernels.h"

#define PREFETCHED 256 /* bytes */

/* How a kind of CPU copies and sums a part. @sums: its own. */
struct kind {
	void (*start)(void *sums);
	void (*add)(void *sums, uint8_t *to, const uint8_t *from, size_t length, bool odd);
	uint64_t (*total)(const void *sums);
};

static inline __attribute__((always_inline)) bool run(const struct frame *frame, const struct scatter_place *place, const struct kind *kind,
							   void *sums)
{
	const struct frame_segment *segment = frame->segments, *const end = segment + frame->segment_count;
	const uint32_t *check = frame->offload.sums;
	uint8_t *to = place->to;
	uint32_t room = place->length;
	bool good = true, odd = false;

	kind->start(sums);
	for (; segment < end; segment++, check++) {
		const uint8_t *from = segment->data;
		uint32_t left = segment->length;

		/* The next one begins where no hardware expects it. */
		if (segment + 1 < end)
			for (uint32_t ahead = 0; ahead < PREFETCHED; ahead += 64)
				__builtin_prefetch(segment[1].data + ahead);
		while (left) {
			uint32_t n;

			while (unlikely(!room)) {
				place++;
				to = place->to;
				room = place->length;
			}
			n = min_u32(left, room);
			kind->add(sums, to, from, n, odd);
			odd ^= n & 1;
			to += n;
			from += n;
			room -= n;
			left -= n;
		}
		if (likely(*check)) {
			good &= *check == FRAME_SUM_VERIFIED || checksum_fold(kind->total(sums) + (*check & ~FRAME_SUM_CHECK)) == 0xffff;
			kind->start(sums);
			odd = false;
		}
	}
	return good;
}

static void start_word(void *sums)
{
	*(uint64_t *)sums = 0;
}

static uint64_t total_word(const void *sums)
{
	return *(const uint64_t *)sums;
}

#ifdef __x86_64__

static void add_sse2(void *sums, uint8_t *to, const uint8_t *from, size_t length, bool odd)
{
	*(uint64_t *)sums += checksum_shift(run_sse2(to, from, length, true), odd);
}

TARGET_AVX2 static void add_avx2(void *sums, uint8_t *to, const uint8_t *from, size_t length, bool odd)
{
	*(uint64_t *)sums += checksum_shift(run_avx2(to, from, length, true, false), odd);
}

TARGET_VNNI static void start_vnni(void *sums)
{
	*(struct vnni_sums *)sums = vnni_zero();
}

TARGET_VNNI static void add_vnni(void *sums, uint8_t *to, const uint8_t *from, size_t length, bool odd)
{
	vnni_add(sums, to, from, length, odd, true, false);
}

TARGET_VNNI static uint64_t total_vnni(const void *sums)
{
	return vnni_total(sums);
}

static bool scatter_sse2(const struct frame *frame, const struct scatter_place *places)
{
	static const struct kind sse2 = {start_word, add_sse2, total_word};
	uint64_t sums;

	return run(frame, places, &sse2, &sums);
}

TARGET_AVX2 static bool scatter_avx2(const struct frame *frame, const struct scatter_place *places)
{
	static const struct kind avx2 = {start_word, add_avx2, total_word};
	uint64_t sums;

	return run(frame, places, &avx2, &sums);
}

TARGET_VNNI static bool scatter_vnni(const struct frame *frame, const struct scatter_place *places)
{
	static const struct kind vnni = {start_vnni, add_vnni, total_vnni};
	struct vnni_sums sums;

	return run(frame, places, &vnni, &sums);
}

bool frame_scatter_verified(const struct frame *frame, const struct scatter_place *places)
{
	if (has_vnni())
		return scatter_vnni(frame, places);
	return has_avx2() ? scatter_avx2(frame, places) : scatter_sse2(frame, places);
}

#else

static void add_plain(void *sums, uint8_t *to, const uint8_t *from, size_t length, bool odd)
{
	*(uint64_t *)sums += checksum_shift(copy_short(to, from, length), odd);
}

bool frame_scatter_verified(const struct frame *frame, const struct scatter_place *places)
{
	static const struct kind plain = {start_word, add_plain, total_word};
	uint64_t sums;

	return run(frame, places, &plain, &sums);
}

#endif
