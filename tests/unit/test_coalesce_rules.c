/* SPDX-License-Identifier: BSD-2-Clause */
/* What does not merge: each rule by the pair of frames that breaks it alone, and what ends a run. */
#include "coalesce_rig.h"

/* Two segments of which the second is changed by what a rule names, and a third that continues the second. */
static void check_pair(const char *what, const struct packet *a, const struct packet *b, uint32_t expected)
{
	uint32_t out;

	arrive(a);
	arrive(b);
	out = coalesce_and_check(ALL);
	if (out != expected)
		fail_msg("%s: %u frames came out", what, out);
	forget();
}

#define RULE(base, change)                                                                                             \
	do {                                                                                                           \
		struct packet a = base, b;                                                                             \
		a.payload = 1000;                                                                                      \
		b = a;                                                                                                 \
		b.seq += 1000;                                                                                         \
		b.stream += 1000;                                                                                      \
		b.id++;                                                                                                \
		check_pair("unchanged", &a, &b, 1);                                                                    \
		change;                                                                                                \
		check_pair(#change, &a, &b, 2);                                                                        \
	} while (0)

static struct packet tcp6(void)
{
	struct packet p = packet_tcp4;

	p.family = 6;
	p.ip_options = 16;
	return p;
}

static struct packet tagged(void)
{
	struct packet p = packet_tcp4;

	p.tags = 1;
	return p;
}

static void rules_of_headers(void **state)
{
	const struct packet v6 = tcp6(), tag = tagged();

	RULE(packet_tcp4, b.mac++);
	RULE(packet_tcp4, b.host++);
	RULE(packet_tcp4, b.source_port++);
	RULE(packet_tcp4, b.tos ^= 1); /* ECN */
	RULE(packet_tcp4, b.tos ^= 0x80);
	RULE(packet_tcp4, b.ttl--);
	RULE(packet_tcp4, b.fragment ^= 0x4000);
	RULE(packet_tcp4, b.fragment ^= 0x8000);
	RULE(packet_tcp4, b.id++);
	RULE(packet_tcp4, b.id -= 2);
	RULE(packet_tcp4, a.ip_options = b.ip_options = 8);
	RULE(packet_tcp4, (a.fragment = b.fragment = 0, b.id--)); /* without DF it must count */
	RULE(tag, b.vlan++);
	RULE(tag, b.vlan |= 0x2000); /* priority */
	RULE(tag, b.tags = 0);
	RULE(tag, b.tags = 2);
	RULE(v6, b.flow_label++);
	RULE(v6, b.tos ^= 2);
	RULE(v6, b.ttl++);
	RULE(v6, b.ip_options = 8);
	RULE(v6, (b.options_seed++, b.tcp_options = a.tcp_options = 0)); /* extension headers */
}

static void rules_of_tcp(void **state)
{
	RULE(packet_tcp4, b.seq++);
	RULE(packet_tcp4, b.seq--);
	RULE(packet_tcp4, b.seq -= 1000); /* sent again */
	RULE(packet_tcp4, b.ack++);
	RULE(packet_tcp4, b.window++);
	RULE(packet_tcp4, b.urgent++);
	RULE(packet_tcp4, b.options_seed++); /* a time stamp, say */
	RULE(packet_tcp4, b.tcp_options += 4);
	RULE(packet_tcp4, b.tcp_options = 0);
	RULE(packet_tcp4, b.reserved = 1);
	RULE(packet_tcp4, a.reserved = b.reserved = 1);
	RULE(packet_tcp4, a.flags |= PSH);
	RULE(packet_tcp4, b.flags |= FIN);
	RULE(packet_tcp4, b.flags |= SYN);
	RULE(packet_tcp4, b.flags |= RST);
	RULE(packet_tcp4, b.flags |= URG);
	RULE(packet_tcp4, b.flags |= ECE);
	RULE(packet_tcp4, b.flags |= CWR);
	RULE(packet_tcp4, b.flags = 0);
	RULE(packet_tcp4, a.flags = b.flags = ACK | FIN);
	RULE(packet_tcp4, a.flags = b.flags = PSH);
	RULE(packet_tcp4, b.payload = 0);
	RULE(packet_tcp4, a.payload = 0);
	RULE(packet_tcp4, b.payload = 1001);
	RULE(packet_tcp4, a.payload = 999); /* a gap of one byte */
	RULE(packet_tcp4, (a.payload = b.payload = VNET_GSO_SIZE_MIN_TCP - 1, b.seq -= 1000 - a.payload)); /* no guest may send so */
}

static void rules_of_udp(void **state)
{
	struct packet v6 = packet_udp4;

	v6.family = 6;
	RULE(packet_udp4, b.payload = 1001);
	RULE(packet_udp4, b.payload = 0);
	RULE(packet_udp4, b.source_port++);
	RULE(packet_udp4, b.id += 5);
	RULE(packet_udp4, b.ttl--);
	RULE(v6, b.tos++);
}

static void what_ends_a_run(void **state)
{
	struct packet p = packet_tcp4, part;

	/* PSH, and a shorter one: what follows begins anew. */
	for (unsigned how = 0; how < 2; how++) {
		p.payload = 6000;
		for (uint32_t i = 0; i < 6; i++) {
			part = packet_part(&p, 1000, i);
			if (i == 2 && how == 0)
				part.flags |= PSH;
			if (i == 2 && how == 1)
				part.payload = 400;
			if (i > 2 && how == 1)
				part.seq -= 600;
			arrive(&part);
		}
		assert_int_equal(coalesce_and_check(ALL), 2);
		assert_int_equal(scratch->list[0]->length, packet_places(&part).payload + (how ? 2400 : 3000));
		assert_int_equal(scratch->list[1]->length, packet_places(&part).payload + 3000);
		forget();
	}
	/* A frame of the flow that cannot be merged stands between the two parts. */
	for (uint32_t i = 0; i < 6; i++) {
		part = packet_part(&p, 1000, i);
		arrive(&part);
		if (i == 2) {
			part.payload = 0;
			part.seq += 1000;
			part.ack++;
			arrive(&part);
		}
	}
	assert_int_equal(coalesce_and_check(ALL), 3);
	assert_int_equal(scratch->list[1]->offload.gso, FRAME_GSO_NONE);
	forget();
	/* A fragment could belong to any flow. */
	for (uint32_t i = 0; i < 4; i++) {
		part = packet_part(&p, 1000, i);
		arrive(&part);
		if (i == 1) {
			part.fragment = 0x2000;
			part.source_port = 1;
			arrive(&part);
		}
	}
	assert_int_equal(coalesce_and_check(ALL), 3);
	forget();
}

static void congestion_window_reduced(void **state)
{
	struct packet p = packet_tcp4;

	p.flags |= CWR | ECE;
	p.payload = 3000;
	arrive_stream(&p, 1000);
	assert_int_equal(coalesce_and_check(ALL), 1);
	assert_true(scratch->list[0]->offload.ecn);
	/* A receiver without GUEST_ECN gets the first alone. */
	assert_int_equal(coalesce_and_check(ALL & ~COALESCE_ECN), 2);
	assert_int_equal(scratch->list[0]->offload.gso, FRAME_GSO_NONE);
	assert_false(scratch->list[1]->offload.ecn);
	forget();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(rules_of_headers, forget_all),
		cmocka_unit_test_teardown(rules_of_tcp, forget_all),
		cmocka_unit_test_teardown(rules_of_udp, forget_all),
		cmocka_unit_test_teardown(what_ends_a_run, forget_all),
		cmocka_unit_test_teardown(congestion_window_reduced, forget_all),
	};

	return cmocka_run_group_tests_name("coalesce: rules", tests, allocate, release);
}
