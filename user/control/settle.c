/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/settle.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/util.h"
#include "control/softnet.h"

#define NOT_ALL_US 1000 /* where not every CPU can be visited */
#define JOIN_WAIT_US 50
#define BACKLOG_WAIT_US 100
#define BACKLOG_WAITS_MAX 500
#define CALLED_OFF_NS 100000000ull

/* --- steering ------------------------------------------------------------------------------------------------------- */

/* A thread's way over the CPUs. It and its sender hold a reference each, and the last one frees: it may be stuck for longer than is waited for. */
struct visit {
	_Atomic unsigned references;
	_Atomic int tid; /* 0 = not running yet */
	_Atomic int on;	 /* CPU that it is bound for, -1 = none yet */
	_Atomic bool called_off;
	struct cpulist cpus;
};

static void let_go(struct visit *visit)
{
	if (atomic_fetch_sub(&visit->references, 1) == 1)
		free(visit);
}

/* A thread of its own, because the set of CPUs that a thread may use cannot be put back as it was: offline ones do not show in it.
 * Return: NULL if some CPU was left out. */
static void *visit_cpus(void *argument)
{
	static const char all_visited;
	struct visit *visit = argument;
	bool all = true;

	atomic_store(&visit->tid, gettid());
	for (int cpu = cpulist_next(&visit->cpus, 0); all && cpu >= 0; cpu = cpulist_next(&visit->cpus, (unsigned)cpu + 1)) {
		cpu_set_t one;

		CPU_ZERO(&one);
		CPU_SET((unsigned)cpu, &one);
		atomic_store(&visit->on, cpu);
		/* Fails where a cpuset forbids it, or the CPU has gone just now. */
		all = !atomic_load(&visit->called_off) && !sched_setaffinity(0, sizeof(one), &one);
	}
	let_go(visit);
	return all ? (void *)(uintptr_t)&all_visited : NULL;
}
_Static_assert(CPUS_MAX <= CPU_SETSIZE, "every CPU has its bit");

/* It waits for a CPU that it does not get: anywhere else it comes to run, and to its end. */
static void call_off(struct visit *visit)
{
	const int tid = atomic_load(&visit->tid);
	cpu_set_t others;

	atomic_store(&visit->called_off, true);
	CPU_ZERO(&others);
	for (int cpu = cpulist_next(&visit->cpus, 0); cpu >= 0; cpu = cpulist_next(&visit->cpus, (unsigned)cpu + 1))
		if (cpu != atomic_load(&visit->on))
			CPU_SET((unsigned)cpu, &others);
	if (tid)
		sched_setaffinity(tid, sizeof(others), &others);
}

/* Return: false if it takes longer. */
static bool join(pthread_t thread, void **result, uint64_t ns)
{
	const uint64_t end = now_ns() + ns;
	int busy;

	/* Not pthread_timedjoin_np(), whose clock may be set back meanwhile. */
	while ((busy = pthread_tryjoin_np(thread, result)) == EBUSY && now_ns() < end)
		usleep(JOIN_WAIT_US);
	return busy != EBUSY;
}

void settle_steering(const struct cpulist *cpus)
{
	struct visit *visit = calloc(1, sizeof(*visit));
	void *all = NULL;
	pthread_t thread;

	if (visit) {
		visit->cpus = *cpus;
		visit->references = 2;
		visit->on = -1;
	}
	if (!visit || pthread_create(&thread, NULL, visit_cpus, visit)) {
		free(visit);
		usleep(NOT_ALL_US);
		return;
	}
	if (!join(thread, &all, SETTLE_VISITS_NS)) {
		call_off(visit);
		if (!join(thread, &all, CALLED_OFF_NS))
			pthread_detach(thread);
	} else if (!all) {
		usleep(NOT_ALL_US);
	}
	let_go(visit);
}

/* --- backlogs ------------------------------------------------------------------------------------------------------- */

void settle_backlogs(struct cpulist cpus)
{
	for (unsigned waits = 0; waits < BACKLOG_WAITS_MAX; waits++) {
		softnet_remove_idle(&cpus);
		if (!cpulist_count(&cpus))
			break;
		usleep(BACKLOG_WAIT_US);
	}
}
