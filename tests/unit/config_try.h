/* SPDX-License-Identifier: BSD-2-Clause */
/* For tests of the configuration: a port from its option form, and what errors must look like. */
#ifndef VHOSTLANE_TESTS_UNIT_CONFIG_TRY_H
#define VHOSTLANE_TESTS_UNIT_CONFIG_TRY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "common/error.h"
#include "control/config.h"

/* WHAT: WHY; REMEDY */
static inline void assert_well_formed(const struct error *error)
{
	const char *why = strstr(error->text, ": ");

	assert_true(error->code < 0);
	if (!why || !(strstr(why, "; ") && strlen(strstr(why, "; ")) > 4))
		fail_msg("not WHAT: WHY; REMEDY: %s", error->text);
}

static inline void assert_says(const struct error *error, const char *part)
{
	assert_well_formed(error);
	if (!strstr(error->text, part))
		fail_msg("'%s' is not in: %s", part, error->text);
}

static inline int add(struct config *c, const char *text, struct error *e)
{
	struct config_port p;
	int result = config_parse_port(text, &p, e);

	return result < 0 ? result : config_add_port(c, &p, e);
}

#endif
