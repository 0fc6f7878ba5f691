/* SPDX-License-Identifier: BSD-2-Clause */
/* JSON as text for people: aligned tables and key/value lines. Tolerates keys that it does not know. */
#ifndef VHOSTLANE_CLI_TABLE_H
#define VHOSTLANE_CLI_TABLE_H

#include <jansson.h>
#include <stdio.h>

/**
 * table_print() - an array of objects, one row each
 * @columns: keys that come first, in this order, ends with NULL; left out where all rows say nothing: null, "", [], -1 or "none".
 *           Other keys follow as they come, if any row has a value other than these, and other than zero. Nested objects and arrays
 *           of objects are left out.
 */
void table_print(FILE *out, const json_t *rows, const char *const *columns, unsigned indent);

/* An object: scalars first, aligned, in the order of @columns (may be NULL) and then as they come; below them tables, whose columns
 * start with @nested (may be NULL), and nested objects without what is zero. */
void object_print(FILE *out, const json_t *object, const char *const *columns, const char *const *nested);

/* One value on one line: "-" for null, yes/no, arrays joined by commas, objects as "key value, key value" without zeros.
 * Control characters become '?'. Return: malloc()ed. */
char *value_text(const json_t *value);

/* Is it worth a line: not null, 0, "", [] or {}? */
int value_matters(const json_t *value);

#endif
