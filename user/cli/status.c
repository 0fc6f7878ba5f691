// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane status */
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "vhostlane/control_abi.h"

static void print(FILE *out, json_t *status)
{
	static const char *const order[] = { "version", "pid", "uptime_s", "policy", "generation", "ports", "workers", "uplinks", "control", "trouble", NULL };

	object_print(out, status, order, NULL);
}

static int run(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_STATUS, NULL, print);
}

const struct command status_command = {
	.name = "status",
	.arguments = "",
	.summary = "Show the daemon: version, policy, how many ports, workers and uplinks, what is broken",
	.options = client_options,
	.run = run,
};
