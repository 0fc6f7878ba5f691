/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/methods.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "control/methods_show.h"
#include "control/ports.h"
#include "control/publisher.h"
#include "control/rebalance.h"
#include "control/workforce.h"
#include "vhostlane/control_abi.h"

/* --- parameters ---------------------------------------------------------------------------------------------------- */

/* A parameter as the text that the tables of config.h take. Return: NULL if absent or of another type. */
static const char *text_of(json_t *value, char *buffer, size_t size)
{
	if (json_is_string(value))
		return json_string_value(value);
	if (!json_is_integer(value))
		return NULL;
	snprintf(buffer, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	return buffer;
}

static const char *required_text(json_t *params, const char *key, char *buffer, size_t size, struct error *error)
{
	const char *text = text_of(json_object_get(params, key), buffer, size);

	if (!text)
		error_set(error, -EINVAL, "parameter %s: missing, or neither text nor whole number; give it", key);
	return text;
}

/* One that may be left out: *text is NULL then. Return: 0 or -EINVAL with *error. */
static int optional_text(json_t *params, const char *key, const char **text, char *buffer, size_t size, struct error *error)
{
	json_t *value = json_object_get(params, key);

	*text = text_of(value, buffer, size);
	return value && !*text ? error_set(error, -EINVAL, "parameter %s: neither text nor whole number; give one of them", key) : 0;
}

static struct managed_port *port_param(struct engine *engine, json_t *params, const char *key, struct error *error)
{
	char buffer[32];
	const char *name = required_text(params, key, buffer, sizeof(buffer), error);

	return name ? ports_find(engine, name, error) : NULL;
}

static int pair_param(const struct managed_port *mp, json_t *params, unsigned *pair, struct error *error)
{
	char buffer[32];
	const char *text = required_text(params, "pair", buffer, sizeof(buffer), error);
	uint64_t number;

	if (!text)
		return error->code;
	if (!number_parse(text, 0, mp->config.queues - 1, &number))
		return error_set(error, -EINVAL, "queue %s/%.64s: the port has pairs 0 to %u; name one of them", mp->config.name, text,
				 mp->config.queues - 1);
	*pair = (unsigned)number;
	return 0;
}

/* --- methods ------------------------------------------------------------------------------------------------------- */

static json_t *method_status(void *context, json_t *params, struct error *error)
{
	struct engine *engine = context;
	unsigned ports = 0;

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		ports += engine->ports[id] != NULL;
	return json_pack("{ss si sf ss sb sI si si si ss so}", "version", VHOSTLANE_VERSION, "pid", (int)getpid(), "uptime_s",
			 (double)(now_ns() - engine->start_ns) / 1e9, "policy", placement_policy_names[engine->config->policy], "pin",
			 engine->config->pin, "generation", (json_int_t)engine->generation, "ports", (int)ports, "workers",
			 (int)engine->worker_count, "uplinks", (int)engine->uplink_count, "control", engine->config->control, "trouble", show_trouble(engine));
}

static json_t *method_port_list(void *context, json_t *params, struct error *error)
{
	const struct engine *engine = context;
	json_t *list = json_array();

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			json_array_append_new(list, show_port(engine->ports[id]));
	return list;
}

static json_t *method_port_show(void *context, json_t *params, struct error *error)
{
	struct managed_port *mp = port_param(context, params, "name", error);

	return mp ? show_port_in_full(mp) : NULL;
}

static json_t *method_port_add(void *context, json_t *params, struct error *error)
{
	struct engine *engine = context;
	struct config_port config;
	const char *key, *text;
	char buffer[32];
	json_t *value;

	config_port_init(&config);
	json_object_foreach(params, key, value) {
		text = text_of(value, buffer, sizeof(buffer));
		if (!text) {
			error_set(error, -EINVAL, "port.add: %.64s: neither text nor whole number; give one of them", key);
			return NULL;
		}
		if (config_port_set(&config, key, text, error))
			return NULL;
	}
	if (config_check_port(&config, error) || ports_add(engine, &config, error))
		return NULL;
	return show_port(ports_find(engine, config.name, error));
}

static json_t *method_port_del(void *context, json_t *params, struct error *error)
{
	struct managed_port *mp = port_param(context, params, "name", error);

	if (!mp)
		return NULL;
	ports_remove(context, mp);
	return json_object();
}

static json_t *method_port_set(void *context, json_t *params, struct error *error)
{
	struct managed_port *mp = port_param(context, params, "name", error);
	struct config_port wanted;
	const char *key, *text;
	char buffer[32];
	json_t *value;

	if (!mp)
		return NULL;
	if (json_object_size(params) < 2) {
		error_set(error, -EINVAL, "port %s: nothing to set; give " CONFIG_PORT_SETTABLE, mp->config.name);
		return NULL;
	}
	/* All or nothing: every key is judged before the first is set. */
	wanted = mp->config;
	json_object_foreach(params, key, value) {
		if (!strcmp(key, "name"))
			continue;
		text = text_of(value, buffer, sizeof(buffer));
		if (!text) {
			error_set(error, -EINVAL, "port %s: %.64s: neither text nor whole number; give one of them", mp->config.name, key);
			return NULL;
		}
		if (ports_check_set(context, mp, &wanted, key, text, error))
			return NULL;
	}
	json_object_foreach(params, key, value)
		if (strcmp(key, "name") && ports_set(context, mp, key, text_of(value, buffer, sizeof(buffer)), error))
			return NULL;
	return show_port(mp);
}

static json_t *method_queue_list(void *context, json_t *params, struct error *error)
{
	const struct engine *engine = context;
	json_t *list = json_array();

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++)
			json_array_append_new(list, show_pair(engine, engine->ports[id], i));
	return list;
}

static json_t *method_queue_set(void *context, json_t *params, struct error *error)
{
	struct engine *engine = context;
	struct managed_port *mp = port_param(engine, params, "port", error);
	const char *cpu_text, *poll_text;
	char cpu_buffer[32], poll_buffer[32];
	uint32_t busy_poll_us = 0;
	uint64_t cpu = 0;
	unsigned pair = 0;
	bool cpu_auto;

	if (!mp || pair_param(mp, params, &pair, error))
		return NULL;
	if (optional_text(params, "cpu", &cpu_text, cpu_buffer, sizeof(cpu_buffer), error) ||
	    optional_text(params, "busy-poll-us", &poll_text, poll_buffer, sizeof(poll_buffer), error))
		return NULL;
	if (!cpu_text && !poll_text) {
		error_set(error, -EINVAL, "queue %s/%u: nothing to set; give cpu=N, cpu=auto or busy-poll-us=N", mp->config.name, pair);
		return NULL;
	}
	cpu_auto = cpu_text && !strcmp(cpu_text, "auto");
	if (cpu_text && !cpu_auto && !number_parse(cpu_text, 0, CPUS_MAX - 1, &cpu)) {
		error_set(error, -EINVAL, "queue %s/%u: cpu=%.64s: neither 'auto' nor a CPU number; give one of them, CPUs from 0 to %d", mp->config.name,
			  pair, cpu_text, CPUS_MAX - 1);
		return NULL;
	}
	if (poll_text && config_parse_busy_poll(poll_text, &busy_poll_us, error))
		return NULL;
	publisher_read_affinity(engine); /* an edit of the map that came before this order is not to undo it */
	if (cpu_auto)
		publisher_release(engine, mp, pair);
	else if (cpu_text && publisher_order(engine, mp, pair, (int)cpu, error))
		return NULL;
	if (poll_text) {
		atomic_store(&mp->pairs[pair].pair->busy_poll_us, busy_poll_us);
		publisher_publish(engine);
	}
	return show_pair(engine, mp, pair);
}

static json_t *method_worker_list(void *context, json_t *params, struct error *error)
{
	return show_workers(context);
}

static json_t *method_worker_set(void *context, json_t *params, struct error *error)
{
	struct engine *engine = context;
	struct config wanted = *engine->config;
	const char *key, *text;
	char buffer[32];
	json_t *value;
	bool afresh;

	if (!json_object_size(params)) {
		error_set(error, -EINVAL, "worker.set: nothing to set; give policy, per-port or pin");
		return NULL;
	}
	json_object_foreach(params, key, value) {
		text = json_is_boolean(value) ? (json_is_true(value) ? "true" : "false") : text_of(value, buffer, sizeof(buffer));
		if (!text || (strcmp(key, "policy") && strcmp(key, "per-port") && strcmp(key, "pin"))) {
			error_set(error, -EINVAL, "worker.set: %.64s: cannot be set while the daemon runs; give policy, per-port or pin", key);
			return NULL;
		}
		if (config_set(&wanted, key, text, error))
			return NULL;
	}
	afresh = wanted.policy != engine->config->policy || wanted.workers_per_port != engine->config->workers_per_port;
	if (workforce_set_policy(engine, wanted.policy, wanted.workers_per_port, wanted.pin, error))
		return NULL;
	rebalance_all(engine, afresh);
	return method_status(engine, params, error);
}

static json_t *method_uplink_list(void *context, json_t *params, struct error *error)
{
	struct engine *engine = context;
	json_t *list = json_array();

	for (unsigned u = 0; u < engine->uplink_count; u++)
		json_array_append_new(list, show_uplink(engine, u));
	return list;
}

static json_t *method_counters(void *context, json_t *params, struct error *error)
{
	json_t *drops = json_object_get(params, "drops");

	if (drops && !json_is_boolean(drops)) {
		error_set(error, -EINVAL, "parameter drops: neither true nor false; give one of them");
		return NULL;
	}
	return show_counters(context, json_is_true(drops));
}

const struct control_method engine_methods[] = {
	{CONTROL_STATUS, "", method_status},
	{CONTROL_PORT_LIST, "", method_port_list},
	{CONTROL_PORT_SHOW, "name", method_port_show},
	{CONTROL_PORT_ADD, NULL, method_port_add},
	{CONTROL_PORT_DEL, "name", method_port_del},
	{CONTROL_PORT_SET, NULL, method_port_set},
	{CONTROL_QUEUE_LIST, "", method_queue_list},
	{CONTROL_QUEUE_SET, "port pair cpu busy-poll-us", method_queue_set},
	{CONTROL_WORKER_LIST, "", method_worker_list},
	{CONTROL_WORKER_SET, NULL, method_worker_set},
	{CONTROL_UPLINK_LIST, "", method_uplink_list},
	{CONTROL_COUNTERS, "drops", method_counters},
};
const unsigned engine_method_count = ARRAY_SIZE(engine_methods);
