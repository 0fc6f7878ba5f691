/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The frames of one UMEM: memory on a memfd, bound to a NUMA node, huge pages where there are some; and the stock of
 * free frames. A frame is named by its UMEM address (offset of its chunk). Every frame is at any moment in exactly one of:
 * stock, a worker's cache, FILL, an RX ring or burst, TX, COMPLETION: frame_pool + lane counters prove the sum.
 *
 * Made and freed by control. frame_cache belongs to one worker; it trades with the stock in bulk under the pool's lock.
 */
#ifndef VHOSTLANE_DATAPATH_FRAME_POOL_H
#define VHOSTLANE_DATAPATH_FRAME_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "common/util.h"

#define FRAME_CACHE_SIZE 512 /* frames a worker keeps at most; half of it is traded at once */

struct frame_pool;

struct frame_pool_setup {
	int node;	     /* NUMA node, -1 = none known: local allocation */
	uint32_t frame_size; /* chunk, bytes: 2048 or 4096 */
	uint32_t frames;
};

struct frame_pool *frame_pool_create(const struct frame_pool_setup *setup, struct error *error);
void frame_pool_destroy(struct frame_pool *pool);

uint8_t *frame_pool_area(const struct frame_pool *pool);
uint64_t frame_pool_bytes(const struct frame_pool *pool);
uint32_t frame_pool_frame_size(const struct frame_pool *pool);
uint32_t frame_pool_frames(const struct frame_pool *pool);
int frame_pool_node(const struct frame_pool *pool);	  /* node asked for, -1 = none */
int frame_pool_node_found(const struct frame_pool *pool); /* where the first page lies (move_pages), -1 = unknown */
bool frame_pool_huge(const struct frame_pool *pool);
uint32_t frame_pool_stock(struct frame_pool *pool); /* frames in the stock now */

struct frame_cache {
	struct frame_pool *pool;
	uint32_t count;
	uint64_t frames[FRAME_CACHE_SIZE];
} CACHE_ALIGNED;

void frame_cache_init(struct frame_cache *cache, struct frame_pool *pool);

/* Up to @want frames (refilled from the stock when the cache is short). Return: how many. Never blocks on anything but
 * the stock's short lock. */
unsigned frame_cache_take(struct frame_cache *cache, uint64_t *frames, unsigned want);
void frame_cache_give(struct frame_cache *cache, const uint64_t *frames, unsigned count);
void frame_cache_flush(struct frame_cache *cache); /* everything back to the stock */

#endif
