/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A host link: the veth pair between the host's stack and the guests of one NUMA node (design section 2). Made and removed by vhostlane; a
 * pair left by a crashed daemon is removed first. Control thread.
 *
 * Names: vhl<uplink ifindex>n<node> is the host end, the same with an `e` behind it the engine's end.
 */
#ifndef VHOSTLANE_CONTROL_HOST_LINK_H
#define VHOSTLANE_CONTROL_HOST_LINK_H

#include "common/error.h"
#include "control/bpf_loader.h"
#include "control/netdev.h"
#include "control/tx_checksum.h"
#include "datapath/lane.h"

#define HOST_LINK_QUEUES_MAX 16

struct host_link;

struct host_link_setup {
	unsigned uplink_ifindex;
	unsigned node;
	unsigned queues;  /* device queues: as many as workers, at most HOST_LINK_QUEUES_MAX */
	unsigned workers;
	unsigned mtu;
};

struct host_link *host_link_open(const struct host_link_setup *setup, struct bpf_set *set, struct error *error);
void host_link_close(struct host_link *link); /* NULL is fine */

struct lane_device *host_link_device(struct host_link *link);
const struct netdev_info *host_link_host_end(const struct host_link *link);
const struct netdev_info *host_link_engine_end(const struct host_link *link);
enum tx_checksum host_link_tx_checksum(const struct host_link *link);
unsigned host_link_queues(const struct host_link *link);
int host_link_set_mtu(struct host_link *link, unsigned mtu, struct error *error); /* -EMSGSIZE: more than its lanes hold */

/* Name of the host end for (uplink, node); false if it does not fit into an interface name. */
bool host_link_name(unsigned uplink_ifindex, unsigned node, char name[IF_NAMESIZE]);
/* Is this the name of a host link's end (either one)? */
bool host_link_is_name(const char *ifname);
/* Removes whatever pairs a crashed daemon left for this uplink, on any node. The caller holds the uplink's lock. */
void host_link_remove_leftovers(unsigned uplink_ifindex);

#endif
