/* SPDX-License-Identifier: BSD-2-Clause */
/* flow_steering: buckets age, and always name a pair that receives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "control/publisher_private.h"

#define PAIRS 4

static uint32_t row[VL_FLOW_BUCKETS];
static struct port port;
static struct managed_port mp;
static struct engine engine;

static void set_receiving(unsigned pairs)
{
	mp.active[0] = 0;
	for (unsigned i = 0; i < PAIRS; i++)
		if (pairs >> i & 1)
			mp.active[0] |= 3ull << (2 * i);
	repair_steering(&mp);
}

/* A port that has just come up with these pairs: as make_port() leaves it, then published. */
static void start(unsigned pairs)
{
	memset(row, 0, sizeof(row));
	port = (struct port){ .queue_pairs = PAIRS, .flow_steering = row };
	mp = (struct managed_port){ .port = &port, .config.queues = PAIRS };
	memset(mp.flow_idle, FLOW_IDLE_AGINGS, sizeof(mp.flow_idle));
	engine = (struct engine){ .ports = { [3] = &mp } };
	set_receiving(pairs);
}

/* The guest sends in a bucket on a pair: what a worker does (switch.c). */
static void guest_sends(unsigned bucket, unsigned pair)
{
	row[bucket] = pair;
	port.flow_used[bucket] = 1;
}

static void assert_spread_over(unsigned pairs, unsigned but)
{
	unsigned on[PAIRS] = { 0 }, low = UINT32_MAX, high = 0;

	for (unsigned b = 0; b < VL_FLOW_BUCKETS; b++) {
		assert_in_range(row[b], 0, PAIRS - 1);
		assert_true(pairs >> row[b] & 1);
		on[row[b]] += b != but;
	}
	for (unsigned i = 0; i < PAIRS; i++) {
		if (!(pairs >> i & 1))
			continue;
		low = on[i] < low ? on[i] : low;
		high = on[i] > high ? on[i] : high;
	}
	assert_true(high - low <= 2);
}

static void pairs_come_one_by_one(void **state)
{
	start(1);
	assert_spread_over(1, VL_FLOW_BUCKETS);
	for (unsigned pairs = 3; pairs < 16; pairs = pairs << 1 | 1) {
		set_receiving(pairs);
		assert_spread_over(pairs, VL_FLOW_BUCKETS); /* nobody has sent yet: all of it is dealt anew */
	}
}

static void a_flow_in_use_stays(void **state)
{
	start(1);
	guest_sends(9, 0);
	set_receiving(15);
	assert_int_equal(row[9], 0); /* where the guest sends it, whatever pairs there are now */
	assert_spread_over(15, 9);
	guest_sends(9, 3);
	publisher_age_flows(&engine);
	publisher_age_flows(&engine);
	assert_int_equal(row[9], 3); /* used in the first interval, idle in one */
	guest_sends(9, 3);
	publisher_age_flows(&engine);
	publisher_age_flows(&engine);
	assert_int_equal(row[9], 3); /* what was sent in between began the count anew */
}

static void a_flow_that_ended_is_forgotten(void **state)
{
	start(15);
	const uint32_t even = row[9];

	guest_sends(9, (even + 1) % PAIRS);
	for (unsigned i = 0; i < FLOW_IDLE_AGINGS; i++) {
		publisher_age_flows(&engine);
		assert_int_equal(row[9], (even + 1) % PAIRS);
	}
	publisher_age_flows(&engine);
	assert_int_equal(row[9], even);
	/* From then on it is dealt anew like all others, when pairs change. */
	set_receiving(8);
	assert_spread_over(8, VL_FLOW_BUCKETS);
	set_receiving(15);
	assert_spread_over(15, VL_FLOW_BUCKETS);
}

static void pairs_go_in_any_order(void **state)
{
	start(15);
	for (unsigned b = 0; b < VL_FLOW_BUCKETS; b++)
		guest_sends(b, b % PAIRS);
	for (unsigned pairs = 15; pairs; pairs &= pairs - 1) { /* the lowest first */
		set_receiving(pairs);
		for (unsigned b = 0; b < VL_FLOW_BUCKETS; b++) {
			assert_true(pairs >> row[b] & 1);
			if (pairs >> b % PAIRS & 1)
				assert_int_equal(row[b], b % PAIRS);
		}
	}
	/* None left: nothing to point at, and nothing is touched. */
	set_receiving(0);
	assert_int_equal(row[3], 3);
}

/* An operator's or a worker's nonsense in the row does not outlive the next repair. */
static void nonsense_is_put_right(void **state)
{
	start(15);
	guest_sends(1, 200);
	row[2] = UINT32_MAX;
	repair_steering(&mp);
	assert_spread_over(15, VL_FLOW_BUCKETS);
}

static void one_pair_is_not_aged(void **state)
{
	start(4);
	guest_sends(5, 2);
	for (unsigned i = 0; i < 4; i++)
		publisher_age_flows(&engine);
	assert_spread_over(4, VL_FLOW_BUCKETS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs_come_one_by_one), cmocka_unit_test(a_flow_in_use_stays), cmocka_unit_test(a_flow_that_ended_is_forgotten),
		cmocka_unit_test(pairs_go_in_any_order), cmocka_unit_test(nonsense_is_put_right), cmocka_unit_test(one_pair_is_not_aged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
