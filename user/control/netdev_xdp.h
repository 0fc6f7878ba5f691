/* SPDX-License-Identifier: BSD-2-Clause */
/* What XDP a device's driver has, as the kernel tells it (generic netlink family `netdev`, Linux 6.3 and newer). Control thread. */
#ifndef VHOSTLANE_CONTROL_NETDEV_XDP_H
#define VHOSTLANE_CONTROL_NETDEV_XDP_H

#include <stdint.h>

/* enum netdev_xdp_act of linux/netdev.h, which older systems' headers lack. */
#define NETDEV_XDP_BASIC (1ull << 0)	   /* native XDP */
#define NETDEV_XDP_REDIRECT (1ull << 1)
#define NETDEV_XDP_XSK_ZEROCOPY (1ull << 3)

/* enum netdev_xsk_flags: what zero-copy sockets can ask of the driver by transmit metadata. */
#define NETDEV_XSK_TX_CHECKSUM (1ull << 1)

/* Return: 0 or negative errno value; -EOPNOTSUPP, -ENODATA: this kernel does not tell. */
int netdev_xdp_features(unsigned ifindex, uint64_t *features);
int netdev_xsk_features(unsigned ifindex, uint64_t *features); /* Linux 6.8 */

#endif
