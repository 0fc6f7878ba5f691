/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/layout.h"

#include <netinet/in.h>

#include "common/util.h"
#include "datapath/bytes.h"
#include "vhostlane/flow_hash.h"

#define IPV4_MORE_OR_OFFSET 0x3fff /* more fragments, or not the first */

static inline bool has(uint32_t offset, uint32_t bytes, uint32_t length)
{
	return offset + bytes <= length; /* both small: offsets within a head */
}

/* TCP or UDP at ->transport. */
static inline void parse_transport(const uint8_t *head, uint32_t length, struct layout *layout)
{
	const uint32_t at = layout->transport;
	uint32_t header;

	if (layout->protocol == IPPROTO_TCP) {
		if (unlikely(!has(at, 20, length)))
			return;
		header = (head[at + 12] >> 4) * 4u;
		if (unlikely(header < 20 || !has(at, header, length)))
			return;
	} else if (layout->protocol == IPPROTO_UDP) {
		if (unlikely(!has(at, 8, length)))
			return;
		header = 8;
	} else {
		return;
	}
	layout->payload = (uint16_t)(at + header);
	layout->level = LAYOUT_TRANSPORT;
}

static inline void parse_ipv4(const uint8_t *head, uint32_t length, uint32_t at, struct layout *layout)
{
	uint32_t header;

	if (unlikely(!has(at, 20, length) || head[at] >> 4 != 4))
		return;
	header = (head[at] & 0xf) * 4u;
	if (unlikely(header < 20))
		return;
	layout->level = LAYOUT_NETWORK;
	layout->family = 4;
	layout->protocol = head[at + 9];
	layout->network = (uint16_t)at;
	layout->end = at + load_be16(head + at + 2);
	if (unlikely(header > 20))
		layout->flags |= LAYOUT_OPTIONS;
	if (unlikely(load_be16(head + at + 6) & IPV4_MORE_OR_OFFSET)) {
		layout->flags |= LAYOUT_FRAGMENT;
		return;
	}
	if (unlikely(!has(at, header, length)))
		return;
	layout->transport = (uint16_t)(at + header);
	parse_transport(head, length, layout);
}

static inline bool is_extension(uint8_t next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS || next == IPPROTO_AH || next == IPPROTO_FRAGMENT;
}

/* Walks extension headers from @at on. Return: offset of what follows them; 0 = not in the head, or a fragment. */
static uint32_t walk_extensions(const uint8_t *head, uint32_t length, uint32_t at, struct layout *layout)
{
	for (unsigned i = 0; i < VL_FLOW_EXTENSIONS; i++) {
		const uint8_t next = layout->protocol;

		if (!is_extension(next))
			return at;
		layout->flags |= LAYOUT_OPTIONS;
		if (!has(at, 8, length))
			return 0;
		layout->protocol = head[at];
		if (next == IPPROTO_FRAGMENT) {
			layout->flags |= LAYOUT_FRAGMENT;
			return 0;
		}
		if (next == IPPROTO_AH)
			layout->flags |= LAYOUT_AUTHENTICATED;
		if (next == IPPROTO_ROUTING && head[at + 3])
			layout->flags |= LAYOUT_SOURCE_ROUTED;
		at += next == IPPROTO_AH ? (head[at + 1] + 2u) * 4 : (head[at + 1] + 1u) * 8;
		if (at > length)
			return 0;
	}
	return is_extension(layout->protocol) ? 0 : at;
}

static inline void parse_ipv6(const uint8_t *head, uint32_t length, uint32_t at, struct layout *layout)
{
	if (unlikely(!has(at, 40, length) || head[at] >> 4 != 6))
		return;
	layout->level = LAYOUT_NETWORK;
	layout->family = 6;
	layout->protocol = head[at + 6];
	layout->network = (uint16_t)at;
	layout->end = at + 40 + load_be16(head + at + 4);
	layout->transport = (uint16_t)walk_extensions(head, length, at + 40, layout);
	if (likely(layout->transport))
		parse_transport(head, length, layout);
}

void layout_parse(const uint8_t *head, uint32_t length, struct layout *layout)
{
	uint32_t at = ETHERNET_HEADER_LENGTH;
	uint16_t ethertype;

	*layout = (struct layout){.level = LAYOUT_UNKNOWN};
	if (unlikely(!has(0, at, length)))
		return;
	ethertype = load_word(head + at - 2);
	for (unsigned i = 0; i < VL_FLOW_VLAN_TAGS && unlikely(vl_ethertype_is_vlan(ethertype)) && has(at, 4, length); i++) {
		ethertype = load_word(head + at + 2);
		at += 4;
	}
	if (ethertype == VL_ETHERTYPE_IPV4)
		parse_ipv4(head, length, at, layout);
	else if (ethertype == VL_ETHERTYPE_IPV6)
		parse_ipv6(head, length, at, layout);
}
