// SPDX-License-Identifier: BSD-2-Clause
#include "common/cpulist.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/util.h"

unsigned cpulist_count(const struct cpulist *l)
{
	unsigned count = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(l->bits); i++)
		count += (unsigned)__builtin_popcountll(l->bits[i]);
	return count;
}

int cpulist_next(const struct cpulist *l, unsigned from)
{
	for (unsigned word = from / 64; word < ARRAY_SIZE(l->bits); word++) {
		uint64_t bits = l->bits[word];

		if (word == from / 64)
			bits &= ~0ull << (from % 64);
		if (bits)
			return (int)(word * 64 + (unsigned)__builtin_ctzll(bits));
	}
	return -1;
}

static bool parse_cpu(const char **text, unsigned *cpu)
{
	const char *p = *text;
	unsigned v = 0;

	if (*p < '0' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		v = v * 10 + (unsigned)(*p - '0');
		if (v >= CPUS_MAX)
			return false;
	}
	*text = p;
	*cpu = v;
	return true;
}

bool cpulist_parse(const char *text, struct cpulist *l, const char **bad)
{
	const char *p = text;

	memset(l, 0, sizeof(*l));
	while (*p) {
		unsigned first, last;
		const char *number = p;

		if (!parse_cpu(&p, &first))
			goto malformed;
		last = first;
		if (*p == '-') {
			number = ++p;
			if (!parse_cpu(&p, &last))
				goto malformed;
			if (last < first) {
				p = number;
				goto malformed;
			}
		}
		for (unsigned cpu = first; cpu <= last; cpu++)
			cpulist_add(l, cpu);
		if (!*p)
			break;
		if (*p != ',')
			goto malformed;
		p++;
		if (!*p) /* "1," promises another one */
			goto malformed;
	}
	return true;
malformed:
	if (bad)
		*bad = p;
	return false;
}

const char *cpulist_format(const struct cpulist *l, char *buffer, size_t size)
{
	size_t length = 0;

	if (size == 0)
		return buffer;
	buffer[0] = '\0';
	for (int first = cpulist_next(l, 0); first >= 0;) {
		char range[32];
		int last = first, n;

		while (cpulist_has(l, (unsigned)last + 1))
			last++;
		n = first == last ? snprintf(range, sizeof(range), "%s%d", length ? "," : "", first) :
				    snprintf(range, sizeof(range), "%s%d-%d", length ? "," : "", first, last);
		if (length + (size_t)n >= size) {
			size_t at = length + 4 <= size ? length : size > 4 ? size - 4 : 0;

			copy_string(buffer + at, size - at, "...");
			return buffer;
		}
		memcpy(buffer + length, range, (size_t)n + 1);
		length += (size_t)n;
		first = cpulist_next(l, (unsigned)last + 1);
	}
	return buffer;
}

int cpulist_allowed(struct cpulist *l)
{
	memset(l, 0, sizeof(*l));
	/* The kernel refuses a mask smaller than its own (EINVAL), so grow until it fits. */
	for (unsigned cpus = CPUS_MAX; cpus <= 64 * CPUS_MAX; cpus *= 2) {
		size_t size = CPU_ALLOC_SIZE(cpus);
		cpu_set_t *set = CPU_ALLOC(cpus);
		int result;

		if (!set)
			return -ENOMEM;
		result = sched_getaffinity(getpid(), size, set) == 0 ? 0 : -errno;
		for (unsigned cpu = 0; result == 0 && cpu < CPUS_MAX; cpu++)
			if (CPU_ISSET_S(cpu, size, set))
				cpulist_add(l, cpu);
		CPU_FREE(set);
		if (result != -EINVAL)
			return result;
	}
	return -EINVAL;
}

int cpulist_online(struct cpulist *l)
{
	char text[8192];
	int n = read_text("/sys/devices/system/cpu/online", text, sizeof(text));

	memset(l, 0, sizeof(*l));
	if (n < 0)
		return n;
	return cpulist_parse(text, l, NULL) ? 0 : -EINVAL;
}
