/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Log lines to stderr, or to the journal when stderr is connected to it (sd-journal priority prefixes `<3>` then).
 * Any thread may log; workers only by log_limited(), which lets LOG_LIMIT_BURST lines per LOG_LIMIT_NS through per call
 * site and then says how many it held back.
 */
#ifndef VHOSTLANE_COMMON_LOG_H
#define VHOSTLANE_COMMON_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

#define LOG_LIMIT_BURST 5
#define LOG_LIMIT_NS 10000000000ull

/* Process-wide, set once before threads start. */
void log_set_level(enum log_level level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct log_limit {
	_Atomic uint64_t window_start_ns;
	_Atomic uint32_t passed;
	_Atomic uint32_t held_back;
};

/* True if the call site may log now. */
bool log_limit_pass(struct log_limit *limit);

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)
/* One limit for each object that may be the cause (a port, say), so that a noisy one does not silence the others. */
#define log_limited_by(limit, level, ...)                  \
	do {                                               \
		if (log_limit_pass(limit))                 \
			log_line((level), __VA_ARGS__);    \
	} while (0)
#define log_limited(level, ...)                            \
	do {                                               \
		static struct log_limit limit_;            \
		if (log_limit_pass(&limit_))               \
			log_line((level), __VA_ARGS__);    \
	} while (0)

#endif
