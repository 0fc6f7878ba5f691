/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The wire of the lane tests: a veth pair in a network namespace of the test's own, an XDP program that redirects every frame
 * into an XSKMAP, and a packet socket on the peer end, which is the kernel's own idea of what is on the wire.
 */
#ifndef TESTS_NET_LANE_RIG_H
#define TESTS_NET_LANE_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "datapath/lane.h"

#define RIG_DEVICE "vltlane0"
#define RIG_PEER "vltlane1"
#define RIG_FRAME_MAX 9014
#define RIG_FRAME_MIN 56 /* shortest frame that carries a test payload */

struct rig {
	unsigned ifindex, peer_ifindex;
	unsigned queues, workers;
	uint32_t xdp_flags;
	int map_fd, program_fd, packet_fd;
};

/* Once per process. Return: false if the machine does not let us (not root). */
bool rig_enter_namespace(void);

/* Makes the pair (@queues each way), attaches the program. Ends the test on failure. */
void rig_open(struct rig *rig, unsigned queues, unsigned workers, unsigned mtu, bool generic);
void rig_close(struct rig *rig);
void rig_fill_map(const struct rig *rig, struct lane_device *device);
void rig_command(const char *command);
/* Skips the test on kernels before 6.6, whose AF_XDP has no frames of several chunks. */
void rig_need_multi_buffer(void);

struct lane_device_setup rig_setup(const struct rig *rig);

/*
 * A frame that can be recognised: IPv4/UDP, destination MAC ends in @worker (the program sends it to that worker's lane), source port and
 * payload from @sequence, @length bytes in all.
 */
void rig_build(uint8_t *frame, uint32_t length, unsigned worker, uint32_t sequence);
/* Return: true if @frame is what rig_build() makes; *sequence and *worker from it. */
bool rig_check(const uint8_t *frame, uint32_t length, unsigned *worker, uint32_t *sequence);

/* From the peer onto the wire. Return: false if the socket refused it. */
bool rig_send(const struct rig *rig, const uint8_t *frame, uint32_t length);
/* What came over the wire to the peer. Return: length, 0 if nothing within @timeout_ms. */
uint32_t rig_receive(const struct rig *rig, uint8_t *frame, int timeout_ms);

/* Copies all of @frame's pieces together. Return: its length. */
uint32_t rig_gather(const struct frame *frame, uint8_t *to);

/* Ends the test unless every frame of the pool is accounted for and the kernel keeps at most @kernel_max. */
void rig_assert_census(struct lane_device *device, struct lane_port *const *ports, int64_t kernel_max);

#endif
