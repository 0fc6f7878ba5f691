/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What flows between ends: request-response and streams, as one thread per end drives them. An end is one queue pair of a guest, or the
 * remote host on the wire; traffic.c knows only their operations.
 *
 * Theory of operation. One process per guest and one for the wire; all share one struct traffic. The parent fills in flows and work
 * while all threads wait at the barrier, lets them run, and reads their counters.
 *   request-response	The flow's first end keeps `in_flight` requests under way; whoever gets one sends it back as it came. Latency is
 *			measured by the time stamp that it carries.
 *   stream		The flow's first end sends as long as fewer than `in_flight` frames are unacknowledged, as TCP does; the other
 *			acknowledges with a short frame for every quarter of that, and before it goes to sleep.
 * A thread without work blocks as a guest does: notifications on, a last look, read() of its eventfd. What was lost for good is noticed by
 * the parent (traffic_look_after), which asks the flow to start again.
 */
#ifndef TESTS_BENCH_TRAFFIC_H
#define TESTS_BENCH_TRAFFIC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/util.h"
#include "measure.h"

#define GUESTS_MAX 32
#define ENDS_MAX 257 /* queue pairs of all guests, and the wire */
#define FLOWS_MAX 1024
#define HEAD_LENGTH 60 /* Ethernet, IPv4, UDP, stamp, padding: what differs between frames */
#define FRAME_LENGTH_LARGEST 1514
#define PACKETS_MAX 64 /* of one received burst */

enum work_kind { WORK_END, WORK_REQUEST_RESPONSE, WORK_STREAM };
enum work_path { PATH_GUEST_TO_GUEST, PATH_WIRE_TO_GUEST, PATH_GUEST_TO_WIRE };

struct work {
	enum work_kind kind;
	enum work_path path;
	uint32_t length; /* of a frame */
	uint32_t in_flight;
	uint32_t flows; /* of each end that begins some */
};

enum packet_kind { PACKET_REQUEST, PACKET_RESPONSE, PACKET_DATA, PACKET_ACKNOWLEDGEMENT };

/* At STAMP_AT of each frame. */
#define STAMP_AT 42
struct stamp {
	uint16_t flow;
	uint8_t kind;
	uint8_t epoch; /* of the work: what is left over from an earlier one is not counted */
	uint32_t sequence;
	uint64_t time_ns;
};
_Static_assert(sizeof(struct stamp) == 16 && STAMP_AT + 16 <= HEAD_LENGTH, "the stamp fits the shortest frame");

struct flow {
	uint8_t forth[HEAD_LENGTH], back[HEAD_LENGTH]; /* frames' beginnings; set by the parent */
	uint16_t from;		  /* end that begins it */
	_Atomic bool stalled;	  /* parent sets, its first end clears */
	uint32_t progress_seen, stall_looks; /* parent's own */
	/* The first end's; in request-response under its lock, as another queue pair of that guest may get the answer. */
	uint32_t next CACHE_ALIGNED; /* sequence number of the next frame */
	uint32_t base;		  /* stream: first one unacknowledged. request-response: answers to earlier ones don't count any more */
	_Atomic uint32_t progress;
	/* The other end's. */
	uint32_t expected CACHE_ALIGNED;
	uint32_t unacknowledged;
	_Atomic int answered_on;  /* end that sent last; -1 = none yet */
} CACHE_ALIGNED;

/* One writer, the end's thread; the parent reads. */
struct end_counters {
	uint64_t transactions, frames, bytes; /* frames and bytes of streams */
	uint64_t lost, reordered, no_room;
	uint64_t home, astray; /* frames that came on the queue pair on which their flow was sent last, and others */
	uint64_t sleeps, restarts;
	struct histogram latency;
} CACHE_ALIGNED;

struct traffic {
	pthread_barrier_t barrier; /* all ends and the parent */
	struct work work;
	uint8_t epoch;
	_Atomic bool stop, measuring;
	uint32_t flow_count;
	struct flow flows[FLOWS_MAX];
	struct end_counters counters[ENDS_MAX];
};

struct packet {
	const uint8_t *data;
	uint32_t length;
};

struct end;
struct end_ops {
	/* Frames that have come; valid until release(). */
	unsigned (*receive)(struct end *end, struct packet *packets, unsigned max);
	void (*release)(struct end *end);
	/* Room for one frame to send, its part beyond the head being whatever it is; NULL = none. Then its length. flush() sends. */
	uint8_t *(*reserve)(struct end *end);
	void (*offer)(struct end *end, uint32_t length);
	void (*flush)(struct end *end);
	/* Blocks until something has come, or if @for_room until there is room too, or until woken. May return early. */
	void (*wait)(struct end *end, bool for_room);
};

struct end {
	const struct end_ops *ops;
	struct traffic *traffic;
	unsigned number;
	int wake_fd;	       /* the parent writes to it */
	bool shared;	       /* other threads may send on it, under the lock */
	_Atomic bool locked;
	struct end *const *siblings; /* ends of the same guest, this one among them */
	unsigned sibling_first;	     /* number of siblings[0] */
	/* Flows that this end begins, and those that it owes an acknowledgement. */
	uint16_t flows[FLOWS_MAX], owed[FLOWS_MAX];
	uint32_t flow_count, owed_count;
};

/* The thread of one end: all works, until WORK_END. */
void traffic_serve(struct end *end);

/* Parent: a flow from @from to @to, by MAC. */
void traffic_add_flow(struct traffic *traffic, uint16_t from, const uint8_t from_mac[6], const uint8_t to_mac[6]);

/* Parent, every LOOK_MS while it runs: restarts flows without progress. @wake_fds: by end. */
#define LOOK_MS 50
void traffic_look_after(struct traffic *traffic, const int *wake_fds);

#endif
