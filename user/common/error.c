// SPDX-License-Identifier: BSD-2-Clause
#include "common/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define REMEDY_PROCESS "raise the limit of open files (ulimit -n, LimitNOFILE=)"
#define REMEDY_SYSTEM "raise the system's limit of open files (sysctl fs.file-max)"

/* "WHAT: Too many open files; REMEDY" whatever the text said could be done: only the limit helps. */
static void name_the_limit(int code, char *text, size_t size)
{
	const char *why = strerror(-code), *remedy = code == -EMFILE ? REMEDY_PROCESS : REMEDY_SYSTEM;
	char *end = strstr(text, why);

	if (end) {
		end += strlen(why);
	} else {
		end = strstr(text, "; ");
		if (!end)
			end = text + strlen(text);
	}
	snprintf(end, size - (size_t)(end - text), "; %s", remedy);
}

const char *error_why(int code)
{
	if (code == -EMFILE)
		return "too many open files: " REMEDY_PROCESS;
	if (code == -ENFILE)
		return "too many open files in the system: " REMEDY_SYSTEM;
	return strerror(-code);
}

void error_fill(struct error *error, int code, const char *format, ...)
{
	/* The new text may quote the old one ("%s" of error->text), so it is built aside. */
	char text[sizeof(error->text)];
	va_list arguments;

	if (!error)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (code == -EMFILE || code == -ENFILE)
		name_the_limit(code, text, sizeof(text));
	error->code = code;
	for (size_t i = 0; i < sizeof(text); i++) {
		error->text[i] = text[i];
		if (!text[i])
			break;
	}
}
