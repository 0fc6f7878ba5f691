/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flow hash that XDP and the engine both compute: symmetric, so that a frame and its answer fall into one bucket
 * and meet on one queue pair (virtio 1.2, 5.1.6.5.6: automatic receive steering).
 *
 * IPv4 and IPv6 without fragmentation: addresses, protocol, and ports for TCP, UDP and SCTP. Fragments and other
 * protocols: addresses and protocol only. All else: the two MAC addresses.
 */
#ifndef VHOSTLANE_FLOW_HASH_H
#define VHOSTLANE_FLOW_HASH_H

#ifndef __VMLINUX_H__
#include <linux/types.h>
#endif

/* What is hashed; unused parts are zero. Network byte order as read from the frame. */
struct vl_flow {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u32 protocol; /* IP protocol; for non-IP the EtherType << 8 */
};

static inline __u32 vl_flow_mix(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	h ^= h >> 16;
	return h;
}

/* Mixes each end by itself and adds the ends, which makes the result blind to direction. */
static inline __u32 vl_flow_hash(const struct vl_flow *f)
{
	__u32 a = vl_flow_mix(f->source[0] ^ vl_flow_mix(f->source[1] ^ vl_flow_mix(f->source[2] ^ vl_flow_mix(f->source[3] ^ f->source_port))));
	__u32 b = vl_flow_mix(f->destination[0] ^
			      vl_flow_mix(f->destination[1] ^ vl_flow_mix(f->destination[2] ^ vl_flow_mix(f->destination[3] ^ f->destination_port))));

	return vl_flow_mix(a + b + f->protocol);
}

#endif
