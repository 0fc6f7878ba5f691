/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts what a directory of /proc holds. Behind cmocka.h. */
#ifndef VHOSTLANE_TESTS_ENTRIES_H
#define VHOSTLANE_TESTS_ENTRIES_H

#include <dirent.h>

/* With . and .., which are the same each time. */
static inline unsigned entries_of(const char *path)
{
	DIR *directory = opendir(path);
	unsigned count = 0;

	assert_non_null(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static inline unsigned open_descriptors(void)
{
	return entries_of("/proc/self/fd");
}

#endif
