/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/pair_memory.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/log.h"
#include "common/util.h"

#define NODE_BITS (8 * sizeof(unsigned long))
_Static_assert(VL_NODES_MAX <= NODE_BITS, "one word holds all nodes");

static uintptr_t page_size(void)
{
	return (uintptr_t)sysconf(_SC_PAGESIZE);
}

static size_t mapped_size(void)
{
	return (sizeof(struct queue_pair) + page_size() - 1) / page_size() * page_size();
}

/* Where a pair's pages begin: it does not fill them, and begins somewhere in the first. */
static void *pages_of(struct queue_pair *pair)
{
	return (void *)((uintptr_t)pair & ~(page_size() - 1));
}

struct queue_pair *pair_memory_create(unsigned number)
{
	void *memory = mmap(NULL, mapped_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const size_t spare_lines = (mapped_size() - sizeof(struct queue_pair)) / CACHE_LINE;

	/* A worker polls many pairs: were they all to begin a page, their first lines would drive each other out of the cache. */
	return memory == MAP_FAILED ? NULL : (void *)((uint8_t *)memory + number % (spare_lines + 1) * CACHE_LINE);
}

void pair_memory_free(struct queue_pair *pair)
{
	if (pair)
		munmap(pages_of(pair), mapped_size());
}

void pair_memory_follow(struct queue_pair *pair, int node)
{
	unsigned long mask;

	if (node < 0 || node >= VL_NODES_MAX || numa_available() < 0)
		return;
	mask = 1ul << node;
	/* Preferred, not bound. The kernel takes maxnode as one more than the number of bits it looks at. */
	if (mbind(pages_of(pair), mapped_size(), MPOL_PREFERRED, &mask, NODE_BITS + 1, MPOL_MF_MOVE))
		log_debug("queue pair's state: cannot be moved to NUMA node %d: %s; it stays where it is", node, strerror(errno));
}
