/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames from a device, and UMEM frames back to it. The other way: lane_send.c.
 *
 * Theory of operation. lane_receive() describes what lies on an RX ring without touching it; lane_release() puts the same UMEM
 * frames back on FILL of that queue. Frames of one UMEM are all alike, so what FILL has no room for goes to the worker's
 * cache and what FILL lacks comes from there (lane_device.c says why there always is one). A FILL lock that is taken is not
 * waited for: frames wait in ->held until the next visit, or until ->held is full.
 * No call here blocks.
 */
#include "datapath/lane.h"

#include <string.h>
#include <sys/socket.h>

#include "common/util.h"
#include "datapath/burst_lock.h"
#include "datapath/lane_internal.h"

#define FILL_LOW (LANE_RING_SIZE / 4 * 3) /* FILL is topped up from the cache when fewer are on it: not for every frame in flight */

/* A packet of the kernel's is at most 64 KiB and its pieces are full but for the last. */
_Static_assert(LANE_BURST_CHUNKS * (2048 - LANE_XDP_HEADROOM) >= 2 * 65536, "any packet fits a burst whole");
_Static_assert(FRAME_SEGMENTS >= LANE_BURST_CHUNKS, "a burst's segments cannot run out");

/* --- FILL --------------------------------------------------------------------------------------------------------- */

static void fill_wake(const struct lane_queue *queue)
{
	if (unlikely(lane_ring_wants_wakeup(&queue->fill)))
		recvfrom(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
}

static uint32_t fill_put(struct lane_ring *fill, const uint64_t *frames, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		*lane_ring_address(fill, fill->next++) = frames[i];
	return count;
}

/* Held frames, the burst's frames, then the cache's while FILL is low; what finds no room goes to the cache. Lock held. */
static void fill_serve(struct lane_port *port, struct lane_queue *queue)
{
	uint32_t space = lane_ring_space(&queue->fill);
	uint32_t held = fill_put(&queue->fill, port->held, min_u32(port->held_count, space));
	uint32_t taken = fill_put(&queue->fill, port->taken, min_u32(port->taken_count, space - held));
	uint32_t more = 0;

	space -= held + taken;
	if (space > LANE_RING_SIZE - FILL_LOW) {
		uint64_t frames[FRAME_BURST];
		uint32_t got;

		do {
			got = frame_cache_take(&port->cache, frames, min_u32(space - more, FRAME_BURST));
			more += fill_put(&queue->fill, frames, got);
		} while (got && more < space);
	}
	if (held + taken + more) {
		lane_ring_publish(&queue->fill);
		queue->fill_given += held + taken + more;
	}
	burst_unlock(&queue->fill_lock);

	frame_cache_give(&port->cache, port->held + held, port->held_count - held);
	frame_cache_give(&port->cache, port->taken + taken, port->taken_count - taken);
	port->held_count = port->taken_count = 0;
	fill_wake(queue);
}

/* Gives the burst's frames back, now or (lock taken, room in ->held) at the next visit. */
static void give_back(struct lane_port *port, struct lane_queue *queue)
{
	if (unlikely(!burst_trylock(&queue->fill_lock))) {
		if (port->held_count + port->taken_count <= ARRAY_SIZE(port->held)) {
			memcpy(port->held + port->held_count, port->taken, port->taken_count * sizeof(port->taken[0]));
			port->held_count += port->taken_count;
			port->taken_count = 0;
			return;
		}
		burst_lock(&queue->fill_lock);
	}
	fill_serve(port, queue);
}

/* Nothing came in: FILL must not depend on that. */
static void fill_visit(struct lane_port *port, struct lane_queue *queue)
{
	if (unlikely(port->held_count || lane_ring_level(&queue->fill) < FILL_LOW)) {
		if (burst_trylock(&queue->fill_lock))
			fill_serve(port, queue);
	} else {
		fill_wake(queue);
	}
}

/* --- from the device ---------------------------------------------------------------------------------------------- */

/* Descriptors of the packet that starts @at entries on; 0 if it is not there whole. */
static uint32_t packet_chunks(const struct lane_ring *rx, uint32_t at, uint32_t available)
{
	for (uint32_t end = at; end < available; end++)
		if (!(lane_ring_desc(rx, rx->next + end)->options & XDP_PKT_CONTD))
			return end + 1 - at;
	return 0;
}

static void frame_from_chunks(struct lane_port *port, const struct lane *lane, struct frame_burst *burst, uint32_t at, uint32_t chunks)
{
	const struct lane_device *device = lane->device;
	const struct xdp_desc *desc = lane_ring_desc(&lane->rx, lane->rx.next + at);
	struct frame *frame = &burst->frames[burst->count++];

	frame->head = device->area + desc->addr;
	__builtin_prefetch(frame->head);
	frame->head_length = (uint16_t)desc->len;
	frame->length = desc->len;
	frame->segments = &burst->segments[burst->segment_count];
	frame->segment_count = (uint16_t)(chunks - 1);
	memset(&frame->vnet, 0, sizeof(frame->vnet));
	memset(&frame->offload, 0, sizeof(frame->offload));
	frame->origin = 0;
	port->taken[port->taken_count++] = desc->addr & ~(uint64_t)device->chunk_mask;

	for (uint32_t i = 1; i < chunks; i++) {
		desc = lane_ring_desc(&lane->rx, lane->rx.next + at + i);
		burst->segments[burst->segment_count++] = (struct frame_segment){device->area + desc->addr, desc->len};
		frame->length += desc->len;
		port->taken[port->taken_count++] = desc->addr & ~(uint64_t)device->chunk_mask;
	}
}

unsigned lane_receive(struct lane_port *port, struct lane *lane, struct frame_burst *burst, unsigned max)
{
	struct lane_queue *queue = &lane->device->queues[lane->queue];
	uint32_t available, chunks, at = 0;
	uint64_t bytes = 0;

	burst->count = 0;
	burst->segment_count = 0;
	if (unlikely(port->taken_count))
		give_back(port, queue);
	available = min_u32(lane_ring_available(&lane->rx), LANE_BURST_CHUNKS);
	max = min_u32(max, FRAME_BURST);

	/* A packet whose end lies beyond this burst is left whole for the next. */
	while (burst->count < max && (chunks = packet_chunks(&lane->rx, at, available))) {
		frame_from_chunks(port, lane, burst, at, chunks);
		bytes += burst->frames[burst->count - 1].length;
		at += chunks;
	}
	if (!at) {
		fill_visit(port, queue);
		return 0;
	}
	lane->rx.next += at;
	lane_ring_release(&lane->rx); /* the frames are ours until they are on FILL again: the entries may go at once */
	lane_count(&lane->chunks_taken, at);
	lane_count(&lane->counters.frames, burst->count);
	lane_count(&lane->counters.bytes, bytes);
	return burst->count;
}

void lane_release(struct lane_port *port, struct lane *lane, struct frame_burst *burst)
{
	give_back(port, &lane->device->queues[lane->queue]);
	burst->count = 0;
	burst->segment_count = 0;
}

bool lane_pending(const struct lane *lane)
{
	return lane_ring_available(&lane->rx) != 0;
}

void lane_settle(struct lane_port *port)
{
	struct lane_device *device = port->device;

	lane_flush(port);
	lane_reap(port);
	for (unsigned i = 0; i < device->setup.queues; i++) {
		struct lane_queue *queue = &device->queues[i];

		if (port->held_count || port->taken_count || lane_ring_level(&queue->fill) < FILL_LOW) {
			burst_lock(&queue->fill_lock);
			fill_serve(port, queue);
		} else {
			fill_wake(queue);
		}
	}
}
