/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon's state, as the control rooms share it: daemon.c makes and ends it, ports.c owns the ports, publisher.c the
 * plan, methods.c shows it. Control thread only, but for *plan, which workers read.
 */
#ifndef VHOSTLANE_CONTROL_ENGINE_H
#define VHOSTLANE_CONTROL_ENGINE_H

#include "control/config.h"
#include "control/control_socket.h"
#include "control/event_loop.h"
#include "control/cpu_use.h"
#include "control/evidence.h"
#include "control/hotplug.h"
#include "control/placement.h"
#include "control/uplink.h"
#include "control/vhost_user.h"
#include "control/wire_talk.h"
#include "datapath/plan.h"
#include "datapath/worker.h"

/*
 * Addresses of one port. Learned ones stay until the port goes down: an edge switch floods nothing it does not know, so a quiet guest
 * that were forgotten could not be reached. When the table is full, further ones are refused and counted.
 */
#define ADDRESSES_PER_PORT 64

struct link_monitor;
struct watchdog;
struct kick_probe;
struct kick_opener;

/* An address that the wire claimed from a port that had learned it: not learned again before. */
#define REFUSED_ADDRESSES 64
#define REFUSED_NS 30000000000ull
#define REFUSED_MAX_NS (32 * REFUSED_NS)
struct refused_address {
	uint8_t mac[6];
	uint16_t vlan, domain;
	uint64_t until_ns, for_ns;
};

struct address {
	uint8_t mac[6];
	uint16_t vlan;
	bool learned; /* false: from the configuration */
	bool challenged; /* its owner on the wire was asked to show itself, if there is one */
};

/* What control knows of a queue pair beside what the workers see. */
struct managed_pair {
	struct queue_pair *pair;
	int worker;	   /* its place, -1 = none yet */
	int worker_wanted; /* operator's order, -1 = none */
	enum placement_reason reason;
	uint32_t generation; /* of its place: raised by each move */
	int watched_by;	     /* worker that watches its kick descriptor, -1 = none */
	int watched_fd;
	struct vl_queue_value published; /* what queue_affinity holds */
	bool is_published;

	/* Evidence, of the last look (rebalance.c). */
	uint64_t busy_cycles;	/* pair->busy_cycles then */
	uint32_t load_permille; /* of one CPU, since the look before */
	uint32_t standing_us;
	uint32_t longest_wait_us; /* ever, for work behind others on its worker */
	uint64_t moved_ns;	/* its last move, 0 = never */
	int ring_node;		/* -1 = unknown */
	int buffer_node;
	int state_node; /* to which its state was moved, -1 = not yet */
	struct evidence_kick kick;

	/* unserved.c */
	uint64_t unserved_since_ns; /* when the oldest of what waits was first seen to; 0 = nothing waits */
	uint16_t unserved_oldest;
};

struct managed_port {
	struct engine *engine;
	struct config_port config;
	struct port *port;
	struct vhost_user_session *session;
	struct managed_pair *pairs;	/* config.queues of them */
	uint64_t withdrawn[(2 * VL_QUEUE_PAIRS_MAX + 63) / 64]; /* rings that the session is changing */
	uint64_t active[(2 * VL_QUEUE_PAIRS_MAX + 63) / 64];	/* rings in service, as of the publisher's last look */
	uint64_t announced_ns; /* last SEND_RARP that was carried out */
	unsigned address_count;
	struct address addresses[ADDRESSES_PER_PORT];
	unsigned published_count; /* addresses as they stand in the map `ports` */
	struct published_address {
		struct vl_port_key key;
		uint32_t flags;
	} published[ADDRESSES_PER_PORT];
	struct vl_port_value published_value; /* of all of them, but for the flags */
	uint64_t frames_looked; /* to the guest, at the last look */
	uint32_t *private_steering; /* flow_steering without an uplink */
	uint8_t flow_idle[VL_FLOW_BUCKETS]; /* agings since the guest last sent in a bucket */
	struct evidence_history history; /* of the peer's vCPU threads */
};

struct engine {
	struct config *config;
	struct event_loop *loop;
	struct control_socket *control;
	struct topology topology;
	uint64_t start_ns;

	unsigned uplink_count;
	struct uplink *uplinks[DOMAINS_MAX]; /* index = domain */
	unsigned device_count;
	struct worker_device devices[WORKER_DEVICES_MAX];

	struct cpulist cpus; /* the workers' */
	unsigned cpu_count;
	int cpus_of_slots[VL_WORKERS_MAX]; /* cpu_count of them: CPUs in order */
	unsigned slot_count;
	unsigned worker_count; /* slots whose thread runs: slot_count once started */
	struct worker *workers[VL_WORKERS_MAX];
	struct topology topology_next; /* room to read it anew */
	bool topology_unread;	       /* the last reading failed */
	int worker_event_fd; /* workers write it */

	struct managed_port *ports[VL_PORTS_MAX]; /* index = port id */
	struct plan *_Atomic plan;
	uint64_t generation;
	uint32_t place_generation; /* last value given to queue_affinity */
	struct wire_talk talk;
	unsigned refused_next;
	struct refused_address refused[REFUSED_ADDRESSES];

	struct link_monitor *link_monitor;
	struct watchdog *watchdog;

	struct kick_probe *kick_probe;	 /* NULL = not yet, or the kernel does not tell */
	struct kick_opener *kick_opener; /* while the probe is being opened */
	bool kicks_wanted;		 /* it was begun, once */

	/* unserved.c */
	struct {
		uint64_t rounds; /* of the last look */
		unsigned stood;	 /* looks in a row in which it made no round, and work waited */
		unsigned ran;	 /* looks in a row in which it did, since it stalled */
		unsigned trust;	 /* so many are wanted */
		bool stalled;	 /* work waits, and it does not come to run */
	} served[VL_WORKERS_MAX];

	/* rebalance.c */
	struct hotplug *hotplug; /* NULL = the kernel does not tell */
	uint64_t looked_cycles;
	struct cpu_use cpu_use;
	struct looked_worker {
		uint64_t busy_ns, polling_ns, run_ns, run_delay_ns;
		uint32_t busy_permille;	      /* CPU time for work */
		uint32_t ran_permille;	      /* CPU time, polling included */
		uint32_t busy_scale_permille; /* of the time that it had work by the wall clock, it ran this much */
		uint32_t others_permille;     /* CPU time of others on its CPU */
		uint32_t waited_permille;     /* for its CPU, at the last look */
		bool delay_is_fresh;	      /* run_delay_ns is of the last look */
	} looked[VL_WORKERS_MAX];
	uint64_t looked_ns, delay_looked_ns;
	uint64_t gathered_ns, no_gathering_until_ns, gathering_penalty_ns; /* on crowded CPUs */
	unsigned looks;
};

/* Bit of a ring in managed_port.withdrawn. */
static inline bool ring_is_withdrawn(const struct managed_port *mp, unsigned ring)
{
	return mp->withdrawn[ring / 64] >> (ring % 64) & 1;
}

/* As of the publisher's last look. */
static inline bool ring_in_service(const struct managed_port *mp, unsigned ring)
{
	return mp->active[ring / 64] >> (ring % 64) & 1;
}

static inline unsigned domain_count(const struct engine *engine)
{
	return engine->uplink_count ? engine->uplink_count : 1;
}

static inline struct uplink *uplink_of(const struct engine *engine, const struct managed_port *mp)
{
	return mp->port->domain < engine->uplink_count ? engine->uplinks[mp->port->domain] : NULL;
}

#endif
