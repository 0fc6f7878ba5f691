/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checksums left to the device: what stands on TX and before the frame in its chunk, and what the kernel made of it, as a packet socket on
 * the peer tells (PACKET_VNET_HDR: open or not, and where).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/util.h"
#include "datapath/lane_internal.h" /* descriptors and chunks */
#include "lane_bench.h"
#include "../unit/offload_packet.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define SENT_MAX 64

/* A packet, how it is sent, and whether its checksum may be left. */
struct sent {
	struct packet packet;
	bool open; /* by its guest */
	bool plain;
};

struct checker {
	struct bench *bench;
	int peer_fd;
};

static struct checker *checker_open(unsigned workers, unsigned mtu)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	struct checker *c = test_calloc(1, sizeof(*c));
	int on = 1, buffer = 16 << 20;

	c->bench = bench_open(1, workers, mtu, false);
	c->peer_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	assert_true(c->peer_fd >= 0);
	assert_int_equal(setsockopt(c->peer_fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)), 0);
	assert_int_equal(setsockopt(c->peer_fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)), 0);
	assert_int_equal(setsockopt(c->peer_fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)), 0);
	address.sll_ifindex = (int)c->bench->rig.peer_ifindex;
	assert_int_equal(bind(c->peer_fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return c;
}

static void checker_close(struct checker *c)
{
	close(c->peer_fd);
	bench_close(c->bench);
	test_free(c);
}

static void leave(struct checker *c)
{
	lane_device_leave_checksum(c->bench->device, true);
	if (lane_device_leaves_checksum(c->bench->device))
		return;
	assert_false(lane_kernel_has_metadata());
	checker_close(c);
	print_message("skipped: transmit metadata: AF_XDP has it since Linux 6.11, this kernel has not\n");
	skip();
}

/* All of them in one lane_send(), not yet kicked. */
static void send_all(struct checker *c, unsigned worker, const struct sent *sent, unsigned count)
{
	struct scattered scattered[SENT_MAX];
	struct frame *frames[SENT_MAX];
	static uint8_t bytes[PACKET_MAX];

	assert_true(count <= SENT_MAX);
	for (unsigned i = 0; i < count; i++) {
		uint64_t seed = i;

		scatter(&scattered[i], bytes, packet_make(&sent[i].packet, bytes, sent[i].open), FRAME_HEAD_MAX, 700, &seed);
		if (sent[i].open)
			scattered[i].frame.vnet = packet_header(&sent[i].packet, 0);
		assert_int_equal(vnet_judge(&scattered[i].frame, VNET_F_CSUM), VNET_GOOD);
		frames[i] = &scattered[i].frame;
	}
	assert_int_equal(lane_send(c->bench->ports[worker], frames, count), count);
	for (unsigned i = 0; i < count; i++)
		scatter_free(&scattered[i]);
}

/* The descriptors of @sent, from number @first on. Return: the number behind them. */
static uint32_t check_descriptors(const struct checker *c, uint32_t first, const struct sent *sent, unsigned count, bool left)
{
	const struct lane_device *device = c->bench->device;
	const struct lane_ring *tx = &device->queues[0].tx;

	for (unsigned i = 0; i < count; i++) {
		const struct packet_places at = packet_places(&sent[i].packet);
		const bool asks = left && sent[i].open && sent[i].plain;
		bool more = true;

		for (unsigned piece = 0; more; piece++) {
			const struct xdp_desc *desc = lane_ring_desc(tx, first++);
			struct lane_tx_metadata metadata;

			more = desc->options & XDP_PKT_CONTD;
			assert_int_equal(desc->addr & device->chunk_mask, LANE_TX_OFFSET);
			assert_int_equal(desc->options & ~XDP_PKT_CONTD, asks && piece == 0 ? XDP_TX_METADATA : 0);
			if (!asks || piece)
				continue;
			memcpy(&metadata, device->area + desc->addr - sizeof(metadata), sizeof(metadata));
			assert_int_equal(metadata.flags, XDP_TXMD_FLAGS_CHECKSUM);
			assert_int_equal(metadata.csum_start, at.transport);
			assert_int_equal(metadata.csum_offset, sent[i].packet.udp ? 6 : 16);
			assert_int_equal(metadata.unused, 0);
			assert_true(desc->len >= at.payload);
		}
	}
	return first;
}

/* Each frame came: with its checksum open, and the kernel knows where (@open); or complete. */
static void check_peer(const struct checker *c, const struct sent *sent, unsigned count, bool left)
{
	static uint8_t got[PACKET_MAX], wanted[PACKET_MAX];

	for (unsigned i = 0; i < count; i++) {
		const struct packet_places at = packet_places(&sent[i].packet);
		const bool open = left && sent[i].open && sent[i].plain;
		const uint32_t length = packet_make(&sent[i].packet, wanted, open);
		struct pollfd pollfd = {.fd = c->peer_fd, .events = POLLIN};
		struct virtio_net_hdr header;

		assert_int_equal(poll(&pollfd, 1, PATIENCE_MS), 1);
		assert_int_equal(recv(c->peer_fd, got, sizeof(got), 0), sizeof(header) + max_u32(length, FRAME_LENGTH_PADDED));
		memcpy(&header, got, sizeof(header));
		assert_memory_equal(got + sizeof(header), wanted, length);
		assert_int_equal(header.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM, open ? VIRTIO_NET_HDR_F_NEEDS_CSUM : 0);
		if (open) {
			assert_int_equal(header.csum_start, at.transport);
			assert_int_equal(header.csum_offset, sent[i].packet.udp ? 6 : 16);
		}
	}
}

/* Everything that differs: family, protocol, length to pad, IP options, who completed it. */
static unsigned make_mix(struct sent *sent, uint32_t payload)
{
	unsigned count = 0;

	for (unsigned i = 0; i < 32; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;

		p.family = i & 2 ? 6 : 4;
		p.ip_options = i & 4 ? 8 : 0;
		p.payload = i & 8 ? payload : i % 7;
		p.source_port = (uint16_t)(1000 + i);
		sent[count++] = (struct sent){p, i & 16, !p.ip_options};
	}
	return count;
}

static unsigned left_among(const struct sent *sent, unsigned count)
{
	unsigned left = 0;

	for (unsigned i = 0; i < count; i++)
		left += sent[i].open && sent[i].plain;
	return left;
}

static void exchange(unsigned mtu, uint32_t payload)
{
	struct checker *c = checker_open(1, mtu);
	struct lane_port *port = c->bench->ports[0];
	struct sent sent[SENT_MAX];
	const unsigned count = make_mix(sent, payload);
	uint32_t at = 0;

	assert_int_equal(left_among(sent, count), 8);
	/* Not asked for: nothing is left, whatever the kernel can. */
	assert_false(lane_device_leaves_checksum(c->bench->device));
	send_all(c, 0, sent, count);
	at = check_descriptors(c, at, sent, count, false);
	lane_flush(port);
	check_peer(c, sent, count, false);
	assert_int_equal(port->left_checksums, 0);

	/* Back and forth: what an earlier frame left in its chunk asks for nothing. */
	leave(c);
	for (unsigned round = 0; round < 200; round++) {
		const bool left = round % 2 == 0;

		lane_device_leave_checksum(c->bench->device, left);
		send_all(c, 0, sent, count);
		at = check_descriptors(c, at, sent, count, left);
		lane_flush(port);
		check_peer(c, sent, count, left);
	}
	assert_int_equal(port->left_checksums, 100 * left_among(sent, count));
	lane_settle(port);
	rig_assert_census(c->bench->device, c->bench->ports, COPY_KERNEL_MAX);
	checker_close(c);
}

static void test_open_and_complete(void **state)
{
	exchange(1500, 1400);
}

/* Frames of several pieces ask on the first. */
static void test_jumbo(void **state)
{
	rig_need_multi_buffer();
	exchange(9000, 8000);
}

/* Workers that share a TX ring, in turn more than it holds: each one's frames ask for themselves. */
static void test_shared_ring(void **state)
{
	struct checker *c = checker_open(2, 1500);
	struct sent sent[SENT_MAX];
	const unsigned count = make_mix(sent, 1400);

	leave(c);
	for (unsigned round = 0; round < 300; round++) {
		const unsigned worker = round % 2;

		send_all(c, worker, sent, count);
		send_all(c, worker, sent + round % count, count - round % count);
		lane_flush(c->bench->ports[worker]);
		check_peer(c, sent, count, true);
		check_peer(c, sent + round % count, count - round % count, true);
	}
	assert_true(c->bench->ports[0]->left_checksums > 150 * left_among(sent, count));
	assert_true(c->bench->ports[1]->left_checksums > 150 * left_among(sent, count));
	for (unsigned worker = 0; worker < 2; worker++)
		lane_settle(c->bench->ports[worker]);
	rig_assert_census(c->bench->device, c->bench->ports, COPY_KERNEL_MAX);
	checker_close(c);
}

/* Only what was put on TX counts; what finds no room is dropped and not counted. */
static void test_count_of_a_full_ring(void **state)
{
	struct checker *c = checker_open(1, 1500);
	struct lane_port *port = c->bench->ports[0];
	static uint8_t bytes[2048];
	struct frame frame = {.head = bytes}, *frames[SENT_MAX];
	struct packet p = packet_udp4;

	leave(c);
	p.payload = 100;
	frame.length = packet_make(&p, bytes, true);
	frame.head_length = (uint16_t)frame.length;
	frame.vnet = packet_header(&p, 0);
	assert_int_equal(vnet_judge(&frame, VNET_F_CSUM), VNET_GOOD);
	for (unsigned i = 0; i < SENT_MAX; i++)
		frames[i] = &frame;
	rig_command("ip link set " RIG_DEVICE " down"); /* no kick takes anything */
	for (unsigned i = 0; i < 2 * LANE_RING_SIZE / 60; i++)
		lane_send(port, frames, 60);
	assert_true(port->dropped_ring_full > 0);
	assert_int_equal(port->left_checksums, port->sent_frames);
	assert_true(port->sent_frames <= LANE_RING_SIZE);
	checker_close(c);
}

/* The device's offload goes off before anybody has told the lane: the kernel completes what it gets open. */
static void test_offload_switched_off(void **state)
{
	struct checker *c = checker_open(1, 1500);
	struct sent sent[SENT_MAX];
	const unsigned count = make_mix(sent, 1400);
	struct ethtool_value off = {.cmd = ETHTOOL_STXCSUM, .data = 0};
	struct ifreq request = {.ifr_name = RIG_DEVICE, .ifr_data = (void *)&off};

	leave(c);
	assert_int_equal(ioctl(c->peer_fd, SIOCETHTOOL, &request), 0);
	send_all(c, 0, sent, count);
	lane_flush(c->bench->ports[0]);
	check_peer(c, sent, count, false);
	assert_int_equal(c->bench->ports[0]->left_checksums, left_among(sent, count));
	checker_close(c);
}

/* As on a kernel that refused the metadata. */
static void test_kernel_without_metadata(void **state)
{
	struct checker *c = checker_open(1, 1500);
	struct sent sent[SENT_MAX];
	const unsigned count = make_mix(sent, 1400);

	c->bench->device->metadata = false;
	lane_device_leave_checksum(c->bench->device, true);
	assert_false(lane_device_leaves_checksum(c->bench->device));
	send_all(c, 0, sent, count);
	check_descriptors(c, 0, sent, count, false);
	lane_flush(c->bench->ports[0]);
	check_peer(c, sent, count, false);
	checker_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open_and_complete),
		cmocka_unit_test(test_jumbo),
		cmocka_unit_test(test_shared_ring),
		cmocka_unit_test(test_count_of_a_full_ring),
		cmocka_unit_test(test_offload_switched_off),
		cmocka_unit_test(test_kernel_without_metadata),
	};

	if (!rig_enter_namespace()) {
		printf("skipped: lane: no network namespace of its own (%s); run as root\n", strerror(errno));
		return 0;
	}
	return cmocka_run_group_tests_name("lane_checksum", tests, NULL, NULL);
}
