/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/placement.h"

#include <assert.h>
#include <string.h>

#include "common/util.h"

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

#define SIBLINGS_MAX 8 /* threads of one core; POWER has eight */
#define ROUNDS_MAX 16  /* of paid moves; two or three settle it, the rest is a guard */

typedef uint64_t worker_mask;
static_assert(VL_WORKERS_MAX <= 64, "a worker_mask holds all workers");
#define BIT(worker) ((worker_mask)1 << (worker))
#define for_each_worker(w, mask) \
	for (worker_mask rest_ = (mask); rest_ && ((w) = (unsigned)__builtin_ctzll(rest_), 1); rest_ &= rest_ - 1)

/* How close a worker's CPU is to the guest's own vCPUs. */
enum closeness { CLOSENESS_NONE, CLOSENESS_SIBLING, CLOSENESS_KICKED, CLOSENESS_SAME };

struct planner {
	const struct placement_input *in;
	struct placement_choice *choices;
	unsigned workers;
	unsigned moves_left;
	worker_mask usable;
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

/* ------------------------------------------------------------------ what is known before anything is placed */

static void find_siblings(struct planner *p, unsigned w)
{
	const struct topology *topology = p->in->topology;
	int own = p->in->workers[w].cpu;
	unsigned cpu;

	if (own < 0 || own >= CPUS_MAX || topology->cpus[own].core < 0)
		return;
	for (cpu = 0; cpu < topology->cpu_count && p->worker[w].sibling_count < SIBLINGS_MAX; cpu++)
		if ((int)cpu != own && topology->cpus[cpu].core == topology->cpus[own].core)
			p->worker[w].siblings[p->worker[w].sibling_count++] = (int16_t)cpu;
}

static void find_nearest_nodes(struct planner *p)
{
	int from, to;

	for (from = 0; from < VL_NODES_MAX; from++) {
		unsigned best = 0;

		p->nearest[from] = -1;
		for (to = 0; to < VL_NODES_MAX; to++) {
			unsigned distance = topology_distance(p->in->topology, from, to);

			if (p->on_node[to] && (p->nearest[from] < 0 || distance < best)) {
				p->nearest[from] = (int8_t)to;
				best = distance;
			}
		}
	}
}

static void survey(struct planner *p, const struct placement_input *in, struct placement_choice *choices)
{
	unsigned w;

	memset(p, 0, sizeof(*p));
	p->in = in;
	p->choices = choices;
	p->workers = min_u32(in->worker_count, VL_WORKERS_MAX);
	p->moves_left = in->moves_max;
	for (w = 0; w < p->workers; w++) {
		int node = in->workers[w].node;

		if (node < 0)
			node = topology_cpu_node(in->topology, in->workers[w].cpu);
		p->worker[w].node = node < VL_NODES_MAX ? node : -1;
		p->worker[w].busy = in->workers[w].busy_permille;
		find_siblings(p, w);
		if (!in->workers[w].usable)
			continue;
		p->usable |= BIT(w);
		if (p->worker[w].node >= 0)
			p->on_node[p->worker[w].node] |= BIT(w);
	}
	find_nearest_nodes(p);
}

static bool is_usable(const struct planner *p, int worker)
{
	return worker >= 0 && worker < (int)p->workers && (p->usable & BIT(worker));
}

/* The operator named a worker, and it can be had. */
static bool is_ordered(const struct planner *p, const struct placement_pair *pair)
{
	return is_usable(p, pair->worker_wanted);
}

/* The operator named a worker, and it can't be had: the next best is another one of its node. */
static bool is_order_dead(const struct planner *p, const struct placement_pair *pair)
{
	return pair->worker_wanted >= 0 && !is_ordered(p, pair);
}

static bool is_node_ordered(const struct planner *p, const struct placement_pair *pair)
{
	return pair->node_wanted >= 0 || is_order_dead(p, pair);
}

/* The node where the pair belongs, -1 if nothing is known; and what says so. */
static int home_of(const struct planner *p, const struct placement_pair *pair, enum placement_reason *reason)
{
	const struct {
		int node;
		enum placement_reason reason;
	} evidence[] = {
		{ is_order_dead(p, pair) && pair->worker_wanted < (int)p->workers ? p->worker[pair->worker_wanted].node : -1,
		  PLACEMENT_REASON_CPU_GONE },
		{ pair->node_wanted, PLACEMENT_REASON_PINNED },
		{ pair->ring_node, PLACEMENT_REASON_RING_NODE },
		{ pair->vcpu_node, PLACEMENT_REASON_VCPU_NODE },
		{ topology_cpu_node(p->in->topology, pair->kick_cpu), PLACEMENT_REASON_KICK_NODE },
	};
	unsigned i;

	for (i = 0; i < ARRAY_SIZE(evidence); i++) {
		if (evidence[i].node < 0 || evidence[i].node >= VL_NODES_MAX)
			continue;
		*reason = evidence[i].reason;
		return evidence[i].node;
	}
	*reason = PLACEMENT_REASON_LEAST_LOADED;
	return -1;
}

/* The usable workers of @node, or of the nearest node that has any. Workers that are bound to no node: all of them. */
static worker_mask workers_near(const struct planner *p, int node)
{
	return node < 0 || p->nearest[node] < 0 ? p->usable : p->on_node[p->nearest[node]];
}

static worker_mask workers_at_home(const struct planner *p, const struct placement_pair *pair)
{
	enum placement_reason reason;

	return workers_near(p, home_of(p, pair, &reason));
}

static enum closeness closeness_of(const struct planner *p, const struct placement_pair *pair, unsigned w)
{
	int cpu = p->in->workers[w].cpu;
	unsigned i;

	if (cpu < 0)
		return CLOSENESS_NONE;
	if (cpulist_has(&pair->vcpus, (unsigned)cpu))
		return CLOSENESS_SAME;
	if (pair->kick_cpu == cpu)
		return CLOSENESS_KICKED;
	for (i = 0; i < p->worker[w].sibling_count; i++) {
		int sibling = p->worker[w].siblings[i];

		if (cpulist_has(&pair->vcpus, (unsigned)sibling) || pair->kick_cpu == sibling)
			return CLOSENESS_SIBLING;
	}
	return CLOSENESS_NONE;
}

/* Those of @mask that are no closer to the guest's vCPUs than @limit. */
static worker_mask no_closer_than(const struct planner *p, const struct placement_pair *pair, worker_mask mask, enum closeness limit)
{
	worker_mask kept = 0;
	unsigned w;

	for_each_worker(w, mask)
		if (closeness_of(p, pair, w) <= limit)
			kept |= BIT(w);
	return kept;
}

/* ------------------------------------------------------------------ moving, and what it costs */

static uint32_t fill_of(const struct planner *p, unsigned w)
{
	return p->worker[w].measured + p->worker[w].pairs; /* a pair of unknown load counts as a little */
}

static uint16_t *port_share(struct planner *p, const struct placement_pair *pair, unsigned w)
{
	return &p->of_port[pair->port % VL_PORTS_MAX][w];
}

static void lift(struct planner *p, unsigned i)
{
	const struct placement_pair *pair = &p->in->pairs[i];
	unsigned w = (unsigned)p->choices[i].worker;

	p->worker[w].measured -= pair->load_permille;
	p->worker[w].busy -= min_u32(p->worker[w].busy, pair->load_permille);
	p->worker[w].pairs--;
	--*port_share(p, pair, w);
	p->choices[i].worker = -1;
}

static void put(struct planner *p, unsigned i, unsigned w, enum placement_reason reason)
{
	const struct placement_pair *pair = &p->in->pairs[i];
	struct placement_choice *choice = &p->choices[i];
	bool in_busy = (int)w == pair->worker_now && choice->reason == PLACEMENT_REASON_NONE; /* the worker's measure has it already */

	if (choice->worker >= 0)
		lift(p, i);
	p->worker[w].measured += pair->load_permille;
	p->worker[w].busy = max_u32(p->worker[w].measured, p->worker[w].busy + (in_busy ? 0 : pair->load_permille));
	p->worker[w].pairs++;
	++*port_share(p, pair, w);
	*choice = (struct placement_choice){ (int)w, reason };
}

/* A paid move. Pairs that this plan moves anyway move for nothing. */
static bool move(struct planner *p, unsigned i, unsigned w, enum placement_reason reason)
{
	if (p->choices[i].worker == p->in->pairs[i].worker_now) {
		if (!p->moves_left)
			return false;
		p->moves_left--;
	}
	put(p, i, w, reason);
	return true;
}

static bool may_move(const struct planner *p, unsigned i)
{
	const struct placement_pair *pair = &p->in->pairs[i];

	if (!p->moves_left && p->choices[i].worker == pair->worker_now)
		return false;
	return !is_ordered(p, pair) && (pair->rest_ms == 0 || pair->rest_ms >= PLACEMENT_REST_MS);
}

/* The best of @mask, which is not empty: the rule's terms from the highest bits down, so that the first difference counts. */
static unsigned pick(struct planner *p, const struct placement_pair *pair, worker_mask mask)
{
	uint64_t best_key = UINT64_MAX;
	unsigned best = 0, w;

	for_each_worker(w, mask) {
		enum closeness closeness = closeness_of(p, pair, w);
		uint32_t busy = max_u32(p->worker[w].busy, p->worker[w].measured);
		uint64_t key = (uint64_t)(closeness >= CLOSENESS_KICKED) << 62 |
			       (uint64_t)(busy + pair->load_permille >= PLACEMENT_FULL_PERMILLE) << 61 |
			       (uint64_t)(closeness == CLOSENESS_SIBLING) << 60 | (uint64_t)*port_share(p, pair, w) << 32 |
			       (busy + p->worker[w].pairs);

		if (key < best_key) {
			best_key = key;
			best = w;
		}
	}
	return best;
}

/* Will @w be no fuller than is fit, or than where the pair comes from? */
static bool has_room(const struct planner *p, const struct placement_pair *pair, unsigned from, unsigned w)
{
	return p->worker[w].busy + pair->load_permille <= max_u32(p->worker[from].busy, PLACEMENT_ROOM_PERMILLE);
}

/* ------------------------------------------------------------------ per-cpu: what must be */

static void keep(struct planner *p)
{
	unsigned i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];

		p->choices[i] = (struct placement_choice){ -1, PLACEMENT_REASON_NONE };
		if (is_usable(p, pair->worker_now))
			put(p, i, (unsigned)pair->worker_now, PLACEMENT_REASON_STAYS);
	}
	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];

		if (is_ordered(p, pair))
			put(p, i, (unsigned)pair->worker_wanted, PLACEMENT_REASON_PINNED);
		else if (p->choices[i].worker >= 0 && is_node_ordered(p, pair) && !(workers_at_home(p, pair) & BIT(p->choices[i].worker)))
			lift(p, i);
	}
}

static enum placement_reason why_there(const struct planner *p, const struct placement_pair *pair, unsigned w)
{
	enum placement_reason reason;
	int home = home_of(p, pair, &reason);

	if (closeness_of(p, pair, w) >= CLOSENESS_KICKED)
		return PLACEMENT_REASON_SHARES_VCPU;
	if (home >= 0 && p->nearest[home] < 0) /* workers bound to no node */
		return PLACEMENT_REASON_LEAST_LOADED;
	return home < 0 || p->worker[w].node == home ? reason : PLACEMENT_REASON_NEAREST_NODE;
}

static void place(struct planner *p)
{
	unsigned i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		bool gone = pair->worker_now >= 0 && !is_usable(p, pair->worker_now);
		unsigned w;

		if (p->choices[i].worker >= 0)
			continue;
		w = pick(p, pair, workers_at_home(p, pair));
		put(p, i, w, gone ? PLACEMENT_REASON_CPU_GONE : why_there(p, pair, w));
	}
}

/* ------------------------------------------------------------------ per-cpu: what pays */

static void relieve_standing(struct planner *p)
{
	worker_mask idle = 0;
	unsigned w, i;

	for_each_worker(w, p->usable)
		if (p->worker[w].busy < PLACEMENT_IDLE_PERMILLE)
			idle |= BIT(w);
	for (i = 0; idle && i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		unsigned from = (unsigned)p->choices[i].worker;
		worker_mask candidates;

		if (pair->standing_us <= PLACEMENT_STANDING_US || is_ordered(p, pair) || (int)from != pair->worker_now)
			continue;
		/* Alone, it waits for itself: no other worker would be faster. */
		if (p->worker[from].busy < PLACEMENT_BUSY_PERMILLE || p->worker[from].pairs < 2 ||
		    p->worker[from].busy < pair->load_permille + PLACEMENT_IDLE_PERMILLE)
			continue;
		candidates = idle & workers_at_home(p, pair);
		if (!candidates && p->worker[from].busy >= PLACEMENT_FULL_PERMILLE && !is_node_ordered(p, pair))
			candidates = idle;
		candidates = no_closer_than(p, pair, candidates, max_u32(closeness_of(p, pair, from), CLOSENESS_SIBLING));
		if (!candidates)
			continue;
		w = pick(p, pair, candidates);
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
		worker_mask home = workers_at_home(p, pair);

		if (home & BIT(from) || !may_move(p, i))
			continue;
		w = pick(p, pair, home);
		if (has_room(p, pair, from, w))
			moved |= move(p, i, w, why_there(p, pair, w));
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
		others = no_closer_than(p, pair, workers_at_home(p, pair), CLOSENESS_SIBLING);
		if (!others)
			continue;
		w = pick(p, pair, others);
		if (has_room(p, pair, from, w))
			moved |= move(p, i, w, PLACEMENT_REASON_LEFT_VCPU);
	}
	return moved;
}

/* The emptiest lawful worker for a pair that leaves @from; @spread: only one with fewer pairs of its port. -1 = none. */
static int emptiest(struct planner *p, const struct placement_pair *pair, unsigned from, bool spread)
{
	enum closeness limit = closeness_of(p, pair, from);
	worker_mask mask = no_closer_than(p, pair, workers_at_home(p, pair), limit) & ~BIT(from);
	int best = -1;
	unsigned w;

	for_each_worker(w, mask) {
		if (spread && *port_share(p, pair, w) >= *port_share(p, pair, from))
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

static bool is_trickling(const struct planner *p, unsigned w)
{
	return p->worker[w].measured && p->worker[w].measured <= PLACEMENT_TRICKLE_PERMILLE;
}

/* Where all of @from's working pairs could go: the fullest worker that stays under a hysteresis. -1 = nowhere. */
static int gathering_place(const struct planner *p, unsigned from, worker_mask lawful)
{
	int best = -1;
	unsigned w;

	for_each_worker(w, lawful & p->usable & ~BIT(from)) {
		uint32_t load = p->worker[w].measured;
		bool fuller = load > p->worker[from].measured || (load == p->worker[from].measured && w < from);

		/* An idle one would have to be woken instead: nothing gained. */
		if (!load || !fuller || p->worker[w].busy + p->worker[from].measured > PLACEMENT_HYSTERESIS_PERMILLE)
			continue;
		if (fill_of(p, w) + fill_of(p, from) >= 2 * PLACEMENT_HYSTERESIS_PERMILLE) /* balance would send them back */
			continue;
		if (best < 0 || load > p->worker[best].measured)
			best = (int)w;
	}
	return best;
}

static bool gather_one(struct planner *p)
{
	worker_mask lawful[VL_WORKERS_MAX];
	uint32_t working[VL_WORKERS_MAX] = { 0 };
	unsigned i, w, other;

	for (w = 0; w < p->workers; w++)
		lawful[w] = is_trickling(p, w) && p->worker[w].node >= 0 ? p->on_node[p->worker[w].node] :
			    is_trickling(p, w)				? p->usable :
									  0;
	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];

		w = (unsigned)p->choices[i].worker;
		if (!lawful[w] || !pair->load_permille)
			continue;
		working[w]++;
		lawful[w] &= may_move(p, i) ? workers_at_home(p, pair) : 0;
		lawful[w] = no_closer_than(p, pair, lawful[w], closeness_of(p, pair, w));
		for_each_worker(other, lawful[w])
			if (*port_share(p, pair, other))
				lawful[w] &= ~BIT(other);
	}
	for (w = 0; w < p->workers; w++) {
		int to = working[w] && working[w] <= p->moves_left ? gathering_place(p, w, lawful[w]) : -1;

		if (to < 0)
			continue;
		for (i = 0; i < p->in->pair_count; i++)
			if (p->choices[i].worker == (int)w && p->in->pairs[i].load_permille)
				move(p, i, (unsigned)to, PLACEMENT_REASON_CONSOLIDATE);
		return true;
	}
	return false;
}

static bool gather(struct planner *p)
{
	bool moved = false;

	while (gather_one(p)) /* each empties a worker, so it ends */
		moved = true;
	return moved;
}

static void plan_per_cpu(struct planner *p)
{
	unsigned round;
	bool moved = true;

	keep(p);
	place(p);
	relieve_standing(p);
	for (round = 0; moved && round < ROUNDS_MAX; round++) {
		moved = go_home(p);
		moved |= leave_vcpus(p);
		moved |= balance(p, true);
		moved |= balance(p, false);
		moved |= gather(p);
	}
}

/* ------------------------------------------------------------------ per-port and multi-worker: a fixed map */

/* The workers of one port among @candidates, all different; as many of @wanted as there can be. Return: how many. */
static unsigned port_workers(const struct planner *p, unsigned port, unsigned wanted, worker_mask candidates, uint8_t *chosen)
{
	unsigned available = (unsigned)__builtin_popcountll(candidates), i, w;
	unsigned n = min_u32(max_u32(wanted, 1), available);
	worker_mask taken = 0;

	for (i = 0; i < n; i++) {
		chosen[i] = (uint8_t)((port * n + i) % p->workers);
		taken |= candidates & BIT(chosen[i]);
	}
	for (i = 0; i < n; i++) {
		/* Ports that lost one worker differ in the quotient, slots outside the operator's node in the remainder: both spread. */
		unsigned skip = (chosen[i] + (port * n + i) / p->workers) % available;
		worker_mask turn = 0;

		if (candidates & BIT(chosen[i]))
			continue;
		for_each_worker(w, candidates)
			if (skip-- == 0) {
				turn = candidates & ~(BIT(w) - 1) & ~taken;
				break;
			}
		if (!turn)
			turn = candidates & ~taken;
		chosen[i] = (uint8_t)__builtin_ctzll(turn);
		taken |= BIT(chosen[i]);
	}
	return n;
}

static void plan_fixed(struct planner *p, unsigned wanted)
{
	uint8_t chosen[VL_WORKERS_MAX];
	unsigned i, n = 0;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i], *last = i ? pair - 1 : NULL;
		int node = pair->node_wanted < VL_NODES_MAX ? pair->node_wanted : -1;
		enum placement_reason reason = PLACEMENT_REASON_PORT_THREAD;
		unsigned w;

		p->choices[i] = (struct placement_choice){ -1, PLACEMENT_REASON_NONE };
		if (!last || last->port != pair->port || last->node_wanted != pair->node_wanted)
			n = port_workers(p, pair->port, wanted, workers_near(p, node), chosen);
		w = is_ordered(p, pair) ? (unsigned)pair->worker_wanted : chosen[pair->index % n];
		if (is_ordered(p, pair))
			reason = PLACEMENT_REASON_PINNED;
		else if (pair->worker_now >= 0 && !is_usable(p, pair->worker_now))
			reason = PLACEMENT_REASON_CPU_GONE;
		else if (node >= 0 && p->nearest[node] >= 0 && p->worker[w].node != node)
			reason = PLACEMENT_REASON_NEAREST_NODE;
		put(p, i, w, reason);
	}
}

/* ------------------------------------------------------------------ the plan */

static unsigned finish(struct planner *p)
{
	unsigned changed = 0, i;

	for (i = 0; i < p->in->pair_count; i++) {
		const struct placement_pair *pair = &p->in->pairs[i];
		struct placement_choice *choice = &p->choices[i];

		if (is_order_dead(p, pair))
			choice->reason = PLACEMENT_REASON_CPU_GONE;
		else if (choice->worker == pair->worker_now && choice->reason != PLACEMENT_REASON_PINNED)
			choice->reason = PLACEMENT_REASON_STAYS;
		changed += choice->worker != pair->worker_now;
	}
	return changed;
}

unsigned placement_compute(const struct placement_input *in, struct placement_choice *choices)
{
	struct planner planner;
	unsigned i, lost = 0;

	survey(&planner, in, choices);
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
		plan_fixed(&planner, in->policy == PLACEMENT_MULTI_WORKER ? in->workers_per_port : 1);
	return finish(&planner);
}
