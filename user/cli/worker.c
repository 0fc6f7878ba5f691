// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane worker list */
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "vhostlane/control_abi.h"

static void print(FILE *out, json_t *workers)
{
	static const char *const columns[] = { "worker", "cpu", "node", "tid", "pairs", "state", "busy_percent", NULL };

	table_print(out, workers, columns, 0);
}

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
