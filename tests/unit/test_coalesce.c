/* SPDX-License-Identifier: BSD-2-Clause */
/* Coalescing: what merges, for whom, and what holds of every burst. What does not merge: test_coalesce_rules.c, test_coalesce_sums.c. */
#include "coalesce_rig.h"

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

/* --- whatever the burst ------------------------------------------------------------------------------------------- */

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
		cmocka_unit_test_teardown(only_what_the_receiver_takes, forget_all),
		cmocka_unit_test_teardown(leaves_what_it_got, forget_all),
		cmocka_unit_test_teardown(whole_burst_in_place, forget_all),
		cmocka_unit_test_teardown(random_streams, forget_all),
	};

	return cmocka_run_group_tests_name("coalesce", tests, allocate, release);
}
