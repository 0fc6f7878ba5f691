/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A light vhost-user frontend with the driver side of its split rings: a guest without an operating system, for benches. Real in all that
 * the backend sees: a memfd as memory, one message after the other, kick and call eventfds, event index or flags. It connects to a
 * backend that listens, vhostlane or any other.
 *
 * Buffer i belongs to descriptor i for ever, so the available ring itself is the list of free buffers: what comes back by used
 * index u is offered again by available index u + size. Nothing is allocated, and a backend that returns buffers in order has the available
 * ring written only once.
 *
 * A ring belongs to one thread at a time. Opening and closing: any one thread.
 */
#ifndef TESTS_BENCH_FRONTEND_H
#define TESTS_BENCH_FRONTEND_H

#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/util.h"
#include "datapath/vnet.h"

#define FRONTEND_PAIRS_MAX 16
#define FRONTEND_RING_MAX 1024
#define FRONTEND_BUFFER 2048
#define FRONTEND_HEADER VNET_HEADER_MODERN
#define FRONTEND_FRAME_MAX (FRONTEND_BUFFER - FRONTEND_HEADER)

struct frontend_setup {
	const char *socket;
	unsigned pairs;	    /* 1 .. FRONTEND_PAIRS_MAX */
	unsigned ring_size; /* power of two up to FRONTEND_RING_MAX */
	bool event_index, mergeable;
	bool huge;	    /* guest memory on huge pages if there are some */
	const int *call_fds; /* one a pair, both its rings; NULL = made here */
};

struct frontend_ring {
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint8_t *buffers;
	uint16_t size, mask;
	uint16_t avail_next;	/* index of the next buffer offered */
	uint16_t avail_published;
	uint16_t used_seen;	/* index of the next buffer taken back */
	uint16_t used_known;	/* used->idx when last looked */
	bool event_index;
	int kick_fd, call_fd;
	uint64_t kicks;
} CACHE_ALIGNED;

struct frontend_pair {
	struct frontend_ring to_guest, from_guest;
};

struct frontend {
	int fd;
	uint64_t features;
	bool acknowledges; /* VHOST_USER_PROTOCOL_F_REPLY_ACK */
	bool own_call_fds, huge;
	uint8_t *memory;
	uint64_t memory_size;
	int memory_fd;
	unsigned pairs, ring_size;
	struct frontend_pair pair[FRONTEND_PAIRS_MAX];
};

/* Connects, negotiates, shares memory, starts all rings with the to_guest ones full of buffers. Return: 0 or negative errno value. */
int frontend_open(struct frontend *frontend, const struct frontend_setup *setup, struct error *error);
/* Fetches the rings back as a guest does that goes down, then closes. */
void frontend_close(struct frontend *frontend);

/* --- driver ---------------------------------------------------------------------------------------------------------- */

static inline uint16_t *frontend_used_event(struct frontend_ring *r)
{
	return &r->avail->ring[r->size];
}

static inline uint16_t frontend_avail_event(struct frontend_ring *r)
{
	return __atomic_load_n((uint16_t *)(void *)&r->used->ring[r->size], __ATOMIC_RELAXED);
}

/* Buffers that the device has finished with and that were not taken back yet. */
static inline uint16_t frontend_ready(struct frontend_ring *r)
{
	if (r->used_known == r->used_seen)
		r->used_known = __atomic_load_n(&r->used->idx, __ATOMIC_ACQUIRE);
	return (uint16_t)(r->used_known - r->used_seen);
}

/* Takes one back; only if frontend_ready(). Its slot in the available ring now names it, to be offered in its turn. */
static inline uint16_t frontend_take(struct frontend_ring *r, uint32_t *length)
{
	const uint16_t slot = r->used_seen++ & r->mask;
	const uint16_t id = (uint16_t)r->used->ring[slot].id & r->mask;

	*length = r->used->ring[slot].len;
	if (r->avail->ring[slot] != id)
		r->avail->ring[slot] = id;
	return id;
}

/* Buffers that the driver may fill and offer. from_guest only: a to_guest ring offers all that it takes back. */
static inline uint16_t frontend_room(const struct frontend_ring *r)
{
	return (uint16_t)(r->size - (uint16_t)(r->avail_next - r->used_seen));
}

/* Takes back what has been sent. */
static inline void frontend_reap(struct frontend_ring *r)
{
	uint32_t length;

	for (uint16_t count = frontend_ready(r); count; count--)
		frontend_take(r, &length);
}

/* The @ahead-th frame to be offered next, of frontend_room(): where its bytes are to be written. */
static inline uint8_t *frontend_frame_ahead(struct frontend_ring *r, unsigned ahead)
{
	const uint16_t id = r->avail->ring[(r->avail_next + ahead) & r->mask];

	return r->buffers + (size_t)id * FRONTEND_BUFFER + FRONTEND_HEADER;
}

/* Offers the next buffer with a frame of @length in it. The header in front of it stays zero. */
static inline void frontend_offer(struct frontend_ring *r, uint32_t length)
{
	struct vring_desc *desc = &r->desc[r->avail->ring[r->avail_next & r->mask]];

	if (desc->len != length + FRONTEND_HEADER)
		desc->len = length + FRONTEND_HEADER;
	r->avail_next++;
}

/* Received frame in buffer @id of @length as frontend_take() told it. Valid until frontend_publish(). */
static inline const uint8_t *frontend_received(struct frontend_ring *r, uint16_t id, uint32_t *length)
{
	*length = *length > FRONTEND_HEADER ? *length - FRONTEND_HEADER : 0;
	return r->buffers + (size_t)id * FRONTEND_BUFFER + FRONTEND_HEADER;
}

void frontend_kick(struct frontend_ring *r);

/* Tells the device of all that was offered; kicks it if it asked for that. */
static inline void frontend_publish(struct frontend_ring *r)
{
	const uint16_t old = r->avail_published, new = r->avail_next;

	if (old == new)
		return;
	__atomic_store_n(&r->avail->idx, new, __ATOMIC_RELEASE);
	r->avail_published = new;
	atomic_thread_fence(memory_order_seq_cst);
	if (r->event_index ? vring_need_event(frontend_avail_event(r), new, old)
			   : !(__atomic_load_n(&r->used->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY))
		frontend_kick(r);
}

/*
 * Asks for a call when @more further buffers are done (1 = the next one). Return: true if they are done already, so that no call
 * may come. Without event index a call may come earlier.
 */
static inline bool frontend_arm(struct frontend_ring *r, uint16_t more)
{
	if (r->event_index)
		__atomic_store_n(frontend_used_event(r), (uint16_t)(r->used_seen + more - 1), __ATOMIC_RELAXED);
	else
		__atomic_store_n(&r->avail->flags, 0, __ATOMIC_RELAXED);
	atomic_thread_fence(memory_order_seq_cst);
	r->used_known = __atomic_load_n(&r->used->idx, __ATOMIC_ACQUIRE);
	return (uint16_t)(r->used_known - r->used_seen) >= more;
}

/* No calls wanted. With an event index nothing needs to be done: the one asked for lies behind. */
static inline void frontend_disarm(struct frontend_ring *r)
{
	if (!r->event_index)
		__atomic_store_n(&r->avail->flags, VRING_AVAIL_F_NO_INTERRUPT, __ATOMIC_RELAXED);
}

#endif
