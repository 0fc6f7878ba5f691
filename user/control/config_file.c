// SPDX-License-Identifier: BSD-2-Clause
/*
 * The YAML file. Theory of operation: the bytes are read once and parsed twice. libcyaml holds them against the schema below
 * (unknown keys, doubled keys, wrong kinds) and yields every value as text; that text goes through the same setters as the
 * command line's, so a value means the same everywhere. libyaml's document tree (config_yaml.c), made from the same bytes, answers
 * on which line something stands, and gives the text of the two keys of a port that may also be a list or a mapping.
 */
#include <cyaml/cyaml.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/suggest.h"
#include "common/util.h"
#include "control/config.h"
#include "control/config_yaml.h"

/* --- the schema --------------------------------------------------------------------------------------------------- */

/* libcyaml keeps offsets to these: every value is a string that it allocates, NULL = not given. */
struct raw_workers {
	char *cpus, *policy, *pin, *per_port, *threads;
};

struct raw_uplink {
	char *ifname, *mode, *queues;
};

struct raw_port {
	char *value[CONFIG_PORT_KEY_COUNT];
};

struct raw_config {
	struct raw_workers *workers;
	struct raw_uplink *uplinks;
	unsigned uplinks_count;
	struct raw_port *ports;
	unsigned ports_count;
	char *control;
};

#define TEXT(key, structure, member) CYAML_FIELD_STRING_PTR(key, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, structure, member, 0, CYAML_UNLIMITED)

static const cyaml_schema_field_t workers_fields[] = {
	TEXT("cpus", struct raw_workers, cpus),
	TEXT("policy", struct raw_workers, policy),
	TEXT("pin", struct raw_workers, pin),
	TEXT("per-port", struct raw_workers, per_port),
	TEXT("threads", struct raw_workers, threads),
	CYAML_FIELD_END,
};

static const cyaml_schema_field_t uplink_fields[] = {
	TEXT("ifname", struct raw_uplink, ifname),
	TEXT("mode", struct raw_uplink, mode),
	TEXT("queues", struct raw_uplink, queues),
	CYAML_FIELD_END,
};

/* Their values may also be lists or mappings: libcyaml lets them pass, the document tree gives their text. */
#define IS_OF_ANY_KIND(key) ((key) == CONFIG_PORT_KEY_VLAN || (key) == CONFIG_PORT_KEY_OFFLOADS)

#define ANY_OR_TEXT(key_name, index)                                                                                           \
	{                                                                                                                      \
		.key = key_name,                                                                                               \
		.data_offset = offsetof(struct raw_port, value[index]),                                                        \
		.value = {                                                                                                     \
			.type = IS_OF_ANY_KIND(index) ? CYAML_IGNORE : CYAML_STRING,                                           \
			.flags = IS_OF_ANY_KIND(index) ? CYAML_FLAG_OPTIONAL : CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL,       \
			.data_size = sizeof(char *),                                                                           \
			.string = { .min = 0, .max = CYAML_UNLIMITED },                                                        \
		},                                                                                                             \
	}

static const cyaml_schema_field_t port_fields[] = {
#define PORT_FIELD(name, text) ANY_OR_TEXT(text, CONFIG_PORT_KEY_##name),
	CONFIG_PORT_KEYS(PORT_FIELD)
#undef PORT_FIELD
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t uplink_schema = { CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_uplink, uplink_fields) };
static const cyaml_schema_value_t port_schema = { CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct raw_port, port_fields) };

static const cyaml_schema_field_t config_fields[] = {
	CYAML_FIELD_MAPPING_PTR("workers", CYAML_FLAG_POINTER_NULL | CYAML_FLAG_OPTIONAL, struct raw_config, workers, workers_fields),
	CYAML_FIELD_SEQUENCE("uplinks", CYAML_FLAG_POINTER_NULL | CYAML_FLAG_OPTIONAL, struct raw_config, uplinks, &uplink_schema, 0,
			     CONFIG_UPLINKS_MAX),
	CYAML_FIELD_SEQUENCE("ports", CYAML_FLAG_POINTER_NULL | CYAML_FLAG_OPTIONAL, struct raw_config, ports, &port_schema, 0, VL_PORTS_MAX),
	TEXT("control", struct raw_config, control),
	CYAML_FIELD_END,
};

static const cyaml_schema_value_t config_schema = { CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct raw_config, config_fields) };

/* --- what libcyaml complains of ------------------------------------------------------------------------------------ */

struct complaint {
	char text[256];
	size_t line;   /* of the innermost place in its backtrace; 0 = unknown */
	char key[64];  /* innermost key there, "" = the top */
};

static void take_place(struct complaint *complaint, const char *place)
{
	const char *at = strstr(place, "(line: "), *field = strstr(place, "mapping field '");
	size_t length;

	if (!complaint->line && at)
		complaint->line = strtoul(at + strlen("(line: "), NULL, 10);
	if (complaint->key[0] || !field)
		return;
	field += strlen("mapping field '");
	length = strcspn(field, "'");
	copy_string(complaint->key, min_u32((uint32_t)length + 1, sizeof(complaint->key)), field);
}

static void keep_complaint(cyaml_log_t level, void *context, const char *format, va_list arguments)
{
	struct complaint *complaint = context;
	char line[256];

	vsnprintf(line, sizeof(line), format, arguments);
	line[strcspn(line, "\n")] = '\0';
	if (strncmp(line, "  in ", 5) == 0)
		take_place(complaint, line);
	else if (!complaint->text[0] && !strstr(line, "Backtrace"))
		copy_string(complaint->text, sizeof(complaint->text), strncmp(line, "Load: ", 6) == 0 ? line + 6 : line);
}

/* "Expecting SEQUENCE, got event: SCALAR" in the words of vhostlane.yaml(5). */
static const char *kind_text(const char *text, char *buffer, size_t size)
{
	static const struct {
		const char *yaml, *words;
	} kinds[] = { { "SCALAR", "one value" },
		      { "STRING", "one value" },
		      { "SEQUENCE", "a list (lines that start with '- ')" },
		      { "MAPPING", "key: value lines" } };
	const char *wanted = "another kind of value", *got = "this", *event = strstr(text, "event: ");

	if (strncmp(text, "Expecting ", 10) != 0 || !event)
		return text;
	for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++) {
		if (strncmp(text + 10, kinds[i].yaml, strlen(kinds[i].yaml)) == 0)
			wanted = kinds[i].words;
		if (strncmp(event + 7, kinds[i].yaml, strlen(kinds[i].yaml)) == 0)
			got = kinds[i].words;
	}
	snprintf(buffer, size, "needs %s, got %s", wanted, got);
	return buffer;
}

static const struct {
	const char *place; /* as of config_yaml_find_key() */
	const char *words;
	const cyaml_schema_field_t *fields;
} places[] = {
	{ "", "at top level", config_fields },
	{ "workers", "under 'workers'", workers_fields },
	{ "uplinks", "in an entry of 'uplinks'", uplink_fields },
	{ "ports", "in an entry of 'ports'", port_fields },
};

static unsigned keys_of(const cyaml_schema_field_t *fields, const char **keys)
{
	unsigned count = 0;

	for (; fields->key; fields++)
		keys[count++] = fields->key;
	return count;
}

/* What could have been meant at that place; else where the key belongs; else what there is. */
static int unknown_key(struct config_yaml *source, const char *word, size_t line, struct error *error)
{
	const char *keys[CONFIG_PORT_KEY_COUNT + 1], *place;
	char hint[512] = "; see vhostlane.yaml(5) for the keys there are";
	unsigned count;

	_Static_assert(CONFIG_PORT_KEY_COUNT >= ARRAY_SIZE(workers_fields), "the longest list");
	line = config_yaml_find_key(source, word, line, &place);
	for (unsigned i = 0; place && i < ARRAY_SIZE(places); i++) {
		if (strcmp(place, places[i].place) != 0)
			continue;
		count = keys_of(places[i].fields, keys);
		suggest_text(word, keys, count, hint, sizeof(hint));
	}
	for (unsigned i = 0; i < ARRAY_SIZE(places) && !strstr(hint, "did you mean"); i++) {
		count = keys_of(places[i].fields, keys);
		for (unsigned k = 0; k < count; k++)
			if (strcmp(keys[k], word) == 0)
				snprintf(hint, sizeof(hint), "; it stands %s", places[i].words);
	}
	return error_set(error, -EINVAL, "%s:%zu: key '%.64s': unknown here%s", source->path, line, word, hint);
}

static int schema_error(struct config_yaml *source, struct complaint *complaint, cyaml_err_t code, struct error *error)
{
	const char *colon = strrchr(complaint->text, ':'), *word = colon ? colon + 2 : "", *place;
	size_t line = complaint->line ? complaint->line : 1;
	char words[256];

	if (code == CYAML_ERR_INVALID_KEY)
		return unknown_key(source, word, line, error);
	if (strncmp(complaint->text, "Mapping field already seen", 26) == 0)
		return error_set(error, -EINVAL, "%s:%zu: key '%.64s': given twice; give it once", source->path,
				 config_yaml_find_key(source, word, line + 1, &place), word);
	if (code == CYAML_ERR_ALIAS)
		return error_set(error, -EINVAL, "%s:%zu: a YAML alias; write the value out", source->path, line);
	if (!complaint->key[0])
		copy_string(complaint->key, sizeof(complaint->key), "configuration");
	return error_set(error, -EINVAL, "%s:%zu: in '%s': %s; see vhostlane.yaml(5)", source->path, line, complaint->key,
			 complaint->text[0] ? kind_text(complaint->text, words, sizeof(words)) : cyaml_strerror(code));
}

/* --- from text to struct config ------------------------------------------------------------------------------------ */

/* Puts FILE:LINE before what a setter said. */
static int at_line(struct config_yaml *source, const char *top, int index, const char *key, struct error *inner, struct error *error)
{
	size_t line = config_yaml_line(source, top, index, key);

	if (!line)
		line = config_yaml_line(source, top, index, NULL);
	return error_set(error, inner->code, "%s:%zu: %s", source->path, line ? line : 1, inner->text);
}

static int take_workers(struct config *config, struct config_yaml *source, const struct raw_workers *raw, struct error *error)
{
	const struct {
		const char *key, *value;
	} pairs[] = { { "cpus", raw->cpus }, { "policy", raw->policy }, { "pin", raw->pin }, { "per-port", raw->per_port },
		    { "threads", raw->threads } };
	struct error inner = { 0 };

	for (unsigned i = 0; i < ARRAY_SIZE(pairs); i++)
		if (pairs[i].value && config_set(config, pairs[i].key, pairs[i].value, &inner) < 0)
			return at_line(source, "workers", -1, pairs[i].key, &inner, error);
	return 0;
}

static int take_uplink(struct config *config, struct config_yaml *source, const struct raw_uplink *raw, int index, struct error *error)
{
	const struct {
		const char *key, *value;
	} pairs[] = { { "ifname", raw->ifname }, { "mode", raw->mode }, { "queues", raw->queues } };
	struct config_uplink uplink = { 0 };
	struct error inner = { 0 };

	if (!raw->ifname) {
		error_set(&inner, -EINVAL, "uplink %d: has no ifname; give it one", index + 1);
		return at_line(source, "uplinks", index, NULL, &inner, error);
	}
	for (unsigned i = 0; i < ARRAY_SIZE(pairs); i++)
		if (pairs[i].value && config_uplink_set(&uplink, pairs[i].key, pairs[i].value, &inner) < 0)
			return at_line(source, "uplinks", index, pairs[i].key, &inner, error);
	if (config_add_uplink(config, &uplink, &inner) < 0)
		return at_line(source, "uplinks", index, "ifname", &inner, error);
	return 0;
}

/* One value into @port. @text is the value of a key that libcyaml has the value of. */
static int take_port_key(struct config_port *port, struct config_yaml *source, int index, unsigned key, const char *text, struct error *error)
{
	struct error inner = { 0 };
	char *of_any_kind = NULL;
	int result = 0;

	if (IS_OF_ANY_KIND(key)) {
		result = config_yaml_port_text(source, index, config_port_key_names[key], &of_any_kind, error);
		text = of_any_kind;
	}
	if (result == 0 && text && config_port_set(port, config_port_key_names[key], text, &inner) < 0)
		result = at_line(source, "ports", index, config_port_key_names[key], &inner, error);
	free(of_any_kind);
	return result;
}

static int take_port(struct config *config, struct config_yaml *source, const struct raw_port *raw, int index, struct error *error)
{
	const char *const name = raw->value[CONFIG_PORT_KEY_NAME];
	struct config_port port;
	struct error inner = { 0 };
	int result = 0;

	config_port_init(&port);
	snprintf(port.origin, sizeof(port.origin), "%.150s:%zu", source->path, config_yaml_line(source, "ports", index, NULL));
	if (!name) {
		error_set(&inner, -EINVAL, "port %d: has no name; give it one", index + 1);
		return at_line(source, "ports", index, NULL, &inner, error);
	}
	for (unsigned i = 0; result == 0 && i < CONFIG_PORT_KEY_COUNT; i++)
		result = take_port_key(&port, source, index, i, raw->value[i], error);
	if (result < 0)
		return result;
	if (!raw->value[CONFIG_PORT_KEY_SOCKET]) {
		error_set(&inner, -EINVAL, "port %s: has no socket; add a line `socket: /run/vhostlane/%s.sock`", name, name);
		return at_line(source, "ports", index, NULL, &inner, error);
	}
	if (config_add_port(config, &port, &inner) < 0)
		return at_line(source, "ports", index, NULL, &inner, error);
	return 0;
}

static int take(struct config *config, struct config_yaml *source, const struct raw_config *raw, struct error *error)
{
	struct error inner = { 0 };
	int result = raw->workers ? take_workers(config, source, raw->workers, error) : 0;

	for (unsigned i = 0; result == 0 && i < raw->uplinks_count; i++)
		result = take_uplink(config, source, &raw->uplinks[i], (int)i, error);
	for (unsigned i = 0; result == 0 && i < raw->ports_count; i++)
		result = take_port(config, source, &raw->ports[i], (int)i, error);
	if (result == 0 && raw->control && config_set(config, "control", raw->control, &inner) < 0)
		result = at_line(source, "control", -1, NULL, &inner, error);
	return result;
}

int config_load_file(struct config *config, const char *path, struct error *error)
{
	struct config_yaml source = { .path = path };
	struct complaint complaint = { 0 };
	const cyaml_config_t cyaml = {
		.log_fn = keep_complaint,
		.log_ctx = &complaint,
		.log_level = CYAML_LOG_ERROR,
		.mem_fn = cyaml_mem,
		.flags = CYAML_CFG_NO_ALIAS,
	};
	struct raw_config *raw = NULL;
	cyaml_err_t code;
	int result = config_yaml_read(&source, error);

	/* Nothing but comments is a lawful file. */
	if (result == 0 && !config_yaml_is_empty(&source)) {
		code = cyaml_load_data((const uint8_t *)source.data, source.size, &cyaml, &config_schema, (cyaml_data_t **)&raw, NULL);
		result = code == CYAML_OK ? 0 : schema_error(&source, &complaint, code, error);
		if (result == 0 && raw)
			result = take(config, &source, raw, error);
		cyaml_free(&cyaml, &config_schema, raw, 0);
	}
	config_yaml_free(&source);
	return result;
}
