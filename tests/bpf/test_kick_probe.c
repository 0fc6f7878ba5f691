// SPDX-License-Identifier: BSD-2-Clause
/*
 * The probe of kicks on real eventfds: signalled by write() and from inside the kernel, by threads pinned to each CPU that there is.
 * Skipped where the kernel cannot do it, with the reason that kick_probe_open() gives.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <bpf/bpf.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cpulist.h"
#include "common/util.h"
#include "control/kick_probe.h"
#include "../lib/entries.h"

#define PATIENCE_MS 20000 /* only stops a hang */
#define SIGNALS 50
#define NOBODY 65534

struct fixture {
	struct kick_probe *probe;
	struct error error;
	struct cpulist cpus; /* where the process may run */
};

static int open_probe(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	*state = f;
	if (cpulist_allowed(&f->cpus))
		return -1;
	f->probe = kick_probe_open(&f->error);
	return 0;
}

static int close_probe(void **state)
{
	struct fixture *f = *state;

	kick_probe_close(f->probe);
	free(f);
	return 0;
}

static struct kick_probe *probe_or_skip(struct fixture *f)
{
	if (!f->probe) {
		/* Only what the kernel lacks is a reason; the tests run as root. */
		assert_int_equal(f->error.code, -EOPNOTSUPP);
		print_message("skipped: %s\n", f->error.text);
		skip();
	}
	return f->probe;
}

static int new_eventfd(void)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

/* --- who signals ---------------------------------------------------------------------------------------------------- */

static void unwatch_and_close(struct kick_probe *probe, int fd)
{
	kick_probe_unwatch(probe, fd);
	close(fd);
}

static void signal_by_write(int fd)
{
	const uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

/* The kernel itself signals: completion of an asynchronous request, which is there at once, on the CPU of the caller. As KVM does it. */
static void signal_by_kernel(int fd)
{
	struct iocb request = {
		.aio_lio_opcode = IOCB_CMD_POLL,
		.aio_fildes = (uint32_t)fd,
		.aio_buf = POLLIN | POLLOUT,
		.aio_flags = IOCB_FLAG_RESFD,
		.aio_resfd = (uint32_t)fd,
	}, *requests[] = { &request };
	aio_context_t aio = 0;

	if (syscall(SYS_io_setup, 1, &aio) || syscall(SYS_io_submit, aio, 1, requests) != 1)
		abort();
	syscall(SYS_io_destroy, aio);
}

struct signaller {
	void (*signal)(int fd);
	int fd, cpu; /* cpu -1 = anywhere */
	unsigned times;
	pthread_t thread;
};

static void *signaller_main(void *argument)
{
	struct signaller *s = argument;
	cpu_set_t one;

	if (s->cpu >= 0) {
		CPU_ZERO(&one);
		CPU_SET((unsigned)s->cpu, &one);
		if (sched_setaffinity(0, sizeof(one), &one))
			abort();
	}
	for (unsigned i = 0; i < s->times; i++)
		s->signal(s->fd);
	return NULL;
}

static void start(struct signaller *s)
{
	assert_int_equal(pthread_create(&s->thread, NULL, signaller_main, s), 0);
}

static void finish(struct signaller *s)
{
	assert_int_equal(pthread_join(s->thread, NULL), 0);
}

static void signal_on(int cpu, void (*by)(int fd), int fd, unsigned times)
{
	struct signaller s = { .signal = by, .fd = fd, .cpu = cpu, .times = times };

	start(&s);
	finish(&s);
}

/* --- tests ---------------------------------------------------------------------------------------------------------- */

static void check_each_cpu(struct fixture *f, void (*by)(int fd))
{
	struct kick_probe *probe = probe_or_skip(f);
	int fd = new_eventfd();
	uint64_t before = 0, count;

	assert_int_equal(kick_probe_watch(probe, fd), 0);
	assert_int_equal(kick_probe_cpu(probe, fd), -1);
	for (unsigned round = 0; round < 3; round++)
		for (int cpu = cpulist_next(&f->cpus, 0); cpu >= 0; cpu = cpulist_next(&f->cpus, (unsigned)cpu + 1)) {
			signal_on(cpu, by, fd, SIGNALS);
			assert_int_equal(kick_probe_cpu(probe, fd), cpu);
			count = kick_probe_count(probe, fd);
			assert_in_range(count, before + 1, before + SIGNALS);
			before = count;
		}
	unwatch_and_close(probe, fd);
}

static void test_write(void **state)
{
	check_each_cpu(*state, signal_by_write);
}

static void test_signal_of_the_kernel(void **state)
{
	check_each_cpu(*state, signal_by_kernel);
}

static void test_only_what_is_watched(void **state)
{
	struct fixture *f = *state;
	struct kick_probe *probe = probe_or_skip(f);
	const int cpu = cpulist_next(&f->cpus, 0);
	int watched = new_eventfd(), other = new_eventfd();

	assert_int_equal(kick_probe_watch(probe, watched), 0);
	signal_on(cpu, signal_by_write, other, 5);
	signal_on(cpu, signal_by_kernel, other, 5);
	assert_int_equal(kick_probe_cpu(probe, other), -1);
	assert_int_equal(kick_probe_count(probe, other), 0);
	assert_int_equal(kick_probe_cpu(probe, watched), -1);
	signal_on(cpu, signal_by_write, watched, 5);
	assert_int_equal(kick_probe_count(probe, watched), 5);

	kick_probe_unwatch(probe, watched);
	assert_int_equal(kick_probe_cpu(probe, watched), -1);
	signal_on(cpu, signal_by_write, watched, 5);
	assert_int_equal(kick_probe_cpu(probe, watched), -1);
	kick_probe_unwatch(probe, watched);

	/* From the start. */
	assert_int_equal(kick_probe_watch(probe, watched), 0);
	assert_int_equal(kick_probe_cpu(probe, watched), -1);
	signal_on(cpu, signal_by_write, watched, 2);
	assert_int_equal(kick_probe_count(probe, watched), 2);
	assert_int_equal(kick_probe_watch(probe, watched), 0);
	assert_int_equal(kick_probe_count(probe, watched), 0);
	unwatch_and_close(probe, watched);
	close(other);
}

/* As it comes over a socket: the frontend signals its descriptor, the engine watches its own of the same eventfd. */
static void test_two_descriptors(void **state)
{
	struct fixture *f = *state;
	struct kick_probe *probe = probe_or_skip(f);
	const int cpu = cpulist_next(&f->cpus, 0);
	int ours = new_eventfd(), theirs = dup(ours);

	assert_int_equal(kick_probe_watch(probe, ours), 0);
	signal_on(cpu, signal_by_write, theirs, 3);
	assert_int_equal(kick_probe_cpu(probe, ours), cpu);
	close(theirs);
	signal_on(cpu, signal_by_kernel, ours, 3);
	assert_int_equal(kick_probe_count(probe, ours), 6);
	unwatch_and_close(probe, ours);
}

/* Many at a time, on as many CPUs as there are: none is counted twice or for another. Some may be missed (kick_probe.h). */
static void test_at_once(void **state)
{
	enum { EVENTFDS = 40, THREADS = 4 };
	struct fixture *f = *state;
	struct kick_probe *probe = probe_or_skip(f);
	struct signaller signallers[EVENTFDS][THREADS];

	for (unsigned i = 0; i < EVENTFDS; i++) {
		int fd = new_eventfd();

		assert_int_equal(kick_probe_watch(probe, fd), 0);
		for (unsigned t = 0; t < THREADS; t++) {
			signallers[i][t] = (struct signaller){
				.signal = t % 2 ? signal_by_kernel : signal_by_write,
				.fd = fd,
				.cpu = -1,
				.times = SIGNALS,
			};
			start(&signallers[i][t]);
		}
	}
	for (unsigned i = 0; i < EVENTFDS; i++) {
		for (unsigned t = 0; t < THREADS; t++)
			finish(&signallers[i][t]);
		assert_in_range(kick_probe_count(probe, signallers[i][0].fd), 1, THREADS * SIGNALS);
		assert_true(cpulist_has(&f->cpus, (unsigned)kick_probe_cpu(probe, signallers[i][0].fd)));
		unwatch_and_close(probe, signallers[i][0].fd);
	}
}

static void test_no_eventfd(void **state)
{
	struct kick_probe *probe = probe_or_skip(*state);
	int ends[2], fd = new_eventfd();

	assert_int_equal(pipe(ends), 0);
	assert_int_equal(kick_probe_watch(probe, ends[1]), -EINVAL);
	assert_int_equal(kick_probe_watch(probe, -1), -EINVAL);
	close(fd);
	assert_int_equal(kick_probe_watch(probe, fd), -EINVAL);
	assert_int_equal(kick_probe_cpu(probe, ends[1]), -1);
	assert_int_equal(kick_probe_cpu(probe, -1), -1);
	kick_probe_unwatch(probe, ends[1]);
	kick_probe_unwatch(probe, -1);
	close(ends[0]);
	close(ends[1]);
}

static void test_without_probe(void **state)
{
	int fd = new_eventfd();

	assert_int_equal(kick_probe_watch(NULL, fd), -EOPNOTSUPP);
	assert_int_equal(kick_probe_cpu(NULL, fd), -1);
	assert_int_equal(kick_probe_count(NULL, fd), 0);
	assert_string_equal(kick_probe_way(NULL), "none");
	kick_probe_unwatch(NULL, fd);
	kick_probe_close(NULL);
	close(fd);
}

/* --- life ----------------------------------------------------------------------------------------------------------- */

#define IDS_MAX 16

struct ids {
	unsigned count;
	uint32_t id[IDS_MAX];
};

/* Ids of BPF objects that this process holds, by the word that /proc/self/fdinfo puts before them. */
static struct ids held_ids(const char *label)
{
	DIR *directory = opendir("/proc/self/fdinfo");
	struct ids ids = { 0 };
	struct dirent *entry;

	assert_non_null(directory);
	while ((entry = readdir(directory))) {
		char path[300], line[256];
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/fdinfo/%s", entry->d_name);
		file = fopen(path, "r");
		while (file && fgets(line, sizeof(line), file))
			if (!strncmp(line, label, strlen(label)) && ids.count < IDS_MAX)
				ids.id[ids.count++] = (uint32_t)strtoul(line + strlen(label), NULL, 10);
		if (file)
			fclose(file);
	}
	closedir(directory);
	return ids;
}

static bool has_id(const struct ids *ids, uint32_t id)
{
	for (unsigned i = 0; i < ids->count; i++)
		if (ids->id[i] == id)
			return true;
	return false;
}

static const struct {
	const char *label;
	int (*open_by_id)(uint32_t id);
} kinds[] = {
	{ "prog_id:", bpf_prog_get_fd_by_id },
	{ "map_id:", bpf_map_get_fd_by_id },
	{ "link_id:", bpf_link_get_fd_by_id },
};

/* The kernel frees an object a while after its last descriptor. */
static void wait_until_gone(int (*open_by_id)(uint32_t id), uint32_t id)
{
	int fd;

	for (unsigned ms = 0; (fd = open_by_id(id)) >= 0; ms += 10) {
		close(fd);
		if (ms > PATIENCE_MS)
			fail_msg("id %u is still there", id);
		usleep(10000);
	}
}

static void test_close_leaves_nothing(void **state)
{
	const unsigned before = open_descriptors();
	struct ids others[ARRAY_SIZE(kinds)], held[ARRAY_SIZE(kinds)];
	struct fixture own = { 0 };
	int fd;

	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
		others[k] = held_ids(kinds[k].label);
	own.probe = kick_probe_open(&own.error);
	probe_or_skip(&own);
	fd = new_eventfd();
	assert_int_equal(kick_probe_watch(own.probe, fd), 0);
	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
		held[k] = held_ids(kinds[k].label);
	assert_true(held[0].count > others[0].count);
	assert_true(held[1].count > others[1].count);
	kick_probe_close(own.probe);
	signal_by_write(fd);
	close(fd);
	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
		for (unsigned i = 0; i < held[k].count; i++)
			if (!has_id(&others[k], held[k].id[i]))
				wait_until_gone(kinds[k].open_by_id, held[k].id[i]);
	assert_int_equal(open_descriptors(), before);
}

/* A second daemon has its own. */
static void test_two_probes(void **state)
{
	struct fixture *f = *state;
	struct kick_probe *one = probe_or_skip(f), *two = kick_probe_open(NULL);
	const int cpu = cpulist_next(&f->cpus, 0);
	int a = new_eventfd(), b = new_eventfd();

	assert_non_null(two);
	assert_int_equal(kick_probe_watch(one, a), 0);
	assert_int_equal(kick_probe_watch(two, b), 0);
	signal_on(cpu, signal_by_write, a, 1);
	signal_on(cpu, signal_by_write, b, 2);
	assert_int_equal(kick_probe_count(one, a), 1);
	assert_int_equal(kick_probe_count(one, b), 0);
	assert_int_equal(kick_probe_count(two, a), 0);
	assert_int_equal(kick_probe_count(two, b), 2);
	kick_probe_close(two);
	signal_on(cpu, signal_by_write, a, 1);
	assert_int_equal(kick_probe_count(one, a), 2);
	unwatch_and_close(one, a);
	close(b);
}

/* Without privileges: an error that says so, and no probe. */
static void test_not_permitted(void **state)
{
	struct error error = { 0 };
	int status;
	pid_t child;

	probe_or_skip(*state);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		if (setgid(NOBODY) || setuid(NOBODY))
			_exit(2);
		if (access("/sys/kernel/btf/vmlinux", R_OK))
			_exit(5);
		if (kick_probe_open(&error))
			_exit(3);
		_exit(error.code == -EPERM && strstr(error.text, "CAP_BPF") ? 0 : 4);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 5) {
		print_message("skipped: /sys is closed to user %d\n", NOBODY);
		skip();
	}
	assert_int_equal(status, 0);
}

/* However far it gets before descriptors run out: that is the reason it gives, and not the kernel. */
static void test_out_of_descriptors(void **state)
{
	struct rlimit before, low;
	struct error error = { 0 };
	unsigned named = 0;
	int first = dup(STDERR_FILENO);

	assert_true(first >= 0);
	close(first); /* the lowest that is free */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	for (rlim_t room = 0; room < 16; room++) {
		struct kick_probe *probe;

		low = (struct rlimit){.rlim_cur = (rlim_t)first + room, .rlim_max = before.rlim_max};
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
		probe = kick_probe_open(&error);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
		kick_probe_close(probe);
		if (probe || error.code != -EMFILE)
			continue;
		named++;
		assert_non_null(strstr(error.text, "LimitNOFILE="));
		assert_null(strstr(error.text, "use a kernel"));
	}
	/* The kernel's types come first. Maps and programs need descriptors only where the kernel lets a way be tried. */
	assert_true(named >= 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_signal_of_the_kernel),
		cmocka_unit_test(test_only_what_is_watched),
		cmocka_unit_test(test_two_descriptors),
		cmocka_unit_test(test_at_once),
		cmocka_unit_test(test_no_eventfd),
		cmocka_unit_test(test_two_probes),
		cmocka_unit_test(test_not_permitted),
		cmocka_unit_test(test_without_probe),
		cmocka_unit_test(test_out_of_descriptors),
		cmocka_unit_test(test_close_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, open_probe, close_probe);
}
