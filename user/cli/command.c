// SPDX-License-Identifier: BSD-2-Clause
#include "cli/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/suggest.h"
#include "common/util.h"

#define NAMES_MAX 48

const struct option_row client_options[] = { CLIENT_OPTIONS, { .kind = OPTION_END } };

/* --- options ------------------------------------------------------------------------------------------------------ */

static const struct option_row *find_option(const struct command *command, const char *name, size_t length, char letter)
{
	for (const struct option_row *o = command->options; o->kind != OPTION_END; o++)
		if (letter ? o->letter == letter : strlen(o->name) == length && strncmp(o->name, name, length) == 0)
			return o;
	return NULL;
}

static int unknown_option(const struct command *command, const char *text, struct error *error)
{
	const char *names[NAMES_MAX], *equals = strchr(text, '='), *near;
	size_t length = equals ? (size_t)(equals - text) : strlen(text);
	char name[64];
	unsigned count = 0;

	for (const struct option_row *o = command->options; o->kind != OPTION_END && count < NAMES_MAX; o++)
		names[count++] = o->name;
	copy_string(name, min_u32((uint32_t)length + 1, sizeof(name)), text);
	near = strncmp(name, "--", 2) == 0 ? suggest(name + 2, names, count) : NULL;
	if (near)
		return error_set(error, -EINVAL, "option '%s': %s has none such; did you mean --%s?", name, command->name, near);
	return error_set(error, -EINVAL, "option '%s': %s has none such; see vhostlane %s --help", name, command->name, command->name);
}

static int apply_option(const struct option_row *option, void *target, const char *value, struct error *error)
{
	struct error inner = { 0 };

	switch (option->kind) {
	case OPTION_FLAG:
		*(bool *)((char *)target + option->offset) = true;
		return 0;
	case OPTION_TEXT:
		*(const char **)((char *)target + option->offset) = value;
		return 0;
	case OPTION_CALL:
		if (option->apply(target, value, &inner) == 0)
			return 0;
		return error_set(error, inner.code, "option --%s: %s", option->name, inner.text);
	case OPTION_END:
		break;
	}
	return -EINVAL;
}

/* One option at argv[i]. Return: words taken, or negative errno value. */
static int take_option(const struct command *command, void *target, int argc, char **argv, int i, struct error *error)
{
	const char *text = argv[i], *value = NULL;
	bool is_long = text[1] == '-';
	const char *equals = is_long ? strchr(text, '=') : NULL;
	const struct option_row *option;
	int taken = 1, result;

	if (is_long)
		option = find_option(command, text + 2, equals ? (size_t)(equals - text - 2) : strlen(text + 2), 0);
	else
		option = find_option(command, NULL, 0, text[1]);
	if (!option)
		return unknown_option(command, text, error);
	if (equals)
		value = equals + 1;
	else if (!is_long && text[2])
		value = text + 2;
	if (!option->argument && value)
		return error_set(error, -EINVAL, "option --%s: takes no value, '%.64s' was given; leave it out", option->name, value);
	if (option->argument && !value) {
		if (i + 1 == argc)
			return error_set(error, -EINVAL, "option --%s: lacks its value; write --%s %s", option->name, option->name,
					 option->argument);
		value = argv[i + 1];
		taken = 2;
	}
	result = apply_option(option, target, value, error);
	return result < 0 ? result : taken;
}

int options_parse(const struct command *command, void *target, int argc, char **argv, const char **words, unsigned *word_count,
		  struct error *error)
{
	const char *surplus = NULL;
	bool only_words = false;
	unsigned count = 0;

	for (int i = 0; i < argc;) {
		const char *text = argv[i];
		int taken = 1;

		if (only_words || text[0] != '-' || !text[1]) {
			if (count < command->arguments_max)
				words[count++] = text;
			else if (!surplus)
				surplus = text;
		} else if (strcmp(text, "--") == 0) {
			only_words = true;
		} else if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
			print_command_help(stdout, command);
			return OPTIONS_HELP_SHOWN;
		} else {
			taken = take_option(command, target, argc, argv, i, error);
		}
		if (taken < 0)
			return -EINVAL;
		i += taken;
	}
	*word_count = count;
	if (count < command->arguments_min)
		return error_set(error, -EINVAL, "%s: lacks an argument; write vhostlane %s [OPTIONS] %s", command->name, command->name,
				 command->arguments);
	if (surplus)
		return error_set(error, -EINVAL, "%s, argument '%.64s': one too many; write vhostlane %s [OPTIONS] %s", command->name, surplus,
				 command->name, command->arguments);
	return 0;
}

/* --- help --------------------------------------------------------------------------------------------------------- */

void print_usage(FILE *out)
{
	fprintf(out, "Usage: vhostlane COMMAND [OPTIONS] [ARGUMENTS]\n\n");
	for (unsigned i = 0; commands[i]; i++)
		fprintf(out, "  %-14s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(out, "\nvhostlane COMMAND --help says more of each; vhostlane --version prints the version; man 8 vhostlane.\n"
		     "Exit status: 0 done, 1 failed, 2 wrong use.\n");
}

bool print_group_usage(FILE *out, const char *group)
{
	const size_t length = strlen(group);
	bool found = false;

	for (unsigned i = 0; commands[i]; i++) {
		if (strncmp(commands[i]->name, group, length) != 0 || commands[i]->name[length] != ' ')
			continue;
		if (!found)
			fprintf(out, "Usage: vhostlane %s ACTION [OPTIONS] [ARGUMENTS]\n\n", group);
		found = true;
		fprintf(out, "  %-14s %s\n", commands[i]->name, commands[i]->summary);
	}
	if (found)
		fprintf(out, "\nvhostlane %s ACTION --help says more of each; man 8 vhostlane.\n", group);
	return found;
}

void print_command_help(FILE *out, const struct command *command)
{
	char left[64];

	fprintf(out, "Usage: vhostlane %s [OPTIONS]%s%s\n\n%s.\n", command->name, command->arguments[0] ? " " : "", command->arguments,
		command->summary);
	if (command->details)
		fprintf(out, "%s\n", command->details);
	fprintf(out, "\nOptions:\n");
	for (const struct option_row *o = command->options; o->kind != OPTION_END; o++) {
		snprintf(left, sizeof(left), "%c%c%s--%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ', o->letter ? ", " : "  ", o->name,
			 o->argument ? " " : "", o->argument ? o->argument : "");
		/* Long forms get a line of their own, so that what they mean stays in its column. */
		if (strlen(left) > 28)
			fprintf(out, "  %s\n%31s%s\n", left, "", o->help);
		else
			fprintf(out, "  %-28s %s\n", left, o->help);
	}
	fprintf(out, "  -h, --help                   print this and exit\n");
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

/* How many of @argv's words spell @name; 0 if not all of its words are there. */
static int words_matched(const char *name, int argc, char **argv)
{
	int taken = 0;

	for (;;) {
		size_t length = strcspn(name, " ");

		if (taken == argc || strlen(argv[taken]) != length || strncmp(argv[taken], name, length) != 0)
			return 0;
		taken++;
		if (!name[length])
			return taken;
		name += length + 1;
	}
}

/* Commands that start with @group are meant if it is the first word of several ("port"). */
static int unknown_action(const char *group, const char *word, struct error *error)
{
	const char *names[NAMES_MAX];
	size_t length = strlen(group);
	char near[256];
	unsigned count = 0;

	for (unsigned i = 0; commands[i] && count < NAMES_MAX; i++)
		if (strncmp(commands[i]->name, group, length) == 0 && commands[i]->name[length] == ' ')
			names[count++] = commands[i]->name + length + 1;
	if (count == 0)
		return 0;
	if (!word || word[0] == '-')
		return error_set(error, -EINVAL, "command '%s': lacks its action%s", group, suggest_text("", names, count, near, sizeof(near)));
	return error_set(error, -EINVAL, "command '%s %.32s': unknown%s", group, word, suggest_text(word, names, count, near, sizeof(near)));
}

const struct command *find_command(int argc, char **argv, int *taken, struct error *error)
{
	const char *names[NAMES_MAX];
	char firsts[NAMES_MAX][16], near[512];
	unsigned count = 0;

	for (unsigned i = 0; commands[i]; i++) {
		*taken = words_matched(commands[i]->name, argc, argv);
		if (*taken)
			return commands[i];
	}
	if (unknown_action(argv[0], argc > 1 ? argv[1] : NULL, error) < 0)
		return NULL;
	for (unsigned i = 0; commands[i] && count < NAMES_MAX; i++) {
		size_t length = strcspn(commands[i]->name, " ");

		copy_string(firsts[count], min_u32((uint32_t)length + 1, sizeof(firsts[count])), commands[i]->name);
		if (count == 0 || strcmp(firsts[count - 1], firsts[count]) != 0) {
			names[count] = firsts[count];
			count++;
		}
	}
	error_set(error, -EINVAL, "command '%.64s': unknown%s", argv[0], suggest_text(argv[0], names, count, near, sizeof(near)));
	return NULL;
}

int report(int code, const struct error *error)
{
	/* log_line() keeps what a user or peer got quoted in the text from driving the terminal. */
	log_error("%s", error->text);
	return code;
}
