/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * From what control knows to what workers and BPF programs use: placement, plan, forwarding tables, and the maps `ports`,
 * `queue_affinity` and `flow_steering`. Control thread only.
 *
 * Order, so that nothing points at what is not there: going up, the plan, then flow_steering and queue_affinity, then ports; going
 * down, ports first, then the plan, then the grace period.
 */
#ifndef VHOSTLANE_CONTROL_PUBLISHER_H
#define VHOSTLANE_CONTROL_PUBLISHER_H

#include "control/engine.h"

/* First plan: no ports. Before the workers start. */
int publisher_open(struct engine *engine, struct error *error);
/* After the workers stopped. */
void publisher_close(struct engine *engine);

/**
 * publisher_publish() - make the present state what workers use
 * Returns after the grace period: what is no longer active is then untouched by workers.
 */
void publisher_publish(struct engine *engine);

/* Buckets of flow_steering in which a guest sent nothing for FLOW_IDLE_AGINGS calls go back to the even spread. */
#define FLOW_IDLE_AGINGS 2
void publisher_age_flows(struct engine *engine);

/* Ports whose pairs went to another node, and that got no frame since the last call, get that node's host link. */
void publisher_follow_nodes(struct engine *engine);

/* Takes a port that is being removed out of the maps. Its rings are withdrawn already. */
void publisher_forget(struct engine *engine, struct managed_port *mp);

/* Grace period alone. */
void publisher_synchronize(struct engine *engine);

/* Places all pairs again with at most @moves_max moves that only pay, and moves what changed. */
void publisher_rebalance(struct engine *engine, unsigned moves_max);
/* Between two of these: moves only what stands, fills its worker, or wants to be gathered. */
void publisher_relieve(struct engine *engine, unsigned moves_max);

/* The same by another policy: as if none had a place yet, and with every move that this takes. */
void publisher_place_afresh(struct engine *engine);

/* Operator's order: pair to the worker on @cpu. -EINVAL if no worker runs there. Moves at once, without loss. */
int publisher_order(struct engine *engine, struct managed_port *mp, unsigned pair, int cpu, struct error *error);

/* Takes the order back: placement decides again, now. */
void publisher_release(struct engine *engine, struct managed_port *mp, unsigned pair);

/* Looks for edits of queue_affinity by the operator: carries them out, or puts the entry back and says why; removes entries of no pair. */
void publisher_read_affinity(struct engine *engine);

#endif
