/* SPDX-License-Identifier: BSD-2-Clause */
/* Findings, for check*.c only. */
#ifndef VHOSTLANE_CONTROL_CHECK_REPORT_H
#define VHOSTLANE_CONTROL_CHECK_REPORT_H

#include <stdio.h>

#include "common/error.h"
#include "control/config.h"

enum check_status { CHECK_OK, CHECK_WARN, CHECK_FAIL, CHECK_STATUS_COUNT };

struct check {
	const struct config *config;
	FILE *out;
	void *findings; /* json_t array; NULL: lines are printed as they come */
	unsigned count[CHECK_STATUS_COUNT];
	/* What only uplinks need: a failure with them, worth a word without. */
	enum check_status uplinks_need;
};

/* @remedy may be NULL for CHECK_OK. @found: printf format. */
void check_found(struct check *check, enum check_status status, const char *what, const char *remedy, const char *found, ...)
	__attribute__((format(printf, 5, 6)));

/* An error as it would be reported, `WHAT: WHY; REMEDY`. */
void check_error(struct check *check, enum check_status status, const struct error *error);

void check_kernel(struct check *check);	    /* check_kernel.c */
void check_limits(struct check *check);	    /* check_limits.c: capabilities, limits, huge pages */
void check_places(struct check *check);	    /* check_places.c: CPUs, uplinks, sockets */

#endif
