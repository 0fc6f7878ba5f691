/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The ethtool ioctls that netdev needs: features by their kernel names, channels, driver. No state: each call opens and closes its own
 * socket. Used by netdev.c; others ask netdev.h. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_NETDEV_ETHTOOL_H
#define VHOSTLANE_CONTROL_NETDEV_ETHTOOL_H

#include <stdbool.h>
#include <stddef.h>

struct ethtool_feature {
	bool available; /* can be changed */
	bool wanted;	/* asked for by an administrator or by default: what has to be put back */
	bool active;	/* in force */
};

/* All return 0 or a negative errno value: -ENODEV no such device, -ENOENT no such feature, -EOPNOTSUPP not with this driver. */
int ethtool_feature_get(const char *ifname, const char *name, struct ethtool_feature *feature);
/* Return 0 as well when the kernel took the wish and the feature stays as it is (another feature forces it): look again. */
int ethtool_feature_set(const char *ifname, const char *name, bool on);
int ethtool_channels(const char *ifname, unsigned *rx_queues, unsigned *tx_queues);
int ethtool_driver(const char *ifname, char *driver, size_t size);

#endif
