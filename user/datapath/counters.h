/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What happened to frames of one port on one worker. Each struct has one writer (that worker); the control thread
 * reads with relaxed loads and sums over workers. Drops by ring reasons are counted in the ring (ring_split.h), by
 * socket reasons in the lane (lane.h), by BPF reasons in the `counters` map (bpf_abi.h).
 */
#ifndef VHOSTLANE_DATAPATH_COUNTERS_H
#define VHOSTLANE_DATAPATH_COUNTERS_H

#include <stdint.h>

#include "common/util.h"

/* name, text, is it a drop? "to" and "from" are the guest's. */
#define PORT_COUNTERS(X)                                                                                       \
	X(FROM_GUEST_FRAMES, "from_guest_frames", 0)                                                           \
	X(FROM_GUEST_BYTES, "from_guest_bytes", 0)                                                             \
	X(TO_GUEST_FRAMES, "to_guest_frames", 0)                                                               \
	X(TO_GUEST_BYTES, "to_guest_bytes", 0)                                                                 \
	X(TO_UPLINK_FRAMES, "to_uplink_frames", 0)                                                             \
	X(TO_HOST_FRAMES, "to_host_frames", 0)                                                                 \
	X(LEARNED, "addresses_learned", 0)                                                                     \
	X(LEARN_REFUSED, "addresses_refused", 0) /* source belongs to another port, the host, or the limit is reached */ \
	X(DROP_TO_GUEST_NO_BUFFERS, "to_guest_no_buffers", 1)                                                  \
	X(DROP_TO_GUEST_TOO_LARGE, "to_guest_too_large", 1)                                                    \
	X(DROP_TO_GUEST_FAULT, "to_guest_ring_faulted", 1)                                                     \
	X(DROP_TO_GUEST_DOWN, "to_guest_port_down", 1)                                                         \
	X(DROP_FROM_GUEST_NO_UPLINK, "from_guest_no_destination", 1) /* unknown unicast and no uplink */       \
	X(DROP_FROM_GUEST_TO_SELF, "from_guest_to_itself", 1)	     /* destination is the sending port */     \
	X(DROP_FROM_GUEST_UPLINK_FULL, "from_guest_uplink_full", 1)                                            \
	X(DROP_FROM_GUEST_TOO_LONG, "from_guest_too_long", 1)	     /* longer than the uplink or host link carries */ \
	X(DROP_FROM_GUEST_LINK_LOCAL, "from_guest_link_local", 1)    /* PAUSE, spanning tree, LLDP: not for the wire */ \
	X(DROP_FROM_GUEST_SOURCE, "from_guest_source_invalid", 1)    /* multicast or zero source address */    \
	/* The virtio header cannot be followed: in the order of enum vnet_verdict (vnet.h). */                \
	X(DROP_HEADER_NOT_NEGOTIATED, "header_not_negotiated", 1)                                              \
	X(DROP_HEADER_CSUM_START, "header_csum_start", 1)                                                      \
	X(DROP_HEADER_CSUM_OFFSET, "header_csum_offset", 1)                                                    \
	X(DROP_HEADER_CSUM_PROTOCOL, "header_csum_protocol", 1)                                                \
	X(DROP_HEADER_GSO_TYPE, "header_gso_type", 1)                                                          \
	X(DROP_HEADER_GSO_SIZE, "header_gso_size", 1)                                                          \
	X(DROP_HEADER_GSO_NO_CSUM, "header_gso_without_csum", 1)                                               \
	X(DROP_HEADER_GSO_PROTOCOL, "header_gso_protocol", 1)                                                  \
	X(DROP_SEGMENT, "segment_headers", 1)		     /* asks for segmentation, its headers do not allow it */ \
	X(SEGMENTED, "frames_segmented", 0)		     /* cut here, for a receiver that does not cut itself */ \
	X(COALESCED, "frames_coalesced", 0)		     /* of a device, merged into larger ones */        \
	X(COMPLETED_PARTIAL, "partial_checksums", 0)	     /* of a device, came with an open checksum */     \
	X(DROP_FROM_GUEST_HOST_FULL, "from_guest_host_full", 1)	     /* host link could not take it */         \
	X(DROP_VLAN, "vlan_mismatch", 1)			     /* a tag where none is allowed, or the wrong one, or none */

enum port_counter {
#define PORT_COUNTER_ENUM(name, text, drop) PORT_##name,
	PORT_COUNTERS(PORT_COUNTER_ENUM)
#undef PORT_COUNTER_ENUM
	PORT_COUNTER_COUNT
};
extern const char *const port_counter_names[PORT_COUNTER_COUNT];
extern const uint8_t port_counter_is_drop[PORT_COUNTER_COUNT];

struct port_counters {
	uint64_t value[PORT_COUNTER_COUNT];
} CACHE_ALIGNED;

static inline void counter_add(struct port_counters *c, enum port_counter which, uint64_t n)
{
	__atomic_store_n(&c->value[which], c->value[which] + n, __ATOMIC_RELAXED);
}

/* What a worker did; one writer (that worker). */
#define WORKER_COUNTERS(X)                                                                                       \
	X(ROUNDS, "rounds", 0)		       /* turns of the loop */                                           \
	X(POLLS, "polls", 0)		       /* rings and lanes looked at */                                   \
	X(HITS, "hits", 0)		       /* turns that found work */                                       \
	X(POLLS_PREEMPTED, "polls_preempted", 0) /* that took long, with the CPU taken away since the last such */            \
	X(SLEEPS, "sleeps", 0)                                                                                   \
	X(WAKE_KICK, "kicks_received", 0)                                                                        \
	X(WAKE_LANE, "lane_wakeups", 0)                                                                          \
	X(WAKE_CONTROL, "control_wakeups", 0)                                                                    \
	X(NS_BUSY, "ns_busy", 0)                                                                                 \
	X(NS_POLLING, "ns_polling", 0)                                                                           \
	X(NS_ASLEEP, "ns_asleep", 0)                                                                             \
	X(FRAMES_FROM_LANES, "frames_from_lanes", 0)                                                             \
	X(FRAMES_FROM_RINGS, "frames_from_rings", 0)                                                             \
	X(LANE_STRAYS, "lane_strays", 0)       /* delivered for a pair that another worker owns */               \
	X(LEARN_DELAYED, "learn_delayed", 0)   /* learn requests put off: too many in flight */                  \
	X(DROP_LANE_UNKNOWN, "lane_no_port", 1)	 /* came up a lane, for no port */                               \
	X(DROP_LANE_SHORT, "lane_frame_short", 1) /* shorter than an Ethernet header */                          \
	X(DROP_LANE_LINK_LOCAL, "lane_link_local", 1) /* PAUSE, spanning tree, LLDP: not for guests */

enum worker_counter {
#define WORKER_COUNTER_ENUM(name, text, drop) WORKER_##name,
	WORKER_COUNTERS(WORKER_COUNTER_ENUM)
#undef WORKER_COUNTER_ENUM
	WORKER_COUNTER_COUNT
};
extern const char *const worker_counter_names[WORKER_COUNTER_COUNT];
extern const uint8_t worker_counter_is_drop[WORKER_COUNTER_COUNT];

static inline void worker_counter_add(uint64_t *counters, enum worker_counter which, uint64_t n)
{
	__atomic_store_n(&counters[which], counters[which] + n, __ATOMIC_RELAXED);
}

#endif
