/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * Vector code adds pairs of words with one instruction that takes them for signed (pmaddwd with ones). Words are moved into the
 * signed range first by flipping their top bit, which takes 32768 from each; what was taken is put back at the end, times
 * the number of words. So three instructions do for a vector, beside its load and store. 32-bit lanes hold the sums of
 * CHECKSUM_MAX bytes without overflow.
 *
 * What is less than a vector at the end is copied by a vector that overlaps the one before, of which only the new bytes are
 * summed. For that it must start at a word, so an odd byte is taken off first.
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
	for (; end - at >= 64; at += 64) {
		STEP(sum0, SSE2, __m128i, "x", at);
		STEP(sum1, SSE2, __m128i, "x", at + 16);
		STEP(sum0, SSE2, __m128i, "x", at + 32);
		STEP(sum1, SSE2, __m128i, "x", at + 48);
	}
	for (; at < end; at += 16)
		STEP(sum0, SSE2, __m128i, "x", at);
	/* Signed lanes to 64 bits. */
	sum0 = _mm_add_epi32(sum0, sum1);
	sign = _mm_srai_epi32(sum0, 31);
	_mm_storeu_si128((__m128i *)(void *)lanes, _mm_add_epi64(_mm_unpacklo_epi32(sum0, sign), _mm_unpackhi_epi32(sum0, sign)));
	return lanes[0] + lanes[1] + 32768 * (uint64_t)(end / 2) + rest(copy ? to + end : NULL, from + end, length - end, copy);
}

/* The tuning keeps compilers from splitting unaligned loads and stores in two, as CPUs before AVX2 liked. */
#define TARGET_AVX2 __attribute__((target("avx2,tune=haswell")))

#define AVX2_LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define AVX2_STORE(to, v) _mm256_storeu_si256((__m256i *)(void *)(to), v)
#define AVX2_ADD(sum, v) (sum) = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_xor_si256(v, flip), ones))

TARGET_AVX2 inline_always uint64_t run_avx2(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	/* Loaded from byte n on, it keeps the last n bytes of a vector. */
	static const uint8_t last_bytes[64] = {[32 ... 63] = 0xff};
	const uint64_t odd = length & 1 ? odd_byte(to, from, length - 1, copy) : 0;
	const __m256i flip = _mm256_set1_epi16(-32768);
	__m256i ones = _mm256_set1_epi16(1), sum0 = _mm256_setzero_si256(), sum1 = sum0;
	uint64_t lanes[4];
	size_t at = 0, end;

	length &= ~(size_t)1;
	end = length & ~(size_t)31;
	if (!end)
		return odd + rest(to, from, length, copy);
	__asm__("" : "+x"(ones));
	for (; end - at >= 128; at += 128) {
		STEP(sum0, AVX2, __m256i, "x", at);
		STEP(sum1, AVX2, __m256i, "x", at + 32);
		STEP(sum0, AVX2, __m256i, "x", at + 64);
		STEP(sum1, AVX2, __m256i, "x", at + 96);
	}
	for (; at < end; at += 32)
		STEP(sum0, AVX2, __m256i, "x", at);
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
	return odd + lanes[0] + lanes[1] + lanes[2] + lanes[3] + 32768 * (uint64_t)(end / 2);
}

#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,tune=icelake-server")))

#define AVX512_LOAD(from) _mm512_loadu_si512(from)
#define AVX512_STORE(to, v) _mm512_storeu_si512(to, v)
#define AVX512_ADD(sum, v) (sum) = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_xor_si512(v, flip), ones))

TARGET_AVX512 inline_always uint64_t run_avx512(uint8_t *to, const uint8_t *from, size_t length, bool copy)
{
	const uint64_t odd = length & 1 ? odd_byte(to, from, length - 1, copy) : 0;
	const __m512i flip = _mm512_set1_epi16(-32768);
	__m512i ones = _mm512_set1_epi16(1), sum0 = _mm512_setzero_si512(), sum1 = sum0;
	size_t at = 0, end;

	length &= ~(size_t)1;
	end = length & ~(size_t)63;
	if (!end)
		return odd + rest(to, from, length, copy);
	__asm__("" : "+v"(ones));
	for (; end - at >= 128; at += 128) {
		STEP(sum0, AVX512, __m512i, "v", at);
		STEP(sum1, AVX512, __m512i, "v", at + 64);
	}
	if (at < end)
		STEP(sum0, AVX512, __m512i, "v", at);
	if (end < length) { /* a masked store would be slow */
		__m512i v = AVX512_LOAD(from + length - 64);

		__asm__("" : "+v"(v));
		if (copy)
			AVX512_STORE(to + length - 64, v);
		v = _mm512_maskz_mov_epi8(~0ull << (64 - (length - end)), v);
		AVX512_ADD(sum1, v);
		end += 64;
	}
	sum0 = _mm512_add_epi32(sum0, sum1);
	sum0 = _mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(sum0)),
				_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(sum0, 1)));
	return odd + (uint64_t)_mm512_reduce_add_epi64(sum0) + 32768 * (uint64_t)(end / 2);
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
