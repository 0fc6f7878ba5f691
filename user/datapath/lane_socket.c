/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One AF_XDP socket: made, its rings mapped, bound. Three kinds, by where it stands in the device:
 *   queue 0, worker 0     registers the UMEM, has all four rings, binds with the mode's flags
 *   queue q, worker 0     four rings of its own, XDP_SHARED_UMEM with queue 0's socket: same UMEM, another queue
 *   queue q, worker w     an RX ring only, XDP_SHARED_UMEM with the first socket of that queue: same queue
 * A shared bind takes no other flag; mode, need_wakeup and multi-buffer come down from the socket that registered the UMEM.
 * Raw calls, because libxdp's create_shared gets the third kind right for the first queue only.
 */
#include <errno.h>
#include <linux/if_ether.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "common/util.h"
#include "datapath/lane_internal.h"

#define SEND_BUFFER_BYTES (8 << 20) /* copy mode allocates an skb per frame: a whole TX ring of them */

static const char *const bind_remedies[][2] = {
	/* zero-copy demanded, anything else */
	{"the driver or kernel has no zero-copy for it; set its mode to auto or copy",
	 "the device does not take AF_XDP sockets; use a device that does (Linux 5.4 or newer)"},
	{"its MTU needs frames of several chunks, which take Linux 6.6 or newer; lower the MTU or use a newer kernel",
	 "the device has fewer queues than asked for, or is going away; see `ethtool -l`, lower `queues`"},
};

static int bind_error(const struct lane_device *device, const struct lane *lane, int code, struct error *error)
{
	const struct lane_device_setup *setup = &device->setup;
	const char *why = strerror(-code), *remedy = "see the kernel's log";

	switch (-code) {
	case EBUSY:
		why = "another AF_XDP socket holds it";
		remedy = "`ss --xdp -p` names the holder; stop it";
		break;
	case EOPNOTSUPP:
		remedy = bind_remedies[0][setup->mode != LANE_MODE_ZERO_COPY];
		break;
	case EINVAL:
		remedy = bind_remedies[1][!(setup->multi_buffer && device->queues_open <= 1)];
		break;
	case ENODEV:
		remedy = "the interface is gone; create it";
		break;
	case ENETDOWN:
		remedy = "set the interface up";
		break;
	case EPERM:
		remedy = "run with CAP_NET_RAW and CAP_NET_ADMIN";
		break;
	}
	return error_set(error, code, "%s: mode %s, queue %u (%u of %u queues bound), lane %u of %u: cannot bind: %s; %s", setup->ifname,
			 lane_mode_names[setup->mode], lane->queue, lane->queue, setup->queues, lane->worker + 1, setup->workers, why,
			 remedy);
}

/* A socket that a dead process left behind leaves the queue some 10 ms later. */
static int bind_retry(int fd, const struct sockaddr_xdp *address)
{
	uint64_t deadline = now_ns() + LANE_BIND_RETRY_TOTAL_US * 1000ull;

	while (bind(fd, (const struct sockaddr *)address, sizeof(*address))) {
		if ((errno != EBUSY && errno != EINTR) || now_ns() >= deadline)
			return -errno;
		usleep(LANE_BIND_RETRY_US);
	}
	return 0;
}

/* UMEM pages are charged to RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK. */
static void raise_memlock(void)
{
	struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY}, limit;

	if (!setrlimit(RLIMIT_MEMLOCK, &unlimited) || getrlimit(RLIMIT_MEMLOCK, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_MEMLOCK, &limit);
}

/* struct xdp_umem_reg as of Linux 6.8. The last word is padding to older kernels. */
struct umem_registration {
	uint64_t addr, len;
	uint32_t chunk_size, headroom, flags, tx_metadata_len;
};
_Static_assert(sizeof(struct umem_registration) == sizeof(struct xdp_umem_reg), "the same to older kernels");

static int register_umem(struct lane_device *device, int fd, struct error *error)
{
	const char *name = device->setup.ifname;
	unsigned long long kib = frame_pool_bytes(device->pool) >> 10;
	struct umem_registration umem = {
		.addr = (uintptr_t)device->area,
		.len = frame_pool_bytes(device->pool),
		.chunk_size = frame_pool_frame_size(device->pool),
		.flags = XDP_UMEM_TX_METADATA_LEN,
		.tx_metadata_len = LANE_TX_METADATA,
	};
	struct rlimit limit = {0};
	int code;

	raise_memlock();
	code = setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)) ? -errno : 0;
	device->metadata = code == 0;
	if (code == -EINVAL) { /* an unknown flag before Linux 6.11 */
		umem.flags = umem.tx_metadata_len = 0;
		code = setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)) ? -errno : 0;
	}
	if (code == 0)
		return 0;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (code == -ENOBUFS || code == -ENOMEM || code == -EPERM)
		return error_set(error, code,
				 "%s: %llu KiB of frame memory cannot be locked: %s, memlock limit %llu KiB; raise it (ulimit -l unlimited, "
				 "LimitMEMLOCK=infinity), grant CAP_IPC_LOCK, or use fewer queues or workers",
				 name, kib, strerror(-code), (unsigned long long)limit.rlim_cur >> 10);
	return error_set(error, code, "%s: %llu KiB of frame memory refused: %s; see the kernel's log", name, kib, strerror(-code));
}

bool lane_kernel_has_metadata(void)
{
	static const size_t page = 4096;
	struct umem_registration umem = {
		.len = page, .chunk_size = page, .flags = XDP_UMEM_TX_METADATA_LEN, .tx_metadata_len = LANE_TX_METADATA,
	};
	void *area = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	bool taken;

	umem.addr = (uintptr_t)area;
	taken = fd >= 0 && area != MAP_FAILED && !setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem));
	if (fd >= 0)
		close(fd);
	if (area != MAP_FAILED)
		munmap(area, page);
	return taken;
}

static int ring_size_set(const struct lane_device *device, int fd, int option, uint32_t size, struct error *error)
{
	int code;

	if (!setsockopt(fd, SOL_XDP, option, &size, sizeof(size)))
		return 0;
	code = -errno;
	return error_set(error, code, "%s: AF_XDP ring of %u entries (option %d) refused: %s; free memory", device->setup.ifname, size,
			 option, strerror(-code));
}

static int ring_map(const struct lane_device *device, int fd, struct lane_ring *ring, const struct xdp_ring_offset *offset,
		    uint64_t page_offset, uint32_t size, size_t entry, struct error *error)
{
	uint8_t *map;
	int code;

	ring->map_size = offset->desc + size * entry;
	map = mmap(NULL, ring->map_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)page_offset);
	if (map == MAP_FAILED) {
		code = -errno;
		return error_set(error, code, "%s: AF_XDP ring of %zu bytes cannot be mapped: %s; free memory", device->setup.ifname,
				 ring->map_size, strerror(-code));
	}
	ring->map = map;
	ring->producer = (uint32_t *)(map + offset->producer);
	ring->consumer = (uint32_t *)(map + offset->consumer);
	ring->flags = (uint32_t *)(map + offset->flags);
	ring->entries = map + offset->desc;
	ring->mask = size - 1;
	ring->next = 0;
	return 0;
}

static void ring_unmap(struct lane_ring *ring)
{
	if (ring->map)
		munmap(ring->map, ring->map_size);
	memset(ring, 0, sizeof(*ring));
}

static int map_rings(struct lane_device *device, struct lane *lane, struct error *error)
{
	struct lane_queue *queue = &device->queues[lane->queue];
	struct xdp_mmap_offsets offsets = {0};
	socklen_t length = sizeof(offsets);
	int code;

	if (getsockopt(lane->fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length))
		code = -errno;
	else /* before Linux 5.4 rings had no flags, and lanes could not wait for need_wakeup */
		code = length == sizeof(offsets) ? 0 : -EOPNOTSUPP;
	if (code)
		return error_set(error, code, "%s: AF_XDP ring offsets: %s; use Linux 5.4 or newer", device->setup.ifname, strerror(-code));
	code = ring_map(device, lane->fd, &lane->rx, &offsets.rx, XDP_PGOFF_RX_RING, device->rx_size, sizeof(struct xdp_desc), error);
	if (code || lane->worker)
		return code;
	code = ring_map(device, lane->fd, &queue->fill, &offsets.fr, XDP_UMEM_PGOFF_FILL_RING, LANE_RING_SIZE, sizeof(uint64_t), error);
	if (!code)
		code = ring_map(device, lane->fd, &queue->completion, &offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, LANE_RING_SIZE,
				sizeof(uint64_t), error);
	if (!code)
		code = ring_map(device, lane->fd, &queue->tx, &offsets.tx, XDP_PGOFF_TX_RING, LANE_RING_SIZE, sizeof(struct xdp_desc),
				error);
	return code;
}

static int make_rings(struct lane_device *device, struct lane *lane, struct error *error)
{
	int budget = LANE_RING_SIZE, buffer = SEND_BUFFER_BYTES;
	int code = 0;

	if (lane->worker == 0) {
		if (lane->queue == 0)
			code = register_umem(device, lane->fd, error);
		if (!code)
			code = ring_size_set(device, lane->fd, XDP_UMEM_FILL_RING, LANE_RING_SIZE, error);
		if (!code)
			code = ring_size_set(device, lane->fd, XDP_UMEM_COMPLETION_RING, LANE_RING_SIZE, error);
		if (!code)
			code = ring_size_set(device, lane->fd, XDP_TX_RING, LANE_RING_SIZE, error);
		if (code)
			return code;
		/* Both make kicks fewer; without CAP_NET_ADMIN the second fails. Linux 6.17 brought the first, and in the same version
		 * a consumer index of TX that is true after each kick. */
		if (setsockopt(lane->fd, SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget))) {
			device->tx_in_steps = true;
			log_debug("%s: no XDP_MAX_TX_SKB_BUDGET: %s", device->setup.ifname, strerror(errno));
		}
		if (setsockopt(lane->fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer)))
			log_debug("%s: send buffer: %s", device->setup.ifname, strerror(errno));
	}
	code = ring_size_set(device, lane->fd, XDP_RX_RING, device->rx_size, error);
	return code ? code : map_rings(device, lane, error);
}

/* A zero-copy driver takes its receive buffers while it binds: they must be there. */
static void fill_queue(struct lane_device *device, struct lane_queue *queue)
{
	struct frame_cache cache;
	uint64_t frames[FRAME_BURST];
	unsigned got;

	frame_cache_init(&cache, device->pool);
	while (queue->fill_given < LANE_RING_SIZE) {
		got = frame_cache_take(&cache, frames, FRAME_BURST);
		for (unsigned i = 0; i < got; i++)
			*lane_ring_address(&queue->fill, queue->fill.next++) = frames[i];
		queue->fill_given += got;
		if (got < FRAME_BURST)
			break;
	}
	lane_ring_publish(&queue->fill);
	frame_cache_flush(&cache);
}
_Static_assert(LANE_RING_SIZE % FRAME_BURST == 0, "FILL is filled in whole bursts");

static int bind_lane(struct lane_device *device, struct lane *lane, enum lane_mode want, struct error *error)
{
	struct sockaddr_xdp address = {
		.sxdp_family = AF_XDP,
		.sxdp_ifindex = device->setup.ifindex,
		.sxdp_queue_id = lane->queue,
	};
	int code;

	if (lane->queue == 0 && lane->worker == 0) {
		address.sxdp_flags = XDP_USE_NEED_WAKEUP;
		if (want == LANE_MODE_ZERO_COPY)
			address.sxdp_flags |= XDP_ZEROCOPY;
		else if (want != LANE_MODE_AUTO) /* without a flag the kernel tries zero-copy, then copy */
			address.sxdp_flags |= XDP_COPY;
		if (device->setup.multi_buffer)
			address.sxdp_flags |= XDP_USE_SG;
	} else {
		address.sxdp_flags = XDP_SHARED_UMEM;
		address.sxdp_shared_umem_fd = (uint32_t)(lane->worker ? device->queues[lane->queue].fd : device->queues[0].fd);
	}
	code = bind_retry(lane->fd, &address);
	return code ? bind_error(device, lane, code, error) : 0;
}

static int read_mode(struct lane_device *device, const struct lane *lane, struct error *error)
{
	struct xdp_options options = {0};
	socklen_t length = sizeof(options);
	int code;

	if (getsockopt(lane->fd, SOL_XDP, XDP_OPTIONS, &options, &length)) {
		code = -errno;
		return error_set(error, code, "%s: mode of the AF_XDP socket: %s; use Linux 5.4 or newer", device->setup.ifname,
				 strerror(-code));
	}
	device->zero_copy = options.flags & XDP_OPTIONS_ZEROCOPY;
	return 0;
}

int lane_socket_open(struct lane_device *device, enum lane_mode want, struct error *error)
{
	struct lane *lane = &device->lanes[device->lanes_open];
	struct lane_queue *queue;
	int code;

	lane->device = device;
	lane->queue = device->lanes_open / device->setup.workers;
	lane->worker = device->lanes_open % device->setup.workers;
	queue = &device->queues[lane->queue];
	lane->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (lane->fd < 0) {
		code = -errno;
		return error_set(error, code, "%s: no AF_XDP socket: %s; %s", device->setup.ifname, strerror(-code),
				 code == -EAFNOSUPPORT ? "use a kernel with CONFIG_XDP_SOCKETS" :
				 code == -EMFILE	 ? "raise the limit of open files (ulimit -n, LimitNOFILE=)" :
							   "run with CAP_NET_RAW");
	}
	if (lane->worker == 0) {
		queue->fd = lane->fd;
		ck_spinlock_init(&queue->fill_lock);
		ck_spinlock_init(&queue->tx_lock);
		device->queues_open = lane->queue + 1;
	}
	device->lanes_open++; /* from here on lane_socket_close() undoes it */
	code = make_rings(device, lane, error);
	if (!code && lane->worker == 0)
		fill_queue(device, queue);
	if (!code)
		code = bind_lane(device, lane, want, error);
	if (!code && lane->worker == 0 && lane->queue == 0)
		code = read_mode(device, lane, error);
	return code;
}

void lane_socket_close(struct lane_device *device, struct lane *lane)
{
	struct lane_queue *queue = &device->queues[lane->queue];

	if (lane->worker == 0) {
		ring_unmap(&queue->tx);
		ring_unmap(&queue->completion);
		ring_unmap(&queue->fill);
	}
	ring_unmap(&lane->rx);
	close(lane->fd);
	lane->fd = -1;
}
