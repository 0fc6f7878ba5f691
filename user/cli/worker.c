// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane worker list|set */
#include <errno.h>
#include <string.h>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "common/suggest.h"
#include "common/util.h"
#include "control/config.h"
#include "vhostlane/control_abi.h"

#define WORDS_MAX 8

static void print(FILE *out, json_t *workers)
{
	static const char *const columns[] = { "worker", "cpu", "node", "tid", "pairs", "state", "busy_percent", "others_percent",
						"in_use", "irqs", NULL };

	table_print(out, workers, columns, 0);
}

static int take_pair(const char *pair, json_t *params, struct error *error)
{
	static const char *const keys[] = { "policy", "per-port", "pin" };
	const char *equals = strchr(pair, '=');
	char key[32], near[64];
	struct config probe;

	if (!equals)
		return error_set(error, -EINVAL, "worker set '%.64s': not key=value; write for instance policy=per-port", pair);
	copy_string(key, min_u32((uint32_t)(equals - pair) + 1, sizeof(key)), pair);
	for (unsigned i = 0; i < ARRAY_SIZE(keys); i++) {
		if (strcmp(key, keys[i]) != 0)
			continue;
		config_init(&probe);
		json_object_set_new(params, key, json_string(equals + 1));
		return config_set(&probe, key, equals + 1, error);
	}
	return error_set(error, -EINVAL, "worker set, key '%s': unknown%s", key, suggest_text(key, keys, ARRAY_SIZE(keys), near, sizeof(near)));
}

static void print_status(FILE *out, json_t *status)
{
	static const char *const keys[] = { "policy", "pin", "workers", "generation", NULL };

	object_print(out, status, keys, NULL);
}

static int run_set(const struct command *command, int argc, char **argv)
{
	struct client_options o = { 0 };
	struct error error = { 0 };
	const char *words[WORDS_MAX];
	unsigned count;
	json_t *params;
	int result = options_parse(command, &o, argc, argv, words, &count, &error);

	if (result == OPTIONS_HELP_SHOWN)
		return EXIT_DONE;
	if (result < 0)
		return report(EXIT_WRONG_USE, &error);
	params = json_object();
	for (unsigned i = 0; result == 0 && i < count; i++)
		result = take_pair(words[i], params, &error);
	if (result < 0) {
		json_decref(params);
		return report(EXIT_WRONG_USE, &error);
	}
	return client_run(&o, CONTROL_WORKER_SET, params, print_status);
}

const struct command worker_set_command = {
	.name = "worker set",
	.arguments = "policy=P|per-port=N|pin=BOOL...",
	.summary = "Place queue pairs by another policy, at once and without loss; pin workers or let them go",
	.options = client_options,
	.arguments_min = 1,
	.arguments_max = WORDS_MAX,
	.run = run_set,
};

static int run(const struct command *command, int argc, char **argv)
{
	return client_simple(command, argc, argv, CONTROL_WORKER_LIST, print);
}

const struct command worker_list_command = {
	.name = "worker list",
	.arguments = "",
	.summary = "List the workers: CPU, thread, queue pairs, how busy",
	.options = client_options,
	.run = run,
};
