/* SPDX-License-Identifier: BSD-2-Clause */
#include "measure.h"

#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/util.h"

void histogram_merge(struct histogram *to, const struct histogram *from)
{
	to->count += from->count;
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
		to->buckets[i] += from->buckets[i];
}

/* Middle of a bucket. */
static double bucket_value(unsigned bucket)
{
	const unsigned octave = bucket >> HISTOGRAM_STEP_BITS, first = 1u << HISTOGRAM_STEP_BITS;

	if (octave < 2)
		return bucket;
	return ((double)(bucket - (octave - 1) * first) + 0.5) * (double)(1ull << (octave - 1));
}

double histogram_quantile(const struct histogram *h, double share)
{
	const double wanted = share * (double)h->count;
	uint64_t seen = 0;

	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		seen += h->buckets[i];
		if (h->buckets[i] && (double)seen >= wanted)
			return bucket_value(i);
	}
	return 0;
}

uint64_t process_cpu_ns(pid_t pid)
{
	char path[300], text[128];
	struct dirent *entry;
	uint64_t sum = 0, ns;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	if (!tasks)
		return 0;
	while ((entry = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", pid, entry->d_name);
		if (entry->d_name[0] != '.' && read_text(path, text, sizeof(text)) > 0 && sscanf(text, "%" SCNu64, &ns) == 1)
			sum += ns;
	}
	closedir(tasks);
	return sum;
}

void machine_cpu_read(struct machine_cpu *cpu)
{
	uint64_t v[8] = {0}; /* user nice system idle iowait irq softirq steal */
	char text[256];
	const uint64_t tick = 1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK);

	memset(cpu, 0, sizeof(*cpu));
	read_text("/proc/stat", text, sizeof(text));
	sscanf(text, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &v[0], &v[1], &v[2],
	       &v[3], &v[4], &v[5], &v[6], &v[7]);
	cpu->busy = (v[0] + v[1] + v[2] + v[5] + v[6]) * tick;
	cpu->idle = (v[3] + v[4]) * tick;
	cpu->stolen = v[7] * tick;
}

bool pin_to_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) == 0;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, unsigned count)
{
	if (!count)
		return 0;
	qsort(values, count, sizeof(*values), compare);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
