/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which worker serves which queue pair (design section 5; seeds S1, S3, S4). A pure function of its input: no system
 * call, no clock, no memory of its own. Includes only topology. Control thread in the product, any thread in tests.
 */
#ifndef VHOSTLANE_CONTROL_PLACEMENT_H
#define VHOSTLANE_CONTROL_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "control/topology.h"

enum placement_policy { PLACEMENT_PER_CPU, PLACEMENT_PER_PORT, PLACEMENT_MULTI_WORKER, PLACEMENT_POLICY_COUNT };
extern const char *const placement_policy_names[PLACEMENT_POLICY_COUNT]; /* "per-cpu", "per-port", "multi-worker" */

/* Why a pair sits where it does. Names in placement_reason_names[]. */
#define PLACEMENT_REASONS(X)                                                  \
	X(NONE, "not placed")                                                 \
	X(STAYS, "stays")						      \
	X(PINNED, "set by the operator")                                      \
	X(RING_NODE, "node of the ring's memory")                             \
	X(VCPU_NODE, "node of the guest's vCPUs")                             \
	X(KICK_NODE, "node of the kicking CPU")                               \
	X(LEAST_LOADED, "least loaded")                                       \
	X(NEAREST_NODE, "no allowed CPU on the node: nearest one")            \
	X(SHARES_VCPU, "only CPUs left run the guest's vCPUs")                \
	X(CPU_GONE, "its CPU went away")                                      \
	X(PORT_THREAD, "the port's own worker")                               \
	X(BALANCE, "moved to a less loaded CPU")                              \
	X(STANDING, "stood too long on a busy worker")                        \
	X(CONSOLIDATE, "idle: gathered on fewer workers")

enum placement_reason {
#define PLACEMENT_REASON_ENUM(name, text) PLACEMENT_REASON_##name,
	PLACEMENT_REASONS(PLACEMENT_REASON_ENUM)
#undef PLACEMENT_REASON_ENUM
	PLACEMENT_REASON_COUNT
};
extern const char *const placement_reason_names[PLACEMENT_REASON_COUNT];

struct placement_worker {
	int cpu;    /* -1 = not pinned */
	int node;   /* -1 = unknown */
	bool usable;/* its CPU is online and allowed */
	/* Share of time it had work, 0..1000, all pairs together. */
	uint32_t busy_permille;
};

struct placement_pair {
	uint16_t port;	/* port id */
	uint16_t index; /* pair index in the port */
	int ring_node;	/* node of the ring's pages, -1 = unknown */
	int vcpu_node;	/* node where most of the guest's vCPU threads run, -1 = unknown */
	int kick_cpu;	/* CPU that kicked last, -1 = unknown */
	struct cpulist vcpus; /* CPUs on which the guest's vCPU threads were seen */
	uint32_t load_permille; /* of one CPU; 0 = unknown or idle: counts as a little */
	int node_wanted;	/* operator: port's `node`, -1 = none */
	int worker_wanted;	/* operator: `queue set cpu=N` or queue_affinity edit, -1 = none */
	int worker_now;		/* -1 = new */
	uint32_t standing_us;	/* age of the oldest unserved work */
};

struct placement_input {
	const struct topology *topology;
	enum placement_policy policy;
	unsigned workers_per_port; /* multi-worker */
	const struct placement_worker *workers;
	unsigned worker_count;
	const struct placement_pair *pairs;
	unsigned pair_count;
	unsigned moves_max; /* moves that only pay, not must, in this plan */
};

struct placement_choice {
	int worker; /* index into workers[]; -1 only if no worker is usable */
	enum placement_reason reason;
};

/* A pair moves for pay only if that takes at least this much load off the fuller worker. */
#define PLACEMENT_HYSTERESIS_PERMILLE 200

/**
 * placement_compute() - choose a worker for every pair
 * @choices: pair_count of them, filled
 * Deterministic: same input, same output. Stable: without a reason to move, a pair stays.
 * Return: how many pairs changed worker (new ones included).
 */
unsigned placement_compute(const struct placement_input *input, struct placement_choice *choices);

#endif
