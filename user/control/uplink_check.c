// SPDX-License-Identifier: BSD-2-Clause
#include "control/uplink_check.h"

#include <errno.h>
#include <net/if_arp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/util.h"
#include "control/lane_fit.h"

void uplink_warn(struct uplink_warnings *warnings, const char *format, ...)
{
	size_t used = strlen(warnings->text);
	va_list arguments;

	if (used && used < sizeof(warnings->text) - 1) {
		warnings->text[used++] = '\n';
		warnings->text[used] = '\0';
	}
	va_start(arguments, format);
	vsnprintf(warnings->text + used, sizeof(warnings->text) - used, format, arguments);
	va_end(arguments);
}

static int check_kind(const struct config_uplink *config, const struct netdev_info *info, struct error *error)
{
	if (info->link_type == ARPHRD_LOOPBACK)
		return error_set(error, -EINVAL, "uplink %s: is the loopback device; name a network device that `ip link` shows", info->ifname);
	if (host_link_is_name(info->ifname))
		return error_set(error, -EINVAL, "uplink %s: is a host link of vhostlane itself; name the device that it serves", info->ifname);
	if (info->link_type != ARPHRD_ETHER)
		return error_set(error, -EOPNOTSUPP,
				 "uplink %s: carries no Ethernet frames (link type %u, kind '%s'); name an Ethernet device", info->ifname,
				 info->link_type, info->kind);
	if (uplink_needs_generic(info) && (config->mode == LANE_MODE_COPY || config->mode == LANE_MODE_ZERO_COPY))
		return error_set(error, -EOPNOTSUPP,
				 "uplink %s: mode: %s: AF_XDP sockets get nothing from a %s device in native mode; "
				 "set mode: generic, or name one of its members",
				 info->ifname, lane_mode_names[config->mode], info->kind);
	return 0;
}

static int check_queues(const struct uplink_setup *setup, const struct netdev_info *info, struct error *error)
{
	unsigned wanted = setup->config.queues;

	if (wanted > info->rx_queues)
		return error_set(error, -EINVAL, "uplink %s: queues: %u: the device has %u receive queues; remove `queues` or run ethtool -L %s",
				 info->ifname, wanted, info->rx_queues, info->ifname);
	/* A queue without lanes would send its guests' frames to the host's stack. */
	if (wanted && wanted < info->rx_queues)
		return error_set(error, -EINVAL,
				 "uplink %s: device has %u receive queues, queues: %u would leave %u without a lane; remove `queues` or run ethtool "
				 "-L %s combined %u",
				 info->ifname, info->rx_queues, wanted, info->rx_queues - wanted, info->ifname, wanted);
	if (info->rx_queues > VL_DEVICE_QUEUES_MAX)
		return error_set(error, -E2BIG, "uplink %s: device has %u receive queues, vhostlane binds at most %u; run ethtool -L %s combined %u",
				 info->ifname, info->rx_queues, VL_DEVICE_QUEUES_MAX, info->ifname, VL_DEVICE_QUEUES_MAX);
	/* Worker w sends on queue w % queues; where there is no such transmit queue, the kernel would leave its frames on the ring for ever. */
	if (info->tx_queues < info->rx_queues && info->tx_queues < setup->workers)
		return error_set(error, -EINVAL,
				 "uplink %s: device has %u transmit queues and %u receive queues, %u workers need one transmit queue each or as "
				 "many as there are receive queues; run ethtool -L %s rx %u tx %u, or give vhostlane %u CPUs",
				 info->ifname, info->tx_queues, info->rx_queues, setup->workers, info->ifname, info->tx_queues, info->tx_queues,
				 info->tx_queues);
	return 0;
}

int uplink_check(const struct uplink_setup *setup, struct netdev_info *info, struct error *error)
{
	struct lane_fit fit;
	int code = netdev_get(setup->config.ifname, info, error);

	if (code == 0)
		code = check_kind(&setup->config, info, error);
	if (code == 0)
		code = check_queues(setup, info, error);
	if (code < 0)
		return code;
	if (setup->workers == 0 || setup->workers > VL_WORKERS_MAX)
		return error_set(error, -EINVAL, "uplink %s: %u workers: 1 to %u are possible; name fewer CPUs in workers.cpus", info->ifname,
				 setup->workers, VL_WORKERS_MAX);
	if (!setup->nodes)
		return error_set(error, -EINVAL, "uplink %s: no NUMA node to serve; this is a fault of vhostlane", info->ifname);
	if (!lane_fit_for_mtu(info->mtu, &fit))
		return error_set(error, -EMSGSIZE, "uplink %s: MTU %u is more than %u, the most that vhostlane carries; run ip link set %s mtu %u",
				 info->ifname, info->mtu, LANE_FIT_MTU_MAX, info->ifname, LANE_FIT_MTU_MAX);
	return 0;
}

bool uplink_needs_generic(const struct netdev_info *info)
{
	return !strcmp(info->kind, "bond") || !strcmp(info->kind, "team");
}

/*
 * A veth peer hands over frames as its stack left them to the "hardware": without checksum, longer than the MTU, the VLAN tag beside the
 * frame. No wire completes them on the way to XDP and the guests.
 */
static void check_veth_peer(const struct netdev_info *info, struct uplink_warnings *warnings)
{
	char peer[IF_NAMESIZE];
	bool checksum, tag;

	if (info->peer_elsewhere || !info->peer_ifindex || !if_indextoname(info->peer_ifindex, peer)) {
		uplink_warn(warnings,
			    "uplink %s: its veth peer is in another network namespace, so it cannot be seen from here whether it sends incomplete "
			    "checksums and VLAN tags beside the frame, with which guests can do nothing; if that was not done yet, run there: "
			    "ethtool -K PEER tx off txvlan off",
			    info->ifname);
		return;
	}
	checksum = netdev_get_feature(peer, "tx-checksum-ip-generic") || netdev_get_feature(peer, "tx-checksum-ipv4");
	tag = netdev_get_feature(peer, "tx-vlan-hw-insert");
	if (checksum)
		uplink_warn(warnings,
			    "uplink %s: its veth peer %s sends incomplete checksums, guests drop such frames; run ethtool -K %s tx off",
			    info->ifname, peer, peer);
	if (tag)
		uplink_warn(warnings,
			    "uplink %s: its veth peer %s sends VLAN tags beside the frame, where XDP does not see them; run ethtool -K %s txvlan off",
			    info->ifname, peer, peer);
}

bool uplink_steers_by_tc(const struct netdev_info *info, bool generic)
{
	return (generic && uplink_lies_on_others(info)) || netdev_has_virtio_header(info->ifname);
}

/* Bonds, bridges, VLANs: what the devices below have made of a frame is what they get, and what XDP on them gets to see. */
bool uplink_lies_on_others(const struct netdev_info *info)
{
	return uplink_needs_generic(info) || !strcmp(info->kind, "bridge") || netdev_lies_on_others(info->ifname);
}

void uplink_check_surprises(const struct netdev_info *info, unsigned workers, struct uplink_warnings *warnings)
{
	char master[IF_NAMESIZE];

	if (!info->up)
		uplink_warn(warnings, "uplink %s: is down, nothing reaches the wire; run ip link set %s up", info->ifname, info->ifname);
	else if (!info->running)
		uplink_warn(warnings, "uplink %s: has no carrier, nothing reaches the wire; plug the cable or set its peer up", info->ifname);
	if (info->master_ifindex && if_indextoname(info->master_ifindex, master))
		uplink_warn(warnings,
			    "uplink %s: is a member of %s; guests' frames are taken before %s sees them, and it learns nothing of guests; "
			    "run ip link set %s nomaster if that is not meant",
			    info->ifname, master, master, info->ifname);
	if (info->rx_queues < workers)
		uplink_warn(warnings,
			    "uplink %s: has %u receive queue%s for %u workers, the kernel's part of the work lies on as many CPUs; "
			    "run ethtool -L %s combined %u if the device can",
			    info->ifname, info->rx_queues, info->rx_queues == 1 ? "" : "s", workers, info->ifname, workers);
	if (!strcmp(info->kind, "veth"))
		check_veth_peer(info, warnings);
	if (uplink_lies_on_others(info))
		uplink_warn(warnings,
			    "uplink %s: lies on other devices, so frames from the wire reach guests through the host's stack (tc), which is slower; "
			    "name one of those devices if one will do", info->ifname);
	if (netdev_has_virtio_header(info->ifname))
		uplink_warn(warnings,
			    "uplink %s: the process behind this tap may write frames longer than the MTU, so they reach guests through the host's stack "
			    "(tc), which is slower; have it do without (QEMU: vnet_hdr=off)", info->ifname);
}
