/* SPDX-License-Identifier: BSD-2-Clause */
/* Moves that nobody ordered: made when they pay, few at a time, and then there is rest. */
#include "placement_world.h"

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

/* A vCPU that never sleeps sits where the worker does, and another CPU is hardly used. */
static void leaves_a_cpu_that_others_fill(void **state)
{
	struct world *w = MACHINE(1, 3, 1);
	unsigned i;

	for (i = 0; i < 2; i++)
		add_settled(w, i, 0, 150)->ring_node = 0;
	measure(w);
	w->workers[0].others_permille = 700;
	w->workers[1].others_permille = 600;
	w->workers[2].others_permille = 400;
	w->in.urgent = true;
	w->in.moves_max = 1;
	assert_int_equal(compute(w), 2);
	for (i = 0; i < 2; i++)
		assert_choice(w, i, 2, PLACEMENT_REASON_LEFT_CROWD);
	assert_settled(w);

	for (i = 0; i < 2; i++)
		w->pairs[i].worker_now = 0;
	measure(w);
	w->workers[0].others_permille = 590; /* not full: there is room for both */
	assert_int_equal(compute(w), 0);
	w->workers[0].others_permille = 700;
	w->workers[2].others_permille = 501; /* not worth it */
	assert_int_equal(compute(w), 0);
	w->workers[2].others_permille = 400;
	w->pairs[1].rest_ms = 10; /* all or none */
	assert_int_equal(compute(w), 0);
	w->pairs[1].rest_ms = 0;
	cpulist_add(&w->pairs[1].vcpus, 2); /* nor onto a CPU of a guest's vCPU */
	assert_int_equal(compute(w), 0);
	w->workers[1].others_permille = 100;
	assert_int_equal(compute(w), 2);
	assert_int_equal(on_worker(w, 1, -1), 2);

	/* What fills a CPU alone may go to a free one; onto a worker that has work only if both fit, and gathering was not in vain. */
	w = MACHINE(1, 2);
	add_settled(w, 0, 0, 850)->ring_node = 0;
	measure(w);
	w->workers[0].others_permille = 300;
	assert_int_equal(compute(w), 1);
	assert_choice(w, 0, 1, PLACEMENT_REASON_LEFT_CROWD);
	add_settled(w, 1, 1, PLACEMENT_IDLE_PERMILLE);
	measure(w);
	w->workers[0].others_permille = 300;
	assert_int_equal(compute(w), 0);
	w->pairs[0].load_permille = 500;
	measure(w);
	w->workers[0].others_permille = 450;
	assert_int_equal(compute(w), 1);
	w->in.no_gathering = true;
	assert_int_equal(compute(w), 0);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rehomes_to_the_initiators_node),
		cmocka_unit_test(rehoming_is_bounded_and_rests),
		cmocka_unit_test(does_not_go_home_to_a_full_node),
		cmocka_unit_test(leaves_a_vcpus_cpu),
		cmocka_unit_test(balances_by_hysteresis),
		cmocka_unit_test(relieves_standing),
		cmocka_unit_test(flees_a_full_node_and_stays_away),
		cmocka_unit_test(gathers_what_trickles),
		cmocka_unit_test(gathers_where_cpus_are_crowded),
		cmocka_unit_test(leaves_a_cpu_that_others_fill),
		cmocka_unit_test(urgent_moves_are_few),
		cmocka_unit_test(splits_what_was_gathered_and_is_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
