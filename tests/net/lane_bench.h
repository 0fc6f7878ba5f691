/* SPDX-License-Identifier: BSD-2-Clause */
/* A device with its lanes and workers' ends on the rig's wire, and traffic over it that is checked byte by byte. */
#ifndef TESTS_NET_LANE_BENCH_H
#define TESTS_NET_LANE_BENCH_H

#include "lane_rig.h"

#define PATIENCE_MS 20000  /* only against hangs */
#define COPY_KERNEL_MAX 64 /* frames that copy mode may keep for itself at rest: one or two per queue */
#define WORKERS_MAX 2

struct bench {
	struct rig rig;
	struct lane_device *device;
	struct lane_port *ports[WORKERS_MAX];
	struct frame_burst burst;
};

/* Rig and device. An MTU above 1500 turns multi-buffer on. */
struct bench *bench_open(unsigned queues, unsigned workers, unsigned mtu, bool generic);
void bench_close(struct bench *b);

/* The device alone, on a rig that stays. */
void bench_open_device(struct bench *b, const struct lane_device_setup *setup);
void bench_close_device(struct bench *b);

/* Takes what has come for @worker from all queues and checks each frame. Return: frames. */
unsigned bench_receive_all(struct bench *b, unsigned worker);
/* Until @count frames have come for @worker; not one more. */
void bench_receive_count(struct bench *b, unsigned worker, unsigned count);

/* Sends @count frames with sequence numbers from @first on. No flush. Return: accepted. */
unsigned bench_send_frames(struct bench *b, unsigned worker, unsigned first, unsigned count, uint32_t length);
/* @count frames of @worker come to the peer, in order, from sequence number @first on. */
void bench_expect_at_peer(struct bench *b, unsigned worker, unsigned first, unsigned count);

#endif
