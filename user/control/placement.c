/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/placement.h"

#include <assert.h>

#include "common/util.h"
#include "control/placement_private.h"

const char *const placement_policy_names[PLACEMENT_POLICY_COUNT] = {
	[PLACEMENT_PER_CPU] = "per-cpu",
	[PLACEMENT_PER_PORT] = "per-port",
	[PLACEMENT_MULTI_WORKER] = "multi-worker",
};
static_assert(PLACEMENT_POLICY_COUNT == 3, "name the new policy");

const char *const placement_reason_names[PLACEMENT_REASON_COUNT] = {
#define PLACEMENT_REASON_NAME(name, text) [PLACEMENT_REASON_##name] = text,
	PLACEMENT_REASONS(PLACEMENT_REASON_NAME)
#undef PLACEMENT_REASON_NAME
};

/* ------------------------------------------------------------------ per-cpu: what must be */

static void keep(struct planner *p)
{
	unsigned i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];

		p->choices[i] = (struct placement_choice){ -1, PLACEMENT_REASON_NONE };
		if (planner_has(p, pair->worker_now))
			planner_put(p, i, (unsigned)pair->worker_now, PLACEMENT_REASON_STAYS);
	}
	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];

		if (planner_is_ordered(p, pair))
			planner_put(p, i, (unsigned)pair->worker_wanted, PLACEMENT_REASON_PINNED);
		else if (p->choices[i].worker >= 0 &&
			 (p->in->afresh || (planner_node_is_ordered(p, pair) && !(planner_workers_at_home(p, pair) & BIT(p->choices[i].worker)))))
			planner_lift(p, i);
	}
}

static void place(struct planner *p)
{
	unsigned i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		bool gone = pair->worker_now >= 0 && !planner_has(p, pair->worker_now);
		unsigned w;

		if (p->choices[i].worker >= 0)
			continue;
		w = planner_pick(p, pair, planner_workers_at_home(p, pair));
		planner_put(p, i, w, gone ? planner_why_away(p, pair) : planner_why_there(p, pair, w));
	}
}

static void plan_per_cpu(struct planner *p)
{
	keep(p);
	place(p);
	planner_pay(p);
}

/* ------------------------------------------------------------------ the plan */

static unsigned finish(struct planner *p)
{
	unsigned changed = 0, i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		struct placement_choice *choice = &p->choices[i];

		if (planner_order_is_dead(p, pair))
			choice->reason = PLACEMENT_REASON_CPU_GONE;
		else if (choice->worker == pair->worker_now && choice->reason != PLACEMENT_REASON_PINNED && choice->reason != PLACEMENT_REASON_PORT_THREAD)
			choice->reason = PLACEMENT_REASON_STAYS;
		changed += choice->worker != pair->worker_now;
	}
	return changed;
}

unsigned placement_compute(const struct placement_input *in, struct placement_choice *choices)
{
	struct planner planner;
	unsigned i, lost = 0;

	planner_survey(&planner, in, choices);
	if (!planner.usable) {
		for (i = 0; i < in->pair_count; i++) {
			choices[i] = (struct placement_choice){ -1, PLACEMENT_REASON_NONE };
			lost += in->pairs[i].worker_now >= 0;
		}
		return lost;
	}
	if (in->policy == PLACEMENT_PER_CPU)
		plan_per_cpu(&planner);
	else
		planner_fixed(&planner, in->policy == PLACEMENT_MULTI_WORKER ? in->workers_per_port : 1);
	return finish(&planner);
}
