/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/forwarding.h"

static struct forwarding_entry entry(uint32_t number, uint16_t vlan, bool trunk, int32_t port)
{
	struct forwarding_entry e = {.mac = {0x52, 0x54}, .vlan = vlan, .trunk = trunk, .port = port};

	memcpy(e.mac + 2, &number, 4);
	return e;
}

static uint64_t key(uint32_t number, uint16_t vlan)
{
	const struct forwarding_entry e = entry(number, vlan, false, 0);

	return forwarding_key(e.mac, vlan);
}

static void exact_vlan_and_trunk(void **state)
{
	const struct forwarding_entry entries[] = {entry(1, 0, true, 10), entry(2, 100, false, 20), entry(3, 0, false, 30), entry(1, 7, false, 40),
						   entry(1, 0, true, 99)};
	struct forwarding *table = forwarding_create(entries, 5);

	assert_int_equal(forwarding_lookup(table, key(1, 0)), 10); /* of two entries the first */
	assert_int_equal(forwarding_lookup(table, key(1, 7)), 40); /* an entry of the VLAN goes before the trunk */
	assert_int_equal(forwarding_lookup(table, key(1, 8)), 10); /* a trunk takes any VLAN */
	assert_int_equal(forwarding_lookup(table, key(2, 100)), 20);
	assert_int_equal(forwarding_lookup(table, key(2, 0)), FORWARDING_NONE);
	assert_int_equal(forwarding_lookup(table, key(2, 101)), FORWARDING_NONE);
	assert_int_equal(forwarding_lookup(table, key(3, 5)), FORWARDING_NONE); /* no trunk */
	assert_int_equal(forwarding_lookup(table, key(4, 0)), FORWARDING_NONE);
	forwarding_free(table);
}

static void empty_and_zero(void **state)
{
	struct forwarding *table = forwarding_create(NULL, 0);
	const struct forwarding_entry zero = {.port = 5};

	assert_int_equal(forwarding_lookup(table, key(1, 0)), FORWARDING_NONE);
	assert_int_equal(forwarding_lookup(table, 0), FORWARDING_NONE);
	assert_int_equal(forwarding_lookup(table, (uint64_t)9 << 48), FORWARDING_NONE);
	forwarding_free(table);
	table = forwarding_create(&zero, 1);
	assert_int_equal(forwarding_lookup(table, 0), FORWARDING_NONE);
	assert_int_equal(forwarding_lookup(table, (uint64_t)9 << 48), FORWARDING_NONE);
	forwarding_free(table);
}

static void many(void **state)
{
	const uint32_t count = 4096;
	struct forwarding_entry *entries = calloc(count, sizeof(*entries));
	struct forwarding *table;

	for (uint32_t i = 0; i < count; i++)
		entries[i] = entry(i + 1, (uint16_t)(i % 3), i % 3 == 0, (int32_t)i);
	table = forwarding_create(entries, count);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(forwarding_lookup(table, key(i + 1, (uint16_t)(i % 3))), (int32_t)i);
	assert_int_equal(forwarding_lookup(table, key(count + 1, 0)), FORWARDING_NONE);
	forwarding_free(table);
	free(entries);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exact_vlan_and_trunk),
		cmocka_unit_test(empty_and_zero),
		cmocka_unit_test(many),
	};

	return cmocka_run_group_tests_name("forwarding", tests, NULL, NULL);
}
