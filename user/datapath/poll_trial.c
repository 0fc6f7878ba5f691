/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/poll_trial.h"

#define KNOWN_MAX 4	 /* weight of what was averaged against a new epoch */
#define KNOWN_ENOUGH 2	 /* epochs after which an average is believed */
#define FRAMES_FEW 32	 /* an epoch with fewer says nothing */
#define EPOCH_LONGEST (4 * POLL_TRIAL_NS) /* one that took longer was slept through */
#define MARGIN_TO_SLEEP 1.06f
#define MARGIN_TO_STAY_ASLEEP 1.02f
#define MARGIN_TO_POLL_ON 1.03f
#define CHANGED_BY 1.6f
#define CHANGED_FOR 2
#define INTERVAL_SHORTEST 3 /* epochs between two explorations */
#define INTERVAL_LONGEST 96

static void begin_anew(struct poll_trial *t)
{
	t->known[POLL_ARM_POLL] = t->known[POLL_ARM_SLEEP] = 0;
	t->changed = 0;
	t->exploring = false;
	t->interval = t->left = INTERVAL_SHORTEST;
}

static void average(struct poll_trial *t, enum poll_arm arm, float rate)
{
	if (t->known[arm] < KNOWN_MAX)
		t->known[arm]++;
	t->rate[arm] += (rate - t->rate[arm]) / t->known[arm];
}

static bool sleep_is_better(const struct poll_trial *t)
{
	const float margin = t->better == POLL_ARM_SLEEP ? MARGIN_TO_STAY_ASLEEP : MARGIN_TO_SLEEP;

	return t->rate[POLL_ARM_SLEEP] > margin * t->rate[POLL_ARM_POLL];
}

static void compare(struct poll_trial *t)
{
	const enum poll_arm before = t->better;

	t->exploring = false;
	if (t->known[POLL_ARM_POLL] < KNOWN_ENOUGH || t->known[POLL_ARM_SLEEP] < KNOWN_ENOUGH) {
		t->left = INTERVAL_SHORTEST;
		return;
	}
	t->better = sleep_is_better(t) ? POLL_ARM_SLEEP : POLL_ARM_POLL;
	if (t->better != before)
		t->interval = INTERVAL_SHORTEST;
	else if (t->interval <= INTERVAL_LONGEST / 2)
		t->interval *= 2;
	t->left = t->interval;
}

static bool differs(const struct poll_trial *t, enum poll_arm arm, float rate)
{
	return t->known[arm] >= KNOWN_ENOUGH && (rate > CHANGED_BY * t->rate[arm] || rate * CHANGED_BY < t->rate[arm]);
}

/* What is better goes on. If the load is another one than before, both are to be found out again. */
static void judge_better(struct poll_trial *t, float rate)
{
	t->changed = differs(t, t->better, rate) ? t->changed + 1 : 0;
	if (!t->interval || t->changed == CHANGED_FOR)
		begin_anew(t);
	average(t, t->better, rate);
	if (!--t->left)
		t->exploring = true;
}

/* The other was tried. If it went quite another way than before, one epoch is not enough to tell. */
static void judge_other(struct poll_trial *t, float rate)
{
	const enum poll_arm other = t->better == POLL_ARM_POLL ? POLL_ARM_SLEEP : POLL_ARM_POLL;

	if (differs(t, other, rate))
		t->known[other] = 0;
	average(t, other, rate);
	compare(t);
}

void poll_trial_end(struct poll_trial *t, uint64_t now_ns, uint64_t frames)
{
	const uint64_t ns = now_ns - t->start_ns, served = frames - t->start_frames;

	if (ns <= EPOCH_LONGEST && served >= FRAMES_FEW)
		(t->exploring ? judge_other : judge_better)(t, (float)served * 1e9f / (float)ns);
	t->start_ns = now_ns;
	t->start_frames = frames;
}

bool poll_trial_pays(const struct poll_trial *t)
{
	if (t->exploring)
		return true;
	return t->known[POLL_ARM_SLEEP] >= KNOWN_ENOUGH && t->rate[POLL_ARM_POLL] > MARGIN_TO_POLL_ON * t->rate[POLL_ARM_SLEEP];
}
