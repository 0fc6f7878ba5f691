// SPDX-License-Identifier: BSD-2-Clause
/*
 * xdp_steer, packet by packet, through the kernel's program test. Which lane it chose is seen by filling that one only:
 * bpf_redirect_map() says XDP_REDIRECT where a socket is, and the fallback action where none is.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <bpf/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "packet.h"
#include "xsk.h"
#include "vhostlane/bpf_abi.h"
#include "vhostlane/flow_hash.h"
#include "xdp_steer.skel.h"

#define WORKERS 4
#define QUEUES	4
#define PORT	17
#define DEVICE	"vhlsteer0"

static const uint8_t guest[6] = { 0x52, 0x54, 0, 0, 0, 1 }, trunk[6] = { 0x52, 0x54, 0, 0, 0, 2 },
		     down[6] = { 0x52, 0x54, 0, 0, 0, 3 }, stranger[6] = { 0x52, 0x54, 0, 0, 0, 9 },
		     peer[6] = { 0x52, 0x54, 0, 0, 1, 1 }, broadcast[6] = { 255, 255, 255, 255, 255, 255 },
		     multicast[6] = { 1, 0, 0x5e, 0, 0, 1 };
static const uint8_t ip6_a[16] = { 0xfd, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 },
		     ip6_b[16] = { 0xfd, 0, 0, 0, 99, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13 };

struct fixture {
	struct xdp_steer *skeleton;
	int program, lanes;
	int socket;
	struct vl_settings settings;
};

static void put(int map, const void *key, const void *value)
{
	assert_int_equal(bpf_map_update_elem(map, key, value, BPF_ANY), 0);
}

static void put_settings(struct fixture *f)
{
	uint32_t zero = 0;

	put(bpf_map__fd(f->skeleton->maps.settings), &zero, &f->settings);
}

static void put_port(struct fixture *f, const uint8_t *mac, uint16_t vlan, uint32_t port, uint32_t flags,
		     uint32_t queue_pairs)
{
	struct vl_port_key key = { .vlan = vlan };
	struct vl_port_value value = { .port = port, .flags = flags, .queue_pairs = queue_pairs };

	memcpy(key.mac, mac, 6);
	put(bpf_map__fd(f->skeleton->maps.ports), &key, &value);
}

static void put_affinity(struct fixture *f, uint32_t port, uint32_t pair, uint32_t worker)
{
	struct vl_queue_key key = { .port = port, .queue_pair = pair };
	struct vl_queue_value value = { .cpu = worker, .worker = worker };

	put(bpf_map__fd(f->skeleton->maps.queue_affinity), &key, &value);
}

/* The queue pair of one bucket of the port's row. */
static void put_steering(int map, uint32_t port, uint32_t hash, uint32_t pair)
{
	struct vl_flow_row row = { 0 };

	row.queue_pair[vl_flow_bucket(hash)] = pair;
	assert_int_equal(bpf_map_update_elem(map, &port, &row, BPF_ANY), 0);
}

static void fill_lane(struct fixture *f, uint32_t queue, uint32_t worker)
{
	uint32_t index = vl_lane_index(queue, WORKERS, worker);

	put(f->lanes, &index, &f->socket);
}

static void empty_lanes(struct fixture *f)
{
	for (uint32_t i = 0; i < VL_DEVICE_QUEUES_MAX * VL_WORKERS_MAX; i++)
		bpf_map_delete_elem(f->lanes, &i);
}

static void only_lane(struct fixture *f, uint32_t queue, uint32_t worker)
{
	empty_lanes(f);
	fill_lane(f, queue, worker);
}

static uint64_t counter(struct fixture *f, uint32_t reason)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t values[1024], sum = 0;

	assert_in_range(cpus, 1, 1024);
	assert_int_equal(bpf_map_lookup_elem(bpf_map__fd(f->skeleton->maps.counters), &reason, values), 0);
	for (int i = 0; i < cpus; i++)
		sum += values[i];
	return sum;
}

static int run_on(struct fixture *f, const struct packet *p, uint32_t ifindex, uint32_t queue)
{
	struct xdp_md context = { .data_end = p->length, .ingress_ifindex = ifindex, .rx_queue_index = queue };
	uint8_t out[PACKET_MAX];
	DECLARE_LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = p->data, .data_size_in = p->length, .data_out = out,
			    .data_size_out = sizeof(out), .ctx_in = ifindex ? &context : NULL,
			    .ctx_size_in = ifindex ? sizeof(context) : 0, .repeat = 1);

	assert_int_equal(bpf_prog_test_run_opts(f->program, &opts), 0);
	assert_int_equal(opts.data_size_out, p->length);
	assert_memory_equal(out, p->data, p->length);
	return (int)opts.retval;
}

static int run(struct fixture *f, const struct packet *p)
{
	return run_on(f, p, 0, 0);
}

/* The verdict, and that exactly the counter of @reason, and no other, went up by one. */
static void expect(struct fixture *f, const struct packet *p, int verdict, uint32_t reason)
{
	uint64_t before[VL_REASON_COUNT];

	for (uint32_t i = 0; i < VL_REASON_COUNT; i++)
		before[i] = counter(f, i);
	assert_int_equal(run(f, p), verdict);
	for (uint32_t i = 0; i < VL_REASON_COUNT; i++)
		assert_int_equal(counter(f, i), before[i] + (i == reason));
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->skeleton = xdp_steer__open_and_load();
	assert_non_null(f->skeleton);
	f->program = bpf_program__fd(f->skeleton->progs.xdp_steer);
	f->lanes = bpf_map__fd(f->skeleton->maps.lanes);
	f->socket = xsk_of_no_device();
	f->settings = (struct vl_settings){ .abi = VL_ABI_VERSION,
					    .flags = VL_SETTINGS_READY,
					    .workers = WORKERS,
					    .device_queues = QUEUES,
					    .flood_worker = 3 };
	put_settings(f);
	put_port(f, guest, VL_VLAN_NONE, PORT, 0, 1);
	put_affinity(f, PORT, 0, 2);
	only_lane(f, 0, 2);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	close(f->socket);
	xdp_steer__destroy(f->skeleton);
	free(f);
	return 0;
}

static void udp(struct packet *p, const uint8_t *to)
{
	packet_start(p, to, peer);
	packet_ipv4(p, 0x0a000001, 0x0a000002, 17, 0, 0);
	packet_ports(p, 1000, 2000);
}

static void tagged(struct packet *p, const uint8_t *to, uint16_t protocol, uint16_t tci, bool inner)
{
	packet_start(p, to, peer);
	packet_tag(p, protocol, tci);
	if (inner)
		packet_tag(p, 0x8100, 77);
	packet_ipv4(p, 0x0a000001, 0x0a000002, 17, 0, 0);
	packet_ports(p, 1000, 2000);
}

static void known_unicast(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	udp(&p, guest);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	only_lane(f, 0, 1); /* another worker's */
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	put_affinity(f, PORT, 0, 1); /* an edit moves it at once */
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
}

static void for_the_stack(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	udp(&p, stranger);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	udp(&p, broadcast);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	udp(&p, multicast);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
}

static void vlans(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	put_port(f, guest, 100, 18, 0, 1);
	put_affinity(f, 18, 0, 1);

	only_lane(f, 0, 1);
	tagged(&p, guest, 0x8100, 100, false);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, guest, 0x8100, 0xf000 | 100, false); /* priority and DEI bits are no part of the VLAN */
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, guest, 0x88a8, 100, true); /* QinQ: the outer tag counts */
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	for (uint32_t worker = 0; worker < WORKERS;
	     worker++) /* another VLAN's frames reach nobody, whoever has lanes */
		fill_lane(f, 0, worker);
	tagged(&p, guest, 0x8100, 101, false);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	tagged(&p, guest, 0x88a8, 77, true);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	only_lane(f, 0, 1);
	udp(&p, guest); /* untagged is port 17's, worker 2 */
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	only_lane(f, 0, 2);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
}

static void priority_tag_is_untagged(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	tagged(&p, guest, 0x8100, 0xe000, false);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, guest, 0x88a8, 0, true);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
}

/* A trunk with a list: those VLANs and, by bit 0, untagged frames; all else is the stack's. */
static void trunk_takes_listed_vlans(void **state)
{
	struct fixture *f = *state;
	struct vl_vlan_row row = { .allowed = { 1ull << 10, 0, 0, 1ull << 8 } }; /* VLANs 10 and 200 */
	const uint32_t port = 20;
	struct packet p;

	put_port(f, trunk, VL_VLAN_NONE, port, VL_PORT_TRUNK | VL_PORT_VLANS, 1);
	put_affinity(f, port, 0, 0);
	only_lane(f, 0, 0);
	put(bpf_map__fd(f->skeleton->maps.port_vlans), &port, &row);
	tagged(&p, trunk, 0x8100, 10, false);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, trunk, 0x8100, 200, false);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, trunk, 0x8100, 11, false);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	udp(&p, trunk);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	row.allowed[0] |= 1;
	put(bpf_map__fd(f->skeleton->maps.port_vlans), &port, &row);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
}

static void trunk_takes_any_vlan(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	put_port(f, trunk, VL_VLAN_NONE, 20, VL_PORT_TRUNK, 1);
	put_port(f, trunk, 200, 21, 0, 1); /* but for the one that has an entry of its own */
	put_affinity(f, 20, 0, 0);
	put_affinity(f, 21, 0, 3);
	only_lane(f, 0, 0);
	udp(&p, trunk);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, trunk, 0x8100, 4094, false);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, trunk, 0x88a8, 1, true);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	tagged(&p, trunk, 0x8100, 200, false);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	only_lane(f, 0, 3);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
}

/* A learned address that the wire sends from is reported, whoever the frame is for; a configured one never. */
static void learned_address_on_the_wire(void **state)
{
	struct fixture *f = *state;
	const int claims = bpf_map__fd(f->skeleton->maps.wire_claims), settings = bpf_map__fd(f->skeleton->maps.settings);
	struct vl_port_key key = { .vlan = VL_VLAN_NONE }, found;
	struct vl_settings set;
	uint32_t zero = 0;
	uint64_t frames;
	struct packet p;

	memcpy(key.mac, peer, 6);
	put_port(f, peer, VL_VLAN_NONE, 30, VL_PORT_TRUNK | VL_PORT_LEARNED, 1);
	udp(&p, guest); /* from peer */
	run(f, &p);
	assert_int_not_equal(bpf_map_get_next_key(claims, NULL, &found), 0); /* not asked to compare */

	assert_int_equal(bpf_map_lookup_elem(settings, &zero, &set), 0);
	set.flags |= VL_SETTINGS_LEARNED;
	put(settings, &zero, &set);
	run(f, &p);
	tagged(&p, trunk, 0x8100, 9, false); /* any VLAN of a trunk */
	run(f, &p);
	assert_int_equal(bpf_map_lookup_elem(claims, &key, &frames), 0);
	assert_int_equal(frames, 2);
	assert_int_equal(bpf_map_delete_elem(claims, &key), 0);
	put_port(f, peer, VL_VLAN_NONE, 30, VL_PORT_TRUNK, 1);
	run(f, &p);
	assert_int_not_equal(bpf_map_get_next_key(claims, NULL, &found), 0);

	/* The same address on VLANs that the port does not carry is no claim: VLAN 9 with an entry for untagged frames, or not in its row. */
	put_port(f, peer, VL_VLAN_NONE, 30, VL_PORT_LEARNED, 1);
	run(f, &p);
	put_port(f, peer, VL_VLAN_NONE, 30, VL_PORT_TRUNK | VL_PORT_VLANS | VL_PORT_LEARNED, 1);
	run(f, &p);
	assert_int_not_equal(bpf_map_get_next_key(claims, NULL, &found), 0);
}

static void port_down(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	put_port(f, down, VL_VLAN_NONE, 22, 0, 0);
	udp(&p, down);
	expect(f, &p, XDP_DROP, VL_XDP_PORT_DOWN);
}

static void not_ready(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	f->settings.flags = 0;
	put_settings(f);
	udp(&p, guest);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	f->settings.flags = VL_SETTINGS_HOST_LINK;
	put_settings(f);
	expect(f, &p, XDP_DROP, VL_XDP_NO_LANE);
}

static void host_link(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	f->settings.flags = VL_SETTINGS_READY | VL_SETTINGS_HOST_LINK;
	put_settings(f);
	udp(&p, guest);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	udp(&p, stranger);
	expect(f, &p, XDP_DROP, VL_XDP_HOST_LINK_UNKNOWN);
	udp(&p, broadcast);
	expect(f, &p, XDP_DROP, VL_XDP_NO_LANE);
	only_lane(f, 0, 3);
	expect(f, &p, XDP_REDIRECT, VL_XDP_FLOOD_TO_LANE);
	udp(&p, multicast);
	expect(f, &p, XDP_REDIRECT, VL_XDP_FLOOD_TO_LANE);
	udp(&p, guest);
	expect(f, &p, XDP_DROP, VL_XDP_NO_LANE);
}

/* Nobody named, or a worker that does not exist (an operator's edit): the flood worker. Never a lane of the next queue. */
static void affinity_without_a_worker(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	udp(&p, guest);
	put_affinity(f, PORT, 0, WORKERS + 1);
	only_lane(f, 1, 1);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	only_lane(f, 0, 3);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
	put_port(f, stranger, VL_VLAN_NONE, 40, 0, 1);
	udp(&p, stranger);
	expect(f, &p, XDP_REDIRECT, VL_XDP_TO_LANE);
}

static void each_device_queue_has_its_lanes(void **state)
{
	struct fixture *f = *state;
	unsigned ifindex = if_nametoindex(DEVICE);
	struct packet p;

	udp(&p, guest);
	assert_int_not_equal(ifindex, 0);
	assert_int_equal(bpf_xdp_attach((int)ifindex, f->program, XDP_FLAGS_DRV_MODE, NULL),
			 0); /* registers its receive queues */
	for (uint32_t queue = 0; queue < QUEUES; queue++) {
		for (uint32_t filled = 0; filled < QUEUES; filled++) {
			only_lane(f, filled, 2);
			assert_int_equal(run_on(f, &p, ifindex, queue), filled == queue ? XDP_REDIRECT : XDP_PASS);
		}
	}
	f->settings.device_queues = 2; /* a queue that is not bound */
	put_settings(f);
	fill_lane(f, 3, 2);
	assert_int_equal(run_on(f, &p, ifindex, 3), XDP_PASS);
	assert_int_equal(bpf_xdp_detach((int)ifindex, XDP_FLAGS_DRV_MODE, NULL), 0);
}

/* --- flows ---------------------------------------------------------------------------------------------------------- */

/* Only the bucket of @hash leads to pair 1 and worker 1; the one lane filled is worker 1's. So XDP_REDIRECT says that the
 * program computed a hash of that bucket. */
static void expect_hash(struct fixture *f, const struct packet *p, uint32_t hash)
{
	int steering = bpf_map__fd(f->skeleton->maps.flow_steering);

	put_port(f, guest, VL_VLAN_NONE, PORT, VL_PORT_TRUNK, 2);
	put_affinity(f, PORT, 0, 0);
	put_affinity(f, PORT, 1, 1);
	only_lane(f, 0, 1);
	put_steering(steering, PORT, hash, 1);
	assert_int_equal(run(f, p), XDP_REDIRECT);
	put_steering(steering, PORT, hash, 0);
	assert_int_equal(run(f, p), XDP_PASS);
}

/* By hand, not by the parser under test; and the parser in user space agrees. */
static void expect_flow(struct fixture *f, const struct packet *p, const struct vl_flow *flow)
{
	assert_int_equal(vl_flow_hash_frame(p->data, p->data + p->length), vl_flow_hash(flow));
	expect_hash(f, p, vl_flow_hash(flow));
}

static struct vl_flow flow4(uint32_t protocol, uint16_t from, uint16_t to)
{
	return (struct vl_flow){ .source = { htonl(0x0a000001) },
				 .destination = { htonl(0x0a000002) },
				 .source_port = htons(from),
				 .destination_port = htons(to),
				 .protocol = protocol };
}

static struct vl_flow flow6(uint32_t protocol, uint16_t from, uint16_t to)
{
	struct vl_flow flow = { .source_port = htons(from), .destination_port = htons(to), .protocol = protocol };

	memcpy(flow.source, ip6_a, 16);
	memcpy(flow.destination, ip6_b, 16);
	return flow;
}

static struct vl_flow flow_mac(const struct packet *p, uint16_t ethertype)
{
	struct vl_flow flow = { .protocol = (uint32_t)htons(ethertype) << 8 };

	memcpy(flow.destination, p->data, 6);
	memcpy(flow.source, p->data + 6, 6);
	return flow;
}

static void ipv4_flows(void **state)
{
	static const uint8_t protocols[] = { 6, 17, 132 };
	struct fixture *f = *state;
	struct vl_flow flow;
	struct packet p;

	for (unsigned i = 0; i < 3; i++) {
		for (uint32_t options = 0; options <= 40; options += 4) {
			packet_start(&p, guest, peer);
			packet_ipv4(&p, 0x0a000001, 0x0a000002, protocols[i], options, 0x4000 /* don't fragment */);
			packet_ports(&p, 1234, 80);
			flow = flow4(protocols[i], 1234, 80);
			expect_flow(f, &p, &flow);
		}
	}
	packet_start(&p, guest, peer);
	packet_ipv4(&p, 0x0a000001, 0x0a000002, 1, 0, 0); /* ICMP has no ports */
	packet_ports(&p, 1234, 80);
	flow = flow4(1, 0, 0);
	expect_flow(f, &p, &flow);
	tagged(&p, guest, 0x88a8, 300, true); /* two tags before the header */
	flow = flow4(17, 1000, 2000);
	expect_flow(f, &p, &flow);
}

/* All fragments of a datagram go one way, the first too. */
static void ipv4_fragments(void **state)
{
	static const uint16_t fragments[] = { 0x2000, 0x2001, 0x0001, 0x1fff };
	struct fixture *f = *state;
	struct vl_flow flow = flow4(17, 0, 0);
	struct packet p;

	for (unsigned i = 0; i < 4; i++) {
		packet_start(&p, guest, peer);
		packet_ipv4(&p, 0x0a000001, 0x0a000002, 17, 0, fragments[i]);
		packet_ports(&p, 1234, 80);
		expect_flow(f, &p, &flow);
	}
}

static void ipv4_malformed(void **state)
{
	struct fixture *f = *state;
	struct vl_flow flow;
	struct packet p;

	udp(&p, guest);
	p.data[14] = 0x44; /* header length 16 */
	flow = flow_mac(&p, 0x0800);
	expect_flow(f, &p, &flow);
	p.data[14] = 0x65; /* version 6 */
	expect_flow(f, &p, &flow);
}

static void ipv6_flows(void **state)
{
	struct fixture *f = *state;
	struct vl_flow flow = flow6(6, 1234, 80);
	struct packet p;

	packet_start(&p, guest, peer);
	packet_ipv6(&p, ip6_a, ip6_b, 6);
	packet_ports(&p, 1234, 80);
	expect_flow(f, &p, &flow);

	packet_start(&p, guest, peer); /* hop-by-hop, routing, destination options, authentication, then TCP */
	packet_ipv6(&p, ip6_a, ip6_b, 0);
	packet_extension(&p, 43, 8, 8, 8);
	packet_extension(&p, 60, 16, 8, 8);
	packet_extension(&p, 51, 8, 8, 8);
	packet_extension(&p, 6, 16, 4, 8);
	packet_ports(&p, 1234, 80);
	expect_flow(f, &p, &flow);

	packet_start(&p, guest, peer); /* more headers than are walked: no ports, no endless walk */
	packet_ipv6(&p, ip6_a, ip6_b, 60);
	for (int i = 0; i < VL_FLOW_EXTENSIONS; i++)
		packet_extension(&p, 60, 8, 8, 8);
	packet_extension(&p, 6, 8, 8, 8);
	packet_ports(&p, 1234, 80);
	flow = flow6(60, 0, 0);
	expect_flow(f, &p, &flow);

	packet_start(&p, guest, peer); /* an extension header that reaches beyond the depth that both sides look at */
	packet_ipv6(&p, ip6_a, ip6_b, 0);
	packet_extension(&p, 6, 80, 8, 8);
	packet_ports(&p, 1234, 80);
	flow = flow6(6, 0, 0);
	expect_flow(f, &p, &flow);

	packet_start(&p, guest, peer); /* a fragment */
	packet_ipv6(&p, ip6_a, ip6_b, 0);
	packet_extension(&p, 44, 8, 8, 8);
	packet_extension(&p, 17, 8, 8, 8);
	packet_ports(&p, 1234, 80);
	flow = flow6(17, 0, 0);
	expect_flow(f, &p, &flow);
}

static void other_protocols(void **state)
{
	struct fixture *f = *state;
	struct vl_flow flow;
	struct packet p;

	packet_start(&p, guest, peer);
	packet_u16(&p, 0x0806);
	packet_fill(&p, 3, 28);
	flow = flow_mac(&p, 0x0806);
	expect_flow(f, &p, &flow);
}

/* Every cut of several frames: judged without reading beyond the end, alike on both sides. */
static void truncated(void **state)
{
	struct fixture *f = *state;
	struct packet frames[4], cut;

	tagged(&frames[0], guest, 0x88a8, 5, true);
	packet_start(&frames[1], guest, peer);
	packet_ipv4(&frames[1], 1, 2, 6, 40, 0);
	packet_ports(&frames[1], 5, 6);
	packet_start(&frames[2], guest, peer);
	packet_ipv6(&frames[2], ip6_a, ip6_b, 0);
	packet_extension(&frames[2], 6, 8, 8, 8);
	packet_ports(&frames[2], 5, 6);
	udp(&frames[3], guest);
	for (unsigned i = 0; i < 4; i++) {
		for (uint32_t length = 14; length <= 64; length++) {
			cut = frames[i];
			cut.length = length < cut.length ? length : cut.length;
			expect_hash(f, &cut, vl_flow_hash_frame(cut.data, cut.data + cut.length));
		}
	}
}

/* Reproducible nonsense behind a known address: both sides agree, and the program never faults. */
static void random_frames(void **state)
{
	static const uint16_t ethertypes[] = { 0x0800, 0x86dd, 0x8100, 0x88a8 };
	struct fixture *f = *state;
	uint32_t seed = 12345;
	struct packet p;

	for (int i = 0; i < 400; i++) {
		packet_start(&p, guest, peer);
		packet_u16(&p, ethertypes[i % 4]);
		while (p.length < 14 + (uint32_t)i % 200) {
			seed = seed * 1664525 + 1013904223;
			packet_u8(&p, (uint8_t)(seed >> 24));
		}
		if (p.length > 14)
			p.data[14] = i % 4 == 1 ? 0x60 : i % 4 == 0 ? 0x40 | (p.data[14] & 0xf) : p.data[14];
		if (p.length > 20 && i % 4 == 1)
			p.data[20] = (uint8_t[]){ 0, 43, 44, 51, 60, 6 }[p.data[20] % 6];
		expect_hash(f, &p, vl_flow_hash_frame(p.data, p.data + p.length));
	}
}

static void hash_is_blind_to_direction_only(void **state)
{
	struct vl_flow there = flow4(6, 1234, 80), back = there, other = there;

	(void)state;
	back.source[0] = there.destination[0];
	back.destination[0] = there.source[0];
	back.source_port = there.destination_port;
	back.destination_port = there.source_port;
	assert_int_equal(vl_flow_hash(&there), vl_flow_hash(&back));
	other.source_port = there.destination_port; /* ports alone exchanged: another flow */
	other.destination_port = there.source_port;
	assert_int_not_equal(vl_flow_hash(&there), vl_flow_hash(&other));
}

/* 4,096 connections over 256 buckets: 16 each on average. None may be empty or hold four times its share. */
static void hash_spreads(void **state)
{
	unsigned buckets[VL_FLOW_BUCKETS] = { 0 };

	(void)state;
	for (unsigned i = 0; i < 4096; i++) {
		struct vl_flow flow = flow4(6, (uint16_t)(1024 + i % 512), 80);

		flow.source[0] = htonl(0x0a000100 + i / 512);
		buckets[vl_flow_index(0, vl_flow_hash(&flow))]++;
	}
	for (unsigned i = 0; i < VL_FLOW_BUCKETS; i++)
		assert_in_range(buckets[i], 1, 64);
}

/* Queue pairs: as steered, and modulo where the guest has switched some off. One pair: steering is not asked. */
static void queue_spread(void **state)
{
	struct fixture *f = *state;
	int steering = bpf_map__fd(f->skeleton->maps.flow_steering);
	struct vl_flow flow = flow4(17, 1000, 2000);
	struct packet p;

	udp(&p, guest);
	for (uint32_t pair = 0; pair < 3; pair++)
		put_affinity(f, PORT, pair, pair);
	for (uint32_t steered = 0; steered < 9; steered++) {
		for (uint32_t pairs = 1; pairs <= 3; pairs++) {
			put_steering(steering, PORT, vl_flow_hash(&flow), steered);
			put_port(f, guest, VL_VLAN_NONE, PORT, 0, pairs);
			only_lane(f, 0, steered % pairs);
			assert_int_equal(run(f, &p), XDP_REDIRECT);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(known_unicast),
		TEST(for_the_stack),
		TEST(vlans),
		TEST(priority_tag_is_untagged),
		TEST(trunk_takes_any_vlan),
		TEST(trunk_takes_listed_vlans),
		TEST(learned_address_on_the_wire),
		TEST(port_down),
		TEST(not_ready),
		TEST(host_link),
		TEST(affinity_without_a_worker),
		TEST(each_device_queue_has_its_lanes),
		TEST(ipv4_flows),
		TEST(ipv4_fragments),
		TEST(ipv4_malformed),
		TEST(ipv6_flows),
		TEST(other_protocols),
		TEST(truncated),
		TEST(random_frames),
		TEST(hash_is_blind_to_direction_only),
		TEST(hash_spreads),
		TEST(queue_spread),
#undef TEST
	};

	if (geteuid() != 0) {
		fprintf(stderr, "test_steer: needs root to load BPF programs\n");
		return 1;
	}
	/* A network of its own: nothing to clean up. */
	if (unshare(CLONE_NEWNET) ||
	    system("ip link add " DEVICE
		   " numrxqueues 4 numtxqueues 4 up type veth peer name vhlsteer1 numrxqueues 4 numtxqueues 4 &&"
		   " ip link set vhlsteer1 up")) {
		fprintf(stderr, "test_steer: cannot make a network namespace with a veth pair\n");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
