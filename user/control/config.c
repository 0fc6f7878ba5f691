// SPDX-License-Identifier: BSD-2-Clause
/* The whole configuration: defaults, collecting uplinks and ports, what holds among them. One port's keys: config_port.c; option
 * forms: config_option.c. */
#include "control/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/suggest.h"
#include "common/util.h"
#include "control/config_text.h"

#define WORKERS_PER_PORT_DEFAULT 2

void config_init(struct config *config)
{
	memset(config, 0, sizeof(*config));
	config->policy = PLACEMENT_PER_CPU;
	config->workers_per_port = WORKERS_PER_PORT_DEFAULT;
	config->pin = true;
	copy_string(config->control, sizeof(config->control), CONFIG_CONTROL_DEFAULT);
}

void config_free(struct config *config)
{
	free(config->ports);
	config->ports = NULL;
	config->port_count = 0;
}

int config_parse_name(const char *value, const char *const *names, unsigned count, const char *what, unsigned *index, struct error *error)
{
	char near[256];

	for (unsigned i = 0; i < count; i++) {
		if (strcmp(value, names[i]) == 0) {
			*index = i;
			return 0;
		}
	}
	return error_set(error, -EINVAL, "%s '%.64s': no such choice%s", what, value, suggest_text(value, names, count, near, sizeof(near)));
}

int config_parse_number(const char *value, uint64_t minimum, uint64_t maximum, const char *what, unsigned *number, struct error *error)
{
	uint64_t v;

	if (!number_parse(value, minimum, maximum, &v))
		return error_set(error, -EINVAL, "%s '%.64s': not a whole number from %llu to %llu; give one in that range", what, value,
				 (unsigned long long)minimum, (unsigned long long)maximum);
	*number = (unsigned)v;
	return 0;
}

int config_check_socket_path(const char *path, const char *what, struct error *error)
{
	size_t length = strlen(path);
	const char *part;

	if (path[0] != '/')
		return error_set(error, -EINVAL, "%s '%.128s': not an absolute path; start it with '/'", what, path);
	if (length > CONFIG_SOCKET_PATH_MAX)
		return error_set(error, -ENAMETOOLONG, "%s '%.128s': %zu bytes long, a Unix socket's path has at most %d; use a shorter directory",
				 what, path, length, CONFIG_SOCKET_PATH_MAX);
	for (const char *c = path; *c; c++)
		if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f)
			return error_set(error, -EINVAL, "%s '%.128s': byte %td is no printable ASCII character; use a plain path", what, path,
					 c - path + 1);
	if (path[length - 1] == '/')
		return error_set(error, -EINVAL, "%s '%.128s': names a directory; name a file in it", what, path);
	for (part = path; part; part = strchr(part + 1, '/'))
		if (strncmp(part, "/..", 3) == 0 && (part[3] == '/' || part[3] == '\0'))
			return error_set(error, -EINVAL, "%s '%.128s': climbs by '..'; write the path out", what, path);
	return 0;
}

int config_check_ifname(const char *ifname, const char *what, struct error *error)
{
	size_t length = strlen(ifname);

	if (length == 0 || length >= IF_NAMESIZE)
		return error_set(error, -EINVAL, "%s '%.64s': an interface name has 1 to %d characters; see `ip link`", what, ifname,
				 IF_NAMESIZE - 1);
	for (const char *c = ifname; *c; c++)
		if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '/' || *c == ':')
			return error_set(error, -EINVAL, "%s '%.64s': an interface name has no '%c'; see `ip link`", what, ifname, *c);
	if (strcmp(ifname, ".") == 0 || strcmp(ifname, "..") == 0)
		return error_set(error, -EINVAL, "%s '%.64s': not an interface name; see `ip link`", what, ifname);
	return 0;
}

/* --- workers and control ------------------------------------------------------------------------------------------ */

static int set_cpus(struct config *config, const char *value, struct error *error)
{
	struct cpulist cpus;
	const char *bad;

	if (!cpulist_parse(value, &cpus, &bad))
		return error_set(error, -EINVAL, "cpus '%.64s': not a CPU list, %s%.16s; write it like 0-3,8, CPUs below %d", value,
				 *bad ? "wrong from here: " : "it ends too early", bad, CPUS_MAX);
	if (cpulist_count(&cpus) == 0)
		return error_set(error, -EINVAL, "cpus '%s': names no CPU; write it like 0-3,8, or leave it out to use all allowed ones", value);
	if (cpulist_count(&cpus) > VL_WORKERS_MAX)
		return error_set(error, -EINVAL, "cpus '%.64s': %u CPUs, there can be at most %d workers; name fewer", value, cpulist_count(&cpus),
				 VL_WORKERS_MAX);
	config->cpus = cpus;
	config->cpus_given = true;
	return 0;
}

static int set_policy(struct config *config, const char *value, struct error *error)
{
	unsigned policy;
	int result = config_parse_name(value, placement_policy_names, PLACEMENT_POLICY_COUNT, "policy", &policy, error);

	if (result == 0)
		config->policy = (enum placement_policy)policy;
	return result;
}

static int set_pin(struct config *config, const char *value, struct error *error)
{
	static const char *const names[] = { "false", "true", "no", "yes", "off", "on" };
	unsigned which;
	int result = config_parse_name(value, names, ARRAY_SIZE(names), "pin", &which, error);

	if (result == 0)
		config->pin = which & 1;
	return result;
}

static int set_per_port(struct config *config, const char *value, struct error *error)
{
	return config_parse_number(value, 1, VL_WORKERS_MAX, "per-port", &config->workers_per_port, error);
}

static int set_threads(struct config *config, const char *value, struct error *error)
{
	return config_parse_number(value, 1, VL_WORKERS_MAX, "threads", &config->threads, error);
}

static int set_control(struct config *config, const char *value, struct error *error)
{
	int result = config_check_socket_path(value, "control", error);

	if (result == 0)
		copy_string(config->control, sizeof(config->control), value);
	return result;
}

int config_set(struct config *config, const char *key, const char *value, struct error *error)
{
	static const char *const keys[] = { "cpus", "policy", "pin", "per-port", "threads", "control" };
	static int (*const setters[])(struct config *, const char *, struct error *) = { set_cpus, set_policy, set_pin, set_per_port,
											 set_threads, set_control };
	char near[128];

	_Static_assert(ARRAY_SIZE(keys) == ARRAY_SIZE(setters), "one setter a key");
	for (unsigned i = 0; i < ARRAY_SIZE(keys); i++)
		if (strcmp(key, keys[i]) == 0)
			return setters[i](config, value, error);
	return error_set(error, -EINVAL, "key '%.64s': unknown%s", key, suggest_text(key, keys, ARRAY_SIZE(keys), near, sizeof(near)));
}

/* --- uplinks ------------------------------------------------------------------------------------------------------ */

static int set_ifname(struct config_uplink *uplink, const char *value, struct error *error)
{
	int result = config_check_ifname(value, "ifname", error);

	if (result == 0)
		copy_string(uplink->ifname, sizeof(uplink->ifname), value);
	return result;
}

static int set_mode(struct config_uplink *uplink, const char *value, struct error *error)
{
	unsigned mode;
	int result = config_parse_name(value, lane_mode_names, LANE_MODE_COUNT, "mode", &mode, error);

	if (result == 0)
		uplink->mode = (enum lane_mode)mode;
	return result;
}

static int set_uplink_queues(struct config_uplink *uplink, const char *value, struct error *error)
{
	if (strcmp(value, "all") == 0) {
		uplink->queues = 0;
		return 0;
	}
	return config_parse_number(value, 1, VL_DEVICE_QUEUES_MAX, "queues", &uplink->queues, error);
}

int config_uplink_set(struct config_uplink *uplink, const char *key, const char *value, struct error *error)
{
	static const char *const keys[] = { "ifname", "mode", "queues" };
	static int (*const setters[])(struct config_uplink *, const char *, struct error *) = { set_ifname, set_mode, set_uplink_queues };
	struct error inner = { 0 };
	char near[128];

	_Static_assert(ARRAY_SIZE(keys) == ARRAY_SIZE(setters), "one setter a key");
	for (unsigned i = 0; i < ARRAY_SIZE(keys); i++) {
		if (strcmp(key, keys[i]) != 0)
			continue;
		if (setters[i](uplink, value, &inner) == 0)
			return 0;
		if (i == 0 || !uplink->ifname[0])
			return error_set(error, inner.code, "uplink, %s", inner.text);
		return error_set(error, inner.code, "uplink %s, %s", uplink->ifname, inner.text);
	}
	return error_set(error, -EINVAL, "uplink %s, key '%.64s': unknown%s", uplink->ifname, key,
			 suggest_text(key, keys, ARRAY_SIZE(keys), near, sizeof(near)));
}

int config_add_uplink(struct config *config, const struct config_uplink *uplink, struct error *error)
{
	int result = config_check_ifname(uplink->ifname, "uplink", error);

	if (result < 0)
		return result;
	for (unsigned i = 0; i < config->uplink_count; i++)
		if (strcmp(config->uplinks[i].ifname, uplink->ifname) == 0)
			return error_set(error, -EEXIST, "uplink %s: given twice; give it once", uplink->ifname);
	if (config->uplink_count == CONFIG_UPLINKS_MAX)
		return error_set(error, -E2BIG, "uplink %s: there are %d already, the most possible; leave one out", uplink->ifname,
				 CONFIG_UPLINKS_MAX);
	config->uplinks[config->uplink_count++] = *uplink;
	return 0;
}

/* --- ports among each other ----------------------------------------------------------------------------------------- */

static bool same_domain(const struct config *config, const struct config_port *a, const struct config_port *b)
{
	const char *first = config->uplink_count ? config->uplinks[0].ifname : "";

	return strcmp(a->uplink[0] ? a->uplink : first, b->uplink[0] ? b->uplink : first) == 0;
}

static int check_pair(const struct config *config, const struct config_port *a, const struct config_port *b, struct error *error)
{
	char mac[MAC_TEXT];

	if (strcmp(a->name, b->name) == 0)
		return error_set(error, -EEXIST, "port %s: named twice; give each port a name of its own", a->name);
	if (strcmp(a->socket, b->socket) == 0)
		return error_set(error, -EEXIST, "port %s, socket '%s': port %s has it; give each port a socket of its own", b->name, b->socket,
				 a->name);
	if (a->has_mac && b->has_mac && config_vlan_key(&a->vlan) == config_vlan_key(&b->vlan) && memcmp(a->mac, b->mac, sizeof(a->mac)) == 0 && same_domain(config, a, b))
		return error_set(error, -EEXIST, "port %s, mac '%s': port %s has it on the same VLAN; give each guest an address of its own",
				 b->name, mac_format(b->mac, mac), a->name);
	return 0;
}

static int check_among(const struct config *config, const struct config_port *port, unsigned count, struct error *error)
{
	int result;

	for (unsigned i = 0; i < count; i++) {
		result = check_pair(config, &config->ports[i], port, error);
		if (result < 0)
			return result;
	}
	return 0;
}

int config_add_port(struct config *config, const struct config_port *port, struct error *error)
{
	struct config_port *ports;
	int result = config_check_port(port, error);

	if (result < 0)
		return result;
	result = check_among(config, port, config->port_count, error);
	if (result < 0)
		return result;
	if (config->port_count == VL_PORTS_MAX)
		return error_set(error, -E2BIG, "port %s: there are %d ports already, the most possible; remove one", port->name, VL_PORTS_MAX);
	ports = reallocarray(config->ports, config->port_count + 1, sizeof(*ports));
	if (!ports)
		return error_set(error, -ENOMEM, "port %s: out of memory; free some memory", port->name);
	config->ports = ports;
	config->ports[config->port_count++] = *port;
	return 0;
}

static int check_port_uplink(const struct config *config, const struct config_port *port, struct error *error)
{
	if (!port->uplink[0])
		return 0;
	for (unsigned i = 0; i < config->uplink_count; i++)
		if (strcmp(config->uplinks[i].ifname, port->uplink) == 0)
			return 0;
	return error_set(error, -ENODEV, "port %s, uplink '%s': no such uplink; add it by --uplink %s or under `uplinks:`", port->name,
			 port->uplink, port->uplink);
}

static int check_one(const struct config *config, unsigned index, struct error *error)
{
	const struct config_port *port = &config->ports[index];
	int result = config_check_port(port, error);

	if (result == 0)
		result = check_port_uplink(config, port, error);
	/* Again, not only in config_add_port(): which uplink is the first may have been unknown then. */
	if (result == 0)
		result = check_among(config, port, index, error);
	if (result == 0 && strcmp(port->socket, config->control) == 0)
		result = error_set(error, -EEXIST, "port %s, socket '%s': is the control socket; give the port another", port->name,
				   port->socket);
	return result;
}

int config_check(const struct config *config, struct error *error)
{
	struct error inner = { 0 };
	int result = config_check_socket_path(config->control, "control", error);

	for (unsigned i = 0; result == 0 && i < config->port_count; i++) {
		result = check_one(config, i, &inner);
		if (result < 0 && config->ports[i].origin[0])
			error_set(error, result, "%s: %s", config->ports[i].origin, inner.text);
		else if (result < 0)
			error_set(error, result, "%s", inner.text);
	}
	return result;
}

int config_resolve_cpus(const struct config *config, struct cpulist *out, struct error *error)
{
	struct cpulist allowed, online, usable = { 0 };
	char text[256];
	int result = cpulist_allowed(&allowed);

	if (result < 0)
		return error_set(error, result, "cpus: cannot read the process's allowed CPUs: %s; name them by --cpus", strerror(-result));
	result = cpulist_online(&online);
	if (result < 0)
		return error_set(error, result, "cpus: cannot read the CPUs that are online: %s; mount sysfs on /sys", strerror(-result));
	for (unsigned i = 0; i < ARRAY_SIZE(usable.bits); i++)
		usable.bits[i] = allowed.bits[i] & online.bits[i];

	if (config->cpus_given) {
		for (int cpu = cpulist_next(&config->cpus, 0); cpu >= 0; cpu = cpulist_next(&config->cpus, (unsigned)cpu + 1)) {
			if (!cpulist_has(&online, (unsigned)cpu))
				return error_set(error, -ENXIO, "cpus, CPU %d: offline or not there; take it online or choose among %s", cpu,
						 cpulist_format(&usable, text, sizeof(text)));
			if (!cpulist_has(&allowed, (unsigned)cpu))
				return error_set(error, -EPERM, "cpus, CPU %d: not allowed by taskset or cpuset; choose among %s or widen the mask",
						 cpu, cpulist_format(&usable, text, sizeof(text)));
		}
		*out = config->cpus;
		return 0;
	}
	memset(out, 0, sizeof(*out));
	for (int cpu = cpulist_next(&usable, 0); cpu >= 0 && cpulist_count(out) < VL_WORKERS_MAX; cpu = cpulist_next(&usable, (unsigned)cpu + 1))
		cpulist_add(out, (unsigned)cpu);
	if (cpulist_count(out) == 0)
		return error_set(error, -ENXIO, "cpus: no CPU is both online and allowed (%s); widen the process's mask",
				 cpulist_format(&allowed, text, sizeof(text)));
	return 0;
}
