// SPDX-License-Identifier: BSD-2-Clause
/* Another process maps a memory file in each way that there is; what is found out about it, and who frees what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/peer_maps.h"

#define SIZE (1 << 16)
#define MANY_MAPPINGS 30000

/* A process that has the file mapped with these flags, 0 = none; after @others mappings of no interest. */
static pid_t process(int fd, const int flags[2], unsigned others)
{
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* Alternating protections keep the kernel from merging them. */
		for (unsigned i = 0; i < others; i++)
			if (mmap(NULL, 4096, i & 1 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
				_exit(1);
		for (unsigned i = 0; i < 2; i++)
			if (flags[i] && mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags[i], fd, 0) == MAP_FAILED)
				_exit(1);
		if (write(ready[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static bool ask(pid_t pid, int fd)
{
	struct reaper *reaper = reaper_create();
	struct peer_maps *maps = peer_maps_open(pid, reaper);
	struct peer_maps_answer answer;
	struct pollfd p = { .fd = peer_maps_fd(maps), .events = POLLIN };
	struct stat file;

	assert_int_equal(fstat(fd, &file), 0);
	assert_false(peer_maps_take(maps, &answer));
	peer_maps_ask(maps, file.st_dev, file.st_ino);
	assert_int_equal(poll(&p, 1, 60000), 1);
	assert_true(peer_maps_take(maps, &answer));
	assert_int_equal(answer.inode, file.st_ino);
	assert_int_equal(answer.device, file.st_dev);
	assert_false(peer_maps_take(maps, &(struct peer_maps_answer){ 0 }));
	assert_int_equal(poll(&p, 1, 0), 0);
	peer_maps_close(maps);
	reaper_free(reaper);
	return answer.unshared;
}

static void each_way_of_mapping(void **state)
{
	static const struct {
		int flags[2];
		unsigned others;
		bool unshared;
	} cases[] = {
		{ { MAP_PRIVATE, 0 }, 0, true },
		{ { MAP_PRIVATE, MAP_PRIVATE }, 0, true },
		{ { MAP_SHARED, 0 }, 0, false },
		{ { MAP_SHARED, MAP_PRIVATE }, 0, false },
		{ { MAP_PRIVATE, MAP_SHARED }, 0, false },
		{ { 0, 0 }, 0, false },
		/* Lines cut between two reads; and more of them than are read. */
		{ { MAP_PRIVATE, 0 }, 1000, true },
		{ { MAP_PRIVATE, MAP_SHARED }, 1000, false },
		{ { MAP_PRIVATE, 0 }, MANY_MAPPINGS, false },
	};
	int fd = memfd_create("guest", MFD_CLOEXEC), other = memfd_create("guest", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, SIZE), 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		pid_t pid = process(fd, cases[i].flags, cases[i].others);

		if (ask(pid, fd) != cases[i].unshared)
			fail_msg("case %zu", i);
		assert_false(ask(pid, other));
		end(pid);
	}
	close(fd);
	close(other);
}

static void process_out_of_sight(void **state)
{
	const int flags[2] = { MAP_PRIVATE, 0 };
	int fd = memfd_create("guest", MFD_CLOEXEC);
	pid_t pid;

	assert_int_equal(ftruncate(fd, SIZE), 0);
	pid = process(fd, flags, 0);
	end(pid);
	assert_false(ask(pid, fd));
	assert_false(ask(0x7fffffff, fd));
	close(fd);
}

/* Until something can be read; the descriptor is this thread's then. */
static void stand_still(void *argument)
{
	const int fd = *(int *)argument;
	char byte;

	if (read(fd, &byte, 1) < 0)
		abort();
	close(fd);
}

/* The asker goes while its questions wait behind something that takes its time. */
static void asker_gone(void **state)
{
	struct reaper *reaper = reaper_create();
	struct peer_maps *maps;
	int fd, pipes[2];

	maps = peer_maps_open(getpid(), reaper);
	fd = peer_maps_fd(maps);
	assert_int_equal(pipe(pipes), 0);
	reaper_do(reaper, stand_still, &pipes[0]);
	for (ino_t i = 0; i < 10; i++)
		peer_maps_ask(maps, 1, i);
	peer_maps_close(maps);
	reaper_free(reaper);
	assert_true(fcntl(fd, F_GETFD) >= 0);
	assert_int_equal(write(pipes[1], "", 1), 1);
	for (unsigned i = 0; i < 60000 && fcntl(fd, F_GETFD) >= 0; i++)
		usleep(1000);
	assert_int_equal(fcntl(fd, F_GETFD), -1);
	close(pipes[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_way_of_mapping),
		cmocka_unit_test(process_out_of_sight),
		cmocka_unit_test(asker_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
