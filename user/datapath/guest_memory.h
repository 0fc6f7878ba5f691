/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A guest's memory as its frontend shared it: regions, their mappings, and translation. Immutable once made; a change
 * makes a new object that shares the mappings of regions that stay (reference counted). Made and freed by the control
 * thread; read by workers between two quiescent states. Freed only after a grace period (design section 4).
 *
 * A shared file can be truncated under us by its owner. guest_memory_guard_install() handles the SIGBUS that follows:
 * the missing pages are replaced by private zero pages, the mapping is marked, guest_memory_faulted() turns true, and
 * the instruction that hit it goes on. Only that guest's port is ended for it (cases.md: hostile shrink).
 */
#ifndef VHOSTLANE_DATAPATH_GUEST_MEMORY_H
#define VHOSTLANE_DATAPATH_GUEST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/reaper.h"

/* Regions of one guest: SET_MEM_TABLE carries 8; CONFIGURE_MEM_SLOTS lets a frontend add one by one (GET_MAX_MEM_SLOTS). */
#define GUEST_REGIONS_MAX 64

struct guest_region_setup {
	uint64_t guest_address; /* guest-physical, bytes */
	uint64_t size;
	uint64_t user_address; /* in the frontend's address space; ring addresses are given in it */
	uint64_t file_offset;
	struct reaper *reaper; /* unmaps it when nobody uses it any longer; NULL = whoever frees the last table does */
};

struct guest_mapping; /* reference counted mmap of one region's file */

struct guest_region {
	uint64_t guest_address;
	uint64_t size;
	uint64_t user_address;
	uint64_t file_offset;
	uint8_t *base; /* byte at guest_address, in our address space */
	struct guest_mapping *mapping;
};

struct guest_memory {
	uint32_t count;
	struct guest_region regions[GUEST_REGIONS_MAX]; /* sorted by guest_address, no two overlap */
};

/**
 * guest_memory_create() - map a whole memory table
 * @fds: one per region; not consumed: the caller closes them
 *
 * Refuses: no region, too many, zero size, sums that wrap, overlap of guest or of user addresses, an offset or size beyond the
 * file (fstat; a descriptor that cannot be mapped shared: `memory-backend-ram without share=on` and the like), files whose
 * pages do not come from this kernel's own memory, all with an error that names the region and the remedy. No file system
 * of a stranger is asked: that could take for ever.
 * Return: object, or NULL with *error filled.
 */
struct guest_memory *guest_memory_create(const struct guest_region_setup *setup, const int *fds, unsigned count,
					 struct error *error);

/* A copy with one region more or less (ADD_MEM_REG, REM_MEM_REG); @old stays valid and must be freed by its owner.
 * old may be NULL for add. Remove matches guest_address, user_address and size exactly. Adding a region that is there already, by the same
 * three, puts the new file in the old one's place: QEMU 7 adds each region once a queue pair. */
struct guest_memory *guest_memory_with(const struct guest_memory *old, const struct guest_region_setup *setup, int fd,
				       struct error *error);
struct guest_memory *guest_memory_without(const struct guest_memory *old, const struct guest_region_setup *setup,
					  struct error *error);

/* After the grace period. Returns at once where regions have a reaper: freeing a guest's memory takes a second a gigabyte. */
void guest_memory_free(struct guest_memory *memory);

/* Whole range inside one region (or NULL). By guest-physical address; by frontend address. Wrap-safe. */
void *guest_memory_at(const struct guest_memory *memory, uint64_t guest_address, uint64_t length);
void *guest_memory_at_user(const struct guest_memory *memory, uint64_t user_address, uint64_t length);

/* The longest piece that starts at guest_address, at most *length bytes; *length is set to what is contiguous.
 * NULL if the first byte is in no region. */
void *guest_memory_piece(const struct guest_memory *memory, uint64_t guest_address, uint64_t *length);

/* True once a page of any region was found missing. Any thread; one relaxed load per region is too slow for the hot
 * path, so callers ask once per wake-up or when told by the notification descriptor. */
bool guest_memory_faulted(const struct guest_memory *memory);

/**
 * guest_memory_guard_install() - install the SIGBUS handler; once, before workers start
 * @notify_fd: eventfd that is written (non-blocking) when a mapping was found short; -1 = none
 */
int guest_memory_guard_install(int notify_fd);

#endif
