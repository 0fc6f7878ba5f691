/* SPDX-License-Identifier: BSD-2-Clause */
/* Every variant against a naive sum: all alignments and lengths around the vectors' edges, overflow, odd pieces, changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "datapath/checksum.c"
#include "kernel_variants.h"
#include "offload_packet.h"

struct variant {
	const char *name;
	uint64_t (*sum)(const uint8_t *, size_t);
	uint64_t (*copy)(uint8_t *, const uint8_t *, size_t);
	bool present;
};

static struct variant variants[] = {
	{.name = "chosen", .sum = checksum_sum, .copy = checksum_copy},
	{.name = "chosen, long", .sum = checksum_sum_long, .copy = checksum_copy},
	{.name = "plain", .sum = checksum_sum_short, .copy = copy_short},
#ifdef __x86_64__
	{.name = "sse2", .sum = sum_sse2, .copy = copy_sse2},
	{.name = "avx2", .sum = sum_avx2, .copy = copy_avx2},
	{.name = "vnni", .sum = sum_vnni, .copy = copy_vnni},
#endif
};

static int find_variants(void **state)
{
	for (unsigned i = 0; i < ARRAY_SIZE(variants); i++)
		variants[i].present = variant_runs(variants[i].name);
	return 0;
}

/* As a number of network byte order. */
static uint16_t folded(uint64_t sum)
{
	return be16toh(checksum_fold(sum));
}

static void check(const struct variant *v, const uint8_t *data, size_t length, unsigned to_offset)
{
	const uint16_t expected = (uint16_t)naive_add(0, data, (uint32_t)length);
	uint8_t *to = malloc(to_offset + length + 1);

	if (folded(v->sum(data, length)) != expected)
		fail_msg("%s: wrong sum of %zu bytes", v->name, length);
	memset(to, 0xa5, to_offset + length + 1);
	if (folded(v->copy(to + to_offset, data, length)) != expected)
		fail_msg("%s: wrong sum of %zu copied bytes", v->name, length);
	assert_memory_equal(to + to_offset, data, length);
	if (to_offset)
		assert_int_equal(to[to_offset - 1], 0xa5);
	assert_int_equal(to[to_offset + length], 0xa5);
	free(to);
}

/* In memory of the exact size, so that a sanitizer sees a read behind it. */
static void lengths_and_alignments(void **state)
{
	uint64_t seed = 1;

	for (unsigned offset = 0; offset < 33; offset++) {
		for (unsigned length = 0; length < 420; length += offset < 4 ? 1 : 1 + dice(&seed, 5)) {
			uint8_t *data = malloc(offset + length + !length);

			for (unsigned i = 0; i < offset + length; i++)
				data[i] = (uint8_t)dice(&seed, 256);
			for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
				if (variants[k].present)
					check(&variants[k], data + offset, length, dice(&seed, 65));
			free(data);
		}
	}
}

/* Lanes at their highest and lowest, as long as they may. */
static void extremes(void **state)
{
	const size_t length = CHECKSUM_MAX;
	uint8_t *data = malloc(length);
	static const uint8_t fills[] = {0xff, 0x00, 0x80, 0x7f};

	for (unsigned f = 0; f < ARRAY_SIZE(fills); f++) {
		memset(data, fills[f], length);
		for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
			if (variants[k].present)
				check(&variants[k], data, length, f);
	}
	/* Words of 0x8000 and 0x7fff as a vector unit sees them. */
	for (size_t i = 0; i < length; i++)
		data[i] = i % 2 ? 0x7f : 0xff;
	for (unsigned k = 0; k < ARRAY_SIZE(variants); k++)
		if (variants[k].present)
			check(&variants[k], data, length, 1);
	free(data);
}

static void pieces_of_odd_length(void **state)
{
	uint8_t data[3000], to[3000];
	uint64_t seed = 2;

	for (unsigned round = 0; round < 2000; round++) {
		const uint32_t length = dice(&seed, sizeof(data) + 1);
		struct checksum sum = {0}, copied = {0};

		for (uint32_t i = 0; i < length; i++)
			data[i] = (uint8_t)dice(&seed, 256);
		for (uint32_t at = 0; at < length;) {
			uint32_t n = 1 + dice(&seed, round % 3 ? 9 : 700);

			n = min_u32(n, length - at);
			checksum_add(&sum, data + at, n);
			checksum_add_copy(&copied, to + at, data + at, n);
			at += n;
		}
		assert_int_equal(folded(sum.sum), naive_add(0, data, length));
		assert_int_equal(folded(copied.sum), naive_add(0, data, length));
		assert_memory_equal(data, to, length);
	}
}

static void folding(void **state)
{
	assert_int_equal(checksum_fold(0), 0);
	assert_int_equal(checksum_fold(0xffff), 0xffff);
	assert_int_equal(checksum_fold(0x10000), 1);
	assert_int_equal(checksum_fold(0x1fffe), 0xffff);
	assert_int_equal(checksum_fold(UINT64_MAX), 0xffff);
	assert_int_equal(checksum_fold(0xffffffff00000001ull), 1);
	for (unsigned bit = 0; bit < 64; bit++)
		assert_int_equal(checksum_fold(1ull << bit), 1u << bit % 16);
}

/* Each change against a new sum of the changed header. A header is never all zero, so ~0 and 0 cannot be confused. */
static void changes(void **state)
{
	uint8_t header[40];
	uint64_t seed = 3;

	for (unsigned round = 0; round < 100000; round++) {
		const unsigned at = 2 * dice(&seed, 18);
		uint16_t field, sum, old, new;
		uint32_t old32, new32;

		for (unsigned i = 0; i < sizeof(header); i++)
			header[i] = (uint8_t)(round % 4 ? dice(&seed, 256) : dice(&seed, 2) * 0xff);
		header[39] |= 1;
		sum = checksum_fold(checksum_sum(header, sizeof(header)));
		field = (uint16_t)~sum;
		old = load_word(header + at);
		new = (uint16_t)(round % 5 ? dice(&seed, 65536) : 0xffff * dice(&seed, 2));
		store_word(header + at, new);
		assert_int_equal(checksum_change_sum(sum, old, new) % 0xffff, checksum_fold(checksum_sum(header, sizeof(header))) % 0xffff);
		assert_int_equal(checksum_change_field(field, old, new), (uint16_t)~checksum_fold(checksum_sum(header, sizeof(header))));
		field = checksum_change_field(field, old, new);
		memcpy(&old32, header + at, 4);
		new32 = dice(&seed, UINT32_MAX);
		memcpy(header + at, &new32, 4);
		assert_int_equal(checksum_change_field32(field, old32, new32),
				 (uint16_t)~checksum_fold(checksum_sum(header, sizeof(header))));
	}
}

/* RFC 1624, section 4: the example for which RFC 1141 gives -0. */
static void example_of_rfc_1624(void **state)
{
	assert_int_equal(be16toh(checksum_change_field(htobe16(0xdd2f), htobe16(0x5555), htobe16(0x3285))), 0x0000);
}

static void pseudo_headers(void **state)
{
	static uint8_t frame[PACKET_MAX];

	for (unsigned i = 0; i < 4; i++) {
		struct packet p = i & 1 ? packet_udp4 : packet_tcp4;
		struct packet_places at;
		uint64_t sum;

		p.family = i & 2 ? 6 : 4;
		packet_make(&p, frame, true);
		at = packet_places(&p);
		sum = p.family == 4 ? checksum_pseudo_ipv4(frame + at.network, p.udp ? 17 : 6, at.length - at.transport)
				    : checksum_pseudo_ipv6(frame + at.network, p.udp ? 17 : 6, at.length - at.transport);
		assert_int_equal(folded(sum), naive_pseudo(frame, &p, &at));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lengths_and_alignments),
		cmocka_unit_test(extremes),
		cmocka_unit_test(pieces_of_odd_length),
		cmocka_unit_test(folding),
		cmocka_unit_test(changes),
		cmocka_unit_test(example_of_rfc_1624),
		cmocka_unit_test(pseudo_headers),
	};

	return cmocka_run_group_tests_name("checksum", tests, find_variants, NULL);
}
