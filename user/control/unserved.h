/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Work that nobody serves: how long the oldest descriptor of each pair waits, and workers that do not come to run although work waits
 * for them (a task of higher priority on their CPU, a quota, ...). Control thread only.
 *
 * Every UNSERVED_LOOK_NS each from_guest ring is looked at. If work has waited since the last look at least, and its worker made no round in
 * that time, the worker is woken, be it for a kick that a guest owes. Found so in UNSERVED_STALL_LOOKS looks in a row (looks, not time: the
 * whole process may have stood still), it is stalled, and placement takes its pairs away. It is trusted again when it ran in so many looks
 * in a row, being woken for each: UNSERVED_TRUST_LOOKS the first time, twice as many each time that it stalls again.
 */
#ifndef VHOSTLANE_CONTROL_UNSERVED_H
#define VHOSTLANE_CONTROL_UNSERVED_H

#include "control/engine.h"

#define UNSERVED_LOOK_NS 100000000ull
#define UNSERVED_STALL_LOOKS 3
#define UNSERVED_TRUST_LOOKS 50
#define UNSERVED_TRUST_LOOKS_MAX 3200

int unserved_open(struct engine *engine, struct error *error);

/* Age of the oldest unserved descriptor of a pair, as far as it was seen: up to UNSERVED_LOOK_NS less. 0 = nothing waits. */
uint32_t unserved_age_us(const struct managed_pair *managed);

#endif
