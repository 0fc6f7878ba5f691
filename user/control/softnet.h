/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames that a device of software (veth) has taken, and so reported as sent, wait for their receiver in a queue of the CPU that sent them. Another
 * CPU's frames may overtake them there. Reads /proc/net/softnet_stat, keeps no state. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_SOFTNET_H
#define VHOSTLANE_CONTROL_SOFTNET_H

#include "common/cpulist.h"

/* Removes from @cpus those where nothing waits now; all of them where the kernel does not tell. */
void softnet_remove_idle(struct cpulist *cpus);

/* The same from another file (tests). */
void softnet_remove_idle_from(const char *path, struct cpulist *cpus);

#endif
