/* SPDX-License-Identifier: BSD-2-Clause */
/* Headers found where they were put, at every length of head; hostile headers; one mind with the flow hash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/bytes.h"
#include "datapath/layout.h"
#include "offload_packet.h"
#include "vhostlane/flow_hash.h"

static uint8_t frame[PACKET_MAX];

/* From memory of just that size, so that a sanitizer sees a step outside. */
static struct layout parse(const uint8_t *data, uint32_t length)
{
	uint8_t *head = malloc(length + !length);
	struct layout layout;

	memcpy(head, data, length);
	memset(&layout, 0x5a, sizeof(layout));
	layout_parse(head, length, &layout);
	free(head);
	return layout;
}

/* What must hold whatever the bytes are. */
static void check_lawful(const uint8_t *data, uint32_t length, const struct layout *l)
{
	struct vl_flow flow;

	assert_in_range(l->level, LAYOUT_UNKNOWN, LAYOUT_TRANSPORT);
	if (l->level == LAYOUT_UNKNOWN) {
		const struct layout none = {0};

		assert_memory_equal(l, &none, sizeof(none));
		return;
	}
	assert_true(l->family == 4 || l->family == 6);
	assert_true(l->network == 14 || l->network == 18 || l->network == 22);
	assert_int_equal(data[l->network] >> 4, l->family);
	assert_true(l->network + (l->family == 4 ? 20u : 40u) <= length);
	assert_true(l->transport <= length);
	assert_true(!l->transport || l->transport >= l->network + (l->family == 4 ? 20u : 40u));
	if (l->flags & LAYOUT_FRAGMENT)
		assert_int_equal(l->transport, 0);
	vl_flow_parse(data, data + length, &flow);
	if (length <= VL_FLOW_DEPTH) /* the flow hash looks no deeper */
		assert_int_equal(flow.protocol, l->protocol);
	if (l->level != LAYOUT_TRANSPORT) {
		assert_int_equal(l->payload, 0);
		return;
	}
	assert_true(l->protocol == 6 || l->protocol == 17);
	assert_true(l->transport);
	assert_true(l->payload <= length);
	assert_true(l->payload >= l->transport + (l->protocol == 6 ? 20u : 8u));
	if (length > VL_FLOW_DEPTH)
		return;
	assert_int_equal(flow.source_port, load_word(data + l->transport));
	assert_int_equal(flow.destination_port, load_word(data + l->transport + 2));
}

static void check_at_all_lengths(const struct packet *p)
{
	const struct packet_places at = packet_places(p);
	const uint32_t ip = p->family == 4 ? 20 : 40, whole = packet_make(p, frame, false);

	for (uint32_t length = 0; length <= whole && length < 300; length++) {
		const struct layout l = parse(frame, length);

		check_lawful(frame, length, &l);
		if (length < at.network + ip) {
			assert_int_equal(l.level, LAYOUT_UNKNOWN);
			continue;
		}
		assert_int_equal(l.level, length < at.payload ? LAYOUT_NETWORK : LAYOUT_TRANSPORT);
		assert_int_equal(l.family, p->family);
		assert_int_equal(l.network, at.network);
		assert_int_equal(l.end, at.length);
		if (length < at.transport) {
			assert_int_equal(l.transport, 0);
			continue;
		}
		assert_int_equal(l.protocol, p->udp ? 17 : 6);
		assert_int_equal(l.transport, at.transport);
		assert_int_equal(l.payload, length < at.payload ? 0 : at.payload);
		assert_int_equal(l.flags, p->ip_options ? LAYOUT_OPTIONS : 0);
	}
}

static void every_shape(void **state)
{
	for (unsigned shape = 0; shape < 3 * 2 * 2 * 4 * 4; shape++) {
		struct packet p = packet_tcp4;

		p.tags = shape % 3;
		p.family = shape / 3 % 2 ? 6 : 4;
		p.udp = shape / 6 % 2;
		p.ip_options = (p.family == 4 ? (const unsigned[]){0, 4, 20, 40} : (const unsigned[]){0, 8, 16, 48})[shape / 12 % 4];
		p.tcp_options = (const unsigned[]){0, 4, 12, 40}[shape / 48];
		p.payload = 100;
		check_at_all_lengths(&p);
	}
}

static void too_many_extensions(void **state)
{
	struct packet p = packet_tcp4;
	struct layout l;

	p.family = 6;
	p.ip_options = 56; /* seven */
	l = parse(frame, packet_make(&p, frame, false));
	assert_int_equal(l.level, LAYOUT_NETWORK);
	assert_int_equal(l.protocol, 60);
	assert_int_equal(l.transport, 0);
}

static void three_tags_are_unknown(void **state)
{
	struct packet p = packet_tcp4;

	p.tags = 3;
	assert_int_equal(parse(frame, packet_make(&p, frame, false)).level, LAYOUT_UNKNOWN);
}

static void ipv4_fragments(void **state)
{
	static const uint16_t words[] = {0x2000, 0x0001, 0x1fff, 0x3fff, 0x6000};
	struct packet p = packet_tcp4;

	for (unsigned i = 0; i < 5; i++) {
		struct layout l;

		p.fragment = words[i];
		l = parse(frame, packet_make(&p, frame, false));
		assert_int_equal(l.level, LAYOUT_NETWORK);
		assert_int_equal(l.flags, LAYOUT_FRAGMENT);
		assert_int_equal(l.transport, 0);
	}
	p.fragment = 0xc000; /* DF and the reserved bit */
	assert_int_equal(parse(frame, packet_make(&p, frame, false)).level, LAYOUT_TRANSPORT);
}

/* An extension header of @type in front of TCP: @length in its own units, @fourth its byte 3. */
static struct layout with_extension(uint8_t type, uint8_t length, uint8_t fourth)
{
	struct packet p = packet_tcp4;
	uint32_t bytes;
	struct packet_places at;

	p.family = 6;
	p.ip_options = type == 51 ? (length + 2u) * 4 : type == 44 ? 8 : (length + 1u) * 8;
	at = packet_places(&p);
	bytes = packet_make(&p, frame, false);
	frame[at.network + 6] = type;
	memset(frame + at.network + 40, 0, p.ip_options);
	frame[at.network + 40] = 6;
	frame[at.network + 41] = length;
	frame[at.network + 43] = fourth;
	return parse(frame, bytes);
}

static void extensions(void **state)
{
	struct layout l = with_extension(0, 0, 0); /* hop by hop */

	assert_int_equal(l.level, LAYOUT_TRANSPORT);
	assert_int_equal(l.flags, LAYOUT_OPTIONS);
	l = with_extension(43, 2, 0); /* routing, used up */
	assert_int_equal(l.level, LAYOUT_TRANSPORT);
	assert_int_equal(l.flags, LAYOUT_OPTIONS);
	l = with_extension(43, 2, 1); /* routing, not used up */
	assert_int_equal(l.level, LAYOUT_TRANSPORT);
	assert_int_equal(l.flags, LAYOUT_OPTIONS | LAYOUT_SOURCE_ROUTED);
	l = with_extension(51, 4, 0); /* authentication: units of 4 bytes */
	assert_int_equal(l.level, LAYOUT_TRANSPORT);
	assert_int_equal(l.flags, LAYOUT_OPTIONS | LAYOUT_AUTHENTICATED);
	l = with_extension(44, 0, 0); /* fragment, "atomic" */
	assert_int_equal(l.level, LAYOUT_NETWORK);
	assert_int_equal(l.flags, LAYOUT_OPTIONS | LAYOUT_FRAGMENT);
	assert_int_equal(l.protocol, 6);
	l = with_extension(60, 255, 0); /* the longest there is */
	assert_int_equal(l.level, LAYOUT_TRANSPORT);
	assert_int_equal(l.transport, 14 + 40 + 2048);
}

static void other_protocols(void **state)
{
	struct packet p = packet_tcp4;
	struct layout l;

	packet_make(&p, frame, false);
	frame[14 + 9] = 1; /* ICMP */
	l = parse(frame, 200);
	assert_int_equal(l.level, LAYOUT_NETWORK);
	assert_int_equal(l.protocol, 1);
	assert_int_equal(l.transport, 34);
	put16(frame + 12, 0x0806); /* ARP */
	assert_int_equal(parse(frame, 200).level, LAYOUT_UNKNOWN);
	put16(frame + 12, 0x86dd); /* says IPv6, is IPv4 */
	assert_int_equal(parse(frame, 200).level, LAYOUT_UNKNOWN);
}

static void short_lengths_in_headers(void **state)
{
	struct packet p = packet_tcp4;

	packet_make(&p, frame, false);
	for (unsigned words = 0; words < 16; words++) {
		struct layout l;

		frame[14] = (uint8_t)(0x40 | words);
		l = parse(frame, 128);
		assert_int_equal(l.level == LAYOUT_UNKNOWN, words < 5);
		check_lawful(frame, 128, &l);
	}
	packet_make(&p, frame, false);
	for (unsigned words = 0; words < 16; words++) {
		frame[34 + 12] = (uint8_t)(words << 4);
		assert_int_equal(parse(frame, 94).level, words < 5 ? LAYOUT_NETWORK : LAYOUT_TRANSPORT);
		assert_int_equal(parse(frame, 93).level, words < 5 || words == 15 ? LAYOUT_NETWORK : LAYOUT_TRANSPORT);
	}
}

/* Good packets with any few bytes changed, cut at any length. */
static void mutations(void **state)
{
	uint64_t seed = 7;

	for (unsigned round = 0; round < 200000; round++) {
		struct packet p = packet_tcp4;
		uint32_t length;
		struct layout l;

		p.tags = dice(&seed, 3);
		p.family = dice(&seed, 2) ? 6 : 4;
		p.udp = dice(&seed, 2);
		p.ip_options = 8 * dice(&seed, 6);
		p.tcp_options = 4 * dice(&seed, 11);
		p.payload = 60;
		length = packet_make(&p, frame, false);
		for (unsigned i = dice(&seed, 6); i; i--)
			frame[12 + dice(&seed, 100)] = (uint8_t)(dice(&seed, 2) ? dice(&seed, 256) : (const uint8_t[]){0, 4, 43, 44, 51, 60, 6, 17}[dice(&seed, 8)]);
		length = dice(&seed, 2) ? length : dice(&seed, length + 1);
		if (length < 14)
			length = 14;
		l = parse(frame, length);
		check_lawful(frame, length, &l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_shape),
		cmocka_unit_test(too_many_extensions),
		cmocka_unit_test(three_tags_are_unknown),
		cmocka_unit_test(ipv4_fragments),
		cmocka_unit_test(extensions),
		cmocka_unit_test(other_protocols),
		cmocka_unit_test(short_lengths_in_headers),
		cmocka_unit_test(mutations),
	};

	return cmocka_run_group_tests_name("layout", tests, NULL, NULL);
}
