/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One worker: a thread pinned to one CPU that serves the queue pairs and lanes of its share of the plan. Created, told and stopped by the
 * control thread; everything else in here belongs to the worker's own thread. See worker.c, theory of operation.
 */
#ifndef VHOSTLANE_DATAPATH_WORKER_H
#define VHOSTLANE_DATAPATH_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "datapath/counters.h"
#include "datapath/plan.h"

#define WORKER_DEVICES_MAX (DOMAINS_MAX * 4) /* uplinks and host links that one worker reaches */

struct worker;

/* A device as one worker sees it. */
struct worker_device {
	struct lane_device *device;
	struct lane_port *port; /* this worker's */
	uint16_t domain;
	bool is_uplink;
	int node;
};

/* A worker's question to control: is this address this port's? */
struct learn_request {
	uint16_t port;
	uint16_t vlan;
	uint8_t mac[6];
};

struct worker_setup {
	unsigned index;
	int cpu;		      /* -1 = not pinned */
	struct plan *_Atomic *plan;   /* the published pointer */
	const struct worker_device *devices; /* copied */
	unsigned device_count;
	int control_fd;		      /* eventfd: written when a learn request or a fault waits for control */
};

/* Starts the thread. Named vhostlane-wN. Return: NULL with *error. */
struct worker *worker_start(const struct worker_setup *setup, struct error *error);
/* Ends the thread and frees; its share of the plan must be empty and its lanes not closed before. */
void worker_stop(struct worker *worker);

/* Wakes it so that it adopts a new plan now. Any thread. */
void worker_wake(struct worker *worker);

/* Control: has the worker adopted this generation (or is it asleep with it)? */
uint64_t worker_generation(const struct worker *worker);

int worker_cpu(const struct worker *worker);
int worker_move(struct worker *worker, int cpu, struct error *error); /* pins to another CPU */
pid_t worker_tid(const struct worker *worker);
bool worker_asleep(const struct worker *worker);
uint64_t worker_counter(const struct worker *worker, enum worker_counter which);
struct lane_port *worker_lane_port(const struct worker *worker, unsigned device);

/* Control takes one learn request. Return: false if none waits. */
bool worker_take_learn(struct worker *worker, struct learn_request *request);

/* Control, every 100 ms: a worker stuck in a call descriptor's write() is interrupted and the ring faulted. */
void worker_watchdog(struct worker *worker);

#endif
