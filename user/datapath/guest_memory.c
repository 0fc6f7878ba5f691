/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * A guest_memory is an array of regions sorted by guest address. A region points into a guest_mapping: one mmap() of
 * one file, reference counted, so that a table made from another shares what stays. Reference counts are plain: only
 * the control thread makes and frees tables; a mapping that nobody refers to any longer belongs to its reaper.
 *
 * The file belongs to the other side. It can be cut short while workers copy, and the access then raises SIGBUS. A
 * signal handler gets no context, therefore the mapped ranges stand in one process-wide array, guard.slots. It is the
 * one mutable global of this file:
 *   - control claims slots, and whoever unmaps (control or a reaper) frees them; a slot with start == 0 is free;
 *   - the handler, on any thread, only reads slots and sets ->faulted. The thread that it interrupts uses the
 *     mapping, so by the grace period rule (design section 4) the slot that it looks for cannot go away meanwhile.
 *     Other slots can: start is therefore read twice around the rest, and a slot that changed is passed over.
 */
#include "datapath/guest_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/util.h"

/* Ports of one daemon x regions of one guest, in use, on their way in and on their way out. Untouched pages cost nothing. */
#define GUARD_SLOTS (256 * 3 * GUEST_REGIONS_MAX)
#define UNMAP_AT_ONCE (16ull << 20)	      /* others wait for the address space meanwhile */
#define BLOCK_SIZE_MAX (16ull << 30)	      /* the largest huge page there is */

struct guard_slot {
	_Atomic uintptr_t start; /* 0 = free */
	_Atomic uintptr_t end;
	_Atomic uintptr_t block; /* what can be replaced at once: a page, or a huge page */
	atomic_bool faulted;
};

static struct {
	struct guard_slot slots[GUARD_SLOTS];
	atomic_uint used; /* slots at and above this were never claimed */
	int notify_fd;
	struct sigaction previous;
} guard = {.notify_fd = -1};

struct guest_mapping {
	void *start;
	size_t length;
	size_t block; /* unmapped in multiples of this */
	struct guard_slot *slot;
	struct reaper *reaper;
	unsigned references;
};

/* --- the SIGBUS guard --------------------------------------------------------------------------------------------- */

static struct guard_slot *guard_find(uintptr_t address)
{
	unsigned used = atomic_load_explicit(&guard.used, memory_order_acquire);

	for (unsigned i = 0; i < used; i++) {
		struct guard_slot *slot = &guard.slots[i];
		uintptr_t start = atomic_load_explicit(&slot->start, memory_order_acquire);
		uintptr_t end = atomic_load_explicit(&slot->end, memory_order_acquire);

		if (start && address >= start && address < end &&
		    atomic_load_explicit(&slot->start, memory_order_relaxed) == start)
			return slot;
	}
	return NULL;
}

/*
 * From the missing block to the end of the mapping: what is cut off is always a tail, so one fault a mapping is the
 * rule. Never what lies before the mapping: tmpfs with huge pages reports their size, but need not map at a multiple of it.
 */
static bool guard_replace(struct guard_slot *slot, uintptr_t address)
{
	uintptr_t block = atomic_load_explicit(&slot->block, memory_order_relaxed);
	uintptr_t start = atomic_load_explicit(&slot->start, memory_order_relaxed);
	uintptr_t end = atomic_load_explicit(&slot->end, memory_order_relaxed);
	uintptr_t from = max_u64(address & ~(block - 1), start);

	return mmap((void *)from, end - from, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
}

static void guard_pass_on(int number, siginfo_t *info, void *context)
{
	struct sigaction fallback = {.sa_handler = SIG_DFL};

	if (guard.previous.sa_flags & SA_SIGINFO) {
		guard.previous.sa_sigaction(number, info, context);
	} else if (guard.previous.sa_handler != SIG_DFL && guard.previous.sa_handler != SIG_IGN) {
		guard.previous.sa_handler(number);
	} else {
		/*
		 * A fault is met again on return, with the default action; a signal that was sent has to be sent
		 * again.
		 */
		sigaction(number, &fallback, NULL);
		if (info->si_code <= 0)
			raise(number);
	}
}

static void guard_handler(int number, siginfo_t *info, void *context)
{
	int saved_errno = errno;
	uint64_t one = 1;
	struct guard_slot *slot = info->si_code > 0 ? guard_find((uintptr_t)info->si_addr) : NULL;

	if (slot && guard_replace(slot, (uintptr_t)info->si_addr)) {
		atomic_store_explicit(&slot->faulted, true, memory_order_release);
		/* A full or missing descriptor is no loss: ->faulted is the truth. */
		if (guard.notify_fd >= 0 && write(guard.notify_fd, &one, sizeof(one)) < 0)
			errno = 0;
	} else {
		guard_pass_on(number, info, context);
	}
	errno = saved_errno;
}

int guest_memory_guard_install(int notify_fd)
{
	struct sigaction action = {.sa_sigaction = guard_handler, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
	struct sigaction current;

	guard.notify_fd = notify_fd;
	sigemptyset(&action.sa_mask);
	if (sigaction(SIGBUS, NULL, &current) < 0)
		return -errno;
	if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == guard_handler)
		return 0;
	guard.previous = current;
	return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

static struct guard_slot *guard_claim(const void *start, size_t length, size_t block)
{
	unsigned used = atomic_load_explicit(&guard.used, memory_order_relaxed);
	unsigned i = 0;

	while (i < used && atomic_load_explicit(&guard.slots[i].start, memory_order_acquire))
		i++;
	if (i == GUARD_SLOTS)
		return NULL;
	atomic_store_explicit(&guard.slots[i].faulted, false, memory_order_relaxed);
	atomic_store_explicit(&guard.slots[i].block, block, memory_order_relaxed);
	atomic_store_explicit(&guard.slots[i].end, (uintptr_t)start + length, memory_order_relaxed);
	atomic_store_explicit(&guard.slots[i].start, (uintptr_t)start, memory_order_release);
	if (i == used)
		atomic_store_explicit(&guard.used, used + 1, memory_order_release);
	return &guard.slots[i];
}

/* --- mappings ----------------------------------------------------------------------------------------------------- */

/*
 * Piece by piece from the front: munmap() keeps others from changing the address space. The slot goes first, since nobody
 * touches the mapping any longer, and what is mapped here next must not be found under two slots.
 */
static void mapping_unmap(void *argument)
{
	struct guest_mapping *mapping = argument;
	const size_t step = mapping->block > UNMAP_AT_ONCE ? mapping->block : UNMAP_AT_ONCE;

	atomic_store_explicit(&mapping->slot->start, 0, memory_order_release);
	for (size_t done = 0; done < mapping->length; done += step)
		munmap((uint8_t *)mapping->start + done, mapping->length - done < step ? mapping->length - done : step);
	free(mapping);
}

static void mapping_put(struct guest_mapping *mapping)
{
	if (!--mapping->references)
		reaper_do(mapping->reaper, mapping_unmap, mapping);
}

/* What has to divide offset and length of an mmap() of this file: hugetlbfs reports its page size as block size. */
static uint64_t mapping_block(const struct stat *file)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t block = (uint64_t)file->st_blksize;

	return is_power_of_two(block) && block > page && block <= BLOCK_SIZE_MAX ? block : page;
}

#define REMEDY_SHARE                                                                                                   \
	"give the guest shared memory (QEMU: -object memory-backend-memfd,share=on,... or memory-backend-file,share=on,... "    \
	"in /dev/shm or on hugetlbfs, with -numa node,memdev=...)"

/*
 * Only memory of this kernel will do: the pages of any other file come from a process or a server of somebody's choice,
 * and whoever touches them, or asks that file anything, waits for it. Seals are known for memfds, tmpfs and hugetlbfs,
 * and asking for them asks no other file system.
 */
static int mapping_check_file(const struct guest_region_setup *setup, int fd, unsigned index, struct stat *file,
			      struct error *error)
{
	if (fcntl(fd, F_GET_SEALS) < 0)
		return error_set(error, -errno,
				 "guest memory region %u: its file is no memfd and lies neither on tmpfs nor on hugetlbfs; whoever "
				 "uses it could be made to wait; " REMEDY_SHARE, index);
	if (fstat(fd, file) < 0)
		return error_set(error, -errno,
				 "guest memory region %u: cannot read the size of its file: %s; " REMEDY_SHARE, index,
				 strerror(errno));
	if ((uint64_t)file->st_size < setup->file_offset + setup->size)
		return error_set(error, -EINVAL,
				 "guest memory region %u: offset 0x%" PRIx64 " + size 0x%" PRIx64
				 " is beyond its file of 0x%" PRIx64
				 " bytes; give the memory backend the size that the guest uses",
				 index, setup->file_offset, setup->size, (uint64_t)file->st_size);
	return 0;
}

/* Return: mapping with one reference, *base = where the region starts; NULL with *error. */
static struct guest_mapping *mapping_create(const struct guest_region_setup *setup, int fd, unsigned index,
					    uint8_t **base, struct error *error)
{
	struct guest_mapping *mapping;
	struct stat file;
	uint64_t block, start, length;

	if (mapping_check_file(setup, fd, index, &file, error) < 0)
		return NULL;
	block = mapping_block(&file);
	start = setup->file_offset & ~(block - 1);
	length = (setup->file_offset + setup->size - start + block - 1) & ~(block - 1);
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping) {
		error_set(error, -ENOMEM, "guest memory region %u: out of memory; free some", index);
		return NULL;
	}
	mapping->start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)start);
	if (mapping->start == MAP_FAILED) {
		error_set(error, -errno,
			  "guest memory region %u: its file cannot be mapped shared and writable (%s, 0x%" PRIx64
			  " bytes); " REMEDY_SHARE,
			  index, strerror(errno), length);
		goto free_mapping;
	}
	mapping->length = length;
	mapping->block = block;
	mapping->reaper = setup->reaper;
	mapping->references = 1;
	mapping->slot = guard_claim(mapping->start, length, block);
	if (!mapping->slot) {
		error_set(error, -ENOSPC, "guest memory region %u: all %d mappings of guests are taken; "
			  "attach fewer guests, or give them fewer memory backends", index, GUARD_SLOTS);
		goto unmap;
	}
	/* Guests' memory has no place in our core dumps. It is a wish: a kernel that lacks it changes nothing else. */
	madvise(mapping->start, length, MADV_DONTDUMP);
	*base = (uint8_t *)mapping->start + (setup->file_offset - start);
	return mapping;
unmap:
	munmap(mapping->start, length);
free_mapping:
	free(mapping);
	return NULL;
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

static bool ranges_meet(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size)
{
	return a < b + b_size && b < a + a_size;
}

static int region_check(const struct guest_memory *memory, const struct guest_region_setup *setup, unsigned index,
			struct error *error)
{
	uint64_t sum;

	if (setup->size == 0)
		return error_set(error, -EINVAL,
				 "guest memory region %u: size 0; announce only regions that hold memory", index);
	if (__builtin_add_overflow(setup->guest_address, setup->size, &sum) ||
	    __builtin_add_overflow(setup->user_address, setup->size, &sum) ||
	    __builtin_add_overflow(setup->file_offset, setup->size, &sum) || sum > INT64_MAX - BLOCK_SIZE_MAX)
		return error_set(error, -EINVAL,
				 "guest memory region %u: size 0x%" PRIx64 " wraps around (guest address 0x%" PRIx64
				 ", user address 0x%" PRIx64 ", file offset 0x%" PRIx64
				 "); correct the frontend's memory table",
				 index, setup->size, setup->guest_address, setup->user_address, setup->file_offset);
	for (uint32_t i = 0; i < memory->count; i++) {
		const struct guest_region *other = &memory->regions[i];

		if (ranges_meet(setup->guest_address, setup->size, other->guest_address, other->size) ||
		    ranges_meet(setup->user_address, setup->size, other->user_address, other->size))
			return error_set(error, -EEXIST,
					 "guest memory region %u: guest address 0x%" PRIx64 ", user address 0x%" PRIx64
					 ", size 0x%" PRIx64 " overlaps the region at guest address 0x%" PRIx64
					 "; correct the frontend's memory table", index, setup->guest_address,
					 setup->user_address, setup->size, other->guest_address);
	}
	return 0;
}

static int region_add(struct guest_memory *memory, const struct guest_region_setup *setup, int fd, unsigned index,
		      struct error *error)
{
	struct guest_mapping *mapping;
	uint32_t at = 0;
	uint8_t *base;
	int rc;

	if (memory->count == GUEST_REGIONS_MAX)
		return error_set(error, -E2BIG,
				 "guest memory region %u: the limit is %d regions; use fewer memory backends", index,
				 GUEST_REGIONS_MAX);
	rc = region_check(memory, setup, index, error);
	if (rc < 0)
		return rc;
	mapping = mapping_create(setup, fd, index, &base, error);
	if (!mapping)
		return error ? error->code : -EINVAL;
	while (at < memory->count && memory->regions[at].guest_address < setup->guest_address)
		at++;
	memmove(&memory->regions[at + 1], &memory->regions[at], (memory->count - at) * sizeof(memory->regions[0]));
	memory->regions[at] = (struct guest_region){
		.guest_address = setup->guest_address,
		.size = setup->size,
		.user_address = setup->user_address,
		.file_offset = setup->file_offset,
		.base = base,
		.mapping = mapping,
	};
	memory->count++;
	return 0;
}

static struct guest_memory *memory_copy(const struct guest_memory *old, struct error *error)
{
	struct guest_memory *memory = calloc(1, sizeof(*memory));

	if (!memory) {
		error_set(error, -ENOMEM, "guest memory: out of memory; free some");
		return NULL;
	}
	if (!old)
		return memory;
	*memory = *old;
	for (uint32_t i = 0; i < memory->count; i++)
		memory->regions[i].mapping->references++;
	return memory;
}

struct guest_memory *guest_memory_create(const struct guest_region_setup *setup, const int *fds, unsigned count,
					 struct error *error)
{
	struct guest_memory *memory;

	if (count == 0 || count > GUEST_REGIONS_MAX) {
		error_set(error, -EINVAL, "guest memory: %u regions; the frontend must share 1 to %d", count,
			  GUEST_REGIONS_MAX);
		return NULL;
	}
	memory = memory_copy(NULL, error);
	for (unsigned i = 0; memory && i < count; i++) {
		if (region_add(memory, &setup[i], fds[i], i, error) < 0) {
			guest_memory_free(memory);
			return NULL;
		}
	}
	return memory;
}

/* Return: index, or -1. */
static int region_find(const struct guest_memory *memory, const struct guest_region_setup *setup)
{
	for (uint32_t i = 0; i < memory->count; i++)
		if (memory->regions[i].guest_address == setup->guest_address && memory->regions[i].user_address == setup->user_address &&
		    memory->regions[i].size == setup->size)
			return (int)i;
	return -1;
}

static void region_drop(struct guest_memory *memory, uint32_t at)
{
	mapping_put(memory->regions[at].mapping);
	memory->count--;
	memmove(&memory->regions[at], &memory->regions[at + 1], (memory->count - at) * sizeof(memory->regions[0]));
}

struct guest_memory *guest_memory_with(const struct guest_memory *old, const struct guest_region_setup *setup, int fd,
				       struct error *error)
{
	struct guest_memory *memory = memory_copy(old, error);
	const int same = memory ? region_find(memory, setup) : -1;

	if (same >= 0)
		region_drop(memory, (uint32_t)same);
	if (memory && region_add(memory, setup, fd, memory->count, error) < 0) {
		guest_memory_free(memory);
		return NULL;
	}
	return memory;
}

struct guest_memory *guest_memory_without(const struct guest_memory *old, const struct guest_region_setup *setup,
					  struct error *error)
{
	struct guest_memory *memory;
	const int at = region_find(old, setup);

	if (at < 0) {
		error_set(error, -ENOENT,
			  "guest memory: no region with guest address 0x%" PRIx64 ", user address 0x%" PRIx64
			  ", size 0x%" PRIx64 " to remove; the frontend must name a region as it added it",
			  setup->guest_address, setup->user_address, setup->size);
		return NULL;
	}
	memory = memory_copy(old, error);
	if (!memory)
		return NULL;
	region_drop(memory, (uint32_t)at);
	return memory;
}

void guest_memory_free(struct guest_memory *memory)
{
	if (!memory)
		return;
	for (uint32_t i = 0; i < memory->count; i++)
		mapping_put(memory->regions[i].mapping);
	free(memory);
}

bool guest_memory_faulted(const struct guest_memory *memory)
{
	for (uint32_t i = 0; i < memory->count; i++) {
		if (atomic_load_explicit(&memory->regions[i].mapping->slot->faulted, memory_order_relaxed))
			return true;
	}
	return false;
}

/* --- translation -------------------------------------------------------------------------------------------------- */

/* offset < size first: then size - offset cannot wrap, and no sum of hostile numbers is ever made. */

void *guest_memory_piece(const struct guest_memory *memory, uint64_t guest_address, uint64_t *length)
{
	for (uint32_t i = 0; i < memory->count; i++) {
		const struct guest_region *region = &memory->regions[i];
		uint64_t offset = guest_address - region->guest_address;

		if (offset < region->size) {
			if (*length > region->size - offset)
				*length = region->size - offset;
			return region->base + offset;
		}
	}
	return NULL;
}

void *guest_memory_at(const struct guest_memory *memory, uint64_t guest_address, uint64_t length)
{
	uint64_t piece = length;
	void *at = guest_memory_piece(memory, guest_address, &piece);

	return piece == length ? at : NULL;
}

void *guest_memory_at_user(const struct guest_memory *memory, uint64_t user_address, uint64_t length)
{
	for (uint32_t i = 0; i < memory->count; i++) {
		const struct guest_region *region = &memory->regions[i];
		uint64_t offset = user_address - region->user_address;

		if (offset < region->size)
			return length <= region->size - offset ? region->base + offset : NULL;
	}
	return NULL;
}
