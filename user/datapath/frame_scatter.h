/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A coalesced frame's payload to scattered places, verified part by part on the way (offload.sums). What frame_checksum_*()
 * does piece by piece, in one call: large frames are worth it. No state; any thread.
 */
#ifndef VHOSTLANE_DATAPATH_FRAME_SCATTER_H
#define VHOSTLANE_DATAPATH_FRAME_SCATTER_H

#include "datapath/frame.h"

struct scatter_place {
	uint8_t *to;
	uint32_t length; /* bytes; may be 0 */
};

/*
 * The frame's segments, to @places, which have room for all of them. Return: false if a part was found wrong: the copy must not be
 * delivered, the parts are (coalesce_parts()).
 */
bool frame_scatter_verified(const struct frame *frame, const struct scatter_place *places);

#endif
