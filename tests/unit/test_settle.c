// SPDX-License-Identifier: BSD-2-Clause
/* A thread visits CPUs, one of which lets no thread run: sched_setaffinity() is this test's, and no CPU need be hogged for it. */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "control/settle.h"

#define NEVER (-1)

static _Atomic int hogged, forbidden; /* CPUs */
static _Atomic unsigned visits;
static _Atomic bool stuck, called_away;
static cpu_set_t elsewhere; /* where it was called to */

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
	int cpu = 0;

	if (pid) {
		elsewhere = *set;
		called_away = true;
		return 0;
	}
	while (!CPU_ISSET(cpu, set))
		cpu++;
	visits++;
	if (cpu == forbidden) {
		errno = EINVAL;
		return -1;
	}
	if (cpu == hogged) {
		stuck = true;
		while (!called_away)
			usleep(100);
	}
	return 0;
}

static struct cpulist begin(int hogged_cpu, int forbidden_cpu)
{
	struct cpulist cpus;

	hogged = hogged_cpu;
	forbidden = forbidden_cpu;
	visits = 0;
	stuck = called_away = false;
	assert_true(cpulist_parse("0-2,5", &cpus, NULL));
	return cpus;
}

static void a_hogged_cpu_stops_nobody(void **state)
{
	const struct cpulist cpus = begin(2, NEVER);

	settle_steering(&cpus);
	assert_true(called_away);
	/* On a machine that is itself crowded it may have been called off before it got there. */
	if (stuck)
		assert_true(CPU_ISSET(0, &elsewhere) && CPU_ISSET(5, &elsewhere) && !CPU_ISSET(2, &elsewhere));
	assert_in_range(visits, 0, 3); /* once called off it goes nowhere else */
}

static void a_forbidden_cpu_ends_the_visit(void **state)
{
	const struct cpulist cpus = begin(NEVER, 1);

	settle_steering(&cpus);
	assert_in_range(visits, 0, 2);
}

static void all_are_visited(void **state)
{
	const struct cpulist cpus = begin(NEVER, NEVER);

	settle_steering(&cpus);
	assert_true(visits == 4 || called_away);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_hogged_cpu_stops_nobody),
		cmocka_unit_test(a_forbidden_cpu_ends_the_visit),
		cmocka_unit_test(all_are_visited),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
