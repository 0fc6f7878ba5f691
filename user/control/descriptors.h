/* SPDX-License-Identifier: BSD-2-Clause */
/* How many file descriptors a configuration takes, for `check` and for the warning at start. Control thread. */
#ifndef VHOSTLANE_CONTROL_DESCRIPTORS_H
#define VHOSTLANE_CONTROL_DESCRIPTORS_H

#include "control/config.h"

/* With all guests connected; about. Asks the system for CPUs and for the uplinks' queues. */
unsigned long descriptors_needed(const struct config *config);

#endif
