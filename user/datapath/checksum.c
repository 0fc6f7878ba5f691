/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * Vector code adds pairs of words with one instruction that takes them for signed (pmaddwd with ones). Words are moved into the
 * signed range first by flipping their top bit, which takes 32768 from each; what was taken is put back at the end, times
 * the number of words. So three instructions do for a vector, beside its load and store. 32-bit lanes hold the sums of
 * BLOCK bytes without overflow.
 *
 * The variant is chosen by the CPU's features at each call: a load and a branch that is always foretold, and no state of
 * our own. Anything but x86-64 gets plain C.
 */
#include "datapath/checksum.h"

#include "common/util.h"

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

/* The tuning keeps compilers from splitting unaligned loads and stores in two, as CPUs before AVX2 liked. */
#define TARGET_AVX2 __attribute__((target("avx2,tune=haswell")))

#define BLOCK (1u << 19) /* bytes: at most 2^15 additions to a lane, each of at most 2^16, half of them to each sum */
#define inline_always static inline __attribute__((always_inline))

/* What is less than a vector. */
inline_always uint64_t rest(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	return copy ? copy_short(to, from, length) : checksum_sum_short(from, length);
}

inline_always uint64_t run_sse2(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	const __m128i flip = _mm_set1_epi16(-32768);
	__m128i ones = _mm_set1_epi16(1);
	uint64_t sum = 0, lanes[2];
	size_t at = 0;

	__asm__("" : "+x"(ones)); /* a compiler that knows them makes three instructions of the one */
#define STEP(sum, offset)                                                                                              \
	do {                                                                                                           \
		__m128i v_ = _mm_loadu_si128((const __m128i *)(const void *)(from + at + (offset)));                   \
		__asm__("" : "+x"(v_)); /* loaded once */                                                              \
		if (copy)                                                                                              \
			_mm_storeu_si128((__m128i *)(void *)(to + at + (offset)), v_);                                 \
		(sum) = _mm_add_epi32(sum, _mm_madd_epi16(_mm_xor_si128(v_, flip), ones));                             \
	} while (0)
	while (length - at >= 16) {
		const size_t end = at + (length - at < BLOCK ? (length - at) & ~(size_t)15 : BLOCK);
		__m128i sum0 = _mm_setzero_si128(), sum1 = sum0, sign0, sign1;

		sum += 32768 * (uint64_t)((end - at) / 2);
		for (; end - at >= 64; at += 64) {
			STEP(sum0, 0);
			STEP(sum1, 16);
			STEP(sum0, 32);
			STEP(sum1, 48);
		}
		for (; at < end; at += 16)
			STEP(sum0, 0);
		/* Signed lanes to 64 bits. */
		sign0 = _mm_srai_epi32(sum0, 31);
		sign1 = _mm_srai_epi32(sum1, 31);
		sum0 = _mm_add_epi64(_mm_unpacklo_epi32(sum0, sign0), _mm_unpackhi_epi32(sum0, sign0));
		sum1 = _mm_add_epi64(_mm_unpacklo_epi32(sum1, sign1), _mm_unpackhi_epi32(sum1, sign1));
		_mm_storeu_si128((__m128i *)(void *)lanes, _mm_add_epi64(sum0, sum1));
		sum += lanes[0] + lanes[1];
	}
#undef STEP
	return sum + rest(copy ? to + at : NULL, from + at, length - at, copy);
}

TARGET_AVX2 inline_always __m256i widen_avx2(__m256i v)
{
	return _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(v)),
				_mm256_cvtepi32_epi64(_mm256_extracti128_si256(v, 1)));
}

TARGET_AVX2 inline_always uint64_t run_avx2(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	const __m256i flip = _mm256_set1_epi16(-32768);
	__m256i ones = _mm256_set1_epi16(1);
	uint64_t sum = 0, lanes[4];
	size_t at = 0;

	__asm__("" : "+x"(ones)); /* a compiler that knows them makes three instructions of the one */
#define STEP(sum, offset)                                                                                              \
	do {                                                                                                           \
		__m256i v_ = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + (offset)));                \
		__asm__("" : "+x"(v_));                                                                                \
		if (copy)                                                                                              \
			_mm256_storeu_si256((__m256i *)(void *)(to + at + (offset)), v_);                              \
		(sum) = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_xor_si256(v_, flip), ones));                    \
	} while (0)
	while (length - at >= 32) {
		const size_t end = at + (length - at < BLOCK ? (length - at) & ~(size_t)31 : BLOCK);
		__m256i sum0 = _mm256_setzero_si256(), sum1 = sum0;

		sum += 32768 * (uint64_t)((end - at) / 2);
		for (; end - at >= 128; at += 128) {
			STEP(sum0, 0);
			STEP(sum1, 32);
			STEP(sum0, 64);
			STEP(sum1, 96);
		}
		for (; at < end; at += 32)
			STEP(sum0, 0);
		_mm256_storeu_si256((__m256i *)(void *)lanes, _mm256_add_epi64(widen_avx2(sum0), widen_avx2(sum1)));
		sum += lanes[0] + lanes[1] + lanes[2] + lanes[3];
	}
#undef STEP
	return sum + rest(copy ? to + at : NULL, from + at, length - at, copy);
}

#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,tune=icelake-server")))

/* As above; what is less than a vector goes through a mask, so that there is no rest. Bytes left out count as flipped zeros. */
TARGET_AVX512 inline_always uint64_t run_avx512(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	const __m512i flip = _mm512_set1_epi16(-32768);
	__m512i ones = _mm512_set1_epi16(1);
	uint64_t sum = 0;
	size_t at = 0;

	__asm__("" : "+v"(ones));
#define ADD(sum, v) (sum) = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_xor_si512(v, flip), ones))
#define STEP(sum, offset)                                                                                              \
	do {                                                                                                           \
		__m512i v_ = _mm512_loadu_si512(from + at + (offset));                                                 \
		__asm__("" : "+v"(v_));                                                                                \
		if (copy)                                                                                              \
			_mm512_storeu_si512(to + at + (offset), v_);                                                   \
		ADD(sum, v_);                                                                                          \
	} while (0)
	while (at < length) {
		const size_t end = at + (length - at < BLOCK ? length - at : BLOCK);
		__m512i sum0 = _mm512_setzero_si512(), sum1 = sum0;

		sum += 32768 * 32 * (uint64_t)((end - at + 63) / 64);
		for (; end - at >= 256; at += 256) {
			STEP(sum0, 0);
			STEP(sum1, 64);
			STEP(sum0, 128);
			STEP(sum1, 192);
		}
		for (; end - at >= 64; at += 64)
			STEP(sum0, 0);
		if (at < end) {
			const __mmask64 some = ~0ull >> (64 - (end - at));
			__m512i v = _mm512_maskz_loadu_epi8(some, from + at);

			__asm__("" : "+v"(v));
			if (copy)
				_mm512_mask_storeu_epi8(to + at, some, v);
			ADD(sum1, v);
			at = end;
		}
		/* Of lanes that hold at most 2^31: as 64 bits, then added up. */
		sum0 = _mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(sum0)),
					_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sum0, 1)));
		sum1 = _mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(sum1)),
					_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sum1, 1)));
		sum += (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(sum0, sum1));
	}
#undef STEP
#undef ADD
	return sum;
}

static uint64_t sum_sse2(const uint8_t *data, size_t length)
{
	return run_sse2(NULL, data, length, false);
}

static uint64_t copy_sse2(uint8_t *to, const uint8_t *from, size_t length)
{
	return run_sse2(to, from, length, true);
}

TARGET_AVX2 static uint64_t sum_avx2(const uint8_t *data, size_t length)
{
	return run_avx2(NULL, data, length, false);
}

TARGET_AVX2 static uint64_t copy_avx2(uint8_t *to, const uint8_t *from, size_t length)
{
	return run_avx2(to, from, length, true);
}

TARGET_AVX512 static uint64_t sum_avx512(const uint8_t *data, size_t length)
{
	return run_avx512(NULL, data, length, false);
}

TARGET_AVX512 static uint64_t copy_avx512(uint8_t *to, const uint8_t *from, size_t length)
{
	return run_avx512(to, from, length, true);
}

/* Only CPUs that do not slow down for it: the first that did not brought VBMI2. */
static inline bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2");
}

uint64_t checksum_sum_long(const uint8_t *data, size_t length)
{
	if (has_avx512())
		return sum_avx512(data, length);
	return likely(__builtin_cpu_supports("avx2")) ? sum_avx2(data, length) : sum_sse2(data, length);
}

uint64_t checksum_copy(uint8_t *to, const uint8_t *from, size_t length)
{
	if (has_avx512())
		return copy_avx512(to, from, length);
	return likely(__builtin_cpu_supports("avx2")) ? copy_avx2(to, from, length) : copy_sse2(to, from, length);
}

#else

uint64_t checksum_sum_long(const uint8_t *data, size_t length)
{
	return checksum_sum_short(data, length);
}

uint64_t checksum_copy(uint8_t *to, const uint8_t *from, size_t length)
{
	return copy_short(to, from, length);
}

#endif
