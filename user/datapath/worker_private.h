/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A worker's inside, shared by the worker*.c files and nobody else.
 *
 *   worker.c         the round
 *   worker_life.c    start and end, and what control tells and asks meanwhile
 *   worker_output.c  where the switch sends groups of frames: rings, devices, questions to control
 *   worker_calls.c   when guests are called
 *   worker_rest.c    polling on, sleeping, and the account of time
 */
#ifndef VHOSTLANE_DATAPATH_WORKER_PRIVATE_H
#define VHOSTLANE_DATAPATH_WORKER_PRIVATE_H

#include <ck_ring.h>
#include <stdatomic.h>

#include "datapath/coalesce.h"
#include "datapath/poll_trial.h"
#include "datapath/segment.h"
#include "datapath/switch.h"
#include "datapath/worker.h"

#define DIRTY_MAX 64		     /* pairs that wait for their call at the end of the round */
#define CALL_OWED_NS 100000ull	     /* how long a guest may wait for the call that its buffers came back */
#define CALL_OWED_SHARE 16	     /* not if that is this part of the ring: a guest that sends much may wait for it */
#define LEARN_RING 256		     /* learn requests in flight; a power of two */
#define LEARN_PER_PORT 32	     /* learn requests of one port in LEARN_WINDOW_NS */
#define LEARN_WINDOW_NS 100000000ull
#define POLLED_SLEEP_NS 1000000ull   /* longest sleep with something that nobody will wake us for */
#define ZERO_COPY_SLEEP_NS 100000000ull
#define UNSTICK_SIGNAL SIGUSR2
#define WINDOW_FIRST_NS 10000	     /* from 0, the first step up */
#define SUSPICIOUS_NS 5000	     /* a round without work that took longer was interrupted: by an interrupt, or by the scheduler */
#define PAUSE_SHORTEST_NS 1000000    /* no polling, after others had to interrupt it */
#define PAUSE_LONGEST_NS 200000000
#define STANDING_NS 10000	     /* a round that took longer kept the others' work standing */
#define STANDING_TELL_NS 10000000ull /* how often control is told of it */
#define SETTLE_NS 100000	     /* how often devices are settled by a worker that never sleeps */
/* A ring whose burst takes longer gets fewer frames at a time: what they cost (chains, segmentation) is its guest's choice. */
#define BURST_LONG_NS 100000
#define BURST_SHORT_NS 50000
#define DRAIN_COMPLETION_NS 150000000 /* how long a drain waits for the device to have sent, and not only to have taken */
#define JOIN_STEP_NS 10000000	     /* how often a worker that does not end is interrupted */

enum watched { WATCHED_CONTROL, WATCHED_LANE, WATCHED_KICK };

CK_RING_PROTOTYPE(learn, learn_request)

struct device_end {
	struct worker_device of;
	struct lane_port *port;
	uint64_t drain_to[VL_DEVICE_QUEUES_MAX]; /* what had arrived on each lane when control asked to drain */
	struct lane_tx_mark drain_tx_to; /* and what had been sent */
};

struct worker {
	/* Constant while it runs. */
	unsigned index;
	struct plan *_Atomic *published;
	struct device_end devices[WORKER_DEVICES_MAX];
	unsigned device_count;
	struct device_end *uplink[DOMAINS_MAX];	   /* by domain; NULL = none */
	struct device_end *host_link[DOMAINS_MAX]; /* by domain: the one of this worker's node, else the first */
	int control_fd, wake_fd, epoll_fd;
	pthread_t thread;
	struct switch_output output;

	/* Control writes, the worker reads. */
	_Atomic bool stopping;
	_Atomic bool hold_lanes;
	_Atomic uint32_t drain_wanted;
	_Atomic int cpu, node;
	_Atomic uint32_t patience; /* 0 .. WORKER_PATIENCE_FULL: share of its window that it polls */

	/* The worker writes, control reads. */
	_Atomic int tid;
	_Atomic int start_error; /* 1 = not yet, 0 = running, else negative errno value */
	_Atomic bool asleep;
	_Atomic uint32_t drain_seen, sent_seen;
	_Atomic uint64_t standing_ns; /* longest round since control asked last, if several pairs had work in it */
	uint64_t counters[WORKER_COUNTER_COUNT] CACHE_ALIGNED;
	ck_ring_t learn_ring;
	struct learn_request learn_buffer[LEARN_RING];

	/* The watchdog's own. */
	uint64_t watchdog_rounds;

	/* The worker's own. */
	struct plan *plan CACHE_ALIGNED; /* valid from the start of a round to its quiescent state */
	uint64_t generation;
	uint64_t round_start_ns, last_work_ns;
	uint64_t window_ns, window_bound_ns; /* how long it polls now, and at most */
	uint64_t pause_until_ns, pause_ns; /* no polling until then, after it was interrupted; and how long that is */
	long preemptions; /* involuntary context switches, when last asked for */
	bool adaptive; /* of the share's pairs, one is */
	struct poll_trial trial;
	bool slept; /* since the last work */
	uint64_t standing_told_ns, settled_ns;
	uint32_t busy_pairs; /* with work in this round */
	uint32_t drain_noted; /* the request that drain_to[] is of */
	uint64_t drain_noted_ns;
	uint64_t start_ns, start_cycles, burst_long_cycles, burst_short_cycles; /* cycles are 0 until the clock is measured */
	bool from_lane; /* the burst in hand came up a lane */
	uint32_t dirty_count;
	struct queue_pair *dirty[DIRTY_MAX];
	uint64_t learn_window_start_ns;
	uint8_t learn_asked[VL_PORTS_MAX]; /* in this window */
	struct learn_request last_learn;
	uint64_t last_learn_generation;
	struct frame_burst burst;
	struct coalesce_scratch coalesce;
	struct segmenter segmenter;
	struct segment_burst segments;
};

static inline void worker_count(struct worker *w, enum worker_counter which, uint64_t n)
{
	worker_counter_add(w->counters, which, n);
}

/* Time spent on a pair; lanes' workers charge pairs of others too. */
static inline void worker_charge(struct queue_pair *pair, uint64_t cycles)
{
	atomic_fetch_add_explicit(&pair->busy_cycles, cycles, memory_order_relaxed);
}

/* worker.c */
void worker_serve(struct worker *w); /* until ->stopping; by its own thread */

/* worker_output.c */
extern const struct switch_output worker_output; /* context: struct worker */
void worker_tell_control(struct worker *w);
void worker_report_fault(struct worker *w, struct queue_pair *pair);

/* worker_calls.c */
void worker_flush_calls(struct worker *w); /* of worker_call_after_round() */
void worker_call_after_round(struct worker *w, struct queue_pair *pair); /* to_guest, of any pair */
void worker_call_later(struct worker *w, struct queue_pair *pair);	 /* from_guest, of a pair of its share */
uint64_t worker_call_in_ns(const struct worker *w, struct queue_pair *pair); /* when that comes, or UINT64_MAX: nothing is owed */

/* worker_rest.c */
void worker_adopt_bound(struct worker *w); /* of the plan's pairs */
void worker_account_round(struct worker *w, bool worked);
void worker_rest(struct worker *w);

#endif
