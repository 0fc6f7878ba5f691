/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine's objects as JSON, for methods.c. Each returns a new reference. Control thread only. */
#ifndef VHOSTLANE_CONTROL_METHODS_SHOW_H
#define VHOSTLANE_CONTROL_METHODS_SHOW_H

#include <jansson.h>

#include "control/engine.h"

json_t *show_port(const struct managed_port *mp);
json_t *show_port_in_full(const struct managed_port *mp);
json_t *show_pair(const struct engine *engine, const struct managed_port *mp, unsigned pair);
json_t *show_workers(const struct engine *engine);
json_t *show_uplink(struct engine *engine, unsigned uplink);
json_t *show_trouble(struct engine *engine); /* what is broken, a text each */
json_t *show_counters(const struct engine *engine, bool only_drops);

#endif
