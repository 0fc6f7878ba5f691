/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What happens to the uplinks while the daemon runs (rtnetlink link events): MTU changes are followed, carrier and removal are logged.
 * Control thread only.
 */
#ifndef VHOSTLANE_CONTROL_LINK_MONITOR_H
#define VHOSTLANE_CONTROL_LINK_MONITOR_H

#include "control/engine.h"

int link_monitor_open(struct engine *engine, struct error *error);
void link_monitor_close(struct engine *engine);

#endif
