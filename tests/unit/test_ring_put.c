/* SPDX-License-Identifier: BSD-2-Clause */
/* Frames to a guest, into buffers of every shape. */
#include "ring_burst.h"

/* The chains' bytes are the header and the frame. */
static void expect_delivered(struct driver *d, uint64_t address, uint32_t length, uint8_t seed, uint16_t num_buffers)
{
	struct vnet_header want = marked, got;
	uint8_t *frame = calloc(1, length + 64), *read = malloc(length + 64);
	uint32_t padded = length < 60 ? 60 : length;

	want.num_buffers = num_buffers;
	pattern(frame, length, seed);
	driver_read(d, address, &got, sizeof(got));
	driver_read(d, address + 12, read, padded);
	assert_memory_equal(&got, &want, sizeof(got));
	assert_memory_equal(frame, read, padded);
	free(frame);
	free(read);
}

static void test_put_sizes(void **state)
{
	struct driver *d = *state;
	static const uint32_t lengths[] = {14, 31, 59, 60, 64, 65, 127, 128, 129, 1514, 9000, 65535};
	uint8_t *data = malloc(65536);

	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		for (unsigned mergeable = 0; mergeable < 2; mergeable++) {
			uint32_t length = lengths[i], head = length < 128 ? length : 128;
			struct frame frame = private_frame(data, length, (uint8_t)i);
			struct frame_segment rest[2] = {{data + head, (length - head) / 3}, {0}};

			/* As it comes from a lane: all private. Then as from a guest: head and segments. */
			driver_start(d, 2, F_MODERN | (mergeable ? F_MERGEABLE : 0), 65535);
			memset(driver_at(d, BUFFERS_AT), 0xa5, 0x12000);
			for (uint16_t k = 0; k < 2; k++)
				desc_set(d, k, BUFFERS_AT, 0x11000, VRING_DESC_F_WRITE, 0);
			driver_offer(d, 1);
			frame.head_length = (uint16_t)min_u32(length, 65535);
			assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
			driver_expect_none_used(d);
			ring_put_done(&d->ring);
			driver_expect_used(d, 1, 12 + (length < 60 ? 60 : length));
			expect_delivered(d, BUFFERS_AT, length, (uint8_t)i, 1);
			assert_int_equal(*driver_at(d, BUFFERS_AT + 12 + (length < 60 ? 60 : length)), 0xa5);

			memset(driver_at(d, BUFFERS_AT), 0xa5, 0x12000);
			rest[1] = (struct frame_segment){rest[0].data + rest[0].length, length - head - rest[0].length};
			frame.head_length = (uint16_t)head;
			frame.segments = rest;
			frame.segment_count = 2;
			driver_offer(d, 0);
			assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
			ring_put_done(&d->ring);
			driver_expect_used(d, 0, 12 + (length < 60 ? 60 : length));
			expect_delivered(d, BUFFERS_AT, length, (uint8_t)i, 1);
			assert_int_equal(*driver_at(d, BUFFERS_AT + 12 + (length < 60 ? 60 : length)), 0xa5);
		}
	}
	free(data);
}

static void test_put_legacy(void **state)
{
	struct driver *d = *state;
	uint8_t data[64], got[80];
	struct frame frame = private_frame(data, 64, 3);

	/* A legacy guest's header stands in a descriptor of its own; then one chain of one descriptor. */
	driver_start(d, 4, 0, 0);
	desc_set(d, 0, BUFFERS_AT, 10, VRING_DESC_F_WRITE | VRING_DESC_F_NEXT, 1);
	desc_set(d, 1, BUFFERS_AT + 10, 1600, VRING_DESC_F_WRITE, 0);
	desc_set(d, 2, BUFFERS_AT + 4096, 1600, VRING_DESC_F_WRITE, 0);
	driver_offer(d, 0);
	driver_offer(d, 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
		ring_put_done(&d->ring);
		driver_expect_used(d, i * 2, 74);
		driver_read(d, BUFFERS_AT + 4096 * i, got, 74);
		assert_memory_equal(got, &marked, 10);
		assert_memory_equal(got + 10, data, 64);
	}
}

static void test_put_wrap(void **state)
{
	struct driver *d = *state;
	static const uint32_t sizes[] = {1, 2, 16, 256, 32768};
	uint8_t data[64];

	for (unsigned s = 0; s < ARRAY_SIZE(sizes); s++) {
		uint32_t size = sizes[s], put = 0;

		driver_start(d, size, F_MODERN | F_MERGEABLE, 65530);
		for (uint32_t i = 0; i < size; i++)
			desc_set(d, (uint16_t)i, BUFFERS_AT + i % 1024 * 128, 128, VRING_DESC_F_WRITE, 0);
		for (uint32_t i = 0; i < size; i++)
			driver_offer(d, (uint16_t)i);
		for (unsigned round = 0; put < 70000; round++) {
			struct frame frame = private_frame(data, 60 + round % 5, (uint8_t)round);
			uint32_t n = 0;

			while (n < 1 + round % 70 && ring_put(&d->ring, &frame, &marked) == 0)
				n++;
			assert_int_equal(n, min_u32(1 + round % 70, size));
			ring_put_done(&d->ring);
			for (uint32_t i = 0; i < n; i++) {
				driver_expect_used(d, (put + i) % size, 12 + 60 + round % 5);
				expect_delivered(d, BUFFERS_AT + (put + i) % size % 1024 * 128, 60 + round % 5,
						 (uint8_t)round, 1);
				driver_offer(d, (uint16_t)((put + i) % size));
			}
			put += n;
		}
		assert_int_equal(fault_of(d), RING_FAULT_NONE);
		assert_int_equal(ring_stop(&d->ring), (uint16_t)(65530 + put));
	}
}

/*
 * Buffers of a few bytes, one behind the other in memory, the header split too, over more chains than are read ahead.
 */
static void test_put_mergeable_tiny(void **state)
{
	struct driver *d = *state;
	static const uint32_t lengths[] = {60, 61, 1514, 9000, 20000};
	uint8_t *data = malloc(20000);
	struct ring_counters *c = &d->ring.counters;

	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		for (uint32_t tiny = 12; tiny < 200; tiny += 37) {
			uint32_t total = 12 + lengths[i], chains = (total + tiny - 1) / tiny;
			struct frame frame = private_frame(data, lengths[i], (uint8_t)tiny);

			if (chains == 1)
				continue;
			driver_start(d, 8192, F_MODERN | F_MERGEABLE, 65530);
			memset(c, 0, sizeof(*c));
			/* The first chain: header over two descriptors and the border inside num_buffers. */
			desc_set(d, 8000, BORDER - 11, 11, VRING_DESC_F_WRITE | VRING_DESC_F_NEXT, 8001);
			desc_set(d, 8001, BORDER, tiny - 11, VRING_DESC_F_WRITE, 0);
			for (uint32_t k = 1; k < chains; k++)
				desc_set(d, (uint16_t)k, BORDER - 11 + k * tiny, tiny, VRING_DESC_F_WRITE, 0);
			/* One chain short: nothing is consumed, nothing published. */
			driver_offer(d, 8000);
			for (uint32_t k = 1; k + 1 < chains; k++)
				driver_offer(d, (uint16_t)k);
			assert_int_equal(ring_put(&d->ring, &frame, &marked), -ENOBUFS);
			assert_int_equal(ring_put(&d->ring, &frame, &marked), -ENOBUFS);
			ring_put_done(&d->ring);
			driver_expect_none_used(d);
			assert_int_equal(c->no_buffers, 2);
			driver_offer(d, (uint16_t)(chains - 1));
			assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
			assert_int_equal(ring_put(&d->ring, &frame, &marked), -ENOBUFS);
			ring_put_done(&d->ring);
			driver_expect_used(d, 8000, tiny);
			for (uint32_t k = 1; k < chains; k++)
				driver_expect_used(d, k, k + 1 < chains ? tiny : total - (chains - 1) * tiny);
			driver_expect_none_used(d);
			expect_delivered(d, BORDER - 11, lengths[i], (uint8_t)tiny, (uint16_t)chains);
		}
	}
	free(data);
}

static void test_put_too_large(void **state)
{
	struct driver *d = *state;
	struct ring_counters *c = &d->ring.counters;
	uint8_t data[2000];
	struct frame large = private_frame(data, 2000, 1), fits = private_frame(data, 1400, 1);

	/* Without mergeable buffers: dropped, the chain kept for the next. */
	memset(c, 0, sizeof(*c));
	driver_start(d, 4, F_MODERN, 0);
	desc_set(d, 2, BUFFERS_AT, 1500, VRING_DESC_F_WRITE, 0);
	desc_set(d, 3, BUFFERS_AT + 4096, 4096, VRING_DESC_F_WRITE, 0);
	driver_offer(d, 2);
	driver_offer(d, 3);
	large.head_length = 2000;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(ring_put(&d->ring, &large, &marked), -EMSGSIZE);
	assert_int_equal(ring_put(&d->ring, &fits, &marked), 0);
	assert_int_equal(ring_put(&d->ring, &large, &marked), 0);
	assert_int_equal(ring_put(&d->ring, &large, &marked), -ENOBUFS);
	ring_put_done(&d->ring);
	driver_expect_used(d, 2, 1412);
	driver_expect_used(d, 3, 2012);
	assert_int_equal(c->buffers_too_small, 3);
	assert_int_equal(c->no_buffers, 1);

	/* What was found too large is tried again when the indices have gone once around. */
	driver_start(d, 1, F_MODERN, 7);
	desc_set(d, 0, BUFFERS_AT, 1500, VRING_DESC_F_WRITE, 0);
	driver_offer(d, 0);
	assert_int_equal(ring_put(&d->ring, &large, &marked), -EMSGSIZE);
	for (unsigned i = 0; i < 65536; i++) {
		assert_int_equal(ring_put(&d->ring, &fits, &marked), 0);
		ring_put_done(&d->ring);
		driver_expect_used(d, 0, 1412);
		if (i == 65535) /* in two pieces, so that it takes the long way */
			desc_set(d, 0, BORDER - 100, 4096, VRING_DESC_F_WRITE, 0);
		driver_offer(d, 0);
	}
	assert_int_equal(ring_put(&d->ring, &large, &marked), 0);

	/*
	 * With them: larger than all buffers that the ring can hold; or a first buffer that does not hold the header.
	 */
	driver_start(d, 2, F_MODERN | F_MERGEABLE, 0);
	desc_set(d, 0, BUFFERS_AT, 1000, VRING_DESC_F_WRITE, 0);
	desc_set(d, 1, BUFFERS_AT + 4096, 1000, VRING_DESC_F_WRITE, 0);
	driver_offer(d, 0);
	driver_offer(d, 1);
	memset(c, 0, sizeof(*c));
	assert_int_equal(ring_put(&d->ring, &large, &marked), -EMSGSIZE);
	assert_int_equal(c->buffers_too_small, 1);
	large.offload.gso = FRAME_GSO_TCP4; /* comes again as its segments, and is not counted */
	assert_int_equal(ring_put(&d->ring, &large, &marked), -EMSGSIZE);
	assert_int_equal(c->buffers_too_small, 1);
	assert_int_equal(ring_put(&d->ring, &fits, &marked), 0);
	ring_put_done(&d->ring);
	driver_expect_used(d, 0, 1000);
	driver_expect_used(d, 1, 412);
	driver_start(d, 2, F_MODERN | F_MERGEABLE, 0);
	desc_set(d, 0, BUFFERS_AT, 11, VRING_DESC_F_WRITE, 0);
	driver_offer(d, 0);
	driver_offer(d, 1);
	assert_int_equal(ring_put(&d->ring, &fits, &marked), -EMSGSIZE);
	assert_int_equal(fault_of(d), RING_FAULT_NONE);
}

static void test_put_indirect(void **state)
{
	struct driver *d = *state;
	uint8_t data[1514];
	struct frame frame = private_frame(data, 1514, 8);
	struct vring_desc table[] = {
		{.addr = BUFFERS_AT, .len = 12, .flags = VRING_DESC_F_WRITE | VRING_DESC_F_NEXT, .next = 1},
		{.addr = BUFFERS_AT + 12, .len = 700, .flags = VRING_DESC_F_WRITE | VRING_DESC_F_NEXT, .next = 2},
		{.addr = BUFFERS_AT + 712, .len = 4000, .flags = VRING_DESC_F_WRITE},
	};

	frame.head_length = 1514;
	driver_start(d, 1, F_MODERN | F_INDIRECT, 0);
	driver_write(d, FAR_AT, table, sizeof(table));
	desc_set(d, 0, FAR_AT, sizeof(table), VRING_DESC_F_INDIRECT, 0);
	driver_offer(d, 0);
	assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
	ring_put_done(&d->ring);
	driver_expect_used(d, 0, 1526);
	expect_delivered(d, BUFFERS_AT, 1514, 8, 1);
}

/*
 * A frame is in the guest's memory when it is published, not in the other guest's: buffers may be used again at once.
 */
static void test_guest_to_guest(void **state)
{
	struct driver *a = *state, *b = driver_create();
	static const uint32_t lengths[] = {60, 1514, 9000, 65535};

	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++) {
		driver_start(a, 4, F_MODERN, 65535);
		driver_start(b, 64, F_MODERN | F_MERGEABLE, 1);
		write_frame(a, BORDER - 1000, lengths[i], (uint8_t)i);
		desc_set(a, 0, BORDER - 1000, 12 + lengths[i], 0, 0);
		driver_offer(a, 0);
		for (uint16_t k = 0; k < 64; k++) {
			desc_set(b, k, BUFFERS_AT + k * 2048, 2048, VRING_DESC_F_WRITE, 0);
			driver_offer(b, k);
		}
		assert_int_equal(ring_take(&a->ring, burst, 64), 1);
		assert_int_equal(ring_put(&b->ring, &burst->frames[0], &burst->frames[0].vnet), 0);
		ring_put_done(&b->ring);
		ring_take_done(&a->ring);
		driver_expect_used(a, 0, 0);
		expect_delivered(b, BUFFERS_AT, lengths[i], (uint8_t)i, (uint16_t)((12 + lengths[i] + 2047) / 2048));
	}
	driver_destroy(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_put_sizes),
		cmocka_unit_test(test_put_legacy),
		cmocka_unit_test(test_put_wrap),
		cmocka_unit_test(test_put_mergeable_tiny),
		cmocka_unit_test(test_put_too_large),
		cmocka_unit_test(test_put_indirect),
		cmocka_unit_test(test_guest_to_guest),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
