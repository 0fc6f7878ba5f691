/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who completes the checksums that guests leave open on what they send to a device. As the stack does for its own TCP: the device, where it
 * can and `ethtool -K DEVICE tx` lets it, else software, which is the engine, while it copies. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_TX_CHECKSUM_H
#define VHOSTLANE_CONTROL_TX_CHECKSUM_H

#include "control/netdev.h"
#include "datapath/lane.h"

enum tx_checksum {
	TX_CHECKSUM_ENGINE, /* computed while the frame is copied */
	TX_CHECKSUM_KERNEL, /* copy mode: open in the kernel's packet, which the device passes on as it is (veth) */
	TX_CHECKSUM_DRIVER, /* zero-copy: its driver has the hardware do it */
	TX_CHECKSUM_COUNT,
};
extern const char *const tx_checksum_names[TX_CHECKSUM_COUNT]; /* "engine", "kernel", "driver" */

/* What this device offers now in that mode of AF_XDP (zero-copy or another), whether the kernel has transmit metadata or not. */
enum tx_checksum tx_checksum_offered(const struct netdev_info *info, enum lane_mode mode);

#endif
