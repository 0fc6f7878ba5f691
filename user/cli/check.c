// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane check: what would fail, before it fails. */
#include "cli/commands.h"
#include "cli/config_options.h"
#include "control/check.h"

static const struct option_row options[] = {
	CONFIG_OPTIONS,
	{ OPTION_FLAG, "json", 0, NULL, "print the findings as JSON", offsetof(struct config_options, json), NULL },
	{ .kind = OPTION_END },
};

static int look(struct config_options *o)
{
	return check_run(&o->config, stdout, o->json) == 0 ? EXIT_DONE : EXIT_FAILED;
}

static int run(const struct command *command, int argc, char **argv)
{
	return config_run(command, argc, argv, look);
}

const struct command check_command = {
	.name = "check",
	.arguments = "",
	.summary = "Tell what would fail in `run` with the same options, and the remedy",
	.details = "Looks at configuration, kernel, capabilities, limits, huge pages, CPUs, uplinks and sockets, and changes nothing.\n"
		   "One line each: ok, warn or fail. Exit status 1 if anything would fail.",
	.options = options,
	.run = run,
};
