// SPDX-License-Identifier: BSD-2-Clause
/* Where xdp_steer sends a frame by its addresses and tags, what the maps say, and the queue that it came on. */
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>

#include "steer_rig.h"

#define DEVICE	"vhlsteer0"

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

/* Where XDP cannot see frames as they were, tc steers: known or not, all pass. */
static void by_tc(void **state)
{
	struct fixture *f = *state;
	struct packet p;

	f->settings.flags |= VL_SETTINGS_BY_TC;
	put_settings(f);
	udp(&p, guest);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
	udp(&p, broadcast);
	expect(f, &p, XDP_PASS, VL_XDP_TO_STACK);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(known_unicast),
		TEST(for_the_stack),
		TEST(by_tc),
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
