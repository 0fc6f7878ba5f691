/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which UMEM chunk holds the frames of a given MTU. A frame is MTU + Ethernet header + up to two VLAN tags; the kernel keeps 256 bytes of
 * a chunk as headroom for XDP, vhostlane some for a tag. Above what 4096 bytes hold, frames span chunks (XDP_USE_SG). No state; any thread.
 */
#ifndef VHOSTLANE_CONTROL_LANE_FIT_H
#define VHOSTLANE_CONTROL_LANE_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "datapath/frame.h"

#define LANE_FIT_XDP_HEADROOM 256	 /* XDP_PACKET_HEADROOM */
#define LANE_FIT_ETHERNET (14 + 2 * 4) /* header and two tags */
#define LANE_FIT_MTU_MAX 9194		 /* 9216 bytes on the wire */

struct lane_fit {
	uint32_t frame_size;
	bool multi_buffer;
	unsigned mtu_max; /* largest MTU that these chunks carry */
};

static inline unsigned lane_fit_mtu_max(uint32_t frame_size)
{
	return frame_size - LANE_FIT_XDP_HEADROOM - FRAME_HEADROOM - LANE_FIT_ETHERNET;
}

/* Return: false if the MTU is more than vhostlane carries at all. */
static inline bool lane_fit_for_mtu(unsigned mtu, struct lane_fit *fit)
{
	fit->multi_buffer = mtu > lane_fit_mtu_max(4096);
	fit->frame_size = mtu > lane_fit_mtu_max(2048) ? 4096 : 2048;
	fit->mtu_max = fit->multi_buffer ? LANE_FIT_MTU_MAX : lane_fit_mtu_max(fit->frame_size);
	return mtu <= LANE_FIT_MTU_MAX;
}

#endif
