/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames to a device. The other way: lane.c.
 *
 * Theory of operation. A batch is copied into UMEM frames with no lock held, then put on TX and exchanged for completed frames under the
 * queue's lock; lane_flush() makes the kernel look, once per round. Where workers share a TX ring in copy mode, copied frames wait at
 * their worker's end until its lane_flush() puts them on TX and kicks under one lock: copy mode sends on the CPU that kicks, so
 * each worker's frames leave by its own kicks, in order, and still once per round.
 * No call here blocks: kicks are counted out, and what the kernel does not take stays on TX or is dropped and counted.
 */
#include "datapath/lane.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "common/util.h"
#include "datapath/burst_lock.h"
#include "datapath/frame_checksum.h"
#include "datapath/lane_internal.h"

/*
 * A kick of copy mode sends 32 descriptors on kernels without XDP_MAX_TX_SKB_BUDGET, and one if the device refuses it. Those kernels say EAGAIN
 * both when they have sent 32 of more and when the device is busy, and move the consumer index only when they have found TX empty. So they are
 * shown no more than they send in a kick: then the index is true, and no progress means a busy device.
 */
#define TX_KERNEL_BATCH 32
#define FLUSH_KICKS (LANE_RING_SIZE / TX_KERNEL_BATCH)

_Static_assert(LANE_TX_BATCH >= LANE_TX_CHUNKS_MAX, "any frame fits a batch whole");

/* --- a batch, copied ---------------------------------------------------------------------------------------------- */

_Static_assert(FRAME_BURST <= 64, "a bit a frame");

/* Frames of one batch on their way to TX. */
struct tx_batch {
	uint32_t frame_count, chunk_count;
	const struct frame *frames[FRAME_BURST];
	uint8_t chunks[FRAME_BURST]; /* of each frame */
	uint64_t open;		     /* a bit a frame: its checksum is left to the device */
	uint64_t addresses[LANE_TX_BATCH];
	uint32_t lengths[LANE_TX_BATCH];
};

/* Picks frames for one batch. Return: how many of @frames are done with, picked or too long. */
static unsigned batch_pick(struct lane_port *port, struct tx_batch *batch, struct frame *const *frames, unsigned count)
{
	const uint32_t room = port->device->chunk_mask + 1 - LANE_TX_OFFSET;
	const uint32_t frame_max = lane_device_frame_max(port->device);
	const uint32_t chunks_max = port->device->setup.multi_buffer ? LANE_TX_CHUNKS_MAX : 1;
	unsigned i;

	batch->frame_count = batch->chunk_count = 0;
	batch->open = 0;
	for (i = 0; i < count && batch->frame_count < FRAME_BURST; i++) {
		uint32_t chunks = frames[i]->length <= room ? 1 : (frames[i]->length + room - 1) / room;

		if (unlikely(chunks > chunks_max || frames[i]->length > frame_max)) {
			lane_count(&port->dropped_too_long, 1);
			continue;
		}
		if (batch->chunk_count + chunks > LANE_TX_BATCH)
			break;
		batch->frames[batch->frame_count] = frames[i];
		batch->chunks[batch->frame_count++] = (uint8_t)chunks;
		batch->chunk_count += chunks;
	}
	return i;
}

/* Leaves the last frames out until @got chunks are enough; surplus chunks go back. */
static void batch_shrink(struct lane_port *port, struct tx_batch *batch, uint32_t got)
{
	uint32_t dropped = 0;

	while (batch->chunk_count > got) {
		batch->chunk_count -= batch->chunks[--batch->frame_count];
		dropped++;
	}
	frame_cache_give(&port->cache, batch->addresses + batch->chunk_count, got - batch->chunk_count);
	lane_count(&port->dropped_no_frame, dropped);
}

/* Tells the device which checksum to complete. It lies in the first piece: headers do. */
static void ask_for_checksum(const struct lane_device *device, const struct frame *frame, uint64_t address)
{
	const struct lane_tx_metadata metadata = {
		.flags = XDP_TXMD_FLAGS_CHECKSUM,
		.csum_start = frame->offload.csum_start,
		.csum_offset = frame->offload.csum_offset,
	};

	memcpy(device->area + address + LANE_TX_OFFSET - LANE_TX_METADATA, &metadata, sizeof(metadata));
}

/* Copies one frame into its chunks, each filled before the next; short frames are padded with zero bytes. @open: its checksum stays so. */
static void copy_to_chunks(const struct lane_device *device, const struct frame *frame, const uint64_t *addresses, uint32_t *lengths,
			   bool open)
{
	const uint32_t room = device->chunk_mask + 1 - LANE_TX_OFFSET;
	const uint8_t *from = frame->head;
	uint32_t left = frame->head_length, segment = 0, filled = 0;
	uint8_t *to = device->area + *addresses + LANE_TX_OFFSET;
	const bool complete = frame->offload.needs_checksum && !open;
	struct frame_checksum checksum;

	if (open)
		ask_for_checksum(device, frame, *addresses);
	if (frame->offload.needs_checksum && frame->length <= room) {
		frame_copy(frame, to, complete);
		if (unlikely(frame->length < FRAME_LENGTH_PADDED))
			memset(to + frame->length, 0, FRAME_LENGTH_PADDED - frame->length);
		*lengths = max_u32(frame->length, FRAME_LENGTH_PADDED);
		return;
	}
	if (complete)
		frame_checksum_start(&checksum, frame);
	for (;;) {
		uint32_t part = min_u32(left, room - filled);

		if (complete)
			frame_checksum_copy(&checksum, to + filled, from, part);
		else
			memcpy(to + filled, from, part);
		filled += part;
		from += part;
		left -= part;
		if (!left) {
			if (segment == frame->segment_count)
				break;
			from = frame->segments[segment].data;
			left = frame->segments[segment++].length;
		} else {
			*lengths++ = filled;
			to = device->area + *++addresses + LANE_TX_OFFSET;
			filled = 0;
		}
	}
	if (complete)
		frame_checksum_finish(&checksum);
	if (unlikely(frame->length < FRAME_LENGTH_PADDED)) {
		memset(to + filled, 0, FRAME_LENGTH_PADDED - filled);
		filled = FRAME_LENGTH_PADDED;
	}
	*lengths = filled;
}

/* --- the TX ring -------------------------------------------------------------------------------------------------- */

/* Takes what is on COMPLETION into the cache. TX lock held. */
static void tx_reap(struct lane_port *port, struct lane_queue *queue)
{
	const uint64_t mask = ~(uint64_t)port->device->chunk_mask;
	uint32_t left = lane_ring_available(&queue->completion);

	if (!left)
		return;
	queue->tx_back += left;
	while (left) {
		uint64_t frames[FRAME_BURST];
		uint32_t part = min_u32(left, FRAME_BURST);

		for (uint32_t i = 0; i < part; i++)
			frames[i] = *lane_ring_address(&queue->completion, queue->completion.next++) & mask;
		for (uint32_t i = 0; port->device->tx_owner && i < part; i++)
			lane_tx_owner(port->device, queue, frames[i])->tx_back++;
		frame_cache_give(&port->cache, frames, part);
		left -= part;
	}
	lane_ring_release(&queue->completion);
}

/* The last @put descriptors before @next are this worker's. TX lock held. */
static void tx_advance(const struct lane_port *port, struct lane_queue *queue, uint32_t next, uint32_t put)
{
	const struct lane_device *device = port->device;

	queue->tx_given += put;
	device->lanes[port->tx_queue * device->setup.workers + port->worker].tx_given += put;
	for (uint32_t i = next - put; device->tx_owner && i != next; i++)
		device->tx_owner[lane_ring_desc(&queue->tx, i)->addr / (device->chunk_mask + 1)] = (uint8_t)port->worker;
	__atomic_store_n(&queue->tx.next, next, __ATOMIC_RELEASE);
	if (device->zero_copy || !device->tx_in_steps)
		lane_ring_publish(&queue->tx);
}

/* What is on COMPLETION counts too: then neither TX nor COMPLETION can overflow. TX lock held. */
static uint32_t tx_space(const struct lane_queue *queue)
{
	return LANE_RING_SIZE - (uint32_t)(queue->tx_given - queue->tx_back);
}

/* Describes the next frame of the batch by entries from @at on, of a ring or of a stage. */
static void describe_frame(struct xdp_desc *descs, uint32_t at, uint32_t mask, const struct tx_batch *batch, uint32_t *frame, uint32_t *chunk)
{
	uint32_t metadata = batch->open >> *frame & 1 ? XDP_TX_METADATA : 0; /* of the frame, on its first entry */

	for (uint32_t i = batch->chunks[(*frame)++]; i; i--, at++, (*chunk)++, metadata = 0)
		descs[at & mask] = (struct xdp_desc){
			.addr = batch->addresses[*chunk] + LANE_TX_OFFSET,
			.len = batch->lengths[*chunk],
			.options = (i > 1 ? XDP_PKT_CONTD : 0) | metadata,
		};
}

/* Puts frames of the batch on TX, from number *@frame and chunk *@chunk on, while whole ones fit. TX lock held. */
static void batch_put(const struct lane_port *port, struct lane_queue *queue, const struct tx_batch *batch, uint32_t *frame, uint32_t *chunk)
{
	const uint32_t space = tx_space(queue), first = *chunk;

	while (*frame < batch->frame_count && *chunk - first + batch->chunks[*frame] <= space)
		describe_frame(queue->tx.entries, queue->tx.next + *chunk - first, queue->tx.mask, batch, frame, chunk);
	tx_advance(port, queue, queue->tx.next + *chunk - first, *chunk - first);
}

/* --- kicks -------------------------------------------------------------------------------------------------------- */

/* Shows the kernel as many whole frames as one kick sends. TX lock held, or TX this worker's alone. */
static void publish_step(struct lane_queue *queue)
{
	struct lane_ring *tx = &queue->tx;
	uint32_t from = *tx->producer, to = __atomic_load_n(tx->consumer, __ATOMIC_ACQUIRE) + TX_KERNEL_BATCH;

	if ((int32_t)(tx->next - to) < 0)
		to = tx->next;
	while ((int32_t)(to - from) > 0 && (lane_ring_desc(tx, to - 1)->options & XDP_PKT_CONTD))
		to--;
	if ((int32_t)(to - from) > 0)
		__atomic_store_n(tx->producer, to, __ATOMIC_RELEASE);
}

/* Copy mode: the kernel sends inside the call. Return: true if another kick is worth its while. */
static bool kick_copy(struct lane_port *port, struct lane_queue *queue)
{
	uint32_t before = __atomic_load_n(queue->tx.consumer, __ATOMIC_ACQUIRE);
	bool progress = false;
	int code;

	if (port->device->tx_in_steps)
		publish_step(queue);
	code = sendto(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 ? errno : 0;
	lane_count(&port->kicks, 1);
	switch (code) {
	case EBUSY: /* one frame was taken and lost, the rest is still there */
		lane_count(&port->lost_in_kernel, 1);
		progress = true;
		break;
	case 0:
	case EAGAIN: /* the kernel's batch is over, or the device is busy */
	case ENOBUFS:
	case EINTR:
		break;
	default: /* ENETDOWN, ENXIO: for as long as it lasts. Frames stay on TX; the next lane_send() tries again */
		lane_count(&port->kicks_refused, 1);
		port->tx_pending = false;
		return false;
	}
	port->tx_pending = lane_tx_left(&queue->tx) != 0;
	return port->tx_pending && (progress || __atomic_load_n(queue->tx.consumer, __ATOMIC_ACQUIRE) != before);
}

/* Copy mode: everything that the kernel takes. TX lock held (the kernel lets one in at a time anyway), or TX this worker's alone. */
static void flush_copy(struct lane_port *port, struct lane_queue *queue)
{
	port->tx_pending = lane_tx_left(&queue->tx) != 0;
	for (unsigned kicks = 0; port->tx_pending && kicks < FLUSH_KICKS && kick_copy(port, queue); kicks++)
		;
}

/*
 * Shared TX ring in copy mode: puts what is staged on TX and sends it, under one lock. Were another worker's kick to take some of it
 * along, frames of one flow would leave on two CPUs, and be overtaken where receivers queue by CPU (veth). That is left to a device which is
 * busy or down: then frames stay on TX, or in the stage while TX is full.
 */
static void flush_stage(struct lane_port *port, struct lane_queue *queue)
{
	struct lane_stage *stage = port->stage;
	uint32_t put;

	burst_lock(&queue->tx_lock);
	tx_reap(port, queue);
	put = min_u32(stage->count, tx_space(queue));
	while (put && (stage->descs[put - 1].options & XDP_PKT_CONTD))
		put--;
	for (uint32_t i = 0; i < put; i++)
		*lane_ring_desc(&queue->tx, queue->tx.next + i) = stage->descs[i];
	tx_advance(port, queue, queue->tx.next + put, put);
	flush_copy(port, queue);
	burst_unlock(&queue->tx_lock);

	stage->count -= put;
	memmove(stage->descs, stage->descs + put, stage->count * sizeof(stage->descs[0]));
	/* Room comes with completions. A device that refuses kicks is not asked again before there is more to send. */
	if (stage->count && !lane_tx_left(&queue->tx))
		port->tx_pending = true;
}

static void kick_zero_copy(struct lane_port *port, struct lane_queue *queue)
{
	if (lane_ring_wants_wakeup(&queue->tx)) {
		int code = sendto(queue->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 ? errno : 0;

		lane_count(&port->kicks, 1);
		if (code == EAGAIN || code == EBUSY || code == ENOBUFS || code == EINTR)
			return; /* still pending */
		if (code)
			lane_count(&port->kicks_refused, 1);
		port->tx_pending = false;
	} else {
		/* The driver is at it; it may end just now, without having seen our last frames. */
		port->tx_pending = lane_ring_level(&queue->tx) != 0;
	}
}

void lane_flush(struct lane_port *port)
{
	struct lane_queue *queue = &port->device->queues[port->tx_queue];

	if (!port->tx_pending)
		return;
	if (port->device->zero_copy) {
		kick_zero_copy(port, queue);
		return;
	}
	if (port->stage) {
		flush_stage(port, queue);
		return;
	}
	flush_copy(port, queue); /* the ring is this worker's alone */
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

/* To the stage, while whole frames fit. */
static void batch_stage(struct lane_port *port, struct lane_queue *queue, const struct tx_batch *batch, uint32_t *frame, uint32_t *chunk)
{
	struct lane_stage *stage = port->stage;

	if (stage->count + batch->chunk_count > LANE_STAGE_SIZE)
		flush_stage(port, queue);
	while (*frame < batch->frame_count && stage->count + batch->chunks[*frame] <= LANE_STAGE_SIZE) {
		describe_frame(stage->descs, stage->count, UINT32_MAX, batch, frame, chunk);
		stage->count += batch->chunks[*frame - 1];
	}
	port->tx_pending = true;
}

/* To TX. When it is full it gets one chance: more was sent in this round than a ring holds. */
static void batch_give(struct lane_port *port, struct lane_queue *queue, const struct tx_batch *batch, uint32_t *frame, uint32_t *chunk)
{
	for (unsigned attempt = 0; attempt < 2 && *frame < batch->frame_count; attempt++) {
		if (attempt)
			lane_flush(port);
		burst_lock(&queue->tx_lock);
		tx_reap(port, queue);
		batch_put(port, queue, batch, frame, chunk);
		burst_unlock(&queue->tx_lock);
		port->tx_pending = true;
	}
}

static unsigned batch_send(struct lane_port *port, struct lane_queue *queue, struct tx_batch *batch)
{
	const bool leave = lane_device_leaves_checksum(port->device);
	uint32_t got, frame = 0, chunk = 0;
	uint64_t bytes = 0;

	got = frame_cache_take(&port->cache, batch->addresses, batch->chunk_count);
	if (unlikely(got < batch->chunk_count)) {
		burst_lock(&queue->tx_lock);
		tx_reap(port, queue);
		burst_unlock(&queue->tx_lock);
		got += frame_cache_take(&port->cache, batch->addresses + got, batch->chunk_count - got);
		batch_shrink(port, batch, got);
	}
	for (uint32_t i = 0, at = 0; i < batch->frame_count; at += batch->chunks[i++]) {
		const bool open = leave && batch->frames[i]->offload.plain_checksum;

		batch->open |= (uint64_t)open << i;
		copy_to_chunks(port->device, batch->frames[i], batch->addresses + at, batch->lengths + at, open);
	}

	if (port->stage)
		batch_stage(port, queue, batch, &frame, &chunk);
	else
		batch_give(port, queue, batch, &frame, &chunk);
	frame_cache_give(&port->cache, batch->addresses + chunk, batch->chunk_count - chunk);
	lane_count(&port->dropped_ring_full, batch->frame_count - frame);
	for (uint32_t i = 0; i < chunk; i++)
		bytes += batch->lengths[i];
	lane_count(&port->sent_frames, frame);
	lane_count(&port->sent_bytes, bytes);
	if (batch->open && frame)
		lane_count(&port->left_checksums, (uint64_t)__builtin_popcountll(batch->open << (64 - frame)));
	return frame;
}

unsigned lane_send(struct lane_port *port, struct frame *const *frames, unsigned count)
{
	struct lane_queue *queue = &port->device->queues[port->tx_queue];
	struct tx_batch batch;
	unsigned sent = 0;

	for (unsigned at = 0; at < count;) {
		at += batch_pick(port, &batch, frames + at, count - at);
		if (batch.frame_count)
			sent += batch_send(port, queue, &batch);
	}
	return sent;
}

/* --- what has left ------------------------------------------------------------------------------------------------ */

void lane_reap(struct lane_port *port)
{
	struct lane_queue *queue = &port->device->queues[port->tx_queue];

	if (!lane_ring_level(&queue->completion))
		return;
	burst_lock(&queue->tx_lock);
	tx_reap(port, queue);
	burst_unlock(&queue->tx_lock);
}

struct lane_tx_mark lane_tx_mark(struct lane_port *port)
{
	const struct lane *lane = lane_of(port->device, port->tx_queue, port->worker);
	struct lane_queue *queue = &port->device->queues[port->tx_queue];
	const uint32_t staged = lane_staged(port);
	struct lane_tx_mark mark;

	burst_lock(&queue->tx_lock);
	mark = (struct lane_tx_mark){queue->tx_given + staged, lane->tx_given + staged};
	burst_unlock(&queue->tx_lock);
	return mark;
}

/* Frames of one worker complete in order; those of several on one queue may not, for copy mode sends on the CPU that kicks. */
bool lane_tx_passed(struct lane_port *port, const struct lane_tx_mark *mark, bool completed)
{
	const struct lane *lane = lane_of(port->device, port->tx_queue, port->worker);
	struct lane_queue *queue = &port->device->queues[port->tx_queue];
	bool passed;

	burst_lock(&queue->tx_lock);
	tx_reap(port, queue);
	if (!completed)
		passed = lane->tx_given >= mark->own && queue->tx_given - lane_tx_left(&queue->tx) >= mark->queue;
	else if (port->device->tx_owner)
		passed = lane->tx_back >= mark->own;
	else
		passed = queue->tx_back >= mark->queue;
	burst_unlock(&queue->tx_lock);
	return passed;
}
