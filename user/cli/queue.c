// SPDX-License-Identifier: BSD-2-Clause
/* vhostlane queue list|set */
#include <errno.h>
#include <string.h>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/pairs.h"
#include "cli/table.h"
#include "common/util.h"
#include "control/config.h"
#include "vhostlane/control_abi.h"

static const char *const queue_columns[] = { "port", "pair", "worker", "cpu", "node", "busy-poll-us", "reason", "generation", "frames_to_guest",
					     "frames_from_guest", "ring_node", "buffer_node", "vcpu_node", "vcpus", "kick_cpu",
					     "busy_percent", NULL };

static void print_list(FILE *out, json_t *pairs)
{
	table_print(out, pairs, queue_columns, 0);
}

static void print_pair(FILE *out, json_t *pair)
{
	object_print(out, pair, queue_columns, NULL);
}

/* "NAME/PAIR" */
static int take_place(const char *word, json_t *params, struct error *error)
{
	const char *slash = strrchr(word, '/');
	struct config_port port;
	char name[CONFIG_PORT_NAME_MAX + 2];
	uint64_t pair;
	int result;

	if (!slash || !number_parse(slash + 1, 0, VL_QUEUE_PAIRS_MAX - 1, &pair))
		return error_set(error, -EINVAL, "queue '%.64s': not NAME/PAIR; write for instance vm1/0, pairs from 0 to %d", word,
				 VL_QUEUE_PAIRS_MAX - 1);
	copy_string(name, min_u32((uint32_t)(slash - word) + 1, sizeof(name)), word);
	config_port_init(&port);
	result = config_port_set(&port, "name", name, error);
	if (result < 0)
		return result;
	json_object_set_new(params, "port", json_string(name));
	json_object_set_new(params, "pair", json_integer((json_int_t)pair));
	return 0;
}

static int take_cpu(const char *whom, const char *value, json_t *params, struct error *error)
{
	uint64_t cpu;

	if (strcmp(value, "auto") == 0) {
		json_object_set_new(params, "cpu", json_string(value));
		return 0;
	}
	if (!number_parse(value, 0, CPUS_MAX - 1, &cpu))
		return error_set(error, -EINVAL, "%s, cpu '%.64s': neither 'auto' nor a CPU number from 0 to %d; see `vhostlane worker list`",
				 whom, value, CPUS_MAX - 1);
	json_object_set_new(params, "cpu", json_integer((json_int_t)cpu));
	return 0;
}

static int take_busy_poll(const char *whom, const char *value, json_t *params, struct error *error)
{
	struct error inner = { 0 };
	uint32_t us;

	if (config_parse_busy_poll(value, &us, &inner) < 0)
		return error_set(error, inner.code, "%s, %s", whom, inner.text);
	json_object_set_new(params, "busy-poll-us", us >= CONFIG_BUSY_POLL_ADAPTIVE ? json_string(value) : json_integer(us));
	return 0;
}

static int make_params(const struct client_options *options, const char *const *words, unsigned count, json_t *params, struct error *error)
{
	static const char *const keys[] = { "cpu", "busy-poll-us" };
	static int (*const takers[])(const char *, const char *, json_t *, struct error *) = { take_cpu, take_busy_poll };
	json_t *place = json_object();
	char whom[80], key[PAIR_KEY_MAX];
	int result = take_place(words[0], place, error);

	_Static_assert(ARRAY_SIZE(keys) == ARRAY_SIZE(takers), "one taker a key");
	snprintf(whom, sizeof(whom), "queue %.64s", words[0]);
	for (unsigned i = 1; result == 0 && i < count; i++) {
		const char *value = pair_split(words[i], whom, "cpu=N, cpu=auto or busy-poll-us=N", params, key, error);

		result = value ? pair_find_key(key, keys, ARRAY_SIZE(keys), whom, error) : -EINVAL;
		if (result >= 0)
			result = takers[result](whom, value, params, error);
	}
	json_object_update(params, place);
	json_decref(place);
	return result;
}

static int run_list(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_QUEUE_LIST, NULL, print_list);
}

static int run_set(const struct command *command, int argc, char **argv)
{
	return client_run(command, argc, argv, CONTROL_QUEUE_SET, make_params, print_pair);
}

const struct command queue_list_command = {
	.name = "queue list",
	.arguments = "",
	.summary = "List the queue pairs: worker, CPU, node, busy-poll window, and why they sit there",
	.options = client_options,
	.run = run_list,
};

const struct command queue_set_command = {
	.name = "queue set",
	.arguments = "NAME/PAIR cpu=N|cpu=auto|busy-poll-us=N...",
	.summary = "Move a queue pair to a worker's CPU, or set its busy-poll window (microseconds, 0 = never, always, adaptive)",
	.details = "cpu=N holds the pair there, whatever placement would prefer; cpu=auto gives it back to placement.",
	.options = client_options,
	.arguments_min = 2,
	.arguments_max = COMMAND_WORDS_MAX,
	.run = run_set,
};
