// SPDX-License-Identifier: BSD-2-Clause
#include "control/tx_checksum.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "common/util.h"
#include "control/netdev_xdp.h"

const char *const tx_checksum_names[TX_CHECKSUM_COUNT] = {
	[TX_CHECKSUM_ENGINE] = "engine",
	[TX_CHECKSUM_KERNEL] = "kernel",
	[TX_CHECKSUM_DRIVER] = "driver",
};

/*
 * In copy mode the kernel gives the driver a packet with the place of its checksum, but without the place of its IP header, by which drivers
 * of hardware program it. These drivers need no more than they get. virtio_net's packets are built of pages, and until Linux 6.18 what was
 * asked for them was forgotten.
 */
static const struct {
	const char *driver;
	unsigned major, minor; /* oldest kernel; 0 = any that has transmit metadata */
} frugal_drivers[] = {
	{ "veth", 0, 0 },
	{ "tun", 0, 0 },
	{ "virtio_net", 6, 18 },
};

static bool kernel_is_at_least(unsigned major, unsigned minor)
{
	struct utsname kernel;
	unsigned has_major = 0, has_minor = 0;

	return !uname(&kernel) && sscanf(kernel.release, "%u.%u", &has_major, &has_minor) == 2 &&
	       (has_major > major || (has_major == major && has_minor >= minor));
}

static enum tx_checksum offered_in_copy_mode(const struct netdev_info *info)
{
	for (size_t i = 0; i < ARRAY_SIZE(frugal_drivers); i++)
		if (!strcmp(info->driver, frugal_drivers[i].driver))
			return kernel_is_at_least(frugal_drivers[i].major, frugal_drivers[i].minor) &&
					       netdev_get_feature(info->ifname, "tx-checksum-ip-generic")
				       ? TX_CHECKSUM_KERNEL
				       : TX_CHECKSUM_ENGINE;
	return TX_CHECKSUM_ENGINE;
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
