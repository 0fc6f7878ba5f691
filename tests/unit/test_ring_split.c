/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The split ring, case by case: setup, and what guests send in every shape. What they get: test_ring_put.c; faults: test_ring_faults.c;
 * notification: test_ring_notify.c.
 */
#include "ring_burst.h"

static void expect_frame(const struct frame *frame, uint32_t length, uint8_t seed, uint16_t origin)
{
	uint8_t *want = malloc(length + 1), *got = malloc(length + 1);

	assert_non_null(want);
	assert_non_null(got);
	assert_int_equal(frame->length, length);
	assert_int_equal(frame->head_length, length < FRAME_HEAD_MAX ? length : FRAME_HEAD_MAX);
	assert_int_equal(frame->origin, origin);
	assert_memory_equal(&frame->vnet, &marked, sizeof(marked));
	pattern(want, length, seed);
	frame_join(frame, got);
	assert_memory_equal(want, got, length);
	memset(frame->head - FRAME_HEADROOM, 0xee, FRAME_HEADROOM); /* writable, and nobody's */
	free(want);
	free(got);
}

/* --- setup -------------------------------------------------------------------------------------------------------- */

static void expect_start(struct driver *d, const struct ring_setup *setup, int code)
{
	struct ring ring;
	struct error error = {0};

	ring_init(&ring);
	assert_int_equal(ring_start(&ring, setup, &error), code);
	assert_int_equal(error.code, code);
	assert_int_equal(code ? strstr(error.text, "; ") != NULL : 1, 1);
	assert_int_equal(ring.running, code == 0);
}

static void test_start(void **state)
{
	struct driver *d = *state;
	static const uint32_t bad_sizes[] = {0, 3, 255, 32769, 65536, UINT32_MAX}, good_sizes[] = {1, 2, 256, 32768};
	struct ring_setup setup;

	for (unsigned i = 0; i < ARRAY_SIZE(bad_sizes); i++) {
		setup = driver_setup(d, 4, 0, 0);
		setup.size = bad_sizes[i];
		expect_start(d, &setup, -EINVAL);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(good_sizes); i++) {
		setup = driver_setup(d, good_sizes[i], F_EVENT, 65530);
		expect_start(d, &setup, 0);
	}
	setup = driver_setup(d, 256, 0, 0);
	setup.desc_user_address += 8;
	expect_start(d, &setup, -EINVAL);
	setup = driver_setup(d, 256, 0, 0);
	setup.avail_user_address += 1;
	expect_start(d, &setup, -EINVAL);
	setup = driver_setup(d, 256, 0, 0);
	setup.used_user_address += 2;
	expect_start(d, &setup, -EINVAL);
	setup = driver_setup(d, 256, 0, 0);
	setup.desc_user_address = USER_OFFSET + BORDER - 16; /* spans two regions, which are not neighbours for us */
	expect_start(d, &setup, -EFAULT);
	setup = driver_setup(d, 256, 0, 0);
	setup.avail_user_address = 0;
	expect_start(d, &setup, -EFAULT);
	/* The last two bytes are there only with the event index. */
	setup = driver_setup(d, 256, 0, 0);
	setup.avail_user_address = USER_OFFSET + FAR_AT + FAR_SIZE - (4 + 2 * 256);
	expect_start(d, &setup, 0);
	setup.features = F_EVENT;
	expect_start(d, &setup, -EFAULT);
	setup = driver_setup(d, 256, 0, 0);
	setup.used_user_address = UINT64_MAX - 3;
	expect_start(d, &setup, -EFAULT);
}

static void test_stopped(void **state)
{
	struct driver *d = *state;
	uint8_t data[64];
	struct frame frame = private_frame(data, 64, 0);

	driver_start(d, 4, F_MODERN, 65534);
	desc_set(d, 0, BUFFERS_AT, 100, 0, 0);
	driver_offer(d, 0);
	assert_int_equal(ring_pending(&d->ring), 1);
	assert_int_equal(ring_stop(&d->ring), 65534);
	assert_int_equal(ring_pending(&d->ring), 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 0);
	assert_int_equal(ring_put(&d->ring, &frame, &marked), -EIO);
	assert_false(ring_arm(&d->ring));
	ring_take_done(&d->ring);
	ring_put_done(&d->ring);
	ring_call(&d->ring);
	driver_expect_none_used(d);
}

/* --- from_guest --------------------------------------------------------------------------------------------------- */

static void test_take_sizes(void **state)
{
	struct driver *d = *state;
	static const uint32_t lengths[] = {14, 15, 31,	32,  33,  59,  60,   63,   64,	  65,
					   96, 97, 127, 128, 129, 200, 1514, 9000, 65535, FRAME_LENGTH_MAX};

	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		driver_start(d, 1, F_MODERN, 65535);
		write_frame(d, BUFFERS_AT + 3, lengths[i], (uint8_t)i);
		desc_set(d, 0, BUFFERS_AT + 3, 12 + lengths[i], 0, 0);
		driver_offer(d, 0);
		assert_int_equal(ring_take(&d->ring, burst, 64), 1);
		expect_frame(&burst->frames[0], lengths[i], (uint8_t)i, 0);
		driver_expect_none_used(d);
		ring_take_done(&d->ring);
		driver_expect_used(d, 0, 0);
		assert_int_equal(ring_take(&d->ring, burst, 64), 0);
	}
	assert_int_equal(d->ring.counters.frames, ARRAY_SIZE(lengths));
}

/* Every index wraps, several times, on every ring size. */
static void test_take_wrap(void **state)
{
	struct driver *d = *state;
	static const uint32_t sizes[] = {1, 2, 256, 32768};

	for (unsigned s = 0; s < ARRAY_SIZE(sizes); s++) {
		uint32_t size = sizes[s], done = 0, rounds = size == 32768 ? 5 * 32768 : 66000;

		driver_start(d, size, F_MODERN, 65530);
		for (uint32_t i = 0; i < size; i++)
			desc_set(d, (uint16_t)i, BUFFERS_AT + i % 64 * 128, 12 + 60 + i % 64, 0, 0);
		while (done < rounds) {
			uint32_t n = size < 100 ? size : 100, got, taken = 0;

			for (uint32_t i = 0; i < n; i++)
				d->avail->ring[d->avail_next++ & (size - 1)] = (uint16_t)((done + i) % size);
			driver_publish(d);
			assert_int_equal(ring_pending(&d->ring), n);
			while ((got = ring_take(&d->ring, burst, 48)) > 0) {
				for (uint32_t i = 0; i < got; i++)
					assert_int_equal(burst->frames[i].length, 60 + (done + taken + i) % size % 64);
				ring_take_done(&d->ring);
				for (uint32_t i = 0; i < got; i++)
					driver_expect_used(d, (done + taken + i) % size, 0);
				taken += got;
			}
			assert_int_equal(taken, n);
			done += n;
		}
		assert_int_equal(fault_of(d), RING_FAULT_NONE);
		assert_int_equal(ring_stop(&d->ring), (uint16_t)(65530 + done));
	}
}

static void test_take_split_header(void **state)
{
	struct driver *d = *state;

	/* Header over three descriptors, a zero-length one between, frame over two more. */
	driver_start(d, 8, F_MODERN, 0);
	write_frame(d, BUFFERS_AT, 300, 9);
	desc_set(d, 5, BUFFERS_AT, 5, VRING_DESC_F_NEXT, 1);
	desc_set(d, 1, BUFFERS_AT + 5, 1, VRING_DESC_F_NEXT, 2);
	desc_set(d, 2, 0, 0, VRING_DESC_F_NEXT, 7);
	desc_set(d, 7, BUFFERS_AT + 6, 7, VRING_DESC_F_NEXT, 0);
	desc_set(d, 0, BUFFERS_AT + 13, 4, VRING_DESC_F_NEXT, 3);
	desc_set(d, 3, BUFFERS_AT + 17, 295, 0, 0);
	driver_offer(d, 5);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	expect_frame(&burst->frames[0], 300, 9, 5);

	/* The header apart: what many drivers send. */
	desc_set(d, 0, BUFFERS_AT, 12, VRING_DESC_F_NEXT, 1);
	desc_set(d, 1, BUFFERS_AT + 12, 300, 0, 0);
	driver_offer(d, 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	expect_frame(&burst->frames[0], 300, 9, 0);
	ring_take_done(&d->ring);
	driver_expect_used(d, 5, 0);
	driver_expect_used(d, 0, 0);
}

static void test_take_legacy_header(void **state)
{
	struct driver *d = *state;
	struct vnet_header want = marked;

	driver_start(d, 2, 0, 0);
	assert_int_equal(d->ring.header_length, 10);
	write_frame(d, BUFFERS_AT, 300, 9);
	desc_set(d, 0, BUFFERS_AT, 310, 0, 0);
	driver_offer(d, 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	want.num_buffers = 0;
	assert_memory_equal(&burst->frames[0].vnet, &want, sizeof(want));
	assert_int_equal(burst->frames[0].length, 300);
	assert_memory_equal(burst->frames[0].head, &marked.num_buffers, 2);
}

static void test_take_across_regions(void **state)
{
	struct driver *d = *state;

	/* The border in the header, in the head, in the rest. */
	for (uint64_t before = 5; before < 400; before += 60) {
		driver_start(d, 4, F_MODERN, 100);
		write_frame(d, BORDER - before, 500, (uint8_t)before);
		desc_set(d, 3, BORDER - before, 512, 0, 0);
		driver_offer(d, 3);
		write_frame(d, FAR_AT, 100, 1);
		desc_set(d, 2, FAR_AT, 112, 0, 0);
		driver_offer(d, 2);
		assert_int_equal(ring_take(&d->ring, burst, 64), 2);
		expect_frame(&burst->frames[0], 500, (uint8_t)before, 3);
		expect_frame(&burst->frames[1], 100, 1, 2);
	}
}

static void test_take_unusable(void **state)
{
	struct driver *d = *state;
	struct ring_counters *c = &d->ring.counters;
	static const uint32_t lengths[] = {0, 1, 11, 12, 13, 25, 26, 12 + FRAME_LENGTH_MAX + 1, 12 + 60};

	memset(c, 0, sizeof(*c));
	driver_start(d, 16, F_MODERN, 0);
	for (uint16_t i = 0; i < ARRAY_SIZE(lengths); i++) {
		desc_set(d, i, BUFFERS_AT, lengths[i], 0, 0);
		driver_offer(d, i);
	}
	assert_int_equal(ring_take(&d->ring, burst, 64), 2);
	assert_int_equal(burst->frames[0].length, 14);
	assert_int_equal(burst->frames[1].length, 60);
	assert_int_equal(c->header_bad, 3);
	assert_int_equal(c->frames_short, 3);
	assert_int_equal(c->frames_long, 1);
	assert_int_equal(c->frames, 2);
	assert_int_equal(c->bytes, 74);
	ring_take_done(&d->ring);
	for (uint16_t i = 0; i < ARRAY_SIZE(lengths); i++)
		driver_expect_used(d, i, 0);

	/* 2^32 - 1 bytes, several times: sums are not of 32 bits. */
	for (uint16_t i = 0; i < 3; i++)
		desc_set(d, i, BUFFERS_AT, 0x18000, i < 2 ? VRING_DESC_F_NEXT : 0, (uint16_t)(i + 1));
	driver_offer(d, 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 0);
	assert_int_equal(c->frames_long, 2);
	ring_take_done(&d->ring);
	driver_expect_used(d, 0, 0);
}

static void chain_of(struct driver *d, uint16_t first, uint16_t count, uint32_t length)
{
	for (uint16_t i = 0; i < count; i++)
		desc_set(d, (uint16_t)(first + i), BUFFERS_AT + i * length, length,
			 i + 1 < count ? VRING_DESC_F_NEXT : 0, (uint16_t)(first + i + 1));
}

static void test_take_segments(void **state)
{
	struct driver *d = *state;
	struct ring_counters *c = &d->ring.counters;

	/* 14 descriptors of 10 bytes are header and head; each further one is a segment. */
	memset(c, 0, sizeof(*c));
	driver_start(d, 4096, F_MODERN | F_INDIRECT, 0);
	write_frame(d, BUFFERS_AT, 10 * 1200, 77);
	chain_of(d, 0, 14 + 1000, 10);
	chain_of(d, 1100, 14 + 23, 10);
	chain_of(d, 1200, 14 + 1, 10);
	chain_of(d, 1300, 1024, 10);
	/* More than 1024 segments need a table at the end of a chain. */
	chain_of(d, 2400, 14 + 2, 10);
	desc_set(d, 2415, FAR_AT, 1024 * sizeof(struct vring_desc), VRING_DESC_F_INDIRECT, 0);
	for (uint32_t i = 0; i < 1024; i++) {
		struct vring_desc entry = {.addr = BUFFERS_AT + 150 + 10 * i, .len = 10, .next = (uint16_t)(i + 1)};

		entry.flags = i < 1023 ? VRING_DESC_F_NEXT : 0;
		driver_write(d, FAR_AT + i * sizeof(entry), &entry, sizeof(entry));
	}
	driver_offer(d, 0);
	driver_offer(d, 1100);
	driver_offer(d, 1200);
	driver_offer(d, 1300);
	driver_offer(d, 2400);
	driver_offer(d, 1200);
	assert_int_equal(ring_take(&d->ring, burst, 64), 3);
	expect_frame(&burst->frames[0], 10140 - 12, 77, 0);
	expect_frame(&burst->frames[1], 370 - 12, 77, 1100);
	expect_frame(&burst->frames[2], 150 - 12, 77, 1200);
	assert_int_equal(burst->segment_count, 1024);
	ring_take_done(&d->ring);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	expect_frame(&burst->frames[0], 10240 - 12, 77, 1300);
	ring_take_done(&d->ring);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	expect_frame(&burst->frames[0], 150 - 12, 77, 1200);
	ring_take_done(&d->ring);
	assert_int_equal(c->segments_exhausted, 1);
	assert_int_equal(c->frames, 5);
	driver_expect_used(d, 0, 0);
	driver_expect_used(d, 1100, 0);
	driver_expect_used(d, 1200, 0);
	driver_expect_used(d, 1300, 0);
	driver_expect_used(d, 2400, 0);
	driver_expect_used(d, 1200, 0);
}

static void test_take_indirect(void **state)
{
	struct driver *d = *state;
	/* Out of order, as a guest may; entry 1 is nobody's. */
	struct vring_desc table[] = {
		{.addr = BUFFERS_AT, .len = 12, .flags = VRING_DESC_F_NEXT, .next = 3},
		{.addr = 1, .len = 1, .flags = VRING_DESC_F_WRITE | VRING_DESC_F_INDIRECT},
		{.addr = BUFFERS_AT + 62, .len = 250},
		{.addr = BUFFERS_AT + 12, .len = 50, .flags = VRING_DESC_F_NEXT, .next = 2},
	};
	static const uint64_t places[] = {FAR_AT + 8, BUFFERS_AT + 0x1001, BORDER - 24, BORDER - 31};

	write_frame(d, BUFFERS_AT, 300, 5);
	for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
		driver_start(d, 4, F_MODERN | F_INDIRECT, 7);
		driver_write(d, places[i], table, sizeof(table));
		/* The write flag of the descriptor that refers to the table is ignored (2.7.5.3.2). */
		desc_set(d, 1, places[i], sizeof(table), VRING_DESC_F_INDIRECT | (i & 1 ? VRING_DESC_F_WRITE : 0), 999);
		driver_offer(d, 1);
		assert_int_equal(ring_take(&d->ring, burst, 64), 1);
		expect_frame(&burst->frames[0], 300, 5, 1);
	}
	/* Normal descriptors, then a table: 2.7.5.3.2. */
	driver_start(d, 4, F_MODERN | F_INDIRECT, 7);
	driver_write(d, FAR_AT, table, sizeof(table));
	desc_set(d, 0, BUFFERS_AT, 12, VRING_DESC_F_NEXT, 2);
	desc_set(d, 2, FAR_AT + 48, 16, VRING_DESC_F_INDIRECT, 0);
	table[3].flags = 0;
	driver_write(d, FAR_AT, table, sizeof(table));
	driver_offer(d, 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	assert_int_equal(burst->frames[0].length, 50);
	assert_int_equal(fault_of(d), RING_FAULT_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_take_sizes),
		cmocka_unit_test(test_take_wrap),
		cmocka_unit_test(test_take_split_header),
		cmocka_unit_test(test_take_legacy_header),
		cmocka_unit_test(test_take_across_regions),
		cmocka_unit_test(test_take_unusable),
		cmocka_unit_test(test_take_segments),
		cmocka_unit_test(test_take_indirect),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
