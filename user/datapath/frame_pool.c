/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation. The stock is a stack of frame addresses under one lock; a worker meets it once per
 * FRAME_CACHE_SIZE / 2 frames, and in a balanced flow (what is received is given back) never. The memory is a memfd, so
 * that it can outlive this process in a successor's hands.
 *
 * Memory is bound to its node before anything touches it, then touched once here: a worker never takes a page fault.
 * MADV_POPULATE_WRITE does the touching where the kernel has it (5.14), because it reports a huge page that cannot be had on
 * this node or in this cpuset as an error where a plain store would end in SIGBUS.
 */
#include "datapath/frame_pool.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log.h"
#include "datapath/burst_lock.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26) /* log2 of the size, MFD_HUGE_SHIFT */
#endif

#define HUGE_PAGE_BYTES (2ull << 20)
#define POOL_NODES_MAX 1024 /* bits of the node mask given to the kernel */

_Static_assert(FRAME_CACHE_SIZE % 2 == 0, "half a cache is traded at once");

struct frame_pool {
	uint8_t *area;
	uint64_t mapped; /* bytes of the mapping: bytes of all frames, rounded up to whole pages */
	uint32_t frame_size, frames;
	int fd;
	int node, node_found;
	bool huge;

	ck_spinlock_t lock CACHE_ALIGNED; /* of what follows */
	uint32_t stock_count;
	uint64_t stock[];
};

/* Free 2 MB pages of @node, or of the whole machine for -1. */
static uint64_t huge_pages_free(int node)
{
	char path[128], text[32];
	uint64_t pages;

	if (node < 0)
		snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
	else
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/free_hugepages", node);
	if (read_text(path, text, sizeof(text)) < 0 || !number_parse(text, 0, UINT64_MAX, &pages))
		return 0;
	return pages;
}

/* Preferred, not bound: a node that runs out of memory makes frames slower, never a dead daemon. */
static void bind_to_node(void *area, uint64_t bytes, int node)
{
	unsigned long mask[POOL_NODES_MAX / (8 * sizeof(unsigned long))] = {0};

	if (node < 0 || node >= POOL_NODES_MAX || numa_available() < 0)
		return;
	mask[(unsigned)node / (8 * sizeof(mask[0]))] = 1ul << ((unsigned)node % (8 * sizeof(mask[0])));
	/* The kernel takes maxnode as one more than the number of bits it looks at. */
	if (mbind(area, bytes, MPOL_PREFERRED, mask, POOL_NODES_MAX + 1, 0))
		log_warning("frame memory: cannot be placed on NUMA node %d: %s; it lies on the node that starts vhostlane", node,
			    strerror(errno));
}

static int populate(uint8_t *area, uint64_t bytes)
{
	long page = sysconf(_SC_PAGESIZE);

	if (!madvise(area, bytes, MADV_POPULATE_WRITE))
		return 0;
	if (errno != EINVAL)
		return -errno;
	for (uint64_t at = 0; at < bytes; at += (uint64_t)page)
		*(volatile uint8_t *)(area + at) = 0;
	return 0;
}

static void unmap_memory(struct frame_pool *pool)
{
	munmap(pool->area, pool->mapped);
	close(pool->fd);
	pool->area = NULL;
	pool->fd = -1;
}

static int map_memory(struct frame_pool *pool, bool huge)
{
	uint64_t page = huge ? HUGE_PAGE_BYTES : (uint64_t)sysconf(_SC_PAGESIZE);
	void *area;
	int code;

	pool->mapped = ((uint64_t)pool->frames * pool->frame_size + page - 1) / page * page;
	pool->fd = memfd_create("vhostlane-umem", MFD_CLOEXEC | (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0));
	if (pool->fd < 0)
		return -errno;
	area = ftruncate(pool->fd, (off_t)pool->mapped) ?
		       MAP_FAILED :
		       mmap(NULL, pool->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, 0);
	if (area == MAP_FAILED) {
		code = -errno;
		close(pool->fd);
		pool->fd = -1;
		return code;
	}
	pool->area = area;
	pool->huge = huge;
	bind_to_node(pool->area, pool->mapped, pool->node);
	if (!huge)
		madvise(pool->area, pool->mapped, MADV_HUGEPAGE); /* a wish */
	code = populate(pool->area, pool->mapped);
	if (code)
		unmap_memory(pool);
	return code;
}

static int node_of_page(void *page)
{
	int status = -1;

	if (move_pages(0, 1, &page, NULL, &status, 0) || status < 0)
		return -1;
	return status;
}

struct frame_pool *frame_pool_create(const struct frame_pool_setup *setup, struct error *error)
{
	uint64_t bytes = (uint64_t)setup->frames * setup->frame_size;
	struct frame_pool *pool;
	int code = -ENOMEM;

	if ((setup->frame_size != 2048 && setup->frame_size != 4096) || !setup->frames) {
		error_set(error, -EINVAL, "frame memory: %u frames of %u bytes; a frame is 2048 or 4096 bytes, and there is at least one",
			  setup->frames, setup->frame_size);
		return NULL;
	}
	pool = zalloc_aligned(sizeof(*pool) + setup->frames * sizeof(pool->stock[0]));
	if (!pool) {
		error_set(error, -ENOMEM, "frame memory: no memory for a list of %u frames; free memory or use fewer queues or workers",
			  setup->frames);
		return NULL;
	}
	pool->frame_size = setup->frame_size;
	pool->frames = setup->frames;
	pool->node = setup->node;

	if (huge_pages_free(setup->node) * HUGE_PAGE_BYTES >= bytes)
		code = map_memory(pool, true);
	if (code)
		code = map_memory(pool, false);
	if (code) {
		error_set(error, code, "frame memory: %u frames of %u bytes (%llu MiB): %s; free memory or use fewer queues or workers",
			  setup->frames, setup->frame_size, (unsigned long long)(bytes >> 20), strerror(-code));
		free(pool);
		return NULL;
	}
	pool->node_found = node_of_page(pool->area);
	if (pool->node >= 0 && pool->node_found >= 0 && pool->node_found != pool->node)
		log_warning("frame memory: lies on NUMA node %d, not on %d where its device is; free memory on node %d", pool->node_found,
			    pool->node, pool->node);

	ck_spinlock_init(&pool->lock);
	for (uint32_t i = 0; i < pool->frames; i++)
		pool->stock[i] = (uint64_t)(pool->frames - 1 - i) * pool->frame_size; /* lowest address on top */
	pool->stock_count = pool->frames;
	return pool;
}

void frame_pool_destroy(struct frame_pool *pool)
{
	if (!pool)
		return;
	unmap_memory(pool);
	free(pool);
}

uint8_t *frame_pool_area(const struct frame_pool *pool)
{
	return pool->area;
}

uint64_t frame_pool_bytes(const struct frame_pool *pool)
{
	return (uint64_t)pool->frames * pool->frame_size;
}

uint32_t frame_pool_frame_size(const struct frame_pool *pool)
{
	return pool->frame_size;
}

uint32_t frame_pool_frames(const struct frame_pool *pool)
{
	return pool->frames;
}

int frame_pool_node(const struct frame_pool *pool)
{
	return pool->node;
}

int frame_pool_node_found(const struct frame_pool *pool)
{
	return pool->node_found;
}

bool frame_pool_huge(const struct frame_pool *pool)
{
	return pool->huge;
}

uint32_t frame_pool_stock(struct frame_pool *pool)
{
	uint32_t count;

	burst_lock(&pool->lock);
	count = pool->stock_count;
	burst_unlock(&pool->lock);
	return count;
}

static unsigned stock_take(struct frame_pool *pool, uint64_t *frames, unsigned want)
{
	unsigned got;

	burst_lock(&pool->lock);
	got = min_u32(want, pool->stock_count);
	pool->stock_count -= got;
	memcpy(frames, &pool->stock[pool->stock_count], got * sizeof(*frames));
	burst_unlock(&pool->lock);
	return got;
}

static void stock_give(struct frame_pool *pool, const uint64_t *frames, unsigned count)
{
	bool fits;

	burst_lock(&pool->lock);
	fits = count <= pool->frames - pool->stock_count;
	if (likely(fits)) {
		memcpy(&pool->stock[pool->stock_count], frames, count * sizeof(*frames));
		pool->stock_count += count;
	}
	burst_unlock(&pool->lock);
	if (unlikely(!fits))
		log_limited(LOG_LEVEL_ERROR, "frame memory: %u frames came back that were never taken: a fault in vhostlane; report it",
			    count);
}

void frame_cache_init(struct frame_cache *cache, struct frame_pool *pool)
{
	cache->pool = pool;
	cache->count = 0;
}

unsigned frame_cache_take(struct frame_cache *cache, uint64_t *frames, unsigned want)
{
	unsigned got = 0;

	for (;;) {
		unsigned part = min_u32(want - got, cache->count);

		cache->count -= part;
		memcpy(frames + got, &cache->frames[cache->count], part * sizeof(*frames));
		got += part;
		if (likely(got == want))
			return got;
		cache->count = stock_take(cache->pool, cache->frames, FRAME_CACHE_SIZE / 2);
		if (!cache->count)
			return got;
	}
}

void frame_cache_give(struct frame_cache *cache, const uint64_t *frames, unsigned count)
{
	while (count) {
		unsigned part = min_u32(count, FRAME_CACHE_SIZE - cache->count);

		memcpy(&cache->frames[cache->count], frames, part * sizeof(*frames));
		cache->count += part;
		frames += part;
		count -= part;
		if (unlikely(cache->count == FRAME_CACHE_SIZE)) {
			/* The older half: what came last is still in the CPU's cache. */
			stock_give(cache->pool, cache->frames, FRAME_CACHE_SIZE / 2);
			memcpy(cache->frames, cache->frames + FRAME_CACHE_SIZE / 2, FRAME_CACHE_SIZE / 2 * sizeof(*frames));
			cache->count = FRAME_CACHE_SIZE / 2;
		}
	}
}

void frame_cache_flush(struct frame_cache *cache)
{
	stock_give(cache->pool, cache->frames, cache->count);
	cache->count = 0;
}
