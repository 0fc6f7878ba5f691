/* SPDX-License-Identifier: BSD-2-Clause */
#include "lane_rig.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/util.h"

#define HEADERS (14 + 20 + 8)
#define MAGIC 0x766c616e

#ifndef BPF_F_XDP_HAS_FRAGS
#define BPF_F_XDP_HAS_FRAGS (1u << 5)
#endif

bool rig_enter_namespace(void)
{
	if (unshare(CLONE_NEWNET))
		return false;
	rig_command("ip link set lo up");
	return true;
}

void rig_command(const char *command)
{
	if (system(command))
		fail_msg("command failed: %s", command);
}

void rig_need_multi_buffer(void)
{
	struct utsname kernel;
	unsigned major = 0, minor = 0;

	uname(&kernel);
	sscanf(kernel.release, "%u.%u", &major, &minor);
	if (major > 6 || (major == 6 && minor >= 6))
		return;
	print_message("skipped: frames of several chunks: AF_XDP has them since Linux 6.6, this is %s\n", kernel.release);
	skip();
}

static struct bpf_insn insn(uint8_t code, uint8_t to, uint8_t from, int16_t offset, int32_t immediate)
{
	return (struct bpf_insn){.code = code, .dst_reg = to, .src_reg = from, .off = offset, .imm = immediate};
}

/* return bpf_redirect_map(&map, rx_queue_index * workers + (last byte of the destination MAC), XDP_PASS); */
static int load_program(int map_fd, unsigned workers)
{
	char log[4096] = "";
	LIBBPF_OPTS(bpf_prog_load_opts, options, .prog_flags = BPF_F_XDP_HAS_FRAGS, .log_buf = log, .log_size = sizeof(log), .log_level = 1);
	const struct bpf_insn program[] = {
		insn(BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, data), 0),
		insn(BPF_LDX | BPF_MEM | BPF_W, 3, 1, offsetof(struct xdp_md, data_end), 0),
		insn(BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0),
		insn(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 14),
		insn(BPF_JMP | BPF_JGT | BPF_X, 4, 3, 9, 0),
		insn(BPF_LDX | BPF_MEM | BPF_B, 5, 2, 5, 0),
		insn(BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, rx_queue_index), 0),
		insn(BPF_ALU64 | BPF_MUL | BPF_K, 2, 0, 0, (int32_t)workers),
		insn(BPF_ALU64 | BPF_ADD | BPF_X, 2, 5, 0, 0),
		insn(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map_fd),
		insn(0, 0, 0, 0, 0),
		insn(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS),
		insn(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
		insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
		insn(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS),
		insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};
	int fd = bpf_prog_load(BPF_PROG_TYPE_XDP, "redirect_all", "GPL", program, ARRAY_SIZE(program), &options);

	if (fd < 0)
		fail_msg("program not loaded: %s\n%s", strerror(-fd), log);
	return fd;
}

void rig_open(struct rig *rig, unsigned queues, unsigned workers, unsigned mtu, bool generic)
{
	struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
	int buffer = 64 << 20;
	char command[1024];

	/* Without a queueing discipline a packet socket loses frames on a full veth ring. No IPv6: its own frames would be in the way. */
	snprintf(command, sizeof(command),
		 "ip link del " RIG_DEVICE " 2>/dev/null; set -e;"
		 "ip link add " RIG_DEVICE " mtu %u numrxqueues %u numtxqueues %u type veth "
		 "peer name " RIG_PEER " mtu %u numrxqueues %u numtxqueues %u;"
		 "for i in " RIG_DEVICE " " RIG_PEER "; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6;"
		 "tc qdisc add dev $i root pfifo limit 10000; ip link set $i up; done",
		 mtu, queues, queues, mtu, queues, queues);
	rig_command(command);
	rig->queues = queues;
	rig->workers = workers;
	rig->ifindex = if_nametoindex(RIG_DEVICE);
	rig->peer_ifindex = if_nametoindex(RIG_PEER);

	rig->map_fd = bpf_map_create(BPF_MAP_TYPE_XSKMAP, "lanes", 4, 4, queues * workers, NULL);
	assert_true(rig->map_fd >= 0);
	rig->program_fd = load_program(rig->map_fd, workers);
	rig->xdp_flags = generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
	assert_int_equal(bpf_xdp_attach((int)rig->ifindex, rig->program_fd, rig->xdp_flags, NULL), 0);

	rig->packet_fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_ALL));
	assert_true(rig->packet_fd >= 0);
	address.sll_ifindex = (int)rig->peer_ifindex;
	assert_int_equal(bind(rig->packet_fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(setsockopt(rig->packet_fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)), 0);
	assert_int_equal(setsockopt(rig->packet_fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer)), 0);
}

void rig_close(struct rig *rig)
{
	bpf_xdp_detach((int)rig->ifindex, rig->xdp_flags, NULL);
	close(rig->packet_fd);
	close(rig->program_fd);
	close(rig->map_fd);
	rig_command("ip link del " RIG_DEVICE);
}

void rig_fill_map(const struct rig *rig, struct lane_device *device)
{
	for (uint32_t queue = 0; queue < rig->queues; queue++) {
		for (uint32_t worker = 0; worker < rig->workers; worker++) {
			uint32_t index = queue * rig->workers + worker;
			int fd = lane_fd(lane_of(device, queue, worker));

			assert_int_equal(bpf_map_update_elem(rig->map_fd, &index, &fd, BPF_ANY), 0);
		}
	}
}

struct lane_device_setup rig_setup(const struct rig *rig)
{
	return (struct lane_device_setup){
		.ifname = RIG_DEVICE,
		.ifindex = rig->ifindex,
		.queues = rig->queues,
		.workers = rig->workers,
		.mode = rig->xdp_flags == XDP_FLAGS_SKB_MODE ? LANE_MODE_GENERIC : LANE_MODE_AUTO,
		.node = -1,
		.frame_size = 2048,
	};
}

static uint8_t pattern(uint32_t sequence, uint32_t at)
{
	return (uint8_t)((sequence * 2654435761u + at * 40503u) >> 8);
}

void rig_build(uint8_t *frame, uint32_t length, unsigned worker, uint32_t sequence)
{
	const uint16_t ip_length = htons((uint16_t)(length - 14)), udp_length = htons((uint16_t)(length - 34));
	const uint32_t words[3] = {htonl(MAGIC), htonl(sequence), htonl(length)};
	const uint16_t ports[2] = {htons((uint16_t)(1024 + sequence % 509)), htons(9)};

	assert_true(length >= RIG_FRAME_MIN && length <= RIG_FRAME_MAX);
	memset(frame, 0, HEADERS);
	frame[0] = frame[6] = 2;
	frame[5] = (uint8_t)worker;
	frame[11] = 0xfe;
	frame[12] = 8;
	frame[14] = 0x45;
	memcpy(frame + 16, &ip_length, 2);
	frame[22] = 64;
	frame[23] = 17;
	memcpy(frame + 26, "\x0a\x00\x00\x01\x0a\x00\x00\x02", 8);
	memcpy(frame + 34, ports, 4);
	memcpy(frame + 38, &udp_length, 2);
	memcpy(frame + HEADERS, words, sizeof(words));
	for (uint32_t i = HEADERS + sizeof(words); i < length; i++)
		frame[i] = pattern(sequence, i);
}

bool rig_check(const uint8_t *frame, uint32_t length, unsigned *worker, uint32_t *sequence)
{
	uint8_t expected[RIG_FRAME_MAX];
	uint32_t words[3];

	if (length < RIG_FRAME_MIN || length > RIG_FRAME_MAX)
		return false;
	memcpy(words, frame + HEADERS, sizeof(words));
	*worker = frame[5];
	*sequence = ntohl(words[1]);
	if (ntohl(words[0]) != MAGIC || ntohl(words[2]) > length)
		return false;
	/* What was shorter than the shortest Ethernet frame may have got padding. */
	if (ntohl(words[2]) != length && length != FRAME_LENGTH_PADDED)
		return false;
	rig_build(expected, ntohl(words[2]), *worker, *sequence);
	return !memcmp(frame, expected, ntohl(words[2]));
}

bool rig_send(const struct rig *rig, const uint8_t *frame, uint32_t length)
{
	for (unsigned tries = 0; tries < 1000; tries++) {
		if (send(rig->packet_fd, frame, length, 0) == (ssize_t)length)
			return true;
		if (errno != ENOBUFS && errno != EAGAIN)
			fail_msg("packet socket: %s", strerror(errno));
		usleep(100);
	}
	return false;
}

uint32_t rig_receive(const struct rig *rig, uint8_t *frame, int timeout_ms)
{
	struct pollfd pollfd = {.fd = rig->packet_fd, .events = POLLIN};

	while (poll(&pollfd, 1, timeout_ms) > 0) {
		struct sockaddr_ll from;
		socklen_t size = sizeof(from);
		ssize_t length = recvfrom(rig->packet_fd, frame, RIG_FRAME_MAX, 0, (struct sockaddr *)&from, &size);

		if (length > 0 && from.sll_pkttype != PACKET_OUTGOING)
			return (uint32_t)length;
	}
	return 0;
}

uint32_t rig_gather(const struct frame *frame, uint8_t *to)
{
	uint32_t length = frame->head_length;

	assert_true(frame->length <= RIG_FRAME_MAX);
	memcpy(to, frame->head, frame->head_length);
	for (unsigned i = 0; i < frame->segment_count; i++) {
		memcpy(to + length, frame->segments[i].data, frame->segments[i].length);
		length += frame->segments[i].length;
	}
	assert_int_equal(length, frame->length);
	return length;
}

void rig_assert_census(struct lane_device *device, struct lane_port *const *ports, int64_t kernel_max)
{
	struct lane_census c;

	lane_device_census(device, ports, &c);
	if (c.kernel < 0 || c.kernel > kernel_max ||
	    c.stock + c.cached + c.held + c.fill + c.rx + c.tx + c.completion + c.kernel != c.total)
		fail_msg("census: %u in all; stock %u cached %u held %u fill %u rx %u tx %u completion %u kernel %lld", c.total, c.stock,
			 c.cached, c.held, c.fill, c.rx, c.tx, c.completion, (long long)c.kernel);
}
