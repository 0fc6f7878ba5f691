// SPDX-License-Identifier: BSD-2-Clause
/* softnet against texts as kernels print them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "control/softnet.h"

#define ZEROES "00000000 00000000 0000000f 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 "

static void assert_left(const char *text, const char *asked, const char *left)
{
	char path[] = "/tmp/vhostlane-softnet.XXXXXX", got[128];
	const int fd = mkstemp(path);
	struct cpulist cpus;

	assert_true(fd >= 0);
	assert_true(dprintf(fd, "%s", text) >= 0);
	close(fd);
	assert_true(cpulist_parse(asked, &cpus, NULL));
	softnet_remove_idle_from(path, &cpus);
	unlink(path);
	assert_string_equal(cpulist_format(&cpus, got, sizeof(got)), left);
}

static void waiting_cpus_are_left(void **state)
{
	const char *text = ZEROES "00000000 00000000 00000000 00000000\n" ZEROES "00000001 00000001 00000001 00000000\n"
			   ZEROES "000003e8 0000000a 00000000 000003e8\n" ZEROES "00000005 0000000b 00000000 00000005\n";

	assert_left(text, "0-3,10", "1,10"); /* CPU 11 waits too, but is not asked for */
	assert_left(text, "0,2", "");	     /* CPU 2 is offline: nothing waits there */
	assert_left(text, "", "");
}

static void without_those_columns_nothing_waits(void **state)
{
	assert_left(ZEROES "\n", "0-3", "");
	assert_left(ZEROES "00000007\n", "0-3", "");
	assert_left("", "0-3", "");
	assert_left("nonsense\n" ZEROES "00000001 ffffffff\n", "0-1023", "");
}

static void no_such_file(void **state)
{
	struct cpulist cpus = { { 1 } };

	softnet_remove_idle_from("/nonexistent/softnet_stat", &cpus);
	assert_int_equal(cpulist_count(&cpus), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waiting_cpus_are_left),
		cmocka_unit_test(without_those_columns_nothing_waits),
		cmocka_unit_test(no_such_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
