/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The ports: made, changed and removed at run time, with their sessions. Control thread only.
 */
#ifndef VHOSTLANE_CONTROL_PORTS_H
#define VHOSTLANE_CONTROL_PORTS_H

#include "control/engine.h"

/* -EEXIST (name or socket), -ENOSPC (VL_PORTS_MAX), -ENODEV (uplink= names none of ours), or what the session says. */
int ports_add(struct engine *engine, const struct config_port *config, struct error *error);

/* Ends the session and frees the port; neighbours go on. */
void ports_remove(struct engine *engine, struct managed_port *mp);
void ports_remove_all(struct engine *engine);

/* NULL with *error filled if there is none of that name. */
struct managed_port *ports_find(struct engine *engine, const char *name, struct error *error);

/* An uplink has another address or MTU: the one is the host's now, the other is told to guests that negotiate from now on. */
void ports_uplink_changed(struct engine *engine, unsigned domain);

/* Keys that ports_set() would refuse, without setting any. */
int ports_check_set(struct engine *engine, const struct managed_port *mp, struct config_port *wanted, const char *key, const char *value,
		    struct error *error);

/* One key at run time: busy-poll-us (all pairs), node, mac, mtu and offloads (told at the next negotiation). Others need del and add. */
int ports_set(struct engine *engine, struct managed_port *mp, const char *key, const char *value, struct error *error);

/* Workers' news: addresses to learn, faults to look at. */
void ports_handle_worker_news(struct engine *engine);

uint64_t port_counter_sum(const struct managed_port *mp, enum port_counter which);

#endif
