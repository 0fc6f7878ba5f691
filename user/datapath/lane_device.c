/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device's lanes together: how many frames they need, opening and closing them in order, and the books.
 *
 * Why FILL never starves. A frame that is not on the FILL ring of queue q is in one of the places below, each of which is
 * bounded. The pool holds the sum of all bounds, so while FILL q is short there are frames in the stock, and each visit of
 * any worker to queue q (lane_receive, lane_release, lane_settle) tops it up from there, whether frames were received or not.
 *   FILL of each queue                   LANE_RING_SIZE
 *   TX, driver, COMPLETION of each queue LANE_RING_SIZE together: lane_send() keeps given - back within it
 *   driver's receive ring of each queue  LANE_RING_SIZE (zero-copy only)
 *   RX of each lane                      rx_size(workers)
 *   each worker                          FRAME_CACHE_SIZE + taken + held + one batch being sent + its stage
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/log.h"
#include "common/util.h"
#include "datapath/lane_internal.h"
#include "vhostlane/bpf_abi.h"

#define WORKER_FRAMES (FRAME_CACHE_SIZE + 2 * LANE_BURST_CHUNKS + LANE_TX_BATCH + LANE_STAGE_SIZE)
#define ETHERNET_WITH_TAG 18
#define RX_SHARE (4 * LANE_RING_SIZE) /* RX descriptors of all lanes of one queue together, while each may have LANE_RX_SIZE_MIN */

const char *const lane_mode_names[LANE_MODE_COUNT] = {
	[LANE_MODE_AUTO] = "auto",
	[LANE_MODE_ZERO_COPY] = "zero-copy",
	[LANE_MODE_COPY] = "copy",
	[LANE_MODE_GENERIC] = "generic",
};

_Static_assert(VL_WORKERS_MAX <= UINT8_MAX, "tx_owner[] holds any worker");
_Static_assert(LANE_RX_SIZE_MIN >= LANE_BURST_CHUNKS, "the largest packet fits an RX ring");

static uint32_t rx_size(unsigned workers)
{
	uint32_t size = LANE_RING_SIZE;

	while (size > LANE_RX_SIZE_MIN && size * workers > RX_SHARE)
		size /= 2;
	return size;
}

static uint32_t frames_needed(const struct lane_device_setup *setup)
{
	bool may_be_zero_copy = setup->mode == LANE_MODE_AUTO || setup->mode == LANE_MODE_ZERO_COPY;
	uint32_t per_queue = (may_be_zero_copy ? 3 : 2) * LANE_RING_SIZE + setup->workers * rx_size(setup->workers);

	return setup->queues * per_queue + setup->workers * WORKER_FRAMES;
}

static void close_lanes(struct lane_device *device)
{
	while (device->lanes_open)
		lane_socket_close(device, &device->lanes[--device->lanes_open]);
	device->queues_open = 0;
	frame_pool_destroy(device->pool);
	device->pool = NULL;
	free(device->lanes);
	device->lanes = NULL;
	free(device->queues);
	device->queues = NULL;
	free(device->tx_owner);
	device->tx_owner = NULL;
}

static int open_lanes(struct lane_device *device, enum lane_mode want, struct error *error)
{
	const struct lane_device_setup *setup = &device->setup;
	struct frame_pool_setup pool = {setup->node, setup->frame_size, frames_needed(setup)};
	unsigned count = setup->queues * setup->workers;
	int code = 0;

	device->lanes = zalloc_aligned(count * sizeof(*device->lanes));
	device->queues = zalloc_aligned(setup->queues * sizeof(*device->queues));
	if (!device->lanes || !device->queues) {
		code = error_set(error, -ENOMEM, "%s: no memory for %u lanes; free memory", setup->ifname, count);
		goto undo;
	}
	device->pool = frame_pool_create(&pool, error);
	if (!device->pool) {
		code = error ? error->code : -ENOMEM;
		goto undo;
	}
	device->area = frame_pool_area(device->pool);
	if (setup->workers > setup->queues) {
		device->tx_owner = calloc(frame_pool_frames(device->pool), sizeof(*device->tx_owner));
		if (!device->tx_owner) {
			code = error_set(error, -ENOMEM, "%s: no memory for a list of %u frames; free memory", setup->ifname,
					 frame_pool_frames(device->pool));
			goto undo;
		}
	}
	while (device->lanes_open < count) {
		code = lane_socket_open(device, want, error);
		if (code)
			goto undo;
	}
	return 0;
undo:
	close_lanes(device);
	return code;
}

static int check_setup(const struct lane_device_setup *setup, struct error *error)
{
	if (!setup->queues || setup->queues > VL_DEVICE_QUEUES_MAX)
		return error_set(error, -EINVAL, "%s: %u queues; 1 to %u can be served: see `ethtool -L`", setup->ifname, setup->queues,
				 VL_DEVICE_QUEUES_MAX);
	if (!setup->workers || setup->workers > VL_WORKERS_MAX)
		return error_set(error, -EINVAL, "%s: %u workers; 1 to %u can have lanes: name fewer CPUs", setup->ifname, setup->workers,
				 VL_WORKERS_MAX);
	return 0;
}

struct lane_device *lane_device_open(const struct lane_device_setup *setup, struct error *error)
{
	struct lane_device *device;
	struct error first;

	if (check_setup(setup, error))
		return NULL;
	device = zalloc_aligned(sizeof(*device));
	if (!device) {
		error_set(error, -ENOMEM, "%s: no memory for its lanes; free memory", setup->ifname);
		return NULL;
	}
	device->setup = *setup;
	device->rx_size = rx_size(setup->workers);
	device->chunk_mask = setup->frame_size - 1;
	lane_device_set_mtu(device, setup->mtu);

	if (open_lanes(device, setup->mode, &first)) {
		/* The kernel's own choice is made on queue 0; a later queue may lack zero-copy (a queue that serves an XDP_TX ring). */
		if (setup->mode != LANE_MODE_AUTO || !device->zero_copy) {
			if (error)
				*error = first;
			goto fail;
		}
		log_info("%s; trying copy mode", first.text);
		device->zero_copy = false;
		if (open_lanes(device, LANE_MODE_COPY, error))
			goto fail;
	}
	device->mode = setup->mode == LANE_MODE_GENERIC ? LANE_MODE_GENERIC : device->zero_copy ? LANE_MODE_ZERO_COPY : LANE_MODE_COPY;
	return device;
fail:
	free(device);
	return NULL;
}

void lane_device_close(struct lane_device *device)
{
	if (!device)
		return;
	close_lanes(device);
	free(device);
}

const char *lane_device_name(const struct lane_device *device)
{
	return device->setup.ifname;
}

enum lane_mode lane_device_mode(const struct lane_device *device)
{
	return device->mode;
}

void lane_device_set_mtu(struct lane_device *device, unsigned mtu)
{
	__atomic_store_n(&device->frame_max, mtu ? mtu + ETHERNET_WITH_TAG : UINT32_MAX, __ATOMIC_RELAXED);
}

uint32_t lane_device_frame_max(const struct lane_device *device)
{
	return __atomic_load_n(&device->frame_max, __ATOMIC_RELAXED);
}

void lane_device_leave_checksum(struct lane_device *device, bool leave)
{
	__atomic_store_n(&device->leaves_checksum, leave && device->metadata, __ATOMIC_RELAXED);
}

bool lane_device_leaves_checksum(const struct lane_device *device)
{
	return __atomic_load_n(&device->leaves_checksum, __ATOMIC_RELAXED);
}

struct frame_pool *lane_device_pool(struct lane_device *device)
{
	return device->pool;
}

unsigned lane_device_queues(const struct lane_device *device)
{
	return device->setup.queues;
}

unsigned lane_device_workers(const struct lane_device *device)
{
	return device->setup.workers;
}

struct lane *lane_of(struct lane_device *device, unsigned queue, unsigned worker)
{
	return &device->lanes[queue * device->setup.workers + worker];
}

int lane_fd(const struct lane *lane)
{
	return lane->fd;
}

unsigned lane_queue(const struct lane *lane)
{
	return lane->queue;
}

struct lane_device *lane_device_of(const struct lane *lane)
{
	return lane->device;
}

const struct lane_counters *lane_counters_of(const struct lane *lane)
{
	return &lane->counters;
}

uint64_t lane_arrived(const struct lane *lane)
{
	return lane->chunks_taken + lane_ring_available(&lane->rx);
}

uint64_t lane_taken(const struct lane *lane)
{
	return lane->chunks_taken;
}

struct lane_port *lane_port_create(struct lane_device *device, unsigned worker, struct error *error)
{
	struct lane_port *port = zalloc_aligned(sizeof(*port));

	if (!port) {
		error_set(error, -ENOMEM, "%s: no memory for worker %u's end; free memory", device->setup.ifname, worker);
		return NULL;
	}
	port->device = device;
	port->worker = worker;
	port->tx_queue = worker % device->setup.queues;
	if (device->tx_owner && !device->zero_copy) {
		port->stage = zalloc_aligned(sizeof(*port->stage));
		if (!port->stage) {
			error_set(error, -ENOMEM, "%s: no memory for worker %u's end; free memory", device->setup.ifname, worker);
			free(port);
			return NULL;
		}
	}
	frame_cache_init(&port->cache, device->pool);
	return port;
}

void lane_port_destroy(struct lane_port *port)
{
	if (!port)
		return;
	frame_cache_give(&port->cache, port->taken, port->taken_count);
	frame_cache_give(&port->cache, port->held, port->held_count);
	for (uint32_t i = 0; i < lane_staged(port); i++)
		frame_cache_give(&port->cache, &(uint64_t){port->stage->descs[i].addr & ~(uint64_t)port->device->chunk_mask}, 1);
	free(port->stage);
	frame_cache_flush(&port->cache);
	free(port);
}

void lane_device_census(struct lane_device *device, struct lane_port *const *ports, struct lane_census *census)
{
	const struct lane_device_setup *setup = &device->setup;
	int64_t in_kernel = 0; /* given and not got back, rings included */

	*census = (struct lane_census){.total = frame_pool_frames(device->pool), .stock = frame_pool_stock(device->pool)};
	for (unsigned i = 0; i < setup->workers; i++) {
		census->cached += ports[i]->cache.count;
		census->held += ports[i]->held_count + ports[i]->taken_count;
	}
	for (unsigned i = 0; i < setup->queues; i++) {
		struct lane_queue *queue = &device->queues[i];
		uint32_t completion;

		census->fill += lane_ring_level(&queue->fill);
		/* A kernel may have taken more off TX than it shows. */
		completion = lane_ring_level(&queue->completion);
		census->tx += min_u32(lane_tx_left(&queue->tx), (uint32_t)(queue->tx_given - queue->tx_back) - completion);
		census->completion += completion;
		in_kernel += (int64_t)(queue->fill_given + queue->tx_given - queue->tx_back);
	}
	for (unsigned i = 0; i < setup->queues * setup->workers; i++) {
		census->rx += lane_ring_level(&device->lanes[i].rx);
		in_kernel -= (int64_t)device->lanes[i].chunks_taken;
	}
	census->kernel = in_kernel - census->fill - census->rx - census->tx - census->completion;
	for (unsigned i = 0; i < setup->workers; i++)
		census->tx += lane_staged(ports[i]);
}

void lane_device_kernel_drops(struct lane_device *device, struct lane_kernel_drops *drops)
{
	memset(drops, 0, sizeof(*drops));
	for (unsigned i = 0; i < device->lanes_open; i++) {
		const struct lane *lane = &device->lanes[i];
		struct xdp_statistics s = {0};
		socklen_t length = sizeof(s);

		if (getsockopt(lane->fd, SOL_XDP, XDP_STATISTICS, &s, &length))
			continue;
		drops->rx_dropped += s.rx_dropped;
		drops->rx_ring_full += s.rx_ring_full;
		if (lane->worker)
			continue; /* what follows is counted per queue, and reported by each of its sockets */
		drops->rx_invalid += s.rx_invalid_descs;
		drops->fill_ring_empty += s.rx_fill_ring_empty_descs;
		drops->tx_invalid += s.tx_invalid_descs;
		drops->tx_ring_empty += s.tx_ring_empty_descs;
	}
}
