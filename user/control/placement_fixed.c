/* SPDX-License-Identifier: BSD-2-Clause */
/* per-port and multi-worker: a fixed map. See placement.h, theory of operation. */
#include "common/util.h"
#include "control/placement_private.h"

#define NOBODY UINT8_MAX
_Static_assert(VL_WORKERS_MAX < NOBODY, "no worker has that number");

/* The pairs of one port that fall under the same order of a node, and the slots that they are dealt to. */
struct run {
	const struct placement_pair *pairs;
	unsigned count;
	worker_mask candidates; /* usable, not empty */
	unsigned slots;		/* pair i belongs to slot i % slots */
	uint8_t chosen[VL_WORKERS_MAX];
};

static unsigned own_worker(const struct planner *p, const struct run *run, unsigned slot)
{
	return (run->pairs->port * run->slots + slot) % p->workers;
}

/* Who serves a slot now, if he may go on. */
static uint8_t present_of(const struct planner *p, const struct run *run, unsigned slot)
{
	for (unsigned i = 0; !p->in->afresh && i < run->count; i++) {
		const struct placement_pair *pair = &run->pairs[i];

		if (pair->index % run->slots == slot && !planner_is_ordered(p, pair) && planner_has(p, pair->worker_now) &&
		    (run->candidates & BIT(pair->worker_now)))
			return (uint8_t)pair->worker_now;
	}
	return NOBODY;
}

/* A stand-in that nobody of the run serves yet, if there is one. */
static uint8_t by_turn(const struct planner *p, const struct run *run, unsigned slot, worker_mask taken)
{
	unsigned number = run->pairs->port * run->slots + slot, w;
	/* Ports that lost one worker differ in the quotient, slots outside the operator's node in the remainder: both spread. */
	unsigned skip = (number % p->workers + number / p->workers) % (unsigned)__builtin_popcountll(run->candidates);
	worker_mask free = run->candidates & ~taken, turn = 0;

	for_each_worker(w, run->candidates)
		if (skip-- == 0) {
			turn = run->candidates & ~(BIT(w) - 1);
			break;
		}
	if (free)
		turn = turn & free ? turn & free : free;
	return (uint8_t)__builtin_ctzll(turn);
}

/* Slots whose own worker is usable have it; the others keep their stand-in while it serves no other slot, or get one. */
static void deal_slots(const struct planner *p, struct run *run)
{
	worker_mask taken = 0;
	unsigned slot;

	for (slot = 0; slot < run->slots; slot++) {
		const unsigned own = own_worker(p, run, slot);

		run->chosen[slot] = run->candidates & BIT(own) ? (uint8_t)own : NOBODY;
		taken |= run->candidates & BIT(own);
	}
	for (slot = 0; slot < run->slots; slot++) {
		uint8_t present = run->chosen[slot] == NOBODY ? present_of(p, run, slot) : NOBODY;

		if (present == NOBODY || (taken & BIT(present) && run->candidates & ~taken))
			continue;
		run->chosen[slot] = present;
		taken |= BIT(present);
	}
	for (slot = 0; slot < run->slots; slot++) {
		if (run->chosen[slot] != NOBODY)
			continue;
		run->chosen[slot] = by_turn(p, run, slot, taken);
		taken |= BIT(run->chosen[slot]);
	}
}

static enum placement_reason why_dealt(const struct planner *p, const struct run *run, const struct placement_pair *pair, int node, unsigned w)
{
	const unsigned own = own_worker(p, run, pair->index % run->slots);

	if (planner_is_ordered(p, pair))
		return PLACEMENT_REASON_PINNED;
	if (!planner_has(p, (int)own) && (node < 0 || p->worker[own].node == node)) /* a stand-in */
		return p->lawful & BIT(own) ? PLACEMENT_REASON_RESCUED : PLACEMENT_REASON_CPU_GONE;
	return node >= 0 && p->nearest[node] >= 0 && p->worker[w].node != node ? PLACEMENT_REASON_NEAREST_NODE : PLACEMENT_REASON_PORT_THREAD;
}

void planner_fixed(struct planner *p, unsigned workers_per_port)
{
	const struct placement_pair *pairs = p->in->pairs;
	unsigned i, first, w;

	for (first = 0; first < p->in->pair_count; first = i) {
		int node = pairs[first].node_wanted < VL_NODES_MAX ? pairs[first].node_wanted : -1;
		struct run run = { .pairs = &pairs[first], .candidates = planner_workers_near(p, node),
				   .slots = min_u32(max_u32(workers_per_port, 1), p->workers) };

		for (i = first; i < p->in->pair_count && pairs[i].port == pairs[first].port && pairs[i].node_wanted == pairs[first].node_wanted; i++)
			run.count++;
		deal_slots(p, &run);
		for (i = first; i < first + run.count; i++) {
			p->choices[i] = (struct placement_choice){ -1, PLACEMENT_REASON_NONE };
			w = planner_is_ordered(p, &pairs[i]) ? (unsigned)pairs[i].worker_wanted : run.chosen[pairs[i].index % run.slots];
			planner_put(p, i, w, why_dealt(p, &run, &pairs[i], node, w));
		}
	}
}
