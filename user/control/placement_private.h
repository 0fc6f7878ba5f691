/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Placement's inside, shared by the placement*.c files and nobody else. Pure like placement.h.
 *
 *   placement.c         the plan: what must be (keep, place), and the reasons
 *   placement_survey.c  what is known of workers and of a pair's home, and what a pair costs a worker
 *   placement_pay.c     per-cpu: moves that pay
 *   placement_fixed.c   per-port and multi-worker
 */
#ifndef VHOSTLANE_CONTROL_PLACEMENT_PRIVATE_H
#define VHOSTLANE_CONTROL_PLACEMENT_PRIVATE_H

#include "control/placement.h"

#define SIBLINGS_MAX 8 /* threads of one core; POWER has eight */

typedef uint64_t worker_mask;
_Static_assert(VL_WORKERS_MAX <= 64, "a worker_mask holds all workers");
#define BIT(worker) ((worker_mask)1 << (worker))
#define for_each_worker(w, mask) \
	for (worker_mask rest_ = (mask); rest_ && ((w) = (unsigned)__builtin_ctzll(rest_), 1); rest_ &= rest_ - 1)

/* How close a worker's CPU is to the guest's own vCPUs. */
enum closeness { CLOSENESS_NONE, CLOSENESS_SIBLING, CLOSENESS_KICKED, CLOSENESS_SAME };

/* One computation. */
struct planner {
	const struct placement_input *in;
	struct placement_choice *choices;
	unsigned workers;
	unsigned moves_left;
	worker_mask lawful; /* CPU online and allowed: an order may name it */
	worker_mask usable; /* of those, the ones that run; all of them if none does */
	worker_mask on_node[VL_NODES_MAX]; /* usable ones */
	int8_t nearest[VL_NODES_MAX];	   /* node to node with usable workers; -1 = there is none */
	struct {
		int node;
		unsigned sibling_count;
		int16_t siblings[SIBLINGS_MAX];
		uint32_t busy;	   /* measured as a whole or summed up from pairs, whichever is more */
		uint32_t measured; /* sum of its pairs' load */
		uint32_t pairs;
	} worker[VL_WORKERS_MAX];
	uint16_t of_port[VL_PORTS_MAX][VL_WORKERS_MAX]; /* pairs of a port on a worker */
};

/* placement_survey.c */
void planner_survey(struct planner *p, const struct placement_input *in, struct placement_choice *choices);
bool planner_has(const struct planner *p, int worker); /* usable */
/* The operator named a worker, and it can be had. */
bool planner_is_ordered(const struct planner *p, const struct placement_pair *pair);
/* The operator named a worker, and it can't be had: the next best is another one of its node. */
bool planner_order_is_dead(const struct planner *p, const struct placement_pair *pair);
bool planner_node_is_ordered(const struct planner *p, const struct placement_pair *pair);
/* The usable workers of @node, or of the nearest node that has any. Workers that are bound to no node: all of them. */
worker_mask planner_workers_near(const struct planner *p, int node);
worker_mask planner_workers_at_home(const struct planner *p, const struct placement_pair *pair);
enum closeness planner_closeness(const struct planner *p, const struct placement_pair *pair, unsigned w);
/* Those of @mask that are no closer to the guest's vCPUs than @limit. */
worker_mask planner_no_closer_than(const struct planner *p, const struct placement_pair *pair, worker_mask mask, enum closeness limit);
enum placement_reason planner_why_there(const struct planner *p, const struct placement_pair *pair, unsigned w);
uint16_t *planner_port_share(struct planner *p, const struct placement_pair *pair, unsigned w);
void planner_lift(struct planner *p, unsigned i);
void planner_put(struct planner *p, unsigned i, unsigned w, enum placement_reason reason);
/* The best of @mask, which is not empty: the rule's terms from the highest bits down, so that the first difference counts. */
unsigned planner_pick(struct planner *p, const struct placement_pair *pair, worker_mask mask);
/* Why a pair can't stay on worker_now, which is not usable. */
enum placement_reason planner_why_away(const struct planner *p, const struct placement_pair *pair);

/* placement_pay.c */
void planner_pay(struct planner *p);

/* placement_fixed.c */
void planner_fixed(struct planner *p, unsigned workers_per_port);

#endif
