/* SPDX-License-Identifier: BSD-2-Clause */
/* Files that shrink under us: SIGBUS is that guest's fault alone, and everybody else's goes where it went before. */
#include "guest_memory_files.h"

#include <errno.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

static void test_shrunken_file(void **state)
{
	struct guest_region_setup setup[] = {
		{.guest_address = 0, .size = 8 * PAGE, .user_address = 0},
		{.guest_address = 1 << 20, .size = PAGE, .user_address = 1 << 20},
	};
	int fds[] = {file_of(8 * PAGE), file_of(PAGE)}, other_fd = file_of(PAGE);
	int notify = eventfd(0, EFD_NONBLOCK);
	struct error error;
	struct guest_memory *memory = guest_memory_create(setup, fds, 2, &error);
	struct guest_memory *other = guest_memory_create(&setup[1], &other_fd, 1, &error);
	struct guest_memory *shares;
	uint64_t count = 0;
	uint8_t *at;

	assert_non_null(memory);
	assert_non_null(other);
	assert_int_equal(guest_memory_guard_install(notify), 0);
	at = guest_memory_at(memory, 0, 8 * PAGE);
	memset(at, 0x11, 8 * PAGE);
	assert_false(guest_memory_faulted(memory));
	assert_int_equal(read(notify, &count, sizeof(count)), -1);

	assert_int_equal(ftruncate(fds[0], 3 * PAGE), 0);
	errno = 4711;
	*(volatile uint8_t *)(at + 5 * PAGE + 17) = 0x22;
	assert_int_equal(errno, 4711);
	assert_true(guest_memory_faulted(memory));
	assert_int_equal(read(notify, &count, sizeof(count)), sizeof(count));
	assert_int_equal(count, 1);

	/* What was written stays, the rest of the missing reads as zeros, what is still there is untouched. */
	assert_int_equal(at[5 * PAGE + 17], 0x22);
	assert_int_equal(at[7 * PAGE], 0);
	assert_int_equal(at[3 * PAGE - 1], 0x11);
	assert_int_equal(*(volatile uint8_t *)(at + 3 * PAGE), 0);
	assert_int_equal(at[3 * PAGE - 1], 0x11);

	/* Only that guest, and every table that has the mapping. */
	assert_false(guest_memory_faulted(other));
	shares = guest_memory_without(memory, &setup[1], &error);
	assert_true(guest_memory_faulted(shares));
	guest_memory_free(shares);
	guest_memory_free(memory);
	guest_memory_free(other);
	assert_int_equal(mappings(), 0);

	/* The slot is clean when it is used again. */
	memory = guest_memory_create(&setup[1], &fds[1], 1, &error);
	assert_false(guest_memory_faulted(memory));
	guest_memory_free(memory);
	guest_memory_guard_install(-1);
	close(notify);
	close(other_fd);
	close(fds[0]);
	close(fds[1]);
}

struct toucher {
	pthread_t thread;
	volatile uint8_t *at;
	uint64_t size;
	unsigned rounds;
};

static void *touch(void *argument)
{
	struct toucher *t = argument;

	for (unsigned round = 0; round < t->rounds; round++) {
		for (uint64_t i = t->size; i >= PAGE; i -= PAGE)
			t->at[i - 1] = (uint8_t)round;
	}
	return NULL;
}

/* Two threads meet the missing pages at once, while control maps and unmaps others. */
static void test_shrunken_under_threads(void **state)
{
	struct guest_region_setup setup = {.guest_address = 0, .size = 64 * PAGE, .user_address = 0};
	struct error error;

	assert_int_equal(guest_memory_guard_install(-1), 0);
	for (unsigned round = 0; round < 20; round++) {
		int fd = file_of(64 * PAGE);
		struct guest_memory *memory = guest_memory_create(&setup, &fd, 1, &error);
		struct toucher touchers[2];

		assert_non_null(memory);
		for (unsigned i = 0; i < 2; i++) {
			/* Different bytes of the same pages: no data race between the two. */
			touchers[i] =
				(struct toucher){.at = (volatile uint8_t *)guest_memory_at(memory, 0, 64 * PAGE) - i,
						 .size = 64 * PAGE,
						 .rounds = 50};
			assert_int_equal(pthread_create(&touchers[i].thread, NULL, touch, &touchers[i]), 0);
		}
		assert_int_equal(ftruncate(fd, (off_t)(round * PAGE)), 0);
		for (unsigned i = 0; i < 20; i++) {
			int more = file_of(PAGE);
			struct guest_region_setup small = {.guest_address = 0, .size = PAGE, .user_address = 0};
			struct guest_memory *brief = guest_memory_create(&small, &more, 1, &error);

			assert_non_null(brief);
			assert_false(guest_memory_faulted(brief));
			guest_memory_free(brief);
			close(more);
		}
		for (unsigned i = 0; i < 2; i++)
			pthread_join(touchers[i].thread, NULL);
		*(volatile uint8_t *)guest_memory_at(memory, 63 * PAGE, 1) = 1;
		assert_true(guest_memory_faulted(memory));
		guest_memory_free(memory);
		close(fd);
	}
}

static void own_handler(int number, siginfo_t *info, void *context)
{
	_exit(info->si_code > 0 ? 42 : 43);
}

/* Runs in a child, before the guard of this process is installed. Never returns. */
static void child_foreign(bool handler, bool sent)
{
	struct sigaction action = {.sa_flags = handler ? SA_SIGINFO : 0};
	int fd = file_of(PAGE);
	volatile uint8_t *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (handler)
		action.sa_sigaction = own_handler;
	else
		action.sa_handler = SIG_DFL;
	sigaction(SIGBUS, &action, NULL);
	if (guest_memory_guard_install(-1) < 0)
		_exit(1);
	if (sent) {
		kill(getpid(), SIGBUS);
	} else {
		if (ftruncate(fd, 0) < 0)
			_exit(1);
		at[0] = 1;
	}
	_exit(0);
}

static int run_child(bool handler, bool sent)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		child_foreign(handler, sent);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void test_foreign_faults(void **state)
{
	int status;

	for (unsigned sent = 0; sent < 2; sent++) {
		status = run_child(true, sent);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), sent ? 43 : 42);
		status = run_child(false, sent);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), SIGBUS);
	}
}

static void test_huge_pages(void **state)
{
	uint64_t huge = 2ull << 20;
	struct guest_region_setup setup = {
		.guest_address = 0, .size = 3 * PAGE, .user_address = 0, .file_offset = huge - PAGE};
	int fd = memfd_create(FILE_NAME, MFD_HUGETLB | MFD_HUGE_2MB);
	struct guest_memory *memory;
	struct error error;

	if (fd < 0 || ftruncate(fd, (off_t)(2 * huge)) < 0 ||
	    mmap(NULL, 2 * huge, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) {
		print_message("skipped: two free huge pages of 2 MB are needed (sysctl vm.nr_hugepages)\n");
		skip();
	}
	memory = guest_memory_create(&setup, &fd, 1, &error);
	if (!memory)
		fail_msg("%s", error.text);
	memset(guest_memory_at(memory, 0, 3 * PAGE), 0x42, 3 * PAGE);
	assert_int_equal(guest_memory_guard_install(-1), 0);
	assert_int_equal(ftruncate(fd, (off_t)huge), 0);
	memset(guest_memory_at(memory, 0, 3 * PAGE), 0x43, 3 * PAGE);
	assert_true(guest_memory_faulted(memory));
	assert_int_equal(*(uint8_t *)guest_memory_at(memory, 0, 1), 0x43);
	guest_memory_free(memory);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_foreign_faults), /* first: before this process has a guard */
		cmocka_unit_test(test_shrunken_file),
		cmocka_unit_test(test_shrunken_under_threads),
		cmocka_unit_test(test_huge_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
