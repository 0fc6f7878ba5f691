/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CPUs that come and go, as the kernel's uevents tell it. Control thread.
 *
 * An event comes after the fact: threads pinned to the CPU were already widened by the kernel, and are not put back when it returns. So both
 * events are passed on as they come, even if CPU is what it was by then; who gets one reads the topology again and pins again.
 * A change of the cpuset has no event: compare cpulist_allowed() on a timer.
 */
#ifndef VHOSTLANE_CONTROL_HOTPLUG_H
#define VHOSTLANE_CONTROL_HOTPLUG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/error.h"
#include "control/event_loop.h"

struct hotplug;

typedef void (*hotplug_handler)(void *context, unsigned cpu, bool online);

/* Return: NULL with *error (-EPERM in some containers: go on with the timer alone). */
struct hotplug *hotplug_open(struct event_loop *loop, hotplug_handler handler, void *context, struct error *error);

/* Not from within the handler. NULL is fine. */
void hotplug_close(struct hotplug *hotplug);

/*
 * hotplug_parse() - does this uevent tell of a CPU that came or went?
 * @message: as received: "offline@/devices/system/cpu/cpu3" NUL "ACTION=offline" NUL ...
 * Pure. Return: true with *cpu and *online filled.
 */
bool hotplug_parse(const char *message, size_t size, unsigned *cpu, bool *online);

#endif
