/* SPDX-License-Identifier: BSD-2-Clause */
/* Plays loads: how many frames are served a second by polling, by sleeping, and how much that varies from epoch to epoch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "datapath/poll_trial.h"

struct load {
	double polling, sleeping; /* frames a second */
	double noise;		  /* 0.1: from 0.9 to 1.1 times as much */
};

struct play {
	struct poll_trial trial;
	uint64_t now, frames;
	unsigned polled, epochs;
	unsigned seed;
};

static double random_between(unsigned *seed, double low, double high)
{
	return low + (high - low) * (rand_r(seed) / (double)RAND_MAX);
}

static void play(struct play *p, const struct load *load, unsigned epochs)
{
	p->polled = p->epochs = 0;
	for (unsigned i = 0; i < epochs; i++) {
		const uint64_t ns = POLL_TRIAL_NS + (uint64_t)random_between(&p->seed, 0, 100000);
		const bool polls = poll_trial_polls(&p->trial);
		const double rate = (polls ? load->polling : load->sleeping) * random_between(&p->seed, 1 - load->noise, 1 + load->noise);

		p->polled += polls;
		p->epochs++;
		p->now += ns;
		p->frames += (uint64_t)(rate * (double)ns / 1e9);
		poll_trial_end(&p->trial, p->now, p->frames);
	}
}

static void finds_the_better_and_stays_with_it(void **state)
{
	for (unsigned seed = 1; seed <= 50; seed++) {
		struct play p = {.seed = seed};
		const struct load polling = {300e3, 200e3, 0.1}, sleeping = {20e3, 200e3, 0.1};

		play(&p, &polling, 30);
		play(&p, &polling, 1000);
		assert_true(p.polled > 970);
		assert_true(poll_trial_pays(&p.trial));
		play(&p, &sleeping, 30); /* the load changes: noticed within a few epochs */
		play(&p, &sleeping, 1000);
		assert_true(p.polled < 30);
		play(&p, &polling, 300); /* looked for seldom by now: up to INTERVAL_LONGEST epochs late */
		play(&p, &polling, 1000);
		assert_true(p.polled > 970);
	}
}

static void polls_where_it_makes_no_difference(void **state)
{
	unsigned polled = 0;

	for (unsigned seed = 1; seed <= 20; seed++) {
		struct play p = {.seed = seed};
		const struct load same = {100e3, 100e3, 0.05}; /* a load that comes at its own pace: polling is for latency */

		play(&p, &same, 1000);
		polled += p.polled;
		assert_false(poll_trial_pays(&p.trial) && !p.trial.exploring && p.trial.rate[POLL_ARM_POLL] < p.trial.rate[POLL_ARM_SLEEP]);
	}
	assert_true(polled > 20 * 900);
}

static void small_loads_say_nothing(void **state)
{
	struct play p = {.seed = 1};
	const struct load trickle = {300, 3000, 0.1};

	play(&p, &trickle, 1000);
	assert_int_equal(p.polled, 1000);
	p.now += 3600ull * 1000000000; /* a long sleep is no epoch */
	p.frames += 1000000;
	poll_trial_end(&p.trial, p.now, p.frames);
	assert_int_equal(p.trial.known[POLL_ARM_POLL] + p.trial.known[POLL_ARM_SLEEP], 0);
	assert_true(poll_trial_polls(&p.trial));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_the_better_and_stays_with_it),
		cmocka_unit_test(polls_where_it_makes_no_difference),
		cmocka_unit_test(small_loads_say_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
