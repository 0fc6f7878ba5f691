// SPDX-License-Identifier: BSD-2-Clause
/*
 * The YAML file. Theory of operation: the bytes are read once and parsed twice. libcyaml holds them against the schema below
 * (unknown keys, doubled keys, wrong kinds) and yields every value as text; that text goes through the same setters as the
 * command line's, so a value means the same everywhere. libyaml's document tree, made from the same bytes, only answers on
 * which line something stands.
 */
#include <cyaml/cyaml.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "common/suggest.h"
#include "common/util.h"
#include "control/config.h"

#define FILE_MAX (1024 * 1024)

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

static const cyaml_schema_field_t port_fields[] = {
#define PORT_FIELD(name, text) TEXT(text, struct raw_port, value[CONFIG_PORT_KEY_##name]),
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

/* --- where something stands --------------------------------------------------------------------------------------- */

struct source {
	const char *path;
	char *data;
	size_t size;
	yaml_document_t document;
	bool has_document;
};

static const char *scalar(yaml_node_t *node)
{
	return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static yaml_node_t *value_of(struct source *source, yaml_node_t *mapping, const char *key)
{
	if (!mapping || mapping->type != YAML_MAPPING_NODE)
		return NULL;
	for (yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top; p++)
		if (strcmp(scalar(yaml_document_get_node(&source->document, p->key)), key) == 0)
			return yaml_document_get_node(&source->document, p->value);
	return NULL;
}

/* Line of top.key, or of top[index].key; 0 if it is not there. @key NULL: of the entry itself. */
static size_t line_of(struct source *source, const char *top, int index, const char *key)
{
	yaml_node_t *node = value_of(source, yaml_document_get_root_node(&source->document), top);

	if (node && index >= 0) {
		if (node->type != YAML_SEQUENCE_NODE || node->data.sequence.items.start + index >= node->data.sequence.items.top)
			return 0;
		node = yaml_document_get_node(&source->document, node->data.sequence.items.start[index]);
	}
	if (node && key)
		node = value_of(source, node, key);
	return node ? node->start_mark.line + 1 : 0;
}

/* Line of the last key called @key at or below @line: libcyaml reports the event before the one it rejects. */
static size_t line_of_key(struct source *source, const char *key, size_t line)
{
	size_t found = 0;

	for (yaml_node_t *n = source->document.nodes.start; n < source->document.nodes.top; n++) {
		if (n->type != YAML_MAPPING_NODE)
			continue;
		for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
			yaml_node_t *k = yaml_document_get_node(&source->document, p->key);

			if (k && strcmp(scalar(k), key) == 0 && k->start_mark.line + 1 >= line && (!found || k->start_mark.line + 1 < found))
				found = k->start_mark.line + 1;
		}
	}
	return found ? found : line;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int read_file(struct source *source, struct error *error)
{
	int fd = open(source->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat s;
	ssize_t n = 0;

	if (fd < 0)
		return error_set(error, -errno, "configuration file %s: %s; name a readable file with -c", source->path, strerror(errno));
	if (fstat(fd, &s) != 0 || !(S_ISREG(s.st_mode) || S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode))) {
		close(fd);
		return error_set(error, -EINVAL, "configuration file %s: not a file; name a YAML file with -c", source->path);
	}
	/* `-c <(...)` and /dev/stdin may come slowly. */
	fcntl(fd, F_SETFL, 0);
	source->data = malloc(FILE_MAX + 1);
	while (source->data && source->size <= FILE_MAX) {
		n = read(fd, source->data + source->size, FILE_MAX + 1 - source->size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		source->size += (size_t)n;
	}
	if (n < 0)
		error_set(error, -errno, "configuration file %s: %s; name a readable file with -c", source->path, strerror(errno));
	close(fd);
	if (!source->data)
		return error_set(error, -ENOMEM, "configuration file %s: out of memory; free some memory", source->path);
	if (n < 0)
		return error ? error->code : -EIO;
	if (source->size > FILE_MAX)
		return error_set(error, -E2BIG, "configuration file %s: longer than %d bytes; shorten it", source->path, FILE_MAX);
	return 0;
}

/* Syntax, and that there is one document at most. */
static int parse_document(struct source *source, struct error *error)
{
	yaml_parser_t parser;
	yaml_document_t second;
	int result = 0;

	if (!yaml_parser_initialize(&parser))
		return error_set(error, -ENOMEM, "configuration file %s: out of memory; free some memory", source->path);
	yaml_parser_set_input_string(&parser, (const unsigned char *)source->data, source->size);
	if (!yaml_parser_load(&parser, &source->document))
		goto malformed;
	source->has_document = true;
	if (yaml_document_get_root_node(&source->document)) {
		if (!yaml_parser_load(&parser, &second))
			goto malformed;
		if (yaml_document_get_root_node(&second))
			result = error_set(error, -EINVAL, "%s:%zu: a second document; keep one, without '---' between", source->path,
					   second.start_mark.line + 1);
		yaml_document_delete(&second);
	}
	yaml_parser_delete(&parser);
	return result;
malformed:
	result = error_set(error, -EINVAL, "%s:%zu: not YAML: %s; see vhostlane.yaml(5)", source->path,
			   (parser.problem_mark.line ? parser.problem_mark.line : parser.context_mark.line) + 1,
			   parser.problem ? parser.problem : "unreadable");
	yaml_parser_delete(&parser);
	return result;
}

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

static unsigned add_keys(const char **keys, unsigned count, const cyaml_schema_field_t *fields)
{
	for (; fields->key; fields++)
		keys[count++] = fields->key;
	return count;
}

static int schema_error(struct source *source, struct complaint *complaint, cyaml_err_t code, struct error *error)
{
	const char *colon = strrchr(complaint->text, ':'), *word = colon ? colon + 2 : "";
	size_t line = complaint->line ? complaint->line : 1;
	const char *keys[32];
	char near[256] = "";
	unsigned count = 0;

	if (code == CYAML_ERR_INVALID_KEY) {
		count = add_keys(keys, count, config_fields);
		count = add_keys(keys, count, workers_fields);
		count = add_keys(keys, count, uplink_fields);
		count = add_keys(keys, count, port_fields);
		suggest_text(word, keys, count, near, sizeof(near));
		if (!strstr(near, "did you mean"))
			snprintf(near, sizeof(near), "; see vhostlane.yaml(5) for the keys there are");
		return error_set(error, -EINVAL, "%s:%zu: key '%.64s': unknown here%s", source->path, line_of_key(source, word, line), word, near);
	}
	if (strncmp(complaint->text, "Mapping field already seen", 26) == 0)
		return error_set(error, -EINVAL, "%s:%zu: key '%.64s': given twice; give it once", source->path, line_of_key(source, word, line + 1),
				 word);
	if (code == CYAML_ERR_ALIAS)
		return error_set(error, -EINVAL, "%s:%zu: a YAML alias; write the value out", source->path, line);
	if (!complaint->key[0])
		copy_string(complaint->key, sizeof(complaint->key), "configuration");
	return error_set(error, -EINVAL, "%s:%zu: in '%s': %s; see vhostlane.yaml(5)", source->path, line, complaint->key,
			 complaint->text[0] ? kind_text(complaint->text, near, sizeof(near)) : cyaml_strerror(code));
}

/* --- from text to struct config ------------------------------------------------------------------------------------ */

/* Puts FILE:LINE before what a setter said. */
static int at_line(struct source *source, const char *top, int index, const char *key, struct error *inner, struct error *error)
{
	size_t line = line_of(source, top, index, key);

	if (!line)
		line = line_of(source, top, index, NULL);
	return error_set(error, inner->code, "%s:%zu: %s", source->path, line ? line : 1, inner->text);
}

static int take_workers(struct config *config, struct source *source, const struct raw_workers *raw, struct error *error)
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

static int take_uplink(struct config *config, struct source *source, const struct raw_uplink *raw, int index, struct error *error)
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

static int take_port(struct config *config, struct source *source, const struct raw_port *raw, int index, struct error *error)
{
	struct config_port port;
	struct error inner = { 0 };

	config_port_init(&port);
	if (!raw->value[CONFIG_PORT_KEY_NAME]) {
		error_set(&inner, -EINVAL, "port %d: has no name; give it one", index + 1);
		return at_line(source, "ports", index, NULL, &inner, error);
	}
	for (unsigned i = 0; i < CONFIG_PORT_KEY_COUNT; i++)
		if (raw->value[i] && config_port_set(&port, config_port_key_names[i], raw->value[i], &inner) < 0)
			return at_line(source, "ports", index, config_port_key_names[i], &inner, error);
	if (config_add_port(config, &port, &inner) < 0)
		return at_line(source, "ports", index, NULL, &inner, error);
	return 0;
}

static int take(struct config *config, struct source *source, const struct raw_config *raw, struct error *error)
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
	struct source source = { .path = path };
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
	int result = read_file(&source, error);

	if (result == 0)
		result = parse_document(&source, error);
	/* Nothing but comments is a lawful file. */
	if (result == 0 && yaml_document_get_root_node(&source.document)) {
		code = cyaml_load_data((const uint8_t *)source.data, source.size, &cyaml, &config_schema, (cyaml_data_t **)&raw, NULL);
		result = code == CYAML_OK ? 0 : schema_error(&source, &complaint, code, error);
		if (result == 0 && raw)
			result = take(config, &source, raw, error);
		cyaml_free(&cyaml, &config_schema, raw, 0);
	}
	if (source.has_document)
		yaml_document_delete(&source.document);
	free(source.data);
	return result;
}
