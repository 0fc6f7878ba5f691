/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What can be known of a guest from outside, for placement: the node of its memory, and where its vCPU threads run. Every call is a bounded
 * number of small reads (one a thread of the peer, EVIDENCE_THREADS_MAX at most): for a timer of a second, not for a hot path.
 * No state but struct evidence_history, the caller's. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_EVIDENCE_H
#define VHOSTLANE_CONTROL_EVIDENCE_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/cpulist.h"
#include "control/topology.h"

#define EVIDENCE_THREADS_MAX 512 /* threads of one peer that are looked at */
#define EVIDENCE_SAMPLES 4
#define EVIDENCE_KICKS 3 /* readings in a row that show kicks from another node before they count */

struct evidence_peer {
	pid_t pid;	      /* 0 = nothing known */
	struct cpulist vcpus; /* CPUs to which its vCPU threads are bound; threads that may run anywhere bind nothing */
	int node;	      /* where most of them did; -1 = unknown. Ties: the lower number */
	unsigned threads;     /* vCPU threads found */
	bool named;	      /* known by their names; else the busiest threads of the process were taken for them */
};

/*
 * Node of the page at @page, which must be mapped; -1 = unknown (no NUMA, page not there). A page that the guest has and this process never
 * touched is mapped first, in a way that fails instead of raising SIGBUS.
 */
int evidence_ring_node(const void *page);

/* Node on which most of these addresses lie (at most EVIDENCE_PAGES_MAX are looked at); ties: the lower number. Pages that this process never
 * touched say nothing: a guest's buffers are touched as they are used. -1 = unknown. */
#define EVIDENCE_PAGES_MAX 16
int evidence_pages_node(const void *const *addresses, unsigned count);

/*
 * Looks at the threads of @pid. vCPU threads go by the names that hypervisors give them ("CPU 3/KVM", "vcpu3", ...); a process without such
 * names (QEMU without debug-threads, DPDK) shows by CPU time: those with at least a quarter of what its busiest thread used.
 * Return: 0; -ESRCH if there is no such process; another negative errno value if /proc does not tell. *out is empty then.
 */
int evidence_peer_read(pid_t pid, const struct topology *topology, struct evidence_peer *out);

/* The same below another procfs (tests). */
int evidence_peer_read_from(const char *procfs, pid_t pid, const struct topology *topology, struct evidence_peer *out);

/*
 * The last EVIDENCE_SAMPLES readings of one peer. A thread that wanders over all CPUs says nothing of any of them: a CPU counts as the
 * guest's if it was in all readings but one, the node changes when all but one say so. A pinned vCPU stands out at the
 * first reading, a moved one after three. Zero-initialised = empty.
 */
struct evidence_history {
	struct evidence_peer samples[EVIDENCE_SAMPLES];
	unsigned count; /* readings so far */
	int node;	/* as told last */
};

/* Adds a reading; one of another process starts anew. */
void evidence_history_add(struct evidence_history *history, const struct evidence_peer *reading);

/* What the readings agree on. Empty history: pid 0, node -1. */
void evidence_history_get(const struct evidence_history *history, struct evidence_peer *out);

/* The CPU that kicks one queue pair: the initiator. Within its node it counts as read; another node only after a while, so that a guest
 * which kicks from two nodes does not drag its pairs to and fro. */
struct evidence_kick {
	int cpu;	/* -1 = unknown */
	unsigned other; /* readings in a row from another node than that of ->cpu */
};
#define EVIDENCE_KICK_NONE ((struct evidence_kick){ .cpu = -1 })

/* @cpu: as kick_probe_cpu() tells it; -1 = no kick since the pair was moved or began: no news. */
void evidence_kick_add(struct evidence_kick *kick, const struct topology *topology, int cpu);

#endif
