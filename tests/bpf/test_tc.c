// SPDX-License-Identifier: BSD-2-Clause
/*
 * The tc programs on real devices, in a network namespace of their own:
 *
 *   wire0 <-> up0 (the uplink)       hl0 (host link, host end) <-> hl0e (engine's end; the test plays the engine)
 *
 * What arrives where is read from packet sockets. That something does not arrive is proven by order, not by waiting: each
 * case ends with one frame to each place, which must be the next to come out there (one CPU, so that order holds).
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "packet.h"
#include "xsk.h"
#include "tc_host.skel.h"
#include "vhostlane/bpf_abi.h"
#include "vhostlane/flow_hash.h"
#include "xdp_steer.skel.h"

#define ETHERTYPE_TEST 0x88b5 /* IEEE 802: local experimental */
#define PATIENCE_MS    20000  /* only stops a hang */
#define TC_ACT_UNSPEC  (-1)
#define TC_ACT_SHOT    2
#ifndef SO_RCVMARK
#define SO_RCVMARK 75
#endif

enum place { WIRE, UPLINK, ENGINE, PLACE_COUNT };
static const char *const place_devices[PLACE_COUNT] = { "wire0", "up0", "hl0e" };

static const uint8_t guest[6] = { 0x52, 0x54, 0, 0, 0, 1 }, stranger[6] = { 0x52, 0x54, 0, 0, 0, 9 },
		     peer[6] = { 0x52, 0x54, 0, 0, 1, 1 }, host[6] = { 0x52, 0x54, 0, 0, 0xaa, 1 },
		     broadcast[6] = { 255, 255, 255, 255, 255, 255 };

struct fixture {
	struct tc_host *skeleton;
	struct vl_settings settings;
	int sockets[PLACE_COUNT];
	uint8_t next_id;
};

static void put_settings(struct fixture *f)
{
	uint32_t zero = 0;

	assert_int_equal(bpf_map_update_elem(bpf_map__fd(f->skeleton->maps.settings), &zero, &f->settings, BPF_ANY), 0);
}

static void put_port(struct fixture *f, const uint8_t *mac, uint16_t vlan, uint32_t node, uint32_t queue_pairs)
{
	struct vl_port_key key = { .vlan = vlan };
	struct vl_port_value value = { .port = 5, .node = node, .queue_pairs = queue_pairs };

	memcpy(key.mac, mac, 6);
	assert_int_equal(bpf_map_update_elem(bpf_map__fd(f->skeleton->maps.ports), &key, &value, BPF_ANY), 0);
}

/* The queue pair of one bucket of the port's row. */
static void put_steering(int map, uint32_t port, uint32_t hash, uint32_t pair)
{
	struct vl_flow_row row = { 0 };

	row.queue_pair[vl_flow_bucket(hash)] = pair;
	assert_int_equal(bpf_map_update_elem(map, &port, &row, BPF_ANY), 0);
}

static uint64_t counter(struct fixture *f, uint32_t reason)
{
	uint64_t values[1024], sum = 0;
	int cpus = libbpf_num_possible_cpus();

	assert_in_range(cpus, 1, 1024);
	assert_int_equal(bpf_map_lookup_elem(bpf_map__fd(f->skeleton->maps.counters), &reason, values), 0);
	for (int i = 0; i < cpus; i++)
		sum += values[i];
	return sum;
}

static void attach_fd(const char *device, enum bpf_tc_attach_point point, int program, uint32_t priority)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)if_nametoindex(device),
			    .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .prog_fd = program, .priority = priority, .handle = 1);
	int r = bpf_tc_hook_create(&hook);

	assert_true(r == 0 || r == -EEXIST);
	hook.attach_point = point;
	assert_int_equal(bpf_tc_attach(&hook, &opts), 0);
}

static void attach(const char *device, enum bpf_tc_attach_point point, struct bpf_program *program)
{
	attach_fd(device, point, bpf_program__fd(program), 100);
}

static void detach(const char *device, enum bpf_tc_attach_point point, uint32_t priority)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)if_nametoindex(device), .attach_point = point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .priority = priority, .handle = 1);

	assert_int_equal(bpf_tc_detach(&hook, &opts), 0);
}

/* Somebody else's filters. One that drops, and one that puts a tag beside the frame, as a VLAN device does. */
static const struct bpf_insn drops[] = {
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = TC_ACT_SHOT },
	{ .code = BPF_JMP | BPF_EXIT },
};
static const struct bpf_insn tags_with_100[] = {
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_2, .imm = 0x0081 }, /* 0x8100 in network byte order */
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = 100 },
	{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_skb_vlan_push },
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = TC_ACT_UNSPEC },
	{ .code = BPF_JMP | BPF_EXIT },
};

static void attach_foreign(const struct bpf_insn *instructions, size_t count, uint32_t priority)
{
	int fd = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, "foreign", "Dual BSD/GPL", instructions, count, NULL);

	assert_true(fd >= 0);
	attach_fd("up0", BPF_TC_EGRESS, fd, priority);
	close(fd);
}

static int open_tap(const char *device)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET,
				  .sll_protocol = htons(ETH_P_ALL),
				  .sll_ifindex = (int)if_nametoindex(device) };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)), on = 1;

	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof(on)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(
		system("ip link add up0 numtxqueues 4 numrxqueues 4 address 52:54:00:00:aa:01 type veth peer name wire0 numtxqueues 4 numrxqueues 4"
		       " && ip link add hl0 numtxqueues 4 numrxqueues 4 type veth peer name hl0e numtxqueues 4 numrxqueues 4"
		       " && ethtool -K hl0 txvlan off >/dev/null"
		       " && for d in up0 wire0 hl0 hl0e; do ip link set $d up; done && ip address add 192.0.2.1/24 dev up0"),
		0);
	f->skeleton = tc_host__open_and_load();
	assert_non_null(f->skeleton);
	f->settings = (struct vl_settings){ .abi = VL_ABI_VERSION,
					    .flags = VL_SETTINGS_READY,
					    .workers = 4,
					    .uplink_ifindex = if_nametoindex("up0"),
					    .host_link_node = 1 };
	f->settings.host_link_ifindex[1] = if_nametoindex("hl0");
	f->settings.host_link_queues[1] = 4;
	put_settings(f);
	put_port(f, guest, VL_VLAN_NONE, 1, 1);
	attach("up0", BPF_TC_EGRESS, f->skeleton->progs.tc_host);
	attach("up0", BPF_TC_INGRESS, f->skeleton->progs.tc_uplink_ingress);
	attach("hl0", BPF_TC_INGRESS, f->skeleton->progs.tc_host_link_ingress);
	for (int i = 0; i < PLACE_COUNT; i++)
		f->sockets[i] = open_tap(place_devices[i]);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	for (int i = 0; i < PLACE_COUNT; i++)
		close(f->sockets[i]);
	tc_host__destroy(f->skeleton);
	free(f);
	return system("ip link del up0; ip link del hl0");
}

/* Sends a frame out of a device. Return: the number by which it is known again. */
static uint8_t send_tagged(struct fixture *f, enum place from, const uint8_t *to, const uint8_t *source, int vlan)
{
	struct packet p;

	packet_start(&p, to, source);
	if (vlan >= 0)
		packet_tag(&p, 0x8100, (uint16_t)vlan);
	packet_u16(&p, ETHERTYPE_TEST);
	packet_u8(&p, ++f->next_id);
	packet_fill(&p, 0x77, 60);
	assert_int_equal(send(f->sockets[from], p.data, p.length, 0), p.length);
	return f->next_id;
}

static uint8_t send_from(struct fixture *f, enum place from, const uint8_t *to)
{
	return send_tagged(f, from, to, from == UPLINK ? host : peer, -1);
}

/* The next frame of ours that came in there. @vlan: of its tag, -1 = none. */
static uint8_t next_at(struct fixture *f, enum place at, int *vlan)
{
	struct pollfd wait = { .fd = f->sockets[at], .events = POLLIN };

	while (poll(&wait, 1, PATIENCE_MS) == 1) {
		uint8_t data[256], control[256];
		struct iovec io = { data, sizeof(data) };
		struct sockaddr_ll from;
		struct msghdr message = { .msg_name = &from,
					  .msg_namelen = sizeof(from),
					  .msg_iov = &io,
					  .msg_iovlen = 1,
					  .msg_control = control,
					  .msg_controllen = sizeof(control) };
		ssize_t length = recvmsg(f->sockets[at], &message, 0);

		assert_true(length >= 14);
		*vlan = -1;
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
			struct tpacket_auxdata aux;

			if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA)
				continue;
			memcpy(&aux, CMSG_DATA(c), sizeof(aux));
			if (aux.tp_status & TP_STATUS_VLAN_VALID)
				*vlan = aux.tp_vlan_tci & 0xfff;
		}
		if (from.sll_pkttype == PACKET_OUTGOING || length < 16 || data[12] != ETHERTYPE_TEST >> 8 ||
		    data[13] != (ETHERTYPE_TEST & 0xff))
			continue;
		return data[14];
	}
	fail_msg("nothing came to %s", place_devices[at]);
	return 0;
}

static void expect_tagged(struct fixture *f, enum place at, uint8_t id, int vlan)
{
	int seen;

	assert_int_equal(next_at(f, at, &seen), id);
	assert_int_equal(seen, vlan);
}

static void expect(struct fixture *f, enum place at, uint8_t id)
{
	expect_tagged(f, at, id, -1);
}

/* Nothing else came anywhere. */
static void expect_no_more(struct fixture *f)
{
	uint8_t at_wire = send_from(f, UPLINK, stranger), at_engine, at_uplink;

	f->settings.flags |= VL_SETTINGS_READY;
	put_settings(f);
	at_engine = send_from(f, UPLINK, guest);
	at_uplink = send_from(f, WIRE, stranger);
	expect(f, WIRE, at_wire);
	expect(f, ENGINE, at_engine);
	expect(f, UPLINK, at_uplink);
}

static void host_to_guest(void **state)
{
	struct fixture *f = *state;
	uint64_t before = counter(f, VL_TC_HOST_TO_GUEST);
	uint8_t id = send_from(f, UPLINK, guest);

	expect(f, ENGINE, id);
	assert_int_equal(counter(f, VL_TC_HOST_TO_GUEST), before + 1);
	expect_no_more(f);
}

static void host_to_wire(void **state)
{
	struct fixture *f = *state;
	uint8_t id = send_from(f, UPLINK, stranger);

	expect(f, WIRE, id);
	expect_no_more(f);
}

/* In the frame, and beside it. */
static void host_to_guest_with_tag(void **state)
{
	struct fixture *f = *state;
	uint8_t id;

	put_port(f, stranger, 100, 1, 1);
	id = send_tagged(f, UPLINK, stranger, host, 100);
	expect_tagged(f, ENGINE, id, 100);
	attach_foreign(tags_with_100, 5, 50);
	id = send_from(f, UPLINK, stranger);
	expect_tagged(f, ENGINE, id, 100);
	id = send_from(f, UPLINK, guest); /* untagged it would have been the guest's */
	expect_tagged(f, WIRE, id, 100);
	detach("up0", BPF_TC_EGRESS, 50);
	id = send_tagged(f, UPLINK, stranger, host, 101); /* another VLAN: not the guest's */
	expect_tagged(f, WIRE, id, 101);
	expect_no_more(f);
}

static void host_broadcast(void **state)
{
	struct fixture *f = *state;
	uint8_t id = send_from(f, UPLINK, broadcast), tagged;

	expect(f, ENGINE, id);
	expect(f, WIRE, id);
	attach_foreign(tags_with_100, 5, 50);
	tagged = send_from(f, UPLINK, broadcast);
	expect_tagged(f, ENGINE, tagged, 100);
	expect_tagged(f, WIRE, tagged, 100);
	detach("up0", BPF_TC_EGRESS, 50);
	assert_int_equal(counter(f, VL_TC_FLOOD_TO_GUESTS), 2);
	expect_no_more(f);
}

/* To guests and stack, and not out again. */
static void wire_broadcast(void **state)
{
	struct fixture *f = *state;
	uint8_t id = send_from(f, WIRE, broadcast), tagged;

	expect(f, ENGINE, id);
	expect(f, UPLINK, id);
	tagged = send_tagged(f, WIRE, broadcast, peer, 100);
	expect_tagged(f, ENGINE, tagged, 100);
	expect_tagged(f, UPLINK, tagged, 100);
	expect_no_more(f);
}

/*
 * On a device that lies on others unicast for guests takes the way of broadcasts, its tag beside the frame or none. The socket on the uplink
 * taps it before tc, so it sees all of the wire's frames.
 */
static void wire_to_guest_by_tc(void **state)
{
	static const uint8_t of_vlan[6] = { 0x52, 0x54, 0, 0, 0, 2 }, down[6] = { 0x52, 0x54, 0, 0, 0, 3 };
	struct fixture *f = *state;
	uint8_t id;

	put_port(f, of_vlan, 100, 1, 1);
	put_port(f, down, VL_VLAN_NONE, 1, 0);
	expect(f, UPLINK, send_from(f, WIRE, guest)); /* elsewhere XDP has taken them: what comes here is the stack's */
	f->settings.flags |= VL_SETTINGS_BY_TC;
	put_settings(f);
	id = send_from(f, WIRE, guest);
	expect(f, UPLINK, id);
	expect(f, ENGINE, id);
	id = send_tagged(f, WIRE, of_vlan, peer, 100);
	expect_tagged(f, UPLINK, id, 100);
	expect_tagged(f, ENGINE, id, 100);
	assert_int_equal(counter(f, VL_TC_HOST_TO_GUEST), 2);
	/* Another VLAN, and none: not the guest's. */
	expect_tagged(f, UPLINK, send_tagged(f, WIRE, of_vlan, peer, 101), 101);
	expect(f, UPLINK, send_from(f, WIRE, of_vlan));
	expect(f, UPLINK, send_from(f, WIRE, down));
	assert_int_equal(counter(f, VL_XDP_PORT_DOWN), 1);
	expect(f, UPLINK, send_from(f, ENGINE, guest)); /* bears the mark: must not circle */
	expect_no_more(f);
}

/* To the stack, as coming from the uplink; neither back to the guests nor out. */
static void guest_to_host(void **state)
{
	struct fixture *f = *state;
	uint8_t id;

	id = send_from(f, ENGINE, host);
	expect(f, UPLINK, id);
	id = send_from(f, ENGINE, broadcast);
	expect(f, UPLINK, id);
	id = send_tagged(f, ENGINE, broadcast, peer, 100);
	expect_tagged(f, UPLINK, id, 100);
	id = send_from(f, ENGINE, guest); /* the engine does not do this; were it to, it must not circle */
	expect(f, UPLINK, id);
	assert_int_equal(counter(f, VL_TC_GUEST_TO_HOST), 4);
	expect_no_more(f);
}

/* A datagram from a guest reaches a socket of the host, without the mark that it bore on its way. */
static void guest_to_socket(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_in here = { .sin_family = AF_INET,
				    .sin_port = htons(4242),
				    .sin_addr.s_addr = htonl(0xc0000201) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	uint8_t control[256], data[64];
	struct iovec io = { data, sizeof(data) };
	struct msghdr message = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct packet p;
	uint32_t sum = 0, mark = 0;

	assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof(here)), 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVMARK, &on, sizeof(on)), 0);
	packet_start(&p, host, peer);
	packet_ipv4(&p, 0xc0000202, 0xc0000201, 17, 0, 0);
	p.data[17] = 20 + 12; /* total length */
	for (int i = 14; i < 34; i += 2)
		sum += (uint32_t)p.data[i] << 8 | p.data[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	p.data[24] = (uint8_t)(~sum >> 8);
	p.data[25] = (uint8_t)~sum;
	packet_u16(&p, 5555);
	packet_u16(&p, 4242);
	packet_u16(&p, 12);
	packet_u16(&p, 0); /* no checksum */
	packet_u32(&p, 0xfeedbeef);
	packet_fill(&p, 0, 14);
	assert_int_equal(send(f->sockets[ENGINE], p.data, p.length, 0), p.length);
	assert_int_equal(poll(&wait, 1, PATIENCE_MS), 1);
	assert_int_equal(recvmsg(fd, &message, 0), 4);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_MARK)
			memcpy(&mark, CMSG_DATA(c), sizeof(mark));
	assert_int_equal(mark, 0);
	close(fd);
}

static void not_ready(void **state)
{
	struct fixture *f = *state;
	uint8_t id;

	f->settings.flags = 0;
	put_settings(f);
	id = send_from(f, UPLINK, guest);
	expect(f, WIRE, id);
	id = send_from(f, WIRE, broadcast);
	expect(f, UPLINK, id);
	expect_no_more(f);
}

/* A guest's frame with no uplink to go to must not enter the stack by the host link. */
static void no_uplink(void **state)
{
	struct fixture *f = *state;

	f->settings.uplink_ifindex = 0;
	put_settings(f);
	send_from(f, ENGINE, host);
	assert_int_equal(counter(f, VL_TC_REDIRECT_FAILED), 1);
	f->settings.uplink_ifindex = if_nametoindex("up0");
	expect_no_more(f);
}

static void node_without_host_link(void **state)
{
	struct fixture *f = *state;
	uint8_t id;

	put_port(f, stranger, VL_VLAN_NONE, 3, 1); /* the node that floods serves it */
	id = send_from(f, UPLINK, stranger);
	expect(f, ENGINE, id);
	put_port(f, stranger, VL_VLAN_NONE, 1000, 1); /* nonsense from an operator's edit */
	id = send_from(f, UPLINK, stranger);
	expect(f, ENGINE, id);
}

/* What is not ours goes on to other people's filters on the same hook. */
static void foreign_filter_after_ours(void **state)
{
	struct fixture *f = *state;
	struct packet p;
	uint8_t id;

	attach_foreign(drops, 2, 200);
	packet_start(&p, stranger, host);
	packet_u16(&p, ETHERTYPE_TEST);
	packet_fill(&p, 0, 60);
	assert_int_equal(send(f->sockets[UPLINK], p.data, p.length, 0), -1);
	assert_int_equal(errno, ENOBUFS);
	id = send_from(f, UPLINK, guest);
	expect(f, ENGINE, id);
	detach("up0", BPF_TC_EGRESS, 200);
	expect_no_more(f);
}

/* The host link's queue is the flow's own, whichever worker serves it: xdp_steer on the engine's end finds a socket, there and only there. */
static void queue_of_flow(void **state)
{
	static const char *const shared[] = { "ports", "queue_affinity", "flow_steering", "port_vlans", "wire_claims", "counters" };
	struct fixture *f = *state;
	struct xdp_steer *xdp = xdp_steer__open();
	struct vl_settings settings = { .flags = VL_SETTINGS_READY | VL_SETTINGS_HOST_LINK,
					.workers = 4,
					.device_queues = 4 };
	int affinity = bpf_map__fd(f->skeleton->maps.queue_affinity),
	    steering = bpf_map__fd(f->skeleton->maps.flow_steering);
	int xsk = xsk_of_no_device(), ifindex = (int)if_nametoindex("hl0e");
	struct packet p;
	uint32_t zero = 0, hash;

	assert_non_null(xdp);
	for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
		assert_int_equal(
			bpf_map__reuse_fd(bpf_object__find_map_by_name(xdp->obj, shared[i]),
					  bpf_map__fd(bpf_object__find_map_by_name(f->skeleton->obj, shared[i]))),
			0);
	assert_int_equal(xdp_steer__load(xdp), 0);
	assert_int_equal(bpf_map_update_elem(bpf_map__fd(xdp->maps.settings), &zero, &settings, BPF_ANY), 0);
	assert_int_equal(bpf_xdp_attach(ifindex, bpf_program__fd(xdp->progs.xdp_steer), XDP_FLAGS_DRV_MODE, NULL), 0);

	packet_start(&p, guest, host);
	packet_ipv4(&p, 0x0a000001, 0x0a000002, 17, 0, 0);
	packet_ports(&p, 1, 2);
	hash = vl_flow_hash_frame(p.data, p.data + p.length);
	put_port(f, guest, VL_VLAN_NONE, 1, 4);
	for (uint32_t pair = 0; pair < 4; pair++) {
		struct vl_queue_key key = { .port = 5, .queue_pair = pair };
		struct vl_queue_value value = { .worker = 3 - pair };
		uint32_t lane = vl_lane_index(vl_flow_bucket(hash) % 4, 4, value.worker);
		uint64_t before = counter(f, VL_XDP_TO_LANE);

		assert_int_equal(bpf_map_update_elem(affinity, &key, &value, BPF_ANY), 0);
		put_steering(steering, 5, hash, pair);
		assert_int_equal(bpf_map_update_elem(bpf_map__fd(xdp->maps.lanes), &lane, &xsk, BPF_ANY), 0);
		assert_int_equal(send(f->sockets[UPLINK], p.data, p.length, 0), p.length);
		for (int i = 0; i < PATIENCE_MS && counter(f, VL_XDP_TO_LANE) + counter(f, VL_XDP_NO_LANE) == before;
		     i++)
			usleep(1000);
		assert_int_equal(counter(f, VL_XDP_TO_LANE), before + 1);
		assert_int_equal(bpf_map_delete_elem(bpf_map__fd(xdp->maps.lanes), &lane), 0);
	}
	close(xsk);
	xdp_steer__destroy(xdp);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(host_to_guest),
		TEST(host_to_wire),
		TEST(host_to_guest_with_tag),
		TEST(host_broadcast),
		TEST(wire_broadcast),
		TEST(wire_to_guest_by_tc),
		TEST(guest_to_host),
		TEST(guest_to_socket),
		TEST(not_ready),
		TEST(no_uplink),
		TEST(node_without_host_link),
		TEST(foreign_filter_after_ours),
		TEST(queue_of_flow),
#undef TEST
	};
	cpu_set_t one;

	libbpf_set_print(NULL); /* it complains of a qdisc that is there already */
	if (geteuid() != 0) {
		fprintf(stderr, "test_tc: needs root to load BPF programs\n");
		return 1;
	}
	sched_getaffinity(0, sizeof(one), &one);
	for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &one) && kept++)
			CPU_CLR(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (unshare(CLONE_NEWNET) ||
	    system("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 && ip link set lo up")) {
		fprintf(stderr, "test_tc: cannot make a network namespace\n");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
