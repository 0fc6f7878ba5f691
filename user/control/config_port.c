// SPDX-License-Identifier: BSD-2-Clause
/* One port's keys as text: what each takes, and which can be changed in service. VLANs: config_vlan.c. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/suggest.h"
#include "common/util.h"
#include "control/config.h"
#include "control/config_text.h"
#include "datapath/vnet.h"

#define MTU_MIN 68    /* RFC 791; virtio 1.2, 5.1.4.1 */
#define MTU_MAX 65521 /* what fits FRAME_LENGTH_MAX with header and tags */

const char *const port_role_names[PORT_ROLE_COUNT] = { [PORT_ROLE_SERVER] = "server", [PORT_ROLE_CLIENT] = "client" };

const char *const config_port_key_names[CONFIG_PORT_KEY_COUNT] = {
#define CONFIG_PORT_KEY_NAME(name, text) [CONFIG_PORT_KEY_##name] = text,
	CONFIG_PORT_KEYS(CONFIG_PORT_KEY_NAME)
#undef CONFIG_PORT_KEY_NAME
};

void config_port_init(struct config_port *port)
{
	memset(port, 0, sizeof(*port));
	port->role = PORT_ROLE_SERVER;
	port->queues = 1;
	port->busy_poll_us = CONFIG_BUSY_POLL_DEFAULT_US;
	port->node = -1;
	port->offloads = PORT_OFFLOADS_ALL;
}

/* Names go into paths, option lists, NAME/PAIR and logs: letters, digits, '.', '_', '-'. */
static int check_name(const char *name, struct error *error)
{
	size_t length = strlen(name), good = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");

	if (length == 0 || length > CONFIG_PORT_NAME_MAX)
		return error_set(error, -EINVAL, "name '%.64s': %zu characters long; give it 1 to %d", name, length, CONFIG_PORT_NAME_MAX);
	if (good < length || strchr("._-", name[0]))
		return error_set(error, -EINVAL, "name '%s': has '%c' where it may not; use letters and digits, and after the first also . _ -",
				 name, good < length ? name[good] : name[0]);
	return 0;
}

static int set_name(struct config_port *port, const char *value, struct error *error)
{
	int result = check_name(value, error);

	if (result == 0)
		copy_string(port->name, sizeof(port->name), value);
	return result;
}

static int set_socket(struct config_port *port, const char *value, struct error *error)
{
	int result = config_check_socket_path(value, "socket", error);

	if (result == 0)
		copy_string(port->socket, sizeof(port->socket), value);
	return result;
}

/* Whether there is one of that name is asked when the socket is made. */
static int set_group(struct config_port *port, const char *value, struct error *error)
{
	const size_t length = strlen(value);

	if (!length || length > CONFIG_GROUP_MAX || strpbrk(value, ":/, \t\n"))
		return error_set(error, -EINVAL, "group '%.64s': no name of a group; give one that `getent group` shows, 1 to %d characters long", value,
				 CONFIG_GROUP_MAX);
	copy_string(port->group, sizeof(port->group), value);
	return 0;
}

static int set_role(struct config_port *port, const char *value, struct error *error)
{
	unsigned role;
	int result = config_parse_name(value, port_role_names, PORT_ROLE_COUNT, "role", &role, error);

	if (result == 0)
		port->role = (enum port_role)role;
	return result;
}

static int check_mac(const uint8_t mac[6], const char *text, struct error *error)
{
	static const uint8_t zero[6];

	if (mac[0] & 1)
		return error_set(error, -EINVAL, "mac '%s': a group address; give one whose first byte is even, like 52:54:00:12:34:56", text);
	if (memcmp(mac, zero, sizeof(zero)) == 0)
		return error_set(error, -EINVAL, "mac '%s': all zero; give the guest's address, or leave it out to have it learned", text);
	return 0;
}

static int set_mac(struct config_port *port, const char *value, struct error *error)
{
	uint8_t mac[6];
	int result;

	if (strcmp(value, "auto") == 0) {
		memset(port->mac, 0, sizeof(port->mac));
		port->has_mac = false;
		return 0;
	}
	if (!mac_parse(value, mac))
		return error_set(error, -EINVAL, "mac '%.64s': neither 'auto' nor a MAC address; write it like 52:54:00:12:34:56", value);
	result = check_mac(mac, value, error);
	if (result < 0)
		return result;
	memcpy(port->mac, mac, sizeof(mac));
	port->has_mac = true;
	return 0;
}

static int set_vlan(struct config_port *port, const char *value, struct error *error)
{
	return config_parse_vlan(value, &port->vlan, error);
}

static int set_queues(struct config_port *port, const char *value, struct error *error)
{
	return config_parse_number(value, 1, VL_QUEUE_PAIRS_MAX, "queues", &port->queues, error);
}

static int set_busy_poll(struct config_port *port, const char *value, struct error *error)
{
	return config_parse_busy_poll(value, &port->busy_poll_us, error);
}

static int set_node(struct config_port *port, const char *value, struct error *error)
{
	uint64_t node;

	if (strcmp(value, "auto") == 0) {
		port->node = -1;
		return 0;
	}
	if (!number_parse(value, 0, VL_NODES_MAX - 1, &node))
		return error_set(error, -EINVAL, "node '%.64s': neither 'auto' nor a number from 0 to %d; see `numactl -H`", value, VL_NODES_MAX - 1);
	port->node = (int)node;
	return 0;
}

static int set_mtu(struct config_port *port, const char *value, struct error *error)
{
	if (strcmp(value, "0") == 0) {
		port->mtu = 0;
		return 0;
	}
	return config_parse_number(value, MTU_MIN, MTU_MAX, "mtu", &port->mtu, error);
}

static int set_uplink(struct config_port *port, const char *value, struct error *error)
{
	int result = value[0] ? config_check_ifname(value, "uplink", error) : 0;

	if (result == 0)
		copy_string(port->uplink, sizeof(port->uplink), value);
	return result;
}

const char *const port_offload_names[PORT_OFFLOAD_COUNT] = {
#define PORT_OFFLOAD_NAME(name, text) [PORT_OFFLOAD_##name] = text,
	PORT_OFFLOADS(PORT_OFFLOAD_NAME)
#undef PORT_OFFLOAD_NAME
};

static int set_offloads(struct config_port *port, const char *value, struct error *error)
{
	unsigned offloads = 0;
	const char *p = value;

	if (strcmp(value, "all") == 0 || strcmp(value, "none") == 0) {
		port->offloads = value[0] == 'a' ? PORT_OFFLOADS_ALL : 0;
		return 0;
	}
	for (;;) {
		const size_t length = strcspn(p, "+");
		char name[16] = "", near[128];
		unsigned i = 0;

		if (length < sizeof(name))
			memcpy(name, p, length);
		while (i < PORT_OFFLOAD_COUNT && strcmp(name, port_offload_names[i]) != 0)
			i++;
		if (i == PORT_OFFLOAD_COUNT)
			return error_set(error, -EINVAL, "offloads '%.64s': '%s' is none; give all, none, or names joined by +%s", value, name,
					 suggest_text(name, port_offload_names, PORT_OFFLOAD_COUNT, near, sizeof(near)));
		offloads |= 1u << i;
		if (!p[length])
			break;
		p += length + 1;
	}
	port->offloads = offloads;
	return 0;
}

const char *config_format_offloads(unsigned offloads, char text[CONFIG_OFFLOADS_TEXT])
{
	size_t used = 0;

	if (offloads == PORT_OFFLOADS_ALL || !offloads) {
		copy_string(text, CONFIG_OFFLOADS_TEXT, offloads ? "all" : "none");
		return text;
	}
	for (unsigned i = 0; i < PORT_OFFLOAD_COUNT; i++)
		if (offloads >> i & 1)
			used += (size_t)snprintf(text + used, CONFIG_OFFLOADS_TEXT - used, "%s%s", used ? "+" : "", port_offload_names[i]);
	return text;
}

uint64_t config_offload_features(unsigned offloads)
{
	static const uint64_t features[PORT_OFFLOAD_COUNT] = {
		[PORT_OFFLOAD_CSUM] = VNET_F_CSUM | VNET_F_GUEST_CSUM,
		[PORT_OFFLOAD_TSO4] = VNET_F_HOST_TSO4 | VNET_F_GUEST_TSO4,
		[PORT_OFFLOAD_TSO6] = VNET_F_HOST_TSO6 | VNET_F_GUEST_TSO6,
		[PORT_OFFLOAD_ECN] = VNET_F_HOST_ECN | VNET_F_GUEST_ECN,
		[PORT_OFFLOAD_USO] = VNET_F_HOST_USO | VNET_F_GUEST_USO4 | VNET_F_GUEST_USO6,
	};
	const unsigned tso = 1u << PORT_OFFLOAD_TSO4 | 1u << PORT_OFFLOAD_TSO6;
	uint64_t mask = 0;

	/* Virtio 1.2, 5.1.3.1: segmentation requires checksums, ECN requires TSO. */
	if (!(offloads & 1u << PORT_OFFLOAD_CSUM))
		return 0;
	if (!(offloads & tso))
		offloads &= ~(1u << PORT_OFFLOAD_ECN);
	for (unsigned i = 0; i < PORT_OFFLOAD_COUNT; i++)
		if (offloads >> i & 1)
			mask |= features[i];
	return mask;
}

static int (*const setters[CONFIG_PORT_KEY_COUNT])(struct config_port *, const char *, struct error *) = {
	[CONFIG_PORT_KEY_NAME] = set_name,	[CONFIG_PORT_KEY_SOCKET] = set_socket, [CONFIG_PORT_KEY_ROLE] = set_role,
	[CONFIG_PORT_KEY_MAC] = set_mac,	[CONFIG_PORT_KEY_VLAN] = set_vlan,     [CONFIG_PORT_KEY_QUEUES] = set_queues,
	[CONFIG_PORT_KEY_BUSY_POLL] = set_busy_poll, [CONFIG_PORT_KEY_NODE] = set_node, [CONFIG_PORT_KEY_MTU] = set_mtu,
	[CONFIG_PORT_KEY_UPLINK] = set_uplink,	[CONFIG_PORT_KEY_OFFLOADS] = set_offloads, [CONFIG_PORT_KEY_GROUP] = set_group,
};

int config_port_set(struct config_port *port, const char *key, const char *value, struct error *error)
{
	struct error inner = { 0 };
	char near[256];

	for (unsigned i = 0; i < CONFIG_PORT_KEY_COUNT; i++) {
		if (strcmp(key, config_port_key_names[i]) != 0)
			continue;
		if (setters[i](port, value, &inner) == 0)
			return 0;
		if (i == CONFIG_PORT_KEY_NAME || !port->name[0])
			return error_set(error, inner.code, "port, %s", inner.text);
		return error_set(error, inner.code, "port %s, %s", port->name, inner.text);
	}
	return error_set(error, -EINVAL, "port %s, key '%.64s': unknown%s", port->name, key,
			 suggest_text(key, config_port_key_names, CONFIG_PORT_KEY_COUNT, near, sizeof(near)));
}

int config_port_check_settable(const char *port, const char *key, struct error *error)
{
	static const char *const settable[] = { "mac", "busy-poll-us", "node", "mtu", "offloads" };
	char near[128];

	for (unsigned i = 0; i < ARRAY_SIZE(settable); i++)
		if (strcmp(key, settable[i]) == 0)
			return 0;
	for (unsigned i = 0; i < CONFIG_PORT_KEY_COUNT; i++)
		if (strcmp(key, config_port_key_names[i]) == 0)
			return error_set(error, -EINVAL,
					 "port %s, key '%s': cannot be changed while the port exists, only " CONFIG_PORT_SETTABLE " can; "
					 "`vhostlane port del %s`, then add it anew",
					 port, key, port);
	return error_set(error, -EINVAL, "port %s, key '%.64s': unknown%s", port, key,
			 suggest_text(key, settable, ARRAY_SIZE(settable), near, sizeof(near)));
}

int config_parse_busy_poll(const char *text, uint32_t *busy_poll_us, struct error *error)
{
	uint64_t us;

	if (strcmp(text, "always") == 0 || strcmp(text, "adaptive") == 0) {
		*busy_poll_us = strcmp(text, "always") == 0 ? CONFIG_BUSY_POLL_ALWAYS : CONFIG_BUSY_POLL_ADAPTIVE;
		return 0;
	}
	if (!number_parse(text, 0, CONFIG_BUSY_POLL_MAX_US, &us))
		return error_set(error, -EINVAL, "busy-poll-us '%.64s': neither 'always', 'adaptive' nor microseconds from 0 to %d; give one of them", text,
				 CONFIG_BUSY_POLL_MAX_US);
	*busy_poll_us = (uint32_t)us;
	return 0;
}

const char *config_format_busy_poll(uint32_t busy_poll_us, char text[CONFIG_BUSY_POLL_TEXT])
{
	if (busy_poll_us >= CONFIG_BUSY_POLL_ADAPTIVE)
		copy_string(text, CONFIG_BUSY_POLL_TEXT, busy_poll_us == CONFIG_BUSY_POLL_ALWAYS ? "always" : "adaptive");
	else
		snprintf(text, CONFIG_BUSY_POLL_TEXT, "%u", busy_poll_us);
	return text;
}

int config_check_port(const struct config_port *port, struct error *error)
{
	struct error inner = { 0 };
	char mac[MAC_TEXT];
	int result = check_name(port->name, &inner);

	if (result < 0)
		return error_set(error, result, "port, %s", inner.text);
	if (!port->socket[0])
		return error_set(error, -EINVAL, "port %s: has no socket; give it one: socket=/run/vhostlane/%s.sock", port->name, port->name);
	result = config_check_socket_path(port->socket, "socket", &inner);
	if (result == 0 && port->has_mac)
		result = check_mac(port->mac, mac_format(port->mac, mac), &inner);
	if (result == 0 && port->uplink[0])
		result = config_check_ifname(port->uplink, "uplink", &inner);
	if (result == 0 && (port->queues < 1 || port->queues > VL_QUEUE_PAIRS_MAX))
		result = error_set(&inner, -EINVAL, "queues '%u': out of range; give 1 to %d", port->queues, VL_QUEUE_PAIRS_MAX);
	if (result == 0 && port->group[0] && port->role != PORT_ROLE_SERVER)
		result = error_set(&inner, -EINVAL, "group '%s': in the role client the socket belongs to the frontend; leave it out, or set role=server",
				   port->group);
	if (result < 0)
		return error_set(error, result, "port %s, %s", port->name, inner.text);
	return 0;
}
