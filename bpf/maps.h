/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of one uplink (layouts in vhostlane/bpf_abi.h). Both objects declare those that they use; whoever loads the
 * second object gives it the first one's maps, so that there is one of each. Keys and values have BTF: bpftool prints
 * them by field name. A host link's second xdp_steer shares all but `lanes` and `settings`.
 */
#ifndef VHOSTLANE_MAPS_H
#define VHOSTLANE_MAPS_H

#include "vmlinux.h"

#include <bpf/bpf_helpers.h>

#include "vhostlane/bpf_abi.h"

/* MAC + VLAN -> port. The engine writes; XDP and tc read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VL_MACS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vl_port_key);
	__type(value, struct vl_port_value);
} ports SEC(".maps");

/* Port, queue pair -> CPU and worker. The engine and the operator write; XDP, tc and the engine read. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VL_PORTS_MAX * VL_QUEUE_PAIRS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vl_queue_key);
	__type(value, struct vl_queue_value);
} queue_affinity SEC(".maps");

/* Port -> queue pair of each flow bucket. The engine stores through mmap(); XDP and tc read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VL_PORTS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct vl_flow_row);
} flow_steering SEC(".maps");

/* Learned addresses that were seen as sources on the wire. XDP writes; the engine reads, takes the address from its port, and deletes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VL_CLAIMS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vl_port_key);
	__type(value, __u64);
} wire_claims SEC(".maps");

/* Port -> VLANs that it carries, of ports with VL_PORT_VLANS. The engine writes; XDP and tc read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VL_PORTS_MAX);
	__type(key, __u32);
	__type(value, struct vl_vlan_row);
} port_vlans SEC(".maps");

/* enum vl_reason -> frames, per CPU. XDP and tc count; the engine reads. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, VL_REASON_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* One element. The engine stores through mmap(); XDP and tc read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct vl_settings);
} settings SEC(".maps");

#endif
