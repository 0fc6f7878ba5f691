/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The workers: how many there are, on which CPU each is, and which of them the policy uses. Control thread only.
 *
 * Worker slots are fixed at start (each has its lanes); a slot without work sleeps and costs nothing. Slot i belongs to the i-th
 * chosen CPU, counted round: with per-cpu the first round of slots is used, with per-port and multi-worker all of them are.
 */
#ifndef VHOSTLANE_CONTROL_WORKFORCE_H
#define VHOSTLANE_CONTROL_WORKFORCE_H

#include "control/engine.h"

/* Worker slots on that many CPUs. */
unsigned workforce_slots(const struct config *config, unsigned cpus);

/* Reads the machine, chooses the CPUs and how many slots there will be; devices are opened with engine->slot_count lanes a queue. */
int workforce_plan(struct engine *engine, struct error *error);
int workforce_start(struct engine *engine, struct error *error);
void workforce_stop(struct engine *engine);

/* May the policy give pairs to this worker now? */
bool workforce_uses(const struct engine *engine, unsigned worker);

/* Another policy at run time. Pairs are moved by the caller (publisher_rebalance). */
int workforce_set_policy(struct engine *engine, enum placement_policy policy, unsigned workers_per_port, bool pin, struct error *error);

/* A CPU came or went, or the cpuset changed: reads the machine again and pins anew. Return: true if something changed. */
bool workforce_machine_changed(struct engine *engine);

#endif
