// SPDX-License-Identifier: BSD-2-Clause
#include "control/config_yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/suggest.h"
#include "common/util.h"
#include "control/config.h"

#define FILE_MAX (1024 * 1024)

/* --- reading ------------------------------------------------------------------------------------------------------ */

static int read_file(struct config_yaml *yaml, struct error *error)
{
	int fd = open(yaml->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat s;
	ssize_t n = 0;

	if (fd < 0)
		return error_set(error, -errno, "configuration file %s: %s; name a readable file with -c", yaml->path, strerror(errno));
	if (fstat(fd, &s) != 0 || !(S_ISREG(s.st_mode) || S_ISFIFO(s.st_mode) || S_ISCHR(s.st_mode))) {
		close(fd);
		return error_set(error, -EINVAL, "configuration file %s: not a file; name a YAML file with -c", yaml->path);
	}
	/* `-c <(...)` and /dev/stdin may come slowly. */
	fcntl(fd, F_SETFL, 0);
	yaml->data = malloc(FILE_MAX + 1);
	while (yaml->data && yaml->size <= FILE_MAX) {
		n = read(fd, yaml->data + yaml->size, FILE_MAX + 1 - yaml->size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		yaml->size += (size_t)n;
	}
	if (n < 0)
		error_set(error, -errno, "configuration file %s: %s; name a readable file with -c", yaml->path, strerror(errno));
	close(fd);
	if (!yaml->data)
		return error_set(error, -ENOMEM, "configuration file %s: out of memory; free some memory", yaml->path);
	if (n < 0)
		return error ? error->code : -EIO;
	if (yaml->size > FILE_MAX)
		return error_set(error, -E2BIG, "configuration file %s: longer than %d bytes; shorten it", yaml->path, FILE_MAX);
	return 0;
}

/* Does line @line (from 0) start with white space in which there is a tab? */
static bool starts_with_tab(const struct config_yaml *yaml, size_t line)
{
	const char *p = yaml->data, *end = p + yaml->size;

	for (; line && p; line--) {
		p = memchr(p, '\n', (size_t)(end - p));
		p = p ? p + 1 : NULL;
	}
	for (; p && p < end && (*p == ' ' || *p == '\t'); p++)
		if (*p == '\t')
			return true;
	return false;
}

static int malformed(const struct config_yaml *yaml, const yaml_parser_t *parser, struct error *error)
{
	size_t line = parser->problem_mark.line ? parser->problem_mark.line : parser->context_mark.line;

	if (starts_with_tab(yaml, line))
		return error_set(error, -EINVAL, "%s:%zu: not YAML: the line is indented by a tab; indent it by blanks", yaml->path, line + 1);
	return error_set(error, -EINVAL, "%s:%zu: not YAML: %s; see vhostlane.yaml(5)", yaml->path, line + 1,
			 parser->problem ? parser->problem : "unreadable");
}

static int parse_document(struct config_yaml *yaml, struct error *error)
{
	yaml_parser_t parser;
	yaml_document_t second;
	int result = 0;

	if (!yaml_parser_initialize(&parser))
		return error_set(error, -ENOMEM, "configuration file %s: out of memory; free some memory", yaml->path);
	yaml_parser_set_input_string(&parser, (const unsigned char *)yaml->data, yaml->size);
	if (!yaml_parser_load(&parser, &yaml->document)) {
		result = malformed(yaml, &parser, error);
		yaml_parser_delete(&parser);
		return result;
	}
	yaml->has_document = true;
	if (yaml_document_get_root_node(&yaml->document)) {
		if (!yaml_parser_load(&parser, &second)) {
			result = malformed(yaml, &parser, error);
		} else {
			if (yaml_document_get_root_node(&second))
				result = error_set(error, -EINVAL, "%s:%zu: a second document; keep one, without '---' between", yaml->path,
						   second.start_mark.line + 1);
			yaml_document_delete(&second);
		}
	}
	yaml_parser_delete(&parser);
	return result;
}

int config_yaml_read(struct config_yaml *yaml, struct error *error)
{
	int result = read_file(yaml, error);

	return result < 0 ? result : parse_document(yaml, error);
}

void config_yaml_free(struct config_yaml *yaml)
{
	if (yaml->has_document)
		yaml_document_delete(&yaml->document);
	free(yaml->data);
}

bool config_yaml_is_empty(struct config_yaml *yaml)
{
	return !yaml_document_get_root_node(&yaml->document);
}

/* --- where something stands --------------------------------------------------------------------------------------- */

static const char *scalar(const yaml_node_t *node)
{
	return node && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static size_t node_line(const yaml_node_t *node)
{
	return node->start_mark.line + 1;
}

static yaml_node_t *value_of(struct config_yaml *yaml, yaml_node_t *mapping, const char *key)
{
	if (!mapping || mapping->type != YAML_MAPPING_NODE)
		return NULL;
	for (yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top; p++)
		if (strcmp(scalar(yaml_document_get_node(&yaml->document, p->key)), key) == 0)
			return yaml_document_get_node(&yaml->document, p->value);
	return NULL;
}

/* top, or top[index]. */
static yaml_node_t *entry_of(struct config_yaml *yaml, const char *top, int index)
{
	yaml_node_t *node = value_of(yaml, yaml_document_get_root_node(&yaml->document), top);

	if (!node || index < 0)
		return node;
	if (node->type != YAML_SEQUENCE_NODE || node->data.sequence.items.start + index >= node->data.sequence.items.top)
		return NULL;
	return yaml_document_get_node(&yaml->document, node->data.sequence.items.start[index]);
}

size_t config_yaml_line(struct config_yaml *yaml, const char *top, int index, const char *key)
{
	yaml_node_t *node = entry_of(yaml, top, index);

	if (node && key)
		node = value_of(yaml, node, key);
	return node ? node_line(node) : 0;
}

static bool is_item_of(struct config_yaml *yaml, const yaml_node_t *sequence, const yaml_node_t *item)
{
	if (sequence->type != YAML_SEQUENCE_NODE)
		return false;
	for (yaml_node_item_t *i = sequence->data.sequence.items.start; i < sequence->data.sequence.items.top; i++)
		if (yaml_document_get_node(&yaml->document, *i) == item)
			return true;
	return false;
}

static const char *place_of(struct config_yaml *yaml, const yaml_node_t *mapping)
{
	yaml_node_t *root = yaml_document_get_root_node(&yaml->document);

	if (mapping == root)
		return "";
	if (root->type != YAML_MAPPING_NODE)
		return NULL;
	for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
		yaml_node_t *value = yaml_document_get_node(&yaml->document, p->value);

		if (value && (value == mapping || is_item_of(yaml, value, mapping)))
			return scalar(yaml_document_get_node(&yaml->document, p->key));
	}
	return NULL;
}

size_t config_yaml_find_key(struct config_yaml *yaml, const char *key, size_t line, const char **place)
{
	const yaml_node_t *in = NULL;
	size_t found = 0;

	for (yaml_node_t *n = yaml->document.nodes.start; n < yaml->document.nodes.top; n++) {
		if (n->type != YAML_MAPPING_NODE)
			continue;
		for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
			yaml_node_t *k = yaml_document_get_node(&yaml->document, p->key);

			if (k && strcmp(scalar(k), key) == 0 && node_line(k) >= line && (!found || node_line(k) < found)) {
				found = node_line(k);
				in = n;
			}
		}
	}
	*place = in ? place_of(yaml, in) : NULL;
	return found ? found : line;
}

/* --- lists and mappings as text ------------------------------------------------------------------------------------ */

static int wrong(const struct config_yaml *yaml, const yaml_node_t *node, struct error *error, const char *why, const char *remedy)
{
	return error_set(error, -EINVAL, "%s:%zu: %s; %s", yaml->path, node_line(node), why, remedy);
}

#define VLAN_FORMS "write 7, or {trunk: [10, 20-29], native: 5}"
#define OFFLOADS_FORMS "write all, none, or a list like [csum, tso4]"

/* Items joined by '+', each of which must be a value for @key when @prefix stands before it. A lone scalar is a list of one. */
static int join(struct config_yaml *yaml, const yaml_node_t *node, const char *key, const char *prefix, const char *forms, FILE *out,
		struct error *error)
{
	const yaml_node_item_t one = 0, *item = &one, *end = item + 1;
	const char *separator = "";

	if (node->type == YAML_SEQUENCE_NODE) {
		item = node->data.sequence.items.start;
		end = node->data.sequence.items.top;
	}
	for (; item < end; item++) {
		const yaml_node_t *value = item == &one ? node : yaml_document_get_node(&yaml->document, *item);
		char text[64], why[160];
		struct config_port probe;

		config_port_init(&probe);
		snprintf(text, sizeof(text), "%s%.40s", prefix, scalar(value));
		snprintf(why, sizeof(why), "in '%s': '%.40s' cannot stand there", key, scalar(value));
		if (value->type != YAML_SCALAR_NODE || strpbrk(scalar(value), "+/:") || config_port_set(&probe, key, text, NULL) < 0)
			return wrong(yaml, value, error, why, forms);
		fprintf(out, "%s%s", separator, scalar(value));
		separator = "+";
	}
	return 0;
}

static int write_vlan(struct config_yaml *yaml, const yaml_node_t *node, FILE *out, struct error *error)
{
	static const char *const keys[] = { "trunk", "native" };
	const yaml_node_t *values[ARRAY_SIZE(keys)] = { NULL };
	int result;

	if (node->type != YAML_MAPPING_NODE)
		return wrong(yaml, node, error, "in 'vlan': needs one value or a mapping, got a list", VLAN_FORMS);
	for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
		const yaml_node_t *key = yaml_document_get_node(&yaml->document, p->key);
		char near[96];
		unsigned which = 0;

		while (which < ARRAY_SIZE(keys) && strcmp(scalar(key), keys[which]) != 0)
			which++;
		if (which == ARRAY_SIZE(keys))
			return error_set(error, -EINVAL, "%s:%zu: in 'vlan': key '%.64s': unknown here%s", yaml->path, node_line(key), scalar(key),
					 suggest_text(scalar(key), keys, ARRAY_SIZE(keys), near, sizeof(near)));
		if (values[which])
			return wrong(yaml, key, error, "in 'vlan': a key given twice", "give it once");
		values[which] = yaml_document_get_node(&yaml->document, p->value);
	}
	if (!values[0])
		return wrong(yaml, node, error, "in 'vlan': has no trunk", VLAN_FORMS);
	if (values[0]->type == YAML_SEQUENCE_NODE && values[0]->data.sequence.items.start == values[0]->data.sequence.items.top)
		return wrong(yaml, values[0], error, "in 'vlan': the trunk names no VLAN", VLAN_FORMS);
	fputs("trunk:", out);
	result = join(yaml, values[0], "vlan", "trunk:", VLAN_FORMS, out, error);
	if (result < 0 || !values[1])
		return result;
	if (values[1]->type != YAML_SCALAR_NODE)
		return wrong(yaml, values[1], error, "in 'vlan': native is one VLAN", VLAN_FORMS);
	fputs("/native:", out);
	return join(yaml, values[1], "vlan", "trunk:1/native:", VLAN_FORMS, out, error);
}

static int write_offloads(struct config_yaml *yaml, const yaml_node_t *node, FILE *out, struct error *error)
{
	if (node->type != YAML_SEQUENCE_NODE)
		return wrong(yaml, node, error, "in 'offloads': needs one value or a list, got key: value lines", OFFLOADS_FORMS);
	if (node->data.sequence.items.start == node->data.sequence.items.top)
		fputs("none", out);
	return join(yaml, node, "offloads", "", OFFLOADS_FORMS, out, error);
}

/* The second key of that name, or NULL: libcyaml does not look at keys whose values it lets pass. */
static const yaml_node_t *second_key(struct config_yaml *yaml, const yaml_node_t *mapping, const char *key)
{
	unsigned seen = 0;

	for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top; p++) {
		const yaml_node_t *node = yaml_document_get_node(&yaml->document, p->key);

		if (strcmp(scalar(node), key) == 0 && seen++)
			return node;
	}
	return NULL;
}

int config_yaml_port_text(struct config_yaml *yaml, int index, const char *key, char **text, struct error *error)
{
	yaml_node_t *entry = entry_of(yaml, "ports", index);
	const yaml_node_t *node = value_of(yaml, entry, key), *second;
	size_t size;
	FILE *out;
	int result = 0;

	*text = NULL;
	if (!node)
		return 0;
	second = second_key(yaml, entry, key);
	if (second)
		return error_set(error, -EINVAL, "%s:%zu: key '%s': given twice; give it once", yaml->path, node_line(second), key);
	out = open_memstream(text, &size);
	if (!out)
		return error_set(error, -ENOMEM, "configuration file %s: out of memory; free some memory", yaml->path);
	if (node->type == YAML_SCALAR_NODE)
		fputs(scalar(node), out);
	else
		result = strcmp(key, "vlan") == 0 ? write_vlan(yaml, node, out, error) : write_offloads(yaml, node, out, error);
	if (fclose(out) != 0)
		result = error_set(error, -ENOMEM, "configuration file %s: out of memory; free some memory", yaml->path);
	if (result < 0) {
		free(*text);
		*text = NULL;
	}
	return result;
}
