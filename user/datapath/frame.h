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

#include <stdbool.h>
#include <stdint.h>

#include "datapath/vnet.h"

#define FRAME_BURST 64		/* frames of one burst */
#define FRAME_HEAD_MAX 128	/* private prefix of a frame, bytes */
#define FRAME_HEADROOM 16	/* writable bytes before a head, for a VLAN tag */
#define FRAME_SEGMENTS 1024	/* segments of one burst together; a frame that needs more alone is dropped and counted */
#define FRAME_LENGTH_MIN 14	/* shortest frame taken: an Ethernet header */
#define FRAME_LENGTH_PADDED 60	/* shortest frame delivered: shorter ones get zero bytes (IEEE 802.3 3.2.8) */
#define FRAME_LENGTH_MAX 65562	/* longest frame taken from a guest: 64 KiB of IP packet, Ethernet header, two tags, rounded */

/* Segmentation that a frame asks for. */
enum frame_gso {
	FRAME_GSO_NONE,
	FRAME_GSO_TCP4,
	FRAME_GSO_TCP6,
	FRAME_GSO_UDP4, /* into datagrams of their own (USO), not into fragments */
	FRAME_GSO_UDP6,
};

/*
 * What is known of a frame's checksum and of its segmentation, in host byte order, true of the frame as it is: judged by
 * vnet_judge(), or made by segmentation and coalescing. Offsets count from the Ethernet header's first byte. All zero:
 * nothing to do, nothing known.
 */
struct frame_offload {
	uint8_t gso;	     /* enum frame_gso; if not NONE, needs_checksum is set and the headers lie in the private head */
	bool ecn;	     /* gso: CWR is set, which belongs to the first segment only */
	bool fixed_id;	     /* gso, IPv4: all segments have one identification (DF is set), else it counts up */
	bool needs_checksum; /* the field at csum_start + csum_offset holds a sum to go on from; the rest up to the frame's
			      * end is summed while the frame is copied */
	bool verified;	     /* the transport checksum was found right */
	bool plain_checksum; /* needs_checksum, and it is that of the packet's own TCP or UDP header, whole in the private head and right
			      * behind a plain IP header: what devices know how to complete */
	uint16_t csum_start, csum_offset;
	uint16_t gso_size;	/* payload bytes of each segment but the last */
	uint16_t header_length; /* Ethernet through transport header; 0 = not known */
	/*
	 * Coalesced, its parts not verified yet: whoever copies the frame does so by frame_checksum_*() or frame_scatter_verified(),
	 * and takes the copy back if that finds it wrong. One for each of the frame's segments: what their payload is checked
	 * with. NULL = nothing to do.
	 */
	const uint32_t *sums;
};

/* In offload.sums, of the segment with which a part ends, 0 for others. */
#define FRAME_SUM_CHECK (1u << 31)    /* to be verified; the lower bits are the sum of its headers */
#define FRAME_SUM_VERIFIED (1u << 30) /* was verified before */

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
	struct frame_offload offload;		/* what that means for the frame, checked; zero in fresh frames */
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
