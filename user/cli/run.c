// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane run: the daemon in the foreground. */
#include "cli/commands.h"
#include "cli/config_options.h"
#include "common/log.h"
#include "control/daemon.h"

static const struct option_row options[] = {
	CONFIG_OPTIONS,
	{ OPTION_FLAG, "verbose", 'v', NULL, "log what is of use only for finding faults", offsetof(struct config_options, verbose), NULL },
	{ .kind = OPTION_END },
};

static int serve(struct config_options *o)
{
	struct error error = { 0 };

	if (o->verbose)
		log_set_level(LOG_LEVEL_DEBUG);
	return daemon_run(&o->config, &error) < 0 ? report(EXIT_FAILED, &error) : EXIT_DONE;
}

static int run(const struct command *command, int argc, char **argv)
{
	return config_run(command, argc, argv, serve);
}

const struct command run_command = {
	.name = "run",
	.arguments = "",
	.summary = "Serve guests until SIGTERM or SIGINT, then undo everything that was set up",
	.details = "Prints `ready` on standard output when all sockets exist and all programs are attached.\n"
		   "Options amend the configuration in the order given. Without an uplink it is a switch between guests.",
	.options = options,
	.run = run,
};
