/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The Internet checksum (RFC 1071, RFC 1624) over memory of any alignment and length. No state; any thread.
 *
 * A sum is of 16-bit words as they lie in memory, unreduced in 64 bits, so that sums of pieces add up with a plain +
 * (up to 2^33 bytes in all). Byte order never matters: what is folded is stored as it is (RFC 1071, 2B). A piece that
 * starts an odd number of bytes into the data is swapped: checksum_odd(), or struct checksum, which keeps track.
 *
 * What a header holds is the complement of the folded sum. A pseudo-header sum that waits for its completion
 * (needs_checksum) is held folded and not complemented.
 */
#ifndef VHOSTLANE_DATAPATH_CHECKSUM_H
#define VHOSTLANE_DATAPATH_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "datapath/bytes.h"

#define CHECKSUM_SHORT 96	   /* bytes up to which plain code is faster than the call of vector code */
#define CHECKSUM_MAX (1u << 17) /* bytes of one call at most: more than any frame */

uint64_t checksum_sum_long(const uint8_t *data, size_t length);

/*
 * memcpy() and sum of the same bytes in one pass. Vectors may overlap at the end, so that a few bytes are loaded twice: who writes
 * to what he has given to be sent gets a sum that may be wrong, and nothing worse.
 */
uint64_t checksum_copy(uint8_t *to, const uint8_t *from, size_t length);

static inline uint64_t checksum_sum_short(const uint8_t *data, size_t length)
{
	uint64_t sum = 0, high = 0;

	for (; length >= 8; length -= 8, data += 8) {
		uint64_t v;

		memcpy(&v, data, 8);
		__asm__("" : "+r"(v)); /* a vector loop would cost more than it saves */
		sum += v & 0xffffffff;
		high += v >> 32;
	}
	sum += high;
	if (length & 4) {
		uint32_t v;

		memcpy(&v, data, 4);
		sum += v;
		data += 4;
	}
	if (length & 2) {
		sum += load_word(data);
		data += 2;
	}
	if (length & 1) {
		uint16_t v = 0;

		memcpy(&v, data, 1); /* the word's first byte, whatever the byte order */
		sum += v;
	}
	return sum;
}

static inline uint64_t checksum_sum(const uint8_t *data, size_t length)
{
	return length <= CHECKSUM_SHORT ? checksum_sum_short(data, length) : checksum_sum_long(data, length);
}

/* To 16 bits. 0 only for a sum of 0. */
static inline uint16_t checksum_fold(uint64_t sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (uint16_t)sum;
}

/* A piece's sum where the piece starts at an odd byte of the data: times 256, which is what swapping comes to. */
static inline uint64_t checksum_shift(uint64_t sum, bool odd)
{
	const unsigned bits = odd * 8u;

	return sum << bits | sum >> (-bits & 63);
}

static inline uint64_t checksum_odd(uint64_t sum)
{
	return checksum_shift(sum, true);
}

/* --- piece by piece ----------------------------------------------------------------------------------------------- */

struct checksum {
	uint64_t sum;
	bool odd; /* bytes so far */
};

static inline void checksum_add_sum(struct checksum *c, uint64_t sum, size_t length)
{
	c->sum += checksum_shift(sum, c->odd); /* lengths vary: no branch */
	c->odd ^= length & 1;
}

static inline void checksum_add(struct checksum *c, const uint8_t *data, size_t length)
{
	checksum_add_sum(c, checksum_sum(data, length), length);
}

static inline void checksum_add_copy(struct checksum *c, uint8_t *to, const uint8_t *from, size_t length)
{
	checksum_add_sum(c, checksum_copy(to, from, length), length);
}

/* --- pseudo-headers and changes ----------------------------------------------------------------------------------- */

/* Of TCP and UDP; @ip is a whole header, @length that of the transport header and its payload (RFC 9293 3.1, RFC 8200 8.1). */
static inline uint64_t checksum_pseudo_ipv4(const uint8_t *ip, uint8_t protocol, uint32_t length)
{
	return checksum_sum_short(ip + 12, 8) + htobe16(protocol) + htobe16((uint16_t)length);
}

static inline uint64_t checksum_pseudo_ipv6(const uint8_t *ip, uint8_t protocol, uint32_t length)
{
	return checksum_sum_short(ip + 8, 32) + htobe16(protocol) + htobe32(length);
}

/*
 * A word @from of summed data becomes @to (both as they lie in memory). _sum: of a folded, uncomplemented sum.
 * _field: of a header's complemented field (RFC 1624, equation 3: never -0 for +0).
 */
static inline uint16_t checksum_change_sum(uint16_t sum, uint16_t from, uint16_t to)
{
	return checksum_fold((uint64_t)sum + (uint16_t)~from + to);
}

static inline uint16_t checksum_change_field(uint16_t field, uint16_t from, uint16_t to)
{
	return (uint16_t)~checksum_change_sum((uint16_t)~field, from, to);
}

static inline uint16_t checksum_change_field32(uint16_t field, uint32_t from, uint32_t to)
{
	return (uint16_t)~checksum_fold((uint64_t)(uint16_t)~field + (uint32_t)~from + to);
}

#endif
