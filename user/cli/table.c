// SPDX-License-Identifier: BSD-2-Clause
#include "cli/table.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/util.h"

#define COLUMNS_MAX 64
#define GAP 2

int value_matters(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_OBJECT:
		return json_object_size(value) > 0;
	case JSON_ARRAY:
		return json_array_size(value) > 0;
	case JSON_STRING:
		return json_string_length(value) > 0;
	case JSON_INTEGER:
		return json_integer_value(value) != 0;
	case JSON_REAL:
		return json_real_value(value) != 0;
	case JSON_TRUE:
	case JSON_FALSE:
		return 1;
	case JSON_NULL:
		return 0;
	}
	return 0;
}

/* An array that fits on one line: of scalars. */
static bool is_flat(const json_t *value)
{
	size_t index;
	json_t *entry;

	if (json_is_object(value))
		return false;
	json_array_foreach(value, index, entry)
		if (json_is_object(entry) || json_is_array(entry))
			return false;
	return true;
}

static void write_value(FILE *out, const json_t *value)
{
	const char *key, *separator = "";
	json_t *entry;
	size_t index;

	switch (json_typeof(value)) {
	case JSON_STRING:
		fputs(json_string_length(value) ? json_string_value(value) : "-", out);
		break;
	case JSON_INTEGER:
		fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		break;
	case JSON_REAL:
		fprintf(out, "%.1f", json_real_value(value));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		fputs(json_is_true(value) ? "yes" : "no", out);
		break;
	case JSON_NULL:
		fputs("-", out);
		break;
	case JSON_ARRAY:
		if (json_array_size(value) == 0)
			fputs("-", out);
		json_array_foreach(value, index, entry) {
			fputs(separator, out);
			write_value(out, entry);
			separator = ",";
		}
		break;
	case JSON_OBJECT:
		json_object_foreach((json_t *)value, key, entry) {
			if (!value_matters(entry))
				continue;
			fprintf(out, "%s%s %s", separator, key, json_is_object(entry) ? "(" : "");
			write_value(out, entry);
			if (json_is_object(entry))
				fputc(')', out);
			separator = ", ";
		}
		if (!separator[0])
			fputs("-", out);
		break;
	}
}

char *value_text(const json_t *value)
{
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		abort();
	write_value(out, value);
	if (fclose(out) != 0)
		abort();
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	return text;
}

/* --- which columns ------------------------------------------------------------------------------------------------- */

struct columns {
	const char *names[COLUMNS_MAX];
	unsigned count;
};

static bool known(const struct columns *columns, const char *name)
{
	for (unsigned i = 0; i < columns->count; i++)
		if (strcmp(columns->names[i], name) == 0)
			return true;
	return false;
}

static void add_column(struct columns *columns, const char *name)
{
	if (columns->count < COLUMNS_MAX && !known(columns, name))
		columns->names[columns->count++] = name;
}

/* "Nothing is known", in the ways in which a number, a name or a list says so. Zero is a value: a CPU's number, say. */
static bool says_nothing(const json_t *value)
{
	if (json_is_string(value))
		return json_string_length(value) == 0 || strcmp(json_string_value(value), "none") == 0;
	if (json_is_array(value))
		return json_array_size(value) == 0;
	return !value || json_is_null(value) || (json_is_integer(value) && json_integer_value(value) == -1);
}

static bool is_first(const char *const *first, const char *name)
{
	for (unsigned i = 0; first && first[i]; i++)
		if (strcmp(first[i], name) == 0)
			return true;
	return false;
}

static void choose_columns(struct columns *columns, const json_t *rows, const char *const *first)
{
	const char *key;
	json_t *row, *value;
	size_t index;

	for (unsigned i = 0; first && first[i]; i++)
		json_array_foreach(rows, index, row)
			if (!says_nothing(json_object_get(row, first[i])))
				add_column(columns, first[i]);
	json_array_foreach(rows, index, row)
		json_object_foreach(row, key, value)
			if (is_flat(value) && value_matters(value) && !says_nothing(value) && !is_first(first, key))
				add_column(columns, key);
}

/* --- tables -------------------------------------------------------------------------------------------------------- */

void table_print(FILE *out, const json_t *rows, const char *const *first, unsigned indent)
{
	struct columns columns = { .count = 0 };
	int widths[COLUMNS_MAX];
	bool numeric[COLUMNS_MAX];
	size_t index;
	json_t *row;

	choose_columns(&columns, rows, first);
	if (columns.count == 0)
		return;
	for (unsigned i = 0; i < columns.count; i++) {
		widths[i] = (int)strlen(columns.names[i]);
		numeric[i] = true;
		json_array_foreach(rows, index, row) {
			json_t *value = json_object_get(row, columns.names[i]);
			char *text = value ? value_text(value) : NULL;
			int width = text ? (int)strlen(text) : 1;

			if (width > widths[i])
				widths[i] = width;
			if (value && !json_is_number(value) && !json_is_null(value))
				numeric[i] = false;
			free(text);
		}
	}
	for (size_t line = 0; line <= json_array_size(rows); line++) {
		fprintf(out, "%*s", (int)indent, "");
		for (unsigned i = 0; i < columns.count; i++) {
			json_t *value = line ? json_object_get(json_array_get(rows, line - 1), columns.names[i]) : NULL;
			char *text = value ? value_text(value) : NULL;
			const char *cell = line == 0 ? columns.names[i] : text ? text : "-";
			bool last = i + 1 == columns.count;

			/* The last column's text needs no padding behind it. */
			fprintf(out, "%*s%s", numeric[i] ? widths[i] : last ? 0 : -widths[i], cell, last ? "\n" : "  ");
			free(text);
		}
	}
	_Static_assert(GAP == 2, "the two blanks between columns above");
}

/* --- objects ------------------------------------------------------------------------------------------------------- */

static void print_scalars(FILE *out, const json_t *object, const struct columns *order, unsigned indent)
{
	int width = 0;

	for (unsigned i = 0; i < order->count; i++)
		if ((int)strlen(order->names[i]) > width)
			width = (int)strlen(order->names[i]);
	for (unsigned i = 0; i < order->count; i++) {
		char *text = value_text(json_object_get(object, order->names[i]));

		fprintf(out, "%*s%-*s  %s\n", (int)indent, "", width, order->names[i], text);
		free(text);
	}
}

/* @all: also what is zero. */
static void print_object(FILE *out, const json_t *object, const char *const *first, const char *const *nested, unsigned indent, bool all)
{
	struct columns order = { .count = 0 };
	const char *key;
	json_t *value;

	for (unsigned i = 0; first && first[i]; i++)
		if (json_object_get(object, first[i]) && is_flat(json_object_get(object, first[i])))
			add_column(&order, first[i]);
	json_object_foreach((json_t *)object, key, value)
		if (is_flat(value) && (all || value_matters(value)))
			add_column(&order, key);
	print_scalars(out, object, &order, indent);
	json_object_foreach((json_t *)object, key, value) {
		if (is_flat(value) || !value_matters(value))
			continue;
		fprintf(out, "%*s%s:\n", (int)indent, "", key);
		if (json_is_array(value))
			table_print(out, value, nested, indent + GAP);
		else
			print_object(out, value, NULL, nested, indent + GAP, false);
	}
}

void object_print(FILE *out, const json_t *object, const char *const *columns, const char *const *nested)
{
	print_object(out, object, columns, nested, 0, true);
}
