// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane uplink list */
#include <stdlib.h>
#include <string.h>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "vhostlane/control_abi.h"

/* What does not fit a table's cell, below it: frame census, kernel drops, host links. */
static void print_nested(FILE *out, json_t *uplink)
{
	const char *ifname = json_string_value(json_object_get(uplink, "ifname")), *key;
	json_t *value, *entry;
	size_t index;

	json_object_foreach(uplink, key, value) {
		if (json_is_object(value) && value_matters(value)) {
			char *text = value_text(value);

			fprintf(out, "%s %s: %s\n", ifname ? ifname : "-", key, text);
			free(text);
		}
		json_array_foreach(value, index, entry) {
			char *text = json_is_object(entry) ? value_text(entry) : NULL;

			if (text)
				fprintf(out, "%s %s: %s\n", ifname ? ifname : "-", key, text);
			free(text);
		}
	}
}

/* Lines for people to read: each is one warning. */
static void print_warnings(FILE *out, json_t *warnings)
{
	const char *text = json_string_value(warnings);

	while (text && *text) {
		size_t length = strcspn(text, "\n");

		fprintf(out, "warning: %.*s\n", (int)length, text);
		text += length + (text[length] == '\n');
	}
}

static void print(FILE *out, json_t *uplinks)
{
	static const char *const columns[] = { "ifname", "state", "mode", "queues", "node", "mtu", "tx_checksum", "dispatcher", "adopted", "irq_cpus", NULL };
	json_t *uplink, *all = json_copy(uplinks), *warnings = json_array();
	size_t index;

	json_array_foreach(all, index, uplink) {
		json_array_append(warnings, json_object_get(uplink, "warnings"));
		json_object_del(uplink, "warnings");
	}
	table_print(out, all, columns, 0);
	json_array_foreach(all, index, uplink) {
		print_nested(out, uplink);
		print_warnings(out, json_array_get(warnings, index));
	}
	json_decref(warnings);
	json_decref(all);
}

static int run(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_UPLINK_LIST, NULL, print);
}

const struct command uplink_list_command = {
	.name = "uplink list",
	.arguments = "",
	.summary = "List the uplinks: what is wrong with them, AF_XDP mode, queues, frames and where they are, host links",
	.options = client_options,
	.run = run,
};
