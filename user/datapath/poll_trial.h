/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * busy-poll-us=adaptive: whether polling pays, found out by trying. Polling saves kicks and wake-ups, but takes CPU time that guests on the same
 * CPUs may need more; which of the two counts, no rule that looks at one of them can say. What counts for guests is how much is served.
 *
 * Time is cut into epochs. In most of them the worker does what was better so far, now and then the other thing. Frames served per time are
 * averaged for both; sleeping must be better by a clear margin to be preferred, because polling keeps latency low where the load does not
 * depend on it. The more often the comparison ends the same way, the more seldom it is made; it begins anew when the load has changed.
 *
 * The worker's own: one thread, no system call.
 */
#ifndef VHOSTLANE_DATAPATH_POLL_TRIAL_H
#define VHOSTLANE_DATAPATH_POLL_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#define POLL_TRIAL_NS 10000000ull /* an epoch: several time slices of the scheduler */

enum poll_arm { POLL_ARM_POLL, POLL_ARM_SLEEP, POLL_ARMS };

struct poll_trial { /* all 0 = begins with polling, nothing known */
	uint64_t start_ns, start_frames; /* of the epoch */
	enum poll_arm better; /* as far as known */
	bool exploring;	      /* this epoch tries the other */
	float rate[POLL_ARMS]; /* frames a second, averaged */
	uint8_t known[POLL_ARMS]; /* epochs averaged */
	uint8_t changed;      /* epochs in a row that did not fit the average */
	uint32_t interval, left; /* epochs between two explorations; until the next */
};

/* Ends an epoch at @now_ns, with @frames served in the thread's whole life. Called when POLL_TRIAL_NS have passed since start_ns, or later. */
void poll_trial_end(struct poll_trial *trial, uint64_t now_ns, uint64_t frames);

/* Does the worker poll in this epoch? */
static inline bool poll_trial_polls(const struct poll_trial *trial)
{
	return (trial->better == POLL_ARM_POLL) != trial->exploring;
}

/* Is it known that more is served by polling, or is that being tried? */
bool poll_trial_pays(const struct poll_trial *trial);

#endif
