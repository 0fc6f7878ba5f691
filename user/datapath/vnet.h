/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The virtio-net header (virtio 1.2, 5.1.6): the place where a frame's checksum and segmentation state is read, judged
 * and written. Rings only carry it. No state; any thread.
 *
 * From a guest: vnet_judge() checks the header against the frame and its sender's features, and fills frame->offload, which
 * is all that others look at. To a guest: vnet_receiver_takes() says whether the frame may go as it is; if not, its
 * checksum is completed (frame_checksum.h) or it is segmented (segment.h). vnet_header_for() writes the header.
 */
#ifndef VHOSTLANE_DATAPATH_VNET_H
#define VHOSTLANE_DATAPATH_VNET_H

#include <stdbool.h>
#include <stdint.h>

/* As on the ring, little endian; 12 bytes with VIRTIO_F_VERSION_1 or MRG_RXBUF, else the first 10. */
struct vnet_header {
	uint8_t flags;
	uint8_t gso_type;
	uint16_t hdr_len;
	uint16_t gso_size;
	uint16_t csum_start;
	uint16_t csum_offset;
	uint16_t num_buffers;
};
_Static_assert(sizeof(struct vnet_header) == 12, "virtio 1.2, 5.1.6");

#define VNET_HEADER_LEGACY 10
#define VNET_HEADER_MODERN 12

struct frame;

/* Fields of the header and feature bits (5.1.3, 5.1.6) under names of our own: system headers may lack the later ones. */
#define VNET_NEEDS_CSUM 1
#define VNET_DATA_VALID 2
enum vnet_gso { VNET_GSO_NONE = 0, VNET_GSO_TCP4 = 1, VNET_GSO_TCP6 = 4, VNET_GSO_UDP = 5, VNET_GSO_ECN = 0x80 };

#define VNET_F_CSUM (1ull << 0)
#define VNET_F_GUEST_CSUM (1ull << 1)
#define VNET_F_GUEST_TSO4 (1ull << 7)
#define VNET_F_GUEST_TSO6 (1ull << 8)
#define VNET_F_GUEST_ECN (1ull << 9)
#define VNET_F_HOST_TSO4 (1ull << 11)
#define VNET_F_HOST_TSO6 (1ull << 12)
#define VNET_F_HOST_ECN (1ull << 13)
#define VNET_F_MRG_RXBUF (1ull << 15)
#define VNET_F_GUEST_USO4 (1ull << 54)
#define VNET_F_GUEST_USO6 (1ull << 55)
#define VNET_F_HOST_USO (1ull << 56)

/* Why a frame's header cannot be followed. Names in vnet_verdict_names[], as counters have them. */
#define VNET_VERDICTS(X)                                                                                               \
	X(GOOD, "good")                                                                                                \
	X(NOT_NEGOTIATED, "header_not_negotiated")	/* asks for an offload that its driver did not accept */      \
	X(CSUM_START, "header_csum_start")		/* outside the frame, or within another header */              \
	X(CSUM_OFFSET, "header_csum_offset")		/* outside the frame, or not where this protocol has its sum */\
	X(CSUM_PROTOCOL, "header_csum_protocol")	/* a protocol whose checksum is no Internet checksum */        \
	X(GSO_TYPE, "header_gso_type")			/* none that is known, or a contradiction */                   \
	X(GSO_SIZE, "header_gso_size")			/* none, so small that it multiplies work, or too large for IP */\
	X(GSO_NO_CSUM, "header_gso_without_csum")	/* segmentation without checksum completion (5.1.6.2.1) */     \
	X(GSO_PROTOCOL, "header_gso_protocol")		/* the frame is no such packet, or its headers are too long */

enum vnet_verdict {
#define VNET_VERDICT_ENUM(name, text) VNET_##name,
	VNET_VERDICTS(VNET_VERDICT_ENUM)
#undef VNET_VERDICT_ENUM
	VNET_VERDICT_COUNT
};
extern const char *const vnet_verdict_names[VNET_VERDICT_COUNT];

/*
 * Least gso_size for TCP: what Linux can come down to (TCP_MIN_SND_MSS of 48 less 12 of timestamps). Most datagrams of
 * one frame: Linux's UDP_MAX_SEGMENTS. Both bound the frames that one frame can become.
 */
#define VNET_GSO_SIZE_MIN_TCP 36
#define VNET_GSO_DATAGRAMS_MAX 128

/* True if the header asks nothing of the device: no checksum to complete, nothing to segment. */
static inline bool vnet_header_plain(const struct vnet_header *h)
{
	return (h->flags | h->gso_type) == 0;
}

/**
 * vnet_judge() - what a guest asks for a frame, checked
 * @frame:      head private, ->vnet a private copy; ->offload is filled, all zero unless GOOD
 * @negotiated: features of the frame's sender
 *
 * Unknown flags are ignored, hdr_len is not looked at (5.1.6.2.2). A "segmentation" into a single segment is none.
 * Return: VNET_GOOD, or why the frame must be dropped.
 */
enum vnet_verdict vnet_judge(struct frame *frame, uint64_t negotiated);

/* Whether a guest with these features can be given the frame as it is: with its checksum open and unsegmented. */
bool vnet_receiver_takes(const struct frame *frame, uint64_t negotiated);

/*
 * The header for a guest with these features; ->num_buffers is the ring's. For a frame that the guest does not take as it
 * is, the header is that of the completed frame.
 */
void vnet_header_for(const struct frame *frame, uint64_t negotiated, struct vnet_header *header);

/* After the head grew (@bytes > 0) or shrank in front of the IP header: a VLAN tag pushed or popped. */
void frame_offload_shift(struct frame *frame, int bytes);

#endif
