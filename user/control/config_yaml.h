/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The configuration file as libyaml's document tree, for config_file.c only: on which line something stands, and values that are
 * lists or mappings as the text that a port's keys take everywhere else. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_CONFIG_YAML_H
#define VHOSTLANE_CONTROL_CONFIG_YAML_H

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include "common/error.h"

struct config_yaml {
	const char *path;
	char *data;
	size_t size;
	yaml_document_t document;
	bool has_document;
};

/* Reads @yaml->path; judges syntax, and that there is one document at most. config_yaml_free() it in any case. */
int config_yaml_read(struct config_yaml *yaml, struct error *error);
void config_yaml_free(struct config_yaml *yaml);

/* Nothing but comments? */
bool config_yaml_is_empty(struct config_yaml *yaml);

/* Line of top.key, or of top[index].key; 0 if it is not there. @key NULL: of the entry itself. */
size_t config_yaml_line(struct config_yaml *yaml, const char *top, int index, const char *key);

/* Line of the first key called @key at or below @line; @line if there is none. *place: "" = the key is at top level, else the top key
 * under which it stands (as its entry, or as one of its entries'); NULL if deeper. */
size_t config_yaml_find_key(struct config_yaml *yaml, const char *key, size_t line, const char **place);

/**
 * config_yaml_port_text() - value of a key of ports[index] as text
 * A scalar as it is. `vlan: {trunk: [10, 20-29], native: 5}` becomes "trunk:10+20-29/native:5", `offloads: [csum, tso4]` "csum+tso4".
 * Return: 0 with *text (free() it; NULL: the key is not there); -EINVAL with *error, FILE:LINE in front.
 */
int config_yaml_port_text(struct config_yaml *yaml, int index, const char *key, char **text, struct error *error);

#endif
