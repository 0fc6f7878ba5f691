/* SPDX-License-Identifier: BSD-2-Clause */
/* The CLI as a client of the control socket: one call, one answer. */
#ifndef VHOSTLANE_CLI_CLIENT_H
#define VHOSTLANE_CLI_CLIENT_H

#include <jansson.h>

#include "cli/command.h"

/* Makes the call's @params of the command line. Return: 0, or negative errno value with *error: wrong use of the command. */
typedef int client_params(const struct client_options *options, const char *const *words, unsigned count, json_t *params, struct error *error);
typedef void client_print(FILE *out, json_t *result);

/**
 * client_run() - the whole of a command that asks the daemon: options, call, answer, text
 * @command: takes options that fill struct client_options
 * @make:    parameters; NULL: none
 * @print:   text form; NULL: nothing to show
 * Return: enum exit_code
 */
int client_run(const struct command *command, int argc, char **argv, const char *method, client_params *make, client_print *print);

#endif
