/* SPDX-License-Identifier: BSD-2-Clause */
/* Invented machines and guests for the tests of placement. */
#ifndef VHOSTLANE_TESTS_PLACEMENT_WORLD_H
#define VHOSTLANE_TESTS_PLACEMENT_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "common/util.h"
#include "control/placement.h"

#define PAIRS_MAX 4096
#define ALL_MOVES UINT32_MAX

struct world {
	struct topology topology;
	struct placement_worker workers[VL_WORKERS_MAX];
	struct placement_pair pairs[PAIRS_MAX];
	struct placement_choice choices[PAIRS_MAX];
	struct placement_input in;
};

static struct world world;

/* ------------------------------------------------------------------ inventing machines and guests */

static inline void add_cpu(struct world *w, int node, int core)
{
	w->topology.cpus[w->topology.cpu_count++] = (struct topology_cpu){ true, true, true, (int16_t)node, (int16_t)core };
}

static inline void add_worker(struct world *w, int cpu)
{
	w->workers[w->in.worker_count++] = (struct placement_worker){ .cpu = cpu, .node = w->topology.cpus[cpu].node, .usable = true };
}

/* @cpus[node] CPUs on each of @nodes nodes, @threads of them a core; one worker a CPU. Nodes lie in a row: 10, 20, 30, ... apart. */
static inline struct world *machine(unsigned nodes, const unsigned *cpus, unsigned threads)
{
	struct world *w = &world;
	unsigned node, to, cpu;

	memset(w, 0, sizeof(*w));
	w->topology.node_count = nodes;
	for (node = 0; node < nodes; node++) {
		for (to = 0; to < nodes; to++)
			w->topology.distance[node][to] = (uint8_t)(10 + 10 * (to > node ? to - node : node - to));
		w->topology.node_has_memory[node] = true;
		for (cpu = 0; cpu < cpus[node]; cpu++)
			add_cpu(w, (int)node, (int)(w->topology.cpu_count - cpu % threads));
	}
	w->in = (struct placement_input){ .topology = &w->topology, .workers = w->workers, .pairs = w->pairs, .moves_max = ALL_MOVES,
					  .workers_per_port = 2 };
	for (cpu = 0; cpu < w->topology.cpu_count && cpu < VL_WORKERS_MAX; cpu++)
		add_worker(w, (int)cpu);
	return w;
}

#define MACHINE(threads, ...) \
	machine(ARRAY_SIZE(((const unsigned[]){ __VA_ARGS__ })), (const unsigned[]){ __VA_ARGS__ }, (threads))

static inline struct placement_pair *add_pair(struct world *w, unsigned port, unsigned index)
{
	struct placement_pair *pair = &w->pairs[w->in.pair_count++];

	*pair = (struct placement_pair){ .port = (uint16_t)port, .index = (uint16_t)index, .ring_node = -1, .vcpu_node = -1, .kick_cpu = -1,
					 .node_wanted = -1, .worker_wanted = -1, .worker_now = -1 };
	return pair;
}

static inline struct placement_pair *add_settled(struct world *w, unsigned port, int worker, uint32_t load)
{
	struct placement_pair *pair = add_pair(w, port, 0);

	pair->worker_now = worker;
	pair->load_permille = load;
	return pair;
}

static inline unsigned compute(struct world *w)
{
	return placement_compute(&w->in, w->choices);
}

/* The result becomes the present, and the workers' load is measured afresh. */
static inline void apply(struct world *w)
{
	unsigned i;

	for (i = 0; i < w->in.worker_count; i++)
		w->workers[i].busy_permille = 0;
	for (i = 0; i < w->in.pair_count; i++) {
		w->pairs[i].worker_now = w->choices[i].worker;
		if (w->choices[i].worker >= 0)
			w->workers[w->choices[i].worker].busy_permille += w->pairs[i].load_permille;
	}
	for (i = 0; i < w->in.worker_count; i++)
		w->workers[i].busy_permille = min_u32(w->workers[i].busy_permille, 1000);
}

static inline void measure(struct world *w)
{
	unsigned i;

	for (i = 0; i < w->in.pair_count; i++)
		w->choices[i].worker = w->pairs[i].worker_now;
	apply(w);
}

#define assert_choice(w, i, expected_worker, expected_reason)                                                          \
	do {                                                                                                           \
		assert_int_equal((w)->choices[i].worker, (expected_worker));                                           \
		assert_string_equal(placement_reason_names[(w)->choices[i].reason], placement_reason_names[expected_reason]); \
	} while (0)

static inline unsigned on_worker(const struct world *w, int worker, int port)
{
	unsigned i, n = 0;

	for (i = 0; i < w->in.pair_count; i++)
		n += w->choices[i].worker == worker && (port < 0 || w->pairs[i].port == port);
	return n;
}

static inline void assert_settled(struct world *w)
{
	apply(w);
	assert_int_equal(compute(w), 0);
}

#endif
