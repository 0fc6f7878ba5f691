/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What happens to the uplinks while the daemon runs (rtnetlink events of links and tc): changes of MTU, address and
 * name are followed; carrier, removal, programs that somebody took off and host links that somebody deleted are logged and shown.
 * Control thread only.
 */
#ifndef VHOSTLANE_CONTROL_LINK_MONITOR_H
#define VHOSTLANE_CONTROL_LINK_MONITOR_H

#include "control/engine.h"

/* What keeps an uplink from working: "gone", "host link gone", "xdp missing", "tc missing", "down", "no carrier"; "up" = nothing. */
const char *link_monitor_state(struct engine *engine, unsigned uplink);

int link_monitor_open(struct engine *engine, struct error *error);
void link_monitor_close(struct engine *engine);

#endif
