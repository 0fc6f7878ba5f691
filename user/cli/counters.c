// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane counters */
#include <stdlib.h>
#include <string.h>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "vhostlane/control_abi.h"

static const struct option_row options[] = {
	CLIENT_OPTIONS,
	{ OPTION_FLAG, "drops", 0, NULL, "only counters of dropped frames", offsetof(struct client_options, drops), NULL },
	{ .kind = OPTION_END },
};

#define NAME_MAX_LENGTH 256

/* `port vm1 to_guest_no_buffers 17`; deeper objects join their keys by dots. Zeros are left out. */
static void print_counters(FILE *out, const char *kind, const char *who, const char *prefix, json_t *counters)
{
	char name[NAME_MAX_LENGTH];
	const char *key;
	json_t *value;

	json_object_foreach(counters, key, value) {
		snprintf(name, sizeof(name), "%s%s%s", prefix, prefix[0] ? "." : "", key);
		if (json_is_object(value)) {
			print_counters(out, kind, who, name, value);
		} else if (value_matters(value)) {
			char *text = value_text(value);

			fprintf(out, "%s %s %s %s\n", kind, who, name, text);
			free(text);
		}
	}
}

static void print(FILE *out, json_t *result)
{
	char kind[64];
	const char *group, *who;
	json_t *members, *counters;

	json_object_foreach(result, group, members) {
		size_t length = strlen(group);

		/* "ports" holds what is said of each "port". */
		snprintf(kind, sizeof(kind), "%.*s", (int)(length && group[length - 1] == 's' ? length - 1 : length), group);
		json_object_foreach(members, who, counters)
			print_counters(out, kind, who, "", counters);
	}
}

static int make_params(const struct client_options *o, const char *const *words, unsigned count, json_t *params, struct error *error)
{
	return json_object_set_new(params, "drops", json_boolean(o->drops));
}

static int run(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_COUNTERS, make_params, print);
}

const struct command counters_command = {
	.name = "counters",
	.arguments = "",
	.summary = "Print counters of ports, workers and uplinks, one a line, those that are zero left out",
	.options = options,
	.run = run,
};
