/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The publisher's inside, shared by the publisher*.c files and nobody else. Control thread only.
 *
 *   publisher.c           one look at the rings; the plan; the order in which it and the maps change
 *   publisher_maps.c      ports, queue_affinity, port_vlans
 *   publisher_steering.c  flow_steering: aged, and repaired where pairs come and go
 *   publisher_moves.c     places for pairs: new ones, better ones, and what the operator orders
 *   publisher_edits.c     what the operator wrote into queue_affinity
 */
#ifndef VHOSTLANE_CONTROL_PUBLISHER_PRIVATE_H
#define VHOSTLANE_CONTROL_PUBLISHER_PRIVATE_H

#include "control/publisher.h"

static inline bool pair_receives(const struct managed_port *mp, unsigned index)
{
	return ring_in_service(mp, 2 * index);
}

static inline bool pair_sends(const struct managed_port *mp, unsigned index)
{
	return ring_in_service(mp, 2 * index + 1);
}

static inline bool pair_active(const struct managed_port *mp, unsigned index)
{
	return pair_receives(mp, index) || pair_sends(mp, index);
}

/* publisher.c */
unsigned count_pairs(const struct engine *engine); /* of all ports, in service or not */
void look_at_rings(struct engine *engine);
void publish_pair_state(struct engine *engine); /* kick descriptors and owners */
void publish_plan(struct engine *engine); /* and a grace period */

/* publisher_maps.c */
void put_affinity(struct engine *engine, struct managed_port *mp, unsigned index);
void put_addresses(struct engine *engine, struct managed_port *mp); /* as they are, with the pairs that receive now */
void drop_addresses(struct engine *engine, struct managed_port *mp);
void put_flood_workers(struct engine *engine); /* who takes what is for all, and what nobody is named for */
unsigned receiving_pairs(const struct managed_port *mp); /* highest one + 1 */

/* publisher_steering.c */
void repair_steering(struct managed_port *mp);
unsigned list_receiving(const struct managed_port *mp, unsigned *receiving);

/* publisher_moves.c */
void place_new_pairs(struct engine *engine);

#endif
