/* SPDX-License-Identifier: BSD-2-Clause */
/* Small helpers that belong to no room. No state; any thread. */
#ifndef VHOSTLANE_COMMON_UTIL_H
#define VHOSTLANE_COMMON_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define CACHE_LINE 64
#define CACHE_ALIGNED __attribute__((aligned(CACHE_LINE)))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* A clock for short spans that costs less than now_ns(): the time stamp counter, or nanoseconds where there is none. */
static inline uint64_t cycles_now(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

/* In a loop that waits for another CPU. */
static inline void cpu_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("" ::: "memory");
#endif
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static inline bool is_power_of_two(uint64_t v)
{
	return v && !(v & (v - 1));
}

/* calloc() of cache-line aligned memory; free() with free(). NULL when out of memory. */
void *zalloc_aligned(size_t size);

/* Copies at most size - 1 characters and ends with NUL. Return: false if it did not fit. */
bool copy_string(char *to, size_t size, const char *from);

/* Reads a small text file (sysfs, procfs) without its last newline. Return: length or negative errno value; -E2BIG if the
 * file is longer than the buffer, which then holds its beginning. */
int read_text(const char *path, char *buffer, size_t size);
int write_text(const char *path, const char *text);

/* "aa:bb:cc:dd:ee:ff" <-> 6 bytes. mac_parse() return: false if malformed. */
bool mac_parse(const char *text, uint8_t mac[6]);
#define MAC_TEXT 18
const char *mac_format(const uint8_t mac[6], char text[MAC_TEXT]);

/* Whole decimal string to a number in [minimum, maximum]. Return: false if malformed or out of range. */
bool number_parse(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *value);

#endif
