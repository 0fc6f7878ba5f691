/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What decides whose a frame is: its destination address and VLAN. The flow is parsed in vhostlane/flow_hash.h. */
#ifndef VHOSTLANE_PARSE_H
#define VHOSTLANE_PARSE_H

#include "vmlinux.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "vhostlane/bpf_abi.h"
#include "vhostlane/flow_hash.h"

#define VLAN_ID_MASK 0x0fff

struct destination {
	struct vl_port_key key;
	bool multicast; /* or broadcast */
	__u8 source[6];
};

/**
 * parse_destination() - read MAC and VLAN of a frame
 *
 * VLAN: the outer tag's identifier. A priority tag (identifier 0) is no VLAN (IEEE 802.1Q, 9.6). A tag that is cut off is
 * none either: such a frame is judged by its address alone.
 * Return: false if there is no whole Ethernet header.
 */
static __always_inline bool parse_destination(const void *data, const void *end, struct destination *to)
{
	const struct ethhdr *eth = data;
	const struct vlan_hdr *tag = (const void *)(eth + 1);

	if ((const void *)(eth + 1) > end)
		return false;
	__builtin_memcpy(to->key.mac, eth->h_dest, sizeof(to->key.mac));
	to->key.vlan = VL_VLAN_NONE;
	to->multicast = eth->h_dest[0] & 1;
	__builtin_memcpy(to->source, eth->h_source, sizeof(to->source));
	if (vl_ethertype_is_vlan(eth->h_proto) && (const void *)(tag + 1) <= end)
		to->key.vlan = bpf_ntohs(tag->h_vlan_TCI) & VLAN_ID_MASK;
	return true;
}

#endif
