/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Layouts that the BPF programs and the engine share. One header for both sides, so that they cannot disagree.
 *
 * Maps are pinned under /sys/fs/bpf/vhostlane/UPLINK/ (see bpf/maps.h for the types):
 *   ports           struct vl_port_key  -> struct vl_port_value    engine writes; XDP and tc read
 *   queue_affinity  struct vl_queue_key -> struct vl_queue_value   engine and operator write; XDP, tc and engine read
 *   flow_steering   __u32 port id       -> struct vl_flow_row      engine stores through mmap; XDP and tc read
 *   lanes           __u32 index         -> AF_XDP socket           engine writes; XDP redirects
 *   wire_claims     struct vl_port_key -> __u64 frames             XDP writes; engine reads and deletes
 *   port_vlans      __u32 port id       -> struct vl_vlan_row      engine writes; XDP and tc read
 *   counters        __u32 enum vl_reason-> __u64 per CPU           XDP and tc count; engine reads
 *   settings        __u32 0             -> struct vl_settings      engine stores through mmap; XDP and tc read
 * The two index rules are vl_flow_index() and vl_lane_index() below.
 */
#ifndef VHOSTLANE_BPF_ABI_H
#define VHOSTLANE_BPF_ABI_H

#ifndef __VMLINUX_H__
#include <linux/types.h>
#endif

#define VL_ABI_VERSION 1

#define VL_PORTS_MAX 256	/* port ids 0 .. 255 */
#define VL_QUEUE_PAIRS_MAX 128	/* queue pairs of one port */
#define VL_WORKERS_MAX 64	/* worker slots; the stride of `lanes` */
#define VL_DEVICE_QUEUES_MAX 64 /* receive queues of one device */
#define VL_NODES_MAX 64		/* NUMA nodes */
#define VL_FLOW_BUCKETS 256	/* flow buckets of one port */
#define VL_MACS_MAX (VL_PORTS_MAX * 64 + 64) /* entries of `ports`: configured and learned addresses of all ports */
#define VL_CLAIMS_MAX 256	/* entries of `wire_claims` */

/* vl_port_key.vlan of an untagged frame. */
#define VL_VLAN_NONE 0

struct vl_port_key {
	__u8 mac[6];
	__u16 vlan; /* host byte order; VL_VLAN_NONE or 1 .. 4094 */
};

enum vl_port_flags {
	VL_PORT_LEARNED = 1 << 2, /* the address is what the guest says it is: the wire may prove it wrong */
	VL_PORT_TRUNK = 1 << 0, /* entry with vlan 0 also takes tagged frames of any VLAN */
	VL_PORT_VLANS = 1 << 1, /* of those, and of untagged frames (bit 0), only the VLANs in the port's row of `port_vlans` */
};

struct vl_port_value {
	__u32 port;
	__u32 node;	   /* NUMA node whose host link serves the port */
	__u32 flags;	   /* enum vl_port_flags */
	__u32 queue_pairs; /* pairs that are served now: 0 = port is down, frames are dropped and counted */
};

struct vl_queue_key {
	__u32 port;
	__u32 queue_pair;
};

struct vl_queue_value {
	__u32 cpu;
	__u32 node;
	__u32 worker;
	__u32 generation;
};

/* The kernel rounds an array's elements up to 8 bytes. One element is therefore a port's whole row, so that what is mapped
 * has no gaps: VL_PORTS_MAX x VL_FLOW_BUCKETS queue pairs, indexed by vl_flow_index(). */
struct vl_flow_row {
	__u32 queue_pair[VL_FLOW_BUCKETS];
};
_Static_assert(sizeof(struct vl_flow_row) % 8 == 0, "rows follow one another without gaps");

#define VL_VLANS 4096

struct vl_vlan_row {
	__u64 allowed[VL_VLANS / 64]; /* bit v of word v / 64: frames of VLAN v as the wire carries them; bit 0: untagged */
};

static inline int vl_vlan_allowed(const struct vl_vlan_row *row, __u32 vlan)
{
	vlan &= VL_VLANS - 1;
	return row->allowed[vlan / 64] >> (vlan % 64) & 1;
}

enum vl_settings_flags {
	VL_SETTINGS_READY = 1 << 0,	/* lanes are filled: XDP may steer. Until then every frame passes to the stack */
	VL_SETTINGS_HOST_LINK = 1 << 1, /* this object sits on a host link: there is no stack behind, so nothing passes */
	VL_SETTINGS_BY_TC = 1 << 4,	/* XDP sees frames merged or without tags (a device that lies on others, a tap of QEMU): tc takes them to guests instead */
	VL_SETTINGS_LEARNED = 1 << 3,	/* some entry of `ports` is learned: sources of the wire are compared with them */
	VL_SETTINGS_ENGINE_LOADED = 1 << 2, /* loaded by `vhostlane run`, which removes it; clear: by an operator */
};

struct vl_settings {
	__u32 abi;	     /* VL_ABI_VERSION */
	__u32 flags;	     /* enum vl_settings_flags */
	__u32 workers;	     /* stride of `lanes` (worker slots) */
	__u32 device_queues; /* device queues with lanes */
	__u32 flood_worker;  /* worker whose lane takes broadcast and multicast on a host link */
	__u32 uplink_ifindex;
	__u32 host_link_node;			 /* node whose host link takes broadcast and multicast */
	__u32 host_link_ifindex[VL_NODES_MAX];	 /* host end of each node's host link; 0 = none */
	__u32 host_link_queues[VL_NODES_MAX];	 /* device queues of each host link */
};

/* skb->mark of a frame on its way from a guest into the uplink's ingress; set and cleared by tc_host. */
#define VL_MARK_FROM_GUEST 0x76686c31

/* What XDP and tc did with a frame. Drops first; VL_REASON_FIRST_PASS starts what is no drop. Append only. */
#define VL_REASONS(X)                                                                              \
	X(XDP_PORT_DOWN, "xdp_port_down")	      /* dropped: its port has no ring in service */ \
	X(XDP_NO_LANE, "xdp_no_lane")		      /* dropped: no socket at the lane's index */   \
	X(XDP_HOST_LINK_UNKNOWN, "xdp_host_link_unknown") /* dropped: host link, for no port */      \
	X(XDP_MALFORMED, "xdp_malformed")	      /* dropped: host link, no Ethernet header */   \
	X(TC_REDIRECT_FAILED, "tc_redirect_failed")   /* dropped: clone or redirect refused */       \
	X(XDP_TO_LANE, "xdp_to_lane")                                                              \
	X(XDP_TO_STACK, "xdp_to_stack")                                                            \
	X(XDP_FLOOD_TO_LANE, "xdp_flood_to_lane")                                                  \
	X(TC_HOST_TO_GUEST, "tc_host_to_guest")                                                    \
	X(TC_GUEST_TO_HOST, "tc_guest_to_host")                                                    \
	X(TC_FLOOD_TO_GUESTS, "tc_flood_to_guests")

enum vl_reason {
#define VL_REASON_ENUM(name, text) VL_##name,
	VL_REASONS(VL_REASON_ENUM)
#undef VL_REASON_ENUM
	VL_REASON_COUNT,
	VL_REASON_FIRST_PASS = VL_XDP_TO_LANE,
};

/* Index into `lanes`: device queue x worker slots + worker. */
static inline __u32 vl_lane_index(__u32 device_queue, __u32 workers, __u32 worker)
{
	return device_queue * workers + worker;
}

static inline __u32 vl_flow_bucket(__u32 hash)
{
	return hash & (VL_FLOW_BUCKETS - 1);
}

/* Index into the mapped `flow_steering`: port id x flow buckets + low bits of the flow hash. */
static inline __u32 vl_flow_index(__u32 port, __u32 hash)
{
	return port * VL_FLOW_BUCKETS + vl_flow_bucket(hash);
}

#endif
