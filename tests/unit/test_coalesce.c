/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Coalescing: each rule by the pair of frames that breaks it alone, and always the same proof: what comes out, segmented
 * again with checksums completed, is byte by byte what went in, in the order in which each flow sent it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/coalesce.h"
#include "datapath/frame_checksum.h"
#include "datapath/frame_scatter.h"
#include "datapath/segment.h"
#include "offload_packet.h"

#define ALL (COALESCE_TCP4 | COALESCE_TCP6 | COALESCE_UDP4 | COALESCE_UDP6 | COALESCE_ECN)

/* A burst as a lane makes it. */
struct arrival {
	uint32_t count;
	struct scattered frames[FRAME_BURST];
	struct frame *list[FRAME_BURST];
	uint8_t *bytes[FRAME_BURST];
	uint32_t flow[FRAME_BURST];
};

static struct arrival arrival;
static struct coalesce_scratch *scratch;
static struct segment_burst *burst;
static uint8_t made[PACKET_MAX], got[PACKET_MAX];
static uint64_t seed = 1;

static int allocate(void **state)
{
	scratch = malloc(sizeof(*scratch));
	burst = malloc(sizeof(*burst));
	return scratch && burst ? 0 : -1;
}

static int release(void **state)
{
	free(scratch);
	free(burst);
	return 0;
}

/* The bytes in @made arrive: whole in the head, or its first bytes there and the rest in chunks. */
static void arrive_bytes(uint32_t length, uint32_t flow)
{
	const uint32_t i = arrival.count++, head = dice(&seed, 4) ? 3840 : 150 + dice(&seed, 400);

	assert_true(i < FRAME_BURST);
	scatter(&arrival.frames[i], made, length, head, 2000, &seed);
	arrival.list[i] = &arrival.frames[i].frame;
	arrival.bytes[i] = malloc(length);
	memcpy(arrival.bytes[i], made, length);
	arrival.flow[i] = flow;
}

static void arrive(const struct packet *p)
{
	arrive_bytes(packet_make(p, made, false), p->source_port);
}

static void forget(void)
{
	for (uint32_t i = 0; i < arrival.count; i++) {
		scatter_free(&arrival.frames[i]);
		free(arrival.bytes[i]);
	}
	arrival.count = 0;
}

/* After a test that failed, too. */
static int forget_all(void **state)
{
	forget();
	return 0;
}

/* One frame that came out (or a segment of it): it must be the next of its flow. */
static void expect_next(const struct frame *frame, bool *seen)
{
	uint32_t flow = UINT32_MAX;

	frame_copy(frame, got, true);
	for (uint32_t i = 0; i < arrival.count; i++) {
		const uint32_t length = arrival.frames[i].frame.length;

		if (seen[i] || arrival.flow[i] == flow || length != frame->length || memcmp(got, arrival.bytes[i], length))
			continue;
		for (uint32_t k = 0; k < i; k++)
			if (!seen[k] && arrival.flow[k] == arrival.flow[i])
				fail_msg("frame %u came before frame %u of its flow", i, k);
		seen[i] = true;
		return;
	}
	fail_msg("a frame of %u bytes that nobody sent", frame->length);
}

static void check_large(const struct frame *frame)
{
	const struct frame_offload *o = &frame->offload;

	assert_true(o->needs_checksum);
	assert_true(o->gso_size > 0 && frame->length - o->header_length > o->gso_size);
	assert_true(frame->length <= FRAME_LENGTH_MAX);
	assert_int_equal(frame->head_length, o->header_length);
}

/* The payload in one call, to buffers of all sizes, one behind the other. */
static bool scatter_and_verify(const struct frame *frame, uint8_t *to)
{
	static struct scatter_place places[FRAME_LENGTH_MAX];
	uint32_t left = frame->length - frame->head_length, count = 0;

	for (const uint32_t most = dice(&seed, 2) ? 4096 : 200; left; count++) {
		places[count] = (struct scatter_place){to, min_u32(left, 1 + dice(&seed, most))};
		to += places[count].length;
		left -= places[count].length;
	}
	return frame_scatter_verified(frame, places);
}

/* Copies piece by piece, as into a ring's buffers. Return: false if a part was found wrong. */
static bool copy_and_verify(const struct frame *frame)
{
	static uint8_t scattered[PACKET_MAX];
	struct frame_checksum c;
	uint32_t at = 0;

	assert_true(frame_checksum_wanted(frame, true));
	frame_checksum_start(&c, frame);
	for (uint32_t i = 0; i <= frame->segment_count; i++) {
		const uint8_t *from = i ? frame->segments[i - 1].data : frame->head;
		uint32_t left = i ? frame->segments[i - 1].length : frame->head_length;

		while (left) {
			uint32_t n = 1 + dice(&seed, 1500);

			n = n < left ? n : left;
			frame_checksum_copy(&c, got + at, from, n);
			from += n;
			at += n;
			left -= n;
		}
	}
	assert_int_equal(at, frame->length);
	assert_int_equal(scatter_and_verify(frame, scattered), !c.bad);
	assert_memory_equal(scattered, got + frame->head_length, frame->length - frame->head_length);
	return frame_checksum_finish(&c);
}

static uint32_t expect_segments(const struct frame *frame, bool *seen)
{
	struct segmenter segmenter;
	uint32_t count = 0;

	check_large(frame);
	assert_int_equal(segment_start(&segmenter, frame), SEGMENT_GOOD);
	while (segment_next(&segmenter, burst)) {
		for (uint32_t k = 0; k < burst->count; k++)
			expect_next(burst->list[k], seen);
		count += burst->count;
	}
	return count;
}

/* Left alone: the very frame, behind all that were left alone before it. */
static void expect_alone(const struct frame *frame, bool *seen, uint32_t *last_alone)
{
	uint32_t k = *last_alone;

	while (k < arrival.count && arrival.list[k] != frame)
		k++;
	assert_true(k < arrival.count);
	*last_alone = k;
	expect_next(frame, seen);
}

static void expect_all(const bool *seen)
{
	for (uint32_t i = 0; i < arrival.count; i++)
		assert_true(seen[i]);
}

/* Checksums verified by whoever copies: in the end the same frames must have arrived. Return: how many frames came out. */
static uint32_t check_verified_later(uint32_t kinds)
{
	uint32_t count, last_alone = 0, merged = 0;
	bool seen[FRAME_BURST] = {false};

	for (uint32_t i = 0; i < arrival.count; i++)
		arrival.list[i]->offload.verified = false;
	count = coalesce_frames(arrival.list, arrival.count, kinds | COALESCE_VERIFY_LATER, scratch);
	for (uint32_t i = 0; i < count; i++) {
		const struct frame *frame = scratch->list[i];
		struct frame *const *parts;
		uint32_t part_count;

		if (frame->offload.gso == FRAME_GSO_NONE) {
			expect_alone(frame, seen, &last_alone);
			continue;
		}
		part_count = coalesce_parts(scratch, frame, &parts);
		assert_true(part_count >= 2);
		merged += part_count;
		if (copy_and_verify(frame)) {
			assert_int_equal(expect_segments(frame, seen), part_count);
			continue;
		}
		for (uint32_t k = 0; k < part_count; k++)
			expect_next(parts[k], seen);
	}
	expect_all(seen);
	assert_int_equal(scratch->counters.merged, merged);
	return count;
}

/* Return: how many frames came out. */
static uint32_t coalesce_and_check(uint32_t kinds)
{
	const uint32_t later = check_verified_later(kinds);
	uint32_t count, last_alone = 0, merged = 0, large = 0;
	bool seen[FRAME_BURST] = {false};

	count = coalesce_frames(arrival.list, arrival.count, kinds, scratch);
	for (uint32_t i = 0; i < count; i++) {
		const struct frame *frame = scratch->list[i];

		if (frame->offload.gso == FRAME_GSO_NONE) {
			expect_alone(frame, seen, &last_alone);
			continue;
		}
		assert_null(frame->offload.sums);
		large++;
		merged += expect_segments(frame, seen);
	}
	expect_all(seen);
	if (!scratch->counters.bad_sums)
		assert_int_equal(later, count);
	assert_int_equal(scratch->counters.made, large);
	assert_int_equal(scratch->counters.merged, merged);
	return count;
}

/* @p cut into payloads of @size arrives. */
static void arrive_stream(const struct packet *p, uint32_t size)
{
	for (uint32_t i = 0; i * size < p->payload; i++) {
		const struct packet part = packet_part(p, size, i);

		arrive(&part);
	}
}

/* --- what merges -------------------------------------------------------------------------------------------------- */

static void whole_streams(void **state)
{
	for (unsigned shape = 0; shape < 3 * 2 * 2 * 3; shape++) {
		static const uint32_t sizes[] = {18, 100, 1448}; /* shorter frames need padding, and are not joined */
		struct packet p = shape / 6 % 2 ? packet_udp4 : packet_tcp4;
		const uint32_t size = max_u32(sizes[shape / 12], p.udp ? 0 : VNET_GSO_SIZE_MIN_TCP);

		p.tags = shape % 3;
		p.family = shape / 3 % 2 ? 6 : 4;
		p.flags |= p.udp ? 0 : PSH;
		p.id = 0xfff8;
		for (uint32_t payload = size + 1; payload <= 40 * size; payload += 1 + dice(&seed, 3 * size)) {
			p.payload = payload;
			p.stream = dice(&seed, 100000);
			arrive_stream(&p, size);
			assert_int_equal(coalesce_and_check(ALL), 1);
			assert_int_equal(scratch->list[0]->length, packet_places(&p).length);
			assert_int_equal(scratch->list[0]->offload.gso_size, size);
			/* What a guest with all features gets is what the sender's stack could have sent as one. */
			frame_copy(scratch->list[0], got, true);
			packet_make(&p, made, false);
			assert_memory_equal(got, made, packet_places(&p).length);
			forget();
		}
	}
}

/* 64 KiB are the end of a frame, and the beginning of the next. */
static void limit_of_length(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;

		p.family = i & 2 ? 6 : 4;
		p.payload = 60 * 1448;
		arrive_stream(&p, 1448);
		assert_int_equal(coalesce_and_check(ALL), 2);
		assert_true(scratch->list[0]->length > 65535 - 1448);
		forget();
		p.payload = 5 * 30000;
		arrive_stream(&p, 30000);
		assert_int_equal(coalesce_and_check(ALL), 3);
		forget();
	}
	/* IPv6's length field does not count its header; GRO does. */
	for (unsigned beyond = 0; beyond < 2; beyond++) {
		struct packet p = packet_tcp4;

		p.family = 6;
		p.payload = 65535 - 40 - 32 + beyond;
		arrive_stream(&p, 8184);
		assert_int_equal(coalesce_and_check(ALL), 1 + beyond);
		forget();
	}
}

static void fixed_identification(void **state)
{
	for (unsigned df = 0; df < 2; df++) {
		struct packet p = packet_tcp4;

		p.payload = 1000;
		p.fragment = df ? 0x4000 : 0;
		p.id = 0;
		for (unsigned i = 0; i < 5; i++) {
			arrive(&p);
			p.seq += 1000;
			p.stream += 1000;
		}
		assert_int_equal(coalesce_and_check(ALL), df ? 1 : 5);
		assert_int_equal(scratch->list[0]->offload.fixed_id, df);
		forget();
	}
}

static void flows_interleaved(void **state)
{
	for (unsigned flows = 2; flows <= 8; flows++) {
		struct packet p[8];

		for (unsigned f = 0; f < flows; f++) {
			p[f] = f % 3 == 2 ? packet_udp4 : packet_tcp4;
			p[f].family = f % 2 ? 6 : 4;
			p[f].source_port = (uint16_t)(1000 + f);
			p[f].payload = 8 * 700;
			p[f].stream = 10000 * f;
		}
		for (unsigned i = 0; i < 8; i++) {
			for (unsigned f = 0; f < flows; f++) {
				const struct packet part = packet_part(&p[f], 700, i);

				arrive(&part);
			}
		}
		assert_int_equal(coalesce_and_check(ALL), flows);
		for (unsigned f = 0; f < flows; f++) /* each where its first frame stood */
			assert_int_equal(scratch->list[f]->head[packet_places(&p[f]).transport + 1], (1000 + f) & 0xff);
		forget();
	}
}

/* --- what does not ------------------------------------------------------------------------------------------------ */

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

/* Any bit of the second frame wrong: it is left alone, and so is what cannot follow it. */
static void bad_bits(void **state)
{
	for (unsigned i = 0; i < 8; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;
		uint32_t length = 0;

		p.family = i & 2 ? 6 : 4;
		p.tags = i / 4;
		p.payload = 3 * 300;
		for (uint32_t bit = 8 * 12; !length || bit < 8 * length; bit++) {
			for (uint32_t k = 0; k < 3; k++) {
				const struct packet part = packet_part(&p, 300, k);

				length = packet_make(&part, made, false);
				if (k == 1)
					made[bit / 8] ^= (uint8_t)(1 << bit % 8);
				/* Of which flow it is now is a question of which bit. */
				arrive_bytes(length, k == 1 ? 1u << 16 : p.source_port);
			}
			assert_true(coalesce_and_check(ALL) > 1);
			forget();
		}
	}
}

/* The copy tells which large frame holds a wrong part, at any place of it. */
static void verified_by_the_copy(void **state)
{
	for (uint32_t wrong = 0; wrong <= 10; wrong++) {
		struct packet p = packet_tcp4;
		struct frame *const *parts;

		p.payload = 10 * 999; /* odd */
		for (uint32_t i = 0; i < 10; i++) {
			const struct packet part = packet_part(&p, 999, i);
			const uint32_t length = packet_make(&part, made, false);

			if (i == wrong)
				made[packet_places(&part).payload + dice(&seed, 999)] ^= 4;
			arrive_bytes(length, 1);
		}
		assert_int_equal(coalesce_frames(arrival.list, 10, ALL | COALESCE_VERIFY_LATER, scratch), 1);
		assert_int_equal(copy_and_verify(scratch->list[0]), wrong == 10);
		assert_int_equal(coalesce_parts(scratch, scratch->list[0], &parts), 10);
		for (uint32_t i = 0; i < 10; i++)
			assert_ptr_equal(parts[i], arrival.list[i]);
		assert_true(coalesce_and_check(ALL) > 1 || wrong == 10);
		forget();
	}
}

/* What the device has verified is not summed again. */
static void verified_by_the_device(void **state)
{
	struct packet p = packet_tcp4;

	p.payload = 5000;
	arrive_stream(&p, 1000);
	for (uint32_t i = 0; i < 5; i++)
		arrival.list[i]->offload.verified = true;
	assert_int_equal(coalesce_frames(arrival.list, 5, ALL | COALESCE_VERIFY_LATER, scratch), 1);
	for (uint32_t i = 0; i < scratch->list[0]->segment_count; i++)
		assert_false(scratch->list[0]->offload.sums[i] & FRAME_SUM_CHECK);
	assert_true(copy_and_verify(scratch->list[0]));
	/* Some are verified, some not, and each one's bytes count for itself. */
	for (unsigned mask = 0; mask < 1u << 5; mask++) {
		for (uint32_t i = 0; i < 5; i++)
			arrival.list[i]->offload.verified = mask >> i & 1;
		assert_int_equal(coalesce_frames(arrival.list, 5, ALL | COALESCE_VERIFY_LATER, scratch), 1);
		assert_true(copy_and_verify(scratch->list[0]));
	}
	forget();
}

static void sums_in_unusual_form(void **state)
{
	struct packet p = packet_tcp4;

	p.payload = 2000;
	for (unsigned i = 0; i < 2; i++) {
		const struct packet part = packet_part(&p, 1000, i);
		const uint32_t length = packet_make(&part, made, false);

		if (i) { /* a payload with which the sum is 0, sent as 0xffff: right, but not what would be made again */
			put16(made + 34 + 16, 0);
			put16(made + packet_places(&part).payload, 0);
			put16(made + packet_places(&part).payload,
			      ~naive_add(naive_pseudo(made, &part, &(struct packet_places){14, 34, 66, length}), made + 34, length - 34));
			put16(made + 34 + 16, 0xffff);
		}
		arrive_bytes(length, 1);
	}
	assert_int_equal(coalesce_and_check(ALL), 2);
	forget();
	p = packet_udp4; /* no checksum at all */
	p.payload = 2000;
	for (unsigned i = 0; i < 2; i++) {
		const struct packet part = packet_part(&p, 1000, i);
		const uint32_t length = packet_make(&part, made, false);

		put16(made + 34 + 6, 0);
		arrive_bytes(length, 1);
	}
	assert_int_equal(coalesce_and_check(ALL), 2);
	forget();
}

static void padding_and_open_sums(void **state)
{
	struct packet p = packet_tcp4;
	uint32_t length;

	p.payload = 2;
	for (unsigned i = 0; i < 2; i++) {
		const struct packet part = packet_part(&p, 1, i);

		length = packet_make(&part, made, false);
		memset(made + length, 0, 3);
		arrive_bytes(length + 3, 1);
	}
	assert_int_equal(coalesce_and_check(ALL), 2);
	forget();
	p.payload = 2000;
	arrive_stream(&p, 1000);
	arrival.list[1]->offload.needs_checksum = true;
	assert_int_equal(coalesce_frames(arrival.list, 2, ALL, scratch), 2);
	arrival.list[1]->offload.needs_checksum = false;
	forget();
}

static void only_what_the_receiver_takes(void **state)
{
	for (unsigned i = 0; i < 4; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;
		const uint32_t own = i == 0 ? COALESCE_TCP4 : i == 1 ? COALESCE_UDP4 : i == 2 ? COALESCE_TCP6 : COALESCE_UDP6;

		p.family = i & 2 ? 6 : 4;
		p.payload = 3000;
		arrive_stream(&p, 1000);
		assert_int_equal(coalesce_and_check(own), 1);
		assert_int_equal(coalesce_and_check(ALL & ~own), 3);
		assert_int_equal(coalesce_and_check(0), 3);
		forget();
	}
	assert_int_equal(coalesce_kinds_for(EVERY_RECEIVER_FEATURE), ALL);
	assert_int_equal(coalesce_kinds_for(EVERY_RECEIVER_FEATURE & ~VNET_F_GUEST_CSUM), 0);
	assert_int_equal(coalesce_kinds_for(EVERY_RECEIVER_FEATURE & ~VNET_F_MRG_RXBUF), 0);
	assert_int_equal(coalesce_kinds_for(VNET_F_GUEST_CSUM | VNET_F_MRG_RXBUF | VNET_F_GUEST_ECN), 0);
	assert_int_equal(coalesce_kinds_for(VNET_F_GUEST_CSUM | VNET_F_MRG_RXBUF | VNET_F_GUEST_TSO6), COALESCE_TCP6);
	assert_int_equal(coalesce_frames(arrival.list, 0, ALL, scratch), 0);
}

/* The frames that went in are as they were: another receiver gets them one by one. */
static void leaves_what_it_got(void **state)
{
	struct packet p = packet_tcp4;

	p.payload = 20000;
	arrive_stream(&p, 1000);
	assert_int_equal(coalesce_and_check(ALL), 1);
	for (uint32_t i = 0; i < arrival.count; i++) {
		frame_copy(arrival.list[i], got, true);
		assert_memory_equal(got, arrival.bytes[i], arrival.list[i]->length);
		assert_true(arrival.list[i]->offload.verified);
	}
	forget();
}

static void whole_burst_in_place(void **state)
{
	struct frame_burst *in = calloc(1, sizeof(*in));
	struct packet a = packet_tcp4, b = packet_udp4, c = packet_tcp4, part;
	uint32_t count;

	a.payload = b.payload = c.payload = 5000;
	b.source_port = 8;
	c.source_port = 9;
	for (uint32_t i = 0; i < 5; i++) {
		part = packet_part(&a, 1000, i);
		arrive(&part);
		part = packet_part(&c, 1000, i);
		if (i == 2)
			part.ack++; /* two runs and one frame alone */
		arrive(&part);
		part = packet_part(&b, 1000, i);
		arrive(&part);
	}
	count = coalesce_and_check(ALL);
	assert_int_equal(count, 5);
	for (uint32_t i = 0; i < arrival.count; i++)
		in->frames[i] = *arrival.list[i];
	in->count = arrival.count;
	coalesce_burst(in, ALL, scratch);
	assert_int_equal(in->count, count);
	assert_int_equal(in->frames[0].length, packet_places(&a).length);
	assert_int_equal(in->frames[1].length, packet_places(&a).payload + 2000);
	assert_int_equal(in->frames[2].length, packet_places(&b).length);
	assert_int_equal(in->frames[3].length, packet_places(&a).payload + 1000);
	assert_int_equal(in->frames[3].offload.gso, FRAME_GSO_NONE);
	assert_int_equal(in->frames[4].length, packet_places(&a).payload + 2000);
	forget();
	free(in);
}

/* Streams with every kind of disturbance at random: nothing lost, nothing invented, no flow out of order. */
static void random_streams(void **state)
{
	uint32_t merged = 0, alone = 0;

	for (unsigned round = 0; round < 3000; round++) {
		struct packet flows[4];
		const unsigned count = 1 + dice(&seed, 64), flow_count = 1 + dice(&seed, 4);

		for (unsigned f = 0; f < flow_count; f++) {
			flows[f] = dice(&seed, 4) ? packet_tcp4 : packet_udp4;
			flows[f].family = dice(&seed, 2) ? 4 : 6;
			flows[f].tags = dice(&seed, 3);
			flows[f].source_port = (uint16_t)(100 + f);
			flows[f].seq = dice(&seed, UINT32_MAX);
			flows[f].id = (uint16_t)dice(&seed, 65536);
			flows[f].payload = 1 + dice(&seed, 1448);
			flows[f].stream = dice(&seed, 100000);
		}
		for (unsigned i = 0; i < count; i++) {
			struct packet *p = &flows[dice(&seed, flow_count)], now;

			now = *p;
			if (!dice(&seed, 12))
				now.payload = dice(&seed, now.payload + 1);
			if (!dice(&seed, 12))
				now.flags |= p->udp ? 0 : (uint8_t)(1 << dice(&seed, 8));
			if (!dice(&seed, 20))
				p->ack++;
			if (!dice(&seed, 30))
				p->window++;
			if (!dice(&seed, 30))
				p->seq += dice(&seed, 3000);
			if (!dice(&seed, 30))
				p->id++;
			arrive(&now);
			p->seq += now.payload;
			p->id++;
			p->stream += now.payload;
		}
		coalesce_and_check(ALL);
		merged += scratch->counters.merged;
		alone += arrival.count - scratch->counters.merged;
		forget();
	}
	assert_true(merged > 10000 && alone > 10000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(whole_streams, forget_all),
		cmocka_unit_test_teardown(limit_of_length, forget_all),
		cmocka_unit_test_teardown(fixed_identification, forget_all),
		cmocka_unit_test_teardown(flows_interleaved, forget_all),
		cmocka_unit_test_teardown(rules_of_headers, forget_all),
		cmocka_unit_test_teardown(rules_of_tcp, forget_all),
		cmocka_unit_test_teardown(rules_of_udp, forget_all),
		cmocka_unit_test_teardown(what_ends_a_run, forget_all),
		cmocka_unit_test_teardown(congestion_window_reduced, forget_all),
		cmocka_unit_test_teardown(bad_bits, forget_all),
		cmocka_unit_test_teardown(verified_by_the_copy, forget_all),
		cmocka_unit_test_teardown(verified_by_the_device, forget_all),
		cmocka_unit_test_teardown(sums_in_unusual_form, forget_all),
		cmocka_unit_test_teardown(padding_and_open_sums, forget_all),
		cmocka_unit_test_teardown(only_what_the_receiver_takes, forget_all),
		cmocka_unit_test_teardown(leaves_what_it_got, forget_all),
		cmocka_unit_test_teardown(whole_burst_in_place, forget_all),
		cmocka_unit_test_teardown(random_streams, forget_all),
	};

	return cmocka_run_group_tests_name("coalesce", tests, allocate, release);
}
