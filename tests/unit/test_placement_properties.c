/* SPDX-License-Identifier: BSD-2-Clause */
/* What must hold of placement on any machine, with any guests; random ones come from a fixed seed. */
#include "placement_world.h"

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static unsigned below(uint64_t *seed, unsigned limit)
{
	return (unsigned)(next_random(seed) % limit);
}

static void random_machine(uint64_t *seed)
{
	unsigned cpus[8], nodes = 1 + below(seed, 8), threads = 1 + below(seed, 2), i, k, has_cpu = 0;
	struct world *w;

	for (i = 0; i < nodes; i++)
		has_cpu += cpus[i] = below(seed, 4) ? threads * (1 + below(seed, 6)) : 0; /* a quarter without CPUs, and uneven */
	if (!has_cpu)
		cpus[0] = 2;
	w = machine(nodes, cpus, threads);
	for (i = 0; i < nodes; i++)
		for (k = 0; k < i; k++)
			w->topology.distance[i][k] = w->topology.distance[k][i] = (uint8_t)(11 + below(seed, 100));
	for (i = 0; i < w->in.worker_count; i++)
		w->workers[i].usable = below(seed, 5) > 0;
	w->workers[below(seed, w->in.worker_count)].usable = true;
	w->in.policy = below(seed, 3) ? PLACEMENT_PER_CPU : below(seed, PLACEMENT_POLICY_COUNT);
	w->in.workers_per_port = below(seed, 5);
}

static void random_guests(uint64_t *seed)
{
	struct world *w = &world;
	unsigned ports = 1 + below(seed, below(seed, 8) ? 24 : 256), port, i, k;

	for (port = 0; port < ports; port++) {
		unsigned pairs = 1 + below(seed, 16), vcpus = below(seed, 4), home = below(seed, w->topology.node_count + 1);
		struct cpulist set = { 0 };

		for (k = 0; k < vcpus; k++)
			cpulist_add(&set, below(seed, w->topology.cpu_count));
		for (i = 0; i < pairs; i++) {
			struct placement_pair *pair = add_pair(w, port, i);

			pair->ring_node = (int)home - 1;
			pair->vcpu_node = (int)below(seed, w->topology.node_count + 1) - 1;
			pair->kick_cpu = (int)below(seed, w->topology.cpu_count + 1) - 1;
			pair->vcpus = set;
			pair->load_permille = below(seed, 3) ? 0 : below(seed, 4) ? below(seed, 60) : below(seed, 700);
			pair->node_wanted = below(seed, 20) ? -1 : (int)below(seed, w->topology.node_count);
			pair->worker_wanted = below(seed, 40) ? -1 : (int)below(seed, w->in.worker_count);
			pair->worker_now = (int)below(seed, w->in.worker_count + 1) - 1;
			pair->standing_us = below(seed, 10) ? 0 : below(seed, 100);
			pair->rest_ms = below(seed, 10) ? 0 : below(seed, 2000);
		}
	}
}

static int node_of(const struct world *w, int worker)
{
	return w->workers[worker].node;
}

/* Is there a usable worker on @node? */
static bool is_served(const struct world *w, int node)
{
	unsigned i;

	for (i = 0; i < w->in.worker_count; i++)
		if (w->workers[i].usable && node_of(w, (int)i) == node)
			return true;
	return false;
}

static void check_lawful(const struct world *w, unsigned changed)
{
	unsigned i, differ = 0, paid = 0;

	for (i = 0; i < w->in.pair_count; i++) {
		const struct placement_pair *pair = &w->pairs[i];
		const struct placement_choice *choice = &w->choices[i];
		bool must = pair->worker_now < 0 || !w->workers[pair->worker_now].usable || pair->worker_wanted >= 0 || pair->node_wanted >= 0;

		assert_in_range(choice->worker, 0, w->in.worker_count - 1);
		assert_true(w->workers[choice->worker].usable);
		assert_int_not_equal(choice->reason, PLACEMENT_REASON_NONE);
		if (pair->worker_wanted >= 0 && w->workers[pair->worker_wanted].usable)
			assert_int_equal(choice->worker, pair->worker_wanted);
		else if (pair->worker_wanted < 0 && pair->node_wanted >= 0 && is_served(w, pair->node_wanted))
			assert_int_equal(node_of(w, choice->worker), pair->node_wanted);
		else if (w->in.policy == PLACEMENT_PER_CPU && must && pair->worker_wanted < 0 && pair->node_wanted < 0 &&
			 pair->ring_node >= 0 && is_served(w, pair->ring_node))
			assert_int_equal(node_of(w, choice->worker), pair->ring_node);
		differ += choice->worker != pair->worker_now;
		paid += choice->worker != pair->worker_now && !must;
		if (choice->worker == pair->worker_now && pair->worker_wanted < 0)
			assert_int_equal(choice->reason, PLACEMENT_REASON_STAYS);
	}
	assert_int_equal(differ, changed);
	if (w->in.policy == PLACEMENT_PER_CPU)
		assert_true(paid <= w->in.moves_max);
}

static void random_worlds(void **state)
{
	static struct placement_choice again[PAIRS_MAX];
	uint64_t seed = 0x76686f73746c616e;
	unsigned round, plans, i;

	for (round = 0; round < 600; round++) {
		struct world *w = &world;

		random_machine(&seed);
		random_guests(&seed);
		measure(w);
		w->in.moves_max = below(&seed, 2) ? ALL_MOVES : below(&seed, 200);
		check_lawful(w, compute(w));
		memcpy(again, w->choices, sizeof(again));
		compute(w);
		assert_memory_equal(again, w->choices, w->in.pair_count * sizeof(again[0])); /* deterministic */

		/* The result is where it stays: at once where all moves are allowed, and where some pairs stand whatever is done for them
		 * (every second round) after a few plans. */
		for (plans = 0; plans < PAIRS_MAX; plans++) {
			apply(w);
			for (i = 0; round % 2 == 0 && i < w->in.pair_count; i++)
				w->pairs[i].standing_us = 0;
			w->in.moves_max = max_u32(w->in.moves_max, 1);
			if (!compute(w))
				break;
			check_lawful(w, compute(w));
			if (w->in.moves_max == ALL_MOVES && (round % 2 == 0 || plans > 30))
				fail_msg("round %u does not settle", round);
		}
		assert_true(plans < PAIRS_MAX);
	}
}

static void equal_loads_spread_evenly(void **state)
{
	static const unsigned port_counts[] = { 1, 2, 3, 7, 24, 256 };
	unsigned a, pairs, load, port, i, k;

	for (a = 0; a < ARRAY_SIZE(port_counts); a++)
		for (pairs = 1; pairs <= 16; pairs++)
			for (load = 0; load <= 60; load += 60) {
				struct world *w = MACHINE(1, 4, 4);
				bool overfull = load * pairs * port_counts[a] > 8 * (PLACEMENT_FULL_PERMILLE - 2 * load);

				if (load && overfull) /* the rule then is: not to a full worker */
					continue;
				for (i = 0; i < pairs; i++) /* in turns, not port by port */
					for (port = 0; port < port_counts[a]; port++) {
						struct placement_pair *pair = add_pair(w, port, i);

						pair->ring_node = (int)port % 2;
						pair->load_permille = load;
					}
				compute(w);
				for (port = 0; port < port_counts[a]; port++) {
					unsigned low = UINT32_MAX, high = 0, first = port % 2 * 4;

					for (k = first; k < first + 4; k++) {
						low = min_u32(low, on_worker(w, (int)k, (int)port));
						high = max_u32(high, on_worker(w, (int)k, (int)port));
					}
					assert_true(high - low <= 1);
					assert_int_equal(on_worker(w, -1, (int)port), 0);
				}
				assert_settled(w);
			}
}

/* 256 ports of 16 pairs on 64 workers, all of it wrong. The time is for the reader: it must stay far under 50 ms. */
static void largest_plan(void **state)
{
	struct world *w = MACHINE(2, 16, 16, 16, 16);
	uint64_t seed = 42, start;
	unsigned i;

	for (i = 0; i < PAIRS_MAX; i++) {
		struct placement_pair *pair = add_settled(w, i / 16, (int)below(&seed, 64), below(&seed, 25));

		pair->index = (uint16_t)(i % 16);
		pair->ring_node = (int)below(&seed, 4);
		pair->standing_us = below(&seed, 20);
		for (unsigned k = 0; k < 4; k++)
			cpulist_add(&pair->vcpus, below(&seed, 64));
	}
	measure(w);
	start = now_ns();
	compute(w);
	print_message("largest plan, all moves: %.2f ms\n", (double)(now_ns() - start) / 1e6);
	check_lawful(w, compute(w));
	w->in.moves_max = 16;
	start = now_ns();
	compute(w);
	print_message("largest plan, 16 moves:  %.2f ms\n", (double)(now_ns() - start) / 1e6);
	for (i = 0; i < PAIRS_MAX; i++)
		w->pairs[i].worker_now = -1;
	start = now_ns();
	assert_int_equal(compute(w), PAIRS_MAX);
	print_message("largest plan, all new:   %.2f ms\n", (double)(now_ns() - start) / 1e6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_worlds),
		cmocka_unit_test(equal_loads_spread_evenly),
		cmocka_unit_test(largest_plan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
