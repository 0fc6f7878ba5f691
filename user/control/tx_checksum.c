// SPDX-License-Identifier: BSD-2-Clause
#include "control/tx_checksum.h"

#include <string.h>

#include "control/netdev_xdp.h"

const char *const tx_checksum_names[TX_CHECKSUM_COUNT] = {
	[TX_CHECKSUM_ENGINE] = "engine",
	[TX_CHECKSUM_KERNEL] = "kernel",
	[TX_CHECKSUM_DRIVER] = "driver",
};

/*
 * In copy mode the kernel gives the driver a packet with the place of its checksum, but without the place of its IP header, by which drivers
 * of hardware program it; and packets for virtio_net, which are built of pages, came without either before Linux 6.18. veth needs no more
 * than it gets: it passes the packet on as it is.
 */
static enum tx_checksum offered_in_copy_mode(const struct netdev_info *info)
{
	return !strcmp(info->driver, "veth") && netdev_get_feature(info->ifname, "tx-checksum-ip-generic") ? TX_CHECKSUM_KERNEL : TX_CHECKSUM_ENGINE;
}

static enum tx_checksum offered_in_zero_copy_mode(const struct netdev_info *info)
{
	uint64_t features = 0;

	if (netdev_xsk_features(info->ifindex, &features) || !(features & NETDEV_XSK_TX_CHECKSUM))
		return TX_CHECKSUM_ENGINE;
	if (netdev_get_feature(info->ifname, "tx-checksum-ip-generic") ||
	    (netdev_get_feature(info->ifname, "tx-checksum-ipv4") && netdev_get_feature(info->ifname, "tx-checksum-ipv6")))
		return TX_CHECKSUM_DRIVER;
	return TX_CHECKSUM_ENGINE;
}

enum tx_checksum tx_checksum_offered(const struct netdev_info *info, enum lane_mode mode)
{
	return mode == LANE_MODE_ZERO_COPY ? offered_in_zero_copy_mode(info) : offered_in_copy_mode(info);
}
