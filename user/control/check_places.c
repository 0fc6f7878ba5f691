// SPDX-License-Identifier: BSD-2-Clause
/* What the configuration names on this host: CPUs, uplinks, sockets. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/util.h"
#include "control/check_report.h"
#include "control/netdev.h"
#include "control/netdev_xdp.h"
#include "control/topology.h"
#include "control/tx_checksum.h"
#include "control/uplink_check.h"
#include "control/uplink_lock.h"
#include "control/vhost_user.h"
#include "control/workforce.h"

#define RUN_DIRECTORY "/run/vhostlane"

static unsigned check_cpus(struct check *check)
{
	const struct config *config = check->config;
	struct error error = { 0 };
	struct cpulist cpus;
	unsigned slots;
	char text[256];

	if (config_resolve_cpus(config, &cpus, &error) < 0) {
		check_error(check, CHECK_FAIL, &error);
		return 1;
	}
	slots = workforce_slots(config, cpulist_count(&cpus));
	check_found(check, CHECK_OK, "cpus", NULL, "%u workers on %s", slots, cpulist_format(&cpus, text, sizeof(text)));
	if (config->threads && config->threads < slots)
		check_found(check, CHECK_WARN, "workers, threads", "name fewer CPUs by --cpus, or leave it out", "%u, but there is a worker on each of %u CPUs",
			    config->threads, slots);
	if (config->policy == PLACEMENT_MULTI_WORKER && config->workers_per_port > slots)
		check_found(check, CHECK_WARN, "workers, per-port", "give --threads a larger number, or it a smaller one", "%u, but there are %u workers",
			    config->workers_per_port, slots);
	return cpulist_count(&cpus);
}

/* --- uplinks ------------------------------------------------------------------------------------------------------ */

/* Return: false if this process may not look at it. */
static bool program_name(unsigned id, char name[BPF_OBJ_NAME_LEN])
{
	struct bpf_prog_info info = { 0 };
	__u32 size = sizeof(info);
	int fd = bpf_prog_get_fd_by_id(id);
	bool known = fd >= 0 && bpf_obj_get_info_by_fd(fd, &info, &size) == 0;

	copy_string(name, BPF_OBJ_NAME_LEN, known && info.name[0] ? info.name : "?");
	if (fd >= 0)
		close(fd);
	return known;
}

/* A foreign program is never replaced: it must be the dispatcher's, or go. What cannot be looked at may be our own. */
static void check_xdp(struct check *check, const char *what, const struct netdev_info *info)
{
	LIBBPF_OPTS(bpf_xdp_query_opts, query);
	char name[BPF_OBJ_NAME_LEN], remedy[96];
	unsigned id;

	if (bpf_xdp_query((int)info->ifindex, 0, &query) != 0)
		return;
	id = query.prog_id ? query.prog_id : query.drv_prog_id ? query.drv_prog_id : query.skb_prog_id ? query.skb_prog_id : query.hw_prog_id;
	if (!id)
		return;
	snprintf(remedy, sizeof(remedy), "remove it: ip link set dev %s %s off", info->ifname,
		 query.attach_mode == XDP_ATTACHED_SKB ? "xdpgeneric" : query.attach_mode == XDP_ATTACHED_HW ? "xdpoffload" : "xdp");
	if (!program_name(id, name))
		check_found(check, CHECK_WARN, what, "run the check as root to have it judged",
			    "carries an XDP program (id %u) that this process may not look at: vhostlane's own, or one that is in the way", id);
	else if (strncmp(name, "xdp_steer", 9) == 0)
		check_found(check, CHECK_OK, what, NULL, "carries XDP program %s (id %u), vhostlane's own: `run` takes it over", name, id);
	else if (strncmp(name, "xdp_dispatcher", 14) == 0)
		check_found(check, CHECK_OK, what, NULL, "carries libxdp's dispatcher (id %u): `run` joins it", id);
	else
		check_found(check, CHECK_FAIL, what, remedy, "carries the foreign XDP program %s (id %u)", name, id);
}

/* What was asked for, against what the driver has. */
static void check_mode(struct check *check, const char *what, enum lane_mode mode, const struct netdev_info *info)
{
	uint64_t features = 0;
	const int code = netdev_xdp_features(info->ifindex, &features);
	const bool native = features & NETDEV_XDP_BASIC;

	if (mode == LANE_MODE_GENERIC || (mode == LANE_MODE_AUTO && uplink_needs_generic(info)))
		return;
	if (code && mode == LANE_MODE_ZERO_COPY)
		check_found(check, CHECK_WARN, what, "start it to see, or set mode: auto",
			    "mode zero-copy: this kernel does not tell whether the driver has it (Linux 6.3 and newer do)");
	if (code)
		return;
	if (!native && mode == LANE_MODE_AUTO)
		check_found(check, CHECK_WARN, what, "name a device with native XDP if speed matters (veth: it needs as many receive queues as its "
			    "peer has transmit queues)", "no native XDP on this device as it is: generic XDP will be used, which is slower");
	else if (!native)
		check_found(check, CHECK_FAIL, what, "set mode: generic or auto (veth: give it as many receive queues as its peer has transmit queues)",
			    "mode %s: no native XDP on this device as it is", lane_mode_names[mode]);
	else if (mode == LANE_MODE_ZERO_COPY && !(features & NETDEV_XDP_XSK_ZEROCOPY))
		check_found(check, CHECK_FAIL, what, "set mode: auto or copy", "mode zero-copy: its driver has none");
}

/* As it will be, if the mode is what the driver's features promise. */
static enum tx_checksum foresee_checksum(const struct netdev_info *info, enum lane_mode mode)
{
	uint64_t features = 0;

	if (!lane_kernel_has_metadata())
		return TX_CHECKSUM_ENGINE;
	if (mode == LANE_MODE_AUTO && !netdev_xdp_features(info->ifindex, &features) && features & NETDEV_XDP_XSK_ZEROCOPY)
		mode = LANE_MODE_ZERO_COPY;
	return tx_checksum_offered(info, mode);
}

static void check_uplink(struct check *check, const struct config_uplink *uplink, unsigned cpus)
{
	const struct uplink_setup setup = {
		.config = *uplink, .workers = workforce_slots(check->config, cpus), .cpus = cpus, .nodes = 1,
	};
	struct uplink_warnings warnings = { .text = "" };
	struct error error = { 0 };
	struct netdev_info info;
	char what[64], *line, *rest;

	snprintf(what, sizeof(what), "uplink %s", uplink->ifname);
	if (uplink_check(&setup, &info, &error) < 0) {
		check_error(check, CHECK_FAIL, &error);
		return;
	}
	if (uplink_lock_probe(uplink->ifname, &error) < 0)
		check_error(check, CHECK_FAIL, &error);
	else
		check_found(check, CHECK_OK, what, NULL, "%s, driver %s, %u receive queues, MTU %u, node %d, mode %s, checksums by the %s",
			    info.kind[0] ? info.kind : "hardware", info.driver[0] ? info.driver : "?", info.rx_queues, info.mtu, info.node,
			    lane_mode_names[uplink->mode], tx_checksum_names[foresee_checksum(&info, uplink->mode)]);
	check_mode(check, what, uplink->mode, &info);
	/* What a living daemon put there is not to be taken off. */
	if (!error.code)
		check_xdp(check, what, &info);
	uplink_check_surprises(&info, cpus, &warnings);
	for (line = strtok_r(warnings.text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		error_set(&error, -EINVAL, "%s", line);
		check_error(check, CHECK_WARN, &error);
	}
}

/* --- sockets ------------------------------------------------------------------------------------------------------ */

#define UNIX_ACCEPTS 0x10000 /* __SO_ACCEPTCON in /proc/net/unix */

/* Does somebody listen at @path? Looks without connecting, which a frontend would take for its backend. */
static bool somebody_listens(const char *path)
{
	FILE *table = fopen("/proc/net/unix", "r");
	char line[512], name[256];
	unsigned flags;
	bool found = false;

	while (table && !found && fgets(line, sizeof(line), table))
		found = sscanf(line, "%*x: %*x %*x %x %*x %*x %*u %255s", &flags, name) == 2 && (flags & UNIX_ACCEPTS) && strcmp(name, path) == 0;
	if (table)
		fclose(table);
	return found;
}

/* The kernel's own file systems have directories that root may write to, and in which nothing can be made. */
static bool is_kernel_directory(const char *directory)
{
	static const unsigned long kernels_own[] = { PROC_SUPER_MAGIC, SYSFS_MAGIC, DEBUGFS_MAGIC, TRACEFS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
						     BPF_FS_MAGIC, HUGETLBFS_MAGIC };
	struct statfs s;

	if (statfs(directory, &s) != 0)
		return false;
	for (unsigned i = 0; i < ARRAY_SIZE(kernels_own); i++)
		if ((unsigned long)s.f_type == kernels_own[i])
			return true;
	return false;
}

/* Can a socket be made at @path? Return: false if the reason was reported. */
static bool check_directory(struct check *check, const char *what, const char *path)
{
	char directory[CONFIG_SOCKET_PATH_MAX + 1], remedy[CONFIG_SOCKET_PATH_MAX + 32];
	char *slash;
	struct stat s;

	copy_string(directory, sizeof(directory), path);
	slash = strrchr(directory, '/');
	slash[slash == directory ? 1 : 0] = '\0';
	if (stat(directory, &s) != 0) {
		/* `run` makes this one for the control socket and for locks of uplinks. */
		if (strcmp(directory, RUN_DIRECTORY) == 0 && (check->config->uplink_count ||
							      strncmp(check->config->control, RUN_DIRECTORY "/", sizeof(RUN_DIRECTORY)) == 0))
			return true;
		snprintf(remedy, sizeof(remedy), "mkdir -p %s", directory);
		check_found(check, CHECK_FAIL, what, remedy, "directory %s: %s", directory, strerror(errno));
		return false;
	}
	if (!S_ISDIR(s.st_mode)) {
		check_found(check, CHECK_FAIL, what, "name a path in a directory", "%s is no directory", directory);
		return false;
	}
	if (is_kernel_directory(directory)) {
		check_found(check, CHECK_FAIL, what, "name a path elsewhere, like " RUN_DIRECTORY "/NAME.sock", "%s belongs to the kernel and takes no sockets",
			    directory);
		return false;
	}
	if (access(directory, W_OK | X_OK) != 0) {
		check_found(check, CHECK_FAIL, what, "run as a user who may write there", "directory %s: %s", directory, strerror(errno));
		return false;
	}
	return true;
}

static void check_server_port(struct check *check, const char *what, const struct config_port *port)
{
	struct error error;
	struct stat s;
	gid_t gid;

	if (vhost_user_find_group(port, &gid, &error))
		check_error(check, CHECK_FAIL, &error);
	if (!check_directory(check, what, port->socket))
		return;
	if (lstat(port->socket, &s) == 0 && !S_ISSOCK(s.st_mode))
		check_found(check, CHECK_FAIL, what, "remove it or name another path", "%s is there and is no socket", port->socket);
	else if (somebody_listens(port->socket))
		check_found(check, CHECK_FAIL, what, "end that process or name another path", "another process listens at %s", port->socket);
	else
		check_found(check, CHECK_OK, what, NULL, "server at %s, %u queue pairs", port->socket, port->queues);
}

static void check_client_port(struct check *check, const char *what, const struct config_port *port)
{
	if (somebody_listens(port->socket))
		check_found(check, CHECK_OK, what, NULL, "client of %s, where a frontend listens", port->socket);
	else
		check_found(check, CHECK_WARN, what, "start the guest (its chardev with server=on)", "client of %s: nobody listens there yet",
			    port->socket);
}

static bool check_node(struct check *check, const char *what, const struct config_port *port, const struct topology *topology)
{
	char nodes[128], remedy[192];

	if (!topology || port->node < 0 || topology_has_node(topology, port->node))
		return true;
	snprintf(remedy, sizeof(remedy), "choose among %s, or auto", topology_format_nodes(topology, nodes, sizeof(nodes)));
	check_found(check, CHECK_FAIL, what, remedy, "node %d: no such NUMA node here", port->node);
	return false;
}

/* `run` refuses a port with the address of its uplink: the host would hear nothing any more. */
static void check_mac(struct check *check, const char *what, const struct config_port *port)
{
	const struct config *config = check->config;
	const char *ifname = port->uplink[0] ? port->uplink : config->uplink_count ? config->uplinks[0].ifname : "";
	struct netdev_info info;
	char mac[MAC_TEXT];

	if (port->has_mac && ifname[0] && netdev_get(ifname, &info, NULL) == 0 && !memcmp(info.mac, port->mac, sizeof(info.mac)))
		check_found(check, CHECK_FAIL, what, "choose another address", "mac %s is the address of uplink %s", mac_format(port->mac, mac), ifname);
}

static void check_ports(struct check *check)
{
	const struct config *config = check->config;
	struct topology *topology = calloc(1, sizeof(*topology));
	char what[CONFIG_PORT_NAME_MAX + 16];

	if (topology && topology_read(topology, NULL) < 0) {
		free(topology);
		topology = NULL; /* nothing can be said of nodes then */
	}
	for (unsigned i = 0; i < config->port_count; i++) {
		snprintf(what, sizeof(what), "port %s", config->ports[i].name);
		if (!check_node(check, what, &config->ports[i], topology))
			continue;
		check_mac(check, what, &config->ports[i]);
		if (config->ports[i].role == PORT_ROLE_CLIENT)
			check_client_port(check, what, &config->ports[i]);
		else
			check_server_port(check, what, &config->ports[i]);
	}
	free(topology);
	if (config->port_count == 0)
		check_found(check, CHECK_WARN, "ports", "add them by --port, under `ports:`, or later by `vhostlane port add`", "none");
}

static void check_control(struct check *check)
{
	const char *path = check->config->control;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat s;
	int fd;

	if (!check_directory(check, "control socket", path))
		return;
	copy_string(address.sun_path, sizeof(address.sun_path), path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd >= 0 && (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 || errno == EAGAIN))
		check_found(check, CHECK_FAIL, "control socket", "stop it or give --control another path", "%s: another vhostlane answers there",
			    path);
	else if (lstat(path, &s) == 0 && !S_ISSOCK(s.st_mode))
		check_found(check, CHECK_FAIL, "control socket", "remove it or give --control another path", "%s is there and is no socket", path);
	else
		check_found(check, CHECK_OK, "control socket", NULL, "%s is free", path);
	if (fd >= 0)
		close(fd);
}

void check_places(struct check *check)
{
	const struct config *config = check->config;
	unsigned cpus = check_cpus(check);

	for (unsigned i = 0; i < config->uplink_count; i++)
		check_uplink(check, &config->uplinks[i], cpus);
	if (config->uplink_count == 0)
		check_found(check, CHECK_OK, "uplinks", NULL, "none: a switch between guests");
	check_ports(check);
	check_control(check);
}
