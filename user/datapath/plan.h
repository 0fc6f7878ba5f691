/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What control publishes to the workers, all of it immutable and behind one pointer: the plan (who serves what), the
 * ports and the forwarding tables. A worker reads the pointer once per round (RCU, QSBR flavour) and adopts what changed by
 * generation. Control frees an old one after a grace period.
 *
 * The long-lived objects it points to (port, queue_pair, lanes) outlive every plan that names them.
 */
#ifndef VHOSTLANE_DATAPATH_PLAN_H
#define VHOSTLANE_DATAPATH_PLAN_H

#include <ck_spinlock.h>
#include <stdbool.h>
#include <stdint.h>

#include "datapath/counters.h"
#include "datapath/forwarding.h"
#include "datapath/lane.h"
#include "datapath/ring_split.h"
#include "vhostlane/bpf_abi.h"

#define DOMAINS_MAX 8 /* uplinks of one daemon */
#define BUSY_POLL_ALWAYS UINT32_MAX

struct port;

/* One queue pair of one port: two rings. from_guest: the owner's. to_guest: whoever holds the lock. */
struct queue_pair {
	struct port *port;
	uint16_t index;
	int kick_fd;		      /* from_guest's kick, -1 = the guest does not kick: polled. Set while withdrawn */
	int to_guest_kick_fd;	      /* the guest gave buffers */
	_Atomic uint32_t busy_poll_us;/* 0 = never, BUSY_POLL_ALWAYS; written by control, read by the owner */
	_Atomic uint32_t cpu_worker;  /* worker that owns it now (for display) */
	_Atomic uint64_t waiting_since_ns; /* 0, or since when work stands unserved */
	_Atomic uint64_t busy_ns;	   /* time its owner spent on it; written by the owner */
	uint64_t last_destination;	   /* owner: last forwarding key looked up ... */
	int32_t last_port;		   /* ... and its result, valid for table */
	const struct forwarding *last_table;
	uint64_t last_source;		   /* owner: last source key found to be in order, valid for table */
	const struct forwarding *last_source_table;

	ck_spinlock_t to_guest_lock CACHE_ALIGNED;
	struct ring to_guest;
	struct ring from_guest;
};

/* One guest's device, as the workers see it. Made by control; lives until a grace period after its removal. */
struct port {
	uint16_t id;
	uint16_t domain;
	uint16_t vlan; /* access VLAN: tag put on what comes from the guest, taken off what goes to it; 0 = frames as they are */
	uint16_t queue_pairs; /* allocated pairs */
	bool learns;	      /* addresses are learned from what it sends (no MAC configured) */
	uint8_t mac[6];	      /* configured; zero if it learns */
	char name[32];
	struct queue_pair **pairs;
	struct port_counters *counters; /* [worker], VL_WORKERS_MAX of them */
	uint32_t *flow_steering;	/* VL_FLOW_BUCKETS entries of the map (or private memory without an uplink) */
};

/* How a plan sees a port: what may be used now. */
struct port_view {
	struct port *port;	     /* NULL = no such port */
	uint16_t receiving;	     /* entries of to_guest[] */
	struct queue_pair **to_guest;/* pairs whose to_guest ring runs, by pair index order */
};

struct plan_share { /* one worker's */
	uint32_t pair_count;
	struct queue_pair **pairs; /* whose from_guest ring runs and which this worker serves */
	uint32_t pair_sleep_count; /* pairs whose to_guest kicks this worker wants: none today */
};

struct plan_domain {
	const struct forwarding *forwarding;
	int16_t uplink;		/* index of lane_port[] in a worker's device table; -1 = no uplink */
	int16_t host_link;	/* likewise, -1 = none. With several nodes: the one that floods; per worker see worker.h */
	uint16_t flood_count;
	uint16_t *flood_ports;	/* ids of receiving ports of the domain */
};

struct plan {
	uint64_t generation;
	uint32_t port_count; /* entries of ports[] in use (highest id + 1) */
	struct port_view ports[VL_PORTS_MAX];
	uint32_t domain_count;
	struct plan_domain domains[DOMAINS_MAX];
	uint32_t worker_count;
	struct plan_share shares[VL_WORKERS_MAX];
	void *storage; /* one block behind all the arrays above */
};

struct plan_source; /* see plan.c */
void plan_free(struct plan *plan);

#endif
