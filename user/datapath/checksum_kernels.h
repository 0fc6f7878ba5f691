/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copying and summing, once for each kind of CPU, to be compiled into what calls them: checksum.c and frame_scatter.c, which
 * alone include this.
 *
 * Vector code adds pairs of words with one instruction that takes them for signed (pmaddwd with ones). Words are moved into the
 * signed range first by flipping their top bit, which takes 32768 from each; what was taken is put back at the end, times
 * the number of words. So three instructions do for a vector, beside its load and store. Where there is an instruction that
 * adds products of bytes (vpdpbusd), it adds up the words' first and their second bytes, and two do. 32-bit lanes hold the sums
 * of CHECKSUM_MAX bytes without overflow.
 *
 * What is less than a vector at the end is copied by a vector that overlaps the one before, of which only the new bytes are
 * summed.
 *
 * A store that crosses a line costs two. Long copies begin with a vector of which only the bytes before the next border are summed (@align), and
 * cross none from there on. Not those of pieces of all lengths, where the branch is not foretold and costs more.
 */
#ifndef VHOSTLANE_DATAPATH_CHECKSUM_KERNELS_H
#define VHOSTLANE_DATAPATH_CHECKSUM_KERNELS_H

#include "common/util.h"
#include "datapath/checksum.h"

#define ALIGN_FROM 256 /* bytes */

/* Plain C: one load for copy and sum. */
static inline uint64_t copy_short(uint8_t *to, const uint8_t *from, size_t length)
{
	uint64_t sum = 0;

	for (; length >= 8; length -= 8, from += 8, to += 8) {
		uint64_t v;

		memcpy(&v, from, 8);
		__asm__("" : "+r"(v)); /* not loaded a second time */
		memcpy(to, &v, 8);
		sum += (v & 0xffffffff) + (v >> 32);
	}
	if (length & 4) {
		uint32_t v;

		memcpy(&v, from, 4);
		__asm__("" : "+r"(v));
		memcpy(to, &v, 4);
		sum += v;
		from += 4;
		to += 4;
	}
	if (length & 2) {
		uint16_t v = load_word(from);

		__asm__("" : "+r"(v));
		store_word(to, v);
		sum += v;
		from += 2;
		to += 2;
	}
	if (length & 1) {
		uint8_t first = *from;
		uint16_t v = 0;

		__asm__("" : "+r"(first));
		*to = first;
		memcpy(&v, &first, 1);
		sum += v;
	}
	return sum;
}

#ifdef __x86_64__
#include <immintrin.h>

#define inline_always static inline __attribute__((always_inline))

_Static_assert(CHECKSUM_MAX / 16 <= 1u << 15, "a lane adds -2^16 at the least once for each vector");

inline_always uint64_t odd_byte(uint8_t *to, const uint8_t *from, size_t at, bool copy)
{
	uint8_t v = from[at];

	__asm__("" : "+r"(v));
	if (copy)
		to[at] = v;
	return v; /* little endian: the word's first byte */
}

/* Less than a vector in all. */
inline_always uint64_t rest(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	return copy ? copy_short(to, from, length) : checksum_sum_short(from, length);
}

/* One vector, from @from + @offset. The empty assembler keeps it from being loaded a second time. */
#define STEP(sum, prefix, vector, constraint, offset)                                                                  \
	do {                                                                                                           \
		vector v_ = prefix##_LOAD(from + (offset));                                                            \
		__asm__("" : "+" constraint(v_));                                                                      \
		if (copy)                                                                                              \
			prefix##_STORE(to + (offset), v_);                                                             \
		prefix##_ADD(sum, v_);                                                                                 \
	} while (0)

/* Whole vectors of @width bytes from @at to @end: into two sums in turn, so that no addition waits for the one before. */
#define STEPS(prefix, vector, width)                                                                                   \
	do {                                                                                                           \
		for (; end - at >= 4 * (width); at += 4 * (width)) {                                                   \
			STEP(sum0, prefix, vector, "x", at);                                                           \
			STEP(sum1, prefix, vector, "x", at + (width));                                                 \
			STEP(sum0, prefix, vector, "x", at + 2 * (width));                                             \
			STEP(sum1, prefix, vector, "x", at + 3 * (width));                                             \
		}                                                                                                      \
		for (; at < end; at += (width))                                                                        \
			STEP(sum0, prefix, vector, "x", at);                                                           \
	} while (0)

#define SSE2_LOAD(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define SSE2_STORE(to, v) _mm_storeu_si128((__m128i *)(void *)(to), v)
#define SSE2_ADD(sum, v) (sum) = _mm_add_epi32(sum, _mm_madd_epi16(_mm_xor_si128(v, flip), ones))

inline_always uint64_t run_sse2(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	const size_t end = length & ~(size_t)15;
	const __m128i flip = _mm_set1_epi16(-32768);
	__m128i ones = _mm_set1_epi16(1), sum0 = _mm_setzero_si128(), sum1 = sum0, sign;
	uint64_t lanes[2];
	size_t at = 0;

	__asm__("" : "+x"(ones)); /* a compiler that knows them makes three instructions of the one */
	STEPS(SSE2, __m128i, 16);
	/* Signed lanes to 64 bits. */
	sum0 = _mm_add_epi32(sum0, sum1);
	sign = _mm_srai_epi32(sum0, 31);
	_mm_storeu_si128((__m128i *)(void *)lanes, _mm_add_epi64(_mm_unpacklo_epi32(sum0, sign), _mm_unpackhi_epi32(sum0, sign)));
	return lanes[0] + lanes[1] + 32768 * (uint64_t)(end / 2) + rest(copy ? to + end : NULL, from + end, length - end, copy);
}

#define TARGET_AVX2 __attribute__((target("avx2")))

#define AVX2_LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define AVX2_STORE(to, v) _mm256_storeu_si256((__m256i *)(void *)(to), v)
#define AVX2_ADD(sum, v) (sum) = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_xor_si256(v, flip), ones))

TARGET_AVX2 inline_always uint64_t run_avx2(uint8_t *to, const uint8_t *from, size_t length, bool copy, bool align)
{
	/* Loaded from byte n on, it keeps the last n bytes of a vector. */
	static const uint8_t last_bytes[64] = {[32 ... 63] = 0xff};
	const uint64_t odd = length & 1 ? odd_byte(to, from, length - 1, copy) : 0;
	const __m256i flip = _mm256_set1_epi16(-32768);
	__m256i ones = _mm256_set1_epi16(1), sum0 = _mm256_setzero_si256(), sum1 = sum0;
	uint64_t lanes[4], summed = 0; /* bytes, the skipped ones too */
	size_t at = 0, end;

	length &= ~(size_t)1;
	if (length < 32)
		return odd + rest(to, from, length, copy);
	__asm__("" : "+x"(ones));
	if (align && likely(length > ALIGN_FROM)) {
		const unsigned to_border = -(unsigned)(uintptr_t)to & 31, skipped = to_border & 1 ? 0 : to_border;
		__m256i v = AVX2_LOAD(from);

		__asm__("" : "+x"(v));
		AVX2_STORE(to, v);
		v = _mm256_andnot_si256(AVX2_LOAD(last_bytes + (32 - skipped)), v);
		AVX2_ADD(sum1, v);
		summed = 32;
		from += skipped;
		to += skipped;
		length -= skipped;
	}
	end = length & ~(size_t)31;
	STEPS(AVX2, __m256i, 32);
	if (end < length) {
		__m256i v = AVX2_LOAD(from + length - 32);

		__asm__("" : "+x"(v));
		if (copy)
			AVX2_STORE(to + length - 32, v);
		v = _mm256_and_si256(v, AVX2_LOAD(last_bytes + (length - end)));
		AVX2_ADD(sum1, v);
		end += 32;
	}
	sum0 = _mm256_add_epi32(sum0, sum1);
	AVX2_STORE(lanes, _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(sum0)),
					   _mm256_cvtepi32_epi64(_mm256_extracti128_si256(sum0, 1))));
	return odd + lanes[0] + lanes[1] + lanes[2] + lanes[3] + 32768 * ((summed + end) / 2);
}

#define TARGET_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,bmi2")))

/* Sums of pieces that come one behind the other, CHECKSUM_MAX bytes together at most. */
struct vnni_sums {
	struct vnni_sum {
		__m512i first, second; /* of the words' first bytes, and of their second ones */
	} sum0, sum1;		       /* of vectors, in turn */
	uint64_t rest;		       /* of pieces too short for vectors */
};

_Static_assert(CHECKSUM_MAX / 2 * 255ull * 257 <= UINT32_MAX, "all lanes together fit one");

/* _mm512_dpbusd_epi32(), for which compilers carry the sum to another register and back. */
TARGET_VNNI inline_always void vnni_dot(__m512i *sum, __m512i v, __m512i weights)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(v), "v"(weights));
}

#define VNNI_LOAD(from) _mm512_loadu_si512(from)
#define VNNI_STORE(to, v) _mm512_storeu_si512(to, v)
#define VNNI_ADD(sum, v)                                                                                               \
	do {                                                                                                           \
		vnni_dot(&(sum).first, v, firsts);                                                                     \
		vnni_dot(&(sum).second, v, seconds);                                                                   \
	} while (0)

TARGET_VNNI inline_always struct vnni_sums vnni_zero(void)
{
	const __m512i zero = _mm512_setzero_si512();

	return (struct vnni_sums){{zero, zero}, {zero, zero}, 0};
}

/* A vector that overlaps the one before: only the bytes in @mask are new. A masked store would be slow, so all are stored. */
TARGET_VNNI inline_always void vnni_last(struct vnni_sum *sum, uint8_t *to, const uint8_t *from, size_t at, uint64_t mask, __m512i firsts,
					 __m512i seconds, bool copy)
{
	__m512i v = VNNI_LOAD(from + at);

	__asm__("" : "+v"(v));
	if (copy)
		VNNI_STORE(to + at, v);
	v = _mm512_maskz_mov_epi8(mask, v);
	VNNI_ADD(*sum, v);
}

/* @odd: the piece starts with a word's second byte. @align: see the opening of this file. */
TARGET_VNNI inline_always void vnni_add(struct vnni_sums *sums, uint8_t *to, const uint8_t *from, size_t length, bool odd, bool copy, bool align)
{
	const __m512i odd_start = _mm512_set1_epi8(odd), odd_length = _mm512_set1_epi8(length & 1); /* to change weights by */
	__m512i firsts = _mm512_xor_si512(_mm512_set1_epi16(1), odd_start), seconds = _mm512_xor_si512(_mm512_set1_epi16(0x100), odd_start);
	struct vnni_sum sum0 = sums->sum0, sum1 = sums->sum1;

	if (unlikely(length < 64)) {
		sums->rest += checksum_shift(rest(to, from, length, copy), odd);
		return;
	}
	if (align && likely(length > ALIGN_FROM)) {
		const unsigned to_line = -(unsigned)(uintptr_t)to & 63, skipped = to_line & 1 ? 0 : to_line;
		__m512i v = VNNI_LOAD(from);

		__asm__("" : "+v"(v));
		VNNI_STORE(to, v);
		v = _mm512_maskz_mov_epi8(_bzhi_u64(~0ull, skipped), v);
		VNNI_ADD(sum1, v);
		from += skipped;
		to += skipped;
		length -= skipped;
	}
	if (likely(length > 128)) {
		/* No branch but the loop's: pieces of all lengths come by, and a branch that is not foretold costs more than a vector. */
		const size_t end = (length - 1) & ~(size_t)127;
		const unsigned old = 128 - (unsigned)(length - end); /* of the last 128 bytes, 0 .. 127 */
		size_t at = 0;

		do {
			STEP(sum0, VNNI, __m512i, "v", at);
			STEP(sum1, VNNI, __m512i, "v", at + 64);
			at += 128;
		} while (at < end);
		firsts = _mm512_xor_si512(firsts, odd_length);
		seconds = _mm512_xor_si512(seconds, odd_length);
		vnni_last(&sum0, to, from, length - 128, ~_bzhi_u64(~0ull, old), firsts, seconds, copy);
		vnni_last(&sum1, to, from, length - 64, ~0ull << (old & 63 & -(old >> 6)), firsts, seconds, copy);
	} else {
		STEP(sum0, VNNI, __m512i, "v", 0);
		firsts = _mm512_xor_si512(firsts, odd_length);
		seconds = _mm512_xor_si512(seconds, odd_length);
		vnni_last(&sum1, to, from, length - 64, ~_bzhi_u64(~0ull, (unsigned)(128 - length)), firsts, seconds, copy);
	}
	sums->sum0 = sum0;
	sums->sum1 = sum1;
}

TARGET_VNNI inline_always uint64_t vnni_total(const struct vnni_sums *sums)
{
	const __m512i first = _mm512_add_epi32(sums->sum0.first, sums->sum1.first);
	const __m512i second = _mm512_add_epi32(sums->sum0.second, sums->sum1.second);

	const __m512i sixteen = _mm512_add_epi32(first, _mm512_slli_epi32(second, 8));
	const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(sixteen), _mm512_extracti64x4_epi64(sixteen, 1));
	__m128i lanes = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));

	lanes = _mm_add_epi32(lanes, _mm_shuffle_epi32(lanes, 0x4e));
	lanes = _mm_add_epi32(lanes, _mm_shuffle_epi32(lanes, 0xb1));
	return sums->rest + (uint32_t)_mm_cvtsi128_si32(lanes);
}

TARGET_VNNI inline_always uint64_t run_vnni(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	struct vnni_sums sums = vnni_zero();

	vnni_add(&sums, to, from, length, false, copy, copy);
	return vnni_total(&sums);
}

/* All that TARGET_VNNI names. */
static inline bool can_run_vnni(void)
{
	return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("bmi2");
}

/* Only CPUs that do not slow down for it: the first that did not brought VBMI2. */
static inline bool has_vnni(void)
{
	return can_run_vnni() && __builtin_cpu_supports("avx512vbmi2");
}

static inline bool has_avx2(void)
{
	return likely(__builtin_cpu_supports("avx2"));
}

#endif

#endif
