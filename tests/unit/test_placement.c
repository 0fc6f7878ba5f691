/* SPDX-License-Identifier: BSD-2-Clause */
/* Every rule of placement.h, one by one. */
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

/* ------------------------------------------------------------------ paid moves */

static void rehomes_to_the_initiators_node(void **state)
{
	static const struct {
		int ring_node, vcpu_node, kick_cpu, worker;
		enum placement_reason reason;
	} cases[] = {
		{ 1, -1, -1, 4, PLACEMENT_REASON_RING_NODE },
		{ -1, 1, -1, 4, PLACEMENT_REASON_VCPU_NODE },
		{ -1, -1, 4, 6, PLACEMENT_REASON_KICK_NODE }, /* neither its CPU nor its sibling */
		{ 0, 1, 5, 0, PLACEMENT_REASON_STAYS },
		{ -1, 0, 5, 0, PLACEMENT_REASON_STAYS },
	};
	unsigned i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		struct world *w = MACHINE(2, 4, 4);
		struct placement_pair *pair = add_settled(w, 0, 0, 100);

		pair->ring_node = cases[i].ring_node;
		pair->vcpu_node = cases[i].vcpu_node;
		pair->kick_cpu = cases[i].kick_cpu;
		measure(w);
		compute(w);
		assert_choice(w, 0, cases[i].worker, cases[i].reason);
		assert_settled(w);
	}
}

static void rehoming_is_bounded_and_rests(void **state)
{
	struct world *w = MACHINE(1, 4, 4);
	unsigned i, plans;

	for (i = 0; i < 20; i++)
		add_settled(w, i, (int)i % 4, 20)->ring_node = 1;
	w->pairs[0].rest_ms = 1; /* has just moved */
	measure(w);
	w->in.moves_max = 0;
	assert_int_equal(compute(w), 0);
	w->in.moves_max = 4;
	for (plans = 0; compute(w); plans++) {
		assert_in_range(plans, 0, 5);
		apply(w);
	}
	assert_int_equal(plans, 5); /* 19 in fours */
	assert_choice(w, 0, 0, PLACEMENT_REASON_STAYS);
	w->pairs[0].rest_ms = PLACEMENT_REST_MS;
	compute(w);
	assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_RING_NODE);
}

static void does_not_go_home_to_a_full_node(void **state)
{
	struct world *w = MACHINE(1, 1, 1);
	struct placement_pair *pair = add_settled(w, 0, 1, 300);

	pair->ring_node = 0;
	add_settled(w, 1, 0, 600)->ring_node = 0;
	measure(w);
	assert_int_equal(compute(w), 0);
	w->pairs[1].load_permille = 400; /* room again */
	measure(w);
	compute(w);
	assert_choice(w, 0, 0, PLACEMENT_REASON_RING_NODE);
	assert_settled(w);
}

static void leaves_a_vcpus_cpu(void **state)
{
	struct world *w = MACHINE(1, 2, 2);
	struct placement_pair *pair = add_settled(w, 0, 0, 100);

	pair->ring_node = 0;
	measure(w);
	pair->kick_cpu = 0; /* a kick alone is no reason */
	assert_int_equal(compute(w), 0);
	cpulist_add(&pair->vcpus, 0);
	compute(w);
	assert_choice(w, 0, 1, PLACEMENT_REASON_LEFT_VCPU);
	assert_settled(w);
	cpulist_add(&pair->vcpus, 1); /* wherever it is: then it stays */
	assert_int_equal(compute(w), 0);
}

static void balances_by_hysteresis(void **state)
{
	struct world *w = MACHINE(1, 2);

	add_settled(w, 0, 0, 300);
	add_settled(w, 1, 0, 190); /* takes less than a hysteresis off */
	measure(w);
	assert_int_equal(compute(w), 0);
	w->pairs[1].load_permille = 250;
	measure(w);
	assert_int_equal(compute(w), 1);
	assert_int_equal(on_worker(w, 1, -1), 1);
	assert_settled(w);

	w = MACHINE(1, 2); /* a pair that is all the load gains nothing anywhere */
	add_settled(w, 0, 0, 1000);
	measure(w);
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 2); /* small ones, together */
	for (unsigned i = 0; i < 20; i++)
		add_settled(w, i, 0, 40);
	measure(w);
	assert_in_range(compute(w), 5, 10);
	assert_int_equal(w->choices[0].reason, PLACEMENT_REASON_BALANCE);
	assert_settled(w);
	w->in.moves_max = 0;
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 1, 1); /* not to another node */
	add_settled(w, 0, 0, 450)->ring_node = 0;
	add_settled(w, 1, 0, 450)->ring_node = 0;
	measure(w);
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 2); /* not onto the guest's vCPUs */
	for (unsigned i = 0; i < 2; i++)
		cpulist_add(&add_settled(w, i, 0, 450)->vcpus, 1);
	measure(w);
	assert_int_equal(compute(w), 0);
}

static void relieves_standing(void **state)
{
	struct world *w = MACHINE(1, 3);
	unsigned i;

	for (i = 0; i < 4; i++)
		add_settled(w, i, 0, 200)->standing_us = i ? 11 : 10;
	measure(w);
	assert_int_equal(compute(w), 2); /* one to each idle worker; 10 us is not yet standing */
	assert_choice(w, 0, 0, PLACEMENT_REASON_STAYS);
	assert_choice(w, 1, 1, PLACEMENT_REASON_STANDING);
	assert_choice(w, 2, 2, PLACEMENT_REASON_STANDING);
	assert_choice(w, 3, 0, PLACEMENT_REASON_STAYS);
	assert_settled(w);

	w = MACHINE(1, 2); /* alone: nobody stands in its way but itself */
	add_settled(w, 0, 0, 1000)->standing_us = 5000;
	measure(w);
	assert_int_equal(compute(w), 0);
	add_settled(w, 1, 0, 0); /* one that does nothing does not either */
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 2); /* load known of the worker alone */
	add_settled(w, 0, 0, 0)->standing_us = 50;
	add_settled(w, 1, 0, 0)->standing_us = 50;
	w->workers[0].busy_permille = 700;
	assert_int_equal(compute(w), 1);
	assert_choice(w, 0, 1, PLACEMENT_REASON_STANDING);

	/* Moved just now: not again before it has rested, so that moves stay bounded whatever stands. */
	w->pairs[1].rest_ms = PLACEMENT_STANDING_REST_MS - 1;
	w->pairs[0].rest_ms = PLACEMENT_STANDING_REST_MS - 1;
	assert_int_equal(compute(w), 0);
	w->pairs[0].rest_ms = PLACEMENT_STANDING_REST_MS;
	assert_int_equal(compute(w), 1);

	w = MACHINE(1, 2); /* the others have no idle worker */
	add_settled(w, 0, 0, 300)->standing_us = 50;
	add_settled(w, 1, 0, 300);
	add_settled(w, 2, 1, 300);
	measure(w);
	assert_int_equal(compute(w), 0);
}

static void flees_a_full_node_and_stays_away(void **state)
{
	struct world *w = MACHINE(1, 1, 1);

	add_settled(w, 0, 0, 300)->standing_us = 50;
	add_settled(w, 1, 0, 500);
	w->pairs[0].ring_node = w->pairs[1].ring_node = 0;
	measure(w);
	assert_int_equal(compute(w), 0); /* its worker is busy, not full */
	w->pairs[1].load_permille = 650;
	measure(w);
	compute(w);
	assert_choice(w, 0, 1, PLACEMENT_REASON_STANDING);
	assert_settled(w);
	w->pairs[0].standing_us = 0;
	assert_int_equal(compute(w), 0);

	w->pairs[0].worker_now = 0; /* not against the operator's order */
	w->pairs[0].standing_us = 50;
	w->pairs[0].node_wanted = 0;
	measure(w);
	assert_int_equal(compute(w), 0);
}

static void gathers_what_trickles(void **state)
{
	struct world *w = MACHINE(1, 4, 1);

	add_settled(w, 0, 0, 20);
	add_settled(w, 1, 1, 100);
	add_settled(w, 2, 2, 30);
	add_settled(w, 3, 3, 0); /* wakes nobody */
	add_settled(w, 4, 4, 20); /* alone on its node */
	for (unsigned i = 0; i < 5; i++)
		w->pairs[i].ring_node = i == 4;
	measure(w);
	assert_int_equal(compute(w), 2);
	assert_choice(w, 0, 1, PLACEMENT_REASON_CONSOLIDATE);
	assert_choice(w, 2, 1, PLACEMENT_REASON_CONSOLIDATE);
	assert_settled(w);

	w = MACHINE(1, 4); /* not onto a worker where it would wait */
	add_settled(w, 0, 0, 20);
	add_settled(w, 1, 1, 190);
	measure(w);
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 4); /* the queues of one port stay apart, and so do those that an order holds */
	add_settled(w, 0, 0, 20);
	add_settled(w, 0, 1, 100);
	add_settled(w, 1, 2, 20)->worker_wanted = 2;
	measure(w);
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 3); /* the whole worker or nothing */
	add_settled(w, 0, 0, 20);
	add_settled(w, 1, 0, 20);
	add_settled(w, 2, 1, 100);
	measure(w);
	w->in.moves_max = 0;
	assert_int_equal(compute(w), 0);
	w->in.moves_max = 1; /* one decision */
	assert_int_equal(compute(w), 2);
}

/* Guests live on these CPUs, too. */
static void crowd(struct world *w, uint32_t others)
{
	unsigned i;

	for (i = 0; i < w->in.worker_count; i++)
		w->workers[i].others_permille = others;
}

static void gathers_where_cpus_are_crowded(void **state)
{
	struct world *w = MACHINE(1, 2);
	unsigned i;

	for (i = 0; i < 8; i++)
		add_settled(w, i, (int)i % 2, i % 2 ? 110 : 90);
	measure(w);
	crowd(w, PLACEMENT_CROWDED_PERMILLE - 1);
	assert_int_equal(compute(w), 0); /* free CPUs: rather two workers half busy than one that keeps others waiting */
	crowd(w, PLACEMENT_CROWDED_PERMILLE);
	w->in.moves_max = 1; /* all of a worker's pairs, as one decision */
	assert_int_equal(compute(w), 4);
	for (i = 0; i < 8; i++)
		assert_choice(w, i, 1, i % 2 ? PLACEMENT_REASON_STAYS : PLACEMENT_REASON_CONSOLIDATE); /* onto the fuller */
	assert_settled(w);
	for (i = 0; i < 8; i++)
		w->pairs[i].standing_us = 50; /* nor do they flee from one another then */
	assert_int_equal(compute(w), 0);

	for (i = 0; i < 8; i++)
		w->pairs[i].worker_now = (int)i % 2;
	measure(w);
	w->in.no_gathering = true;
	assert_int_equal(compute(w), 0);
	w->in.no_gathering = false;
	w->workers[0].busy_permille = 460; /* what is sent is in no pair's load, and would fill it */
	assert_int_equal(compute(w), 0);
	w->workers[0].busy_permille = 360;
	w->pairs[0].rest_ms = 10; /* all or none */
	assert_int_equal(compute(w), 0);
	w->pairs[0].rest_ms = PLACEMENT_REST_MS;
	assert_int_equal(compute(w), 4);
}

/* What is urgent moves at once, what merely pays at the regular look: so moves a second are bounded. */
static void urgent_moves_are_few(void **state)
{
	struct world *w = MACHINE(1, 2, 2);
	unsigned i;

	for (i = 0; i < 4; i++)
		add_settled(w, i, 0, 240)->ring_node = i < 2 ? 0 : 1; /* two away from home, all on one worker */
	measure(w);
	w->in.urgent = true;
	assert_int_equal(compute(w), 0);
	w->pairs[1].standing_us = 50;
	assert_int_equal(compute(w), 1);
	assert_choice(w, 1, 1, PLACEMENT_REASON_STANDING);
	w->in.urgent = false;
	assert_true(compute(w) > 1);
}

static void splits_what_was_gathered_and_is_full(void **state)
{
	struct world *w = MACHINE(1, 2);
	unsigned i;

	for (i = 0; i < 8; i++)
		add_settled(w, i, 0, 100)->rest_ms = 10; /* just gathered: this can't wait */
	add_settled(w, 8, 0, 10)->worker_wanted = 0;
	measure(w);
	crowd(w, PLACEMENT_CROWDED_PERMILLE);
	w->in.moves_max = 1;
	w->workers[0].busy_permille = PLACEMENT_SPLIT_PERMILLE - 1;
	for (i = 0; i < 8; i++)
		w->pairs[i].load_permille = 90;
	assert_int_equal(compute(w), 0);
	w->workers[0].busy_permille = PLACEMENT_SPLIT_PERMILLE + 10;
	assert_int_equal(compute(w), 4);
	assert_int_equal(on_worker(w, 1, -1), 4);
	assert_int_equal(on_worker(w, 0, 8), 1); /* by order */
	for (i = 0; i < 8; i++)
		if (w->choices[i].worker == 1)
			assert_choice(w, i, 1, PLACEMENT_REASON_SPLIT);
	assert_settled(w);

	w = MACHINE(1, 2); /* one pair can't be split */
	add_settled(w, 0, 0, 950);
	measure(w);
	crowd(w, 500);
	assert_int_equal(compute(w), 0);

	w = MACHINE(1, 1, 1); /* nor does it go where its memory isn't */
	for (i = 0; i < 4; i++)
		add_settled(w, i, 0, 240)->ring_node = 0;
	measure(w);
	crowd(w, 500);
	assert_int_equal(compute(w), 0);
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

/* ------------------------------------------------------------------ fixed maps */

static void per_port_map(void **state)
{
	struct world *w = MACHINE(1, 2, 2);
	unsigned i, moved;

	w->in.policy = PLACEMENT_PER_PORT;
	for (i = 0; i < 64; i++)
		add_pair(w, i / 4, i % 4)->ring_node = 1;
	assert_int_equal(compute(w), 64);
	for (i = 0; i < 64; i++)
		assert_choice(w, i, (int)(i / 4) % 4, PLACEMENT_REASON_PORT_THREAD);
	assert_settled(w);

	w->workers[2].usable = false; /* nobody else moves; its ports go to the others by turns */
	moved = compute(w);
	assert_int_equal(moved, 16);
	for (i = 0; i < 64; i++)
		if (i / 4 % 4 != 2)
			assert_choice(w, i, (int)(i / 4) % 4, PLACEMENT_REASON_PORT_THREAD);
		else
			assert_int_equal(w->choices[i].reason, PLACEMENT_REASON_CPU_GONE);
	for (i = 0; i < 64; i += 4) /* all pairs of a port on one */
		assert_int_equal(on_worker(w, w->choices[i].worker, (int)i / 4), 4);
	assert_in_range(on_worker(w, 0, -1), 20, 24);
	assert_in_range(on_worker(w, 1, -1), 20, 24);
	assert_settled(w);
	w->workers[2].usable = true;
	assert_int_equal(compute(w), 16);

	w = MACHINE(1, 2, 2); /* the operator's node */
	w->in.policy = PLACEMENT_PER_PORT;
	for (i = 0; i < 8; i++)
		add_pair(w, i, 0)->node_wanted = 1;
	compute(w);
	assert_int_equal(on_worker(w, 2, -1), 4);
	assert_int_equal(on_worker(w, 3, -1), 4);
}

static void multi_worker_map(void **state)
{
	unsigned n, i, k;

	for (n = 0; n <= 6; n++) {
		struct world *w = MACHINE(1, 4);
		unsigned expected = n < 1 ? 1 : n > 4 ? 4 : n;

		w->in.policy = PLACEMENT_MULTI_WORKER;
		w->in.workers_per_port = n;
		for (k = 0; k < 6; k++)
			for (i = 0; i < 8; i++)
				add_pair(w, k, i);
		assert_int_equal(compute(w), 48);
		for (i = 0; i < 48; i++) /* pair i and pair i + N meet, whatever the port */
			assert_choice(w, i, (int)((i / 8 * expected + i % 8 % expected) % 4), PLACEMENT_REASON_PORT_THREAD);
		assert_settled(w);

		w->workers[1].usable = false; /* as many different workers a port as there can be */
		compute(w);
		for (k = 0; k < 6; k++) {
			unsigned different = 0;

			for (i = 0; i < 4; i++)
				different += on_worker(w, (int)i, (int)k) > 0;
			assert_int_equal(different, expected > 3 ? 3 : expected);
			assert_int_equal(on_worker(w, 1, (int)k), 0);
		}
		assert_settled(w);
	}
}

static void policy_switch_and_back(void **state)
{
	struct world *w = MACHINE(1, 4);
	unsigned i;

	for (i = 0; i < 32; i++)
		add_pair(w, i / 4, i % 4)->load_permille = 110;
	compute(w);
	for (i = 0; i < 4; i++)
		assert_int_equal(on_worker(w, (int)i, -1), 8);
	apply(w);
	w->in.policy = PLACEMENT_PER_PORT;
	w->in.moves_max = 0; /* another policy is an order */
	compute(w);
	for (i = 0; i < 32; i++)
		assert_int_equal(w->choices[i].worker, (i / 4) % 4);
	apply(w);
	w->in.policy = PLACEMENT_PER_CPU;
	assert_int_equal(compute(w), 0);

	/* Idle pairs of one port: nothing but the new policy itself would spread them. */
	w = MACHINE(1, 2, 2);
	for (i = 0; i < 4; i++) {
		add_settled(w, 0, 0, 0)->index = (uint16_t)i;
		w->pairs[i].ring_node = 1;
	}
	w->pairs[3].worker_wanted = 0;
	add_settled(w, 1, 2, 500)->ring_node = 1; /* its load is its own, not its worker's */
	measure(w);
	w->in.moves_max = 0;
	assert_int_equal(compute(w), 0);
	w->in.afresh = true;
	compute(w);
	assert_int_equal(on_worker(w, 2, 0), 2);
	assert_int_equal(on_worker(w, 3, 0), 1);
	assert_int_equal(w->choices[4].worker, 3);
	assert_choice(w, 3, 0, PLACEMENT_REASON_PINNED);
	w->in.afresh = false;
	assert_settled(w);

	/* A stand-in is dealt anew too: as if the CPU had been away from the start. */
	w->in.policy = PLACEMENT_PER_PORT;
	w->in.pair_count = 3;
	w->workers[0].usable = false;
	w->in.afresh = true;
	compute(w);
	assert_int_equal(w->choices[0].worker, 1);
	w->in.afresh = false;
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
		cmocka_unit_test(rehomes_to_the_initiators_node),
		cmocka_unit_test(rehoming_is_bounded_and_rests),
		cmocka_unit_test(does_not_go_home_to_a_full_node),
		cmocka_unit_test(leaves_a_vcpus_cpu),
		cmocka_unit_test(balances_by_hysteresis),
		cmocka_unit_test(relieves_standing),
		cmocka_unit_test(flees_a_full_node_and_stays_away),
		cmocka_unit_test(gathers_what_trickles),
		cmocka_unit_test(gathers_where_cpus_are_crowded),
		cmocka_unit_test(urgent_moves_are_few),
		cmocka_unit_test(splits_what_was_gathered_and_is_full),
		cmocka_unit_test(rescues_from_a_stalled_worker),
		cmocka_unit_test(rescued_beyond_the_node),
		cmocka_unit_test(per_port_map),
		cmocka_unit_test(multi_worker_map),
		cmocka_unit_test(policy_switch_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
