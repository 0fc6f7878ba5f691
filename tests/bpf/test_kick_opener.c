// SPDX-License-Identifier: BSD-2-Clause
/* The probe opened by a thread comes to the same as opened by hand, whatever this kernel allows; given up half-way, nothing is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "control/kick_opener.h"
#include "control/kick_probe.h"
#include "../lib/entries.h"

#define PATIENCE_MS 60000 /* only stops a hang */

/* The kernel lists a thread for a moment after it was joined. */
static void expect_one_thread(void)
{
	for (unsigned ms = 0; entries_of("/proc/self/task") != 3 && ms < PATIENCE_MS; ms++)
		usleep(1000);
	assert_int_equal(entries_of("/proc/self/task"), 3); /* . and .. */
}

static struct kick_probe *wait_for_probe(struct kick_opener *opener, struct error *why)
{
	struct kick_probe *probe = NULL;
	unsigned ms = 0;

	while (!kick_opener_take(opener, &probe, why)) {
		assert_true(ms++ < PATIENCE_MS);
		usleep(1000);
	}
	return probe;
}

static void test_same_as_by_hand(void **state)
{
	struct error by_hand = { 0 }, by_thread = { 0 }, none = { 0 };
	struct kick_probe *expected = kick_probe_open(&by_hand), *probe;
	struct kick_opener *opener = kick_opener_start(&none);

	assert_non_null(opener);
	probe = wait_for_probe(opener, &by_thread);
	assert_string_equal(kick_probe_way(probe), kick_probe_way(expected));
	assert_int_equal(by_thread.code, by_hand.code);
	assert_string_equal(by_thread.text, by_hand.text);
	/* Who took it closes it. */
	kick_opener_close(opener);
	kick_probe_close(probe);
	kick_probe_close(expected);
	expect_one_thread();
}

static void test_given_up(void **state)
{
	const unsigned before = open_descriptors();

	for (unsigned ms = 0; ms < 8; ms += 2) {
		struct kick_opener *opener = kick_opener_start(NULL);

		assert_non_null(opener);
		usleep(ms * 1000);
		kick_opener_close(opener);
		assert_int_equal(open_descriptors(), before);
	}
	kick_opener_close(NULL);
	expect_one_thread();
}

/* Its reason comes along. */
static void test_out_of_descriptors(void **state)
{
	struct rlimit before, none;
	struct error why = { 0 };
	struct kick_opener *opener;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = (struct rlimit){ .rlim_cur = 3, .rlim_max = before.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	opener = kick_opener_start(&why);
	assert_non_null(opener);
	assert_null(wait_for_probe(opener, &why));
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	kick_opener_close(opener);
	assert_int_equal(why.code, -EMFILE);
	assert_non_null(strstr(why.text, "LimitNOFILE="));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_as_by_hand),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_out_of_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
