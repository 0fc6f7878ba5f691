/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A guest with one split virtqueue, for tests: the driver side of virtio 1.2, 2.7, written from the specification. It
 * has its own mappings of the memory that it shares, as a real guest does. Three regions: rings and buffers; their
 * neighbour in guest addresses, which is another file; one far above.
 */
#ifndef TESTS_UNIT_RING_DRIVER_H
#define TESTS_UNIT_RING_DRIVER_H

#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "datapath/ring_split.h"

#define DRIVER_REGIONS 3
#define RINGS_AT 0x10000ull	       /* guest address of region 0, its rings first */
#define BUFFERS_AT (RINGS_AT + 0x100000) /* buffers from here to the end of region 1 */
#define REGION0_SIZE 0x140000ull
#define REGION1_SIZE 0x40000ull
#define BUFFERS_END (RINGS_AT + REGION0_SIZE + REGION1_SIZE)
#define BORDER (RINGS_AT + REGION0_SIZE) /* between regions 0 and 1 */
#define FAR_AT 0x200000000ull
#define FAR_SIZE 0x10000ull
#define USER_OFFSET 0x7f1000000000ull /* user address = guest address + this */

#define F_EVENT (1ull << VIRTIO_RING_F_EVENT_IDX)
#define F_INDIRECT (1ull << VIRTIO_RING_F_INDIRECT_DESC)
#define F_MODERN (1ull << VIRTIO_F_VERSION_1)
#define F_MERGEABLE (1ull << VIRTIO_NET_F_MRG_RXBUF)

struct driver {
	uint8_t *mine[DRIVER_REGIONS];
	int fds[DRIVER_REGIONS];
	struct guest_memory *shared;
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint16_t size, avail_next, used_seen;
	struct ring ring;
};

static const struct guest_region_setup driver_regions[DRIVER_REGIONS] = {
	{.guest_address = RINGS_AT, .size = REGION0_SIZE, .user_address = USER_OFFSET + RINGS_AT},
	{.guest_address = BORDER, .size = REGION1_SIZE, .user_address = USER_OFFSET + BORDER},
	{.guest_address = FAR_AT, .size = FAR_SIZE, .user_address = USER_OFFSET + FAR_AT},
};

/* The driver's pointer to guest address; valid to the end of its region. */
static inline uint8_t *driver_at(struct driver *d, uint64_t address)
{
	for (unsigned i = 0; i < DRIVER_REGIONS; i++) {
		if (address - driver_regions[i].guest_address < driver_regions[i].size)
			return d->mine[i] + (address - driver_regions[i].guest_address);
	}
	fail_msg("driver: no memory at 0x%llx", (unsigned long long)address);
	return NULL;
}

/* Byte by byte, so that borders need no care. */
static inline void driver_write(struct driver *d, uint64_t address, const void *data, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		*driver_at(d, address + i) = ((const uint8_t *)data)[i];
}

static inline void driver_read(struct driver *d, uint64_t address, void *data, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		((uint8_t *)data)[i] = *driver_at(d, address + i);
}

static inline struct driver *driver_create(void)
{
	struct driver *d = zalloc_aligned(sizeof(*d));
	struct error error;

	assert_non_null(d);
	for (unsigned i = 0; i < DRIVER_REGIONS; i++) {
		d->fds[i] = memfd_create("driver", 0);
		assert_true(d->fds[i] >= 0);
		assert_int_equal(ftruncate(d->fds[i], (off_t)driver_regions[i].size), 0);
		d->mine[i] = mmap(NULL, driver_regions[i].size, PROT_READ | PROT_WRITE, MAP_SHARED, d->fds[i], 0);
		assert_ptr_not_equal(d->mine[i], MAP_FAILED);
	}
	d->shared = guest_memory_create(driver_regions, d->fds, DRIVER_REGIONS, &error);
	assert_non_null(d->shared);
	ring_init(&d->ring);
	return d;
}

static inline void driver_destroy(struct driver *d)
{
	ring_stop(&d->ring);
	guest_memory_free(d->shared);
	for (unsigned i = 0; i < DRIVER_REGIONS; i++) {
		munmap(d->mine[i], driver_regions[i].size);
		close(d->fds[i]);
	}
	free(d);
}

static inline struct ring_setup driver_setup(struct driver *d, uint32_t size, uint64_t features, uint16_t base)
{
	uint64_t avail = (RINGS_AT + size * 16ull + 15) & ~15ull;

	return (struct ring_setup){
		.memory = d->shared,
		.desc_user_address = USER_OFFSET + RINGS_AT,
		.avail_user_address = USER_OFFSET + avail,
		.used_user_address = USER_OFFSET + ((avail + 6 + size * 2ull + 15) & ~15ull),
		.features = features,
		.size = size,
		.base = base,
	};
}

/* Both indices start at base, as after a migration. */
static inline void driver_start(struct driver *d, uint32_t size, uint64_t features, uint16_t base)
{
	struct ring_setup setup = driver_setup(d, size, features, base);
	struct error error;

	ring_stop(&d->ring);
	memset(d->mine[0], 0, BUFFERS_AT - RINGS_AT);
	d->desc = (void *)driver_at(d, setup.desc_user_address - USER_OFFSET);
	d->avail = (void *)driver_at(d, setup.avail_user_address - USER_OFFSET);
	d->used = (void *)driver_at(d, setup.used_user_address - USER_OFFSET);
	d->size = (uint16_t)size;
	d->avail->idx = d->used->idx = d->avail_next = d->used_seen = base;
	if (ring_start(&d->ring, &setup, &error) < 0)
		fail_msg("%s", error.text);
}

static inline void driver_publish(struct driver *d)
{
	__atomic_store_n(&d->avail->idx, d->avail_next, __ATOMIC_RELEASE);
}

static inline void driver_offer(struct driver *d, uint16_t head)
{
	d->avail->ring[d->avail_next++ & (d->size - 1)] = head;
	driver_publish(d);
}

/* One used entry. False: none. */
static inline bool driver_used(struct driver *d, struct vring_used_elem *element)
{
	if (__atomic_load_n(&d->used->idx, __ATOMIC_ACQUIRE) == d->used_seen)
		return false;
	*element = d->used->ring[d->used_seen++ & (d->size - 1)];
	return true;
}

static inline void driver_expect_used(struct driver *d, uint32_t id, uint32_t length)
{
	struct vring_used_elem element = {0};

	assert_true(driver_used(d, &element));
	assert_int_equal(element.id, id);
	assert_int_equal(element.len, length);
}

static inline void driver_expect_none_used(struct driver *d)
{
	assert_int_equal(__atomic_load_n(&d->used->idx, __ATOMIC_ACQUIRE), d->used_seen);
}

/* A frame as the receiver of a burst sees it: head and segments joined. Return: its length. */
static inline uint32_t frame_join(const struct frame *frame, uint8_t *to)
{
	uint32_t length = frame->head_length;

	memcpy(to, frame->head, frame->head_length);
	for (uint32_t i = 0; i < frame->segment_count; i++) {
		memcpy(to + length, frame->segments[i].data, frame->segments[i].length);
		length += frame->segments[i].length;
	}
	assert_int_equal(length, frame->length);
	return length;
}

/* A virtio header with every byte its own. */
static const struct vnet_header marked __attribute__((unused)) = {
	.flags = 1, .gso_type = 2, .hdr_len = 3, .gso_size = 4, .csum_start = 5, .csum_offset = 6, .num_buffers = 7};

static inline void pattern(uint8_t *to, uint32_t length, uint8_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		to[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static inline void desc_set(struct driver *d, uint16_t i, uint64_t address, uint32_t length, uint16_t flags,
			    uint16_t next)
{
	d->desc[i] = (struct vring_desc){.addr = address, .len = length, .flags = flags, .next = next};
}

static inline struct frame private_frame(uint8_t *data, uint32_t length, uint8_t seed)
{
	pattern(data, length, seed);
	return (struct frame){.head = data, .length = length, .head_length = (uint16_t)length};
}

static inline int fault_of(struct driver *d)
{
	return atomic_load(&d->ring.fault);
}

/* cmocka's setup and teardown of tests that need a driver and nothing else. */
static inline int driver_begin(void **state)
{
	*state = driver_create();
	return 0;
}

static inline int driver_end(void **state)
{
	driver_destroy(*state);
	return 0;
}

#endif
