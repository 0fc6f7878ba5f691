// SPDX-License-Identifier: BSD-2-Clause
/* To which queue pair xdp_steer sends a flow: it and user space find the same hash in the same frame, whatever lies in it. */
#include "steer_rig.h"

static const uint8_t ip6_a[16] = { 0xfd, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 },
		     ip6_b[16] = { 0xfd, 0, 0, 0, 99, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13 };

/* The queue pair of one bucket of the port's row. */
static void put_steering(int map, uint32_t port, uint32_t hash, uint32_t pair)
{
	struct vl_flow_row row = { 0 };

	row.queue_pair[vl_flow_bucket(hash)] = pair;
	assert_int_equal(bpf_map_update_elem(map, &port, &row, BPF_ANY), 0);
}

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
		fprintf(stderr, "test_steer_flows: needs root to load BPF programs\n");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
