// SPDX-License-Identifier: BSD-2-Clause
/* CPU lists: the kernel's text form both ways, malformed text, walking, and what the system says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/cpulist.h"
#include "common/util.h"

static void parse_and_format(void **state)
{
	static const struct {
		const char *in, *out;
		unsigned count;
	} cases[] = {
		{ "", "", 0 },
		{ "0", "0", 1 },
		{ "0-3,8", "0-3,8", 5 },
		{ "3,1,2,2", "1-3", 3 },
		{ "63-64", "63-64", 2 },
		{ "1023", "1023", 1 },
		{ "0-1023", "0-1023", 1024 },
		{ "5-5", "5", 1 },
	};
	struct cpulist l;
	char text[64];

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_true(cpulist_parse(cases[i].in, &l, NULL));
		assert_int_equal(cpulist_count(&l), cases[i].count);
		assert_string_equal(cpulist_format(&l, text, sizeof(text)), cases[i].out);
	}
}

static void malformed(void **state)
{
	static const struct {
		const char *text;
		unsigned bad; /* offset of the first character that does not fit */
	} cases[] = {
		{ "a", 0 },    { "1,", 2 },   { ",1", 0 },    { "1-", 2 },   { "-1", 0 },	 { "1--2", 2 },		{ "3-1", 2 },
		{ "1 ,2", 1 }, { "1024", 0 }, { "0-1024", 2 }, { "1,,2", 2 }, { "1\n", 1 },	 { "99999999999999999999", 0 }, { "0x1", 1 },
	};
	struct cpulist l;
	const char *bad;

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		bad = NULL;
		assert_false(cpulist_parse(cases[i].text, &l, &bad));
		assert_ptr_equal(bad, cases[i].text + cases[i].bad);
	}
}

static void format_that_does_not_fit(void **state)
{
	struct cpulist l;
	char text[64];

	assert_true(cpulist_parse("0,2,4,6,8,10,12,14", &l, NULL));
	for (size_t size = 1; size <= sizeof("0,2,4,6,8,10,12,14"); size++) {
		memset(text, 'x', sizeof(text));
		cpulist_format(&l, text, size);
		assert_true(strlen(text) < size);
		assert_int_equal(text[size], 'x');
		if (size >= 4 && size < sizeof("0,2,4,6,8,10,12,14"))
			assert_string_equal(text + strlen(text) - 3, "...");
	}
	assert_string_equal(cpulist_format(&l, text, sizeof("0,2,4,6,8,10,12,14")), "0,2,4,6,8,10,12,14");
}

static void walk(void **state)
{
	static const int want[] = { 0, 63, 64, 1023 };
	struct cpulist l = { 0 };
	unsigned n = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(want); i++)
		cpulist_add(&l, (unsigned)want[i]);
	cpulist_add(&l, CPUS_MAX); /* out of range: ignored, not memory beyond */
	for (int c = cpulist_next(&l, 0); c >= 0; c = cpulist_next(&l, (unsigned)c + 1))
		assert_int_equal(c, want[n++]);
	assert_int_equal(n, ARRAY_SIZE(want));
	cpulist_remove(&l, 63);
	assert_false(cpulist_has(&l, 63));
	assert_false(cpulist_has(&l, 5000));
	assert_int_equal(cpulist_next(&l, 1), 64);
}

static void system_lists(void **state)
{
	struct cpulist allowed, online;
	cpu_set_t before, one;
	int first;

	assert_int_equal(cpulist_online(&online), 0);
	assert_int_equal(cpulist_allowed(&allowed), 0);
	first = cpulist_next(&allowed, 0);
	assert_true(first >= 0);
	assert_true(cpulist_has(&online, (unsigned)first));

	/* The mask of the process counts, as taskset leaves it. */
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(cpulist_allowed(&allowed), 0);
	assert_int_equal(cpulist_count(&allowed), 1);
	assert_true(cpulist_has(&allowed, (unsigned)first));
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parse_and_format), cmocka_unit_test(malformed),    cmocka_unit_test(format_that_does_not_fit),
		cmocka_unit_test(walk),		    cmocka_unit_test(system_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
