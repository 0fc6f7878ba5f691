/* SPDX-License-Identifier: BSD-2-Clause */
/* The switch with a recording output: who gets which frame, in which order and form, and what is counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/flow.h"
#include "datapath/switch.h"

#define PORTS 4
#define LOG_MAX 512

enum where { GUEST, UPLINK, HOST, LEARN };

struct record {
	enum where where;
	int port, pair;
	uint32_t length;
	uint16_t vlan;
	uint8_t mark; /* last byte of the frame's head */
};

struct bench {
	struct plan plan;
	struct port ports[PORTS];
	struct queue_pair pairs[PORTS][2] CACHE_ALIGNED;
	struct queue_pair *slots[PORTS][2];
	uint32_t steering[PORTS][VL_FLOW_BUCKETS];
	uint16_t flood[PORTS];
	struct switch_output output;
	uint64_t worker_counters[WORKER_COUNTER_COUNT];
	struct frame_burst burst;
	unsigned uplink_takes; /* frames that the uplink accepts at most per call */
	unsigned count;
	struct record log[LOG_MAX];
};

static void record(struct bench *b, enum where where, int port, int pair, const struct frame *f)
{
	assert_true(b->count < LOG_MAX);
	b->log[b->count++] = (struct record){
		.where = where,
		.port = port,
		.pair = pair,
		.length = f->length,
		.vlan = frame_vlan(f->head, f->head_length),
		.mark = f->head[f->head_length - 1],
	};
}

static unsigned to_guest(void *context, const struct port_view *view, struct queue_pair *pair, struct frame *const *frames, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		record(context, GUEST, view->port->id, pair->index, frames[i]);
	return count;
}

static unsigned to_uplink(void *context, unsigned domain, struct frame *const *frames, unsigned count, struct too_long *too_long)
{
	struct bench *b = context;

	for (unsigned i = 0; i < count && i < b->uplink_takes; i++)
		record(b, UPLINK, (int)domain, 0, frames[i]);
	return count < b->uplink_takes ? count : b->uplink_takes;
}

static unsigned to_host(void *context, unsigned domain, struct frame *const *frames, unsigned count, struct too_long *too_long)
{
	for (unsigned i = 0; i < count; i++)
		record(context, HOST, (int)domain, 0, frames[i]);
	return count;
}

static void learn(void *context, struct port *port, const uint8_t *mac, uint16_t vlan)
{
	struct bench *b = context;

	b->log[b->count++] = (struct record){.where = LEARN, .port = port->id, .vlan = vlan, .mark = mac[5]};
}

static void allow(struct port *port, unsigned vlan)
{
	port->vlans.allowed[vlan / 64] |= 1ull << (vlan % 64);
}

/* Ports 0 and 1: one pair; 2: two pairs; 3: access VLAN 30. Addresses 02:00:00:00:00:PORT; the host's is ...:ff. */
static struct bench *setup_bench(bool uplink)
{
	struct bench *b = zalloc_aligned(sizeof(*b));
	struct forwarding_entry entries[PORTS + 1];

	b->output = (struct switch_output){b, to_guest, to_uplink, to_host, learn};
	b->uplink_takes = FRAME_BURST;
	b->plan.generation = 1;
	b->plan.port_count = PORTS;
	b->plan.domain_count = 1;
	for (unsigned p = 0; p < PORTS; p++) {
		struct port *port = &b->ports[p];

		port->id = (uint16_t)p;
		port->queue_pairs = p == 2 ? 2 : 1;
		port->pvid = port->key_vlan = p == 3 ? 30 : 0;
		port->any_vlan = port->takes_tags = p != 3;
		if (p == 3)
			allow(port, 30);
		port->counters = zalloc_aligned(sizeof(struct port_counters));
		port->flow_steering = b->steering[p];
		entries[p] = (struct forwarding_entry){.mac = {2, 0, 0, 0, 0, (uint8_t)p}, .vlan = port->key_vlan, .trunk = !port->key_vlan, .port = (int)p};
		for (unsigned i = 0; i < port->queue_pairs; i++) {
			b->pairs[p][i].port = port;
			b->pairs[p][i].index = (uint16_t)i;
			b->slots[p][i] = &b->pairs[p][i];
		}
		b->plan.ports[p] = (struct port_view){.port = port, .receiving = port->queue_pairs, .slots = b->slots[p]};
		b->flood[p] = (uint16_t)p;
	}
	entries[PORTS] = (struct forwarding_entry){.mac = {2, 0, 0, 0, 0, 0xff}, .trunk = true, .port = FORWARDING_HOST};
	b->plan.domains[0].forwarding = forwarding_create(entries, PORTS + 1);
	b->plan.domains[0].has_uplink = uplink;
	b->plan.domains[0].flood_count = PORTS;
	b->plan.domains[0].flood_ports = b->flood;
	return b;
}

static void free_bench(struct bench *b)
{
	for (unsigned p = 0; p < PORTS; p++)
		free(b->ports[p].counters);
	forwarding_free(b->plan.domains[0].forwarding);
	free(b);
}

#define ALL 0x1ff /* broadcast, as a destination */

/* IPv4 UDP, 60 bytes (64 tagged); the mark is its last byte. */
static struct frame *add(struct bench *b, unsigned to, unsigned from, unsigned vlan, uint8_t mark)
{
	struct frame *f = &b->burst.frames[b->burst.count];
	uint8_t *head = b->burst.heads[b->burst.count] + FRAME_HEADROOM, *p = head + 12;

	b->burst.count++;
	memset(head, 0, FRAME_HEAD_MAX);
	memset(head, to == ALL ? 0xff : 0, 6);
	if (to != ALL) {
		head[0] = 2;
		head[5] = (uint8_t)to;
	}
	head[6] = 2;
	head[11] = (uint8_t)from;
	if (vlan) {
		const uint8_t tag[4] = {0x81, 0, (uint8_t)(vlan >> 8), (uint8_t)vlan};

		memcpy(p, tag, 4);
		p += 4;
	}
	p[0] = 8;
	p[2] = 0x45;
	p[11] = 17;
	p[17] = (uint8_t)from; /* 0.0.0.FROM */
	*f = (struct frame){.head = head, .head_length = (uint16_t)(p + 48 - head), .length = (uint32_t)(p + 48 - head)};
	head[f->head_length - 1] = mark;
	return f;
}

static void from_guest(struct bench *b, unsigned port, unsigned pair)
{
	b->count = 0;
	switch_from_guest(&b->plan, &b->pairs[port][pair], 0, &b->burst, &b->output);
	b->burst.count = 0;
}

static void from_device(struct bench *b)
{
	b->count = 0;
	switch_from_device(&b->plan, 0, 0, &b->burst, &b->output, b->worker_counters);
	b->burst.count = 0;
}

static void expect(const struct bench *b, unsigned i, enum where where, int port, uint8_t mark)
{
	assert_true(i < b->count);
	assert_int_equal(b->log[i].where, where);
	assert_int_equal(b->log[i].port, port);
	assert_int_equal(b->log[i].mark, mark);
}

static uint64_t counted(const struct bench *b, unsigned port, enum port_counter which)
{
	return b->ports[port].counters->value[which];
}

static void unicast_keeps_order(void **state)
{
	struct bench *b = setup_bench(true);

	add(b, 1, 0, 0, 1);
	add(b, 9, 0, 0, 2); /* nobody here: the wire */
	add(b, 1, 0, 0, 3);
	add(b, 0xff, 0, 0, 4);
	add(b, 9, 0, 0, 5);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 5);
	expect(b, 0, GUEST, 1, 1);
	expect(b, 1, GUEST, 1, 3);
	expect(b, 2, UPLINK, 0, 2);
	expect(b, 3, UPLINK, 0, 5);
	expect(b, 4, HOST, 0, 4);
	assert_int_equal(counted(b, 0, PORT_FROM_GUEST_FRAMES), 5);
	assert_int_equal(counted(b, 0, PORT_FROM_GUEST_BYTES), 300);
	assert_int_equal(counted(b, 0, PORT_TO_UPLINK_FRAMES), 2);
	assert_int_equal(counted(b, 0, PORT_TO_HOST_FRAMES), 1);
	free_bench(b);
}

static void broadcast_reaches_all_but_the_sender(void **state)
{
	struct bench *b = setup_bench(true);

	add(b, ALL, 0, 0, 1);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 4); /* ports 1 and 2, wire, host; not port 3: another VLAN */
	expect(b, 0, GUEST, 1, 1);
	expect(b, 1, GUEST, 2, 1);
	expect(b, 2, UPLINK, 0, 1);
	expect(b, 3, HOST, 0, 1);
	add(b, ALL, 0x77, 0, 2);
	from_device(b);
	assert_int_equal(b->count, 3); /* ports 0 to 2; wire and host have it already */
	expect(b, 2, GUEST, 2, 2);
	free_bench(b);
}

static void access_vlan_is_put_on_and_taken_off(void **state)
{
	struct bench *b = setup_bench(true);

	add(b, 9, 3, 0, 1);
	from_guest(b, 3, 0);
	expect(b, 0, UPLINK, 0, 1);
	assert_int_equal(b->log[0].vlan, 30);
	assert_int_equal(b->log[0].length, 64);
	add(b, 9, 3, 31, 2); /* an access port's guest sends no tags */
	from_guest(b, 3, 0);
	assert_int_equal(b->count, 0);
	assert_int_equal(counted(b, 3, PORT_DROP_VLAN), 1);
	add(b, 3, 9, 30, 3);
	add(b, 3, 9, 31, 4);
	add(b, 3, 9, 0, 5);
	from_device(b);
	assert_int_equal(b->count, 1);
	expect(b, 0, GUEST, 3, 3);
	assert_int_equal(b->log[0].vlan, 0);
	assert_int_equal(b->log[0].length, 60);
	assert_int_equal(b->worker_counters[WORKER_DROP_LANE_UNKNOWN], 2);
	/* A tagged broadcast: with tag to trunks, without to the access port, and again with to the next trunk's view. */
	add(b, ALL, 9, 30, 6);
	from_device(b);
	assert_int_equal(b->count, 4);
	assert_int_equal(b->log[0].vlan, 30);
	assert_int_equal(b->log[3].port, 3);
	assert_int_equal(b->log[3].vlan, 0);
	free_bench(b);
}

static void trunk_carries_what_is_listed(void **state)
{
	struct bench *b = setup_bench(true);

	/* Port 0: VLANs 10 and 20, native 20. Port 1: VLAN 20 only, tagged; untagged frames are refused. */
	b->ports[0].any_vlan = b->ports[1].any_vlan = false;
	b->ports[0].pvid = 20;
	allow(&b->ports[0], 10);
	allow(&b->ports[0], 20);
	allow(&b->ports[1], 20);
	add(b, 1, 0, 0, 1); /* untagged is VLAN 20: reaches port 1 with the tag */
	add(b, 1, 0, 20, 2);
	add(b, 1, 0, 10, 3); /* port 1 is not in 10: the wire */
	add(b, 1, 0, 11, 4); /* not allowed at all */
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 3);
	expect(b, 0, GUEST, 1, 1);
	assert_int_equal(b->log[0].vlan, 20);
	expect(b, 1, GUEST, 1, 2);
	expect(b, 2, UPLINK, 0, 3);
	assert_int_equal(b->log[2].vlan, 10);
	assert_int_equal(counted(b, 0, PORT_DROP_VLAN), 1);
	add(b, 0, 1, 20, 5); /* back: the native tag comes off */
	add(b, 0, 1, 0, 6);
	from_guest(b, 1, 0);
	assert_int_equal(b->count, 1);
	expect(b, 0, GUEST, 0, 5);
	assert_int_equal(b->log[0].vlan, 0);
	assert_int_equal(counted(b, 1, PORT_DROP_VLAN), 1);
	add(b, 0, 9, 10, 7);
	add(b, 0, 9, 0, 8); /* untagged on the wire is no VLAN of port 0 */
	add(b, ALL, 9, 20, 9);
	from_device(b);
	assert_int_equal(b->count, 4); /* 7 to port 0; 9 to ports 0, 1 and 2 */
	expect(b, 0, GUEST, 0, 7);
	assert_int_equal(b->log[0].vlan, 10);
	assert_int_equal(b->log[1].vlan, 0);
	assert_int_equal(b->log[2].vlan, 20);
	assert_int_equal(b->log[3].vlan, 20);
	assert_int_equal(b->worker_counters[WORKER_DROP_LANE_UNKNOWN], 1);
	free_bench(b);
}

static void priority_tag_becomes_the_ports(void **state)
{
	struct bench *b = setup_bench(true);
	struct frame *f = add(b, 9, 3, 1, 1);

	f->head[14] = 0xa0; /* priority 5, VLAN 0 */
	f->head[15] = 0;
	from_guest(b, 3, 0);
	assert_int_equal(b->count, 1);
	assert_int_equal(b->log[0].vlan, 30);
	assert_int_equal(b->log[0].length, 64);
	assert_int_equal(f->head[14] & 0xf0, 0xa0);
	free_bench(b);
}

/* To the access port without its tag, to the others with it as it was: priority, eligibility, kind of tag. */
static void tag_comes_back_as_it_was(void **state)
{
	static const uint8_t tags[][4] = {{0x81, 0, 0xb0, 30}, {0x88, 0xa8, 0x40, 30}};

	for (unsigned i = 0; i < ARRAY_SIZE(tags); i++) {
		struct bench *b = setup_bench(true);
		struct frame *f = add(b, ALL, 0, 30, 1);
		uint8_t before[64];

		memcpy(f->head + 12, tags[i], 4);
		memcpy(before, f->head, sizeof(before));
		from_guest(b, 0, 0);
		assert_int_equal(b->count, 5);
		expect(b, 2, GUEST, 3, 1);
		assert_int_equal(b->log[2].vlan, 0);
		expect(b, 3, UPLINK, 0, 1);
		expect(b, 4, HOST, 0, 1);
		assert_int_equal(f->length, 64);
		assert_memory_equal(f->head, before, sizeof(before));
		free_bench(b);
	}
}

/* 01:80:c2:00:00:00 to :0f are for the neighbour on the cable, whichever side it is on. */
static void link_local_goes_nowhere(void **state)
{
	static const uint8_t group[6] = {0x01, 0x80, 0xc2};
	struct bench *b = setup_bench(true);

	for (unsigned last = 0; last <= 0x10; last++) {
		for (unsigned device = 0; device < 2; device++) {
			struct frame *f = add(b, ALL, device ? 0x77 : 0, 0, 1);

			memcpy(f->head, group, 6);
			f->head[5] = (uint8_t)last;
			if (device)
				from_device(b);
			else
				from_guest(b, 0, 0);
			assert_int_equal(b->count, last < 0x10 ? 0 : device ? 3 : 4);
		}
	}
	assert_int_equal(counted(b, 0, PORT_DROP_FROM_GUEST_LINK_LOCAL), 16);
	assert_int_equal(b->worker_counters[WORKER_DROP_LANE_LINK_LOCAL], 16);
	free_bench(b);
}

static void answers_return_on_the_pair_that_sent(void **state)
{
	struct bench *b = setup_bench(true);
	struct frame *f = add(b, 1, 2, 0, 1);

	/* The same flow, seen from port 2 and from its peer: addresses 0.0.0.2 -> 0.0.0.0 and back. */
	from_guest(b, 2, 1);
	expect(b, 0, GUEST, 1, 1);
	f = add(b, 2, 1, 0, 2);
	f->head[26 + 3] = 0;
	f->head[30 + 3] = 2;
	from_guest(b, 1, 0);
	expect(b, 0, GUEST, 2, 2);
	assert_int_equal(b->log[0].pair, 1);
	f = add(b, 2, 1, 0, 3);
	f->head[26 + 3] = 77; /* another flow: nothing is known of it */
	f->head[30 + 3] = 2;
	from_guest(b, 1, 0);
	assert_int_equal(b->log[0].pair, (int)b->steering[2][flow_hash_frame(f->head, f->head_length) & (VL_FLOW_BUCKETS - 1)]);
	free_bench(b);
}

static void sources_are_judged(void **state)
{
	struct bench *b = setup_bench(true);

	atomic_store(&b->ports[0].learns, true);
	add(b, 9, 0x50, 0, 1)->head[6] = 3; /* multicast source */
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 0);
	assert_int_equal(counted(b, 0, PORT_DROP_FROM_GUEST_SOURCE), 1);
	add(b, 9, 0x50, 0, 2);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 2);
	expect(b, 0, LEARN, 0, 0x50);
	expect(b, 1, UPLINK, 0, 2);
	add(b, 9, 1, 0, 3); /* port 1's address: counted, not learned */
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 1);
	assert_int_equal(counted(b, 0, PORT_LEARN_REFUSED), 1);
	add(b, 9, 0xff, 0, 3); /* the host's */
	from_guest(b, 0, 0);
	assert_int_equal(counted(b, 0, PORT_LEARN_REFUSED), 2);
	free_bench(b);
}

static void drops_are_counted(void **state)
{
	struct bench *b = setup_bench(true);

	add(b, 0, 0, 0, 1); /* to itself */
	add(b, 9, 0, 0, 2)->vnet.flags = VNET_NEEDS_CSUM; /* no offload was negotiated */
	add(b, 9, 0, 0, 3)->vnet.gso_type = VNET_GSO_TCP4;
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 0);
	assert_int_equal(counted(b, 0, PORT_DROP_FROM_GUEST_TO_SELF), 1);
	assert_int_equal(counted(b, 0, PORT_DROP_HEADER_NOT_NEGOTIATED), 2);
	b->plan.ports[0].features = VNET_F_CSUM;
	add(b, 9, 0, 0, 2)->vnet = (struct vnet_header){.flags = VNET_NEEDS_CSUM, .csum_start = 60, .csum_offset = 6};
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 0);
	assert_int_equal(counted(b, 0, PORT_DROP_HEADER_CSUM_START) + counted(b, 0, PORT_DROP_HEADER_CSUM_OFFSET), 1);
	b->plan.ports[1].receiving = 0;
	add(b, 1, 0, 0, 4);
	from_guest(b, 0, 0);
	assert_int_equal(counted(b, 1, PORT_DROP_TO_GUEST_DOWN), 1);
	b->uplink_takes = 1;
	for (unsigned i = 0; i < 5; i++)
		add(b, 9, 0, 0, 5);
	from_guest(b, 0, 0);
	assert_int_equal(counted(b, 0, PORT_TO_UPLINK_FRAMES), 1);
	assert_int_equal(counted(b, 0, PORT_DROP_FROM_GUEST_UPLINK_FULL), 4);
	add(b, 1, 9, 0, 1)->length = 13;
	from_device(b);
	assert_int_equal(b->worker_counters[WORKER_DROP_LANE_SHORT], 1);
	free_bench(b);
}

static void without_uplink_unknown_is_flooded(void **state)
{
	struct bench *b = setup_bench(false);

	add(b, 9, 0, 0, 1);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 2);
	expect(b, 0, GUEST, 1, 1);
	expect(b, 1, GUEST, 2, 1);
	b->plan.domains[0].flood_count = 2; /* two guests back to back */
	add(b, 9, 0, 0, 1);
	add(b, ALL, 0, 0, 2);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 2);
	expect(b, 1, GUEST, 1, 2);
	b->flood[0] = 1; /* the sender itself does not receive: the two others both get it */
	b->flood[1] = 2;
	add(b, 9, 0, 0, 1);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 2);
	b->plan.domains[0].flood_count = 0;
	add(b, 9, 0, 0, 1);
	from_guest(b, 0, 0);
	assert_int_equal(b->count, 0);
	assert_int_equal(counted(b, 0, PORT_DROP_FROM_GUEST_NO_UPLINK), 1);
	free_bench(b);
}

static void more_destinations_than_groups(void **state)
{
	struct bench *b = setup_bench(true);
	unsigned to_wire = 0;

	/* Five kinds of destination in turn: each keeps its own order over the whole burst. */
	for (unsigned i = 0; i < FRAME_BURST; i++) {
		static const unsigned to[] = {1, 9, 0xff, ALL, 2};

		add(b, to[i % 5], 0, 0, (uint8_t)i);
	}
	from_guest(b, 0, 0);
	for (unsigned i = 0, last = 0; i < b->count; i++)
		if (b->log[i].where == UPLINK && b->log[i].mark % 5 == 1) {
			assert_true(to_wire == 0 || b->log[i].mark > last);
			last = b->log[i].mark;
			to_wire++;
		}
	assert_int_equal(to_wire, 13);
	free_bench(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unicast_keeps_order),
		cmocka_unit_test(broadcast_reaches_all_but_the_sender),
		cmocka_unit_test(access_vlan_is_put_on_and_taken_off),
		cmocka_unit_test(trunk_carries_what_is_listed),
		cmocka_unit_test(priority_tag_becomes_the_ports),
		cmocka_unit_test(tag_comes_back_as_it_was),
		cmocka_unit_test(link_local_goes_nowhere),
		cmocka_unit_test(answers_return_on_the_pair_that_sent),
		cmocka_unit_test(sources_are_judged),
		cmocka_unit_test(drops_are_counted),
		cmocka_unit_test(without_uplink_unknown_is_flooded),
		cmocka_unit_test(more_destinations_than_groups),
	};

	return cmocka_run_group_tests_name("switch", tests, NULL, NULL);
}
