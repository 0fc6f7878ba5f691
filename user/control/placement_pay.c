/* SPDX-License-Identifier: BSD-2-Clause */
/* per-cpu: moves that pay. See placement.h, theory of operation. */
#include "common/util.h"
#include "control/placement_private.h"

#define ROUNDS_MAX 16 /* of paid moves; two or three settle it, the rest is a guard */

static uint32_t fill_of(const struct planner *p, unsigned w)
{
	return p->worker[w].measured + p->worker[w].pairs; /* a pair of unknown load counts as a little */
}

/* A paid move. Pairs that this plan moves anyway move for nothing. */
static bool move(struct planner *p, unsigned i, unsigned w, enum placement_reason reason)
{
	if (p->choices[i].worker == p->in->pairs[i].worker_now) {
		if (!p->moves_left)
			return false;
		p->moves_left--;
	}
	planner_put(p, i, w, reason);
	return true;
}

static bool may_move(const struct planner *p, unsigned i)
{
	const struct placement_pair *pair = &p->in->pairs[i];

	if (!p->moves_left && p->choices[i].worker == pair->worker_now)
		return false;
	return !planner_is_ordered(p, pair) && (pair->rest_ms == 0 || pair->rest_ms >= PLACEMENT_REST_MS);
}

/* Will @w be no fuller than is fit, or than where the pair comes from? */
static bool has_room(const struct planner *p, const struct placement_pair *pair, unsigned from, unsigned w)
{
	return p->worker[w].busy + pair->load_permille <= max_u32(p->worker[from].busy, PLACEMENT_ROOM_PERMILLE);
}

/* Others, the guests' vCPUs most likely, live on its CPU: work put there takes from them what it gains. */
static bool is_crowded(const struct planner *p, unsigned w)
{
	return p->in->workers[w].others_permille >= PLACEMENT_CROWDED_PERMILLE;
}

static bool is_full(const struct planner *p, unsigned w)
{
	return p->worker[w].busy >= PLACEMENT_FULL_PERMILLE;
}

static void relieve_standing(struct planner *p)
{
	worker_mask idle = 0, crowded = 0;
	unsigned w, i;

	for_each_worker(w, p->usable) {
		if (p->worker[w].busy < PLACEMENT_IDLE_PERMILLE)
			idle |= BIT(w);
		if (is_crowded(p, w))
			crowded |= BIT(w);
	}
	for (i = 0; idle && i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		unsigned from = (unsigned)p->choices[i].worker;
		worker_mask candidates;

		if (pair->standing_us <= PLACEMENT_STANDING_US || planner_is_ordered(p, pair) || (int)from != pair->worker_now)
			continue;
		if (pair->rest_ms && pair->rest_ms < PLACEMENT_STANDING_REST_MS)
			continue;
		/* Alone, it waits for itself: no other worker would be faster. */
		if (p->worker[from].busy < PLACEMENT_BUSY_PERMILLE || p->worker[from].pairs < 2 ||
		    p->worker[from].busy < pair->load_permille + PLACEMENT_IDLE_PERMILLE)
			continue;
		candidates = idle & planner_workers_at_home(p, pair);
		if (!candidates && is_full(p, from) && !planner_node_is_ordered(p, pair))
			candidates = idle;
		if (!is_full(p, from))
			candidates &= ~crowded;
		candidates = planner_no_closer_than(p, pair, candidates, max_u32(planner_closeness(p, pair, from), CLOSENESS_SIBLING));
		if (!candidates)
			continue;
		w = planner_pick(p, pair, candidates);
		if (!move(p, i, w, PLACEMENT_REASON_STANDING))
			return;
		idle &= ~BIT(w);
	}
}

static bool go_home(struct planner *p)
{
	bool moved = false;
	unsigned i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		unsigned from = (unsigned)p->choices[i].worker, w;
		worker_mask home = planner_workers_at_home(p, pair);

		if (home & BIT(from) || !may_move(p, i))
			continue;
		w = planner_pick(p, pair, home);
		if (has_room(p, pair, from, w))
			moved |= move(p, i, w, planner_why_there(p, pair, w));
	}
	return moved;
}

static bool leave_vcpus(struct planner *p)
{
	bool moved = false;
	unsigned i, w;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		unsigned from = (unsigned)p->choices[i].worker;
		int cpu = p->in->workers[from].cpu;
		worker_mask others;

		/* Not for the last kick alone: kicks come from everywhere. */
		if (cpu < 0 || !cpulist_has(&pair->vcpus, (unsigned)cpu) || !may_move(p, i))
			continue;
		others = planner_no_closer_than(p, pair, planner_workers_at_home(p, pair), CLOSENESS_SIBLING);
		if (!others)
			continue;
		w = planner_pick(p, pair, others);
		if (has_room(p, pair, from, w))
			moved |= move(p, i, w, PLACEMENT_REASON_LEFT_VCPU);
	}
	return moved;
}

/*
 * The emptiest lawful worker for a pair that leaves @from; @spread: only one with fewer pairs of its port. Onto a crowded CPU only if there is
 * no other way to get on. -1 = none.
 */
static int emptiest(struct planner *p, const struct placement_pair *pair, unsigned from, bool spread)
{
	enum closeness limit = planner_closeness(p, pair, from);
	worker_mask mask = planner_no_closer_than(p, pair, planner_workers_at_home(p, pair), limit) & ~BIT(from);
	int best = -1;
	unsigned w;

	for_each_worker(w, mask) {
		if (spread && *planner_port_share(p, pair, w) >= *planner_port_share(p, pair, from))
			continue;
		if (is_crowded(p, w) && !is_full(p, from))
			continue;
		if (best < 0 || fill_of(p, w) < fill_of(p, (unsigned)best))
			best = (int)w;
	}
	return best;
}

static bool balance(struct planner *p, bool spread)
{
	uint32_t small[VL_WORKERS_MAX] = { 0 }; /* load in pairs that only pay together */
	uint32_t lowest = UINT32_MAX;
	bool moved = false;
	unsigned i, w;

	for (i = 0; i < p->in->pair_count; i++)
		if (p->in->pairs[i].load_permille < PLACEMENT_HYSTERESIS_PERMILLE && may_move(p, i))
			small[p->choices[i].worker] += p->in->pairs[i].load_permille + 1;
	for_each_worker(w, p->usable)
		lowest = min_u32(lowest, fill_of(p, w)); /* stays a lower bound: no move below digs deeper */

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		unsigned from = (unsigned)p->choices[i].worker;
		uint32_t load = pair->load_permille + 1, gap;
		int to;

		if (fill_of(p, from) < lowest + 2 * PLACEMENT_HYSTERESIS_PERMILLE || !may_move(p, i))
			continue;
		to = emptiest(p, pair, from, spread);
		if (to < 0 || fill_of(p, from) < fill_of(p, (unsigned)to) + 2 * PLACEMENT_HYSTERESIS_PERMILLE)
			continue;
		gap = fill_of(p, from) - fill_of(p, (unsigned)to);
		if (load < PLACEMENT_HYSTERESIS_PERMILLE ? small[from] < PLACEMENT_HYSTERESIS_PERMILLE :
							   load + PLACEMENT_HYSTERESIS_PERMILLE > gap)
			continue;
		moved |= move(p, i, (unsigned)to, PLACEMENT_REASON_BALANCE);
	}
	return moved;
}

/* The emptiest other worker at home of all that may go there from @from; -1 = none that has so much less to do that it pays. */
static int splitting_place(const struct planner *p, unsigned from)
{
	int best = -1;
	unsigned w;

	for_each_worker(w, p->usable & ~BIT(from))
		if (p->worker[w].node == p->worker[from].node && (best < 0 || p->worker[w].busy < p->worker[best].busy))
			best = (int)w;
	if (best < 0 || p->worker[best].busy + 2 * PLACEMENT_HYSTERESIS_PERMILLE > p->worker[from].busy)
		return -1;
	return best;
}

/* What was gathered on one worker fills it: half of it goes back to another, at once and in one decision. */
static bool split(struct planner *p)
{
	bool moved = false;
	unsigned w, i;

	for_each_worker(w, p->usable) {
		const bool fills = p->worker[w].pairs > 1 && p->worker[w].busy >= PLACEMENT_SPLIT_PERMILLE;
		const int to = fills && p->moves_left ? splitting_place(p, w) : -1;

		if (to < 0 || !is_crowded(p, (unsigned)to))
			continue; /* free CPUs: standing and balance */
		p->moves_left--;
		for (i = 0; i < p->in->pair_count; i++) {
			const struct placement_pair *pair = &p->in->pairs[i];

			if (p->choices[i].worker != (int)w || planner_is_ordered(p, pair) || !(planner_workers_at_home(p, pair) & BIT(to)) ||
			    planner_closeness(p, pair, (unsigned)to) > max_u32(planner_closeness(p, pair, w), CLOSENESS_SIBLING))
				continue;
			if (fill_of(p, w) < fill_of(p, (unsigned)to) + 2 * (pair->load_permille + 1))
				continue;
			planner_put(p, i, (unsigned)to, PLACEMENT_REASON_SPLIT);
			moved = true;
		}
	}
	return moved;
}

static bool is_trickling(const struct planner *p, unsigned w)
{
	return p->worker[w].measured && p->worker[w].measured <= PLACEMENT_TRICKLE_PERMILLE;
}

/* Should it hand over its pairs, if there is where to? */
static bool wants_to_rest(const struct planner *p, unsigned w)
{
	return is_trickling(p, w) || (p->worker[w].measured && is_crowded(p, w) && !p->in->no_gathering);
}

/* With @from's pairs added: does @w stay so empty that nobody waits, or, where CPUs are short, below full with air to spare? */
static bool can_take_all(const struct planner *p, unsigned w, unsigned from)
{
	/* As a whole: what sending costs is in no pair's load. */
	if (is_crowded(p, from))
		return p->worker[w].busy + p->worker[from].busy <= PLACEMENT_GATHER_PERMILLE;
	return p->worker[w].busy + p->worker[from].measured <= PLACEMENT_HYSTERESIS_PERMILLE &&
	       fill_of(p, w) + fill_of(p, from) < 2 * PLACEMENT_HYSTERESIS_PERMILLE; /* else balance would send them back */
}

/* Where all of @from's working pairs could go: the fullest worker that can take them. -1 = nowhere. */
static int gathering_place(const struct planner *p, unsigned from, worker_mask lawful)
{
	int best = -1;
	unsigned w;

	for_each_worker(w, lawful & p->usable & ~BIT(from)) {
		const uint32_t load = p->worker[w].measured;
		const bool fuller = load > p->worker[from].measured || (load == p->worker[from].measured && w < from);

		/* An idle one would have to be woken instead: nothing gained. */
		if (!load || !fuller || !can_take_all(p, w, from))
			continue;
		if (best < 0 || load > p->worker[best].measured)
			best = (int)w;
	}
	return best;
}

/* How much of its CPU is in use, by whom ever. */
static uint32_t use_of(const struct planner *p, unsigned w)
{
	return p->worker[w].busy + p->in->workers[w].others_permille;
}

/*
 * The scheduler leaves a vCPU that never sleeps beside a worker that often does, even with another CPU idle. Where that CPU is full, all of
 * @from's working pairs go where most is left, if that stays clearly less used than this one is. -1 = nowhere.
 */
static int quieter_place(const struct planner *p, unsigned from, worker_mask lawful)
{
	int best = -1;
	unsigned w;

	if (!is_crowded(p, from) || use_of(p, from) < PLACEMENT_FULL_PERMILLE)
		return -1;
	for_each_worker(w, lawful & p->usable & ~BIT(from)) {
		const bool joins = p->worker[w].busy >= PLACEMENT_IDLE_PERMILLE;

		if (joins && (p->in->no_gathering || p->worker[w].busy + p->worker[from].busy > PLACEMENT_GATHER_PERMILLE))
			continue;
		if (use_of(p, w) + p->worker[from].busy + PLACEMENT_HYSTERESIS_PERMILLE > use_of(p, from))
			continue;
		if (best < 0 || use_of(p, w) < use_of(p, (unsigned)best))
			best = (int)w;
	}
	return best;
}

/* Workers that may take all pairs of @w, as far as @w's node goes. */
static worker_mask gathering_places(const struct planner *p, unsigned w)
{
	if (!wants_to_rest(p, w) && !is_crowded(p, w))
		return 0;
	return p->worker[w].node >= 0 ? p->on_node[p->worker[w].node] : p->usable;
}

static bool gather_one(struct planner *p)
{
	worker_mask lawful[VL_WORKERS_MAX];
	uint32_t working[VL_WORKERS_MAX] = { 0 };
	unsigned i, w, other;

	for (w = 0; w < p->workers; w++)
		lawful[w] = gathering_places(p, w);
	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];

		w = (unsigned)p->choices[i].worker;
		if (!lawful[w] || !pair->load_permille)
			continue;
		working[w]++;
		lawful[w] &= may_move(p, i) ? planner_workers_at_home(p, pair) : 0;
		lawful[w] = planner_no_closer_than(p, pair, lawful[w], planner_closeness(p, pair, w));
		if (is_crowded(p, w))
			continue; /* nothing runs in parallel there */
		for_each_worker(other, lawful[w])
			if (*planner_port_share(p, pair, other))
				lawful[w] &= ~BIT(other);
	}
	for (w = 0; w < p->workers; w++) {
		enum placement_reason reason = PLACEMENT_REASON_CONSOLIDATE;
		int to = -1;

		if (!working[w] || !p->moves_left)
			continue;
		if (wants_to_rest(p, w))
			to = gathering_place(p, w, lawful[w]);
		if (to < 0) {
			to = quieter_place(p, w, lawful[w]);
			reason = PLACEMENT_REASON_LEFT_CROWD;
		}
		if (to < 0)
			continue;
		/* One decision, one move: half of it would be worth nothing. */
		p->moves_left--;
		for (i = 0; i < p->in->pair_count; i++)
			if (p->choices[i].worker == (int)w && p->in->pairs[i].load_permille)
				planner_put(p, i, (unsigned)to, reason);
		return true;
	}
	return false;
}

static bool gather(struct planner *p)
{
	bool moved = false;

	while (gather_one(p)) /* each empties a worker onto a fuller one or a quieter CPU, so it ends */
		moved = true;
	return moved;
}

void planner_pay(struct planner *p)
{
	unsigned round;
	bool moved = true;

	relieve_standing(p);
	if (split(p))
		return;
	if (p->in->urgent) {
		gather(p);
		return;
	}
	for (round = 0; moved && round < ROUNDS_MAX; round++) {
		moved = go_home(p);
		moved |= leave_vcpus(p);
		moved |= balance(p, true);
		moved |= balance(p, false);
		moved |= gather(p);
	}
}
