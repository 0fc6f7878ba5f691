/* SPDX-License-Identifier: BSD-2-Clause */
#include "lane_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/util.h"

void bench_open_device(struct bench *b, const struct lane_device_setup *setup)
{
	struct error error = {0};

	b->device = lane_device_open(setup, &error);
	if (!b->device)
		fail_msg("%s", error.text);
	for (unsigned w = 0; w < setup->workers; w++) {
		b->ports[w] = lane_port_create(b->device, w, &error);
		assert_non_null(b->ports[w]);
	}
	rig_fill_map(&b->rig, b->device);
}

void bench_close_device(struct bench *b)
{
	for (unsigned w = 0; w < b->rig.workers; w++)
		lane_port_destroy(b->ports[w]);
	lane_device_close(b->device);
}

struct bench *bench_open(unsigned queues, unsigned workers, unsigned mtu, bool generic)
{
	struct bench *b = zalloc_aligned(sizeof(*b));
	struct lane_device_setup setup;

	assert_non_null(b);
	rig_open(&b->rig, queues, workers, mtu, generic);
	setup = rig_setup(&b->rig);
	setup.multi_buffer = mtu > 1500;
	bench_open_device(b, &setup);
	return b;
}

void bench_close(struct bench *b)
{
	bench_close_device(b);
	rig_close(&b->rig);
	free(b);
}

unsigned bench_receive_all(struct bench *b, unsigned worker)
{
	uint8_t frame[RIG_FRAME_MAX];
	unsigned total = 0, count;

	for (unsigned queue = 0; queue < b->rig.queues; queue++) {
		struct lane *lane = lane_of(b->device, queue, worker);

		while ((count = lane_receive(b->ports[worker], lane, &b->burst, FRAME_BURST))) {
			for (unsigned i = 0; i < count; i++) {
				uint32_t sequence;
				unsigned to;

				assert_true(b->burst.frames[i].vnet.flags == 0 && b->burst.frames[i].vnet.gso_type == 0);
				assert_true(rig_check(frame, rig_gather(&b->burst.frames[i], frame), &to, &sequence));
				assert_int_equal(to, worker);
				memset(b->burst.frames[i].head - FRAME_HEADROOM, 0xaa, FRAME_HEADROOM); /* ours to write */
			}
			total += count;
			lane_release(b->ports[worker], lane, &b->burst);
		}
	}
	return total;
}

unsigned bench_send_frames(struct bench *b, unsigned worker, unsigned first, unsigned count, uint32_t length)
{
	uint8_t *memory = malloc((size_t)count * length);
	struct frame *frames = calloc(count, sizeof(*frames));
	struct frame **pointers = calloc(count, sizeof(*pointers));
	struct frame_segment *segments = calloc(count, 2 * sizeof(*segments));
	unsigned sent;

	assert_true(memory && frames && pointers && segments);
	for (unsigned i = 0; i < count; i++) {
		uint8_t *at = memory + (size_t)i * length;
		uint32_t head = min_u32(length, FRAME_HEAD_MAX), middle = (length - head) / 3;

		rig_build(at, length, worker, first + i);
		/* As from a guest: a private head, the rest in pieces, one of them maybe empty. */
		segments[2 * i] = (struct frame_segment){at + head, middle};
		segments[2 * i + 1] = (struct frame_segment){at + head + middle, length - head - middle};
		frames[i] = (struct frame){.head = at, .head_length = (uint16_t)head, .length = length, .segments = &segments[2 * i],
					   .segment_count = length > head ? 2 : 0};
		pointers[i] = &frames[i];
	}
	sent = lane_send(b->ports[worker], pointers, count);
	free(segments);
	free(pointers);
	free(frames);
	free(memory);
	return sent;
}

void bench_expect_at_peer(struct bench *b, unsigned worker, unsigned first, unsigned count)
{
	uint8_t frame[RIG_FRAME_MAX];

	for (unsigned i = 0; i < count; i++) {
		uint32_t sequence, length = rig_receive(&b->rig, frame, PATIENCE_MS);
		unsigned to;

		assert_true(length >= FRAME_LENGTH_PADDED);
		assert_true(rig_check(frame, length, &to, &sequence));
		assert_int_equal(to, worker);
		assert_int_equal(sequence, first + i);
	}
}

void bench_receive_count(struct bench *b, unsigned worker, unsigned count)
{
	uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull;
	unsigned got = 0;

	while (got < count) {
		got += bench_receive_all(b, worker);
		if (now_ns() > deadline)
			fail_msg("%u of %u frames came", got, count);
	}
	assert_int_equal(got, count);
}
