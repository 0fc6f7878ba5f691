// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane port list|show|add|del|set. Values are judged here by the daemon's own table, so that wrong use is told apart from refusal. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/pairs.h"
#include "cli/table.h"
#include "common/util.h"
#include "control/config.h"
#include "vhostlane/control_abi.h"

#define TEXT_MAX 1024

static const char *const port_columns[] = { "name", "role",	      "state", "mac",    "vlan",   "queues", "served_queue_pairs", "busy-poll-us",
					    "node", "mtu", "uplink", "id",  "sessions", "socket", NULL };

/* Rings and addresses of `port show`. */
static const char *const nested_columns[] = { "ring", "pair", "direction", "started", "enabled", "size", "fault", "mac", "vlan", "how", "frames",
					      "bytes", "calls_sent", "calls_suppressed", NULL };

static void print_list(FILE *out, json_t *ports)
{
	table_print(out, ports, port_columns, 0);
}

static void print_port(FILE *out, json_t *port)
{
	object_print(out, port, port_columns, nested_columns);
}

/* --- key=value words ----------------------------------------------------------------------------------------------- */

/* One "key=value" into @port, which judges it, and into @params, which carries it. @settable_only: keys of ports in service. */
static int take_pair(const char *pair, bool settable_only, struct config_port *port, json_t *params, struct error *error)
{
	char whom[CONFIG_PORT_NAME_MAX + 8], key[PAIR_KEY_MAX];
	const char *value;
	int result;

	snprintf(whom, sizeof(whom), "port %s", port->name);
	value = pair_split(pair, whom, "queues=2", params, key, error);
	if (!value)
		return error->code;
	result = settable_only ? config_port_check_settable(port->name, key, error) : 0;
	if (result == 0)
		result = config_port_set(port, key, value, error);
	return result < 0 ? result : pair_put(params, key, value, whom, error);
}

/* "NAME" or "NAME=SOCKET[,key=value...]" */
static int take_first(const char *word, struct config_port *port, json_t *params, struct error *error)
{
	char text[TEXT_MAX], *pair = text, *next, *equals;
	int result;

	if (!copy_string(text, sizeof(text), word))
		return error_set(error, -E2BIG, "port '%.32s...': longer than %d bytes; shorten it", word, TEXT_MAX - 1);
	next = strchr(text, ',');
	if (next)
		*next++ = '\0';
	equals = strchr(text, '=');
	if (equals)
		*equals = '\0';
	result = config_port_set(port, "name", text, error);
	if (result < 0)
		return result;
	json_object_set_new(params, "name", json_string(text));
	if (equals) {
		result = config_port_set(port, "socket", equals + 1, error);
		if (result < 0)
			return result;
		json_object_set_new(params, "socket", json_string(equals + 1));
	}
	for (pair = next; result == 0 && pair; pair = next) {
		next = strchr(pair, ',');
		if (next)
			*next++ = '\0';
		result = take_pair(pair, false, port, params, error);
	}
	return result;
}

/* show and del: one NAME. */
static int make_name(const struct client_options *options, const char *const *words, unsigned count, json_t *params, struct error *error)
{
	struct config_port port;
	int result;

	config_port_init(&port);
	result = config_port_set(&port, "name", words[0], error);
	return result < 0 ? result : json_object_set_new(params, "name", json_string(port.name));
}

static int make_port(const struct client_options *options, const char *const *words, unsigned count, json_t *params, struct error *error)
{
	struct config_port port;
	int result;

	config_port_init(&port);
	result = take_first(words[0], &port, params, error);
	for (unsigned i = 1; result == 0 && i < count; i++)
		result = take_pair(words[i], false, &port, params, error);
	return result < 0 ? result : config_check_port(&port, error);
}

static int make_changes(const struct client_options *options, const char *const *words, unsigned count, json_t *params, struct error *error)
{
	struct config_port port;
	int result;

	config_port_init(&port);
	result = config_port_set(&port, "name", words[0], error);
	for (unsigned i = 1; result == 0 && i < count; i++)
		result = take_pair(words[i], true, &port, params, error);
	return result < 0 ? result : json_object_set_new(params, "name", json_string(port.name));
}

/* --- commands ------------------------------------------------------------------------------------------------------ */

static int run_list(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_PORT_LIST, NULL, print_list);
}

static int run_show(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_PORT_SHOW, make_name, print_port);
}

static int run_add(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_PORT_ADD, make_port, NULL);
}

static int run_del(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_PORT_DEL, make_name, NULL);
}

static int run_set(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_PORT_SET, make_changes, NULL);
}

#define SEE_KEYS "; see vhostlane.yaml(5)."

const struct command port_list_command = {
	.name = "port list",
	.arguments = "",
	.summary = "List the ports and their state",
	.options = client_options,
	.run = run_list,
};

const struct command port_show_command = {
	.name = "port show",
	.arguments = "NAME",
	.summary = "Show one port: negotiated features, rings, addresses, counters",
	.options = client_options,
	.arguments_min = 1,
	.arguments_max = 1,
	.run = run_show,
};

const struct command port_add_command = {
	.name = "port add",
	.arguments = "NAME=SOCKET[,key=value...] [key=value...]",
	.summary = "Add a port to the running daemon",
	.details = "Keys: socket, role, mac, vlan, queues, busy-poll-us, node, mtu, offloads, uplink, group" SEE_KEYS,
	.options = client_options,
	.arguments_min = 1,
	.arguments_max = COMMAND_WORDS_MAX,
	.run = run_add,
};

const struct command port_del_command = {
	.name = "port del",
	.arguments = "NAME",
	.summary = "Remove a port: its guest's session ends, its socket goes",
	.options = client_options,
	.arguments_min = 1,
	.arguments_max = 1,
	.run = run_del,
};

const struct command port_set_command = {
	.name = "port set",
	.arguments = "NAME key=value...",
	.summary = "Change a port while it runs",
	.details = "Keys: " CONFIG_PORT_SETTABLE SEE_KEYS "\n"
		   "mac=auto: learned again. node=auto: follow the guest. mtu, offloads: from the guest's next connection on.",
	.options = client_options,
	.arguments_min = 2,
	.arguments_max = COMMAND_WORDS_MAX,
	.run = run_set,
};
