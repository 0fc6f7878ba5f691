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

#include "common/cpulist.h"
#include "common/error.h"
#include "datapath/counters.h"
#include "datapath/plan.h"

#define WORKER_DEVICES_MAX (DOMAINS_MAX * 4) /* uplinks and host links that one worker reaches */

struct worker;

/* A device that workers receive from and send to. */
struct worker_device {
	struct lane_device *device;
	uint16_t domain;
	bool is_uplink;
	bool open_checksums; /* its frames may come with checksums left to a device (veth, bridge, ...): each is looked at */
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
	int node;		      /* NUMA node of the CPU, -1 = unknown: where its memory is put */
	struct plan *_Atomic *plan;   /* the published pointer */
	const struct worker_device *devices; /* copied */
	unsigned device_count;
	int control_fd;		      /* eventfd: written when a learn request or a fault waits for control */
};

/* Starts the thread. Named vhostlane-wN. Return: NULL with *error. */
struct worker *worker_start(const struct worker_setup *setup, struct error *error);
/* Ends the thread and frees; its share of the plan must be empty. Lanes are closed after it. NULL is fine. */
void worker_stop(struct worker *worker);

/* --- control thread ------------------------------------------------------------------------------------------------ */

/* Wakes it so that it adopts a new plan now. */
void worker_wake(struct worker *worker);

/* A kick descriptor of a pair that enters or leaves this worker's share. Taken out before the descriptor is closed. */
int worker_watch_kick(struct worker *worker, int kick_fd);
void worker_unwatch_kick(struct worker *worker, int kick_fd);

/*
 * Moving a pair without reordering a flow: the new owner's lanes are held, steering is changed, the old owner drains
 * what it got before the change, then the hold ends. A held worker goes on serving rings.
 */
void worker_hold_lanes(struct worker *worker, bool hold);
/* Asks for a round that finds all lanes empty; worker_drained() tells when it was. Not while held. */
void worker_drain_request(struct worker *worker);
bool worker_drained(const struct worker *worker);
/* Also what it had sent by then is gone, after worker_drained(): another worker may go on with the rings whose frames these were. */
bool worker_sent(const struct worker *worker);

int worker_cpu(const struct worker *worker);
int worker_node(const struct worker *worker);
/* Pins it to another CPU. */
int worker_move(struct worker *worker, int cpu, int node, struct error *error);
/* Lets it run on any of these; worker_cpu() is -1 then. */
int worker_unpin(struct worker *worker, const struct cpulist *cpus, struct error *error);
int worker_tid(const struct worker *worker);
bool worker_asleep(const struct worker *worker);
uint64_t worker_counter(const struct worker *worker, enum worker_counter which);
/* How much of its busy-poll window a worker uses: less where other tasks want its CPU. WORKER_PATIENCE_FULL at start. Once it is no longer 0,
 * the worker is woken. Control thread. */
#define WORKER_PATIENCE_FULL 256
void worker_set_patience(struct worker *worker, uint32_t patience);
uint32_t worker_patience(const struct worker *worker);
/* Longest round, since the last call, in which several pairs had work: how long work of one stood for the others. Nanoseconds. */
uint64_t worker_take_standing_ns(struct worker *worker);

struct lane_port *worker_lane_port(const struct worker *worker, unsigned device);

/* Takes one learn request. Return: false if none waits. */
bool worker_take_learn(struct worker *worker, struct learn_request *request);

/*
 * Every few ms, by a thread that waits for no worker (the control thread may be doing just that): a worker stuck in a call descriptor's
 * write() is interrupted; the ring then faults (CALL_BLOCKED), which ends the session. Return: false if the worker sleeps.
 */
bool worker_watchdog(struct worker *worker);

#endif
