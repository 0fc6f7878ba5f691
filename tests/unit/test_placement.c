/* SPDX-License-Identifier: BSD-2-Clause */
/* The rules of placement.h on where a pair may be, one by one. */
#include "placement_world.h"

/* ------------------------------------------------------------------ homes */

static void evidence_ranks(void **state)
{
	struct world *w = MACHINE(1, 2, 2, 2, 2);
	struct placement_pair *pair = add_pair(w, 0, 0);

	compute(w);
	assert_choice(w, 0, 0, PLACEMENT_REASON_LEAST_LOADED);
	pair->kick_cpu = 2;
	compute(w);
	assert_choice(w, 0, 3, PLACEMENT_REASON_KICK_NODE); /* the kicking CPU's node, not the kicking CPU */
	pair->vcpu_node = 2;
	compute(w);
	assert_choice(w, 0, 4, PLACEMENT_REASON_VCPU_NODE);
	pair->ring_node = 3;
	compute(w);
	assert_choice(w, 0, 6, PLACEMENT_REASON_RING_NODE);
	pair->node_wanted = 0;
	compute(w);
	assert_choice(w, 0, 0, PLACEMENT_REASON_PINNED);
	pair->worker_wanted = 5;
	assert_int_equal(compute(w), 1);
	assert_choice(w, 0, 5, PLACEMENT_REASON_PINNED);
	assert_settled(w);
}

static void avoids_vcpus_and_their_siblings(void **state)
{
	struct world *w = MACHINE(2, 4, 4);
	struct placement_pair *pair = add_pair(w, 0, 0);

	pair->ring_node = 0;
	cpulist_add(&pair->vcpus, 0);
	compute(w);
	assert_choice(w, 0, 2, PLACEMENT_REASON_RING_NODE); /* 1 is the sibling of 0 */
	cpulist_add(&pair->vcpus, 2);
	compute(w);
	assert_choice(w, 0, 1, PLACEMENT_REASON_RING_NODE); /* a sibling, rather than a vCPU's own CPU */
	cpulist_add(&pair->vcpus, 1);
	cpulist_add(&pair->vcpus, 3);
	compute(w);
	assert_choice(w, 0, 0, PLACEMENT_REASON_SHARES_VCPU); /* rather than leaving the memory's node */
	assert_settled(w);
}

static void spreads_one_port(void **state)
{
	struct world *w = MACHINE(1, 4, 4);
	unsigned i;

	for (i = 0; i < 10; i++)
		add_pair(w, 7, i)->ring_node = 1;
	assert_int_equal(compute(w), 10);
	for (i = 0; i < 10; i++)
		assert_choice(w, i, 4 + (int)i % 4, PLACEMENT_REASON_RING_NODE);
	assert_settled(w);
}

static void least_loaded_first(void **state)
{
	struct world *w = MACHINE(1, 3);

	add_settled(w, 1, 0, 300);
	add_settled(w, 2, 1, 100);
	add_settled(w, 3, 2, 150);
	measure(w);
	add_pair(w, 4, 0);
	assert_int_equal(compute(w), 1);
	assert_choice(w, 3, 1, PLACEMENT_REASON_LEAST_LOADED);

	w = MACHINE(1, 3); /* unknown load: the number of pairs */
	add_settled(w, 1, 0, 0);
	add_settled(w, 2, 2, 0);
	add_pair(w, 4, 0);
	compute(w);
	assert_choice(w, 2, 1, PLACEMENT_REASON_LEAST_LOADED);

	w = MACHINE(1, 2); /* known of workers alone */
	w->workers[0].busy_permille = 800;
	add_settled(w, 1, 0, 0);
	add_settled(w, 2, 1, 0);
	add_settled(w, 3, 1, 0);
	add_pair(w, 4, 0);
	compute(w);
	assert_choice(w, 3, 1, PLACEMENT_REASON_LEAST_LOADED);

	w = MACHINE(1, 2); /* a second pair of a port doesn't go to a full worker for the sake of spreading */
	add_settled(w, 1, 0, 950);
	add_settled(w, 2, 1, 100);
	measure(w);
	add_pair(w, 2, 1);
	compute(w);
	assert_choice(w, 2, 1, PLACEMENT_REASON_LEAST_LOADED);
}

/* ------------------------------------------------------------------ machines that are not as one wishes */

static void memory_only_node(void **state)
{
	struct world *w = MACHINE(1, 2, 2, 0, 2); /* node 2: memory without CPUs, as far from 1 as from 3 */

	add_pair(w, 0, 0)->ring_node = 2;
	compute(w);
	assert_choice(w, 0, 2, PLACEMENT_REASON_NEAREST_NODE); /* a tie: the lower node */
	w->topology.distance[2][3] = 15;
	w->pairs[0].worker_now = -1;
	compute(w);
	assert_choice(w, 0, 4, PLACEMENT_REASON_NEAREST_NODE);
	assert_settled(w);
	w->pairs[0].ring_node = 9; /* a node that nothing is known of */
	w->pairs[0].worker_now = -1;
	compute(w);
	assert_choice(w, 0, 0, PLACEMENT_REASON_NEAREST_NODE);
}

static void uneven_nodes(void **state)
{
	struct world *w = MACHINE(1, 1, 7);
	unsigned i;

	for (i = 0; i < 14; i++)
		add_pair(w, i, 0)->ring_node = 1;
	for (; i < 16; i++)
		add_pair(w, i, 0)->ring_node = 0;
	compute(w);
	assert_int_equal(on_worker(w, 0, -1), 2);
	for (i = 1; i < 8; i++)
		assert_int_equal(on_worker(w, (int)i, -1), 2);
	assert_settled(w);
}

static void cpuset_without_whole_nodes(void **state)
{
	struct world *w = MACHINE(1, 4, 4, 4, 4);
	unsigned i;

	for (i = 0; i < 16; i++)
		w->workers[i].usable = i / 4 == 1;
	for (i = 0; i < 8; i++)
		add_pair(w, i, 0)->ring_node = (int)i % 4;
	assert_int_equal(compute(w), 8);
	for (i = 0; i < 8; i++) {
		assert_in_range(w->choices[i].worker, 4, 7);
		assert_int_equal(w->choices[i].reason, i % 4 == 1 ? PLACEMENT_REASON_RING_NODE : PLACEMENT_REASON_NEAREST_NODE);
	}
	for (i = 4; i < 8; i++)
		assert_int_equal(on_worker(w, (int)i, -1), 2);
	assert_settled(w);

	/* The set is moved to node 3: everybody must go, and those of node 3 are at home. */
	for (i = 0; i < 16; i++)
		w->workers[i].usable = i / 4 == 3;
	w->in.moves_max = 0;
	assert_int_equal(compute(w), 8);
	for (i = 0; i < 8; i++) {
		assert_in_range(w->choices[i].worker, 12, 15);
		assert_int_equal(w->choices[i].reason, PLACEMENT_REASON_CPU_GONE);
	}
}

static void one_or_no_worker_left(void **state)
{
	enum placement_policy policy;
	unsigned i;

	for (policy = 0; policy < PLACEMENT_POLICY_COUNT; policy++) {
		struct world *w = MACHINE(2, 4, 4);

		w->in.policy = policy;
		for (i = 0; i < 8; i++)
			w->workers[i].usable = i == 6;
		for (i = 0; i < 32; i++)
			add_pair(w, i / 4, i % 4)->ring_node = (int)i % 2;
		assert_int_equal(compute(w), 32);
		assert_int_equal(on_worker(w, 6, -1), 32);
		assert_settled(w);

		w->workers[6].usable = false;
		assert_int_equal(compute(w), 32);
		for (i = 0; i < 32; i++)
			assert_choice(w, i, -1, PLACEMENT_REASON_NONE);
		assert_settled(w);
		w->in.worker_count = 0;
		assert_int_equal(compute(w), 0);
	}
}

static void workers_without_cpu(void **state)
{
	struct world *w = MACHINE(1, 2, 2);
	unsigned i;

	for (i = 0; i < 4; i++)
		w->workers[i].cpu = w->workers[i].node = -1;
	for (i = 0; i < 8; i++) {
		add_pair(w, i, 0)->ring_node = 1;
		cpulist_add(&w->pairs[i].vcpus, 0);
	}
	compute(w);
	for (i = 0; i < 8; i++)
		assert_choice(w, i, (int)i % 4, PLACEMENT_REASON_LEAST_LOADED);
	assert_settled(w);
}

static void cpu_goes_and_comes_back(void **state)
{
	struct world *w = MACHINE(1, 2, 2);
	unsigned i;

	for (i = 0; i < 8; i++) {
		add_pair(w, i, 0)->ring_node = (int)i / 4;
		w->pairs[i].load_permille = 200;
	}
	compute(w);
	apply(w);
	w->workers[0].usable = false;
	assert_int_equal(compute(w), 2); /* only its own pairs go */
	assert_choice(w, 0, 1, PLACEMENT_REASON_CPU_GONE);
	assert_choice(w, 2, 1, PLACEMENT_REASON_CPU_GONE);
	assert_choice(w, 4, 2, PLACEMENT_REASON_STAYS);
	assert_settled(w);

	w->workers[1].usable = false; /* the whole node */
	assert_int_equal(compute(w), 4);
	assert_int_equal(on_worker(w, 2, -1) + on_worker(w, 3, -1), 8);
	apply(w);

	w->workers[0].usable = w->workers[1].usable = true;
	assert_int_equal(compute(w), 4);
	for (i = 0; i < 4; i++)
		assert_int_equal(w->choices[i].reason, PLACEMENT_REASON_RING_NODE);
	assert_int_equal(on_worker(w, 0, -1), 2);
	assert_int_equal(on_worker(w, 1, -1), 2);
	assert_settled(w);

	/* One CPU of two, back under load: it gets its half, but no more moves than are allowed at a time. */
	w->workers[0].usable = false;
	compute(w);
	apply(w);
	w->workers[0].usable = true;
	w->in.moves_max = 1;
	assert_int_equal(compute(w), 1);
	apply(w);
	assert_int_equal(compute(w), 1);
	assert_int_equal(on_worker(w, 0, -1), 2);
	for (i = 0; i < 4; i++)
		assert_true(w->choices[i].reason == PLACEMENT_REASON_STAYS || w->choices[i].reason == PLACEMENT_REASON_BALANCE);
	assert_settled(w);
}

/* ------------------------------------------------------------------ the operator */

static void orders_bind_every_policy(void **state)
{
	enum placement_policy policy;

	for (policy = 0; policy < PLACEMENT_POLICY_COUNT; policy++) {
		struct world *w = MACHINE(1, 2, 2);
		struct placement_pair *pair = add_settled(w, 0, 0, 900);
		struct placement_pair *to_node = add_settled(w, 0, 1, 100);

		w->in.policy = policy;
		w->in.moves_max = 0; /* orders are no paid moves */
		pair->ring_node = 0;
		pair->worker_wanted = 3;
		to_node->node_wanted = 1;
		pair->standing_us = 1000;
		measure(w);
		assert_int_equal(compute(w), 2);
		assert_choice(w, 0, 3, PLACEMENT_REASON_PINNED);
		assert_in_range(w->choices[1].worker, 2, 3);
		assert_settled(w);
		assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_PINNED);

		/* The order can't be carried out any more: as near as can be, and the reason stays visible. */
		w->workers[3].usable = false;
		assert_int_equal(compute(w), 1 + (w->pairs[1].worker_now == 3));
		if (policy == PLACEMENT_PER_CPU)
			assert_int_equal(w->choices[0].worker, 2);
		assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_CPU_GONE);
		assert_settled(w);
		assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_CPU_GONE);
		w->workers[3].usable = true;
		compute(w);
		assert_choice(w, 0, 3, PLACEMENT_REASON_PINNED);
		w->pairs[0].worker_wanted = 70; /* no such worker */
		compute(w);
		assert_in_range(w->choices[0].worker, 0, 3);
		assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_CPU_GONE);
	}
}

/* ------------------------------------------------------------------ workers that do not come to run */

static void rescues_from_a_stalled_worker(void **state)
{
	enum placement_policy policy;

	for (policy = 0; policy < PLACEMENT_POLICY_COUNT; policy++) {
		struct world *w = MACHINE(1, 2, 2);
		unsigned i;

		w->in.policy = policy;
		w->in.moves_max = 0; /* not for pay: its queues stand */
		w->in.workers_per_port = 1;
		for (i = 0; i < 4; i++)
			add_settled(w, i, (int)i, 100)->ring_node = (int)i / 2;
		measure(w);
		assert_int_equal(compute(w), 0);
		w->workers[0].stalled = true;
		w->workers[0].busy_permille = 0; /* it looks idle: nobody must be sent there */
		assert_int_equal(compute(w), 1);
		assert_int_not_equal(w->choices[0].worker, 0);
		assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_RESCUED);
		if (policy == PLACEMENT_PER_CPU)
			assert_int_equal(w->choices[0].worker, 1); /* its own node's other one */
		assert_settled(w);
		add_pair(w, 4, 0)->ring_node = 0;
		compute(w);
		assert_int_not_equal(w->choices[4].worker, 0);

		/* The operator's order holds a pair even there. */
		w->pairs[1].worker_wanted = 0;
		compute(w);
		assert_choice(w, 1, 0, PLACEMENT_REASON_PINNED);
		w->pairs[1].worker_wanted = -1;

		/* All of them: then none is better than another, and nothing is moved to and fro. */
		apply(w);
		for (i = 0; i < 4; i++)
			w->workers[i].stalled = true;
		compute(w);
		for (i = 0; i < 5; i++)
			assert_int_equal(w->choices[i].worker, policy == PLACEMENT_PER_CPU ? w->pairs[i].worker_now : (int)i % 4);
		assert_settled(w);
	}
}

static void rescued_beyond_the_node(void **state)
{
	struct world *w = MACHINE(1, 1, 1);

	add_settled(w, 0, 0, 100)->ring_node = 0;
	measure(w);
	w->workers[0].stalled = true;
	assert_int_equal(compute(w), 1);
	assert_choice(w, 0, 1, PLACEMENT_REASON_RESCUED);
	assert_settled(w);
	w->workers[0].stalled = false; /* it runs again: home */
	w->workers[1].busy_permille = 100;
	assert_int_equal(compute(w), 1);
	assert_choice(w, 0, 0, PLACEMENT_REASON_RING_NODE);
	assert_settled(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(evidence_ranks),
		cmocka_unit_test(avoids_vcpus_and_their_siblings),
		cmocka_unit_test(spreads_one_port),
		cmocka_unit_test(least_loaded_first),
		cmocka_unit_test(memory_only_node),
		cmocka_unit_test(uneven_nodes),
		cmocka_unit_test(cpuset_without_whole_nodes),
		cmocka_unit_test(one_or_no_worker_left),
		cmocka_unit_test(workers_without_cpu),
		cmocka_unit_test(cpu_goes_and_comes_back),
		cmocka_unit_test(orders_bind_every_policy),
		cmocka_unit_test(rescues_from_a_stalled_worker),
		cmocka_unit_test(rescued_beyond_the_node),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
