// SPDX-License-Identifier: BSD-2-Clause
#include "control/netdev.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "common/util.h"
#include "control/netdev_ethtool.h"
#include "control/netdev_link.h"
#include "control/topology.h"

#define CANDIDATES_MAX 24 /* interfaces named in an error */

int netdev_check_name(const char *ifname, struct error *error)
{
	size_t length = strlen(ifname);

	if (length == 0)
		return error_set(error, -EINVAL, "interface '': the name is empty; name one that `ip link` shows");
	if (length >= IF_NAMESIZE)
		return error_set(error, -ENAMETOOLONG,
				 "interface '%.64s': the name has %zu characters and Linux allows %d; use the name that `ip link` shows first",
				 ifname, length, IF_NAMESIZE - 1);
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)ifname[i];

		if (c == '/' || c == ':' || isspace(c) || iscntrl(c))
			return error_set(error, -EINVAL,
					 "interface '%s': an interface name holds no '/', ':' or white space; name one that `ip link` shows",
					 ifname);
	}
	if (!strcmp(ifname, ".") || !strcmp(ifname, ".."))
		return error_set(error, -EINVAL, "interface '%s': not an interface name; name one that `ip link` shows", ifname);
	return 0;
}

bool netdev_is_host_link(const char *ifname)
{
	char name[IF_NAMESIZE + 1];
	unsigned uplink_ifindex, node;

	if (sscanf(ifname, "vhl%un%u", &uplink_ifindex, &node) != 2)
		return false;
	/* Written back, so that "vhl03n1" or "vhl3n1x" do not pass. */
	snprintf(name, sizeof(name), "vhl%un%ue", uplink_ifindex, node);
	if (!strcmp(ifname, name))
		return true;
	snprintf(name, sizeof(name), "vhl%un%u", uplink_ifindex, node);
	return !strcmp(ifname, name);
}

/* "eth0, eth1 and 7 more": what could have been meant. */
static void list_candidates(char *text, size_t size)
{
	struct if_nameindex *all = if_nameindex();
	size_t used = 0;
	unsigned named = 0, more = 0;

	text[0] = '\0';
	for (struct if_nameindex *i = all; i && i->if_index; i++) {
		if (!strcmp(i->if_name, "lo") || netdev_is_host_link(i->if_name))
			continue;
		if (named == CANDIDATES_MAX) {
			more++;
			continue;
		}
		used += (size_t)snprintf(text + used, size - used, "%s%s", named++ ? ", " : "", i->if_name);
	}
	if (more)
		snprintf(text + used, size - used, " and %u more", more);
	if (all)
		if_freenameindex(all);
}

/*
 * Directory "class/net" of this process's network namespace. /sys may show another namespace's devices (`nsenter --net`, or a mount that is
 * older than the namespace), and would then change the wrong device of the same name; a mount of our own, attached nowhere, can't.
 */
static int class_net_open(void)
{
	int context = fsopen("sysfs", FSOPEN_CLOEXEC), mounted = -1, directory = -1;

	if (context >= 0 && fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mounted = fsmount(context, FSMOUNT_CLOEXEC, 0);
	if (mounted >= 0) {
		directory = openat(mounted, "class/net", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(mounted);
	}
	if (context >= 0)
		close(context);
	if (directory < 0)
		directory = open("/sys/class/net", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return directory < 0 ? -errno : directory;
}

static int attribute_open(const char *ifname, const char *attribute, int flags)
{
	int directory = class_net_open(), fd;
	char path[128];

	if (directory < 0)
		return directory;
	snprintf(path, sizeof(path), "%s/%s", ifname, attribute);
	fd = openat(directory, path, flags | O_CLOEXEC);
	if (fd < 0)
		fd = -errno;
	close(directory);
	return fd;
}

static int attribute_read(const char *ifname, const char *attribute, uint64_t *value)
{
	int fd = attribute_open(ifname, attribute, O_RDONLY);
	char text[32];
	ssize_t n;

	if (fd < 0)
		return fd;
	n = read(fd, text, sizeof(text) - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return (int)n;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return number_parse(text, 0, UINT64_MAX, value) ? 0 : -EINVAL;
}

bool netdev_has_virtio_header(const char *ifname)
{
	int fd = attribute_open(ifname, "tun_flags", O_RDONLY);
	char text[32];
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n < 0 ? 0 : n] = '\0';
	return strtoul(text, NULL, 16) & IFF_VNET_HDR;
}

static int attribute_write(const char *ifname, const char *attribute, uint64_t value)
{
	int fd = attribute_open(ifname, attribute, O_WRONLY), result = 0;
	char text[32];
	int length = snprintf(text, sizeof(text), "%" PRIu64, value);

	if (fd < 0)
		return fd;
	if (write(fd, text, (size_t)length) < 0)
		result = -errno;
	close(fd);
	return result;
}

/* Real queues as sysfs shows them: entries rx-N and tx-N. */
static int sysfs_queues(const char *ifname, unsigned *rx_queues, unsigned *tx_queues)
{
	int fd = attribute_open(ifname, "queues", O_RDONLY | O_DIRECTORY);
	unsigned rx = 0, tx = 0;
	struct dirent *entry;
	DIR *directory;

	if (fd < 0)
		return fd;
	directory = fdopendir(fd);
	if (!directory) {
		close(fd);
		return -ENOMEM;
	}
	while ((entry = readdir(directory))) {
		rx += !strncmp(entry->d_name, "rx-", 3);
		tx += !strncmp(entry->d_name, "tx-", 3);
	}
	closedir(directory);
	if (!rx || !tx)
		return -ENOENT;
	*rx_queues = rx;
	*tx_queues = tx;
	return 0;
}

/* sysfs shows each as a link lower_NAME. */
bool netdev_lies_on_others(const char *ifname)
{
	static const char prefix[] = "lower_";
	int fd = attribute_open(ifname, ".", O_RDONLY | O_DIRECTORY);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;
	bool found = false;

	if (!directory) {
		if (fd >= 0)
			close(fd);
		return false;
	}
	while (!found && (entry = readdir(directory)))
		found = strncmp(entry->d_name, prefix, sizeof(prefix) - 1) == 0;
	closedir(directory);
	return found;
}

int netdev_get(const char *ifname, struct netdev_info *info, struct error *error)
{
	char candidates[CANDIDATES_MAX * (IF_NAMESIZE + 1) + 24], name[IF_NAMESIZE];
	int code = netdev_check_name(ifname, error);

	if (code < 0)
		return code;
	/* The caller's name may be the one in @info. */
	copy_string(name, sizeof(name), ifname);
	ifname = name;
	code = netdev_link_read(ifname, info);
	if (code == -ENODEV) {
		list_candidates(candidates, sizeof(candidates));
		return error_set(error, -ENODEV, "interface '%s': does not exist; name one that `ip link` shows%s%s", ifname,
				 candidates[0] ? ": " : "", candidates);
	}
	if (code < 0)
		return error_set(error, code, "interface '%s': cannot ask the kernel about it: %s; run as root", ifname, strerror(-code));
	if (ethtool_driver(ifname, info->driver, sizeof(info->driver)) < 0)
		copy_string(info->driver, sizeof(info->driver), info->kind);
	/* If neither knows, the numbers of allocated queues stay. */
	if (ethtool_channels(ifname, &info->rx_queues, &info->tx_queues) < 0)
		sysfs_queues(ifname, &info->rx_queues, &info->tx_queues);
	info->node = topology_device_node(ifname);
	return 0;
}

void netdev_undo_init(struct netdev_undo_log *log, const char *ifname)
{
	memset(log, 0, sizeof(*log));
	copy_string(log->ifname, sizeof(log->ifname), ifname);
	log->ifindex = if_nametoindex(ifname);
	log->promiscuous_fd = -1;
}

static struct netdev_change *log_change(struct netdev_undo_log *log, enum netdev_change_kind kind, const char *name, uint64_t before)
{
	struct netdev_change *change = &log->changes[log->count];

	change->kind = kind;
	copy_string(change->name, sizeof(change->name), name);
	change->before = before;
	log->count++;
	return change;
}

/* Asked before a change: what could not be undone is not done. */
static int log_room(const struct netdev_undo_log *log, const char *what, struct error *error)
{
	if (log->count < NETDEV_CHANGES_MAX)
		return 0;
	return error_set(error, -ENOSPC, "interface %s: cannot change %s: %d changes are remembered already; this is a fault of vhostlane",
			 log->ifname, what, NETDEV_CHANGES_MAX);
}

int netdev_set_promiscuous(struct netdev_undo_log *log, struct error *error)
{
	struct packet_mreq membership = { .mr_type = PACKET_MR_PROMISC };
	int fd, code, ifindex;

	if (log->promiscuous_fd >= 0)
		return 0;
	code = log_room(log, "promiscuous mode", error);
	if (code < 0)
		return code;
	ifindex = netdev_link_index(log->ifname);
	if (ifindex < 0)
		return error_set(error, ifindex, "interface %s: %s; start again when it is back", log->ifname,
				 ifindex == -ENODEV ? "does not exist any more" : strerror(-ifindex));
	membership.mr_ifindex = ifindex;
	/* Protocol 0: the socket receives nothing, it only holds the membership. */
	fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof(membership)) < 0) {
		code = -errno;
		if (fd >= 0)
			close(fd);
		return error_set(error, code, "interface %s: cannot set promiscuous mode: %s; run as root (CAP_NET_RAW)", log->ifname,
				 strerror(-code));
	}
	log->promiscuous_fd = fd;
	log_change(log, NETDEV_CHANGE_PROMISCUOUS, "promiscuous", 0);
	return 0;
}

bool netdev_get_feature(const char *ifname, const char *feature)
{
	struct ethtool_feature f;

	return ethtool_feature_get(ifname, feature, &f) == 0 && f.active;
}

int netdev_set_feature(struct netdev_undo_log *log, const char *feature, bool on, struct error *error)
{
	struct ethtool_feature before, after;
	int code = log_room(log, feature, error);

	if (code < 0)
		return code;
	code = ethtool_feature_get(log->ifname, feature, &before);
	if (code < 0)
		return error_set(error, code == -ENOENT ? -EOPNOTSUPP : code, "interface %s: cannot read feature %s: %s; see ethtool -k %s",
				 log->ifname, feature, code == -ENOENT ? "this kernel has none of that name" : strerror(-code),
				 log->ifname);
	if (before.active == on)
		return 0;
	if (!before.available)
		goto fixed;
	code = ethtool_feature_set(log->ifname, feature, on);
	if (code < 0)
		return error_set(error, code, "interface %s: cannot set feature %s %s: %s; try it by hand: ethtool -K %s %s %s", log->ifname,
				 feature, on ? "on" : "off", strerror(-code), log->ifname, feature, on ? "on" : "off");
	if (ethtool_feature_get(log->ifname, feature, &after) < 0 || after.active != on) {
		ethtool_feature_set(log->ifname, feature, before.wanted);
		goto fixed;
	}
	log_change(log, NETDEV_CHANGE_FEATURE, feature, before.wanted);
	return 0;
fixed:
	return error_set(error, -EOPNOTSUPP, "interface %s: feature %s is %s and the driver does not let it change; see ethtool -k %s",
			 log->ifname, feature, on ? "off" : "on", log->ifname);
}

int netdev_set_napi(struct netdev_undo_log *log, const char *attribute, uint64_t value, struct error *error)
{
	uint64_t before;
	int code = log_room(log, attribute, error);

	if (code < 0)
		return code;
	code = attribute_read(log->ifname, attribute, &before);
	if (code == 0 && before == value)
		return 0;
	if (code == 0)
		code = attribute_write(log->ifname, attribute, value);
	if (code < 0)
		return error_set(error, code, "interface %s: cannot set %s to %" PRIu64 ": %s; write it to /sys/class/net/%s/%s yourself",
				 log->ifname, attribute, value, strerror(-code), log->ifname, attribute);
	log_change(log, NETDEV_CHANGE_NAPI, attribute, before);
	return 0;
}

void netdev_undo(struct netdev_undo_log *log)
{
	bool gone = !log->ifindex || !if_indextoname(log->ifindex, log->ifname);

	while (log->count) {
		const struct netdev_change *change = &log->changes[--log->count];
		int code = 0;

		switch (change->kind) {
		case NETDEV_CHANGE_PROMISCUOUS:
			if (log->promiscuous_fd >= 0)
				close(log->promiscuous_fd);
			log->promiscuous_fd = -1;
			break;
		case NETDEV_CHANGE_FEATURE:
			if (!gone)
				code = ethtool_feature_set(log->ifname, change->name, change->before);
			break;
		case NETDEV_CHANGE_NAPI:
			if (!gone)
				code = attribute_write(log->ifname, change->name, change->before);
			break;
		}
		if (code < 0 && code != -ENODEV)
			log_warning("interface %s: cannot put %s back to %" PRIu64 ": %s; set it yourself", log->ifname, change->name,
				    change->before, error_why(code));
	}
}
