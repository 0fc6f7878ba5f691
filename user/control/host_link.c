// SPDX-License-Identifier: BSD-2-Clause
#include "control/host_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/util.h"
#include "control/lane_fit.h"

struct host_link {
	struct host_link_setup setup;
	struct netdev_info host, engine;
	struct lane_fit fit;
	struct bpf_set *set;
	bool made, attached;
	struct lane_device *device;
};

/*
 * What the host's stack must not leave to this device: XDP and the guests see the frame as it lies in memory, so checksums are complete, VLAN
 * tags are in place, and nothing is longer than the MTU. The receive side needs nothing.
 */
static const struct {
	const char *name;
	const char *harm; /* what is wrong if it stays on; NULL: the others take it along, or this kernel has none */
} features_off[] = {
	{ "tx-checksum-ip-generic", "guests get frames with incomplete checksums from the host" },
	{ "tx-checksum-sctp", "guests get SCTP frames with incomplete checksums from the host" },
	{ "tx-tcp-segmentation", NULL },
	{ "tx-tcp6-segmentation", NULL },
	{ "tx-tcp-ecn-segmentation", NULL },
	{ "tx-tcp-mangleid-segmentation", NULL },
	{ "tx-udp-segmentation", NULL },
	{ "tx-sctp-segmentation", NULL },
	{ "tx-gso-list", NULL },
	{ "tx-vlan-hw-insert", "guests get the host's tagged frames without their tag" },
	{ "tx-vlan-stag-hw-insert", NULL },
};

bool host_link_name(unsigned uplink_ifindex, unsigned node, char name[IF_NAMESIZE])
{
	/* One character is kept for the engine end's `e`. */
	int length = snprintf(name, IF_NAMESIZE, "vhl%un%u", uplink_ifindex, node);

	return length > 0 && length < IF_NAMESIZE - 1;
}

bool host_link_is_name(const char *ifname)
{
	return netdev_is_host_link(ifname);
}

/* Return: 0 if there is nothing of that name (any more). */
static int remove_leftover(const char *name, struct error *error)
{
	struct netdev_info info;

	if (!if_nametoindex(name))
		return 0;
	if (netdev_get(name, &info, NULL) < 0 || strcmp(info.kind, "veth") != 0)
		return error_set(error, -EEXIST, "host link %s: an interface of that name is there and was not made by vhostlane (kind '%s'); "
						 "rename or delete it: ip link del %s",
				 name, info.kind, name);
	log_info("host link %s: removing the pair that an earlier vhostlane left", name);
	return netdev_delete(name, error);
}

void host_link_remove_leftovers(unsigned uplink_ifindex)
{
	struct error error;
	char name[IF_NAMESIZE];

	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		if (host_link_name(uplink_ifindex, node, name) && remove_leftover(name, &error) < 0)
			log_warning("%s", error.text);
}

static int make_pair(struct host_link *link, struct error *error)
{
	char host[IF_NAMESIZE], engine[IF_NAMESIZE + 1];
	int code;

	if (!host_link_name(link->setup.uplink_ifindex, link->setup.node, host))
		return error_set(error, -ENAMETOOLONG,
				 "host link of uplink %u, node %u: its name would be longer than %d characters; "
				 "the uplink's interface index is too large: make the uplink anew in a fresh network namespace",
				 link->setup.uplink_ifindex, link->setup.node, IF_NAMESIZE - 1);
	snprintf(engine, sizeof(engine), "%se", host);
	code = remove_leftover(host, error);
	if (code == 0)
		code = netdev_make_veth(host, engine, link->setup.queues, link->setup.mtu, error);
	if (code < 0)
		return code;
	link->made = true;
	copy_string(link->host.ifname, sizeof(link->host.ifname), host);
	return 0;
}

static int quieten_host_end(const char *ifname, struct error *error)
{
	struct netdev_undo_log log; /* not kept: the device goes as a whole */
	struct error refusal;

	netdev_undo_init(&log, ifname);
	for (size_t i = 0; i < ARRAY_SIZE(features_off); i++) {
		int code = netdev_set_feature(&log, features_off[i].name, false, &refusal);

		if (code == 0 || (code == -EOPNOTSUPP && !netdev_get_feature(ifname, features_off[i].name)))
			continue;
		if (i == 0)
			return error_set(error, code, "%s", refusal.text);
		if (features_off[i].harm)
			log_warning("host link %s: %s: %s", ifname, features_off[i].harm, refusal.text);
		else
			log_debug("host link %s: %s", ifname, refusal.text);
	}
	return 0;
}

static int open_lanes(struct host_link *link, struct error *error)
{
	struct lane_device_setup setup = {
		.ifindex = link->engine.ifindex,
		.queues = link->setup.queues,
		.workers = link->setup.workers,
		.mode = LANE_MODE_COPY, /* veth has no zero-copy */
		.node = (int)link->setup.node,
		.frame_size = link->fit.frame_size,
		.mtu = link->setup.mtu,
		.multi_buffer = link->fit.multi_buffer,
	};

	copy_string(setup.ifname, sizeof(setup.ifname), link->engine.ifname);
	link->device = lane_device_open(&setup, error);
	if (!link->device)
		return error && error->code ? error->code : -EIO;
	/* The stack takes open checksums from a veth, and completes those that it sends on. */
	lane_device_leave_checksum(link->device, true);
	return bpf_set_fill_lanes(link->set, (int)link->setup.node, link->device, error);
}

struct host_link *host_link_open(const struct host_link_setup *setup, struct bpf_set *set, struct error *error)
{
	struct host_link *link = calloc(1, sizeof(*link));
	char engine[IF_NAMESIZE + 1];
	int code;

	if (!link) {
		error_set(error, -ENOMEM, "host link of node %u: out of memory; give the service more", setup->node);
		return NULL;
	}
	link->setup = *setup;
	link->set = set;
	if (!lane_fit_for_mtu(setup->mtu, &link->fit)) {
		error_set(error, -EMSGSIZE, "host link of node %u: MTU %u is more than %u, the most that vhostlane carries; lower the uplink's MTU",
			  setup->node, setup->mtu, LANE_FIT_MTU_MAX);
		goto fail;
	}
	if (make_pair(link, error) < 0)
		goto fail;
	snprintf(engine, sizeof(engine), "%se", link->host.ifname);
	code = quieten_host_end(link->host.ifname, error);
	if (code == 0)
		code = netdev_get(link->host.ifname, &link->host, error);
	if (code == 0)
		code = netdev_get(engine, &link->engine, error);
	if (code == 0)
		code = bpf_set_attach_host_link(set, setup->node, link->host.ifindex, link->engine.ifindex, setup->queues, error);
	if (code < 0)
		goto fail;
	link->attached = true;
	if (open_lanes(link, error) < 0)
		goto fail;
	log_info("host link %s: node %u, %u queues, MTU %u, frames of %u bytes%s", link->host.ifname, setup->node, setup->queues, setup->mtu,
		 link->fit.frame_size, link->fit.multi_buffer ? " (multi-buffer)" : "");
	return link;
fail:
	host_link_close(link);
	return NULL;
}

void host_link_close(struct host_link *link)
{
	struct error error;

	if (!link)
		return;
	lane_device_close(link->device);
	if (link->attached)
		bpf_set_detach_host_link(link->set, link->setup.node);
	/* Somebody else may have deleted the pair already. */
	if (link->made && netdev_delete(link->host.ifname, &error) < 0 && error.code != -ENODEV)
		log_warning("%s", error.text);
	free(link);
}

struct lane_device *host_link_device(struct host_link *link)
{
	return link->device;
}

const struct netdev_info *host_link_host_end(const struct host_link *link)
{
	return &link->host;
}

const struct netdev_info *host_link_engine_end(const struct host_link *link)
{
	return &link->engine;
}

enum tx_checksum host_link_tx_checksum(const struct host_link *link)
{
	return lane_device_leaves_checksum(link->device) ? TX_CHECKSUM_KERNEL : TX_CHECKSUM_ENGINE;
}

unsigned host_link_queues(const struct host_link *link)
{
	return link->setup.queues;
}

int host_link_set_mtu(struct host_link *link, unsigned mtu, struct error *error)
{
	int code;

	if (mtu > link->fit.mtu_max)
		return error_set(error, -EMSGSIZE,
				 "host link %s: MTU %u is more than %u, which its frames of %u bytes hold; restart vhostlane to have larger ones",
				 link->host.ifname, mtu, link->fit.mtu_max, link->fit.frame_size);
	/* The receiving end first when it grows, the sending end first when it shrinks; with both silent one order serves. */
	code = netdev_set_mtu(link->engine.ifname, mtu, error);
	if (code == 0)
		code = netdev_set_mtu(link->host.ifname, mtu, error);
	if (code == 0)
		link->host.mtu = link->engine.mtu = link->setup.mtu = mtu;
	if (code == 0)
		lane_device_set_mtu(link->device, mtu);
	return code;
}
