/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keeps queue pairs where they are served best: looks at loads, guests' vCPUs, memory and CPUs, and has the publisher move what
 * placement says. Control thread only.
 *
 * Every LOOK_NS: loads and evidence, then a plan with MOVES_PER_LOOK moves that only pay. At once: work that stands on a busy worker, CPUs that
 * come or go. Every DELAY_LOOK_NS: is the workers' CPU time wanted by others (run delay in schedstat)?
 */
#ifndef VHOSTLANE_CONTROL_REBALANCE_H
#define VHOSTLANE_CONTROL_REBALANCE_H

#include "control/engine.h"

int rebalance_open(struct engine *engine, struct error *error);
void rebalance_close(struct engine *engine);

/* A worker told of work that stood for others. */
void rebalance_standing(struct engine *engine);

/* Places everything again, with every move that this asks for; by another policy (@afresh) as if nothing had a place yet. */
void rebalance_all(struct engine *engine, bool afresh);

#endif
