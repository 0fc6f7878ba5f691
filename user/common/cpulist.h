/* SPDX-License-Identifier: BSD-2-Clause */
/* CPU sets and their kernel text form ("0-3,8"). No state; any thread. */
#ifndef VHOSTLANE_COMMON_CPULIST_H
#define VHOSTLANE_COMMON_CPULIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CPUS_MAX 1024

struct cpulist {
	uint64_t bits[CPUS_MAX / 64];
};

static inline bool cpulist_has(const struct cpulist *l, unsigned cpu)
{
	return cpu < CPUS_MAX && (l->bits[cpu / 64] >> (cpu % 64) & 1);
}

static inline void cpulist_add(struct cpulist *l, unsigned cpu)
{
	if (cpu < CPUS_MAX)
		l->bits[cpu / 64] |= 1ull << (cpu % 64);
}

static inline void cpulist_remove(struct cpulist *l, unsigned cpu)
{
	if (cpu < CPUS_MAX)
		l->bits[cpu / 64] &= ~(1ull << (cpu % 64));
}

unsigned cpulist_count(const struct cpulist *l);

/* First CPU >= from, or -1. `for (int c = cpulist_next(l, 0); c >= 0; c = cpulist_next(l, c + 1))` walks the set. */
int cpulist_next(const struct cpulist *l, unsigned from);

/* Return: false if malformed; *bad (may be NULL) then points at the first character that does not fit. "" is empty. */
bool cpulist_parse(const char *text, struct cpulist *l, const char **bad);

/* Return: @buffer, always terminated; "..." at its end if it did not fit. */
const char *cpulist_format(const struct cpulist *l, char *buffer, size_t size);

/* CPUs that the process may use (sched_getaffinity of the process), and those online. Return: 0 or negative errno value. */
int cpulist_allowed(struct cpulist *l);
int cpulist_online(struct cpulist *l);

#endif
