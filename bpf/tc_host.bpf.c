// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The way between the host's own stack and the guests: three tc programs (direct action).
 *
 *   tc_host               uplink, egress      stack to guests: unicast is turned into the host link of the port's node; of
 *                                             broadcast and multicast the host link gets a clone
 *   tc_uplink_ingress     uplink, ingress     broadcast and multicast of the wire: the host link gets a clone. With VL_SETTINGS_BY_TC
 *                                             unicast for guests goes there, too
 *   tc_host_link_ingress  host link, ingress  guests to stack: into the uplink's ingress, marked
 *
 * Why nothing circles: what a guest sent bears VL_MARK_FROM_GUEST when it enters the uplink's ingress, and
 * tc_uplink_ingress clones nothing that bears it; what came from the wire or the stack reaches the engine over a host link
 * only, and the engine sends nothing of that out again but into guests. Frames that the engine sends on the uplink go past
 * tc altogether (AF_XDP).
 *
 * Whatever is not ours goes to the next filter (TC_ACT_UNSPEC), so that other people's filters on the same hook live on.
 */
#include "steer.h"

#define TC_ACT_UNSPEC	  (-1)
#define TC_ACT_SHOT	  2
#define BPF_HDR_START_MAC 0

/* Ethernet destination and VLAN. The stack may keep the tag beside the frame. */
static __always_inline bool skb_destination(struct __sk_buff *skb, struct destination *to)
{
	if (!parse_destination((const void *)(long)skb->data, (const void *)(long)skb->data_end, to))
		return false;
	if (skb->vlan_present)
		to->key.vlan = skb->vlan_tci & VLAN_ID_MASK;
	return true;
}

/* Headers may lie outside the linear part; the programs read no other. */
static __always_inline void skb_pull_headers(struct __sk_buff *skb)
{
	__u32 wanted = skb->len < VL_FLOW_DEPTH ? skb->len : VL_FLOW_DEPTH;

	if ((long)skb->data + sizeof(struct ethhdr) + sizeof(struct vlan_hdr) > (long)skb->data_end)
		bpf_skb_pull_data(skb, wanted);
}

/* Node whose host link takes frames for @node: its own, or the one that every uplink has. */
static __always_inline __u32 host_link_of(const struct vl_settings *set, __u32 node)
{
	if (node < VL_NODES_MAX && set->host_link_ifindex[node])
		return node;
	return set->host_link_node < VL_NODES_MAX ? set->host_link_node : 0;
}

/* The engine floods it to the guests; the frame itself goes on. */
static __always_inline int flood_to_guests(struct __sk_buff *skb, const struct vl_settings *set)
{
	__u32 ifindex = set->host_link_ifindex[host_link_of(set, VL_NODES_MAX)];

	if (!ifindex)
		return TC_ACT_UNSPEC;
	count(bpf_clone_redirect(skb, ifindex, 0) ? VL_TC_REDIRECT_FAILED : VL_TC_FLOOD_TO_GUESTS);
	return TC_ACT_UNSPEC;
}

/*
 * The host link's queue is the flow's for good: where another queue begins, order ends, and a flow may get another worker or, by its guest,
 * another queue pair at any moment. A port with one queue pair has one queue for all: spreading its flows would win it nothing.
 */
static __always_inline void spread(struct __sk_buff *skb, const struct vl_port_value *port, __u32 queues)
{
	__u32 way = port->port;

	if (queues <= 1)
		return;
	if (port->queue_pairs > 1)
		way = vl_flow_bucket(vl_flow_hash_frame((const void *)(long)skb->data, (const void *)(long)skb->data_end));
	skb->queue_mapping = way % queues + 1;
}

/* Into the host link of the port's node. What is longer than its MTU is cut on the way, open checksums are completed, tags put in. */
static __always_inline int to_port(struct __sk_buff *skb, const struct vl_settings *set, const struct vl_port_value *port)
{
	const __u32 node = host_link_of(set, port->node), ifindex = node < VL_NODES_MAX ? set->host_link_ifindex[node] : 0;

	if (!ifindex)
		return TC_ACT_UNSPEC;
	spread(skb, port, set->host_link_queues[node]);
	count(VL_TC_HOST_TO_GUEST);
	return bpf_redirect(ifindex, 0);
}

SEC("tc")
int tc_host(struct __sk_buff *skb)
{
	const struct vl_settings *set = settings_get();
	const struct vl_port_value *port;
	struct destination to;

	if (!set || !(set->flags & VL_SETTINGS_READY))
		return TC_ACT_UNSPEC;
	skb_pull_headers(skb);
	if (!skb_destination(skb, &to))
		return TC_ACT_UNSPEC;
	if (to.multicast)
		return flood_to_guests(skb, set);

	port = find_port(&to.key);
	return port ? to_port(skb, set, port) : TC_ACT_UNSPEC;
}

/*
 * Generic XDP of Linux 6.9 and newer copies a frame into a new skb and forgets mac_len: data then starts behind the Ethernet header, for
 * programs and for whatever is cloned. Put back in front it also sets mac_len right, and the stack goes on as if nothing had been.
 */
static __always_inline bool restore_mac_header(struct __sk_buff *skb, const struct ethhdr *wire)
{
	const __u16 *a, *b = (const __u16 *)wire;
	struct ethhdr here;
	__u16 differ = 0;

	if (bpf_skb_load_bytes(skb, 0, &here, sizeof(here)))
		differ = 1; /* too short for having it in front */
	a = (const __u16 *)&here;
	for (unsigned i = 0; i < sizeof(here) / sizeof(*a); i++)
		differ |= a[i] ^ b[i];
	if (!differ)
		return true;
	return !bpf_skb_change_head(skb, sizeof(*wire), 0) && !bpf_skb_store_bytes(skb, 0, wire, sizeof(*wire), 0);
}

/* What xdp_steer does on other uplinks. The kernel has put the outer tag beside the frame. */
static __always_inline int unicast_of_wire(struct __sk_buff *skb, const struct vl_settings *set, const struct ethhdr *wire)
{
	struct vl_port_key key = { .vlan = skb->vlan_present ? skb->vlan_tci & VLAN_ID_MASK : VL_VLAN_NONE };
	const struct vl_port_value *port;

	__builtin_memcpy(key.mac, wire->h_dest, sizeof(key.mac));
	port = find_port(&key);
	if (!port)
		return TC_ACT_UNSPEC;
	if (!port->queue_pairs) {
		count(VL_XDP_PORT_DOWN);
		return TC_ACT_SHOT;
	}
	if (!restore_mac_header(skb, wire)) {
		count(VL_TC_REDIRECT_FAILED);
		return TC_ACT_SHOT;
	}
	skb_pull_headers(skb);
	return to_port(skb, set, port);
}

SEC("tc")
int tc_uplink_ingress(struct __sk_buff *skb)
{
	const struct vl_settings *set = settings_get();
	struct destination to;
	struct ethhdr wire;

	if (skb->mark == VL_MARK_FROM_GUEST) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (!set || !(set->flags & VL_SETTINGS_READY))
		return TC_ACT_UNSPEC;
	if (bpf_skb_load_bytes_relative(skb, 0, &wire, sizeof(wire), BPF_HDR_START_MAC))
		return TC_ACT_UNSPEC;
	if (!(wire.h_dest[0] & 1))
		return set->flags & VL_SETTINGS_BY_TC ? unicast_of_wire(skb, set, &wire) : TC_ACT_UNSPEC;
	if (!restore_mac_header(skb, &wire)) {
		count(VL_TC_REDIRECT_FAILED);
		return TC_ACT_UNSPEC;
	}
	skb_pull_headers(skb);
	if (!skb_destination(skb, &to) || !to.multicast)
		return TC_ACT_UNSPEC;
	return flood_to_guests(skb, set);
}

SEC("tc")
int tc_host_link_ingress(struct __sk_buff *skb)
{
	const struct vl_settings *set = settings_get();

	/* Nothing of a guest's may enter the stack by the host link itself. */
	if (!set || !set->uplink_ifindex) {
		count(VL_TC_REDIRECT_FAILED);
		return TC_ACT_SHOT;
	}
	skb->mark = VL_MARK_FROM_GUEST;
	count(VL_TC_GUEST_TO_HOST);
	return bpf_redirect(set->uplink_ifindex, BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
