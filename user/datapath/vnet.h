/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The virtio-net header (virtio 1.2, 5.1.6): the place where a frame's checksum and segmentation state is read, judged
 * and written. Rings only carry it. No state; any thread.
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

/* True if the header asks nothing of the device: no checksum to complete, nothing to segment. */
static inline bool vnet_header_plain(const struct vnet_header *h)
{
	return (h->flags | h->gso_type) == 0;
}

#endif
