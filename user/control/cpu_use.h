/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who uses which CPU: what the kernel says of CPUs (/proc/stat) and of threads (schedstat). Placement is told by it where CPU time is to be had,
 * and where guests would lose what a worker gains. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_CPU_USE_H
#define VHOSTLANE_CONTROL_CPU_USE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/cpulist.h"

/* Since the machine was started, of each CPU, in ticks of /proc/stat (proc(5)). */
struct cpu_use {
	uint64_t spare[CPUS_MAX]; /* idle, and low priority (nice): to be had when wanted */
	uint64_t total[CPUS_MAX];
};

/* Reads the present state; 0 for CPUs that are offline. Return: 0 or negative errno value. */
int cpu_use_read(struct cpu_use *use);
/* The same from a text like /proc/stat's (tests). */
void cpu_use_parse(const char *text, struct cpu_use *use);

/* Share of @cpu's time between two readings that was not spare, 0..1000; 0 if nothing is known. */
uint32_t cpu_use_taken_permille(const struct cpu_use *before, const struct cpu_use *now, int cpu);

/* A thread's time on CPUs, and that it was runnable and had to wait (Documentation/scheduler/sched-stats.rst), nanoseconds.
 * Return: false if the kernel does not tell. */
bool cpu_use_of_thread(int tid, uint64_t *run_ns, uint64_t *wait_ns);

#endif
