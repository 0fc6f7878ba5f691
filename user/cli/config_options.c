// SPDX-License-Identifier: BSD-2-Clause
#include "cli/config_options.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

int option_config(void *target, const char *value, struct error *error)
{
	struct config_options *o = target;
	int result;

	o->file_given = true;
	result = config_load_file(&o->config, value, error);
	o->file_failed = result < 0;
	o->file_loaded |= result == 0;
	return result;
}

int option_uplink(void *target, const char *value, struct error *error)
{
	struct config_uplink uplink;
	int result = config_parse_uplink(value, &uplink, error);

	return result < 0 ? result : config_add_uplink(&((struct config_options *)target)->config, &uplink, error);
}

int option_port(void *target, const char *value, struct error *error)
{
	struct config_port port;
	int result = config_parse_port(value, &port, error);

	return result < 0 ? result : config_add_port(&((struct config_options *)target)->config, &port, error);
}

int option_cpus(void *target, const char *value, struct error *error)
{
	return config_set(&((struct config_options *)target)->config, "cpus", value, error);
}

int option_policy(void *target, const char *value, struct error *error)
{
	return config_set(&((struct config_options *)target)->config, "policy", value, error);
}

int option_per_port(void *target, const char *value, struct error *error)
{
	return config_set(&((struct config_options *)target)->config, "per-port", value, error);
}

int option_threads(void *target, const char *value, struct error *error)
{
	return config_set(&((struct config_options *)target)->config, "threads", value, error);
}

int option_no_pin(void *target, const char *value, struct error *error)
{
	((struct config_options *)target)->config.pin = false;
	return 0;
}

int option_control(void *target, const char *value, struct error *error)
{
	return config_set(&((struct config_options *)target)->config, "control", value, error);
}

static int parse(const struct command *command, struct config_options *options, int argc, char **argv, struct error *error)
{
	unsigned count;

	/* Neither command takes any words. */
	return options_parse(command, options, argc, argv, NULL, &count, error);
}

/* Return: 0; OPTIONS_HELP_SHOWN; negative errno value with *error. */
static int fill(const struct command *command, struct config_options *options, int argc, char **argv, struct error *error)
{
	int result = parse(command, options, argc, argv, error);

	/* Options come after the file that they amend. Whether the default one counts is known only now: once more from the start. */
	if (result == 0 && !options->file_given && access(CONFIG_FILE_DEFAULT, F_OK) == 0) {
		config_free(&options->config);
		config_init(&options->config);
		result = option_config(options, CONFIG_FILE_DEFAULT, error);
		if (result == 0)
			result = parse(command, options, argc, argv, error);
	}
	if (result == 0) {
		result = config_check(&options->config, error);
		options->file_failed = result < 0 && options->file_loaded;
	}
	return result;
}

int config_run(const struct command *command, int argc, char **argv, int (*act)(struct config_options *options))
{
	struct config_options options = { 0 };
	struct error error = { 0 };
	int result, code = EXIT_DONE;

	config_init(&options.config);
	result = fill(command, &options, argc, argv, &error);
	if (result == 0)
		code = act(&options);
	else if (result != OPTIONS_HELP_SHOWN) /* what is wrong in a file, or between it and the options, is no wrong use of the command */
		code = report(options.file_failed ? EXIT_FAILED : EXIT_WRONG_USE, &error);
	config_free(&options.config);
	return code;
}
