/* SPDX-License-Identifier: BSD-2-Clause */
/* What a guest may ask for, what it may not and how that is named; what a receiver is told. */
#include <linux/virtio_net.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "offload_packet.h"

_Static_assert(VNET_NEEDS_CSUM == VIRTIO_NET_HDR_F_NEEDS_CSUM && VNET_DATA_VALID == VIRTIO_NET_HDR_F_DATA_VALID, "virtio 1.2, 5.1.6");
_Static_assert(VNET_GSO_TCP4 == VIRTIO_NET_HDR_GSO_TCPV4 && (int)VNET_GSO_TCP6 == VIRTIO_NET_HDR_GSO_TCPV6, "virtio 1.2, 5.1.6");
_Static_assert(VNET_F_HOST_ECN == 1ull << VIRTIO_NET_F_HOST_ECN && VNET_F_GUEST_TSO6 == 1ull << VIRTIO_NET_F_GUEST_TSO6, "5.1.3");

static uint8_t bytes[PACKET_MAX];

/* Judges the packet with this header, from memory of the exact size. */
static enum vnet_verdict judge_bytes(const struct vnet_header *h, uint32_t length, uint64_t features, struct frame_offload *offload)
{
	enum vnet_verdict verdict;
	struct scattered s;

	scatter(&s, bytes, length, FRAME_HEAD_MAX, 0, NULL);
	s.frame.vnet = *h;
	memset(&s.frame.offload, 0xa5, sizeof(s.frame.offload));
	verdict = vnet_judge(&s.frame, features);
	*offload = s.frame.offload;
	if (verdict != VNET_GOOD) {
		const struct frame_offload none = {0};

		assert_memory_equal(offload, &none, sizeof(none));
	}
	scatter_free(&s);
	return verdict;
}

static enum vnet_verdict judge(const struct packet *p, const struct vnet_header *h, uint64_t features, struct frame_offload *offload)
{
	return judge_bytes(h, packet_make(p, bytes, true), features, offload);
}

static struct packet large(unsigned family, bool udp)
{
	struct packet p = udp ? packet_udp4 : packet_tcp4;

	p.family = family;
	p.payload = 20000;
	return p;
}

static void plain_asks_nothing(void **state)
{
	const struct packet p = packet_tcp4;
	struct frame_offload offload;
	struct vnet_header h = {.hdr_len = 0xffff, .gso_size = 0xffff, .csum_start = 0xffff, .csum_offset = 0xffff};
	const struct frame_offload none = {0};

	assert_int_equal(judge(&p, &h, 0, &offload), VNET_GOOD);
	assert_memory_equal(&offload, &none, sizeof(none));
	h.flags = (uint8_t)~VNET_NEEDS_CSUM; /* unknown flags are ignored (5.1.6.2.2) */
	assert_int_equal(judge(&p, &h, 0, &offload), VNET_GOOD);
	assert_memory_equal(&offload, &none, sizeof(none));
}

static void checksum_is_taken_over(void **state)
{
	for (unsigned i = 0; i < 12; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;
		struct packet_places at;
		struct frame_offload offload;
		struct vnet_header h;

		p.family = i & 2 ? 6 : 4;
		p.tags = i / 4;
		at = packet_places(&p);
		h = packet_header(&p, 0);
		assert_int_equal(judge(&p, &h, VNET_F_CSUM, &offload), VNET_GOOD);
		assert_true(offload.needs_checksum);
		assert_int_equal(offload.csum_start, at.transport);
		assert_int_equal(offload.csum_offset, p.udp ? 6 : 16);
		assert_int_equal(offload.header_length, at.payload);
		assert_int_equal(offload.gso, FRAME_GSO_NONE);
		assert_true(offload.plain_checksum);
		assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE & ~VNET_F_CSUM, &offload), VNET_NOT_NEGOTIATED);
	}
}

/* No device is asked for what it may not find by itself: behind IP options and extension headers, in fragments, in tunnels. */
static void which_checksums_are_plain(void **state)
{
	struct vnet_header h;
	struct frame_offload offload;

	for (unsigned i = 0; i < 4; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;
		const struct packet plain = p;

		p.family = i & 2 ? 6 : 4;
		p.ip_options = 8;
		h = packet_header(&p, 0);
		assert_int_equal(judge(&p, &h, VNET_F_CSUM, &offload), VNET_GOOD);
		assert_true(offload.needs_checksum && !offload.plain_checksum);

		p = plain;
		p.payload = 1200;
		h = packet_header(&p, 0);
		for (unsigned start = 0; start < 200; start += 2) { /* an inner frame's, from right behind this one's field on */
			h.csum_start = htole16((uint16_t)(packet_places(&p).transport + start));
			if (judge(&p, &h, VNET_F_CSUM, &offload) == VNET_GOOD)
				assert_int_equal(offload.plain_checksum, start == 0);
		}
		p.fragment = 0x2000;
		h = packet_header(&p, 0);
		assert_int_equal(judge(&p, &h, VNET_F_CSUM, &offload), VNET_GOOD);
		assert_true(offload.needs_checksum && !offload.plain_checksum);

		p = plain;
		p.payload = 5000; /* what is cut keeps what it is */
		h = packet_header(&p, 1000);
		assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GOOD);
		assert_true(offload.gso != FRAME_GSO_NONE && offload.plain_checksum);
	}
}

/* Start and offset at every value: good where the protocol has its checksum, and inside a payload (a tunnel's inner frame). */
static void every_csum_start_and_offset(void **state)
{
	struct packet p = packet_tcp4;
	uint32_t length;

	p.payload = 100;
	length = packet_make(&p, bytes, true);
	for (uint32_t start = 0; start < 300; start++) {
		for (uint32_t offset = 0; offset < 300; offset++) {
			const struct vnet_header h = {.flags = VNET_NEEDS_CSUM, .csum_start = (uint16_t)start, .csum_offset = (uint16_t)offset};
			struct frame_offload offload;
			const enum vnet_verdict verdict = judge_bytes(&h, length, VNET_F_CSUM, &offload);

			if (start < 34 || start >= length)
				assert_int_equal(verdict, VNET_CSUM_START);
			else if (offset % 2 || start + offset + 2 > length)
				assert_int_equal(verdict, VNET_CSUM_OFFSET);
			else if (offset == 8)
				assert_int_equal(verdict, VNET_CSUM_PROTOCOL);
			else
				assert_int_equal(verdict, start == 34 && offset != 16 ? VNET_CSUM_OFFSET : VNET_GOOD);
		}
	}
	for (uint32_t far = 0xfff0; far <= 0xffff; far++) { /* sums that do not fit 16 bits */
		struct vnet_header h = {.flags = VNET_NEEDS_CSUM, .csum_start = (uint16_t)far, .csum_offset = 16};
		struct frame_offload offload;

		assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_CSUM_START);
		h = (struct vnet_header){.flags = VNET_NEEDS_CSUM, .csum_start = 34, .csum_offset = (uint16_t)far};
		assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_CSUM_OFFSET);
	}
}

static void crc_is_no_internet_checksum(void **state)
{
	struct packet p = packet_tcp4;
	struct vnet_header h = {.flags = VNET_NEEDS_CSUM, .csum_start = 34, .csum_offset = 8};
	struct frame_offload offload;
	uint32_t length = packet_make(&p, bytes, true);

	bytes[14 + 9] = 132;
	assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_CSUM_PROTOCOL);
	h.csum_offset = 4;
	assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_CSUM_PROTOCOL);
	bytes[14 + 9] = 1; /* ICMP has its own at 2 */
	h.csum_offset = 2;
	assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_GOOD);
	put16(bytes + 12, 0x88b5); /* an EtherType for experiments: the sender's word is taken */
	h.csum_start = 14;
	assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_GOOD);
	h.csum_offset = 8;
	assert_int_equal(judge_bytes(&h, length, VNET_F_CSUM, &offload), VNET_CSUM_PROTOCOL);
}

static const struct {
	unsigned family;
	bool udp;
	enum frame_gso gso;
	uint64_t sender, receiver;
} kinds[] = {
	{4, false, FRAME_GSO_TCP4, VNET_F_HOST_TSO4, VNET_F_GUEST_TSO4},
	{6, false, FRAME_GSO_TCP6, VNET_F_HOST_TSO6, VNET_F_GUEST_TSO6},
	{4, true, FRAME_GSO_UDP4, VNET_F_HOST_USO, VNET_F_GUEST_USO4},
	{6, true, FRAME_GSO_UDP6, VNET_F_HOST_USO, VNET_F_GUEST_USO6},
};

static void segmentation_by_feature(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct packet p = large(kinds[i].family, kinds[i].udp);
		struct vnet_header h = packet_header(&p, 1400);
		struct frame_offload offload;

		h.hdr_len = 3; /* a hint only */
		assert_int_equal(judge(&p, &h, VNET_F_CSUM | kinds[i].sender, &offload), VNET_GOOD);
		assert_int_equal(offload.gso, kinds[i].gso);
		assert_int_equal(offload.gso_size, 1400);
		assert_int_equal(offload.header_length, packet_places(&p).payload);
		assert_false(offload.ecn);
		assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE & ~kinds[i].sender, &offload), VNET_NOT_NEGOTIATED);
		h.flags = 0;
		assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GSO_NO_CSUM);
	}
}

/* Each gso_type on each packet. */
static void segmentation_type_must_be_the_packets(void **state)
{
	for (unsigned type = 0; type < 256; type++) {
		for (unsigned i = 0; i < 4; i++) {
			struct packet p = large(kinds[i].family, kinds[i].udp);
			struct vnet_header h = packet_header(&p, 1400);
			const unsigned bare = type & 0x7f;
			const bool known = bare == VNET_GSO_TCP4 || bare == VNET_GSO_TCP6 || bare == VNET_GSO_UDP;
			struct frame_offload offload;
			enum vnet_verdict verdict, expected = VNET_GOOD;

			if (type && (!known || (bare == VNET_GSO_UDP && type != bare)))
				expected = VNET_GSO_TYPE;
			else if (type && bare != h.gso_type)
				expected = VNET_GSO_PROTOCOL;
			h.gso_type = (uint8_t)type;
			verdict = judge(&p, &h, EVERY_SENDER_FEATURE, &offload);
			assert_int_equal(verdict, expected);
		}
	}
}

static void ecn(void **state)
{
	struct packet p = large(4, false);
	struct vnet_header h = packet_header(&p, 1400);
	struct frame_offload offload;

	h.gso_type |= VNET_GSO_ECN;
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE & ~VNET_F_HOST_ECN, &offload), VNET_NOT_NEGOTIATED);
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GOOD);
	assert_true(offload.ecn);
	/* The packet itself counts, too: what the driver forgot must not break a receiver's flow. */
	p.flags |= CWR;
	h.gso_type = VNET_GSO_TCP4;
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GOOD);
	assert_true(offload.ecn);
}

static void sizes(void **state)
{
	for (uint32_t size = 0; size < 30000; size += size < 300 ? 1 : 997) {
		struct packet tcp = large(4, false), udp = large(4, true);
		struct vnet_header h = packet_header(&tcp, 1);
		struct frame_offload offload;

		h.gso_size = (uint16_t)size;
		assert_int_equal(judge(&tcp, &h, EVERY_SENDER_FEATURE, &offload), size < VNET_GSO_SIZE_MIN_TCP ? VNET_GSO_SIZE : VNET_GOOD);
		if (size >= VNET_GSO_SIZE_MIN_TCP)
			assert_int_equal(offload.gso, size < 20000 ? FRAME_GSO_TCP4 : FRAME_GSO_NONE);
		h = packet_header(&udp, 1);
		h.gso_size = (uint16_t)size;
		assert_int_equal(judge(&udp, &h, EVERY_SENDER_FEATURE, &offload), size * 128 < 20000 ? VNET_GSO_SIZE : VNET_GOOD);
	}
}

/* Segments must be IP packets: the longest frame can be asked to be cut into some that are not. */
static void segments_that_ip_cannot_hold(void **state)
{
	for (unsigned udp = 0; udp < 2; udp++) {
		struct packet p = large(4, udp);
		const struct packet_places at = packet_places(&p);
		const uint32_t most = 65535 - (at.payload - at.network);
		struct frame_offload offload;

		p.payload = FRAME_LENGTH_MAX - at.payload;
		for (uint32_t size = most - 2; size <= 65535; size++) {
			const struct vnet_header h = packet_header(&p, (uint16_t)size);
			const bool whole = size >= p.payload;

			assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), whole || size <= most ? VNET_GOOD : VNET_GSO_SIZE);
			assert_int_equal(offload.gso != FRAME_GSO_NONE, size <= most);
		}
	}
}

static void segmentation_needs_its_headers(void **state)
{
	struct packet p = large(4, false);
	struct vnet_header h = packet_header(&p, 1400);
	struct frame_offload offload;
	uint32_t length;

	p.fragment = 0x2000;
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GSO_PROTOCOL);
	p.fragment = 0;
	h.csum_start += 2; /* inside the TCP header: lawful for a checksum alone */
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_CSUM_START);
	p = large(6, false);
	p.ip_options = 40;
	p.tcp_options = 12; /* 126 bytes */
	h = packet_header(&p, 1400);
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GOOD);
	assert_int_equal(offload.header_length, 126);
	p.tcp_options = 16; /* 130: not all in the private head */
	h = packet_header(&p, 1400);
	assert_int_equal(judge(&p, &h, EVERY_SENDER_FEATURE, &offload), VNET_GSO_PROTOCOL);
	{ /* even if a head holds more */
		struct scattered s;

		scatter(&s, bytes, packet_make(&p, bytes, true), 400, 0, NULL);
		s.frame.vnet = h;
		assert_int_equal(vnet_judge(&s.frame, EVERY_SENDER_FEATURE), VNET_GSO_PROTOCOL);
		scatter_free(&s);
	}
	p = large(6, false);
	p.ip_options = 24;
	h = packet_header(&p, 1400);
	length = packet_make(&p, bytes, true);
	bytes[14 + 6] = 51; /* destination options become authentication of the same length */
	bytes[14 + 40 + 1] = 4;
	bytes[14 + 40] = 6;
	assert_int_equal(judge_bytes(&h, length, EVERY_SENDER_FEATURE, &offload), VNET_GSO_PROTOCOL);
}

/* --- to the receiver ---------------------------------------------------------------------------------------------- */

static void receivers(void **state)
{
	for (unsigned i = 0; i < 8; i++) {
		const unsigned k = i / 2;
		struct packet p = large(kinds[k].family, kinds[k].udp);
		struct vnet_header h, out;
		struct scattered s;
		const bool with_ecn = i % 2 && !p.udp;

		p.flags |= with_ecn ? CWR : 0;
		h = packet_header(&p, 1400);
		scatter(&s, bytes, packet_make(&p, bytes, true), FRAME_HEAD_MAX, 0, NULL);
		s.frame.vnet = h;
		assert_int_equal(vnet_judge(&s.frame, EVERY_SENDER_FEATURE), VNET_GOOD);
		for (uint32_t subset = 0; subset < 128; subset++) {
			static const uint64_t bits[] = {VNET_F_GUEST_CSUM, VNET_F_GUEST_TSO4, VNET_F_GUEST_TSO6, VNET_F_GUEST_ECN,
							VNET_F_GUEST_USO4, VNET_F_GUEST_USO6, VNET_F_MRG_RXBUF};
			const struct vnet_header none = {0};
			uint64_t features = 0;
			bool takes;

			for (unsigned b = 0; b < 7; b++)
				features |= subset & 1u << b ? bits[b] : 0;
			takes = (features & VNET_F_GUEST_CSUM) && (features & kinds[k].receiver) && (!with_ecn || (features & VNET_F_GUEST_ECN));
			assert_int_equal(vnet_receiver_takes(&s.frame, features), takes);
			vnet_header_for(&s.frame, features, &out);
			assert_memory_equal(&out, takes ? &h : &none, sizeof(out)); /* unchanged from guest to guest */
		}
		scatter_free(&s);
	}
}

static void header_of_a_verified_frame(void **state)
{
	struct frame frame = {.offload = {.verified = true}};
	struct vnet_header out;

	vnet_header_for(&frame, VNET_F_GUEST_CSUM, &out);
	assert_int_equal(out.flags, VNET_DATA_VALID);
	assert_int_equal(out.gso_type, VNET_GSO_NONE);
	vnet_header_for(&frame, EVERY_RECEIVER_FEATURE & ~VNET_F_GUEST_CSUM, &out);
	assert_int_equal(out.flags, 0);
	assert_true(vnet_receiver_takes(&frame, 0));
}

static void tags_move_offsets(void **state)
{
	struct packet p = large(4, false);
	struct vnet_header h = packet_header(&p, 1400), out;
	struct scattered s;

	scatter(&s, bytes, packet_make(&p, bytes, true), FRAME_HEAD_MAX, 0, NULL);
	s.frame.vnet = h;
	assert_int_equal(vnet_judge(&s.frame, EVERY_SENDER_FEATURE), VNET_GOOD);
	frame_offload_shift(&s.frame, 4);
	vnet_header_for(&s.frame, EVERY_RECEIVER_FEATURE, &out);
	assert_int_equal(out.csum_start, h.csum_start + 4);
	assert_int_equal(out.hdr_len, h.hdr_len + 4);
	assert_int_equal(out.csum_offset, h.csum_offset);
	frame_offload_shift(&s.frame, -4);
	vnet_header_for(&s.frame, EVERY_RECEIVER_FEATURE, &out);
	assert_memory_equal(&out, &h, sizeof(out));
	s.frame.offload = (struct frame_offload){0};
	frame_offload_shift(&s.frame, 4);
	assert_int_equal(s.frame.offload.csum_start, 0);
	assert_int_equal(s.frame.offload.header_length, 0);
	scatter_free(&s);
}

/* What begins at the end of the longest frame must stay where it is under the tag that an access port puts in front. */
static void checksums_at_the_end_of_the_longest(void **state)
{
	struct frame_offload offload;
	struct vnet_header h = {.flags = VNET_NEEDS_CSUM, .csum_offset = 6};
	unsigned good = 0;

	memset(bytes, 0, FRAME_LENGTH_MAX);
	memcpy(bytes + 12, "\x88\xb5", 2); /* no protocol that is known: the driver's word is taken */
	for (unsigned start = FRAME_LENGTH_MAX - 200; start <= UINT16_MAX; start++) {
		struct frame frame = {.head = bytes + FRAME_HEADROOM, .length = FRAME_LENGTH_MAX};

		h.csum_start = (uint16_t)start;
		if (judge_bytes(&h, FRAME_LENGTH_MAX, VNET_F_CSUM, &offload) != VNET_GOOD)
			continue;
		good++;
		frame.offload = offload;
		frame_offload_shift(&frame, 4);
		assert_int_equal(frame.offload.csum_start, start + 4);
	}
	assert_true(good > 100);
}

/* Any header on any packet: whatever passes is lawful. */
static void hostile_headers(void **state)
{
	uint64_t seed = 11;
	unsigned good = 0;

	for (unsigned round = 0; round < 200000; round++) {
		struct packet p = large(dice(&seed, 2) ? 4 : 6, dice(&seed, 2));
		struct frame_offload o;
		struct vnet_header h;
		uint32_t length;

		p.payload = dice(&seed, 300);
		p.ip_options = 8 * dice(&seed, 6);
		h = packet_header(&p, (uint16_t)dice(&seed, 40));
		for (unsigned i = dice(&seed, 3); i; i--)
			((uint8_t *)&h)[dice(&seed, sizeof(h))] = (uint8_t)dice(&seed, 256);
		length = packet_make(&p, bytes, true);
		for (unsigned i = dice(&seed, 3); i; i--)
			bytes[12 + dice(&seed, 80)] = (uint8_t)dice(&seed, 256);
		if (judge_bytes(&h, length, EVERY_SENDER_FEATURE, &o) != VNET_GOOD)
			continue;
		good++;
		if (o.needs_checksum) {
			assert_true(o.csum_start >= 14);
			assert_true((uint32_t)o.csum_start + o.csum_offset + 2 <= length);
		}
		if (o.gso == FRAME_GSO_NONE)
			continue;
		assert_true(o.needs_checksum);
		assert_true(o.gso_size > 0 && o.gso_size < length - o.header_length);
		assert_true(o.header_length <= FRAME_HEAD_MAX && o.header_length > o.csum_start + o.csum_offset);
		assert_true((length - o.header_length) / o.gso_size <= 8192);
	}
	assert_true(good > 20000 && good < 180000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_asks_nothing),
		cmocka_unit_test(checksum_is_taken_over),
		cmocka_unit_test(which_checksums_are_plain),
		cmocka_unit_test(every_csum_start_and_offset),
		cmocka_unit_test(crc_is_no_internet_checksum),
		cmocka_unit_test(segmentation_by_feature),
		cmocka_unit_test(segmentation_type_must_be_the_packets),
		cmocka_unit_test(ecn),
		cmocka_unit_test(sizes),
		cmocka_unit_test(segments_that_ip_cannot_hold),
		cmocka_unit_test(segmentation_needs_its_headers),
		cmocka_unit_test(receivers),
		cmocka_unit_test(header_of_a_verified_frame),
		cmocka_unit_test(tags_move_offsets),
		cmocka_unit_test(checksums_at_the_end_of_the_longest),
		cmocka_unit_test(hostile_headers),
	};

	return cmocka_run_group_tests_name("vnet", tests, NULL, NULL);
}
