// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * xdp_steer: from a device queue straight to the lane of the one worker that serves the frame's queue pair.
 *
 * One object for both kinds of device. On an uplink whatever is for nobody here goes on to the host's stack. A host link
 * (VL_SETTINGS_HOST_LINK) has no stack behind it: what is for nobody is dropped and counted, and broadcast and multicast,
 * which only the tc programs put there, go to the flood worker. On a device that lies on others (VL_SETTINGS_BY_TC) everything passes.
 */
#include "steer.h"

/* vl_lane_index() -> AF_XDP socket. The engine writes; each device has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, VL_DEVICE_QUEUES_MAX * VL_WORKERS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} lanes SEC(".maps");

static __always_inline bool on_host_link(const struct vl_settings *set)
{
	return set->flags & VL_SETTINGS_HOST_LINK;
}

static __always_inline int to_stack(void)
{
	count(VL_XDP_TO_STACK);
	return XDP_PASS;
}

static __always_inline int drop(__u32 reason)
{
	count(reason);
	return XDP_DROP;
}

/* For no guest: the stack's on an uplink, nobody's on a host link. */
static __always_inline int not_ours(const struct vl_settings *set, __u32 reason)
{
	return on_host_link(set) ? drop(reason) : to_stack();
}

/* Into the lane of @worker on the queue that the frame came in by. Where no socket is (a daemon that died), the stack has
 * the frame, which a host link does not have. */
static __always_inline int to_lane(struct xdp_md *ctx, const struct vl_settings *set, __u32 worker, __u32 reason)
{
	__u32 index = vl_lane_index(ctx->rx_queue_index, set->workers, worker);
	long action = XDP_ABORTED;

	if (ctx->rx_queue_index < set->device_queues && worker < set->workers)
		action = bpf_redirect_map(&lanes, index, on_host_link(set) ? XDP_DROP : XDP_PASS);
	if (action != XDP_REDIRECT)
		return not_ours(set, VL_XDP_NO_LANE);
	count(reason);
	return XDP_REDIRECT;
}

SEC("xdp.frags")
int xdp_steer(struct xdp_md *ctx)
{
	const void *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct vl_settings *set = settings_get();
	const struct vl_port_value *port;
	struct destination to;
	__u32 queue_pair;

	if (!set)
		return XDP_PASS;
	if (!(set->flags & VL_SETTINGS_READY))
		return not_ours(set, VL_XDP_NO_LANE);
	if (set->flags & VL_SETTINGS_BY_TC)
		return to_stack();
	if (!parse_destination(data, end, &to))
		return not_ours(set, VL_XDP_MALFORMED);
	if (set->flags & VL_SETTINGS_LEARNED)
		note_source(&to);
	if (to.multicast)
		return on_host_link(set) ? to_lane(ctx, set, set->flood_worker, VL_XDP_FLOOD_TO_LANE) : to_stack();

	port = find_port(&to.key);
	if (!port)
		return not_ours(set, VL_XDP_HOST_LINK_UNKNOWN);
	if (!port->queue_pairs)
		return drop(VL_XDP_PORT_DOWN);

	queue_pair = choose_queue_pair(port, data, end);
	return to_lane(ctx, set, choose_worker(set, port->port, queue_pair), VL_XDP_TO_LANE);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
