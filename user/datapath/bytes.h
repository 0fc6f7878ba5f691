/* SPDX-License-Identifier: BSD-2-Clause */
/* Fields of headers, at any alignment. be: network byte order to host's. word: as it lies, for checksums. */
#ifndef VHOSTLANE_DATAPATH_BYTES_H
#define VHOSTLANE_DATAPATH_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t load_word(const uint8_t *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline void store_word(uint8_t *p, uint16_t v)
{
	memcpy(p, &v, sizeof(v));
}

/* For comparing. */
static inline uint32_t load_32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline uint64_t load_64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline uint16_t load_be16(const uint8_t *p)
{
	return be16toh(load_word(p));
}

static inline uint32_t load_be32(const uint8_t *p)
{
	return be32toh(load_32(p));
}

static inline void store_be16(uint8_t *p, uint16_t v)
{
	store_word(p, htobe16(v));
}

static inline void store_be32(uint8_t *p, uint32_t v)
{
	v = htobe32(v);
	memcpy(p, &v, sizeof(v));
}

#endif
