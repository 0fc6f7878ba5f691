// SPDX-License-Identifier: BSD-2-Clause
/* What the configuration names on this host: CPUs, uplinks, sockets. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/util.h"
#include "control/check_report.h"
#include "control/netdev.h"
#include "control/uplink_check.h"

#define RUN_DIRECTORY "/run/vhostlane"

static unsigned check_cpus(struct check *check)
{
	const struct config *config = check->config;
	struct error error = { 0 };
	struct cpulist cpus;
	char text[256];

	if (config_resolve_cpus(config, &cpus, &error) < 0) {
		check_error(check, CHECK_FAIL, &error);
		return 1;
	}
	check_found(check, CHECK_OK, "cpus", NULL, "%u workers on %s", cpulist_count(&cpus), cpulist_format(&cpus, text, sizeof(text)));
	if (config->policy == PLACEMENT_MULTI_WORKER && config->workers_per_port > cpulist_count(&cpus))
		check_found(check, CHECK_WARN, "workers, per-port", "name more CPUs or a smaller number", "%u, but there are %u workers",
			    config->workers_per_port, cpulist_count(&cpus));
	return cpulist_count(&cpus);
}

/* --- uplinks ------------------------------------------------------------------------------------------------------ */

static void program_name(unsigned id, char name[BPF_OBJ_NAME_LEN])
{
	struct bpf_prog_info info = { 0 };
	__u32 size = sizeof(info);
	int fd = bpf_prog_get_fd_by_id(id);

	strcpy(name, "?");
	if (fd < 0)
		return;
	if (bpf_obj_get_info_by_fd(fd, &info, &size) == 0)
		copy_string(name, BPF_OBJ_NAME_LEN, info.name);
	close(fd);
}

/* A foreign program is never replaced: it must be the dispatcher's, or go. */
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
	program_name(id, name);
	snprintf(remedy, sizeof(remedy), "remove it: ip link set dev %s xdp off", info->ifname);
	if (strncmp(name, "xdp_steer", 9) == 0)
		check_found(check, CHECK_OK, what, NULL, "carries XDP program %s (id %u), vhostlane's own: `run` takes it over", name, id);
	else if (strncmp(name, "xdp_dispatcher", 14) == 0)
		check_found(check, CHECK_OK, what, NULL, "carries libxdp's dispatcher (id %u): `run` joins it", id);
	else
		check_found(check, CHECK_FAIL, what, remedy, "carries the foreign XDP program %s (id %u)", name, id);
}

static void check_uplink(struct check *check, const struct config_uplink *uplink, unsigned workers)
{
	const struct uplink_setup setup = { .config = *uplink, .workers = workers, .nodes = 1 };
	struct uplink_warnings warnings = { .text = "" };
	struct error error = { 0 };
	struct netdev_info info;
	char what[64], *line, *rest;

	snprintf(what, sizeof(what), "uplink %s", uplink->ifname);
	if (uplink_check(&setup, &info, &error) < 0) {
		check_error(check, CHECK_FAIL, &error);
		return;
	}
	check_found(check, CHECK_OK, what, NULL, "%s, driver %s, %u receive queues, MTU %u, node %d, mode %s", info.kind[0] ? info.kind : "hardware",
		    info.driver[0] ? info.driver : "?", info.rx_queues, info.mtu, info.node, lane_mode_names[uplink->mode]);
	check_xdp(check, what, &info);
	uplink_check_surprises(&info, workers, &warnings);
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
	if (access(directory, W_OK | X_OK) != 0) {
		check_found(check, CHECK_FAIL, what, "run as a user who may write there", "directory %s: %s", directory, strerror(errno));
		return false;
	}
	return true;
}

static void check_server_port(struct check *check, const char *what, const struct config_port *port)
{
	struct stat s;

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
	unsigned workers = check_cpus(check);
	char what[CONFIG_PORT_NAME_MAX + 16];

	for (unsigned i = 0; i < config->uplink_count; i++)
		check_uplink(check, &config->uplinks[i], workers);
	if (config->uplink_count == 0)
		check_found(check, CHECK_OK, "uplinks", NULL, "none: a switch between guests");
	for (unsigned i = 0; i < config->port_count; i++) {
		snprintf(what, sizeof(what), "port %s", config->ports[i].name);
		if (config->ports[i].role == PORT_ROLE_CLIENT)
			check_client_port(check, what, &config->ports[i]);
		else
			check_server_port(check, what, &config->ports[i]);
	}
	if (config->port_count == 0)
		check_found(check, CHECK_WARN, "ports", "add them by --port, under `ports:`, or later by `vhostlane port add`", "none");
	check_control(check);
}
