/* SPDX-License-Identifier: BSD-2-Clause */
/* Packet fixtures, built header by header. Values are in host byte order where a number has one. */
#ifndef VHOSTLANE_TESTS_PACKET_H
#define VHOSTLANE_TESTS_PACKET_H

#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>

#define PACKET_MAX 512

struct packet {
	uint8_t data[PACKET_MAX];
	uint32_t length;
};

static inline void packet_bytes(struct packet *p, const void *bytes, uint32_t count)
{
	memcpy(p->data + p->length, bytes, count);
	p->length += count;
}

static inline void packet_u8(struct packet *p, uint8_t v)
{
	packet_bytes(p, &v, 1);
}

static inline void packet_u16(struct packet *p, uint16_t v)
{
	v = htons(v);
	packet_bytes(p, &v, 2);
}

static inline void packet_u32(struct packet *p, uint32_t v)
{
	v = htonl(v);
	packet_bytes(p, &v, 4);
}

static inline void packet_fill(struct packet *p, uint8_t v, uint32_t count)
{
	memset(p->data + p->length, v, count);
	p->length += count;
}

/* Addresses only: tags and the EtherType follow. */
static inline void packet_start(struct packet *p, const uint8_t *to, const uint8_t *from)
{
	memset(p, 0, sizeof(*p));
	packet_bytes(p, to, 6);
	packet_bytes(p, from, 6);
}

static inline void packet_tag(struct packet *p, uint16_t protocol, uint16_t tci)
{
	packet_u16(p, protocol);
	packet_u16(p, tci);
}

/* @options: bytes, a multiple of 4. @fragment: flags and offset. Writes the EtherType too. */
static inline void packet_ipv4(struct packet *p, uint32_t from, uint32_t to, uint8_t protocol, uint32_t options,
			       uint16_t fragment)
{
	packet_u16(p, 0x0800);
	packet_u8(p, (uint8_t)(0x40 | (20 + options) / 4));
	packet_u8(p, 0);
	packet_u16(p, (uint16_t)(20 + options + 28));
	packet_u16(p, 7);
	packet_u16(p, fragment);
	packet_u8(p, 64);
	packet_u8(p, protocol);
	packet_u16(p, 0);
	packet_u32(p, from);
	packet_u32(p, to);
	packet_fill(p, 1, options);
}

static inline void packet_ipv6(struct packet *p, const uint8_t *from, const uint8_t *to, uint8_t next)
{
	packet_u16(p, 0x86dd);
	packet_u32(p, 0x60000000);
	packet_u16(p, 100);
	packet_u8(p, next);
	packet_u8(p, 64);
	packet_bytes(p, from, 16);
	packet_bytes(p, to, 16);
}

/* An extension header of @length bytes, counted in @unit bytes beyond @base of them (RFC 8200; AH: RFC 4302). */
static inline void packet_extension(struct packet *p, uint8_t next, uint32_t length, uint32_t unit, uint32_t base)
{
	packet_u8(p, next);
	packet_u8(p, (uint8_t)((length - base) / unit));
	packet_fill(p, 0, length - 2);
}

static inline void packet_ports(struct packet *p, uint16_t from, uint16_t to)
{
	packet_u16(p, from);
	packet_u16(p, to);
	packet_fill(p, 0x5a, 24);
}

#endif
