/* SPDX-License-Identifier: BSD-2-Clause */
/* Lanes over a real veth pair: native and generic XDP, several queues and workers, jumbo frames, floods, and the books. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cpulist.h"
#include "common/util.h"
#include "datapath/burst_lock.h"
#include "datapath/lane_internal.h" /* rings and locks, to hold them */
#include "lane_bench.h"

static void both_directions(bool generic)
{
	struct bench *b = bench_open(2, 2, 1500, generic);
	uint64_t per_queue[2] = {0};
	uint8_t frame[1514];

	assert_int_equal(lane_device_mode(b->device), generic ? LANE_MODE_GENERIC : LANE_MODE_COPY);
	for (unsigned round = 0; round < 200; round++) {
		for (unsigned i = 0; i < 32; i++) {
			uint32_t length = (round * 32 + i) * 7 % (1514 - RIG_FRAME_MIN + 1) + RIG_FRAME_MIN;

			rig_build(frame, length, i % 2, round * 32 + i);
			assert_true(rig_send(&b->rig, frame, length));
		}
		bench_receive_count(b, 0, 16);
		bench_receive_count(b, 1, 16);
	}
	for (unsigned queue = 0; queue < 2; queue++)
		for (unsigned worker = 0; worker < 2; worker++)
			per_queue[queue] += lane_counters_of(lane_of(b->device, queue, worker))->frames;
	assert_int_equal(per_queue[0] + per_queue[1], 6400);
	if (!generic) /* both queues took part: generic XDP sees the receive queue that veth recorded, which needs XDP on the driver */
		assert_true(per_queue[0] > 500 && per_queue[1] > 500);

	for (unsigned round = 0; round < 100; round++) {
		for (unsigned worker = 0; worker < 2; worker++) {
			assert_int_equal(bench_send_frames(b, worker, round * 70, 70, RIG_FRAME_MIN + round * 14), 70);
			lane_flush(b->ports[worker]);
			assert_false(b->ports[worker]->tx_pending);
			bench_expect_at_peer(b, worker, round * 70, 70);
		}
	}
	lane_settle(b->ports[0]);
	lane_settle(b->ports[1]);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

static void test_both_directions_native(void **state)
{
	both_directions(false);
}

static void test_both_directions_generic(void **state)
{
	both_directions(true);
}

static void test_short_frames_are_padded(void **state)
{
	struct bench *b = bench_open(1, 1, 1500, false);
	uint8_t data[FRAME_LENGTH_PADDED], got[RIG_FRAME_MAX];

	for (uint32_t length = FRAME_LENGTH_MIN; length < FRAME_LENGTH_PADDED; length++) {
		struct frame frame = {.head = data, .head_length = (uint16_t)length, .length = length}, *pointer = &frame;

		/* Whatever lay in the UMEM frame before must not leak. */
		bench_send_frames(b, 0, length, 1, 1000);
		lane_flush(b->ports[0]);
		bench_expect_at_peer(b, 0, length, 1);
		lane_settle(b->ports[0]); /* so that the next frame takes the same place */
		memset(data, (int)length, sizeof(data));
		data[0] = 2;
		data[12] = 0x88;
		data[13] = 0xb5;
		assert_int_equal(lane_send(b->ports[0], &pointer, 1), 1);
		lane_flush(b->ports[0]);
		assert_int_equal(rig_receive(&b->rig, got, PATIENCE_MS), FRAME_LENGTH_PADDED);
		assert_memory_equal(got, data, length);
		for (uint32_t i = length; i < FRAME_LENGTH_PADDED; i++)
			assert_int_equal(got[i], 0);
	}
	bench_close(b);
}

static void test_too_long_is_dropped_and_counted(void **state)
{
	struct bench *b = bench_open(1, 1, 1500, false);

	assert_int_equal(bench_send_frames(b, 0, 0, 3, 4000), 0);
	assert_int_equal(b->ports[0]->dropped_too_long, 3);
	assert_int_equal(bench_send_frames(b, 0, 0, 3, 1514), 3);
	lane_flush(b->ports[0]);
	bench_expect_at_peer(b, 0, 0, 3);
	lane_settle(b->ports[0]);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

static void jumbo(bool generic)
{
	struct bench *b;
	uint8_t frame[RIG_FRAME_MAX];

	rig_need_multi_buffer();
	b = bench_open(2, 2, 9000, generic);
	/* Sizes around each number of chunks, in bursts whose cut falls inside a packet (6 chunks each, 256 a burst). */
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 100; i++) {
			uint32_t length = i < 60 ? 9014 - i : 1792 * (1 + i % 5) - 2 + i % 4;

			rig_build(frame, length, round % 2, i);
			assert_true(rig_send(&b->rig, frame, length));
		}
		bench_receive_count(b, round % 2, 100);
	}
	for (uint32_t length = 1980; length <= 9014; length += length < 1990 || length > 9000 ? 1 : 97) {
		assert_int_equal(bench_send_frames(b, 0, length, 40, length), 40);
		lane_flush(b->ports[0]);
		bench_expect_at_peer(b, 0, length, 40);
	}
	lane_settle(b->ports[0]);
	lane_settle(b->ports[1]);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

static void test_jumbo_native(void **state)
{
	jumbo(false);
}

static void test_jumbo_generic(void **state)
{
	jumbo(true);
}

/* A worker that sleeps on: its RX ring fills, the other worker's frames go on, nothing is lost from the books. */
static void test_stuck_worker_starves_nobody(void **state)
{
	struct bench *b = bench_open(1, 2, 1500, false);
	struct lane_kernel_drops drops;
	struct lane_census census;
	uint8_t frame[128];
	unsigned got;

	for (unsigned i = 0; i < 3 * LANE_RING_SIZE; i++) {
		rig_build(frame, sizeof(frame), 0, i);
		assert_true(rig_send(&b->rig, frame, sizeof(frame)));
		if (i % 64 == 63)
			assert_int_equal(bench_receive_all(b, 1), 0); /* receives nothing, and keeps FILL full all the same */
	}
	for (uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull;;) {
		lane_device_kernel_drops(b->device, &drops);
		if (drops.rx_ring_full == 2 * LANE_RING_SIZE)
			break;
		assert_true(now_ns() < deadline);
		usleep(1000);
	}
	bench_receive_all(b, 1);
	lane_device_census(b->device, b->ports, &census);
	assert_int_equal(census.rx, LANE_RING_SIZE);
	assert_true(census.fill >= LANE_RING_SIZE / 4 * 3);
	assert_int_equal(drops.fill_ring_empty, 0);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);

	for (unsigned round = 0; round < 100; round++) {
		for (unsigned i = 0; i < 64; i++) {
			rig_build(frame, sizeof(frame), 1, i);
			assert_true(rig_send(&b->rig, frame, sizeof(frame)));
		}
		bench_receive_count(b, 1, 64);
	}
	got = bench_receive_all(b, 0);
	assert_int_equal(got, LANE_RING_SIZE);
	assert_int_equal(bench_receive_all(b, 0), 0);
	lane_settle(b->ports[0]);
	lane_settle(b->ports[1]);
	lane_device_census(b->device, b->ports, &census);
	assert_int_equal(census.rx, 0);
	assert_int_equal(census.held, 0);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

/* More in one round than TX holds: one kick in between is all that lane_send() does; the rest is dropped and counted. */
static void test_send_flood(void **state)
{
	const unsigned count = 5 * LANE_RING_SIZE;
	struct bench *b = bench_open(1, 1, 1500, false);
	uint8_t frame[RIG_FRAME_MAX];
	struct lane_port *port = b->ports[0];
	unsigned sent, came = 0;

	sent = bench_send_frames(b, 0, 0, count, 60);
	lane_flush(port);
	assert_int_equal(port->sent_frames, sent);
	assert_int_equal(sent + port->dropped_ring_full + port->dropped_no_frame, count);
	assert_true(sent >= LANE_RING_SIZE);
	while (rig_receive(&b->rig, frame, came + port->lost_in_kernel < sent ? PATIENCE_MS : 100))
		came++;
	assert_int_equal(came + port->lost_in_kernel, sent);
	lane_settle(port);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

/* Kernels before 6.17 send 32 frames a kick and say EAGAIN: one flush still sends all. */
static void test_flush_with_small_kernel_batches(void **state)
{
	struct bench *b = bench_open(1, 1, 1500, false);
	struct lane_port *port = b->ports[0];
	int budget = 32;

	if (setsockopt(lane_fd(lane_of(b->device, 0, 0)), SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof(budget)))
		assert_int_equal(errno, ENOPROTOOPT);
	for (unsigned round = 0; round < 5; round++) {
		uint64_t kicks = port->kicks;

		assert_int_equal(bench_send_frames(b, 0, 0, 1500, 200), 1500);
		lane_flush(port);
		assert_false(port->tx_pending);
		assert_in_range(port->kicks - kicks, 1500 / 32, LANE_RING_SIZE / 32);
		bench_expect_at_peer(b, 0, 0, 1500);
	}
	bench_close(b);
}

/* Workers that share a TX ring: frames wait for their own worker's flush, which sends them with as few kicks as one call would. */
static void test_shared_queue_sends_by_own_flush(void **state)
{
	struct bench *b = bench_open(1, 2, 1500, false);
	struct lane_port *port = b->ports[0];
	const unsigned a_kick = b->device->tx_in_steps ? 32 : LANE_RING_SIZE;
	uint8_t frame[RIG_FRAME_MAX];
	struct lane_census census;
	struct lane_tx_mark mark;

	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(bench_send_frames(b, 0, i, 1, 200), 1);
	assert_true(port->tx_pending);
	mark = lane_tx_mark(port);
	assert_int_equal(bench_send_frames(b, 1, 7, 1, 200), 1);
	lane_flush(b->ports[1]);
	bench_expect_at_peer(b, 1, 7, 1);
	assert_int_equal(rig_receive(&b->rig, frame, 50), 0);
	assert_false(lane_tx_passed(port, &mark, false));
	assert_false(lane_tx_passed(port, &mark, true));
	assert_int_equal(port->kicks, 0);
	lane_device_census(b->device, b->ports, &census);
	assert_int_equal(census.tx, 40);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);

	lane_flush(port);
	assert_false(port->tx_pending);
	assert_int_equal(port->kicks, (40 + a_kick - 1) / a_kick);
	bench_expect_at_peer(b, 0, 0, 40);
	assert_true(lane_tx_passed(port, &mark, false));
	for (uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull; !lane_tx_passed(port, &mark, true); usleep(100))
		assert_true(now_ns() < deadline);

	/* More than waits at one end: it goes on its way in between, all in order. */
	for (unsigned i = 0; i < 3 * LANE_STAGE_SIZE; i += 50)
		assert_int_equal(bench_send_frames(b, 0, i, 50, 200), 50);
	lane_flush(port);
	assert_false(port->tx_pending);
	bench_expect_at_peer(b, 0, 0, (3 * LANE_STAGE_SIZE + 49) / 50 * 50);

	/* A worker's end that goes gives back what still waits there. */
	assert_int_equal(bench_send_frames(b, 0, 0, 30, 200), 30);
	lane_port_destroy(port);
	b->ports[0] = lane_port_create(b->device, 0, NULL);
	assert_non_null(b->ports[0]);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

/* TX is full because the device takes nothing: frames wait on it, then in the stage, then they are dropped and counted; all else leaves in order. */
static void test_shared_queue_while_tx_is_full(void **state)
{
	const unsigned room = LANE_RING_SIZE + LANE_STAGE_SIZE;
	struct bench *b = bench_open(1, 2, 1500, false);
	struct lane_port *port = b->ports[0];
	unsigned sent;

	rig_command("ip link set " RIG_DEVICE " down");
	sent = bench_send_frames(b, 0, 0, room + 500, 60);
	assert_int_equal(sent, room);
	assert_int_equal(port->dropped_ring_full, 500);
	assert_int_equal(port->dropped_no_frame, 0);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	rig_command("ip link set " RIG_DEVICE " up");
	for (uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull; lane_staged(port) || lane_tx_left(&b->device->queues[0].tx); usleep(1000)) {
		port->tx_pending = true; /* as by the next frame that is sent */
		lane_flush(port);
		assert_true(now_ns() < deadline);
	}
	lane_settle(port);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

/* Two threads on one queue: its FILL, TX and COMPLETION are shared, each frame must come back to one of them, and each one's leave in order. */
struct thread_end {
	struct bench *bench;
	struct frame_burst burst;
	unsigned worker;
	int cpu;
	unsigned received, bad;
	bool *stop;
};

static void *worker_thread(void *argument)
{
	struct thread_end *t = argument;
	struct lane *lane = lane_of(t->bench->device, 0, t->worker);
	struct lane_port *port = t->bench->ports[t->worker];
	struct frame *pointers[FRAME_BURST];
	uint8_t frame[RIG_FRAME_MAX];
	cpu_set_t one;

	/* As workers are: in copy mode a thread's frames leave on its CPU, and the peer queues by CPU. */
	CPU_ZERO(&one);
	CPU_SET((unsigned)t->cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		t->bad++;
	while (!__atomic_load_n(t->stop, __ATOMIC_ACQUIRE) || lane_pending(lane)) {
		unsigned count = lane_receive(port, lane, &t->burst, FRAME_BURST);

		for (unsigned i = 0; i < count; i++) {
			uint32_t sequence;
			unsigned to;

			if (!rig_check(frame, rig_gather(&t->burst.frames[i], frame), &to, &sequence) || to != t->worker)
				t->bad++;
			pointers[i] = &t->burst.frames[i];
		}
		if (count)
			lane_send(port, pointers, count); /* and back where it came from */
		lane_release(port, lane, &t->burst);
		lane_flush(port);
		__atomic_store_n(&t->received, t->received + count, __ATOMIC_RELEASE);
	}
	lane_settle(port);
	return NULL;
}

/* What the threads sent back and has come. Return: how many, in order for each of them. */
static unsigned receive_echoes(struct bench *b, int timeout_ms, int64_t last[2])
{
	uint8_t frame[RIG_FRAME_MAX];
	uint32_t length, sequence;
	unsigned count = 0, worker;

	for (; (length = rig_receive(&b->rig, frame, timeout_ms)); count++) {
		assert_true(rig_check(frame, length, &worker, &sequence) && worker < 2);
		assert_true(sequence > last[worker]);
		last[worker] = sequence;
	}
	return count;
}

static void test_two_threads_on_one_queue(void **state)
{
	struct bench *b = bench_open(1, 2, 1500, false);
	struct thread_end *ends = zalloc_aligned(2 * sizeof(*ends));
	bool stop = false;
	pthread_t threads[2];
	uint8_t frame[RIG_FRAME_MAX];
	unsigned sent[2] = {0}, came = 0;
	int64_t last[2] = {-1, -1};
	struct cpulist cpus;
	int cpu;
	uint64_t accepted, lost, dropped, deadline = now_ns() + PATIENCE_MS * 1000000ull;
	struct lane_kernel_drops drops;

	assert_int_equal(cpulist_allowed(&cpus), 0);
	cpu = cpulist_next(&cpus, 0);
	for (unsigned w = 0; w < 2; w++) {
		ends[w] = (struct thread_end){.bench = b, .worker = w, .cpu = cpu, .stop = &stop};
		if (cpulist_next(&cpus, (unsigned)cpu + 1) >= 0)
			cpu = cpulist_next(&cpus, (unsigned)cpu + 1);
		assert_int_equal(pthread_create(&threads[w], NULL, worker_thread, &ends[w]), 0);
	}
	for (unsigned i = 0; i < 20000; i++) {
		rig_build(frame, 300, i % 2, i);
		sent[i % 2] += rig_send(&b->rig, frame, 300);
		if (i % 64 == 63)
			came += receive_echoes(b, 0, last);
	}
	do { /* until all that was sent has been received, or dropped by the kernel and counted: threads may not get a CPU for a while */
		lane_device_kernel_drops(b->device, &drops);
		dropped = drops.rx_ring_full + drops.rx_dropped;
		usleep(1000);
	} while (__atomic_load_n(&ends[0].received, __ATOMIC_ACQUIRE) + __atomic_load_n(&ends[1].received, __ATOMIC_ACQUIRE) +
				 dropped <
			 sent[0] + sent[1] &&
		 now_ns() < deadline);
	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	for (unsigned w = 0; w < 2; w++) {
		pthread_join(threads[w], NULL);
		assert_int_equal(ends[w].bad, 0);
	}
	assert_int_equal(ends[0].received + ends[1].received + dropped, sent[0] + sent[1]);
	assert_int_equal(drops.rx_invalid + drops.tx_invalid, 0);
	accepted = b->ports[0]->sent_frames + b->ports[1]->sent_frames;
	lost = b->ports[0]->lost_in_kernel + b->ports[1]->lost_in_kernel;
	for (deadline = now_ns() + PATIENCE_MS * 1000000ull; came + lost < accepted && now_ns() < deadline;)
		came += receive_echoes(b, 10, last);
	came += receive_echoes(b, 100, last);
	assert_int_equal(came + lost, accepted);
	lane_settle(b->ports[0]);
	lane_settle(b->ports[1]);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	free(ends);
	bench_close(b);
}

/* One burst of @count frames comes in. */
static void receive_burst(struct bench *b, struct lane *lane, unsigned count)
{
	uint8_t frame[100];

	for (unsigned i = 0; i < count; i++) {
		rig_build(frame, sizeof(frame), 0, i);
		assert_true(rig_send(&b->rig, frame, sizeof(frame)));
	}
	for (uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull; lane_ring_available(&lane->rx) < count && now_ns() < deadline;)
		usleep(100);
	assert_int_equal(lane_receive(b->ports[0], lane, &b->burst, FRAME_BURST), count);
}

static void *release_thread(void *argument)
{
	struct bench *b = argument;

	lane_release(b->ports[0], lane_of(b->device, 0, 0), &b->burst);
	return NULL;
}

/* FILL locked by another worker: frames wait in ->held; when that is full the lock is waited for, and nothing is lost. */
static void test_locked_fill(void **state)
{
	struct bench *b = bench_open(1, 1, 1500, false);
	struct lane_queue *queue = &b->device->queues[0];
	struct lane *lane = lane_of(b->device, 0, 0);
	pthread_t thread;

	for (unsigned round = 0; round < 2; round++) {
		burst_lock(&queue->fill_lock);
		for (unsigned i = 0; i < LANE_BURST_CHUNKS / FRAME_BURST; i++) {
			receive_burst(b, lane, FRAME_BURST);
			lane_release(b->ports[0], lane, &b->burst);
		}
		assert_int_equal(b->ports[0]->held_count, LANE_BURST_CHUNKS);
		assert_int_equal(lane_receive(b->ports[0], lane, &b->burst, FRAME_BURST), 0); /* nor does an idle visit wait */
		rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);

		receive_burst(b, lane, 1);
		assert_int_equal(pthread_create(&thread, NULL, release_thread, b), 0);
		usleep(20000);
		assert_int_equal(__atomic_load_n(&b->ports[0]->held_count, __ATOMIC_RELAXED), LANE_BURST_CHUNKS);
		burst_unlock(&queue->fill_lock);
		pthread_join(thread, NULL);
		assert_int_equal(b->ports[0]->held_count, 0);
		assert_int_equal(lane_ring_level(&queue->fill), LANE_RING_SIZE);
		rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	}
	bench_close(b);
}

static void test_many_workers_have_smaller_rings(void **state)
{
	struct bench *b = zalloc_aligned(sizeof(*b));
	struct lane_device_setup setup;
	struct lane_port *ports[16];
	uint8_t frame[100];

	rig_open(&b->rig, 1, 16, 1500, false);
	setup = rig_setup(&b->rig);
	b->device = lane_device_open(&setup, NULL);
	assert_non_null(b->device);
	rig_fill_map(&b->rig, b->device);
	for (unsigned w = 0; w < 16; w++) {
		ports[w] = lane_port_create(b->device, w, NULL);
		assert_non_null(ports[w]);
		rig_build(frame, sizeof(frame), w, w);
		assert_true(rig_send(&b->rig, frame, sizeof(frame)));
	}
	for (unsigned w = 0; w < 16; w++) {
		struct lane *lane = lane_of(b->device, 0, w);

		for (uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull; !lane_pending(lane) && now_ns() < deadline;)
			usleep(100);
		assert_int_equal(lane_receive(ports[w], lane, &b->burst, FRAME_BURST), 1);
		lane_release(ports[w], lane, &b->burst);
	}
	rig_assert_census(b->device, ports, COPY_KERNEL_MAX);
	for (unsigned w = 0; w < 16; w++)
		lane_port_destroy(ports[w]);
	assert_true(frame_pool_bytes(lane_device_pool(b->device)) < 80ull << 20);
	lane_device_close(b->device);
	rig_close(&b->rig);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_directions_native),
		cmocka_unit_test(test_both_directions_generic),
		cmocka_unit_test(test_short_frames_are_padded),
		cmocka_unit_test(test_too_long_is_dropped_and_counted),
		cmocka_unit_test(test_jumbo_native),
		cmocka_unit_test(test_jumbo_generic),
		cmocka_unit_test(test_stuck_worker_starves_nobody),
		cmocka_unit_test(test_send_flood),
		cmocka_unit_test(test_flush_with_small_kernel_batches),
		cmocka_unit_test(test_shared_queue_sends_by_own_flush),
		cmocka_unit_test(test_shared_queue_while_tx_is_full),
		cmocka_unit_test(test_two_threads_on_one_queue),
		cmocka_unit_test(test_locked_fill),
		cmocka_unit_test(test_many_workers_have_smaller_rings),
	};

	if (!rig_enter_namespace()) {
		printf("skipped: lane: no network namespace of its own (%s); run as root\n", strerror(errno));
		return 0;
	}
	return cmocka_run_group_tests_name("lane", tests, NULL, NULL);
}
