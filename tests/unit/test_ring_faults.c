/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every fault of the split ring, in both directions: what was lawful is served and published, then the ring stands
 * still.
 */
#include "ring_burst.h"

/* The ring faulted for this reason: it does nothing more, whatever is asked, until it starts again. */
static void expect_fault(struct driver *d, enum ring_fault fault)
{
	uint8_t data[64];
	struct frame frame = private_frame(data, sizeof(data), 0);

	if (fault_of(d) != (int)fault)
		fail_msg("fault is '%s', not '%s'", ring_fault_names[fault_of(d)], ring_fault_names[fault]);
	assert_int_equal(ring_take(&d->ring, burst, FRAME_BURST), 0);
	assert_int_equal(ring_put(&d->ring, &frame, &marked), -EIO);
	assert_int_equal(ring_pending(&d->ring), 0);
	assert_false(ring_arm(&d->ring));
	ring_disarm(&d->ring);
	ring_call(&d->ring);
}

struct wrong {
	const char *name;
	enum ring_fault fault;
	uint16_t head;
	struct vring_desc desc[3];  /* 0 .. 2 of the ring; the direction's flag is added */
	struct vring_desc table[2]; /* at FAR_AT; the first one also at the end of memory */
};

#define WRONG_WAY 0x8000 /* flag of the table below: has the wrong direction */
#define NEXT VRING_DESC_F_NEXT
#define INDIRECT VRING_DESC_F_INDIRECT
#define B BUFFERS_AT

static const struct wrong wrongs[] = {
	{"head = size", RING_FAULT_HEAD_RANGE, 4, {{0}}, {{0}}},
	{"head = 65535", RING_FAULT_HEAD_RANGE, 65535, {{0}}, {{0}}},
	{"next = itself, length 0", RING_FAULT_CHAIN_LOOP, 0, {{B, 0, NEXT, 0}}, {{0}}},
	{"next = itself", RING_FAULT_CHAIN_LOOP, 0, {{B, 1, NEXT, 0}}, {{0}}},
	{"cycle of two", RING_FAULT_CHAIN_LOOP, 0, {{B, 1, NEXT, 1}, {B, 0, NEXT, 0}}, {{0}}},
	{"next = size", RING_FAULT_NEXT_RANGE, 0, {{B, 1, NEXT, 4}}, {{0}}},
	{"next = 65535", RING_FAULT_NEXT_RANGE, 0, {{B, 1, NEXT, 65535}}, {{0}}},
	{"address below", RING_FAULT_ADDRESS, 0, {{RINGS_AT - 1, 100, 0, 0}}, {{0}}},
	{"address above", RING_FAULT_ADDRESS, 0, {{BUFFERS_END, 100, 0, 0}}, {{0}}},
	{"runs out of memory", RING_FAULT_ADDRESS, 0, {{BUFFERS_END - 50, 51, 0, 0}}, {{0}}},
	{"2^32 - 1 bytes", RING_FAULT_ADDRESS, 0, {{BUFFERS_END - 20, UINT32_MAX, 0, 0}}, {{0}}},
	{"wraps", RING_FAULT_ADDRESS, 0, {{UINT64_MAX - 10, 100, 0, 0}}, {{0}}},
	{"second address", RING_FAULT_ADDRESS, 0, {{B, 12, NEXT, 1}, {0, 60, 0, 0}}, {{0}}},
	{"wrong way", RING_FAULT_DIRECTION, 0, {{B, 100, WRONG_WAY, 0}}, {{0}}},
	{"wrong way, second", RING_FAULT_DIRECTION, 0, {{B, 12, NEXT, 1}, {B, 100, WRONG_WAY, 0}}, {{0}}},
	{"table and next", RING_FAULT_INDIRECT, 0, {{FAR_AT, 32, INDIRECT | NEXT, 1}}, {{B, 100, 0, 0}}},
	{"empty table", RING_FAULT_INDIRECT, 0, {{FAR_AT, 0, INDIRECT, 0}}, {{B, 100, 0, 0}}},
	{"table of 24 bytes", RING_FAULT_INDIRECT, 0, {{FAR_AT, 24, INDIRECT, 0}}, {{B, 100, 0, 0}}},
	{"table of 1025", RING_FAULT_INDIRECT, 0, {{FAR_AT, 16 * 1025, INDIRECT, 0}}, {{B, 100, 0, 0}}},
	{"table of 2^32 - 16 bytes",
	 RING_FAULT_INDIRECT,
	 0,
	 {{FAR_AT, UINT32_MAX - 15, INDIRECT, 0}},
	 {{B, 100, 0, 0}}},
	{"table in table", RING_FAULT_INDIRECT, 0, {{FAR_AT, 32, INDIRECT, 0}}, {{FAR_AT, 32, INDIRECT, 0}}},
	{"table in table, second",
	 RING_FAULT_INDIRECT,
	 0,
	 {{FAR_AT, 32, INDIRECT, 0}},
	 {{B, 12, NEXT, 1}, {FAR_AT, 32, INDIRECT, 0}}},
	{"table outside", RING_FAULT_ADDRESS, 0, {{FAR_AT + FAR_SIZE, 32, INDIRECT, 0}}, {{0}}},
	{"table runs out", RING_FAULT_ADDRESS, 0, {{BUFFERS_END - 16, 32, INDIRECT, 0}}, {{B, 12, NEXT, 1}}},
	{"table wraps", RING_FAULT_ADDRESS, 0, {{UINT64_MAX - 15, 32, INDIRECT, 0}}, {{0}}},
	{"loop in table", RING_FAULT_CHAIN_LOOP, 0, {{FAR_AT, 32, INDIRECT, 0}}, {{B, 0, NEXT, 1}, {B, 0, NEXT, 0}}},
	{"next beyond table", RING_FAULT_NEXT_RANGE, 0, {{FAR_AT, 32, INDIRECT, 0}}, {{B, 12, NEXT, 2}, {B, 60, 0, 0}}},
	{"wrong way in table", RING_FAULT_DIRECTION, 0, {{FAR_AT, 16, INDIRECT, 0}}, {{B, 100, WRONG_WAY, 0}}},
	{"address in table", RING_FAULT_ADDRESS, 0, {{FAR_AT, 16, INDIRECT, 0}}, {{BUFFERS_END, 100, 0, 0}}},
};

static struct vring_desc directed(struct vring_desc desc, bool to_guest)
{
	bool wrong = desc.flags & WRONG_WAY;

	desc.flags = (uint16_t)((desc.flags & ~WRONG_WAY) | (to_guest != wrong ? VRING_DESC_F_WRITE : 0));
	return desc;
}

/* A good chain, a wrong one, a good one: the first is served and published, the others never. */
static void run_wrong(struct driver *d, const struct wrong *w, bool to_guest, uint64_t features, enum ring_fault fault)
{
	uint8_t data[1000];
	struct frame frame = private_frame(data, 1000, 0);

	frame.head_length = 1000;
	driver_start(d, 4, features, 65535);
	for (uint16_t i = 0; i < 3; i++)
		d->desc[i] = directed(w->desc[i], to_guest);
	for (unsigned i = 0; i < 2; i++) {
		struct vring_desc entry = directed(w->table[i], to_guest);

		driver_write(d, FAR_AT + 16 * i, &entry, sizeof(entry));
		if (i == 0)
			driver_write(d, BUFFERS_END - 16, &entry, sizeof(entry));
	}
	d->desc[3] = directed((struct vring_desc){B, 1012, 0, 0}, to_guest);
	driver_offer(d, 3);
	driver_offer(d, w->head);
	driver_offer(d, 3);
	if (to_guest) {
		int rc = ring_put(&d->ring, &frame, &marked);

		assert_int_equal(rc, 0);
		if (ring_put(&d->ring, &frame, &marked) != -EIO)
			fail_msg("%s, to the guest: no fault", w->name);
		ring_put_done(&d->ring);
	} else {
		assert_int_equal(ring_take(&d->ring, burst, 64), 1);
		ring_take_done(&d->ring);
	}
	if (fault_of(d) != (int)fault)
		fail_msg("%s, %s the guest: fault is '%s', not '%s'", w->name, to_guest ? "to" : "from",
			 ring_fault_names[fault_of(d)], ring_fault_names[fault]);
	expect_fault(d, fault);
	driver_expect_used(d, 3, to_guest ? 1012 : 0);
	driver_expect_none_used(d);
	assert_int_equal(ring_stop(&d->ring), 0); /* the wrong chain's index */
}

static void test_wrong_chains(void **state)
{
	struct driver *d = *state;

	for (unsigned i = 0; i < ARRAY_SIZE(wrongs); i++) {
		for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
			uint64_t features = F_MODERN | F_INDIRECT | (i & 1 ? F_MERGEABLE : 0);

			run_wrong(d, &wrongs[i], to_guest, features, wrongs[i].fault);
			/* Tables at all, where they were not negotiated. */
			if (wrongs[i].desc[0].flags & INDIRECT)
				run_wrong(d, &wrongs[i], to_guest, features & ~F_INDIRECT, RING_FAULT_INDIRECT);
		}
	}
	/* A new start forgives. */
	driver_start(d, 4, F_MODERN, 0);
	desc_set(d, 0, B, 100, 0, 0);
	driver_offer(d, 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
}

static void test_avail_jump(void **state)
{
	struct driver *d = *state;
	uint8_t data[64];
	struct frame frame = private_frame(data, 64, 0);
	static const uint16_t jumps[] = {5, 6, 1000, 32768, 65535};

	for (unsigned i = 0; i < ARRAY_SIZE(jumps); i++) {
		for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
			driver_start(d, 4, F_MODERN, 65534);
			desc_set(d, 0, B, 100, to_guest ? VRING_DESC_F_WRITE : 0, 0);
			driver_offer(d, 0);
			/* The lawful one is served first. */
			if (to_guest) {
				assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
				ring_put_done(&d->ring);
			} else {
				assert_int_equal(ring_take(&d->ring, burst, 64), 1);
				ring_take_done(&d->ring);
			}
			d->avail_next += jumps[i];
			driver_publish(d);
			assert_int_not_equal(ring_pending(&d->ring), 0);
			if (to_guest)
				assert_int_equal(ring_put(&d->ring, &frame, &marked), -EIO);
			else
				assert_int_equal(ring_take(&d->ring, burst, 64), 0);
			expect_fault(d, RING_FAULT_AVAIL_JUMP);
			driver_expect_used(d, 0, to_guest ? 76 : 0);
			driver_expect_none_used(d);
			assert_int_equal(ring_stop(&d->ring), 65535);
		}
	}
	/* Nor may it go back, were it only behind what was seen and not served. */
	for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
		driver_start(d, 4, F_MODERN | F_MERGEABLE, 65534);
		for (uint16_t i = 0; i < 3; i++) {
			desc_set(d, i, B, 40, to_guest ? VRING_DESC_F_WRITE : 0, 0);
			driver_offer(d, i);
		}
		if (to_guest) {
			/* A frame takes two buffers, so the next one finds one, and looks for another. */
			assert_int_equal(ring_put(&d->ring, &frame, &marked), 0);
			ring_put_done(&d->ring);
			assert_int_equal(d->ring.last_avail, 0);
		} else {
			assert_int_equal(ring_take(&d->ring, burst, 2), 2);
			ring_take_done(&d->ring);
		}
		d->avail_next--;
		driver_publish(d);
		if (to_guest)
			assert_int_equal(ring_put(&d->ring, &frame, &marked), -EIO);
		else
			assert_int_equal(ring_take(&d->ring, burst, 64), 0);
		expect_fault(d, RING_FAULT_AVAIL_JUMP);
		assert_int_equal(ring_stop(&d->ring), 0);
	}
	/* Full is lawful. */
	driver_start(d, 4, F_MODERN, 65534);
	for (uint16_t i = 0; i < 4; i++) {
		desc_set(d, i, B, 100, 0, 0);
		driver_offer(d, i);
	}
	assert_int_equal(ring_take(&d->ring, burst, 64), 4);
}

/* Descriptors of length 0, lawful to the letter, in a chain from @first on. */
static void empty_chain(struct driver *d, uint32_t first, uint32_t count, uint16_t flags)
{
	for (uint32_t i = 0; i < count; i++)
		desc_set(d, (uint16_t)(first + i), B, 0, (uint16_t)(flags | (i + 1 < count ? VRING_DESC_F_NEXT : 0)),
			 (uint16_t)(first + i + 1));
}

/* What one call walks is bounded on the largest ring: a chain, the chains of a burst, the chains of a frame. */
static void test_endless(void **state)
{
	struct driver *d = *state;
	uint8_t data[64];
	struct frame frame = private_frame(data, 64, 0);

	for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
		uint16_t flags = to_guest ? VRING_DESC_F_WRITE : 0;

		/* One more than a chain may have, in a ring that has room for it. */
		driver_start(d, 32768, F_MODERN | F_MERGEABLE, 0);
		empty_chain(d, 0, RING_CHAIN_MAX + 1, flags);
		driver_offer(d, 0);
		if (to_guest)
			assert_int_equal(ring_put(&d->ring, &frame, &marked), -EIO);
		else
			assert_int_equal(ring_take(&d->ring, burst, 64), 0);
		expect_fault(d, RING_FAULT_CHAIN_LOOP);
	}

	/* As long as it may be, offered as often as it goes by one store of the index. */
	driver_start(d, 32768, F_MODERN | F_MERGEABLE, 0);
	empty_chain(d, 0, RING_CHAIN_MAX, 0);
	memset(d->avail->ring, 0, 65536);
	d->avail_next += 32767;
	driver_publish(d);
	for (unsigned taken = 2; taken <= 20; taken += 2) {
		assert_int_equal(ring_take(&d->ring, burst, 64), 0);
		ring_take_done(&d->ring);
		assert_int_equal(fault_of(d), RING_FAULT_NONE);
		assert_int_equal(d->ring.last_avail, taken);
	}

	/* A chain that takes the header, chains that take nothing, and far behind one that would take the frame. */
	driver_start(d, 32768, F_MODERN | F_MERGEABLE, 0);
	desc_set(d, 32767, B, 12, VRING_DESC_F_WRITE, 0);
	desc_set(d, 32766, B, 2000, VRING_DESC_F_WRITE, 0);
	empty_chain(d, 0, RING_CHAIN_MAX, VRING_DESC_F_WRITE);
	driver_offer(d, 32767);
	for (unsigned i = 0; i < 8; i++)
		driver_offer(d, 0);
	driver_offer(d, 32766);
	assert_int_equal(ring_put(&d->ring, &frame, &marked), -EIO);
	expect_fault(d, RING_FAULT_CHAIN_LOOP);
}

static void test_memory_shrinks(void **state)
{
	struct driver *d = driver_create();
	uint8_t data[64];
	struct frame frame = private_frame(data, 64, 0);

	assert_int_equal(guest_memory_guard_install(-1), 0);
	driver_start(d, 4, F_MODERN, 0);
	desc_set(d, 0, FAR_AT + 0x8000, 2000, 0, 0);
	driver_offer(d, 0);
	assert_int_equal(ftruncate(d->fds[2], 0x4000), 0);
	assert_int_equal(ring_take(&d->ring, burst, 64), 1);
	assert_int_equal(burst->frames[0].head[0], 0);
	assert_true(guest_memory_faulted(d->shared));
	/* The ring itself goes. */
	assert_int_equal(ftruncate(d->fds[0], 0), 0);
	ring_take_done(&d->ring);
	ring_call(&d->ring);
	ring_arm(&d->ring);
	ring_take(&d->ring, burst, 64);
	ring_put(&d->ring, &frame, &marked);
	ring_stop(&d->ring);
	driver_destroy(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wrong_chains),
		cmocka_unit_test(test_avail_jump),
		cmocka_unit_test(test_endless),
		cmocka_unit_test(test_memory_shrinks),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
