// SPDX-License-Identifier: BSD-2-Clause
/*
 * Frames over one opened uplink, on every way that needs no guest: wire and host to lane, lane to wire and host. The kernel's own stack is
 * the peer; the test takes the workers' place. Needs root.
 */
#include "uplink_rig.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include "common/util.h"
#include "control/uplink.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define WORKERS 2
#define PORT 3
#define WAIT_MS 10000 /* only to end a test that would hang */
#define HOST_ADDRESS "198.51.100.1"
#define GUEST_ADDRESS "198.51.100.2"

static const uint8_t guest_mac[6] = { 0x02, 0, 0, 0, 0x11, 0x22 };
static const uint8_t broadcast[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };
static const uint8_t nobody[6] = { 0x02, 0, 0, 0, 0x99, 0x99 };

struct rig {
	struct uplink *uplink;
	struct lane_device *wire_device, *host_device;
	struct lane_port *wire[WORKERS], *host[WORKERS];
	struct frame_burst burst;
};

static struct rig rig;

static int open_ports(struct lane_device *device, struct lane_port **ports)
{
	for (unsigned i = 0; i < WORKERS; i++)
		if (!(ports[i] = lane_port_create(device, i, NULL)))
			return -1;
	return 0;
}

static void publish_guest(unsigned pairs)
{
	struct vl_port_key key = { .vlan = VL_VLAN_NONE };
	struct vl_port_value value = { .port = PORT, .node = 0, .flags = VL_PORT_TRUNK, .queue_pairs = pairs };

	memcpy(key.mac, guest_mac, sizeof(key.mac));
	assert_int_equal(bpf_set_port_put(uplink_bpf(rig.uplink), &key, &value), 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		struct vl_queue_key queue = { PORT, i };
		struct vl_queue_value place = { .cpu = i, .worker = i, .generation = 1 };

		assert_int_equal(bpf_set_affinity_put(uplink_bpf(rig.uplink), &queue, &place), 0);
	}
}

static void steer_all_to(uint32_t pair)
{
	__auto_type steering = bpf_set_flow_steering(uplink_bpf(rig.uplink), PORT);

	for (unsigned i = 0; i < VL_FLOW_BUCKETS; i++)
		steering[i] = pair;
}

static int open_rig(enum lane_mode mode, unsigned mtu)
{
	struct uplink_setup s = { .config = { .ifname = UPLINK, .mode = mode }, .workers = WORKERS, .nodes = 1 };
	struct error error = { 0 };

	rig_make_wire(2);
	rig_command("ip link set " UPLINK " mtu %u; ip link set " WIRE " mtu %u", mtu, mtu);
	rig_command("ip addr add " HOST_ADDRESS "/24 dev " UPLINK);
	rig_command("ip neigh add " GUEST_ADDRESS " lladdr 02:00:00:00:11:22 dev " UPLINK);
	rig.uplink = uplink_open(&s, &error);
	if (!rig.uplink) {
		print_error("%s\n", error.text);
		return -1;
	}
	rig.wire_device = uplink_device(rig.uplink);
	rig.host_device = host_link_device(uplink_host_link(rig.uplink, 0));
	if (open_ports(rig.wire_device, rig.wire) || open_ports(rig.host_device, rig.host))
		return -1;
	publish_guest(WORKERS);
	steer_all_to(0);
	uplink_start(rig.uplink);
	return 0;
}

static int setup_native(void **state)
{
	return open_rig(LANE_MODE_AUTO, 1500);
}

static int setup_generic(void **state)
{
	return open_rig(LANE_MODE_GENERIC, 1500);
}

static int setup_jumbo(void **state)
{
	return open_rig(LANE_MODE_AUTO, 9000);
}

static int teardown(void **state)
{
	for (unsigned i = 0; i < WORKERS; i++) {
		lane_port_destroy(rig.wire[i]);
		lane_port_destroy(rig.host[i]);
	}
	uplink_close(rig.uplink);
	rig_remove_wire();
	memset(&rig, 0, sizeof(rig));
	return 0;
}

/* Copies a received frame out. */
static unsigned flatten(const struct frame *frame, uint8_t *out, size_t size)
{
	unsigned length = frame->head_length;

	assert_true(frame->length <= size);
	memcpy(out, frame->head, frame->head_length);
	for (unsigned i = 0; i < frame->segment_count; i++) {
		memcpy(out + length, frame->segments[i].data, frame->segments[i].length);
		length += frame->segments[i].length;
	}
	assert_int_equal(length, frame->length);
	return length;
}

/* One frame off the lanes of @worker, whatever device queue it came by; 0 if none comes within @wait_ms. */
static unsigned receive(struct lane_device *device, struct lane_port *port, unsigned worker, uint8_t *out, size_t size, int wait_ms)
{
	uint64_t deadline = now_ns() + (uint64_t)wait_ms * 1000000;

	do {
		for (unsigned queue = 0; queue < lane_device_queues(device); queue++) {
			struct lane *lane = lane_of(device, queue, worker);
			unsigned length = 0;

			if (lane_receive(port, lane, &rig.burst, 1) == 1)
				length = flatten(&rig.burst.frames[0], out, size);
			lane_release(port, lane, &rig.burst);
			if (length)
				return length;
		}
		lane_settle(port);
		usleep(200);
	} while (now_ns() < deadline);
	return 0;
}

static int packet_socket(const char *ifname, unsigned protocol)
{
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET, .sll_protocol = htons((uint16_t)protocol), .sll_ifindex = (int)if_nametoindex(ifname)
	};
	struct timeval wait = { .tv_sec = WAIT_MS / 1000 };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
	return fd;
}

#define TEST_PROTOCOL 0x88b5 /* IEEE 802: local experiments */

static unsigned make_frame(uint8_t *frame, const uint8_t *to, unsigned length, uint8_t fill)
{
	static const uint8_t from[6] = { 0x02, 0, 0, 0, 0x77, 0x77 };
	uint16_t protocol = htons(TEST_PROTOCOL);

	memcpy(frame, to, 6);
	memcpy(frame + 6, from, 6);
	memcpy(frame + 12, &protocol, 2);
	for (unsigned i = 14; i < length; i++)
		frame[i] = (uint8_t)(fill + i);
	return length;
}

static void send_from(const char *ifname, const uint8_t *frame, unsigned length)
{
	int fd = packet_socket(ifname, 0);

	assert_int_equal(send(fd, frame, length, 0), length);
	close(fd);
}

static void send_by_lane(struct lane_port *port, uint8_t *bytes, unsigned length)
{
	struct frame_segment rest = { bytes + min_u32(length, FRAME_HEAD_MAX), length - min_u32(length, FRAME_HEAD_MAX) };
	struct frame frame = {
		.head = bytes,
		.segments = &rest,
		.segment_count = rest.length ? 1 : 0,
		.length = length,
		.head_length = (uint16_t)min_u32(length, FRAME_HEAD_MAX),
	};
	struct frame *frames[] = { &frame };

	assert_int_equal(lane_send(port, frames, 1), 1);
	lane_flush(port);
	lane_settle(port);
}

static uint32_t sum16(const uint8_t *data, unsigned length, uint32_t sum)
{
	for (unsigned i = 0; i + 1 < length; i += 2)
		sum += (uint32_t)data[i] << 8 | data[i + 1];
	if (length & 1)
		sum += (uint32_t)data[length - 1] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* IPv4 without options, UDP at @frame + 14: both checksums must be right, and there. */
static void assert_udp_checksums(const uint8_t *frame)
{
	const uint8_t *ip = frame + 14, *udp = ip + 20;
	unsigned udp_length = (unsigned)udp[4] << 8 | udp[5];

	assert_int_equal(sum16(ip, 20, 0), 0xffff);
	assert_true(udp[6] | udp[7]);
	assert_int_equal(sum16(udp, udp_length, sum16(ip + 12, 8, 17 + udp_length)), 0xffff);
}

static void test_wire_to_lane(void **state)
{
	uint8_t frame[1518], got[2048];
	unsigned mtu = uplink_info(rig.uplink)->mtu;

	for (unsigned pair = 0; pair < WORKERS; pair++) {
		steer_all_to(pair);
		for (unsigned length = 60; length <= mtu + 14; length += 97) {
			make_frame(frame, guest_mac, length, (uint8_t)length);
			send_from(WIRE, frame, length);
			assert_int_equal(receive(rig.wire_device, rig.wire[pair], pair, got, sizeof(got), WAIT_MS), length);
			assert_memory_equal(got, frame, length);
		}
	}
	assert_int_equal(receive(rig.wire_device, rig.wire[0], 0, got, sizeof(got), 20), 0);
}

/* A frame that comes by the wire is the stack's, byte by byte. @stack: packet_socket() of UPLINK. */
static void expect_at_stack(int stack, const uint8_t *frame, unsigned length)
{
	uint8_t got[2048];

	send_from(WIRE, frame, length);
	assert_int_equal(recv(stack, got, sizeof(got), 0), length);
	assert_memory_equal(got, frame, length);
}

/* For nobody here, or for a guest while the engine is not ready: the host's stack has it. */
static void test_wire_to_stack(void **state)
{
	uint8_t frame[100], got[2048];
	int fd = packet_socket(UPLINK, TEST_PROTOCOL);

	expect_at_stack(fd, frame, make_frame(frame, nobody, sizeof(frame), 1));
	uplink_stop(rig.uplink);
	expect_at_stack(fd, frame, make_frame(frame, guest_mac, sizeof(frame), 2));
	uplink_start(rig.uplink);
	close(fd);
	assert_int_equal(receive(rig.wire_device, rig.wire[0], 0, got, sizeof(got), 20), 0);
}

static void test_broadcast_to_both(void **state)
{
	uint8_t frame[200], got[2048];
	int fd = packet_socket(UPLINK, TEST_PROTOCOL);

	expect_at_stack(fd, frame, make_frame(frame, broadcast, sizeof(frame), 3));
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, got, sizeof(got), WAIT_MS), sizeof(frame));
	assert_memory_equal(got, frame, sizeof(frame));
	close(fd);
}

/* The host's stack sends UDP to the guest's address: complete checksums, also of what it meant to have segmented. */
static void test_host_to_lane(void **state)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(4000) };
	uint8_t payload[5000], got[2048];
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), segment = 1000;

	inet_pton(AF_INET, GUEST_ADDRESS, &to.sin_addr);
	for (unsigned i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 7);
	assert_int_equal(sendto(fd, payload, 701, 0, (struct sockaddr *)&to, sizeof(to)), 701);
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, got, sizeof(got), WAIT_MS), 14 + 28 + 701);
	assert_memory_equal(got, guest_mac, 6);
	assert_memory_equal(got + 42, payload, 701);
	assert_udp_checksums(got);

	steer_all_to(1);
	assert_int_equal(setsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment, sizeof(segment)), 0);
	assert_int_equal(sendto(fd, payload, sizeof(payload), 0, (struct sockaddr *)&to, sizeof(to)), sizeof(payload));
	for (unsigned i = 0; i < sizeof(payload) / 1000; i++) {
		assert_int_equal(receive(rig.host_device, rig.host[1], 1, got, sizeof(got), WAIT_MS), 14 + 28 + 1000);
		assert_memory_equal(got + 42, payload + i * 1000, 1000);
		assert_udp_checksums(got);
	}
	/* Nothing of it went out of the wire. */
	assert_int_equal(receive(rig.host_device, rig.host[1], 1, got, sizeof(got), 20), 0);
	close(fd);
}

#define UDP_PAYLOAD 300
#define UDP_FRAME (14 + 28 + UDP_PAYLOAD)

/* IPv4 and UDP from port 4000 of the guest's address to port 5000 of @to. */
static void make_udp(uint8_t *f, const uint8_t *to_mac, const char *to)
{
	uint32_t sum;

	memset(f, 0, UDP_FRAME);
	memcpy(f, to_mac, 6);
	memcpy(f + 6, guest_mac, 6);
	memcpy(f + 12, (uint8_t[]){ 0x08, 0x00, 0x45, 0, 0x01, 0x48, 0, 1, 0, 0, 64, 17 }, 12);
	inet_pton(AF_INET, GUEST_ADDRESS, f + 26);
	inet_pton(AF_INET, to, f + 30);
	sum = 0xffff - sum16(f + 14, 20, 0);
	f[24] = (uint8_t)(sum >> 8);
	f[25] = (uint8_t)sum;
	memcpy(f + 34, (uint8_t[]){ 0x0f, 0xa0, 0x13, 0x88, 0x01, 0x34 }, 6);
	for (unsigned i = 0; i < UDP_PAYLOAD; i++)
		f[42 + i] = (uint8_t)(i * 3);
	sum = 0xffff - sum16(f + 34, 8 + UDP_PAYLOAD, sum16(f + 26, 8, 17 + 8 + UDP_PAYLOAD));
	f[40] = (uint8_t)(sum >> 8);
	f[41] = (uint8_t)sum;
	assert_udp_checksums(f);
}

static int udp_server(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(5000) };
	struct timeval wait = { .tv_sec = WAIT_MS / 1000 };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof(here)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
	return fd;
}

static void assert_served(int fd, const uint8_t *frame)
{
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	uint8_t got[UDP_PAYLOAD + 100];

	assert_int_equal(recvfrom(fd, got, sizeof(got), 0, (struct sockaddr *)&from, &length), UDP_PAYLOAD);
	assert_memory_equal(got, frame + 42, UDP_PAYLOAD);
	assert_int_equal(ntohs(from.sin_port), 4000);
}

/* What the engine sends on the host link arrives as if the uplink had received it. */
static void test_lane_to_host(void **state)
{
	uint8_t frame[FRAME_HEADROOM + UDP_FRAME], *f = frame + FRAME_HEADROOM;
	int fd = udp_server();

	for (unsigned worker = 0; worker < WORKERS; worker++) {
		make_udp(f, uplink_info(rig.uplink)->mac, HOST_ADDRESS);
		send_by_lane(rig.host[worker], f, UDP_FRAME);
		assert_served(fd, f);
		make_udp(f, broadcast, "198.51.100.255");
		send_by_lane(rig.host[worker], f, UDP_FRAME);
		assert_served(fd, f);
	}
	close(fd);
	/* Nothing of it came back up. */
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, frame, sizeof(frame), 20), 0);
}

/* The wire's own talk with the host goes on; guests have a copy of broadcasts and of nothing else. */
static void test_wire_to_host(void **state)
{
	uint8_t frame[UDP_FRAME], got[2048];
	int fd = udp_server();

	make_udp(frame, uplink_info(rig.uplink)->mac, HOST_ADDRESS);
	send_from(WIRE, frame, sizeof(frame));
	assert_served(fd, frame);
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, got, sizeof(got), 20), 0);

	make_udp(frame, broadcast, "198.51.100.255");
	send_from(WIRE, frame, sizeof(frame));
	assert_served(fd, frame);
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, got, sizeof(got), WAIT_MS), sizeof(frame));
	assert_memory_equal(got, frame, sizeof(frame));
	close(fd);
}

static void test_lane_to_wire(void **state)
{
	uint8_t frame[FRAME_HEADROOM + 1514], *f = frame + FRAME_HEADROOM, got[2048];
	int fd = packet_socket(WIRE, TEST_PROTOCOL);

	for (unsigned worker = 0; worker < WORKERS; worker++) {
		make_frame(f, nobody, 1514, (uint8_t)worker);
		send_by_lane(rig.wire[worker], f, 1514);
		assert_int_equal(recv(fd, got, sizeof(got), 0), 1514);
		assert_memory_equal(got, f, 1514);
	}
	close(fd);
}

/*
 * Gives every frame that leaves @ifname a VLAN tag beside the frame, as the stack's VLAN devices do (which not every kernel has): a tc program
 * that calls bpf_skb_vlan_push(skb, ETH_P_8021Q, vlan) and lets the next filter go on. Return: its program, for untag().
 */
static int tag(const char *ifname, uint16_t vlan)
{
	const struct bpf_insn program[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = htons(ETHERTYPE_VLAN) },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = vlan },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_skb_vlan_push },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = -1 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)if_nametoindex(ifname), .attach_point = BPF_TC_EGRESS);
	LIBBPF_OPTS(bpf_tc_opts, options, .handle = 1, .priority = 1);
	int fd = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, "tagger", "GPL", program, ARRAY_SIZE(program), NULL);

	assert_true(fd >= 0);
	bpf_tc_hook_create(&hook); /* the uplink has its qdisc already */
	options.prog_fd = fd;
	assert_int_equal(bpf_tc_attach(&hook, &options), 0);
	return fd;
}

static void untag(const char *ifname, int fd)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)if_nametoindex(ifname), .attach_point = BPF_TC_EGRESS);
	LIBBPF_OPTS(bpf_tc_opts, options, .handle = 1, .priority = 1);

	assert_int_equal(bpf_tc_detach(&hook, &options), 0);
	close(fd);
}

static void assert_tagged(const uint8_t *got, const uint8_t *frame, unsigned length, uint8_t vlan)
{
	assert_memory_equal(got, frame, 12);
	assert_memory_equal(got + 12, ((uint8_t[]){ 0x81, 0, 0, vlan }), 4);
	assert_memory_equal(got + 16, frame + 12, length - 12);
}

/* Tags are in the frame, from the wire and from the host. */
static void test_tags(void **state)
{
	uint8_t frame[100], got[2048];
	int fd;

	make_frame(frame, guest_mac, sizeof(frame), 4);
	fd = tag(WIRE, 7);
	send_from(WIRE, frame, sizeof(frame));
	untag(WIRE, fd);
	assert_int_equal(receive(rig.wire_device, rig.wire[0], 0, got, sizeof(got), WAIT_MS), sizeof(frame) + 4);
	assert_tagged(got, frame, sizeof(frame), 7);

	fd = tag(UPLINK, 9);
	send_from(UPLINK, frame, sizeof(frame));
	untag(UPLINK, fd);
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, got, sizeof(got), WAIT_MS), sizeof(frame) + 4);
	assert_tagged(got, frame, sizeof(frame), 9);
}

/* The largest frame, in several chunks each way. */
static void test_jumbo(void **state)
{
	static uint8_t frame[FRAME_HEADROOM + 9014], got[9200];
	uint8_t *f = frame + FRAME_HEADROOM;
	int fd = packet_socket(WIRE, TEST_PROTOCOL);

	make_frame(f, guest_mac, 9014, 1);
	send_from(WIRE, f, 9014);
	assert_int_equal(receive(rig.wire_device, rig.wire[0], 0, got, sizeof(got), WAIT_MS), 9014);
	assert_memory_equal(got, f, 9014);
	send_from(UPLINK, f, 9014);
	assert_int_equal(receive(rig.host_device, rig.host[0], 0, got, sizeof(got), WAIT_MS), 9014);
	assert_memory_equal(got, f, 9014);
	make_frame(f, nobody, 9014, 2);
	send_by_lane(rig.wire[1], f, 9014);
	assert_int_equal(recv(fd, got, sizeof(got), 0), 9014);
	assert_memory_equal(got, f, 9014);
	close(fd);
}

/* Both ends of the host link are silent: whatever the host does, no frame of its own making comes up the lanes. */
static void test_host_link_is_silent(void **state)
{
	struct lane_census census;
	uint8_t got[2048];
	uint64_t reasons[VL_REASON_COUNT];

	rig_command("ip link set %s down; ip link set %s up", host_link_host_end(uplink_host_link(rig.uplink, 0))->ifname,
		    host_link_host_end(uplink_host_link(rig.uplink, 0))->ifname);
	for (unsigned i = 0; i < WORKERS; i++)
		assert_int_equal(receive(rig.host_device, rig.host[i], i, got, sizeof(got), 500), 0);
	assert_int_equal(bpf_set_counters(uplink_bpf(rig.uplink), reasons), 0);
	assert_int_equal(reasons[VL_XDP_HOST_LINK_UNKNOWN], 0);
	assert_int_equal(reasons[VL_XDP_FLOOD_TO_LANE], 0);
	lane_device_census(rig.host_device, rig.host, &census);
	assert_int_equal(census.rx, 0);
}

#define ON(test, how) { #test " (" #how ")", test, setup_##how, teardown, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON(test_wire_to_lane, native),
		ON(test_wire_to_stack, native),
		ON(test_broadcast_to_both, native),
		ON(test_host_to_lane, native),
		ON(test_lane_to_host, native),
		ON(test_wire_to_host, native),
		ON(test_lane_to_wire, native),
		ON(test_tags, native),
		ON(test_host_link_is_silent, native),
		ON(test_wire_to_lane, generic),
		ON(test_wire_to_stack, generic),
		ON(test_broadcast_to_both, generic),
		ON(test_host_to_lane, generic),
		ON(test_lane_to_host, generic),
		ON(test_wire_to_host, generic),
		ON(test_lane_to_wire, generic),
		ON(test_tags, generic),
		ON(test_jumbo, jumbo),
	};
	int code = rig_enter();

	return code ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
