/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine's side of the flow hash (vhostlane/flow_hash.h): reads a frame's private head. No state; any thread. */
#ifndef VHOSTLANE_DATAPATH_FLOW_H
#define VHOSTLANE_DATAPATH_FLOW_H

#include <stdint.h>

#include "vhostlane/flow_hash.h"

/* @head: the first @length bytes of the frame, private memory. Equal to what XDP computes for the same frame. */
static inline uint32_t flow_hash_frame(const uint8_t *head, uint32_t length)
{
	return vl_flow_hash_frame(head, head + length);
}

#define ETHERNET_TYPE_OFFSET 12
#define VLAN_TAG_LENGTH 4

static inline int frame_is_tagged(const uint8_t *head, uint32_t length)
{
	const uint8_t *type = head + ETHERNET_TYPE_OFFSET;

	return ((type[0] == 0x81 && type[1] == 0x00) || (type[0] == 0x88 && type[1] == 0xa8)) && length >= ETHERNET_TYPE_OFFSET + 2 + VLAN_TAG_LENGTH;
}

/* VID of the outer VLAN tag (802.1Q or 802.1ad); 0 = untagged or priority-tagged. @length >= 14. */
static inline uint16_t frame_vlan(const uint8_t *head, uint32_t length)
{
	const uint8_t *tag = head + ETHERNET_TYPE_OFFSET + 2;

	return frame_is_tagged(head, length) ? (uint16_t)((tag[0] << 8 | tag[1]) & 0xfff) : 0;
}

#endif
