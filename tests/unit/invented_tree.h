/* SPDX-License-Identifier: BSD-2-Clause */
/* A tree of files that a test invents, in place of sysfs or procfs: below @root, which a test's setup makes and its teardown removes. */
#ifndef TESTS_UNIT_INVENTED_TREE_H
#define TESTS_UNIT_INVENTED_TREE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[PATH_MAX / 4];

static inline int make_root(void **state)
{
	snprintf(root, sizeof(root), "%s/vhostlane-tree-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	return mkdtemp(root) ? 0 : -1;
}

static inline int remove_root(void **state)
{
	char command[PATH_MAX];

	snprintf(command, sizeof(command), "rm -r '%s'", root);
	return system(command);
}

#define ON_A_TREE(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

/* The path of @name in the tree; the directories on the way are made. Good until the next call. */
static inline const char *in_root(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700);
		*slash = '/';
	}
	return path;
}

/* A file of one line. */
static inline void put_file(const char *name, const char *text)
{
	FILE *file = fopen(in_root(name), "w");

	assert_non_null(file);
	fprintf(file, "%s\n", text);
	fclose(file);
}

static inline void put_link(const char *name, const char *target)
{
	assert_return_code(symlink(target, in_root(name)), errno);
}

#endif
