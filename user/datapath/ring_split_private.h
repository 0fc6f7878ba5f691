/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the split ring share: reading shared fields, translation, the walk along a chain, copying.
 * Included by ring_split*.c only.
 *
 * Ordering (virtio 1.2, 2.7.13): avail->idx is loaded with acquire, so entries, descriptors and buffers behind it are
 * seen; used->idx is stored with release, so used entries and buffers go first. All else in shared memory is relaxed.
 */
#ifndef VHOSTLANE_DATAPATH_RING_SPLIT_PRIVATE_H
#define VHOSTLANE_DATAPATH_RING_SPLIT_PRIVATE_H

#include <stdatomic.h>
#include <string.h>

#include "datapath/ring_split.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "virtio 1.2 rings are little endian, read as they lie");
_Static_assert(sizeof(struct vring_desc) == 16, "virtio 1.2, 2.7.5");
_Static_assert(sizeof(struct vring_used_elem) == 8, "virtio 1.2, 2.7.8");

/* --- state -------------------------------------------------------------------------------------------------------- */

static inline bool ring_usable(const struct ring *ring)
{
	return ring->running && atomic_load_explicit(&ring->fault, memory_order_relaxed) == RING_FAULT_NONE;
}

/* The first fault stays. */
static inline void ring_fail(struct ring *ring, enum ring_fault fault)
{
	int none = RING_FAULT_NONE;

	atomic_compare_exchange_strong_explicit(&ring->fault, &none, (int)fault, memory_order_release,
						memory_order_relaxed);
}

static inline void ring_count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

/* --- shared fields ------------------------------------------------------------------------------------------------ */

/* Entries that the guest made available and we have not served. False: the guest's index is unlawful, ring faulted. */
static inline bool ring_look(struct ring *ring)
{
	const uint16_t seen = __atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE);
	const uint16_t waiting = (uint16_t)(seen - ring->last_avail);

	if (unlikely(waiting > ring->size || waiting < (uint16_t)(ring->avail_seen - ring->last_avail))) {
		ring_fail(ring, RING_FAULT_AVAIL_JUMP);
		return false;
	}
	ring->avail_seen = seen;
	return true;
}

/* Each half of the descriptor is read once. */
static inline struct vring_desc desc_read(const struct vring_desc *shared)
{
	union {
		uint64_t half[2];
		struct vring_desc desc;
	} copy;

	copy.half[0] = __atomic_load_n((const uint64_t *)shared, __ATOMIC_RELAXED);
	copy.half[1] = __atomic_load_n((const uint64_t *)shared + 1, __ATOMIC_RELAXED);
	return copy.desc;
}

static inline void used_write(struct ring *ring, uint16_t index, uint16_t head, uint32_t length)
{
	/* id is the low half: little endian. One store, since the line may be under the guest's eyes. */
	__atomic_store_n((uint64_t *)(void *)&ring->used->ring[index & ring->mask], (uint64_t)length << 32 | head,
			 __ATOMIC_RELAXED);
}

static inline void ring_publish(struct ring *ring)
{
	if (ring->used_published == ring->used_next)
		return;
	__atomic_store_n(&ring->used->idx, ring->used_next, __ATOMIC_RELEASE);
	ring->used_published = ring->used_next;
}

/* --- translation -------------------------------------------------------------------------------------------------- */

/* The region that holds address becomes the cached one. False if none does. */
bool ring_cache_region(struct ring *ring, uint64_t address);

/*
 * The longest piece from address on, at most *length bytes; *length is set to what is contiguous. NULL: not in memory.
 */
static inline uint8_t *ring_piece(struct ring *ring, uint64_t address, uint32_t *length)
{
	uint64_t offset = address - ring->cached_guest;

	if (unlikely(offset >= ring->cached_size)) {
		if (!ring_cache_region(ring, address))
			return NULL;
		offset = address - ring->cached_guest;
	}
	if (unlikely(*length > ring->cached_size - offset))
		*length = (uint32_t)(ring->cached_size - offset);
	return ring->cached_base + offset;
}

/*
 * What a slot that is not one plain descriptor will need soon: its first buffer or its table, and its next descriptor.
 */
void slot_prefetch(struct ring *ring, const struct ring_slot *slot);

/*
 * Head and first descriptor of the chain at available entry index. @flags: those of a chain of one plain descriptor. A
 * descriptor outside the cached region, or of any other kind, is left to the walk along the chain.
 */
static inline void slot_read(struct ring *ring, uint16_t index, uint16_t flags, struct ring_slot *slot)
{
	uint16_t head = __atomic_load_n(&ring->avail->ring[index & ring->mask], __ATOMIC_RELAXED);
	struct vring_desc desc;
	uint64_t offset;

	slot->head = head;
	slot->at = NULL;
	if (unlikely(head >= ring->size))
		return; /* judged when its turn comes */
	desc = desc_read(&ring->desc[head]);
	slot->desc = desc;
	offset = desc.addr - ring->cached_guest;
	if (likely(desc.flags == flags && offset < ring->cached_size && desc.len <= ring->cached_size - offset))
		slot->at = ring->cached_base + offset;
	else
		slot_prefetch(ring, slot);
}

/* --- the walk along a chain --------------------------------------------------------------------------------------- */

/* Descriptors of one chain at most: some of the ring, the last of which names a table. */
#define CHAIN_STEPS_MAX (RING_CHAIN_MAX + RING_INDIRECT_MAX)

/* Yields the buffers of a chain, pieces of contiguous memory, one by one. */
struct chain {
	struct vring_desc desc;	  /* read once; addr and len move on as pieces are yielded */
	uint64_t table;		  /* guest address of the indirect table */
	uint32_t table_count;	  /* its entries; 0 = not in one */
	uint32_t steps;		  /* descriptors read of this table (or of the ring's) */
	uint16_t direction;	  /* VRING_DESC_F_WRITE or 0: what every buffer must have */
	bool judged;		  /* desc was checked */
};

enum chain_result { CHAIN_PIECE, CHAIN_END, CHAIN_FAULT };

static inline enum chain_result chain_fail(struct ring *ring, enum ring_fault fault)
{
	ring_fail(ring, fault);
	return CHAIN_FAULT;
}

static inline bool chain_start(struct ring *ring, struct chain *chain, const struct ring_slot *slot, uint16_t direction)
{
	if (unlikely(slot->head >= ring->size)) {
		ring_fail(ring, RING_FAULT_HEAD_RANGE);
		return false;
	}
	*chain = (struct chain){.desc = slot->desc, .steps = 1, .direction = direction};
	return true;
}

/* An entry of an indirect table: need neither be aligned nor lie in one region. */
static inline bool chain_read_indirect(struct ring *ring, struct chain *chain, uint32_t index)
{
	uint64_t address = chain->table + (uint64_t)index * sizeof(struct vring_desc);
	uint8_t *to = (uint8_t *)&chain->desc;
	uint32_t left = sizeof(chain->desc);

	while (left) {
		uint32_t piece = left;
		const uint8_t *from = ring_piece(ring, address, &piece);

		if (!from)
			return false;
		memcpy(to, from, piece);
		to += piece;
		address += piece;
		left -= piece;
	}
	/* From here on only the copy is looked at, whatever the compiler knows of where it came from. */
	__asm__ volatile("" : "+m"(chain->desc));
	return true;
}

static inline enum chain_result chain_enter_table(struct ring *ring, struct chain *chain)
{
	uint32_t length = chain->desc.len;

	if (!ring->indirect || chain->table_count || (chain->desc.flags & VRING_DESC_F_NEXT) || length == 0 ||
	    length % sizeof(struct vring_desc) || length / sizeof(struct vring_desc) > RING_INDIRECT_MAX)
		return chain_fail(ring, RING_FAULT_INDIRECT);
	chain->table = chain->desc.addr;
	chain->table_count = length / sizeof(struct vring_desc);
	chain->steps = 1;
	if (chain->table + length < chain->table || !chain_read_indirect(ring, chain, 0))
		return chain_fail(ring, RING_FAULT_ADDRESS);
	if (chain->desc.flags & VRING_DESC_F_INDIRECT)
		return chain_fail(ring, RING_FAULT_INDIRECT);
	return CHAIN_PIECE;
}

static inline enum chain_result chain_follow(struct ring *ring, struct chain *chain)
{
	uint32_t limit = chain->table_count ? chain->table_count : ring->size; /* of a table: RING_INDIRECT_MAX at most */
	uint16_t next = chain->desc.next;

	if (unlikely(next >= limit))
		return chain_fail(ring, RING_FAULT_NEXT_RANGE);
	if (unlikely(chain->steps == limit || chain->steps == RING_CHAIN_MAX))
		return chain_fail(ring, RING_FAULT_CHAIN_LOOP);
	chain->steps++;
	chain->judged = false;
	if (!chain->table_count)
		chain->desc = desc_read(&ring->desc[next]);
	else if (!chain_read_indirect(ring, chain, next))
		return chain_fail(ring, RING_FAULT_ADDRESS);
	return CHAIN_PIECE;
}

/* Next piece; *budget counts descriptors down over all walks of one call. After a fault the ring is faulted. */
static inline enum chain_result chain_next(struct ring *ring, struct chain *chain, uint32_t *budget, uint8_t **at,
					   uint32_t *length)
{
	for (;;) {
		if (!chain->judged) {
			if (unlikely((*budget)-- == 0)) {
				*budget = 0;
				return chain_fail(ring, RING_FAULT_CHAIN_LOOP);
			}
			if ((chain->desc.flags & VRING_DESC_F_INDIRECT) &&
			    chain_enter_table(ring, chain) == CHAIN_FAULT)
				return CHAIN_FAULT;
			if (unlikely((chain->desc.flags & VRING_DESC_F_WRITE) != chain->direction))
				return chain_fail(ring, RING_FAULT_DIRECTION);
			if (unlikely(chain->desc.addr + chain->desc.len < chain->desc.addr))
				return chain_fail(ring, RING_FAULT_ADDRESS);
			chain->judged = true;
		}
		if (chain->desc.len) {
			*length = chain->desc.len;
			*at = ring_piece(ring, chain->desc.addr, length);
			if (unlikely(!*at))
				return chain_fail(ring, RING_FAULT_ADDRESS);
			chain->desc.addr += *length;
			chain->desc.len -= *length;
			return CHAIN_PIECE;
		}
		if (!(chain->desc.flags & VRING_DESC_F_NEXT))
			return CHAIN_END;
		if (chain_follow(ring, chain) == CHAIN_FAULT)
			return CHAIN_FAULT;
	}
}

/* --- copying and prefetching -------------------------------------------------------------------------------------- */

static inline void copy_16(uint8_t *to, const uint8_t *from)
{
	__builtin_memcpy(to, from, 16);
}

static inline void copy_32(uint8_t *to, const uint8_t *from)
{
	copy_16(to, from);
	copy_16(to + 16, from + 16);
}

/* memcpy() of 0 .. FRAME_HEAD_MAX bytes: no call, few branches; the last block may overlap the one before. */
static inline void copy_head(uint8_t *to, const uint8_t *from, uint32_t length)
{
	if (likely(length >= 32)) {
		copy_32(to, from);
		if (length > 64) {
			copy_32(to + 32, from + 32);
			if (length > 96)
				copy_32(to + 64, from + 64);
		}
		copy_32(to + length - 32, from + length - 32);
	} else if (length >= 16) {
		copy_16(to, from);
		copy_16(to + length - 16, from + length - 16);
	} else if (length >= 8) {
		__builtin_memcpy(to, from, 8);
		__builtin_memcpy(to + length - 8, from + length - 8, 8);
	} else if (length >= 4) {
		__builtin_memcpy(to, from, 4);
		__builtin_memcpy(to + length - 4, from + length - 4, 4);
	} else {
		for (uint32_t i = 0; i < length; i++)
			to[i] = from[i];
	}
}

static inline void prefetch_read(const void *at)
{
	__builtin_prefetch(at, 0, 3);
}

static inline void prefetch_write(const void *at)
{
#ifdef __x86_64__
	/* The builtin gives a read prefetch unless told of a CPU that has this one; others take it for a no-op. */
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1, 3);
#endif
}

/* How far ahead buffers are prefetched: a line that the other core wrote takes about ten small frames' time to come. */
#define PREFETCH_FRAMES 8

static inline void prefetch_frame_read(const uint8_t *at)
{
	prefetch_read(at);
	prefetch_read(at + CACHE_LINE);
}

static inline void prefetch_frame_write(uint8_t *at)
{
	prefetch_write(at);
	prefetch_write(at + CACHE_LINE);
}

#endif
