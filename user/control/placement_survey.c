/* SPDX-License-Identifier: BSD-2-Clause */
#include <string.h>

#include "common/util.h"
#include "control/placement_private.h"

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

void planner_survey(struct planner *p, const struct placement_input *in, struct placement_choice *choices)
{
	worker_mask stalled = 0;
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
		if (in->workers[w].usable)
			p->lawful |= BIT(w);
		if (in->workers[w].stalled)
			stalled |= BIT(w);
	}
	p->usable = p->lawful & ~stalled ? p->lawful & ~stalled : p->lawful;
	for_each_worker(w, p->usable)
		if (p->worker[w].node >= 0)
			p->on_node[p->worker[w].node] |= BIT(w);
	find_nearest_nodes(p);
}

static bool is_in(const struct planner *p, worker_mask mask, int worker)
{
	return worker >= 0 && worker < (int)p->workers && (mask & BIT(worker));
}

bool planner_has(const struct planner *p, int worker)
{
	return is_in(p, p->usable, worker);
}

bool planner_is_ordered(const struct planner *p, const struct placement_pair *pair)
{
	return is_in(p, p->lawful, pair->worker_wanted);
}

bool planner_order_is_dead(const struct planner *p, const struct placement_pair *pair)
{
	return pair->worker_wanted >= 0 && !planner_is_ordered(p, pair);
}

bool planner_node_is_ordered(const struct planner *p, const struct placement_pair *pair)
{
	return pair->node_wanted >= 0 || planner_order_is_dead(p, pair);
}

/* The node where the pair belongs, -1 if nothing is known; and what says so. */
static int home_of(const struct planner *p, const struct placement_pair *pair, enum placement_reason *reason)
{
	const struct {
		int node;
		enum placement_reason reason;
	} evidence[] = {
		{ planner_order_is_dead(p, pair) && pair->worker_wanted < (int)p->workers ? p->worker[pair->worker_wanted].node : -1,
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

worker_mask planner_workers_near(const struct planner *p, int node)
{
	return node < 0 || p->nearest[node] < 0 ? p->usable : p->on_node[p->nearest[node]];
}

worker_mask planner_workers_at_home(const struct planner *p, const struct placement_pair *pair)
{
	enum placement_reason reason;

	return planner_workers_near(p, home_of(p, pair, &reason));
}

enum closeness planner_closeness(const struct planner *p, const struct placement_pair *pair, unsigned w)
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

worker_mask planner_no_closer_than(const struct planner *p, const struct placement_pair *pair, worker_mask mask, enum closeness limit)
{
	worker_mask kept = 0;
	unsigned w;

	for_each_worker(w, mask)
		if (planner_closeness(p, pair, w) <= limit)
			kept |= BIT(w);
	return kept;
}

enum placement_reason planner_why_there(const struct planner *p, const struct placement_pair *pair, unsigned w)
{
	enum placement_reason reason;
	int home = home_of(p, pair, &reason);

	if (planner_closeness(p, pair, w) >= CLOSENESS_KICKED)
		return PLACEMENT_REASON_SHARES_VCPU;
	if (home >= 0 && p->nearest[home] < 0) /* workers bound to no node */
		return PLACEMENT_REASON_LEAST_LOADED;
	return home < 0 || p->worker[w].node == home ? reason : PLACEMENT_REASON_NEAREST_NODE;
}

enum placement_reason planner_why_away(const struct planner *p, const struct placement_pair *pair)
{
	return is_in(p, p->lawful, pair->worker_now) ? PLACEMENT_REASON_RESCUED : PLACEMENT_REASON_CPU_GONE;
}

/* ------------------------------------------------------------------ moving, and what it costs */

uint16_t *planner_port_share(struct planner *p, const struct placement_pair *pair, unsigned w)
{
	return &p->of_port[pair->port % VL_PORTS_MAX][w];
}

void planner_lift(struct planner *p, unsigned i)
{
	const struct placement_pair *pair = &p->in->pairs[i];
	unsigned w = (unsigned)p->choices[i].worker;

	p->worker[w].measured -= pair->load_permille;
	p->worker[w].busy -= min_u32(p->worker[w].busy, pair->load_permille);
	p->worker[w].pairs--;
	--*planner_port_share(p, pair, w);
	p->choices[i].worker = -1;
}

void planner_put(struct planner *p, unsigned i, unsigned w, enum placement_reason reason)
{
	const struct placement_pair *pair = &p->in->pairs[i];
	struct placement_choice *choice = &p->choices[i];
	bool in_busy = (int)w == pair->worker_now && choice->reason == PLACEMENT_REASON_NONE; /* the worker's measure has it already */

	if (choice->worker >= 0)
		planner_lift(p, i);
	p->worker[w].measured += pair->load_permille;
	p->worker[w].busy = max_u32(p->worker[w].measured, p->worker[w].busy + (in_busy ? 0 : pair->load_permille));
	p->worker[w].pairs++;
	++*planner_port_share(p, pair, w);
	*choice = (struct placement_choice){ (int)w, reason };
}

unsigned planner_pick(struct planner *p, const struct placement_pair *pair, worker_mask mask)
{
	uint64_t best_key = UINT64_MAX;
	unsigned best = 0, w;

	for_each_worker(w, mask) {
		enum closeness closeness = planner_closeness(p, pair, w);
		uint32_t busy = max_u32(p->worker[w].busy, p->worker[w].measured);
		uint64_t key = (uint64_t)(closeness >= CLOSENESS_KICKED) << 62 |
			       (uint64_t)(busy + pair->load_permille >= PLACEMENT_FULL_PERMILLE) << 61 |
			       (uint64_t)(closeness == CLOSENESS_SIBLING) << 60 | (uint64_t)*planner_port_share(p, pair, w) << 32 |
			       (busy + p->worker[w].pairs);

		if (key < best_key) {
			best_key = key;
			best = w;
		}
	}
	return best;
}
