/* SPDX-License-Identifier: BSD-2-Clause */
/* What rtnetlink says of a link, for netdev.c; making and changing links is in netdev.h. Control thread. */
#ifndef VHOSTLANE_CONTROL_NETDEV_LINK_H
#define VHOSTLANE_CONTROL_NETDEV_LINK_H

#include "control/netdev.h"

/* Fills all of @info that rtnetlink knows; queues are those allocated. Return: 0 or negative errno value, -ENODEV if there is no such link. */
int netdev_link_read(const char *ifname, struct netdev_info *info);

/* Index of the link of that name, or negative errno value: unlike if_nametoindex(), tells what is not there from what could not be asked. */
int netdev_link_index(const char *ifname);

#endif
