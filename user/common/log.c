// SPDX-License-Identifier: BSD-2-Clause
#include "common/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/util.h"

/* The threshold and the kind of stderr are facts of the process, not of any object: the two documented globals here. */
static _Atomic int threshold = LOG_LEVEL_INFO;
static bool to_journal;
static pthread_once_t journal_once = PTHREAD_ONCE_INIT;

static const struct {
	const char *journal; /* sd-daemon(3) */
	const char *text;
} prefixes[] = {
	[LOG_LEVEL_ERROR] = { "<3>", "vhostlane: " },
	[LOG_LEVEL_WARNING] = { "<4>", "vhostlane: warning: " },
	[LOG_LEVEL_INFO] = { "<6>", "vhostlane: " },
	[LOG_LEVEL_DEBUG] = { "<7>", "vhostlane: debug: " },
};

/* systemd.exec(5): $JOURNAL_STREAM names device and inode of the journal's socket; stderr may have been redirected since. */
static void detect_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat s;

	if (!stream || sscanf(stream, "%llu:%llu", &device, &inode) != 2 || fstat(STDERR_FILENO, &s) != 0)
		return;
	to_journal = s.st_dev == device && s.st_ino == inode;
}

void log_set_level(enum log_level level)
{
	threshold = level;
}

void log_line(enum log_level level, const char *format, ...)
{
	char line[1280];
	va_list arguments;
	const char *prefix;
	size_t start, length;
	int n;

	if ((int)level > threshold)
		return;
	pthread_once(&journal_once, detect_journal);
	prefix = to_journal ? prefixes[level].journal : prefixes[level].text;
	start = strlen(prefix);
	memcpy(line, prefix, start);

	va_start(arguments, format);
	n = vsnprintf(line + start, sizeof(line) - start - 1, format, arguments);
	va_end(arguments);
	if (n < 0)
		return;
	length = start + min_u32((uint32_t)n, (uint32_t)(sizeof(line) - start - 2));
	/* One event is one line, whatever a peer managed to get quoted in it. */
	for (size_t i = start; i < length; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = line[i] == '\n' ? ' ' : '?';
	while (length > start && line[length - 1] == ' ')
		length--;
	line[length++] = '\n';

	/* One write() a line keeps lines of several threads whole. Nowhere to report a failure to. */
	if (write(STDERR_FILENO, line, length) < 0)
		return;
}

bool log_limit_pass(struct log_limit *limit)
{
	uint64_t now = now_ns(), start = limit->window_start_ns;

	if (start == 0 || now - start >= LOG_LIMIT_NS) {
		/* Only the thread that opens the new window reports what the old one held back. */
		if (atomic_compare_exchange_strong(&limit->window_start_ns, &start, now)) {
			uint32_t held = atomic_exchange(&limit->held_back, 0);

			limit->passed = 0;
			if (held)
				log_line(LOG_LEVEL_INFO, "%u more lines like the next one were held back", held);
		}
	}
	if (limit->passed < LOG_LIMIT_BURST) {
		limit->passed++;
		return true;
	}
	limit->held_back++;
	return false;
}
