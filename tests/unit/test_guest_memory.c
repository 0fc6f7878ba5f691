/* SPDX-License-Identifier: BSD-2-Clause */
/* Guest memory: what is refused, translation at every edge, shared mappings, and when they go. Files that shrink: test_guest_memory_faults.c. */
#include "guest_memory_files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <semaphore.h>
#include <sys/vfs.h>

#include "common/util.h"

/* A regular file whose pages are not plain memory of the kernel: the first of these places that is no tmpfs. */
static int foreign_file(uint64_t size)
{
	static const char *const places[] = {".", "/var/tmp", "/"};

	for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
		int fd = open(places[i], O_TMPFILE | O_RDWR, 0600);
		struct statfs system;

		if (fd >= 0 && !fstatfs(fd, &system) && system.f_type != TMPFS_MAGIC && !ftruncate(fd, (off_t)size))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	fail_msg("no place for a file outside of tmpfs");
	return -1;
}

static void expect_refused(const struct guest_region_setup *setup, int *fds, unsigned count, int code, const char *word)
{
	struct error error = {0};
	unsigned before = mappings();

	assert_null(guest_memory_create(setup, fds, count, &error));
	assert_int_equal(error.code, code);
	assert_ptr_equal(strstr(error.text, "guest memory"), error.text);
	if (!strstr(error.text, word) || !strstr(error.text, "; "))
		fail_msg("'%s' lacks '%s' or a remedy", error.text, word);
	assert_int_equal(mappings(), before);
}

static void test_translation(void **state)
{
	/* Given out of order; 1 and 0 are neighbours for the guest, but not for us. */
	struct guest_region_setup setup[] = {
		{.guest_address = 0x12000, .size = 2 * PAGE, .user_address = 0x7000100000, .file_offset = PAGE},
		{.guest_address = 0x10000, .size = 2 * PAGE, .user_address = 0x7000200000, .file_offset = 0},
		{.guest_address = UINT64_MAX - PAGE, .size = PAGE, .user_address = 0x7000300000, .file_offset = 0},
	};
	int fds[] = {file_of(4 * PAGE), file_of(2 * PAGE), file_of(PAGE)};
	struct error error;
	struct guest_memory *memory = guest_memory_create(setup, fds, 3, &error);
	uint64_t length;
	uint8_t *first, *second, byte = 0;

	assert_non_null(memory);
	assert_int_equal(memory->count, 3);
	assert_int_equal(memory->regions[0].guest_address, 0x10000);
	assert_int_equal(memory->regions[1].guest_address, 0x12000);

	first = guest_memory_at(memory, 0x10000, 2 * PAGE);
	second = guest_memory_at(memory, 0x12000, 2 * PAGE);
	assert_non_null(first);
	assert_non_null(second);
	assert_ptr_equal(guest_memory_at(memory, 0x10fff, 1), first + 0xfff);
	assert_null(guest_memory_at(memory, 0x10000, 2 * PAGE + 1));
	assert_null(guest_memory_at(memory, 0x11fff, 2));
	assert_null(guest_memory_at(memory, 0xffff, 1));
	assert_null(guest_memory_at(memory, 0x14000, 1));
	assert_null(guest_memory_at(memory, 0x10008, UINT64_MAX - 4));
	assert_null(guest_memory_at(memory, UINT64_MAX - 1, 4));
	assert_non_null(guest_memory_at(memory, UINT64_MAX - 2, 1));

	length = 3 * PAGE;
	assert_ptr_equal(guest_memory_piece(memory, 0x11000, &length), first + PAGE);
	assert_int_equal(length, PAGE);
	length = UINT64_MAX;
	assert_ptr_equal(guest_memory_piece(memory, 0x12001, &length), second + 1);
	assert_int_equal(length, 2 * PAGE - 1);
	length = 1;
	assert_null(guest_memory_piece(memory, 0x9999, &length));

	assert_ptr_equal(guest_memory_at_user(memory, 0x7000100000 + 5, 10), second + 5);
	assert_null(guest_memory_at_user(memory, 0x7000100000, 2 * PAGE + 1));
	assert_null(guest_memory_at_user(memory, 0x7000100008, UINT64_MAX - 4));
	assert_null(guest_memory_at_user(memory, 0x12000, 1));

	/* It is the file at its offset that was mapped, shared. */
	second[3] = 0x5a;
	assert_int_equal(pread(fds[0], &byte, 1, PAGE + 3), 1);
	assert_int_equal(byte, 0x5a);
	assert_false(guest_memory_faulted(memory));
	guest_memory_free(memory);
	assert_int_equal(mappings(), 0);
	for (unsigned i = 0; i < 3; i++)
		close(fds[i]);
}

static void test_offset_off_page(void **state)
{
	struct guest_region_setup setup = {
		.guest_address = 0x1000, .size = 5000, .user_address = 0x2000, .file_offset = 4999};
	int fd = file_of(10000);
	struct error error;
	struct guest_memory *memory = guest_memory_create(&setup, &fd, 1, &error);
	uint8_t byte = 0x77;

	assert_non_null(memory);
	assert_int_equal(pwrite(fd, &byte, 1, 9998), 1);
	assert_int_equal(*(uint8_t *)guest_memory_at(memory, 0x1000 + 4999, 1), 0x77);
	guest_memory_free(memory);
	close(fd);
}

static void test_refused(void **state)
{
	struct guest_region_setup ok = {.guest_address = 0x10000, .size = PAGE, .user_address = 0x7000000000};
	struct guest_region_setup setup[GUEST_REGIONS_MAX + 1];
	int fds[GUEST_REGIONS_MAX + 1];
	int fd = file_of(4 * PAGE), pipes[2], readonly, foreign;
	char path[64];

	for (unsigned i = 0; i <= GUEST_REGIONS_MAX; i++) {
		setup[i] =
			(struct guest_region_setup){.guest_address = i * PAGE, .size = PAGE, .user_address = i * PAGE};
		fds[i] = fd;
	}
	expect_refused(setup, fds, 0, -EINVAL, "0 regions");
	expect_refused(setup, fds, GUEST_REGIONS_MAX + 1, -EINVAL, "65 regions");

	setup[0] = setup[1] = ok;
	setup[0].size = 0;
	expect_refused(setup, fds, 1, -EINVAL, "region 0: size 0");
	setup[0] = ok;
	setup[0].guest_address = UINT64_MAX - PAGE + 1;
	expect_refused(setup, fds, 1, -EINVAL, "wraps");
	setup[0] = ok;
	setup[0].user_address = UINT64_MAX - 1;
	expect_refused(setup, fds, 1, -EINVAL, "wraps");
	setup[0] = ok;
	setup[0].file_offset = UINT64_MAX - 1;
	expect_refused(setup, fds, 1, -EINVAL, "wraps");
	setup[0].file_offset = INT64_MAX;
	expect_refused(setup, fds, 1, -EINVAL, "wraps");
	setup[0].file_offset = 4 * PAGE;
	expect_refused(setup, fds, 1, -EINVAL, "beyond its file");
	setup[0] = ok;
	setup[0].size = 4 * PAGE + 1;
	expect_refused(setup, fds, 1, -EINVAL, "beyond its file");

	/* The second one is at fault, and the first must not stay mapped. */
	setup[0] = setup[1] = ok;
	setup[1].user_address += 1ull << 30;
	setup[1].guest_address += PAGE - 1;
	expect_refused(setup, fds, 2, -EEXIST, "region 1: ");
	setup[1] = ok;
	setup[1].guest_address += 1ull << 30;
	setup[1].user_address -= PAGE - 1;
	expect_refused(setup, fds, 2, -EEXIST, "overlaps");

	assert_int_equal(pipe(pipes), 0);
	expect_refused(&ok, &pipes[0], 1, -EINVAL, "share=on");
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	readonly = open(path, O_RDONLY);
	assert_true(readonly >= 0);
	expect_refused(&ok, &readonly, 1, -EACCES, "share=on");
	close(readonly);
	fds[0] = -1;
	expect_refused(&ok, fds, 1, -EBADF, "share=on");
	foreign = foreign_file(4 * PAGE);
	expect_refused(&ok, &foreign, 1, -EINVAL, "/dev/shm");
	close(foreign);
	close(pipes[0]);
	close(pipes[1]);
	close(fd);
}

static void test_with_and_without(void **state)
{
	struct guest_region_setup a = {.guest_address = 0x10000, .size = PAGE, .user_address = 0x7000000000};
	struct guest_region_setup b = {.guest_address = 0x4000, .size = PAGE, .user_address = 0x7100000000};
	int fd_a = file_of(PAGE), fd_b = file_of(PAGE);
	struct error error;
	struct guest_memory *one = guest_memory_with(NULL, &a, fd_a, &error);
	struct guest_memory *two, *left;
	struct guest_region_setup wrong = a;

	assert_non_null(one);
	two = guest_memory_with(one, &b, fd_b, &error);
	assert_non_null(two);
	assert_int_equal(two->count, 2);
	assert_int_equal(two->regions[0].guest_address, 0x4000);
	assert_int_equal(mappings(), 2);
	assert_ptr_equal(guest_memory_at(one, 0x10000, PAGE), guest_memory_at(two, 0x10000, PAGE));
	assert_null(guest_memory_at(one, 0x4000, 1));

	wrong.size--;
	assert_null(guest_memory_with(two, &wrong, fd_a, &error));
	assert_int_equal(error.code, -EEXIST);
	assert_null(guest_memory_without(two, &wrong, &error));
	assert_int_equal(error.code, -ENOENT);
	assert_int_equal(mappings(), 2);

	/* The same region again: the new file takes the old one's place (QEMU 7 adds it once a queue pair). */
	left = guest_memory_with(two, &a, fd_b, &error);
	assert_non_null(left);
	assert_int_equal(left->count, 2);
	assert_int_equal(mappings(), 3);
	assert_ptr_not_equal(guest_memory_at(left, 0x10000, PAGE), guest_memory_at(two, 0x10000, PAGE));
	guest_memory_free(left);
	assert_int_equal(mappings(), 2);

	left = guest_memory_without(two, &a, &error);
	assert_non_null(left);
	assert_int_equal(left->count, 1);
	guest_memory_free(one);
	assert_int_equal(mappings(), 2);
	guest_memory_free(two);
	assert_int_equal(mappings(), 1);
	memset(guest_memory_at(left, 0x4000, PAGE), 1, PAGE);
	guest_memory_free(left);
	guest_memory_free(NULL);
	assert_int_equal(mappings(), 0);
	close(fd_a);
	close(fd_b);
}

/* memory-backend-file in /dev/shm: as good as a memfd. */
static void test_file_on_tmpfs(void **state)
{
	struct guest_region_setup setup = {.guest_address = 0, .size = 4 * PAGE, .user_address = 0, .file_offset = PAGE};
	int fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
	struct guest_memory *memory;
	struct error error;
	uint8_t byte = 0;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 5 * PAGE), 0);
	memory = guest_memory_create(&setup, &fd, 1, &error);
	if (!memory)
		fail_msg("%s", error.text);
	*(uint8_t *)guest_memory_at(memory, 1, 1) = 0x5a;
	assert_int_equal(pread(fd, &byte, 1, PAGE + 1), 1);
	assert_int_equal(byte, 0x5a);
	guest_memory_free(memory);
	close(fd);
}

static void stand(void *argument)
{
	sem_wait(argument);
}

/* The last table is let go of at once; its memory goes when the reaper gets to it, whatever its size, guarded until then. */
static void test_reaped(void **state)
{
	const uint64_t size = 40ull << 20; /* unmapped in pieces */
	struct reaper *reaper = reaper_create();
	struct guest_region_setup setup = {.guest_address = 0, .size = size, .user_address = 0, .reaper = reaper};
	struct guest_region_setup more = {.guest_address = size, .size = PAGE, .user_address = size, .reaper = reaper};
	int fd = file_of(size + PAGE);
	struct guest_memory *memory, *both;
	struct error error;
	uint8_t *at;
	sem_t gate;

	sem_init(&gate, 0, 0);
	reaper_do(reaper, stand, &gate);
	memory = guest_memory_create(&setup, &fd, 1, &error);
	assert_non_null(memory);
	both = guest_memory_with(memory, &more, fd, &error);
	assert_non_null(both);
	at = guest_memory_at(memory, 0, size);
	guest_memory_free(memory);
	assert_int_equal(reaper_backlog(reaper), 1);
	guest_memory_free(both);
	assert_int_equal(reaper_backlog(reaper), 3);
	assert_int_equal(mappings(), 2);
	assert_int_equal(guest_memory_guard_install(-1), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	at[size - 1] = 1;
	sem_post(&gate);
	for (unsigned i = 0; i < 60000 && reaper_backlog(reaper); i++)
		usleep(1000);
	assert_int_equal(mappings(), 0);
	/* The file is gone from the address space, the anonymous pages that stood in for it too. */
	assert_int_equal(msync(at, size, MS_ASYNC), -1);
	assert_int_equal(errno, ENOMEM);
	reaper_free(reaper);
	close(fd);
}

static void test_many_tables(void **state)
{
	struct guest_region_setup setup[GUEST_REGIONS_MAX];
	int fds[GUEST_REGIONS_MAX];
	struct error error;
	int fd = file_of(GUEST_REGIONS_MAX * 2 * PAGE);

	/* Every other page, so that the kernel keeps the mappings apart. */
	for (unsigned i = 0; i < GUEST_REGIONS_MAX; i++) {
		setup[i] = (struct guest_region_setup){.guest_address = i * 2 * PAGE, .size = PAGE,
						       .user_address = i * 2 * PAGE, .file_offset = i * 2 * PAGE};
		fds[i] = fd;
	}
	for (unsigned round = 0; round < 300; round++) {
		struct guest_memory *memory = guest_memory_create(setup, fds, GUEST_REGIONS_MAX, &error);

		assert_non_null(memory);
		assert_null(guest_memory_with(memory,
					      &(struct guest_region_setup){.guest_address = 1ull << 40,
									   .size = PAGE,
									   .user_address = 1ull << 41},
					      fd, &error));
		assert_int_equal(error.code, -E2BIG);
		guest_memory_free(memory);
	}
	assert_int_equal(mappings(), 0);
	close(fd);
}

static void test_not_in_core_dumps(void **state)
{
	struct guest_region_setup setup = {.guest_address = 0, .size = PAGE, .user_address = 0};
	int fd = file_of(PAGE);
	struct error error;
	struct guest_memory *memory = guest_memory_create(&setup, &fd, 1, &error);
	FILE *smaps = fopen("/proc/self/smaps", "r");
	char line[512];
	bool ours = false, flagged = false;

	assert_non_null(memory);
	assert_non_null(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (strstr(line, FILE_NAME))
			ours = true;
		if (ours && !strncmp(line, "VmFlags:", 8)) {
			flagged = strstr(line, " dd") != NULL;
			break;
		}
	}
	fclose(smaps);
	assert_true(flagged);
	guest_memory_free(memory);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_translation),
		cmocka_unit_test(test_offset_off_page),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_with_and_without),
		cmocka_unit_test(test_file_on_tmpfs),
		cmocka_unit_test(test_many_tables),
		cmocka_unit_test(test_reaped),
		cmocka_unit_test(test_not_in_core_dumps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
