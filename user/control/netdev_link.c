// SPDX-License-Identifier: BSD-2-Clause
/* Links by rtnetlink (libnl-route). */
#include "control/netdev_link.h"

#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netlink/errno.h>
#include <netlink/route/link.h>
#include <netlink/route/link/veth.h>
#include <netlink/socket.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "common/util.h"

/* libnl has error numbers of its own; callers compare with errno values. */
static int nl_to_errno(int nl_error)
{
	static const struct {
		int nl, code;
	} table[] = {
		{ NLE_EXIST, EEXIST },	  { NLE_OBJ_NOTFOUND, ENODEV }, { NLE_NODEV, ENODEV },	 { NLE_PERM, EPERM },
		{ NLE_NOACCESS, EACCES }, { NLE_OPNOTSUPP, EOPNOTSUPP }, { NLE_BUSY, EBUSY },	 { NLE_INVAL, EINVAL },
		{ NLE_RANGE, ERANGE },	  { NLE_NOMEM, ENOMEM },	 { NLE_AF_NOSUPPORT, EAFNOSUPPORT },
	};

	nl_error = nl_error < 0 ? -nl_error : nl_error;
	for (size_t i = 0; i < ARRAY_SIZE(table); i++)
		if (table[i].nl == nl_error)
			return -table[i].code;
	return -EIO;
}

int netdev_link_index(const char *ifname)
{
	struct ifreq request = { 0 };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), code = 0;

	if (fd < 0)
		return -errno;
	if (!copy_string(request.ifr_name, sizeof(request.ifr_name), ifname))
		code = -ENODEV;
	else if (ioctl(fd, SIOCGIFINDEX, &request) < 0)
		code = -errno;
	close(fd);
	return code ? code : request.ifr_ifindex;
}

static struct nl_sock *route_socket(int *code)
{
	struct nl_sock *socket = nl_socket_alloc();
	int result;

	if (!socket) {
		*code = -ENOMEM;
		return NULL;
	}
	errno = 0;
	result = nl_connect(socket, NETLINK_ROUTE);
	if (result < 0) {
		/* libnl has no number for these. */
		*code = errno == EMFILE || errno == ENFILE ? -errno : nl_to_errno(result);
		nl_socket_free(socket);
		return NULL;
	}
	return socket;
}

static void fill_info(struct rtnl_link *link, struct netdev_info *info)
{
	const char *kind = rtnl_link_get_type(link);
	struct nl_addr *mac = rtnl_link_get_addr(link);
	unsigned flags = rtnl_link_get_flags(link);

	copy_string(info->ifname, sizeof(info->ifname), rtnl_link_get_name(link) ? rtnl_link_get_name(link) : "");
	info->ifindex = (unsigned)rtnl_link_get_ifindex(link);
	info->mtu = rtnl_link_get_mtu(link);
	if (mac && nl_addr_get_len(mac) == sizeof(info->mac))
		memcpy(info->mac, nl_addr_get_binary_addr(mac), sizeof(info->mac));
	info->up = flags & IFF_UP;
	/* Not IFF_RUNNING, which follows the carrier up to a second later. */
	info->running = (flags & IFF_UP) && rtnl_link_get_carrier(link);
	copy_string(info->kind, sizeof(info->kind), kind ? kind : "");
	info->rx_queues = rtnl_link_get_num_rx_queues(link);
	info->tx_queues = rtnl_link_get_num_tx_queues(link);
	info->master_ifindex = (unsigned)rtnl_link_get_master(link);
	info->link_type = rtnl_link_get_arptype(link);
	if (kind && !strcmp(kind, "veth")) {
		int32_t netns;

		/* With a namespace id the index is the other namespace's and means nothing here. */
		if (rtnl_link_get_link_netnsid(link, &netns) == 0)
			info->peer_elsewhere = true;
		else
			info->peer_ifindex = (unsigned)rtnl_link_get_link(link);
	}
}

int netdev_link_read(const char *ifname, struct netdev_info *info)
{
	struct nl_sock *socket;
	struct rtnl_link *link = NULL;
	int code = 0;

	memset(info, 0, sizeof(*info));
	info->node = -1;
	socket = route_socket(&code);
	if (!socket)
		return code;
	code = rtnl_link_get_kernel(socket, 0, ifname, &link);
	if (code < 0)
		code = nl_to_errno(code);
	else
		fill_info(link, info);
	rtnl_link_put(link);
	nl_socket_free(socket);
	return code;
}

/* An address set by its maker is not changed afterwards by udev's MACAddressPolicy; locally administered, unicast. */
static int set_random_mac(struct rtnl_link *link)
{
	uint8_t mac[6];
	struct nl_addr *address;

	if (getrandom(mac, sizeof(mac), 0) != sizeof(mac))
		return -EIO;
	mac[0] = (uint8_t)((mac[0] & 0xfc) | 0x02);
	address = nl_addr_build(AF_LLC, mac, sizeof(mac));
	if (!address)
		return -ENOMEM;
	rtnl_link_set_addr(link, address);
	nl_addr_put(address);
	return 0;
}

static int fill_veth_end(struct rtnl_link *link, const char *name, unsigned queues, unsigned mtu)
{
	rtnl_link_set_name(link, name);
	rtnl_link_set_num_rx_queues(link, queues);
	rtnl_link_set_num_tx_queues(link, queues);
	rtnl_link_set_mtu(link, mtu);
	rtnl_link_set_flags(link, IFF_NOARP);
	return set_random_mac(link);
}

static int add_veth(struct nl_sock *socket, const char *host_end, const char *engine_end, unsigned queues, unsigned mtu)
{
	struct rtnl_link *link = rtnl_link_veth_alloc(), *peer;
	int code;

	if (!link)
		return -ENOMEM;
	peer = rtnl_link_veth_get_peer(link);
	code = fill_veth_end(link, host_end, queues, mtu);
	if (code == 0)
		code = fill_veth_end(peer, engine_end, queues, mtu);
	if (code == 0) {
		code = rtnl_link_add(socket, link, NLM_F_CREATE | NLM_F_EXCL);
		if (code < 0)
			code = nl_to_errno(code);
	}
	rtnl_link_put(peer);
	rtnl_link_veth_release(link);
	return code;
}

/* No link-local address, so no router solicitation, MLD report or duplicate detection. A kernel without IPv6 has no such file. */
static void silence_ipv6(const char *ifname)
{
	char path[96];
	int code;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/disable_ipv6", ifname);
	code = write_text(path, "1");
	if (code < 0 && code != -ENOENT)
		log_warning("interface %s: cannot write %s: %s; the host's IPv6 stack may be heard on it", ifname, path,
			    error_why(code));
}

int netdev_make_veth(const char *host_end, const char *engine_end, unsigned queues, unsigned mtu, struct error *error)
{
	struct nl_sock *socket;
	int code = netdev_check_name(host_end, error);

	if (code == 0)
		code = netdev_check_name(engine_end, error);
	if (code < 0)
		return code;
	socket = route_socket(&code);
	if (!socket)
		return error_set(error, code, "interface %s: no netlink socket: %s; run as root", host_end, strerror(-code));
	code = add_veth(socket, host_end, engine_end, queues, mtu);
	nl_socket_free(socket);
	if (code < 0) {
		const char *remedy = code == -EPERM ? "run as root (CAP_NET_ADMIN)" :
				     code == -EEXIST ? "remove the interface of that name: ip link del NAME" :
				     code == -EOPNOTSUPP ? "load the module: modprobe veth" :
							   "see the kernel's log: dmesg";

		return error_set(error, code, "interface %s: cannot make the veth pair %s, %s with %u queues and MTU %u: %s; %s",
				 host_end, host_end, engine_end, queues, mtu, strerror(-code), remedy);
	}
	silence_ipv6(host_end);
	silence_ipv6(engine_end);
	code = netdev_set_up(engine_end, true, error);
	if (code == 0)
		code = netdev_set_up(host_end, true, error);
	if (code < 0)
		netdev_delete(host_end, NULL);
	return code;
}

int netdev_delete(const char *ifname, struct error *error)
{
	const int ifindex = netdev_link_index(ifname);
	struct rtnl_link *link;
	struct nl_sock *socket;
	int code = ifindex;

	if (ifindex < 0)
		return error_set(error, code, "interface %s: %s; nothing to delete", ifname, code == -ENODEV ? "does not exist" : strerror(-code));
	socket = route_socket(&code);
	if (!socket)
		return error_set(error, code, "interface %s: no netlink socket: %s; run as root", ifname, strerror(-code));
	link = rtnl_link_alloc();
	if (link) {
		rtnl_link_set_ifindex(link, ifindex);
		code = rtnl_link_delete(socket, link);
		if (code < 0)
			code = nl_to_errno(code);
		rtnl_link_put(link);
	} else {
		code = -ENOMEM;
	}
	nl_socket_free(socket);
	if (code < 0)
		return error_set(error, code, "interface %s: cannot delete it: %s; delete it by hand: ip link del %s", ifname,
				 strerror(-code), ifname);
	return 0;
}

/* Sends @change for the link of that name. */
static int change_link(const char *ifname, struct rtnl_link *change)
{
	const int ifindex = netdev_link_index(ifname);
	struct nl_sock *socket;
	struct rtnl_link *link;
	int code = -ENOMEM;

	if (ifindex < 0)
		return ifindex;
	socket = route_socket(&code);
	if (!socket)
		return code;
	link = rtnl_link_alloc();
	if (link) {
		rtnl_link_set_ifindex(link, ifindex);
		code = rtnl_link_change(socket, link, change, 0);
		if (code < 0)
			code = nl_to_errno(code);
		rtnl_link_put(link);
	}
	nl_socket_free(socket);
	return code;
}

int netdev_set_mtu(const char *ifname, unsigned mtu, struct error *error)
{
	struct rtnl_link *change = rtnl_link_alloc();
	int code = -ENOMEM;

	if (change) {
		rtnl_link_set_mtu(change, mtu);
		code = change_link(ifname, change);
		rtnl_link_put(change);
	}
	if (code < 0)
		return error_set(error, code, "interface %s: cannot set MTU %u: %s; try it by hand: ip link set %s mtu %u", ifname, mtu,
				 strerror(-code), ifname, mtu);
	return 0;
}

int netdev_set_up(const char *ifname, bool up, struct error *error)
{
	struct rtnl_link *change = rtnl_link_alloc();
	int code = -ENOMEM;

	if (change) {
		if (up)
			rtnl_link_set_flags(change, IFF_UP);
		else
			rtnl_link_unset_flags(change, IFF_UP);
		code = change_link(ifname, change);
		rtnl_link_put(change);
	}
	if (code < 0)
		return error_set(error, code, "interface %s: cannot set it %s: %s; try it by hand: ip link set %s %s", ifname,
				 up ? "up" : "down", strerror(-code), ifname, up ? "up" : "down");
	return 0;
}
