// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane worker list|set */
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/pairs.h"
#include "cli/table.h"
#include "common/util.h"
#include "control/config.h"
#include "vhostlane/control_abi.h"

static void print(FILE *out, json_t *workers)
{
	static const char *const columns[] = { "worker", "cpu", "node", "tid", "pairs", "state", "busy_percent", "others_percent",
						"in_use", "irqs", NULL };

	table_print(out, workers, columns, 0);
}

/* Values are judged here by the daemon's own table, so that wrong use is told apart from refusal. */
static int make_params(const struct client_options *options, const char *const *words, unsigned count, json_t *params, struct error *error)
{
	static const char *const keys[] = { "policy", "per-port", "pin" };
	struct config probe;
	int result = 0;

	config_init(&probe);
	for (unsigned i = 0; result == 0 && i < count; i++) {
		char key[PAIR_KEY_MAX];
		const char *value = pair_split(words[i], "worker set", "policy=per-port", params, key, error);

		if (!value || pair_find_key(key, keys, ARRAY_SIZE(keys), "worker set", error) < 0)
			return error->code;
		result = config_set(&probe, key, value, error);
		if (result == 0)
			result = pair_put(params, key, value, "worker set", error);
	}
	return result;
}

static void print_status(FILE *out, json_t *status)
{
	static const char *const keys[] = { "policy", "pin", "workers", "generation", NULL };

	object_print(out, status, keys, NULL);
}

static int run_set(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_WORKER_SET, make_params, print_status);
}

const struct command worker_set_command = {
	.name = "worker set",
	.arguments = "policy=P|per-port=N|pin=BOOL...",
	.summary = "Place queue pairs by another policy, at once and without loss; pin workers or let them go",
	.options = client_options,
	.arguments_min = 1,
	.arguments_max = COMMAND_WORDS_MAX,
	.run = run_set,
};

static int run(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_WORKER_LIST, NULL, print);
}

const struct command worker_list_command = {
	.name = "worker list",
	.arguments = "",
	.summary = "List the workers: CPU, thread, queue pairs, how busy",
	.options = client_options,
	.run = run,
};
