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
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/log.h"
#include "datapath/counters.h"
#include "datapath/forwarding.h"
#include "datapath/lane.h"
#include "datapath/ring_split.h"
#include "vhostlane/bpf_abi.h"

#define DOMAINS_MAX 8 /* uplinks of one daemon */
#define BUSY_POLL_ALWAYS UINT32_MAX
#define BUSY_POLL_ADAPTIVE (UINT32_MAX - 1) /* as long as it was seen to pay, at most BUSY_POLL_ADAPTIVE_US */
#define BUSY_POLL_ADAPTIVE_US 500

struct port;

/* One queue pair of one port: two rings. from_guest: the owner's. to_guest: whoever holds the lock. */
struct queue_pair {
	/* Written by control while workers do not see the pair. */
	struct port *port;
	uint16_t index;
	int from_guest_kick_fd; /* -1 = the guest does not kick: polled */
	int to_guest_kick_fd;	/* the guest gave buffers; nobody waits for it: frames are not held back for buffers */

	/* Written by control at any time, read by workers. */
	_Atomic uint32_t busy_poll_us; /* 0 = never, BUSY_POLL_ALWAYS, BUSY_POLL_ADAPTIVE */
	_Atomic int worker;	       /* whose share it is in, -1 = nobody's */
	_Atomic bool unwatched;	       /* its kick descriptor could not be watched: looked at by time */

	/* Written by workers, read by control. */
	_Atomic bool fault_reported;
	_Atomic uint64_t busy_cycles; /* time its owner spent on it, of cycles_now() */

	/* The owner's memory of the last source address it judged; valid within that plan only. */
	uint64_t last_source;
	uint64_t last_source_generation;
	uint64_t owed_since_ns; /* the owner's: since when from_guest owes a call; 0 = the next one starts now */
	uint8_t burst_shift; /* the owner's: FRAME_BURST >> burst_shift frames are taken at a time */

	struct ring from_guest;
	ck_spinlock_t to_guest_lock CACHE_ALIGNED;
	struct ring to_guest;
};

/* One guest's device, as the workers see it. Made by control; lives until a grace period after its removal. */
struct port {
	uint16_t id;
	uint16_t domain;
	/*
	 * VLANs. Frames travel as the wire carries them: what the guest sends untagged gets the tag of pvid, which comes off again
	 * on the way to the guest. Frames of a VLAN that is not allowed neither enter nor leave.
	 */
	uint16_t pvid;	      /* 0 = untagged frames stay untagged */
	uint16_t key_vlan;    /* VLAN under which its addresses are entered: pvid of an access port, else 0 (trunk entries) */
	bool takes_tags;      /* from the guest */
	bool any_vlan;	      /* all are allowed */
	struct vl_vlan_row vlans; /* those allowed, if not all; bit 0: untagged */
	uint16_t queue_pairs; /* allocated pairs */
	_Atomic bool learns;  /* addresses are learned from what it sends (no MAC configured) */
	char name[32];
	struct log_limit large_limit; /* of the line about frames too large for or from it */
	struct queue_pair **pairs;
	struct port_counters *counters; /* [worker], VL_WORKERS_MAX of them */
	uint32_t *flow_steering;	/* VL_FLOW_BUCKETS entries of the map (or private memory without an uplink) */
	uint8_t flow_used[VL_FLOW_BUCKETS]; /* workers set 1 as the guest sends in a bucket; control clears, to age it */
};

/* How a plan sees a port: what may be used now. */
struct port_view {
	struct port *port;  /* NULL = no such port */
	uint16_t receiving; /* pairs whose to_guest ring runs; 0 = port is down */
	uint32_t coalesce;  /* enum coalesce_kinds: what of one burst may be merged for it */
	uint64_t features;  /* negotiated virtio features */
	/* One slot a pair of the port (queue_pairs of them), so that a flow's pair is one look-up: a pair that does not
	 * receive is stood in for by one that does. Unused when receiving is 0. */
	struct queue_pair **slots;
};

struct plan_share { /* one worker's */
	uint32_t pair_count;
	struct queue_pair **pairs; /* whose from_guest ring runs and which this worker serves */
};

struct plan_domain {
	struct forwarding *forwarding; /* the plan's own */
	bool has_uplink;
	uint16_t flood_count;
	uint16_t *flood_ports; /* ids of the domain's receiving ports */
};

struct plan {
	uint64_t generation;
	uint32_t port_count; /* entries of ports[] in use (highest id + 1) */
	struct port_view ports[VL_PORTS_MAX];
	uint32_t domain_count;
	struct plan_domain domains[DOMAINS_MAX];
	uint32_t worker_count;
	struct plan_share shares[VL_WORKERS_MAX];
};

/* Frees the plan with its tables and arrays; not what they point to. NULL is fine. */
void plan_free(struct plan *plan);

#endif
