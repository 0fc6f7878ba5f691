/* SPDX-License-Identifier: BSD-2-Clause */
/* The CLI as a client of the control socket: one call, one answer. */
#ifndef VHOSTLANE_CLI_CLIENT_H
#define VHOSTLANE_CLI_CLIENT_H

#include <jansson.h>

#include "cli/command.h"

/* Takes @params' reference. Return: the result, or NULL with *error: no daemon, no answer, or what the daemon refused. */
json_t *client_call(const char *socket, const char *method, json_t *params, struct error *error);

/**
 * client_run() - call and print
 * @params: reference taken
 * @print:  text form; NULL: nothing to show
 * Return: enum exit_code
 */
int client_run(const struct client_options *options, const char *method, json_t *params, void (*print)(FILE *out, json_t *result));

/* A command that takes no words: parses its options and runs @method. */
int client_simple(const struct command *command, int argc, char **argv, const char *method, void (*print)(FILE *out, json_t *result));

#endif
