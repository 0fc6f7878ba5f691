// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane: one program, many commands. Each has a file of its own; this one finds it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "common/log.h"

const struct command *const commands[] = {
	&run_command,
	&check_command,
	&status_command,
	&port_list_command,
	&port_show_command,
	&port_add_command,
	&port_del_command,
	&port_set_command,
	&queue_list_command,
	&queue_set_command,
	&worker_list_command,
	&worker_set_command,
	&uplink_list_command,
	&counters_command,
	NULL,
};

/* Output that did not arrive is a failure, not a success with less text. */
static int finish(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	log_error("standard output: %s; write to a file or pipe that takes it", strerror(errno));
	return code ? code : EXIT_FAILED;
}

static bool asks_for_help(const char *word)
{
	return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

int main(int argc, char **argv)
{
	const struct command *command;
	struct error error = { 0 };
	int taken;

	if (argc < 2) {
		print_usage(stderr);
		return EXIT_WRONG_USE;
	}
	if (asks_for_help(argv[1]) || strcmp(argv[1], "help") == 0) {
		print_usage(stdout);
		return finish(EXIT_DONE);
	}
	if (argc > 2 && asks_for_help(argv[2]) && print_group_usage(stdout, argv[1]))
		return finish(EXIT_DONE);
	if (strcmp(argv[1], "--version") == 0) {
		puts("vhostlane " VHOSTLANE_VERSION);
		return finish(EXIT_DONE);
	}
	command = find_command(argc - 1, argv + 1, &taken, &error);
	if (!command)
		return report(EXIT_WRONG_USE, &error);
	return finish(command->run(command, argc - 1 - taken, argv + 1 + taken));
}
