/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the headers of a frame lie. Reads a private head only and nothing beyond it; what is not whole or not understood
 * is said to be unknown. Sees the same headers as vhostlane/flow_hash.h. No state; any thread.
 *
 * The lengths that headers claim are not checked against the frame: a frame that asks for segmentation may claim any.
 */
#ifndef VHOSTLANE_DATAPATH_LAYOUT_H
#define VHOSTLANE_DATAPATH_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#define ETHERNET_HEADER_LENGTH 14

enum layout_level {
	LAYOUT_UNKNOWN,	  /* no whole IP header; all else is 0 */
	LAYOUT_NETWORK,	  /* IP, and as far as it says the protocol that follows */
	LAYOUT_TRANSPORT, /* a whole TCP or UDP header too */
};

enum layout_flags {
	LAYOUT_FRAGMENT = 1,	   /* any fragment, the first and "atomic" ones included: no transport header */
	LAYOUT_OPTIONS = 2,	   /* IPv4 options or IPv6 extension headers */
	LAYOUT_AUTHENTICATED = 4,  /* an authentication header: nothing may be changed */
	LAYOUT_SOURCE_ROUTED = 8,  /* a routing header not used up: the pseudo-header's destination is not the header's */
};

struct layout {
	uint8_t level;	    /* enum layout_level */
	uint8_t family;	    /* 4, 6 */
	uint8_t protocol;   /* what follows the IP headers that could be walked */
	uint8_t flags;	    /* enum layout_flags */
	uint16_t network;   /* offset of the IP header: 14 and 4 for each VLAN tag */
	uint16_t transport; /* offset of what protocol names; 0 = not in the head, or a fragment */
	uint16_t payload;   /* level TRANSPORT: offset of the first byte behind TCP options or the UDP header */
	uint32_t end;	    /* offset of the first byte behind the IP packet, by its own word */
};

/**
 * layout_parse() - find the headers
 * @head: the frame's first bytes, @length of them; only these are looked at
 */
void layout_parse(const uint8_t *head, uint32_t length, struct layout *layout);

/* TCP or UDP behind an IP header without any extension. */
static inline bool layout_is_plain(const struct layout *layout)
{
	return layout->level == LAYOUT_TRANSPORT && !layout->flags;
}

#endif
