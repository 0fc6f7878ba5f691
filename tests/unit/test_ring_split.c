/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The split ring, case by case: setup, and frames in every shape. Faults: test_ring_faults.c; notification:
 * test_ring_notify.c.
 */
#include "ring_burst.h"

/* Writes header and frame at address as one stream; @length without the header. */
static void write_frame(struct driver *d, uint64_t address, uint32_t length, uint8_t seed)
{
	uint8_t *data = malloc(length + 1);

	assert_non_null(data);
	pattern(data, length, seed);
	driver_write(d, address, &marked, sizeof(marked));
	driver_write(d, address + sizeof(marked), data, length);
	free(data);
}

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

/* --- to_guest ----------------------------------------------------------------------------------------------------- */

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
	assert_int_equal(ring_put(&d->ring, &large, &marked), -EMSGSIZE);
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
