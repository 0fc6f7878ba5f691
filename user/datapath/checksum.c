/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The variant is chosen by the CPU's features at each call: a load and a branch that is always foretold, and no state of
 * our own. Anything but x86-64 gets plain C.
 */
#include "datapath/checksum_kernels.h"

#ifdef __x86_64__

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
	return run_avx2(NULL, data, length, false, false);
}

TARGET_AVX2 static uint64_t copy_avx2(uint8_t *to, const uint8_t *from, size_t length)
{
	return run_avx2(to, from, length, true, true);
}

TARGET_VNNI static uint64_t sum_vnni(const uint8_t *data, size_t length)
{
	return run_vnni(NULL, data, length, false);
}

TARGET_VNNI static uint64_t copy_vnni(uint8_t *to, const uint8_t *from, size_t length)
{
	return run_vnni(to, from, length, true);
}

uint64_t checksum_sum_long(const uint8_t *data, size_t length)
{
	if (has_vnni())
		return sum_vnni(data, length);
	return has_avx2() ? sum_avx2(data, length) : sum_sse2(data, length);
}

uint64_t checksum_copy(uint8_t *to, const uint8_t *from, size_t length)
{
	if (has_vnni())
		return copy_vnni(to, from, length);
	return has_avx2() ? copy_avx2(to, from, length) : copy_sse2(to, from, length);
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
