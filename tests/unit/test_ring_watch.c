/* SPDX-License-Identifier: BSD-2-Clause */
/* Looks at a ring from outside: what waits, and where buffers lie. */
#include "ring_burst.h"

static void expect_unserved(struct driver *d, unsigned count, uint16_t oldest)
{
	uint16_t found = 0xdead;

	assert_int_equal(ring_unserved(&d->ring, &found), count);
	assert_int_equal(found, oldest);
}

static void test_unserved(void **state)
{
	static const uint16_t bases[] = {0, 65534};
	struct driver *d = *state;
	uint16_t untouched = 7;

	for (unsigned i = 0; i < ARRAY_SIZE(bases); i++) {
		const uint16_t base = bases[i];

		driver_start(d, 8, F_MODERN, base);
		expect_unserved(d, 0, base);
		for (uint16_t n = 0; n < 8; n++) {
			desc_set(d, n, BUFFERS_AT + 0x1000u * n, 100, 0, 0);
			driver_offer(d, n);
			expect_unserved(d, n + 1u, base);
		}
		assert_int_equal(ring_take(&d->ring, burst, 3), 3);
		expect_unserved(d, 8, base); /* taken is not given back */
		ring_take_done(&d->ring);
		expect_unserved(d, 5, (uint16_t)(base + 3));
		assert_int_equal(ring_take(&d->ring, burst, 64), 5);
		ring_take_done(&d->ring);
		expect_unserved(d, 0, (uint16_t)(base + 8));
	}
	ring_stop(&d->ring);
	assert_int_equal(ring_unserved(&d->ring, &untouched), 0);
	assert_int_equal(untouched, 7);
}

/* A guest may write what it likes: it gets no more than wrong figures of itself. */
static void test_unlawful_indices(void **state)
{
	struct driver *d = *state;
	uint16_t oldest;

	driver_start(d, 8, F_MODERN, 0);
	d->avail->idx = 9;
	assert_int_equal(ring_unserved(&d->ring, &oldest), 0);
	d->avail->idx = 3;
	d->used->idx = 5;
	assert_int_equal(ring_unserved(&d->ring, &oldest), 0);
	assert_int_equal(fault_of(d), RING_FAULT_NONE); /* to judge is ring_take()'s */
}

static void test_buffers(void **state)
{
	struct driver *d = *state;
	struct vring_desc table = {.addr = FAR_AT + 64, .len = 100};
	const void *buffers[16];

	driver_start(d, 8, F_MODERN | F_INDIRECT, 0);
	desc_set(d, 0, BUFFERS_AT, 100, 0, 0);
	desc_set(d, 1, BORDER + 5, 100, 0, 0);
	driver_write(d, BUFFERS_AT + 0x2000, &table, sizeof(table));
	desc_set(d, 2, BUFFERS_AT + 0x2000, sizeof(table), VRING_DESC_F_INDIRECT, 0);
	for (uint16_t n = 0; n < 3; n++)
		driver_offer(d, n);
	/* The last first; entries that were never written name descriptor 0. */
	assert_int_equal(ring_recent_buffers(&d->ring, buffers, 3), 3);
	assert_ptr_equal(buffers[0], guest_memory_at(d->shared, FAR_AT + 64, 1));
	assert_ptr_equal(buffers[1], guest_memory_at(d->shared, BORDER + 5, 1));
	assert_ptr_equal(buffers[2], guest_memory_at(d->shared, BUFFERS_AT, 1));
	assert_int_equal(ring_recent_buffers(&d->ring, buffers, 2), 2);
	assert_int_equal(ring_recent_buffers(&d->ring, buffers, 16), 8); /* no more than the ring has entries */
	ring_stop(&d->ring);
	assert_int_equal(ring_recent_buffers(&d->ring, buffers, 16), 0);
}

static void test_unlawful_buffers(void **state)
{
	static const struct {
		uint16_t head, flags;
		uint64_t address;
	} cases[] = {
		{8, 0, BUFFERS_AT},	     {65535, 0, BUFFERS_AT},
		{0, 0, BUFFERS_END},	     {0, 0, UINT64_MAX},
		{0, VRING_DESC_F_INDIRECT, BUFFERS_END - 8}, {0, VRING_DESC_F_INDIRECT, BUFFERS_AT + 4},
		{0, VRING_DESC_F_INDIRECT, UINT64_MAX - 8},
	};
	struct driver *d = *state;
	const void *buffers[1];

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		driver_start(d, 8, F_MODERN | F_INDIRECT, 0);
		desc_set(d, 0, cases[i].address, 100, cases[i].flags, 0);
		driver_offer(d, cases[i].head);
		assert_int_equal(ring_recent_buffers(&d->ring, buffers, 1), 0);
		assert_int_equal(fault_of(d), RING_FAULT_NONE);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_unserved, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unlawful_indices, setup, teardown),
		cmocka_unit_test_setup_teardown(test_buffers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unlawful_buffers, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
