/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * The guest makes buffers available: it writes descriptors, puts their heads into the available ring, moves
 * avail->idx. We serve them in that order, put them into the used ring, and move used->idx once per burst.
 * ring_split_take.c serves from_guest, ring_split_put.c serves to_guest; this file sets up and notifies.
 *
 * Either side may ask not to be notified, by a flag or, with the event index, by naming the index at which it wants to
 * be. The race between going to sleep and work that comes is closed on both sides in one way: write the wish, full
 * barrier, look again (ring_arm() and the driver's like); write the index, full barrier, read the wish (ring_call()
 * and the driver's like).
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <unistd.h>

#include "datapath/ring_split_private.h"

const char *const ring_fault_names[RING_FAULT_COUNT] = {
#define RING_FAULT_NAME(name, text) [RING_FAULT_##name] = text,
	RING_FAULTS(RING_FAULT_NAME)
#undef RING_FAULT_NAME
};

/* --- setup -------------------------------------------------------------------------------------------------------- */

void ring_init(struct ring *ring)
{
	memset(ring, 0, sizeof(*ring));
	atomic_init(&ring->call_fd, -1);
}

/* One of the three parts of a ring: aligned and inside one region of guest memory. */
static void *ring_part(const struct ring_setup *setup, const char *name, uint64_t address, uint64_t length,
		       uint64_t align, struct error *error)
{
	void *at = guest_memory_at_user(setup->memory, address, length);

	if (!at) {
		error_set(error, -EFAULT,
			  "ring: %s of %" PRIu64 " bytes at user address 0x%" PRIx64
			  " is in no region of guest memory; the frontend must send its memory table first and place "
			  "rings in it",
			  name, length, address);
		return NULL;
	}
	if (address % align || (uintptr_t)at % align) {
		error_set(error, -EINVAL, "ring: %s at user address 0x%" PRIx64 " is not aligned to %" PRIu64
			  " bytes; the frontend must align it (virtio 1.2, 2.7)", name, address, align);
		return NULL;
	}
	return at;
}

static void notify_wish(struct ring *ring, bool wanted)
{
	if (!ring->event_idx)
		__atomic_store_n(&ring->used->flags, wanted ? 0 : VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
	else if (wanted)
		__atomic_store_n((uint16_t *)(void *)&ring->used->ring[ring->size], ring->last_avail, __ATOMIC_RELAXED);
	/* With the event index there is nothing to take back: an index left behind costs one kick in 65536 entries. */
}

int ring_start(struct ring *ring, const struct ring_setup *setup, struct error *error)
{
	struct error local;
	uint64_t event = setup->features & (1ull << VIRTIO_RING_F_EVENT_IDX) ? sizeof(uint16_t) : 0;
	uint64_t size = setup->size;

	error = error ? error : &local;
	if (!is_power_of_two(size) || size > RING_SIZE_MAX)
		return error_set(error, -EINVAL, "ring: size %u; it must be a power of two, 1 to %d", setup->size,
				 RING_SIZE_MAX);
	ring->desc = ring_part(setup, "descriptor table", setup->desc_user_address, size * sizeof(struct vring_desc),
			       16, error);
	if (!ring->desc)
		return error->code;
	ring->avail = ring_part(setup, "available ring", setup->avail_user_address, 4 + size * sizeof(uint16_t) + event,
				2, error);
	if (!ring->avail)
		return error->code;
	ring->used = ring_part(setup, "used ring", setup->used_user_address,
			       4 + size * sizeof(struct vring_used_elem) + event, 4, error);
	if (!ring->used)
		return error->code;

	ring->memory = setup->memory;
	ring->size = (uint16_t)size;
	ring->mask = (uint16_t)(size - 1);
	ring->event_idx = event != 0;
	ring->indirect = setup->features & (1ull << VIRTIO_RING_F_INDIRECT_DESC);
	ring->mergeable = setup->features & (1ull << VIRTIO_NET_F_MRG_RXBUF);
	ring->header_length = ring->mergeable || (setup->features & (1ull << VIRTIO_F_VERSION_1)) ? VNET_HEADER_MODERN
												  : VNET_HEADER_LEGACY;
	ring->cached_guest = ring->cached_size = 0;
	ring->cached_base = NULL;

	ring->last_avail = ring->avail_seen = ring->ahead_end = setup->base;
	ring->used_next = __atomic_load_n(&ring->used->idx, __ATOMIC_RELAXED);
	ring->used_published = ring->used_signalled = ring->used_next;
	ring->signalled_valid = false;
	ring->lacking_length = 0;
	ring->notifications_armed = true;
	atomic_store_explicit(&ring->fault, RING_FAULT_NONE, memory_order_relaxed);
	ring->running = true;
	if (ring->event_idx)
		__atomic_store_n(&ring->used->flags, 0, __ATOMIC_RELAXED);
	notify_wish(ring, true);
	return 0;
}

uint16_t ring_stop(struct ring *ring)
{
	if (ring->running) {
		ring_publish(ring);
		notify_wish(ring, true); /* whoever takes the ring over may wait for a kick before it looks */
		ring->running = false;
	}
	return ring->last_avail;
}

bool ring_cache_region(struct ring *ring, uint64_t address)
{
	for (uint32_t i = 0; i < ring->memory->count; i++) {
		const struct guest_region *region = &ring->memory->regions[i];

		if (address - region->guest_address < region->size) {
			ring->cached_guest = region->guest_address;
			ring->cached_size = region->size;
			ring->cached_base = region->base;
			return true;
		}
	}
	return false;
}

void slot_prefetch(struct ring *ring, const struct ring_slot *slot)
{
	uint32_t length = slot->desc.len;
	const uint8_t *at = ring_piece(ring, slot->desc.addr, &length);

	if (at)
		prefetch_read(at);
	if (slot->desc.flags & VRING_DESC_F_NEXT)
		prefetch_read(&ring->desc[slot->desc.next & ring->mask]);
}

/* --- notifications ------------------------------------------------------------------------------------------------ */

#if defined(__SANITIZE_THREAD__)
#define RING_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RING_TSAN 1
#endif
#endif

static inline void full_barrier(void)
{
#ifdef RING_TSAN
	/* TSan knows no fences; a sequentially consistent read-modify-write is one to the CPU. */
	uint32_t any = 0;

	__atomic_fetch_add(&any, 1, __ATOMIC_SEQ_CST);
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* By the event index or the flag, as the guest says now. */
static bool call_wanted(const struct ring *ring)
{
	if (!ring->event_idx)
		return !(__atomic_load_n(&ring->avail->flags, __ATOMIC_RELAXED) & VRING_AVAIL_F_NO_INTERRUPT);
	/* used_event stands behind the available ring */
	return !ring->signalled_valid || vring_need_event(__atomic_load_n(&ring->avail->ring[ring->size], __ATOMIC_RELAXED),
							  ring->used_published, ring->used_signalled);
}

static void call_settled(struct ring *ring)
{
	ring->used_signalled = ring->used_published;
	ring->signalled_valid = true;
}

static void call_suppressed(struct ring *ring)
{
	ring_count(&ring->counters.calls_suppressed, 1);
	call_settled(ring);
}

bool ring_call_unwanted(struct ring *ring)
{
	if (!ring->running || !ring_owes_call(ring))
		return true;
	full_barrier();
	if (call_wanted(ring))
		return false;
	call_suppressed(ring);
	return true;
}

int ring_call_due(struct ring *ring)
{
	int fd;

	if (ring_call_unwanted(ring))
		return -1;
	call_settled(ring);
	fd = atomic_load_explicit(&ring->call_fd, memory_order_acquire);
	if (fd < 0 || unlikely(atomic_load_explicit(&ring->fault, memory_order_relaxed) == RING_FAULT_CALL_BLOCKED))
		return -1;
	ring_count(&ring->counters.calls_sent, 1);
	return fd;
}

/*
 * An eventfd's counter that is full blocks its writer if the frontend cleared O_NONBLOCK behind our back. The watchdog
 * sees the worker stand still and interrupts it: nothing but a call that blocked can be interrupted.
 */
void ring_call_write(struct ring *ring, int fd)
{
	const uint64_t one = 1;

	if (unlikely(write(fd, &one, sizeof(one)) < 0 && errno == EINTR))
		ring_fail(ring, RING_FAULT_CALL_BLOCKED);
}

void ring_call(struct ring *ring)
{
	const int fd = ring_call_due(ring);

	if (fd >= 0)
		ring_call_write(ring, fd);
}

void ring_call_always(struct ring *ring)
{
	struct pollfd call = {.fd = atomic_load_explicit(&ring->call_fd, memory_order_acquire), .events = POLLOUT};

	/* Not writable: its counter is full, so the guest has a call to see already. */
	if (call.fd >= 0 && poll(&call, 1, 0) == 1 && (call.revents & POLLOUT))
		ring_call_write(ring, call.fd);
}

bool ring_arm(struct ring *ring)
{
	if (!ring_usable(ring))
		return false;
	if (!ring->notifications_armed)
		ring_count(&ring->counters.kicks_armed, 1);
	ring->notifications_armed = true;
	notify_wish(ring, true);
	full_barrier();
	return __atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE) != ring->last_avail;
}

void ring_disarm(struct ring *ring)
{
	if (!ring_usable(ring) || !ring->notifications_armed)
		return;
	ring->notifications_armed = false;
	notify_wish(ring, false);
}

unsigned ring_pending(struct ring *ring)
{
	if (!ring_usable(ring))
		return 0;
	/* More than the ring holds is for ring_take() to judge: it is called because this is not 0. */
	return (uint16_t)(__atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE) - ring->last_avail);
}
