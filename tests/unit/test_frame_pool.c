/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "datapath/frame_pool.h"

#define FRAMES 4096

static struct frame_pool *pool_of(uint32_t frame_size, uint32_t frames)
{
	struct frame_pool_setup setup = {.node = -1, .frame_size = frame_size, .frames = frames};
	struct error error = {0};
	struct frame_pool *pool = frame_pool_create(&setup, &error);

	if (!pool)
		fail_msg("%s", error.text);
	return pool;
}

static void test_every_frame_once(void **state)
{
	const uint32_t sizes[] = {2048, 4096};

	for (unsigned s = 0; s < ARRAY_SIZE(sizes); s++) {
		struct frame_pool *pool = pool_of(sizes[s], FRAMES);
		static uint64_t frames[FRAMES + 1];
		bool seen[FRAMES] = {false};
		struct frame_cache cache;

		frame_cache_init(&cache, pool);
		assert_int_equal(frame_pool_bytes(pool), (uint64_t)FRAMES * sizes[s]);
		/* More than there are: all of them, then none. */
		assert_int_equal(frame_cache_take(&cache, frames, FRAMES + 1), FRAMES);
		assert_int_equal(frame_cache_take(&cache, frames + FRAMES, 1), 0);
		assert_int_equal(frame_pool_stock(pool), 0);
		for (unsigned i = 0; i < FRAMES; i++) {
			assert_int_equal(frames[i] % sizes[s], 0);
			assert_true(frames[i] / sizes[s] < FRAMES);
			assert_false(seen[frames[i] / sizes[s]]);
			seen[frames[i] / sizes[s]] = true;
			memset(frame_pool_area(pool) + frames[i], 0x5a, sizes[s]); /* all of it is ours to write */
		}
		frame_cache_give(&cache, frames, FRAMES);
		assert_true(cache.count < FRAME_CACHE_SIZE);
		assert_int_equal(cache.count + frame_pool_stock(pool), FRAMES);
		frame_cache_flush(&cache);
		assert_int_equal(frame_pool_stock(pool), FRAMES);
		frame_pool_destroy(pool);
	}
}

static void test_cache_trades_in_bulk(void **state)
{
	struct frame_pool *pool = pool_of(2048, FRAMES);
	struct frame_cache cache;
	uint64_t frames[64];

	frame_cache_init(&cache, pool);
	assert_int_equal(frame_cache_take(&cache, frames, 64), 64);
	assert_int_equal(frame_pool_stock(pool), FRAMES - FRAME_CACHE_SIZE / 2);
	/* A balanced flow stays within the cache. */
	for (unsigned i = 0; i < 1000; i++) {
		frame_cache_give(&cache, frames, 64);
		assert_int_equal(frame_cache_take(&cache, frames, 64), 64);
	}
	assert_int_equal(frame_pool_stock(pool), FRAMES - FRAME_CACHE_SIZE / 2);
	frame_cache_give(&cache, frames, 64);
	frame_cache_flush(&cache);
	assert_int_equal(frame_pool_stock(pool), FRAMES);
	frame_pool_destroy(pool);
}

static void test_too_many_back_is_refused(void **state)
{
	struct frame_pool *pool = pool_of(2048, 64);
	uint64_t frames[FRAME_CACHE_SIZE] = {0};
	struct frame_cache cache;

	frame_cache_init(&cache, pool);
	frame_cache_give(&cache, frames, FRAME_CACHE_SIZE); /* 512 frames that were never taken must not overrun a stock of 64 */
	assert_int_equal(frame_pool_stock(pool), 64);
	frame_pool_destroy(pool);
}

#define THREADS 4

struct trader {
	struct frame_pool *pool;
	unsigned failures;
	unsigned seed;
};

/* Takes and gives random numbers of frames; marks those it holds, so that one in two hands is seen. */
static void *trade(void *argument)
{
	struct trader *trader = argument;
	struct frame_cache cache;
	uint64_t frames[700];

	frame_cache_init(&cache, trader->pool);
	for (unsigned round = 0; round < 2000; round++) {
		unsigned got = frame_cache_take(&cache, frames, (unsigned)rand_r(&trader->seed) % ARRAY_SIZE(frames));

		for (unsigned i = 0; i < got; i++)
			if (__atomic_exchange_n(frame_pool_area(trader->pool) + frames[i], 1, __ATOMIC_RELAXED))
				trader->failures++;
		for (unsigned i = 0; i < got; i++)
			__atomic_store_n(frame_pool_area(trader->pool) + frames[i], 0, __ATOMIC_RELAXED);
		frame_cache_give(&cache, frames, got);
	}
	frame_cache_flush(&cache);
	return NULL;
}

static void test_threads_never_share_a_frame(void **state)
{
	struct frame_pool *pool = pool_of(2048, 2000); /* fewer than all threads want: the stock runs dry */
	struct trader traders[THREADS];
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++) {
		traders[i] = (struct trader){.pool = pool, .seed = i + 1};
		assert_int_equal(pthread_create(&threads[i], NULL, trade, &traders[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(traders[i].failures, 0);
	}
	assert_int_equal(frame_pool_stock(pool), 2000);
	frame_pool_destroy(pool);
}

static void test_bad_sizes(void **state)
{
	const struct frame_pool_setup bad[] = {{-1, 1024, 64}, {-1, 3000, 64}, {-1, 8192, 64}, {-1, 0, 64}, {-1, 2048, 0}};

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		struct error error = {0};

		assert_null(frame_pool_create(&bad[i], &error));
		assert_int_equal(error.code, -EINVAL);
		assert_non_null(strstr(error.text, "2048 or 4096"));
	}
}

static void test_node(void **state)
{
	struct frame_pool_setup setup = {.node = 0, .frame_size = 2048, .frames = FRAMES};
	struct frame_pool *pool = frame_pool_create(&setup, NULL);

	assert_non_null(pool);
	assert_int_equal(frame_pool_node(pool), 0);
	assert_true(frame_pool_node_found(pool) == 0 || frame_pool_node_found(pool) == -1);
	frame_pool_destroy(pool);

	/* A node that does not exist costs locality, not the start. */
	setup.node = 1000;
	pool = frame_pool_create(&setup, NULL);
	assert_non_null(pool);
	assert_true(frame_pool_node_found(pool) != 1000);
	frame_pool_destroy(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_frame_once),	    cmocka_unit_test(test_cache_trades_in_bulk),
		cmocka_unit_test(test_too_many_back_is_refused),    cmocka_unit_test(test_threads_never_share_a_frame),
		cmocka_unit_test(test_bad_sizes),		    cmocka_unit_test(test_node),
	};

	return cmocka_run_group_tests_name("frame_pool", tests, NULL, NULL);
}
