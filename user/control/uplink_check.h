/* SPDX-License-Identifier: BSD-2-Clause */
/* Whether a device can be an uplink, and what of it will surprise its user. Changes nothing, logs nothing. Control thread. */
#ifndef VHOSTLANE_CONTROL_UPLINK_CHECK_H
#define VHOSTLANE_CONTROL_UPLINK_CHECK_H

#include "control/uplink.h"

#define UPLINK_WARNINGS_SIZE 4096

/* Lines that a user should read, '\n' between them. */
struct uplink_warnings {
	char text[UPLINK_WARNINGS_SIZE];
};

void uplink_warn(struct uplink_warnings *warnings, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Is it there, and of a kind, size and number of queues that can be served? Fills @info. Return: 0 or negative errno value. */
int uplink_check(const struct uplink_setup *setup, struct netdev_info *info, struct error *error);

/* Sockets never get what native XDP sees on these (bond, team): only generic XDP serves. */
bool uplink_needs_generic(const struct netdev_info *info);

/* Has it frames only after other devices? By then they may be merged, and without their tags: no XDP program can steer them. */
bool uplink_lies_on_others(const struct netdev_info *info);

/* Must tc take frames to guests there, XDP being unable to? @generic: XDP runs above the driver. */
bool uplink_steers_by_tc(const struct netdev_info *info, bool generic);

/* Carrier, membership, queues against workers, a veth peer's offloads, devices below. */
void uplink_check_surprises(const struct netdev_info *info, unsigned workers, struct uplink_warnings *warnings);

#endif
