/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where frames go: one burst in, deliveries out (design section 2). Knows frames, forwarding and ports; nothing of sockets or of rings'
 * insides: it hands groups of frames to an output given by its worker. Runs on the worker that owns the burst's source.
 */
#ifndef VHOSTLANE_DATAPATH_SWITCH_H
#define VHOSTLANE_DATAPATH_SWITCH_H

#include "datapath/plan.h"

/* Of a group for a device: frames that it does not carry, however empty it is. */
struct too_long {
	uint32_t count;
	uint32_t length; /* of the last one */
};

/* What a worker lends the switch. All calls finish with the frames before they return. */
struct switch_output {
	void *context;
	/* To a guest's pair. Counts its own drops. Return: delivered. */
	unsigned (*to_guest)(void *context, const struct port_view *view, struct queue_pair *pair, struct frame *const *frames,
			     unsigned count);
	/* Out of the uplink, or into the host's stack (host link), of @domain. Return: how many were accepted. */
	unsigned (*to_uplink)(void *context, unsigned domain, struct frame *const *frames, unsigned count, struct too_long *too_long);
	unsigned (*to_host)(void *context, unsigned domain, struct frame *const *frames, unsigned count, struct too_long *too_long);
	/* A source address that the table does not know. Control decides; may be dropped when too many are in flight. */
	void (*learn)(void *context, struct port *port, const uint8_t *mac, uint16_t vlan);
};

/* Frames that @pair's guest sent. Counts on counters of @worker. */
void switch_from_guest(const struct plan *plan, struct queue_pair *pair, unsigned worker, struct frame_burst *burst,
		       const struct switch_output *output);

/* Frames that came up a lane of @domain (from the uplink or from a host link): to their ports, or flooded to all of the domain. */
void switch_from_device(const struct plan *plan, unsigned domain, unsigned worker, struct frame_burst *burst,
			const struct switch_output *output, uint64_t *worker_counters);

#endif
