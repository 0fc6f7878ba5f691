/* SPDX-License-Identifier: BSD-2-Clause */
/* Checksums of what is coalesced: wrong, verified by the copy or by the device, in an unusual form, left open. */
#include "coalesce_rig.h"

/* Any bit of the second frame wrong: it is left alone, and so is what cannot follow it. */
static void bad_bits(void **state)
{
	for (unsigned i = 0; i < 8; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;
		uint32_t length = 0;

		p.family = i & 2 ? 6 : 4;
		p.tags = i / 4;
		p.payload = 3 * 300;
		for (uint32_t bit = 8 * 12; !length || bit < 8 * length; bit++) {
			for (uint32_t k = 0; k < 3; k++) {
				const struct packet part = packet_part(&p, 300, k);

				length = packet_make(&part, made, false);
				if (k == 1)
					made[bit / 8] ^= (uint8_t)(1 << bit % 8);
				/* Of which flow it is now is a question of which bit. */
				arrive_bytes(length, k == 1 ? 1u << 16 : p.source_port);
			}
			assert_true(coalesce_and_check(ALL) > 1);
			forget();
		}
	}
}

/* The copy tells which large frame holds a wrong part, at any place of it. */
static void verified_by_the_copy(void **state)
{
	for (uint32_t wrong = 0; wrong <= 10; wrong++) {
		struct packet p = packet_tcp4;
		struct frame *const *parts;

		p.payload = 10 * 999; /* odd */
		for (uint32_t i = 0; i < 10; i++) {
			const struct packet part = packet_part(&p, 999, i);
			const uint32_t length = packet_make(&part, made, false);

			if (i == wrong)
				made[packet_places(&part).payload + dice(&seed, 999)] ^= 4;
			arrive_bytes(length, 1);
		}
		assert_int_equal(coalesce_frames(arrival.list, 10, ALL | COALESCE_VERIFY_LATER, scratch), 1);
		assert_int_equal(copy_and_verify(scratch->list[0]), wrong == 10);
		assert_int_equal(coalesce_parts(scratch, scratch->list[0], &parts), 10);
		for (uint32_t i = 0; i < 10; i++)
			assert_ptr_equal(parts[i], arrival.list[i]);
		assert_true(coalesce_and_check(ALL) > 1 || wrong == 10);
		forget();
	}
}

/* What the device has verified is not summed again. */
static void verified_by_the_device(void **state)
{
	struct packet p = packet_tcp4;

	p.payload = 5000;
	arrive_stream(&p, 1000);
	for (uint32_t i = 0; i < 5; i++)
		arrival.list[i]->offload.verified = true;
	assert_int_equal(coalesce_frames(arrival.list, 5, ALL | COALESCE_VERIFY_LATER, scratch), 1);
	for (uint32_t i = 0; i < scratch->list[0]->segment_count; i++)
		assert_false(scratch->list[0]->offload.sums[i] & FRAME_SUM_CHECK);
	assert_true(copy_and_verify(scratch->list[0]));
	/* Some are verified, some not, and each one's bytes count for itself. */
	for (unsigned mask = 0; mask < 1u << 5; mask++) {
		for (uint32_t i = 0; i < 5; i++)
			arrival.list[i]->offload.verified = mask >> i & 1;
		assert_int_equal(coalesce_frames(arrival.list, 5, ALL | COALESCE_VERIFY_LATER, scratch), 1);
		assert_true(copy_and_verify(scratch->list[0]));
	}
	forget();
}

static void sums_in_unusual_form(void **state)
{
	struct packet p = packet_tcp4;

	p.payload = 2000;
	for (unsigned i = 0; i < 2; i++) {
		const struct packet part = packet_part(&p, 1000, i);
		const uint32_t length = packet_make(&part, made, false);

		if (i) { /* a payload with which the sum is 0, sent as 0xffff: right, but not what would be made again */
			put16(made + 34 + 16, 0);
			put16(made + packet_places(&part).payload, 0);
			put16(made + packet_places(&part).payload,
			      ~naive_add(naive_pseudo(made, &part, &(struct packet_places){14, 34, 66, length}), made + 34, length - 34));
			put16(made + 34 + 16, 0xffff);
		}
		arrive_bytes(length, 1);
	}
	assert_int_equal(coalesce_and_check(ALL), 2);
	forget();
	p = packet_udp4; /* no checksum at all */
	p.payload = 2000;
	for (unsigned i = 0; i < 2; i++) {
		const struct packet part = packet_part(&p, 1000, i);
		const uint32_t length = packet_make(&part, made, false);

		put16(made + 34 + 6, 0);
		arrive_bytes(length, 1);
	}
	assert_int_equal(coalesce_and_check(ALL), 2);
	forget();
}

static void padding_and_open_sums(void **state)
{
	struct packet p = packet_tcp4;
	uint32_t length;

	p.payload = 2;
	for (unsigned i = 0; i < 2; i++) {
		const struct packet part = packet_part(&p, 1, i);

		length = packet_make(&part, made, false);
		memset(made + length, 0, 3);
		arrive_bytes(length + 3, 1);
	}
	assert_int_equal(coalesce_and_check(ALL), 2);
	forget();
	p.payload = 2000;
	arrive_stream(&p, 1000);
	arrival.list[1]->offload.needs_checksum = true;
	assert_int_equal(coalesce_frames(arrival.list, 2, ALL, scratch), 2);
	arrival.list[1]->offload.needs_checksum = false;
	forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(bad_bits, forget_all),
		cmocka_unit_test_teardown(verified_by_the_copy, forget_all),
		cmocka_unit_test_teardown(verified_by_the_device, forget_all),
		cmocka_unit_test_teardown(sums_in_unusual_form, forget_all),
		cmocka_unit_test_teardown(padding_and_open_sums, forget_all),
	};

	return cmocka_run_group_tests_name("coalesce: sums", tests, allocate, release);
}
