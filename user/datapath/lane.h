/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * AF_XDP sockets of one device (Documentation/networking/af_xdp.rst). A lane carries frames of one device queue to one
 * worker. The first lane of a queue is the queue's own socket and holds its FILL, COMPLETION and TX ring; further lanes
 * are RX-only sockets on the same UMEM (rig.md: shared UMEM rules). Knows neither BPF maps nor virtio.
 *
 * Opened and closed by control while no worker sees them. A lane's RX belongs to one worker. A queue's FILL, TX and
 * COMPLETION are used under short locks, taken once per burst: worker w sends on queue w % queues, so that with as many
 * queues as workers nobody meets anybody; refill takes the lock only if it is free (trylock) and keeps frames otherwise.
 */
#ifndef VHOSTLANE_DATAPATH_LANE_H
#define VHOSTLANE_DATAPATH_LANE_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "datapath/frame.h"
#include "datapath/frame_pool.h"

enum lane_mode { LANE_MODE_AUTO, LANE_MODE_ZERO_COPY, LANE_MODE_COPY, LANE_MODE_GENERIC, LANE_MODE_COUNT };
extern const char *const lane_mode_names[LANE_MODE_COUNT]; /* "auto", "zero-copy", "copy", "generic" */

#define LANE_RING_SIZE 2048 /* descriptors of each FILL, TX and COMPLETION ring, and of an RX ring of up to four workers */
#define LANE_RX_SIZE_MIN 256 /* RX rings of more workers are smaller, so that the frames they can hold stay bounded (lane_device.c) */
#define LANE_BURST_CHUNKS (FRAME_BURST * 4) /* UMEM frames of one received burst, at most */
#define LANE_BIND_RETRY_US 200
#define LANE_BIND_RETRY_TOTAL_US 200000 /* EBUSY after a crash lasts 10 to 20 ms */

struct lane_device_setup {
	char ifname[IF_NAMESIZE];
	unsigned ifindex;
	unsigned queues;  /* 1 .. VL_DEVICE_QUEUES_MAX; all are bound */
	unsigned workers; /* workers at start: lanes per queue, 1 .. VL_WORKERS_MAX */
	enum lane_mode mode;
	int node; /* NUMA node for the UMEM, -1 = none */
	uint32_t frame_size;
	unsigned mtu;	   /* of the device, 0 = no limit but the frames': what is longer is refused here, by name, before the kernel drops it */
	bool multi_buffer; /* bind with XDP_USE_SG: frames may span chunks (MTU above what a chunk holds) */
};

struct lane_counters {	/* one writer: the lane's worker */
	uint64_t frames, bytes;
};

struct lane_device;
struct lane; /* one socket */
struct lane_stage;

/* Makes the pool, opens queues x workers sockets. Mode auto: zero-copy if the driver binds it, else copy. Return: NULL
 * with *error (names device, queue, count of queues bound, remedy). */
struct lane_device *lane_device_open(const struct lane_device_setup *setup, struct error *error);
void lane_device_close(struct lane_device *device);

const char *lane_device_name(const struct lane_device *device);
enum lane_mode lane_device_mode(const struct lane_device *device); /* in use: zero-copy or copy; generic if set up so */
/* The device's MTU changed. Any thread. */
void lane_device_set_mtu(struct lane_device *device, unsigned mtu);
/* Longest frame that may be sent: MTU, Ethernet header, one VLAN tag (as the kernel itself allows). Bytes. */
uint32_t lane_device_frame_max(const struct lane_device *device);
/*
 * Open checksums of TCP and UDP (offload.plain_checksum) are left to what stands behind the lanes, or not; all others are completed here
 * while they are copied. Only where the kernel takes transmit metadata (Linux 6.11; lane_device_leaves_checksum() tells); at first it is not
 * asked. The caller knows that the device takes them. Any thread, at any time.
 */
bool lane_kernel_has_metadata(void); /* tried, on a socket of its own; false also if sockets are not allowed. May block */
void lane_device_leave_checksum(struct lane_device *device, bool leave);
bool lane_device_leaves_checksum(const struct lane_device *device);
struct frame_pool *lane_device_pool(struct lane_device *device);
unsigned lane_device_queues(const struct lane_device *device);
unsigned lane_device_workers(const struct lane_device *device);

struct lane *lane_of(struct lane_device *device, unsigned queue, unsigned worker);
int lane_fd(const struct lane *lane);	    /* for XSKMAP and epoll */
unsigned lane_queue(const struct lane *lane);
struct lane_device *lane_device_of(const struct lane *lane);
const struct lane_counters *lane_counters_of(const struct lane *lane);

/* --- one worker's end of a device ---------------------------------------------------------------------------------- */

/* What a worker needs to send on a device and to give frames back; made by control, used by that worker only. */
struct lane_port {
	struct lane_device *device;
	unsigned worker;
	unsigned tx_queue;	       /* worker % queues */
	struct frame_cache cache;
	uint64_t taken[LANE_BURST_CHUNKS]; /* UMEM frames of the burst that lane_receive() handed out */
	uint64_t held[LANE_BURST_CHUNKS];  /* consumed RX frames whose queue's FILL was locked by another worker */
	uint32_t taken_count, held_count;
	struct lane_stage *stage;	   /* frames copied for lane_flush() to send; NULL where TX is this worker's alone, or zero-copy */
	uint64_t kicks, kicks_refused;	   /* refused: the device is down or gone (ENETDOWN, ENXIO); what is on TX stays there */
	uint64_t lost_in_kernel;	   /* copy mode: frames that the kernel took off TX and the device then refused (EBUSY) */
	uint64_t sent_frames, sent_bytes;
	uint64_t left_checksums;	   /* of sent_frames: those whose checksum was left to the device */
	uint64_t dropped_no_frame, dropped_ring_full, dropped_too_long; /* to device: frames not sent, by reason */
	bool tx_pending; /* TX holds something that the kernel was not told of, or would not take yet. Still set after
			  * lane_settle(): nothing will wake the worker for it; sleep a millisecond or so at most, then settle again */
};

struct lane_port *lane_port_create(struct lane_device *device, unsigned worker, struct error *error);
void lane_port_destroy(struct lane_port *port); /* gives all frames back */

/**
 * lane_receive() - a burst of frames from the device
 * Frames' heads lie in UMEM (private memory, headroom writable); frames of several chunks have the rest as segments.
 * The burst must be finished by lane_release() before the next lane_receive() on any lane of this lane_port.
 */
unsigned lane_receive(struct lane_port *port, struct lane *lane, struct frame_burst *burst, unsigned max);
void lane_release(struct lane_port *port, struct lane *lane, struct frame_burst *burst);

/* Pieces that ever arrived on the lane, and that were taken: the lane has been drained of all that stood there at a moment once taken has come
 * as far as arrived was then. Any thread; the lane's worker only for exactness. */
uint64_t lane_arrived(const struct lane *lane);
uint64_t lane_taken(const struct lane *lane);

/*
 * lane_tx_mark() - how far this end has filled the queue on which it sends. By its worker
 * A flow that goes on over another queue keeps its order if it waits for lane_tx_passed(): @completed: all up to the mark has left the
 * device; else the kernel has taken it off the ring, which is all that can be known soon where a driver completes lazily.
 */
struct lane_tx_mark {
	uint64_t queue, own; /* frames given to the queue, and those of them by this end */
};
struct lane_tx_mark lane_tx_mark(struct lane_port *port);
bool lane_tx_passed(struct lane_port *port, const struct lane_tx_mark *mark, bool completed);

/* Without taking them; cheap. */
bool lane_pending(const struct lane *lane);

/* Copies frames (padded to FRAME_LENGTH_PADDED) into UMEM frames and puts them on TX, or holds them for lane_flush(). Return: how many; the rest is counted as dropped
 * by reason. Reaps COMPLETION itself. Never blocks. */
unsigned lane_send(struct lane_port *port, struct frame *const *frames, unsigned count);

/* Kicks the kernel if something is pending (copy mode sends inside this call); bounded, EAGAIN/EBUSY are not errors. */
void lane_flush(struct lane_port *port);

/* Before sleep: frames held back go to FILL now, completions are reaped, FILL is woken if the driver asks. */
void lane_settle(struct lane_port *port);

/*
 * Sum of all frames by place, for the conservation proof. Control thread; exact when workers rest. fill, rx, tx and completion are
 * read from the rings' shared indices; kernel is what this side gave to the kernel and has not got back (counted on its own) and that is
 * in no ring: a driver's receive ring in zero-copy mode, frames on their way out. total = sum of all the others.
 */
struct lane_census {
	uint32_t total, stock, cached, held, fill, rx, tx, completion;
	int64_t kernel; /* negative: the kernel gave back what it never got, a fault */
};
/* @ports: the lane_port of each worker (count = lane_device_workers()). */
void lane_device_census(struct lane_device *device, struct lane_port *const *ports, struct lane_census *census);

/* Kernel's own drop counters, summed over the device's sockets (getsockopt XDP_STATISTICS). */
struct lane_kernel_drops {
	uint64_t rx_dropped, rx_invalid, tx_invalid, rx_ring_full, fill_ring_empty, tx_ring_empty;
};
void lane_device_kernel_drops(struct lane_device *device, struct lane_kernel_drops *drops);

#endif
