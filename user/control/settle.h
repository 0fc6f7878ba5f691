/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * After a change, what was under way by the old state: waits until it is over, within bounds, whoever holds the CPUs. Keeps no state.
 * Control thread.
 */
#ifndef VHOSTLANE_CONTROL_SETTLE_H
#define VHOSTLANE_CONTROL_SETTLE_H

#include "common/cpulist.h"

/*
 * After steering changed, a frame that XDP steered by the old entry may still be on its way into its lane, for the rest of one NAPI poll. No
 * thread runs on that CPU meanwhile: when one has run on each of @cpus, all such polls are over. A CPU that others hold (a thread of a
 * real-time class, say) lets no thread run: after SETTLE_VISITS_NS, far more than a NAPI poll may last, the polls are over there, too.
 */
#define SETTLE_VISITS_NS 50000000ull
void settle_steering(const struct cpulist *cpus);

/*
 * What a device of software has sent may still wait on the sender's CPU while that has no time for it, and would be overtaken by what another
 * CPU sends. Waits until nothing does on @cpus, for 50 milliseconds or so at most: on a CPU that is flooded meanwhile the end of it does not show.
 */
void settle_backlogs(struct cpulist cpus);

#endif
