/* SPDX-License-Identifier: BSD-2-Clause */
/* The policies that deal pairs out by rule, whatever the load; and going from one policy to another. */
#include "placement_world.h"

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
		cmocka_unit_test(per_port_map),
		cmocka_unit_test(multi_worker_map),
		cmocka_unit_test(policy_switch_and_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
