/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/util.h"
#include "control/cpu_use.h"

static struct cpu_use before, now;

static void takes_what_is_neither_idle_nor_nice(void **state)
{
	cpu_use_parse("cpu  100 0 100 800 0 0 0 0 0 0\n"
		      "cpu0 10 20 30 40 50 60 70 80 90 100\n"
		      "cpu3 0 0 0 500 0 0 0 0 0 0\n"
		      "intr 4711 0 0\n"
		      "cpu1 1 1 1 1 1 1 1 1 1 1\n",
		      &before);
	assert_int_equal(before.spare[0], 20 + 40 + 50);
	assert_int_equal(before.total[0], 10 + 20 + 30 + 40 + 50 + 60 + 70 + 80); /* guests' time is in user's and nice's */
	assert_int_equal(before.spare[3], 500);
	assert_int_equal(before.total[1], 0); /* offline: no line; what comes behind other lines is none */

	cpu_use_parse("cpu  0 0 0 0 0 0 0 0 0 0\n"
		      "cpu0 40 30 30 90 60 60 70 80 0 0\n" /* 100 more: 30 user; 10 nice, 50 idle, 10 waiting for I/O */
		      "cpu1 5 5 5 5 5 5 5 5 5 5\n"
		      "cpu3 0 0 0 500 0 0 0 0 0 0\n",
		      &now);
	assert_int_equal(cpu_use_taken_permille(&before, &now, 0), 300);
	assert_int_equal(cpu_use_taken_permille(&before, &now, 1), 5 * 5 * 1000 / 40); /* came online: since then */
	assert_int_equal(cpu_use_taken_permille(&before, &now, 3), 0);			 /* nothing passed: nothing known */
	assert_int_equal(cpu_use_taken_permille(&before, &now, 2), 0);
	assert_int_equal(cpu_use_taken_permille(&before, &now, -1), 0);
	assert_int_equal(cpu_use_taken_permille(&before, &now, CPUS_MAX), 0);
	assert_int_equal(cpu_use_taken_permille(&now, &before, 0), 0); /* counters that ran backwards */
}

static void survives_odd_texts(void **state)
{
	static const char *const texts[] = {"", "cpu", "cpu0", "cpu0 1 2 3\n", "cpu99999 1 1 1 1 1 1 1 1\n", "cpux 1 1 1 1 1 1 1 1\n", "\ncpu0 1 1 1 1 1 1 1 1\n"};

	for (unsigned i = 0; i < ARRAY_SIZE(texts); i++) {
		cpu_use_parse(texts[i], &now);
		assert_int_equal(now.total[0], 0);
	}
}

static void reads_this_machine(void **state)
{
	int tid = (int)syscall(SYS_gettid);
	uint64_t run, waited, later;

	assert_int_equal(cpu_use_read(&now), 0);
	assert_true(now.total[0] + now.total[1] > 0);
	/* The kernel brings the account up to date at its ticks: a thread that has just started may show nothing yet. */
	while (!cpu_use_of_thread(tid, &run, &waited)) {
		struct timespec used;

		assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used), 0);
		if (used.tv_sec) {
			print_message("skipped: this kernel keeps no account of threads' CPU time (CONFIG_SCHED_INFO)\n");
			skip();
		}
	}
	do
		assert_true(cpu_use_of_thread(tid, &later, &waited));
	while (later == run);
	assert_true(later > run);
	assert_false(cpu_use_of_thread(1 << 30, &run, &waited));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes_what_is_neither_idle_nor_nice),
		cmocka_unit_test(survives_odd_texts),
		cmocka_unit_test(reads_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
