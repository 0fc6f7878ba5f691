/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Packets for the tests of checksums, segmentation and coalescing, and their oracle: written from the RFCs, byte by byte,
 * using nothing of what is tested. A packet is described, not patched, so that what must come out of an operation is made
 * the same way as what goes in.
 */
#ifndef TESTS_UNIT_OFFLOAD_PACKET_H
#define TESTS_UNIT_OFFLOAD_PACKET_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "datapath/frame.h"

#define PACKET_MAX 70000

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, ACK = 16, URG = 32, ECE = 64, CWR = 128 };

struct packet {
	unsigned tags;
	unsigned family; /* 4, 6 */
	bool udp;
	unsigned ip_options;  /* bytes of IPv4 options, or of IPv6 extension headers (multiple of 8) */
	unsigned tcp_options; /* bytes */
	uint8_t options_seed;
	uint8_t mac; /* last byte of the source address */
	uint16_t vlan;
	uint8_t host; /* last byte of the source IP address */
	uint8_t tos, ttl;
	uint16_t id, fragment;
	uint32_t flow_label;
	uint16_t source_port;
	uint32_t seq, ack;
	uint8_t reserved, flags;
	uint16_t window, urgent;
	uint32_t payload; /* bytes */
	uint32_t stream;  /* position in the stream of payload bytes */
};

static const struct packet packet_tcp4 __attribute__((unused)) = {
	.family = 4, .tcp_options = 12, .ttl = 64, .id = 0x1234, .fragment = 0x4000, .source_port = 33000, .host = 1, .vlan = 100,
	.seq = 0xfffff000, .ack = 77, .flags = ACK, .window = 501, .payload = 1448,
};
static const struct packet packet_udp4 __attribute__((unused)) = {
	.family = 4, .udp = true, .ttl = 64, .id = 0x1234, .source_port = 33000, .host = 1, .vlan = 100, .payload = 1200,
};

/* What stands where; offsets from the frame's first byte. */
struct packet_places {
	uint32_t network, transport, payload, length;
};

static inline struct packet_places packet_places(const struct packet *p)
{
	struct packet_places at;

	at.network = 14 + 4 * p->tags;
	at.transport = at.network + (p->family == 4 ? 20 : 40) + p->ip_options;
	at.payload = at.transport + (p->udp ? 8 : 20 + p->tcp_options);
	at.length = at.payload + p->payload;
	return at;
}

static inline void put16(uint8_t *to, uint32_t v)
{
	to[0] = (uint8_t)(v >> 8);
	to[1] = (uint8_t)v;
}

static inline void put32(uint8_t *to, uint32_t v)
{
	put16(to, v >> 16);
	put16(to + 2, v);
}

/* RFC 1071, in network byte order, carries folded at once. */
static inline uint32_t naive_add(uint32_t sum, const uint8_t *data, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++) {
		sum += i % 2 ? data[i] : (uint32_t)data[i] << 8;
		sum = (sum & 0xffff) + (sum >> 16);
	}
	return sum;
}

static inline uint32_t naive_pseudo(const uint8_t *frame, const struct packet *p, const struct packet_places *at)
{
	const uint8_t *ip = frame + at->network;
	uint8_t tail[8] = {0};
	uint32_t sum = p->family == 4 ? naive_add(0, ip + 12, 8) : naive_add(0, ip + 8, 32);

	put32(tail, at->length - at->transport);
	tail[7] = p->udp ? 17 : 6;
	return naive_add(sum, tail, 8);
}

static inline uint8_t stream_byte(uint32_t position)
{
	uint32_t v = position * 2654435761u;

	return (uint8_t)(v >> 24 ^ v >> 13);
}

static inline void put_options(uint8_t *to, unsigned length, uint8_t seed)
{
	for (unsigned i = 0; i < length; i++)
		to[i] = (uint8_t)(seed + i * 13);
}

/* Destination options of 8 bytes each, one behind the other. */
static inline uint8_t put_extensions(uint8_t *to, unsigned length, uint8_t seed, uint8_t protocol)
{
	for (unsigned i = 0; i < length; i += 8) {
		to[i] = i + 8 < length ? 60 : protocol;
		to[i + 1] = 0;
		to[i + 2] = 0x1e; /* an option for experiments */
		to[i + 3] = 4;
		memset(to + i + 4, seed, 4);
	}
	return length ? 60 : protocol;
}

static inline uint32_t packet_checksum_at(const struct packet *p, const struct packet_places *at)
{
	return at->transport + (p->udp ? 6 : 16);
}

/**
 * packet_make() - the packet as it goes over a wire
 * @open: the transport checksum left to a device: pseudo-header sum only
 * Return: its length
 */
static inline uint32_t packet_make(const struct packet *p, uint8_t *to, bool open)
{
	const struct packet_places at = packet_places(p);
	const uint8_t protocol = p->udp ? 17 : 6;
	uint8_t *ip = to + at.network, *transport = to + at.transport;
	uint32_t sum;

	memset(to, 0, at.payload);
	memcpy(to, "\x52\x54\x00\x00\x00\x01\x52\x54\x00\x00\x01", 11);
	to[11] = p->mac;
	for (unsigned i = 0; i < p->tags; i++) {
		put16(to + 12 + 4 * i, i + 1 < p->tags ? 0x88a8 : 0x8100);
		put16(to + 14 + 4 * i, p->vlan + i);
	}
	put16(ip - 2, p->family == 4 ? 0x0800 : 0x86dd);
	if (p->family == 4) {
		ip[0] = (uint8_t)(0x40 | (20 + p->ip_options) / 4);
		ip[1] = p->tos;
		put16(ip + 2, at.length - at.network);
		put16(ip + 4, p->id);
		put16(ip + 6, p->fragment);
		ip[8] = p->ttl;
		ip[9] = protocol;
		memcpy(ip + 12, "\x0a\x00\x00", 3);
		ip[15] = p->host;
		memcpy(ip + 16, "\x0a\x00\x01\x02", 4);
		put_options(ip + 20, p->ip_options, p->options_seed);
		put16(ip + 10, ~naive_add(0, ip, 20 + p->ip_options));
	} else {
		put32(ip, 6u << 28 | (uint32_t)p->tos << 20 | p->flow_label);
		put16(ip + 4, at.length - at.network - 40);
		ip[6] = put_extensions(ip + 40, p->ip_options, p->options_seed, protocol);
		ip[7] = p->ttl;
		memcpy(ip + 8, "\xfd\x00", 2);
		ip[23] = p->host;
		memcpy(ip + 24, "\xfd\x00", 2);
		ip[39] = 2;
	}
	put16(transport, p->source_port);
	put16(transport + 2, 5201);
	if (p->udp) {
		put16(transport + 4, at.length - at.transport);
	} else {
		put32(transport + 4, p->seq);
		put32(transport + 8, p->ack);
		transport[12] = (uint8_t)((20 + p->tcp_options) / 4 << 4 | p->reserved);
		transport[13] = p->flags;
		put16(transport + 14, p->window);
		put16(transport + 18, p->urgent);
		put_options(transport + 20, p->tcp_options, p->options_seed);
	}
	for (uint32_t i = 0; i < p->payload; i++)
		to[at.payload + i] = stream_byte(p->stream + i);
	sum = naive_pseudo(to, p, &at);
	if (!open) {
		sum = ~naive_add(sum, transport, at.length - at.transport) & 0xffff;
		if (p->udp && !sum)
			sum = 0xffff;
	}
	put16(to + packet_checksum_at(p, &at), sum);
	return at.length;
}

/* Part number @i of a packet cut into payloads of @size bytes, as Linux cuts it. */
static inline struct packet packet_part(const struct packet *whole, uint32_t size, uint32_t i)
{
	struct packet part = *whole;
	const uint32_t at = i * size;

	part.payload = whole->payload - at < size ? whole->payload - at : size;
	part.stream += at;
	part.seq += at;
	part.id = (uint16_t)(whole->id + i);
	if (i)
		part.flags &= (uint8_t)~CWR;
	if (at + part.payload < whole->payload)
		part.flags &= (uint8_t)~(FIN | PSH);
	return part;
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

/* A generator of its own, so that a run is the same everywhere. */
static inline uint32_t dice(uint64_t *state, uint32_t sides)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((*state >> 33) % sides);
}

/*
 * A frame in memory of its exact size: @head bytes as private head, the rest in pieces of 1 .. @piece bytes (0 = in one),
 * each allocated alone, so that a sanitizer sees every step outside.
 */
struct scattered {
	struct frame frame;
	uint8_t *head;
	struct frame_segment *segments;
};

static inline void scatter(struct scattered *s, const uint8_t *data, uint32_t length, uint32_t head, uint32_t piece, uint64_t *state)
{
	uint32_t at = length < head ? length : head, count = 0;

	memset(s, 0, sizeof(*s));
	s->head = malloc(FRAME_HEADROOM + at);
	memcpy(s->head + FRAME_HEADROOM, data, at);
	s->segments = calloc(FRAME_SEGMENTS, sizeof(*s->segments));
	s->frame.head = s->head + FRAME_HEADROOM;
	s->frame.head_length = (uint16_t)at;
	s->frame.length = length;
	while (at < length) {
		uint32_t n = piece && count < FRAME_SEGMENTS - 1 ? 1 + dice(state, piece) : length - at;
		uint8_t *memory;

		n = n < length - at ? n : length - at;
		memory = malloc(n);
		memcpy(memory, data + at, n);
		s->segments[count++] = (struct frame_segment){memory, n};
		at += n;
	}
	s->frame.segments = s->segments;
	s->frame.segment_count = (uint16_t)count;
}

static inline void scatter_free(struct scattered *s)
{
	for (uint32_t i = 0; i < s->frame.segment_count; i++)
		free((void *)(uintptr_t)s->segments[i].data);
	free(s->segments);
	free(s->head);
}

/* The header that a guest's driver writes for an open packet. */
static inline struct vnet_header packet_header(const struct packet *p, uint16_t gso_size)
{
	const struct packet_places at = packet_places(p);
	struct vnet_header h = {
		.flags = VNET_NEEDS_CSUM,
		.csum_start = (uint16_t)at.transport,
		.csum_offset = p->udp ? 6 : 16,
		.hdr_len = (uint16_t)at.payload,
	};

	if (gso_size) {
		h.gso_type = p->udp ? VNET_GSO_UDP : p->family == 4 ? VNET_GSO_TCP4 : VNET_GSO_TCP6;
		if (p->flags & CWR)
			h.gso_type |= VNET_GSO_ECN;
		h.gso_size = gso_size;
	}
	return h;
}

#define EVERY_SENDER_FEATURE (VNET_F_CSUM | VNET_F_HOST_TSO4 | VNET_F_HOST_TSO6 | VNET_F_HOST_ECN | VNET_F_HOST_USO)
#define EVERY_RECEIVER_FEATURE                                                                                         \
	(VNET_F_GUEST_CSUM | VNET_F_MRG_RXBUF | VNET_F_GUEST_TSO4 | VNET_F_GUEST_TSO6 | VNET_F_GUEST_ECN |             \
	 VNET_F_GUEST_USO4 | VNET_F_GUEST_USO6)

#endif
