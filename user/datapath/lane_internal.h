/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the lane's four files share: lane_socket.c makes sockets and maps rings, lane_device.c puts devices together and
 * counts, lane.c takes frames in, lane_send.c sends them. Nobody else includes this.
 */
#ifndef VHOSTLANE_DATAPATH_LANE_INTERNAL_H
#define VHOSTLANE_DATAPATH_LANE_INTERNAL_H

#include <ck_spinlock.h>
#include <linux/if_xdp.h>
#include <stddef.h>

#include "datapath/lane.h"

/* Newer than the distribution's header. */
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif
#ifndef XDP_UMEM_TX_METADATA_LEN
#define XDP_UMEM_TX_METADATA_LEN (1 << 2)
#endif
#ifndef XDP_TX_METADATA
#define XDP_TX_METADATA (1 << 1)
#endif
#ifndef XDP_TXMD_FLAGS_CHECKSUM
#define XDP_TXMD_FLAGS_CHECKSUM (1 << 1)
#endif
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9
#endif

#define LANE_XDP_HEADROOM 256 /* XDP_PACKET_HEADROOM: the kernel leaves it before each received piece */
#define LANE_TX_OFFSET 64     /* a sent piece starts here in its chunk: room for transmit metadata, aligned to a cache line */
#define LANE_TX_METADATA 16   /* of which the kernel reads this much right before the piece */
#define LANE_TX_CHUNKS_MAX 16 /* pieces of one sent frame; the kernel takes MAX_SKB_FRAGS = 17 */
#define LANE_TX_BATCH 256     /* pieces put on TX under one lock */
#define LANE_STAGE_SIZE LANE_TX_BATCH

_Static_assert(LANE_XDP_HEADROOM >= FRAME_HEADROOM, "a received head has its headroom in the chunk");
_Static_assert((LANE_RING_SIZE & (LANE_RING_SIZE - 1)) == 0, "the kernel wants powers of two");

/* struct xsk_tx_metadata as of Linux 6.8, what the kernel is asked for. Offsets count from the piece's first byte. */
struct lane_tx_metadata {
	uint64_t flags;
	uint16_t csum_start, csum_offset;
	uint32_t unused;
};
_Static_assert(sizeof(struct lane_tx_metadata) == LANE_TX_METADATA && LANE_TX_METADATA <= LANE_TX_OFFSET, "there is room for it");

/* One ring shared with the kernel. Its other end's index is read with acquire, ours is published with release. */
struct lane_ring {
	uint32_t *producer, *consumer, *flags;
	void *entries;
	uint32_t mask;
	/* Our own index, maybe ahead of what is published: producer on FILL and TX, consumer on RX and COMPLETION. That of TX is also read
	 * without the lock, to see if something is left. */
	uint32_t next;
	void *map;
	size_t map_size;
};

/* One socket. RX belongs to its worker. */
struct lane {
	struct lane_device *device;
	int fd;
	unsigned queue, worker;
	struct lane_ring rx;
	uint64_t chunks_taken; /* off RX, ever; one writer: its worker */
	uint64_t tx_given, tx_back; /* as of the queue, but by this worker alone; kept where workers share a TX ring, under its lock */
	struct lane_counters counters;
} CACHE_ALIGNED;

/* One device queue: the rings that its first lane's socket holds. */
struct lane_queue {
	int fd; /* the first lane's */
	ck_spinlock_t fill_lock CACHE_ALIGNED; /* of the two below */
	struct lane_ring fill;
	uint64_t fill_given; /* frames put on FILL, ever */
	ck_spinlock_t tx_lock CACHE_ALIGNED; /* of all below */
	struct lane_ring tx, completion;
	uint64_t tx_given, tx_back; /* frames put on TX and taken off COMPLETION, ever */
} CACHE_ALIGNED;

/* Pieces that wait at a worker's end for its flush, where workers share a TX ring in copy mode. Its worker's; no lock. */
struct lane_stage {
	uint32_t count;
	struct xdp_desc descs[LANE_STAGE_SIZE];
};
_Static_assert(LANE_STAGE_SIZE >= LANE_TX_BATCH, "any batch fits an empty stage whole");

struct lane_device {
	struct lane_device_setup setup;
	enum lane_mode mode; /* in use */
	bool zero_copy;
	bool tx_in_steps;    /* copy mode of a kernel that shows how far it came with TX only when it has emptied it (lane_send.c) */
	uint32_t rx_size;    /* descriptors of each RX ring */
	uint32_t chunk_mask; /* frame_size - 1 */
	uint8_t *tx_owner;   /* worker that gave each chunk to TX; NULL where no two workers share a TX ring */
	uint32_t frame_max;  /* longest frame that may be sent; control stores, workers load */
	bool metadata;	     /* the kernel takes transmit metadata */
	bool leaves_checksum; /* open checksums are left to it; control stores, workers load */
	struct frame_pool *pool;
	uint8_t *area;
	struct lane_queue *queues;
	struct lane *lanes; /* [queue * workers + worker] */
	unsigned queues_open, lanes_open;
};

/* Opens, maps, fills and binds the next socket of @device: lanes_open tells which. @want: auto, zero-copy or copy. */
int lane_socket_open(struct lane_device *device, enum lane_mode want, struct error *error);
void lane_socket_close(struct lane_device *device, struct lane *lane);

/* Takes back what the kernel has sent, if anything, from the queue on which this worker sends. */
void lane_reap(struct lane_port *port);

static inline uint64_t *lane_ring_address(const struct lane_ring *ring, uint32_t index)
{
	return (uint64_t *)ring->entries + (index & ring->mask);
}

static inline struct xdp_desc *lane_ring_desc(const struct lane_ring *ring, uint32_t index)
{
	return (struct xdp_desc *)ring->entries + (index & ring->mask);
}

/* Of rings that we produce on: entries free. */
static inline uint32_t lane_ring_space(const struct lane_ring *ring)
{
	return ring->mask + 1 - (ring->next - __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE));
}

/* Of rings that we consume from: entries there. */
static inline uint32_t lane_ring_available(const struct lane_ring *ring)
{
	return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - ring->next;
}

static inline void lane_ring_publish(struct lane_ring *ring)
{
	__atomic_store_n(ring->producer, ring->next, __ATOMIC_RELEASE);
}

static inline void lane_ring_release(struct lane_ring *ring)
{
	__atomic_store_n(ring->consumer, ring->next, __ATOMIC_RELEASE);
}

/* As both sides see it, without any lock. Consumer first: it never passes the producer, so the difference is never negative. */
static inline uint32_t lane_ring_level(const struct lane_ring *ring)
{
	uint32_t consumer = __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE);

	return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - consumer;
}

/* Of TX: what the kernel was not yet seen to take, published or not. Without any lock. */
static inline uint32_t lane_tx_left(const struct lane_ring *tx)
{
	uint32_t consumer = __atomic_load_n(tx->consumer, __ATOMIC_ACQUIRE);

	return __atomic_load_n(&tx->next, __ATOMIC_ACQUIRE) - consumer;
}

static inline struct lane *lane_tx_owner(const struct lane_device *device, const struct lane_queue *queue, uint64_t address)
{
	const uint8_t worker = device->tx_owner[address / (device->chunk_mask + 1)];

	return &device->lanes[(uint32_t)(queue - device->queues) * device->setup.workers + worker];
}

static inline uint32_t lane_staged(const struct lane_port *port)
{
	return port->stage ? port->stage->count : 0;
}

static inline bool lane_ring_wants_wakeup(const struct lane_ring *ring)
{
	return __atomic_load_n(ring->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

/* Counters have one writer and are read by control. */
static inline void lane_count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

#endif
