/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which worker serves which queue pair (design section 5; seeds S1, S3, S4). A pure function of its input: no system
 * call, no clock, no memory of its own. Includes only topology. Control thread in the product, any thread in tests.
 *
 * Theory of operation. The operator's order (`worker_wanted`, `node_wanted`) binds every policy. Then:
 *
 * per-port, multi-worker   A fixed map: pair i of port k belongs to slot (k x N + i mod N) mod workers, N = 1 for per-port. A slot whose
 *	worker is unusable is stood in for by a usable one, turn by turn, which then stays: no other port moves when a CPU goes or comes back.
 *
 * A stalled worker is as good as none, as long as there is another: its pairs are rescued. An order holds a pair even there.
 *
 * per-cpu   Both directions of a pair move as one. In this order, as placement.c reads:
 *   keep	Every pair stays where it is, but for an unusable worker, an operator's order, and a plan that is made afresh.
 *   place	Each pair without a worker gets one on its home node: the operator's node, else that of the ring's memory, of the vCPUs,
 *		of the kicking CPU; without any of them every node will do. No usable worker there: the nearest node that has one. Among that
 *		node's workers, first difference counts: not a CPU of the guest's own vCPUs; not full; no SMT sibling of a vCPU; fewest pairs of the same
 *		port; least load (measured, then number of pairs); lowest number. Sharing a CPU with the guest comes before leaving
 *		its memory: a vCPU moves on or sleeps, remote memory costs every frame.
 *   Paid moves, at most moves_max in a plan, most urgent first. A pair that rests (rest_ms) takes no part; for the first, a tenth of that is enough:
 *   stand	A pair that waited over PLACEMENT_STANDING_US on a busy worker that also serves others goes to an idle worker, one
 *		pair to each: at home, or anywhere if its worker is full.
 *   go home	A pair on another node than its home (S1's re-homing) moves there, unless that fills a worker while its present one
 *		has more air. That is what keeps a pair that fled from a full node away until there is room again.
 *   leave	A pair on a CPU of its guest's vCPUs moves to another one of the node, on the same condition.
 *   balance	Between two workers whose loads differ by two hystereses or more: one pair that takes a hysteresis or more off the fuller,
 *		or small ones where together they do. First those that also spread their port.
 *   gather	A worker that only trickles (at most PLACEMENT_TRICKLE_PERMILLE, but not nothing) hands its pairs to the fullest that stays
 *		under one hysteresis: one CPU less to wake, and waiting stays improbable. Two pairs of a port are never joined: it has
 *		several to run them in parallel. Pairs that do nothing stay: they wake nobody. On a crowded CPU (others, most likely guests, use
 *		PLACEMENT_CROWDED_PERMILLE of it) any worker hands over what it has to one that stays at most PLACEMENT_GATHER_PERMILLE busy:
 *		a second worker takes from the guests what it gains.
 *		Where that CPU is full and another at home is clearly less used, all go there: the scheduler may leave a vCPU that never sleeps
 *		beside the worker for long.
 *   split	Comes before the others: a worker that PLACEMENT_SPLIT_PERMILLE or more fill gives half its load back to one on a crowded CPU. Such a
 *		plan does nothing else.
 *   These repeat until none pays. Each lowers (pairs off home, pairs on vCPUs' CPUs, unevenness) in this order, so they end, and
 *   computing again from the result, with load measured afresh, changes nothing.
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
	X(CONSOLIDATE, "gathered on fewer workers")                     \
	X(SPLIT, "spread again: one worker was not enough")		      \
	X(LEFT_VCPU, "left a CPU of the guest's vCPUs")			      \
	X(LEFT_CROWD, "left a CPU that others fill")			      \
	X(RESCUED, "its worker does not get its CPU")

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
	bool stalled; /* and yet its thread does not come to run: others hold the CPU */
	/* Share of time it had work, 0..1000, all pairs together. */
	uint32_t busy_permille;
	/* Share of its CPU's time that others used, 0..1000: neither idle, nor this worker's, nor that of tasks of low priority (nice). */
	uint32_t others_permille;
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
	uint32_t rest_ms;	/* since its last move, 0 = unknown or long ago: the hysteresis against evidence that flaps */
};

struct placement_input {
	const struct topology *topology;
	enum placement_policy policy;
	unsigned workers_per_port; /* multi-worker */
	const struct placement_worker *workers;
	unsigned worker_count;
	const struct placement_pair *pairs;
	unsigned pair_count;
	unsigned moves_max; /* moves that only pay, not must, in this plan; gathering and splitting a worker's pairs count as one */
	bool no_gathering;  /* on crowded CPUs: it was tried of late, and one worker was not enough */
	bool urgent; /* between two regular looks: only what stands, fills its worker, or wants to be gathered moves for pay */
	bool afresh; /* another policy: where pairs are now is no reason to stay there */
};

struct placement_choice {
	int worker; /* index into workers[]; -1 only if no worker is usable */
	enum placement_reason reason;
};

/* A pair moves for pay only if that takes at least this much load off the fuller worker. */
#define PLACEMENT_HYSTERESIS_PERMILLE 200
#define PLACEMENT_FULL_PERMILLE 900	/* no air left: a worker this busy gets pairs last */
#define PLACEMENT_ROOM_PERMILLE 700	/* a pair that goes home, or leaves a vCPU, may fill a worker this far */
#define PLACEMENT_BUSY_PERMILLE 500	/* busy enough for a pair to be standing because of others */
#define PLACEMENT_IDLE_PERMILLE 50	/* under this: a worker that sleeps, as good as */
#define PLACEMENT_TRICKLE_PERMILLE 50
#define PLACEMENT_CROWDED_PERMILLE 250 /* others use this much of a CPU: it is not free for the taking */
#define PLACEMENT_GATHER_PERMILLE 800 /* where CPUs are crowded, one worker gets so much rather than two */
#define PLACEMENT_SPLIT_PERMILLE 830  /* of its CPU: gathering saves work, so one that gets here was better two */
#define PLACEMENT_STANDING_US 10
#define PLACEMENT_REST_MS 1000
#define PLACEMENT_STANDING_REST_MS 100

/**
 * placement_compute() - choose a worker for every pair
 * @choices: pair_count of them, filled
 * Deterministic: same input, same output. Stable: without a reason to move, a pair stays.
 * busy_permille and load_permille are to be of one interval, later than the last move. Workers beyond VL_WORKERS_MAX get nothing.
 * About 35 KiB of stack; time in pairs x workers.
 * Return: how many pairs changed worker (new ones included).
 */
unsigned placement_compute(const struct placement_input *input, struct placement_choice *choices);

#endif
