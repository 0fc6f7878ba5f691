// SPDX-License-Identifier: BSD-2-Clause
/* The reaper: everything once and in order, nobody waits, and an owner may leave while its thread is stuck. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/reaper.h"

#define wait_until(condition)                                        \
	do {                                                         \
		for (int i_ = 0; i_ < 60000 && !(condition); i_++)   \
			usleep(1000);                                \
		assert_true(condition);                              \
	} while (0)

/* Of reapers: sanitizers have threads of their own. */
static unsigned threads(void)
{
	DIR *d = opendir("/proc/self/task");
	unsigned n = 0;

	for (struct dirent *entry; (entry = readdir(d));) {
		char path[300], name[32] = "";
		int fd;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		fd = open(path, O_RDONLY);
		n += fd >= 0 && read(fd, name, sizeof(name) - 1) > 0 && !strcmp(name, "vhostlane-reap\n");
		if (fd >= 0)
			close(fd);
	}
	closedir(d);
	return n;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void stand(void *argument)
{
	sem_wait(argument);
}

struct note {
	atomic_uint *sequence;
	atomic_uint at;
	pthread_t by;
};

static void note_down(void *argument)
{
	struct note *note = argument;

	note->by = pthread_self();
	atomic_store(&note->at, atomic_fetch_add(note->sequence, 1) + 1);
}

static void without_reaper(void **state)
{
	atomic_uint sequence = 0;
	struct note note = { .sequence = &sequence };
	int fd = eventfd(0, 0);

	reaper_close(NULL, fd);
	assert_false(is_open(fd));
	reaper_do(NULL, note_down, &note);
	assert_int_equal(note.at, 1);
	assert_int_equal(reaper_backlog(NULL), 0);
	assert_int_equal(reaper_stuck_ns(NULL), 0);
	reaper_free(NULL);
}

static void in_order_behind_what_is_stuck(void **state)
{
	struct reaper *reaper = reaper_create(), *other = reaper_create();
	static struct note notes[1000];
	atomic_uint sequence = 0;
	int fd = eventfd(0, 0), other_fd = eventfd(0, 0);
	uint64_t stuck;
	sem_t gate;

	sem_init(&gate, 0, 0);
	reaper_do(reaper, stand, &gate);
	for (unsigned i = 0; i < 1000; i++) {
		notes[i] = (struct note){ .sequence = &sequence };
		reaper_do(reaper, note_down, &notes[i]);
	}
	reaper_close(reaper, fd);
	reaper_close(reaper, -1);
	wait_until(reaper_stuck_ns(reaper));
	stuck = reaper_stuck_ns(reaper);
	wait_until(reaper_stuck_ns(reaper) > stuck);
	assert_int_equal(reaper_backlog(reaper), 1002);
	assert_int_equal(sequence, 0);
	assert_true(is_open(fd));

	/* Another owner's work does not stand behind it. */
	reaper_close(other, other_fd);
	wait_until(!is_open(other_fd));
	assert_true(is_open(fd));

	sem_post(&gate);
	wait_until(!reaper_backlog(reaper));
	assert_false(is_open(fd));
	for (unsigned i = 0; i < 1000; i++) {
		assert_int_equal(notes[i].at, i + 1);
		assert_false(pthread_equal(notes[i].by, pthread_self()));
	}
	assert_int_equal(reaper_stuck_ns(reaper), 0);
	reaper_free(reaper);
	reaper_free(other);
	/* Threads go when there is nothing to do. */
	wait_until(threads() == 0);
}

/* No thread stays of one that is idle, and a new one comes with work. */
static void thread_comes_and_goes(void **state)
{
	struct reaper *reaper = reaper_create();

	assert_int_equal(threads(), 0);
	for (unsigned i = 0; i < 2; i++) {
		int fd = eventfd(0, 0);

		reaper_close(reaper, fd);
		wait_until(!is_open(fd) && !reaper_backlog(reaper));
		assert_in_range(threads(), 0, 1);
		wait_until(threads() == 0);
	}
	reaper_free(reaper);
}

static void owner_leaves_first(void **state)
{
	struct reaper *reaper = reaper_create();
	int fd = eventfd(0, 0);
	sem_t gate;

	sem_init(&gate, 0, 0);
	reaper_do(reaper, stand, &gate);
	reaper_close(reaper, fd);
	reaper_free(reaper);
	assert_true(is_open(fd));
	sem_post(&gate);
	wait_until(!is_open(fd));
	wait_until(threads() == 0);
}

static void eventfds_are_told(void **state)
{
	int event = eventfd(0, 0), memory = memfd_create("anon_inode:[eventfd]", 0), pipes[2];

	assert_int_equal(pipe(pipes), 0);
	assert_true(fd_is_eventfd(event));
	assert_false(fd_is_eventfd(memory));
	assert_false(fd_is_eventfd(pipes[0]));
	assert_false(fd_is_eventfd(-1));
	close(pipes[0]);
	close(pipes[1]);
	close(memory);
	close(event);
	assert_false(fd_is_eventfd(event));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_reaper),
		cmocka_unit_test(in_order_behind_what_is_stuck),
		cmocka_unit_test(thread_comes_and_goes),
		cmocka_unit_test(owner_leaves_first),
		cmocka_unit_test(eventfds_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
