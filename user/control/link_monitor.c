/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/link_monitor.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <stdlib.h>

#include "common/log.h"

#ifndef IFF_LOWER_UP
#define IFF_LOWER_UP (1 << 16) /* of linux/if.h, which cannot stand beside net/if.h */
#endif

struct link_monitor {
	struct engine *engine;
	struct nl_sock *socket;
	struct event_source *source;
	struct {
		bool gone, up;
	} seen[DOMAINS_MAX];
};

static void look_at_uplink(struct link_monitor *monitor, unsigned index, const struct ifinfomsg *link, bool removed)
{
	struct uplink *uplink = monitor->engine->uplinks[index];
	const struct netdev_info *info = uplink_info(uplink);
	const bool up = (link->ifi_flags & (IFF_UP | IFF_LOWER_UP)) == (IFF_UP | IFF_LOWER_UP);
	struct error error;

	if (removed) {
		if (!monitor->seen[index].gone)
			log_error("uplink %s: the interface is gone; guests reach each other only; restart when it is back", info->ifname);
		monitor->seen[index].gone = true;
		return;
	}
	if (up != monitor->seen[index].up)
		log_info("uplink %s: %s", info->ifname, up ? "carrier" : "down, or no carrier");
	monitor->seen[index].up = up;
	if (uplink_mtu_changed(uplink, &error))
		log_warning("%s", error.text);
}

static int on_message(struct nl_msg *message, void *argument)
{
	struct link_monitor *monitor = argument;
	struct nlmsghdr *header = nlmsg_hdr(message);
	const struct ifinfomsg *link = nlmsg_data(header);

	if ((header->nlmsg_type != RTM_NEWLINK && header->nlmsg_type != RTM_DELLINK) || !nlmsg_valid_hdr(header, sizeof(*link)) ||
	    link->ifi_family != AF_UNSPEC)
		return NL_OK;
	for (unsigned i = 0; i < monitor->engine->uplink_count; i++)
		if ((unsigned)link->ifi_index == uplink_info(monitor->engine->uplinks[i])->ifindex)
			look_at_uplink(monitor, i, link, header->nlmsg_type == RTM_DELLINK);
	return NL_OK;
}

static void on_readable(void *context, int fd, uint32_t events)
{
	struct link_monitor *monitor = context;

	/* Events may be lost when the kernel had more than fit (ENOBUFS): the next one brings the state anyway. */
	nl_recvmsgs_default(monitor->socket);
}

int link_monitor_open(struct engine *engine, struct error *error)
{
	struct link_monitor *monitor = calloc(1, sizeof(*monitor));
	int result;

	if (!monitor)
		return error_set(error, -ENOMEM, "link events: out of memory; free some memory");
	engine->link_monitor = monitor;
	monitor->engine = engine;
	for (unsigned i = 0; i < engine->uplink_count; i++)
		monitor->seen[i].up = uplink_info(engine->uplinks[i])->running;
	monitor->socket = nl_socket_alloc();
	if (!monitor->socket)
		return error_set(error, -ENOMEM, "link events: out of memory; free some memory");
	nl_socket_disable_seq_check(monitor->socket);
	nl_socket_modify_cb(monitor->socket, NL_CB_VALID, NL_CB_CUSTOM, on_message, monitor);
	result = nl_connect(monitor->socket, NETLINK_ROUTE);
	if (!result)
		result = nl_socket_add_memberships(monitor->socket, RTNLGRP_LINK, 0);
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
