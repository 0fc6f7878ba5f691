/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/link_monitor.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "control/ports.h"

#ifndef IFF_LOWER_UP
#define IFF_LOWER_UP (1 << 16) /* of linux/if.h, which cannot stand beside net/if.h */
#endif

struct link_monitor {
	struct engine *engine;
	struct nl_sock *socket;
	struct event_source *source;
	struct {
		bool gone, up, carrier, host_link_gone;
		const char *missing; /* as of bpf_set_missing() */
	} seen[DOMAINS_MAX];
};

static void look_at_programs(struct link_monitor *monitor, unsigned index)
{
	struct uplink *uplink = monitor->engine->uplinks[index];
	const char *ifname = uplink_info(uplink)->ifname, *missing = bpf_set_missing(uplink_bpf(uplink));
	const char *before = monitor->seen[index].missing;

	monitor->seen[index].missing = missing;
	if (missing && (!before || strcmp(missing, before)))
		log_error("uplink %s: its %s program was taken off, not by vhostlane: %s; restart vhostlane, which attaches it again", ifname, missing,
			  strcmp(missing, "XDP") ? "frames between the host and guests, and broadcasts, are lost" : "guests get nothing from the wire");
	else if (!missing && before)
		log_info("uplink %s: its %s program is back", ifname, before);
}

static void note_gone(struct link_monitor *monitor, unsigned index)
{
	if (!monitor->seen[index].gone)
		log_error("uplink %s: the interface is gone; guests reach each other only; restart when it is back",
			  uplink_info(monitor->engine->uplinks[index])->ifname);
	monitor->seen[index].gone = true;
}

static void note_host_link_gone(struct link_monitor *monitor, unsigned index, unsigned node, const struct host_link *link)
{
	if (!monitor->seen[index].host_link_gone)
		log_error("uplink %s: its host link %s was deleted, not by vhostlane: frames between the host and guests of NUMA node %u, and broadcasts, "
			  "may be lost; restart vhostlane, which makes it again", uplink_info(monitor->engine->uplinks[index])->ifname,
			  host_link_host_end(link)->ifname, node);
	monitor->seen[index].host_link_gone = true;
}

/* Is the one with this index still there? 0: all of them are looked for. */
static void look_at_host_links(struct link_monitor *monitor, unsigned index, unsigned deleted)
{
	char name[IF_NAMESIZE];

	for (unsigned node = 0; node < VL_NODES_MAX; node++) {
		const struct host_link *link = uplink_host_link(monitor->engine->uplinks[index], node);
		const unsigned ifindex = link ? host_link_host_end(link)->ifindex : 0;

		if (ifindex && (deleted ? ifindex == deleted : !if_indextoname(ifindex, name)))
			note_host_link_gone(monitor, index, node, link);
	}
}

static void look_at_link(struct link_monitor *monitor, unsigned index, bool up, bool carrier)
{
	struct uplink *uplink = monitor->engine->uplinks[index];
	const struct netdev_info before = *uplink_info(uplink);
	struct error error;
	int result;

	if (carrier != monitor->seen[index].carrier)
		log_info("uplink %s: %s", uplink_info(uplink)->ifname, carrier ? "carrier" : "down, or no carrier");
	monitor->seen[index].carrier = carrier;
	monitor->seen[index].up = up;
	result = uplink_device_changed(uplink, &error);
	if (result == -ENODEV)
		note_gone(monitor, index); /* the event of its removal comes behind this one */
	else if (result)
		log_warning("%s", error.text);
	else
		look_at_programs(monitor, index);
	if (memcmp(before.mac, uplink_info(uplink)->mac, sizeof(before.mac)) || before.mtu != uplink_info(uplink)->mtu)
		ports_uplink_changed(monitor->engine, index);
}

/* Events were lost: what they told shows in the kernel. */
static void look_at_all(struct link_monitor *monitor)
{
	struct netdev_info now;

	for (unsigned i = 0; i < monitor->engine->uplink_count; i++) {
		const bool known = !monitor->seen[i].gone && !netdev_get(uplink_info(monitor->engine->uplinks[i])->ifname, &now, NULL);

		if (!monitor->seen[i].gone)
			look_at_link(monitor, i, known ? now.up : monitor->seen[i].up, known ? now.running : monitor->seen[i].carrier);
		look_at_host_links(monitor, i, 0);
	}
}

static void on_link(struct link_monitor *monitor, const struct nlmsghdr *header)
{
	const struct ifinfomsg *link = nlmsg_data(header);
	bool carrier;

	if (!nlmsg_valid_hdr(header, sizeof(*link)) || link->ifi_family != AF_UNSPEC)
		return;
	carrier = (link->ifi_flags & (IFF_UP | IFF_LOWER_UP)) == (IFF_UP | IFF_LOWER_UP);
	for (unsigned i = 0; i < monitor->engine->uplink_count; i++) {
		if (header->nlmsg_type == RTM_DELLINK)
			look_at_host_links(monitor, i, (unsigned)link->ifi_index);
		if ((unsigned)link->ifi_index != uplink_info(monitor->engine->uplinks[i])->ifindex)
			continue;
		if (header->nlmsg_type == RTM_DELLINK)
			note_gone(monitor, i);
		else if (!monitor->seen[i].gone)
			look_at_link(monitor, i, link->ifi_flags & IFF_UP, carrier);
	}
}

static void on_filter(struct link_monitor *monitor, const struct nlmsghdr *header)
{
	const struct tcmsg *filter = nlmsg_data(header);

	if (!nlmsg_valid_hdr(header, sizeof(*filter)))
		return;
	for (unsigned i = 0; i < monitor->engine->uplink_count; i++)
		if ((unsigned)filter->tcm_ifindex == uplink_info(monitor->engine->uplinks[i])->ifindex && !monitor->seen[i].gone)
			look_at_programs(monitor, i);
}

static int on_message(struct nl_msg *message, void *argument)
{
	const struct nlmsghdr *header = nlmsg_hdr(message);

	switch (header->nlmsg_type) {
	case RTM_NEWLINK:
	case RTM_DELLINK:
		on_link(argument, header);
		break;
	case RTM_NEWTFILTER:
	case RTM_DELTFILTER:
	case RTM_DELQDISC:
		on_filter(argument, header);
		break;
	}
	return NL_OK;
}

const char *link_monitor_state(struct engine *engine, unsigned index)
{
	struct link_monitor *monitor = engine->link_monitor;

	if (!monitor)
		return "up";
	if (monitor->seen[index].gone)
		return "gone";
	/* Not every way of taking a program off has an event. */
	look_at_programs(monitor, index);
	if (monitor->seen[index].host_link_gone)
		return "host link gone";
	if (monitor->seen[index].missing)
		return strcmp(monitor->seen[index].missing, "XDP") ? "tc missing" : "xdp missing";
	return monitor->seen[index].carrier ? "up" : monitor->seen[index].up ? "no carrier" : "down";
}

static void on_readable(void *context, int fd, uint32_t events)
{
	struct link_monitor *monitor = context;

	const int result = nl_recvmsgs_default(monitor->socket);

	/* ENOBUFS, for which libnl has another name: the kernel had more to tell than fits. */
	if (result < 0 && result != -NLE_AGAIN)
		look_at_all(monitor);
}

int link_monitor_open(struct engine *engine, struct error *error)
{
	struct link_monitor *monitor = calloc(1, sizeof(*monitor));
	int result;

	if (!monitor)
		return error_set(error, -ENOMEM, "link events: out of memory; free some memory");
	engine->link_monitor = monitor;
	monitor->engine = engine;
	for (unsigned i = 0; i < engine->uplink_count; i++) {
		monitor->seen[i].up = uplink_info(engine->uplinks[i])->up;
		monitor->seen[i].carrier = uplink_info(engine->uplinks[i])->running;
	}
	monitor->socket = nl_socket_alloc();
	if (!monitor->socket)
		return error_set(error, -ENOMEM, "link events: out of memory; free some memory");
	nl_socket_disable_seq_check(monitor->socket);
	nl_socket_modify_cb(monitor->socket, NL_CB_VALID, NL_CB_CUSTOM, on_message, monitor);
	result = nl_connect(monitor->socket, NETLINK_ROUTE);
	if (!result)
		result = nl_socket_add_memberships(monitor->socket, RTNLGRP_LINK, RTNLGRP_TC, 0);
	if (!result)
		result = nl_socket_set_nonblocking(monitor->socket);
	if (result)
		return error_set(error, -EIO, "link events: rtnetlink: %s; check that the process may use netlink sockets", nl_geterror(result));
	monitor->source = event_loop_add(engine->loop, nl_socket_get_fd(monitor->socket), EPOLLIN, on_readable, monitor, error);
	return monitor->source ? 0 : error->code;
}

void link_monitor_close(struct engine *engine)
{
	struct link_monitor *monitor = engine->link_monitor;

	if (!monitor)
		return;
	event_source_remove(monitor->source);
	nl_socket_free(monitor->socket);
	free(monitor);
	engine->link_monitor = NULL;
}
