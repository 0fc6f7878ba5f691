/* SPDX-License-Identifier: BSD-2-Clause */
/* What benches measure with: latency histograms, and the CPU time of processes and of the machine. No state; any thread. */
#ifndef TESTS_BENCH_MEASURE_H
#define TESTS_BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Latencies: 64 steps to each power of two (1.6 % wide) up to 2^38 ns. One writer. */
#define HISTOGRAM_STEP_BITS 6
#define HISTOGRAM_BUCKETS ((38 - HISTOGRAM_STEP_BITS + 2) << HISTOGRAM_STEP_BITS)

struct histogram {
	uint64_t count;
	uint32_t buckets[HISTOGRAM_BUCKETS];
};

static inline unsigned histogram_bucket(uint64_t ns)
{
	const unsigned top = 63u - (unsigned)__builtin_clzll(ns | 1);
	unsigned bucket = (unsigned)ns;

	if (top > HISTOGRAM_STEP_BITS)
		bucket = ((top - HISTOGRAM_STEP_BITS) << HISTOGRAM_STEP_BITS) + (unsigned)(ns >> (top - HISTOGRAM_STEP_BITS));
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

static inline void histogram_add(struct histogram *h, uint64_t ns)
{
	h->buckets[histogram_bucket(ns)]++;
	h->count++;
}

void histogram_merge(struct histogram *to, const struct histogram *from);
/* The value that @share (0..1) of all do not exceed, the middle of its step; 0 if there is none. */
double histogram_quantile(const struct histogram *h, double share);

/* CPU time of all threads of a process since they started, in nanoseconds; 0 if it is gone. */
uint64_t process_cpu_ns(pid_t pid);

struct machine_cpu { /* of all CPUs together, in nanoseconds */
	uint64_t busy, idle, stolen;
};
void machine_cpu_read(struct machine_cpu *cpu);

/* Runs the calling thread on one CPU only. Return: false if it may not. */
bool pin_to_cpu(int cpu);

/* Sorts. 0 of none. */
double median(double *values, unsigned count);

#endif
