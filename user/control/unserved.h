/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Work that nobody serves: how long the oldest descriptor of each pair waits, and workers that do not come to run although work waits
 * for them (a task of higher priority on their CPU, a quota, ...). Control thread only.
 *
 * Every UNSERVED_LOOK_NS each from_guest ring is looked at. What waits longer than UNSERVED_WAKE_NS on a worker that made no round
 * since the last look: the worker is woken, be it for a kick that a guest owes. Longer than UNSERVED_STALL_NS: the worker is
 * stalled, and placement takes its pairs away. It is trusted again when it ran in so many looks in a row, being woken for each: as often as
 * UNSERVED_TRUST_LOOKS the first time, twice as often each time that it stalls again.
 */
#ifndef VHOSTLANE_CONTROL_UNSERVED_H
#define VHOSTLANE_CONTROL_UNSERVED_H

#include "control/engine.h"

#define UNSERVED_LOOK_NS 100000000ull
#define UNSERVED_WAKE_NS UNSERVED_LOOK_NS
#define UNSERVED_STALL_NS (3 * UNSERVED_LOOK_NS)
#define UNSERVED_TRUST_LOOKS 50
#define UNSERVED_TRUST_LOOKS_MAX 3200

int unserved_open(struct engine *engine, struct error *error);

/* Age of the oldest unserved descriptor of a pair, as far as it was seen: up to UNSERVED_LOOK_NS less than it is. 0 = nothing waits. */
uint32_t unserved_age_us(const struct managed_pair *managed);

#endif
