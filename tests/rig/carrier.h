/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the rig's numbered frames go in and out: a vhost-user frontend whose memory lies on a chosen NUMA node, or a packet socket.
 * One thread. Errors end the program: it is a test's tool.
 */
#ifndef TESTS_RIG_CARRIER_H
#define TESTS_RIG_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CARRIER_PAIRS_MAX 8
#define CARRIER_FRAME_MAX 2036 /* with the virtio header it fills a buffer of 2 KiB */

struct carrier {
	unsigned pairs; /* ways in and out; frames of one keep their order */
	unsigned fd_count;
	int fds[CARRIER_PAIRS_MAX]; /* readable when frames may have come; reading them is receive()'s business */
	/* Length of the frame that was copied to @frame, 0 = none there. */
	size_t (*receive)(struct carrier *carrier, unsigned pair, uint8_t *frame);
	/* Return: false = no room now, try later. */
	bool (*send)(struct carrier *carrier, unsigned pair, const uint8_t *frame, size_t length);
	/* Frames sent so far are announced. */
	void (*flush)(struct carrier *carrier);
	void (*close)(struct carrier *carrier);
};

/* @node: -1 = wherever the kernel puts it. Waits for the socket to exist. */
struct carrier *vhost_open(const char *socket, int node, unsigned pairs);
/* All of the guest's memory goes to another node, under way as it is. */
void vhost_move(struct carrier *carrier, int node);
struct carrier *packet_open(const char *ifname, uint8_t mac[6]);

__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

#endif
