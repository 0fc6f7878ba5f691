/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One error, as a user reads it: `WHAT: WHY; REMEDY`. Functions of the control side that can fail return 0 or a
 * negative errno value and fill *error when they fail. No state; any thread.
 */
#ifndef VHOSTLANE_COMMON_ERROR_H
#define VHOSTLANE_COMMON_ERROR_H

struct error {
	int code; /* negative errno value, 0 = none */
	char text[768];
};

/**
 * error_set() - say what went wrong, once
 * @error:  filled; may be NULL
 * @code:   negative errno value
 * @format: `WHAT: WHY; REMEDY`; names the knob, prints the value, ends with what to do
 *
 * With -EMFILE and -ENFILE the remedy is always the same, whatever was tried when descriptors ran out: it takes the place of @format's.
 * Return: @code, so that `return error_set(...)` reads well. A macro, so that the compiler sees that it is not 0.
 */
#define error_set(error, code, ...)                             \
	({                                                      \
		const int code_ = (code);                       \
		error_fill((error), code_, __VA_ARGS__);        \
		code_;                                          \
	})

/* For lines that are no errors: strerror(), with the remedy where descriptors ran out. @code: negative errno value. */
const char *error_why(int code);

void error_fill(struct error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
