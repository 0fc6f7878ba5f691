/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A frame on its way through one worker: what ring, switch and lane hand each other. It owns no memory: the bytes stay
 * in guest memory or in a UMEM frame until the burst is finished. One burst belongs to one worker.
 *
 * The first bytes (up to FRAME_HEAD_MAX) are private: a frame from a guest has them copied before anything is judged
 * by them, and it is this copy that is delivered (design section 8). The rest is only ever copied, never looked at.
 */
#ifndef VHOSTLANE_DATAPATH_FRAME_H
#define VHOSTLANE_DATAPATH_FRAME_H

#include <stdint.h>

#include "datapath/vnet.h"

#define FRAME_BURST 64		/* frames of one burst */
#define FRAME_HEAD_MAX 128	/* private prefix of a frame, bytes */
#define FRAME_HEADROOM 16	/* writable bytes before a head, for a VLAN tag */
#define FRAME_SEGMENTS 1024	/* segments of one burst together; a frame that needs more alone is dropped and counted */
#define FRAME_LENGTH_MIN 14	/* shortest frame taken: an Ethernet header */
#define FRAME_LENGTH_PADDED 60	/* shortest frame delivered: shorter ones get zero bytes (IEEE 802.3 3.2.8) */
#define FRAME_LENGTH_MAX 65562	/* longest frame taken from a guest: 64 KiB of IP packet, Ethernet header, two tags, rounded */

struct frame_segment {
	const uint8_t *data;
	uint32_t length;
};

struct frame {
	uint8_t *head;				/* private; FRAME_HEADROOM writable bytes lie before it */
	const struct frame_segment *segments;	/* what follows the head */
	uint32_t length;			/* head_length + sum of the segments; no virtio header, no FCS */
	uint16_t head_length;			/* min(length, FRAME_HEAD_MAX), or more where the whole frame is private */
	uint16_t segment_count;
	struct vnet_header vnet;		/* what the sender said of checksum and segmentation, read once */
	uint16_t origin;			/* ring: head of the chain. lane: unused */
};

struct frame_burst {
	uint32_t count;
	uint32_t segment_count;
	struct frame frames[FRAME_BURST];
	struct frame_segment segments[FRAME_SEGMENTS];
	/* Copied heads of guests' frames. */
	uint8_t heads[FRAME_BURST][FRAME_HEADROOM + FRAME_HEAD_MAX] __attribute__((aligned(16)));
};

#endif
