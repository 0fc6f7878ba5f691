/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread that sees to it that no worker stands in a guest's call descriptor. It waits for nobody: the control thread, which
 * waits for workers at each grace period, could not do it. Control thread only.
 */
#ifndef VHOSTLANE_CONTROL_WATCHDOG_H
#define VHOSTLANE_CONTROL_WATCHDOG_H

#include "common/error.h"
#include "datapath/worker.h"

struct watchdog;

/* @workers must stay as they are until watchdog_stop(). Return: NULL with *error. */
struct watchdog *watchdog_start(struct worker *const *workers, unsigned count, struct error *error);
void watchdog_stop(struct watchdog *watchdog); /* NULL is fine */

#endif
