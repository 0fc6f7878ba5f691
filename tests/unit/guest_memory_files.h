/* SPDX-License-Identifier: BSD-2-Clause */
/* For tests of guest memory: files that stand for a guest's, and how many of them are mapped here. */
#ifndef TESTS_UNIT_GUEST_MEMORY_FILES_H
#define TESTS_UNIT_GUEST_MEMORY_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "datapath/guest_memory.h"

#define PAGE 4096ull
#define FILE_NAME "guest-memory-test"

static inline int file_of(uint64_t size)
{
	int fd = memfd_create(FILE_NAME, 0);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static inline unsigned mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned count = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, FILE_NAME) != NULL;
	fclose(maps);
	return count;
}

#endif
