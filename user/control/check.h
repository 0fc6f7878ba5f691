/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine of `vhostlane check`: what would fail in `run` with this configuration, and the remedy. It changes nothing on the host:
 * what can only be tried out is tried in a network namespace of its own. Control thread, no daemon running in this process.
 */
#ifndef VHOSTLANE_CONTROL_CHECK_H
#define VHOSTLANE_CONTROL_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#include "control/config.h"

/* One line a finding, `ok|warn|fail WHAT: FOUND; REMEDY`, or one JSON object with all. Return: 0, or 1 if any failed. */
int check_run(const struct config *config, FILE *out, bool json);

#endif
