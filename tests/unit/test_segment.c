/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Segmentation with checksums completed on the way out, byte by byte against packets that were made as segments; copying
 * with completion, in one piece and in many; verification.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/frame_checksum.h"
#include "datapath/segment.h"
#include "offload_packet.h"

static uint8_t whole[PACKET_MAX], expected[PACKET_MAX], got[PACKET_MAX];
static struct segment_burst *burst;

static int allocate(void **state)
{
	burst = malloc(sizeof(*burst));
	return burst ? 0 : -1;
}

static int release(void **state)
{
	free(burst);
	return 0;
}

/* A guest's frame, judged. */
static void make_frame(struct scattered *s, const struct packet *p, uint16_t size, uint32_t piece, uint64_t *seed)
{
	scatter(s, whole, packet_make(p, whole, true), FRAME_HEAD_MAX, piece, seed);
	s->frame.vnet = packet_header(p, size);
	assert_int_equal(vnet_judge(&s->frame, EVERY_SENDER_FEATURE), VNET_GOOD);
}

/* Into pieces of at most @piece bytes, as a ring's buffers would be. */
static void copy_scattered(const struct frame *frame, uint8_t *to, uint32_t piece, uint64_t *seed)
{
	struct frame_checksum c;
	uint32_t at = 0;

	frame_checksum_start(&c, frame);
	for (uint32_t i = 0; i <= frame->segment_count; i++) {
		const uint8_t *from = i ? frame->segments[i - 1].data : frame->head;
		uint32_t left = i ? frame->segments[i - 1].length : frame->head_length;

		while (left) {
			uint32_t n = 1 + dice(seed, piece);

			n = n < left ? n : left;
			frame_checksum_copy(&c, to + at, from, n);
			from += n;
			at += n;
			left -= n;
		}
	}
	assert_int_equal(at, frame->length);
	frame_checksum_finish(&c);
}

/* A sum of 0xffff is one of 0. */
static void same_zero(uint8_t *field)
{
	if (field[0] == 0xff && field[1] == 0xff)
		field[0] = field[1] = 0;
}

static void check_burst(const struct packet *p, uint32_t size, uint32_t first, uint64_t *seed)
{
	for (uint32_t i = 0; i < burst->count; i++) {
		const struct frame *frame = burst->list[i];
		const struct packet part = packet_part(p, size, first + i);
		const uint32_t length = packet_make(&part, expected, false);
		const uint32_t field = (uint32_t)frame->offload.csum_start + frame->offload.csum_offset;

		assert_int_equal(frame->offload.plain_checksum, !p->ip_options);

		assert_ptr_equal(frame, &burst->frames[i]);
		assert_int_equal(frame->length, length);
		assert_int_equal(frame->offload.gso, FRAME_GSO_NONE);
		assert_true(frame->offload.needs_checksum);
		memset(got, 0xee, length + 1);
		frame_copy(frame, got, true);
		assert_memory_equal(got, expected, length);
		assert_int_equal(got[length], 0xee);
		if (dice(seed, 4))
			continue;
		memset(got, 0xee, length + 1);
		copy_scattered(frame, got, dice(seed, 3) ? 700 : 3, seed);
		assert_memory_equal(got, expected, length);
		/* For a receiver that takes it open. */
		packet_make(&part, expected, true);
		frame_copy(frame, got, false);
		same_zero(got + field);
		same_zero(expected + field);
		assert_memory_equal(got, expected, length);
	}
}

static void check_segmentation(const struct packet *p, uint16_t size, uint32_t piece, uint64_t *seed)
{
	struct segmenter segmenter;
	struct scattered s;
	uint32_t done = 0;

	make_frame(&s, p, size, piece, seed);
	if (p->payload <= size) {
		assert_int_equal(s.frame.offload.gso, FRAME_GSO_NONE);
		assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_NO_GSO);
		packet_make(p, expected, false);
		frame_copy(&s.frame, got, true);
		assert_memory_equal(got, expected, s.frame.length);
		scatter_free(&s);
		return;
	}
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_GOOD);
	while (segment_next(&segmenter, burst)) {
		check_burst(p, size, done, seed);
		done += burst->count;
	}
	assert_int_equal(done, (p->payload + size - 1) / size);
	assert_int_equal(done, segment_count(&s.frame));
	assert_int_equal(segment_next(&segmenter, burst), 0);
	scatter_free(&s);
}

/* Sizes around every border: nothing, one byte, one segment, two, all that an IP packet holds. */
static void every_shape(void **state)
{
	static const uint8_t flags[] = {ACK, ACK | PSH | FIN, ACK | CWR | PSH, ACK | CWR | ECE};
	static const uint16_t mss[] = {48, 536, 1447, 1448, 8948};
	uint64_t seed = 1;

	for (unsigned shape = 0; shape < 3 * 2 * 2 * 3 * 3; shape++) {
		struct packet p = packet_tcp4;

		p.tags = shape % 3;
		p.family = shape / 3 % 2 ? 6 : 4;
		p.udp = shape / 6 % 2;
		p.ip_options = (p.family == 4 ? (const unsigned[]){0, 8, 40} : (const unsigned[]){0, 8, 16})[shape / 12 % 3];
		p.tcp_options = p.udp ? 0 : (const unsigned[]){0, 12, 20}[shape / 36];
		p.id = 0xfff0; /* wraps */
		for (unsigned k = 0; k < sizeof(mss) / sizeof(mss[0]); k++) {
			const uint32_t m = mss[k], most = 65535 - (packet_places(&p).payload - packet_places(&p).network);
			const uint32_t sizes[] = {0, 1, m - 1, m, m + 1, 2 * m - 1, 2 * m, 2 * m + 1, m * (k ? 7 : 128) - 3, most - 1, most};

			for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
				p.payload = sizes[i];
				if (p.payload > most || (m == 48 && p.payload > 8000))
					continue;
				p.flags = p.udp ? 0 : flags[(shape + i) % 4];
				p.stream = dice(&seed, 1000000);
				check_segmentation(&p, (uint16_t)m, (const uint32_t[]){0, 4096, 300, 77}[dice(&seed, 4)], &seed);
			}
		}
	}
}

/* More pieces than a burst has slices for, at every ratio of piece to segment. */
static void many_pieces(void **state)
{
	uint64_t seed = 2;

	for (uint32_t piece = 1; piece < 130; piece += 8) {
		struct packet p = packet_tcp4;

		p.payload = 60000;
		check_segmentation(&p, 1448, piece, &seed);
		check_segmentation(&p, 65000 / 2, piece, &seed);
		check_segmentation(&p, 49, piece, &seed);
	}
}

/* A coalesced frame can have more pieces than a burst has slices: what does not fit comes with the next. */
static void more_pieces_than_slices(void **state)
{
	static struct frame_segment segments[FRAME_SEGMENTS + FRAME_BURST];
	const uint32_t pieces = FRAME_SEGMENTS + FRAME_BURST;
	struct packet p = packet_tcp4;
	struct packet_places at;
	struct segmenter segmenter;
	struct scattered s;
	uint32_t bursts = 0, done = 0;
	uint64_t seed = 9;

	p.payload = pieces * 50;
	at = packet_places(&p);
	make_frame(&s, &p, 899, 0, &seed);
	s.frame.head_length = (uint16_t)at.payload;
	for (uint32_t i = 0; i < pieces; i++)
		segments[i] = (struct frame_segment){whole + at.payload + i * 50, 50};
	s.frame.segments = segments;
	s.frame.segment_count = (uint16_t)pieces;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_GOOD);
	while (segment_next(&segmenter, burst)) {
		check_burst(&p, 899, done, &seed);
		done += burst->count;
		bursts++;
	}
	assert_int_equal(done, (p.payload + 898) / 899);
	assert_true(done <= FRAME_BURST && bursts == 2);
	s.frame.segment_count = 1;
	scatter_free(&s);
}

static void empty_pieces(void **state)
{
	struct packet p = packet_tcp4;
	struct frame_segment segments[5];
	struct segmenter segmenter;
	struct scattered s;
	uint64_t seed = 3;

	p.payload = 3000;
	make_frame(&s, &p, 1448, 0, &seed);
	segments[0] = segments[1] = segments[3] = (struct frame_segment){whole, 0};
	segments[2] = (struct frame_segment){s.segments[0].data, 1000};
	segments[4] = (struct frame_segment){s.segments[0].data + 1000, s.segments[0].length - 1000};
	s.frame.segments = segments;
	s.frame.segment_count = 5;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_GOOD);
	assert_int_equal(segment_next(&segmenter, burst), 3);
	check_burst(&p, 1448, 0, &seed);
	assert_int_equal(segment_next(&segmenter, burst), 0);
	s.frame.segment_count = 1;
	scatter_free(&s);
}

static void fixed_identification(void **state)
{
	struct packet p = packet_tcp4;
	struct segmenter segmenter;
	struct scattered s;
	uint64_t seed = 4;

	p.payload = 5000;
	make_frame(&s, &p, 1448, 0, &seed);
	s.frame.offload.fixed_id = true;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_GOOD);
	assert_int_equal(segment_next(&segmenter, burst), 4);
	for (uint32_t i = 0; i < 4; i++) {
		struct packet part = packet_part(&p, 1448, i);

		part.id = p.id;
		packet_make(&part, expected, false);
		frame_copy(burst->list[i], got, true);
		assert_memory_equal(got, expected, burst->list[i]->length);
	}
	scatter_free(&s);
}

/* Tags pushed on the way: the headers are longer than a guest's head may be. */
static void tags_pushed_after_judging(void **state)
{
	struct packet p = packet_tcp4, tagged;
	struct segmenter segmenter;
	struct scattered s;
	uint64_t seed = 5;

	p.family = 6;
	p.ip_options = 40;
	p.tcp_options = 12;
	p.payload = 5000;
	make_frame(&s, &p, 1448, 0, &seed);
	tagged = p;
	tagged.tags = 2;
	packet_make(&tagged, expected, true);
	memcpy(s.frame.head - 8, expected, 14 + 8);
	s.frame.head -= 8;
	s.frame.head_length += 8;
	s.frame.length += 8;
	frame_offload_shift(&s.frame, 4);
	frame_offload_shift(&s.frame, 4);
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_GOOD);
	assert_int_equal(segment_next(&segmenter, burst), 4);
	check_burst(&tagged, 1448, 0, &seed);
	scatter_free(&s);
}

static void refusals(void **state)
{
	struct packet p = packet_tcp4;
	struct segmenter segmenter;
	struct scattered s;
	uint64_t seed = 6;

	p.payload = 5000;
	make_frame(&s, &p, 1448, 0, &seed);
	s.frame.offload.gso = FRAME_GSO_TCP6;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_PROTOCOL);
	s.frame.offload.gso = FRAME_GSO_UDP4;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_PROTOCOL);
	s.frame.offload.gso = FRAME_GSO_TCP4;
	s.frame.offload.csum_start += 2;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_PROTOCOL);
	s.frame.offload.csum_start -= 2;
	s.frame.offload.gso_size = 0;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_NO_GSO);
	s.frame.offload.gso_size = 1448;
	s.frame.head[14] = 0x4f; /* behind so many IPv4 options there is no TCP header */
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_HEADERS);
	s.frame.head[14] = 0x41;
	assert_int_equal(segment_start(&segmenter, &s.frame), SEGMENT_HEADERS);
	scatter_free(&s);
}

/* --- checksums of frames ------------------------------------------------------------------------------------------ */

/* Completion where the field lies behind the head, and across its border. */
static void field_anywhere(void **state)
{
	uint64_t seed = 7;

	for (uint32_t head = 14; head < 120; head++) {
		for (unsigned udp = 0; udp < 2; udp++) {
			struct packet p = udp ? packet_udp4 : packet_tcp4;
			const uint32_t length = packet_make(&p, whole, true);
			struct scattered s;

			packet_make(&p, expected, false);
			scatter(&s, whole, length, head, 0, &seed);
			s.frame.offload = (struct frame_offload){.needs_checksum = true, .csum_start = 34, .csum_offset = udp ? 6 : 16};
			frame_copy(&s.frame, got, true);
			assert_memory_equal(got, expected, length);
			copy_scattered(&s.frame, got, 2, &seed);
			assert_memory_equal(got, expected, length);
			frame_copy(&s.frame, got, false);
			assert_memory_equal(got, whole, length);
			s.frame.offload.needs_checksum = false;
			copy_scattered(&s.frame, got, 90, &seed);
			assert_memory_equal(got, whole, length);
			scatter_free(&s);
		}
	}
}

/* A datagram whose checksum comes out as 0 goes as 0xffff; a TCP segment's stays 0. */
static void sum_of_zero(void **state)
{
	for (unsigned udp = 0; udp < 2; udp++) {
		struct packet p = udp ? packet_udp4 : packet_tcp4;
		const struct packet_places at = packet_places(&p);
		const uint32_t field = packet_checksum_at(&p, &at), length = packet_make(&p, whole, true);
		struct scattered s;
		uint32_t sum;

		memset(whole + at.payload, 0, 2);
		sum = naive_add(0, whole + at.transport, length - at.transport);
		put16(whole + at.payload, 0xffff - sum);
		assert_int_equal(naive_add(0, whole + at.transport, length - at.transport), 0xffff);
		scatter(&s, whole, length, FRAME_HEAD_MAX, 0, NULL);
		s.frame.offload = (struct frame_offload){.needs_checksum = true, .csum_start = 34, .csum_offset = udp ? 6 : 16};
		frame_copy(&s.frame, got, true);
		assert_int_equal(got[field] << 8 | got[field + 1], udp ? 0xffff : 0);
		scatter_free(&s);
	}
}

static enum frame_verify verify(struct scattered *s)
{
	struct layout layout;

	s->frame.offload.verified = false;
	layout_parse(s->frame.head, s->frame.head_length, &layout);
	return frame_verify(&s->frame, &layout);
}

static void verification(void **state)
{
	uint64_t seed = 8;

	for (unsigned i = 0; i < 400; i++) {
		struct packet p = i % 2 ? packet_udp4 : packet_tcp4;
		struct scattered s;
		struct layout layout;
		uint32_t length, where;

		p.family = i & 2 ? 6 : 4;
		p.tags = i % 3;
		p.payload = dice(&seed, 3000);
		p.stream = dice(&seed, 100000);
		p.ip_options = 8 * dice(&seed, 3);
		length = packet_make(&p, whole, false);
		scatter(&s, whole, length, 120 + dice(&seed, 2000), 200, &seed);
		assert_int_equal(verify(&s), FRAME_VERIFY_GOOD);
		assert_true(s.frame.offload.verified);
		/* One bit that the checksum covers. */
		where = packet_places(&p).transport + (p.udp ? 8 : 14) + dice(&seed, p.payload + 1);
		if (where < length) {
			uint8_t *byte = s.frame.head + where;

			for (uint32_t k = 0, at = s.frame.head_length; where >= at; at += s.segments[k++].length)
				byte = (uint8_t *)(uintptr_t)s.segments[k].data + (where - at);
			*byte ^= (uint8_t)(1 << dice(&seed, 8));
			assert_int_equal(verify(&s), FRAME_VERIFY_BAD);
			assert_false(s.frame.offload.verified);
		}
		scatter_free(&s);

		/* Left to a device: said so, and made whole. */
		length = packet_make(&p, whole, true);
		packet_make(&p, expected, false);
		scatter(&s, whole, length, 120, 200, &seed);
		assert_int_equal(verify(&s), FRAME_VERIFY_PARTIAL);
		layout_parse(s.frame.head, s.frame.head_length, &layout);
		assert_true(frame_expect_completion(&s.frame, &layout));
		frame_copy(&s.frame, got, true);
		assert_memory_equal(got, expected, length);
		scatter_free(&s);
	}
}

static void nothing_to_verify(void **state)
{
	struct packet p = packet_udp4;
	struct scattered s;
	struct layout layout;
	uint32_t length;

	length = packet_make(&p, whole, false);
	put16(whole + 40, 0); /* sent without */
	scatter(&s, whole, length, 128, 0, NULL);
	assert_int_equal(verify(&s), FRAME_VERIFY_UNKNOWN);
	scatter_free(&s);
	length = packet_make(&p, whole, false);
	scatter(&s, whole, length - 1, 128, 0, NULL); /* not whole */
	assert_int_equal(verify(&s), FRAME_VERIFY_UNKNOWN);
	scatter_free(&s);
	put16(whole + 38, 100); /* a shorter datagram than its packet */
	scatter(&s, whole, length, 128, 0, NULL);
	assert_int_equal(verify(&s), FRAME_VERIFY_UNKNOWN);
	scatter_free(&s);
	/* Padding counts in neither sum nor completion. */
	p.payload = 1;
	length = packet_make(&p, whole, false);
	memset(whole + length, 0x77, 60 - length);
	scatter(&s, whole, 60, 128, 0, NULL);
	assert_int_equal(verify(&s), FRAME_VERIFY_GOOD);
	layout_parse(s.frame.head, s.frame.head_length, &layout);
	assert_false(frame_expect_completion(&s.frame, &layout));
	scatter_free(&s);
	/* The final destination is not in the IP header. */
	p = packet_tcp4;
	p.family = 6;
	p.ip_options = 24;
	length = packet_make(&p, whole, false);
	whole[14 + 6] = 43;
	memset(whole + 54, 0, 24);
	whole[54] = 6;
	whole[55] = 2;
	whole[57] = 1;
	scatter(&s, whole, length, 128, 0, NULL);
	assert_int_equal(verify(&s), FRAME_VERIFY_UNKNOWN);
	scatter_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_shape),
		cmocka_unit_test(many_pieces),
		cmocka_unit_test(more_pieces_than_slices),
		cmocka_unit_test(empty_pieces),
		cmocka_unit_test(fixed_identification),
		cmocka_unit_test(tags_pushed_after_judging),
		cmocka_unit_test(refusals),
		cmocka_unit_test(field_anywhere),
		cmocka_unit_test(sum_of_zero),
		cmocka_unit_test(verification),
		cmocka_unit_test(nothing_to_verify),
	};

	return cmocka_run_group_tests_name("segment", tests, allocate, release);
}
