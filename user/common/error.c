// SPDX-License-Identifier: BSD-2-Clause
#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>

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
	error->code = code;
	for (size_t i = 0; i < sizeof(text); i++) {
		error->text[i] = text[i];
		if (!text[i])
			break;
	}
}
