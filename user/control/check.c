// SPDX-License-Identifier: BSD-2-Clause
#include "control/check.h"

#include <jansson.h>
#include <stdarg.h>
#include <string.h>

#include "common/util.h"
#include "control/check_report.h"

#define TEXT_MAX 768

static const char *const status_names[] = { [CHECK_OK] = "ok", [CHECK_WARN] = "warn", [CHECK_FAIL] = "fail" };
_Static_assert(ARRAY_SIZE(status_names) == CHECK_STATUS_COUNT, "a name each");

static void add(struct check *check, enum check_status status, const char *what, const char *found, const char *remedy)
{
	check->count[status]++;
	if (check->findings) {
		json_array_append_new(check->findings, json_pack("{s:s, s:s, s:s, s:s*}", "status", status_names[status], "what", what, "found",
								 found, "remedy", remedy));
		return;
	}
	fprintf(check->out, "%-4s %s: %s%s%s\n", status_names[status], what, found, remedy ? "; " : "", remedy ? remedy : "");
}

void check_found(struct check *check, enum check_status status, const char *what, const char *remedy, const char *found, ...)
{
	char text[TEXT_MAX];
	va_list arguments;

	va_start(arguments, found);
	vsnprintf(text, sizeof(text), found, arguments);
	va_end(arguments);
	add(check, status, what, text, remedy);
}

void check_error(struct check *check, enum check_status status, const struct error *error)
{
	char text[sizeof(error->text)], *found, *remedy = NULL, *next;

	copy_string(text, sizeof(text), error->text);
	found = strstr(text, ": ");
	if (!found) {
		add(check, status, "configuration", text, NULL);
		return;
	}
	*found = '\0';
	found += 2;
	for (next = found; (next = strstr(next, "; ")); next += 2)
		remedy = next;
	if (remedy) {
		*remedy = '\0';
		remedy += 2;
	}
	add(check, status, text, found, remedy);
}

int check_run(const struct config *config, FILE *out, bool json)
{
	struct check check = { .config = config, .out = out, .uplinks_need = config->uplink_count ? CHECK_FAIL : CHECK_WARN };
	json_t *report;

	if (json)
		check.findings = json_array();
	check_kernel(&check);
	check_limits(&check);
	check_places(&check);
	if (json) {
		report = json_pack("{s:b, s:i, s:i, s:i, s:o}", "passed", check.count[CHECK_FAIL] == 0, "ok", (int)check.count[CHECK_OK], "warn",
				   (int)check.count[CHECK_WARN], "fail", (int)check.count[CHECK_FAIL], "findings", check.findings);
		json_dumpf(report, out, JSON_INDENT(2));
		fputc('\n', out);
		json_decref(report);
	}
	return check.count[CHECK_FAIL] ? 1 : 0;
}
