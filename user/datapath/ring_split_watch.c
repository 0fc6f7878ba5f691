/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Looks at a ring from outside, while workers use it. Only what is constant while it runs and what lies in shared memory is read: workers'
 * own indices are theirs.
 */
#include "datapath/ring_split_private.h"

unsigned ring_unserved(const struct ring *ring, uint16_t *oldest)
{
	uint16_t count;

	if (!ring_usable(ring))
		return 0;
	/* In this order: what is served in between makes the count larger, never negative. */
	*oldest = __atomic_load_n(&ring->used->idx, __ATOMIC_ACQUIRE);
	count = (uint16_t)(__atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE) - *oldest);
	return count <= ring->size ? count : 0;
}

/* The first buffer of the chain at an available entry; NULL for what is not lawful. */
static const void *buffer_of_entry(const struct ring *ring, uint16_t index)
{
	const uint16_t head = __atomic_load_n(&ring->avail->ring[index & ring->mask], __ATOMIC_RELAXED);
	const struct vring_desc *table;
	struct vring_desc desc;

	if (head >= ring->size)
		return NULL;
	desc = desc_read(&ring->desc[head]);
	if (desc.flags & VRING_DESC_F_INDIRECT) {
		table = guest_memory_at(ring->memory, desc.addr, sizeof(*table));
		if (!table || (uintptr_t)table % sizeof(uint64_t))
			return NULL;
		desc = desc_read(table);
	}
	return guest_memory_at(ring->memory, desc.addr, 1);
}

unsigned ring_recent_buffers(const struct ring *ring, const void **buffers, unsigned max)
{
	unsigned found = 0;
	uint16_t next;

	if (!ring_usable(ring))
		return 0;
	next = __atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE);
	for (unsigned i = 1; i <= ring->size && i <= max; i++) {
		const void *buffer = buffer_of_entry(ring, (uint16_t)(next - i));

		if (buffer)
			buffers[found++] = buffer;
	}
	return found;
}
