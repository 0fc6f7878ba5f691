/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Whose an Ethernet address is: configured for a port, learned from what its guest sends, the host's own, or claimed by the wire. Control
 * thread only.
 *
 * A guest may use any source address; it learns only what is nobody else's. What the host has on an interface is refused at once. Of another
 * station on the wire only its frames tell: once it sends, xdp_steer reports the address (map wire_claims), it is taken from the port, and
 * refused for a while. Stations that the host has in its neighbour table, gateways above all, are made to send when a guest uses their address.
 */
#ifndef VHOSTLANE_CONTROL_ADDRESSES_H
#define VHOSTLANE_CONTROL_ADDRESSES_H

#include "control/engine.h"

/* NULL = none has it. */
const struct managed_port *addresses_owner(const struct engine *engine, unsigned domain, const uint8_t *mac, uint16_t vlan);
/* May a port that learns have it? */
bool address_is_free(const struct engine *engine, unsigned domain, const uint8_t *mac, uint16_t vlan);

/* The caller has looked at ADDRESSES_PER_PORT, and publishes. */
void addresses_add(struct managed_port *mp, const uint8_t *mac, uint16_t vlan, bool learned);
void addresses_forget_learned(struct managed_port *mp);
/* The configured address of @keeper may have been learned elsewhere before: the configuration wins. */
void addresses_take_from_others(struct engine *engine, struct managed_port *keeper);

/* A worker's request. Return: true if the port has a new address. */
bool addresses_learn(struct engine *engine, unsigned worker, const struct learn_request *request);
/* After publishing what was learned. */
void addresses_challenge_owners(struct engine *engine);

/* Learned addresses that the wire was seen sending from are taken from their ports. Every 200 ms or so. */
void addresses_read_claims(struct engine *engine);

#endif
