/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Commands and their options as tables: a command's row says what it takes, the parser fills the command's own struct and
 * says what is wrong. `--help` is printed from the same rows.
 */
#ifndef VHOSTLANE_CLI_COMMAND_H
#define VHOSTLANE_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "common/error.h"

enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_WRONG_USE = 2 };

enum option_kind {
	OPTION_END,  /* ends a table */
	OPTION_FLAG, /* bool at offset becomes true */
	OPTION_TEXT, /* const char * at offset */
	OPTION_CALL, /* apply(target, value) */
};

struct option_row {
	enum option_kind kind;
	const char *name; /* without its dashes */
	char letter;	  /* 0 = none */
	const char *argument; /* name of its value in --help; NULL = takes none */
	const char *help;
	size_t offset;
	int (*apply)(void *target, const char *value, struct error *error);
};

/* Options of all commands that speak to a daemon. */
struct client_options {
	const char *control;
	bool json;
	bool drops; /* counters only */
};
#define CLIENT_OPTIONS                                                                                                           \
	{ OPTION_TEXT, "control", 0, "SOCKET", "control socket of the daemon (default /run/vhostlane/control.sock)",              \
	  offsetof(struct client_options, control), NULL },                                                                      \
	{ OPTION_FLAG, "json", 0, NULL, "print the daemon's answer as JSON", offsetof(struct client_options, json), NULL }
extern const struct option_row client_options[];

#define COMMAND_WORDS_MAX 32 /* of one command, options aside */

struct command {
	const char *name;	/* "port list" */
	const char *arguments;	/* of the usage line, behind [OPTIONS]; "" = none */
	const char *summary;	/* one line */
	const char *details;	/* further lines of --help; may be NULL */
	const struct option_row *options;
	unsigned arguments_min, arguments_max; /* at most COMMAND_WORDS_MAX */
	/* @argv: what follows the command's words. Return: enum exit_code. */
	int (*run)(const struct command *command, int argc, char **argv);
};

/* All commands, in the order of --help; ends with NULL. */
extern const struct command *const commands[];

#define OPTIONS_HELP_SHOWN 1
/**
 * options_parse() - apply options in the order given; gather the other words
 * @words: command->arguments_max places; *word_count is set
 * Return: 0; OPTIONS_HELP_SHOWN; -EINVAL with *error
 */
int options_parse(const struct command *command, void *target, int argc, char **argv, const char **words, unsigned *word_count,
		  struct error *error);

void print_usage(FILE *out);
/* Commands of one group ("port"). Return: false if no command's name has it as its first of two words. */
bool print_group_usage(FILE *out, const char *group);
void print_command_help(FILE *out, const struct command *command);

/* The command whose words @argv starts with; *taken = how many. NULL with *error, which suggests one. */
const struct command *find_command(int argc, char **argv, int *taken, struct error *error);

/* Prints the error as `vhostlane: ...`. Return: @code. */
int report(int code, const struct error *error);

#endif
