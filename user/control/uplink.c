// SPDX-License-Identifier: BSD-2-Clause
#include "control/uplink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/log.h"
#include "common/util.h"
#include "control/lane_fit.h"
#include "control/uplink_check.h"
#include "control/uplink_lock.h"

#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#endif

/* What the kernel's documentation of preferred busy polling proposes: hold interrupts back for two polls, at most 200 us. */
#define NAPI_DEFER_HARD_IRQS 2
#define NAPI_FLUSH_TIMEOUT_NS 200000

struct uplink {
	struct uplink_setup setup;
	struct netdev_info info;
	struct lane_fit fit;
	struct uplink_lock *lock;
	struct netdev_undo_log changes;
	enum lane_mode mode; /* asked for; generic where native XDP was refused */
	struct bpf_set *bpf;
	struct lane_device *device;
	enum tx_checksum tx_checksum;
	struct host_link *host_links[VL_NODES_MAX];
	struct uplink_warnings warnings;
};

/* What the device must not do to frames before XDP sees them. */
static const struct {
	const char *name;
	const char *harm; /* if it stays on */
} features_off[] = {
	{ "rx-vlan-hw-parse", "tagged frames come without their tag, guests' VLANs do not work from the wire" },
	{ "rx-vlan-stag-hw-parse", "frames with a service tag come without it" },
	{ "rx-lro", "frames longer than the MTU come and are dropped" },
	{ "rx-gro-hw", "frames longer than the MTU come and are dropped" },
};

static int prepare_device(struct uplink *uplink, struct error *error)
{
	const char *ifname = uplink->info.ifname;
	struct error refusal;
	int code = netdev_set_promiscuous(&uplink->changes, error);

	if (code < 0)
		return code;
	for (size_t i = 0; i < ARRAY_SIZE(features_off); i++) {
		code = netdev_set_feature(&uplink->changes, features_off[i].name, false, &refusal);
		if (code < 0 && netdev_get_feature(ifname, features_off[i].name))
			uplink_warn(&uplink->warnings, "uplink %s: %s stays on (%s): %s; if that matters use another device", ifname,
				    features_off[i].name, refusal.text, features_off[i].harm);
	}
	uplink_lock_record(uplink->lock, &uplink->changes);
	return 0;
}

/* Errors that generic mode would meet as well, or that a user must decide on. */
static bool attach_error_is_final(int code)
{
	return code == -EBUSY || code == -EEXIST || code == -EPERM || code == -EACCES || code == -ENODEV || code == -ENOENT;
}

static int attach_programs(struct uplink *uplink, struct error *error)
{
	const char *ifname = uplink->info.ifname;
	struct error refusal = { 0 };
	int code;

	uplink->mode = uplink->setup.config.mode;
	if (uplink->mode == LANE_MODE_AUTO && uplink_needs_generic(&uplink->info)) {
		log_warning("uplink %s: generic XDP: AF_XDP sockets get nothing from a %s device in native mode", ifname, uplink->info.kind);
		uplink->mode = LANE_MODE_GENERIC;
	}
	if (uplink->mode == LANE_MODE_GENERIC)
		return bpf_set_attach_uplink(uplink->bpf, LANE_MODE_GENERIC, error);
	code = bpf_set_attach_uplink(uplink->bpf, uplink->mode, &refusal);
	if (code == 0)
		return 0;
	if (uplink->mode != LANE_MODE_AUTO || attach_error_is_final(code)) {
		if (error)
			*error = refusal;
		return code;
	}
	log_warning("uplink %s: generic XDP, slower than native, which the device refused: %s", ifname, refusal.text);
	uplink->mode = LANE_MODE_GENERIC;
	return bpf_set_attach_uplink(uplink->bpf, LANE_MODE_GENERIC, error);
}

/* Holding interrupts back pays only where sockets are polled by preference; elsewhere it costs most of the rate. */
static void tune_napi(struct uplink *uplink)
{
	struct error refusal;
	int preferred = 0;
	socklen_t length = sizeof(preferred);

	if (lane_device_mode(uplink->device) != LANE_MODE_ZERO_COPY ||
	    getsockopt(lane_fd(lane_of(uplink->device, 0, 0)), SOL_SOCKET, SO_PREFER_BUSY_POLL, &preferred, &length) < 0 || !preferred)
		return;
	if (netdev_set_napi(&uplink->changes, "napi_defer_hard_irqs", NAPI_DEFER_HARD_IRQS, &refusal) < 0 ||
	    netdev_set_napi(&uplink->changes, "gro_flush_timeout", NAPI_FLUSH_TIMEOUT_NS, &refusal) < 0)
		uplink_warn(&uplink->warnings, "%s", refusal.text);
	else
		log_info("uplink %s: napi_defer_hard_irqs %d, gro_flush_timeout %d ns for busy polling", uplink->info.ifname,
			 NAPI_DEFER_HARD_IRQS, NAPI_FLUSH_TIMEOUT_NS);
	uplink_lock_record(uplink->lock, &uplink->changes);
}

static void follow_checksum_offload(struct uplink *uplink)
{
	const enum tx_checksum offered = tx_checksum_offered(&uplink->info, lane_device_mode(uplink->device));

	lane_device_leave_checksum(uplink->device, offered != TX_CHECKSUM_ENGINE);
	uplink->tx_checksum = lane_device_leaves_checksum(uplink->device) ? offered : TX_CHECKSUM_ENGINE;
}

static int open_lanes(struct uplink *uplink, struct error *error)
{
	struct lane_device_setup setup = {
		.ifindex = uplink->info.ifindex,
		.queues = uplink->info.rx_queues,
		.workers = uplink->setup.workers,
		.mode = uplink->mode,
		.node = uplink->info.node,
		.frame_size = uplink->fit.frame_size,
		.mtu = uplink->info.mtu,
		.multi_buffer = uplink->fit.multi_buffer,
	};
	struct error refusal = { 0 };
	int code;

	copy_string(setup.ifname, sizeof(setup.ifname), uplink->info.ifname);
	uplink->device = lane_device_open(&setup, &refusal);
	if (!uplink->device)
		return error_set(error, refusal.code ? refusal.code : -EIO, "uplink %s", refusal.text);
	code = bpf_set_fill_lanes(uplink->bpf, -1, uplink->device, error);
	if (code < 0)
		return code;
	/* Before anything passes: XDP may steer only what it sees as it was on the wire. */
	if (uplink_steers_by_tc(&uplink->info, lane_device_mode(uplink->device) == LANE_MODE_GENERIC))
		bpf_set_settings(uplink->bpf, -1)->flags |= VL_SETTINGS_BY_TC;
	tune_napi(uplink);
	follow_checksum_offload(uplink);
	return 0;
}

static int open_host_links(struct uplink *uplink, struct error *error)
{
	struct vl_settings *settings = bpf_set_settings(uplink->bpf, -1);
	struct host_link_setup setup = {
		.uplink_ifindex = uplink->info.ifindex,
		.queues = min_u32(uplink->setup.cpus ? uplink->setup.cpus : uplink->setup.workers, HOST_LINK_QUEUES_MAX),
		.workers = uplink->setup.workers,
		.mtu = uplink->info.mtu,
	};

	host_link_remove_leftovers(uplink->info.ifindex);
	settings->host_link_node = (uint32_t)__builtin_ctzll(uplink->setup.nodes);
	for (unsigned node = 0; node < VL_NODES_MAX; node++) {
		if (!(uplink->setup.nodes >> node & 1))
			continue;
		setup.node = node;
		uplink->host_links[node] = host_link_open(&setup, uplink->bpf, error);
		if (!uplink->host_links[node])
			return error && error->code ? error->code : -EIO;
	}
	return 0;
}

static void log_opened(const struct uplink *uplink)
{
	const struct frame_pool *pool = lane_device_pool(uplink->device);

	log_info("uplink %s: %s mode%s%s, %u queues x %u workers, MTU %u, frames of %u bytes%s%s, NUMA node %d, checksums by the %s", uplink->info.ifname,
		 lane_mode_names[lane_device_mode(uplink->device)], bpf_set_adopted(uplink->bpf) ? ", programs adopted" : "",
		 bpf_set_dispatcher(uplink->bpf) ? ", chained by libxdp's dispatcher" : "", uplink->info.rx_queues, uplink->setup.workers,
		 uplink->info.mtu, uplink->fit.frame_size, uplink->fit.multi_buffer ? " (multi-buffer)" : "",
		 frame_pool_huge(pool) ? " in huge pages" : "", uplink->info.node, tx_checksum_names[uplink->tx_checksum]);
}

static void log_warnings(const char *text)
{
	while (*text) {
		int length = (int)strcspn(text, "\n");

		log_warning("%.*s", length, text);
		text += length + (text[length] == '\n');
	}
}

struct uplink *uplink_open(const struct uplink_setup *setup, struct error *error)
{
	struct uplink *uplink = calloc(1, sizeof(*uplink));
	const char *ifname = setup->config.ifname;

	if (!uplink) {
		error_set(error, -ENOMEM, "uplink %s: out of memory; give the service more", ifname);
		return NULL;
	}
	uplink->setup = *setup;
	netdev_undo_init(&uplink->changes, ifname);
	if (uplink_check(setup, &uplink->info, error) < 0)
		goto fail;
	lane_fit_for_mtu(uplink->info.mtu, &uplink->fit);
	uplink->lock = uplink_lock_take(ifname, uplink->info.ifindex, error);
	if (!uplink->lock)
		goto fail;
	uplink_check_surprises(&uplink->info, setup->cpus ? setup->cpus : setup->workers, &uplink->warnings);
	if (prepare_device(uplink, error) < 0)
		goto fail;
	uplink->bpf = bpf_set_open(ifname, uplink->info.ifindex, error);
	if (!uplink->bpf)
		goto fail;
	if (attach_programs(uplink, error) < 0 || open_lanes(uplink, error) < 0 || open_host_links(uplink, error) < 0)
		goto fail;
	log_opened(uplink);
	log_warnings(uplink->warnings.text);
	return uplink;
fail:
	uplink_close(uplink);
	return NULL;
}

void uplink_close(struct uplink *uplink)
{
	if (!uplink)
		return;
	if (uplink->bpf)
		uplink_stop(uplink);
	for (unsigned node = VL_NODES_MAX; node-- > 0;)
		host_link_close(uplink->host_links[node]);
	lane_device_close(uplink->device);
	bpf_set_close(uplink->bpf);
	netdev_undo(&uplink->changes);
	uplink_lock_release(uplink->lock);
	free(uplink);
}

/* XDP may read the flags at any moment: one whole store each. */
static void set_ready(struct vl_settings *settings, bool ready)
{
	uint32_t flags = settings->flags;

	flags = ready ? flags | VL_SETTINGS_READY : flags & ~(uint32_t)VL_SETTINGS_READY;
	__atomic_store_n(&settings->flags, flags, __ATOMIC_RELEASE);
}

void uplink_start(struct uplink *uplink)
{
	/* The uplink last: its programs send to the host links. */
	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		if (uplink->host_links[node])
			set_ready(bpf_set_settings(uplink->bpf, (int)node), true);
	set_ready(bpf_set_settings(uplink->bpf, -1), true);
}

void uplink_stop(struct uplink *uplink)
{
	set_ready(bpf_set_settings(uplink->bpf, -1), false);
	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		if (uplink->host_links[node])
			set_ready(bpf_set_settings(uplink->bpf, (int)node), false);
}

static int device_is_gone(const struct uplink *uplink, struct error *error)
{
	return error_set(error, -ENODEV, "uplink %s: the device is gone; restart vhostlane when it is back", uplink->info.ifname);
}

int uplink_device_changed(struct uplink *uplink, struct error *error)
{
	const enum tx_checksum before = uplink->tx_checksum;
	struct netdev_info now;
	char name[IF_NAMESIZE];
	unsigned mtu;
	int code;

	if (!if_indextoname(uplink->info.ifindex, name))
		return device_is_gone(uplink, error);
	code = netdev_get(name, &now, error);
	if (code < 0 && code != -ENODEV)
		return code;
	/* It has had another name since: the event that tells of it comes behind this one. */
	if (code < 0 || now.ifindex != uplink->info.ifindex)
		return if_indextoname(uplink->info.ifindex, name) ? 0 : device_is_gone(uplink, error);
	if (strcmp(name, uplink->info.ifname))
		log_info("uplink %s: is called %s from now on", uplink->info.ifname, name);
	copy_string(uplink->info.ifname, sizeof(uplink->info.ifname), name);
	memcpy(uplink->info.mac, now.mac, sizeof(now.mac));
	follow_checksum_offload(uplink);
	if (uplink->tx_checksum != before)
		log_info("uplink %s: checksums by the %s from now on", uplink->info.ifname, tx_checksum_names[uplink->tx_checksum]);
	if (now.mtu == uplink->info.mtu)
		return 0;
	uplink->info.mtu = now.mtu;
	lane_device_set_mtu(uplink->device, now.mtu);
	mtu = min_u32(now.mtu, uplink->fit.mtu_max);
	for (unsigned node = 0; node < VL_NODES_MAX && code == 0; node++)
		if (uplink->host_links[node] && host_link_host_end(uplink->host_links[node])->mtu != mtu)
			code = host_link_set_mtu(uplink->host_links[node], mtu, error);
	if (code < 0)
		return code;
	if (now.mtu > uplink->fit.mtu_max)
		return error_set(error, -EMSGSIZE,
				 "uplink %s: MTU %u is more than %u, which its frames of %u bytes hold: longer frames do not reach guests; %s",
				 uplink->info.ifname, now.mtu, uplink->fit.mtu_max, uplink->fit.frame_size,
				 now.mtu > LANE_FIT_MTU_MAX ? "lower the MTU" : "restart vhostlane, or lower the MTU");
	log_info("uplink %s: MTU %u from now on", uplink->info.ifname, now.mtu);
	return 0;
}

const struct netdev_info *uplink_info(const struct uplink *uplink)
{
	return &uplink->info;
}

enum tx_checksum uplink_tx_checksum(const struct uplink *uplink)
{
	return uplink->tx_checksum;
}

struct lane_device *uplink_device(struct uplink *uplink)
{
	return uplink->device;
}

struct host_link *uplink_host_link(struct uplink *uplink, unsigned node)
{
	return node < VL_NODES_MAX ? uplink->host_links[node] : NULL;
}

struct bpf_set *uplink_bpf(struct uplink *uplink)
{
	return uplink->bpf;
}

const char *uplink_warnings(const struct uplink *uplink)
{
	return uplink->warnings.text;
}
