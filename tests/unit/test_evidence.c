/* SPDX-License-Identifier: BSD-2-Clause */
/* Evidence of real peers (a forked one with named and pinned threads, QEMU), of an invented procfs, and of real pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/util.h"
#include "control/evidence.h"
#include "invented_tree.h"

#define PATIENCE_NS 30000000000ull /* only stops hangs */

static struct topology topology; /* CPU n lies on node n / 2 % 2 */

static int invent_topology(void **state)
{
	unsigned cpu;

	topology.node_count = 2;
	topology.cpu_count = CPUS_MAX;
	for (cpu = 0; cpu < CPUS_MAX; cpu++)
		topology.cpus[cpu] = (struct topology_cpu){ true, true, true, (int16_t)(cpu / 2 % 2), (int16_t)cpu };
	return 0;
}

static struct cpulist list(const char *text)
{
	struct cpulist l;

	assert_true(cpulist_parse(text, &l, NULL));
	return l;
}

static void assert_cpus(const struct cpulist *got, const char *text)
{
	char buffer[256];

	assert_string_equal(cpulist_format(got, buffer, sizeof(buffer)), text);
}

/* ------------------------------------------------------------------ pages */

static void node_of_pages(void **state)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("evidence", MFD_CLOEXEC), node;
	const void *pages[4];
	char *guest, *ours;
	unsigned at, expected;

	assert_return_code(fd, errno);
	assert_return_code(ftruncate(fd, (off_t)(4 * size)), errno);
	guest = mmap(NULL, 4 * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ours = mmap(NULL, 4 * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(guest != MAP_FAILED && ours != MAP_FAILED);

	guest[size] = 1; /* the guest has touched it, this mapping has not */
	node = evidence_ring_node(ours + size + 100);
	if (node < 0) {
		print_message("skipped: this kernel does not tell pages' nodes (move_pages)\n");
		skip();
	}
	assert_in_range(node, 0, VL_NODES_MAX - 1);
	getcpu(&at, &expected);
	print_message("page on node %d, this thread on %u\n", node, expected);
	assert_int_equal(evidence_ring_node(guest + size), node);
	assert_int_equal(evidence_ring_node(ours + size), node);

	/* Several at once: what most of those that are known say. The last page was touched by nobody. */
	pages[0] = ours + size + 1;
	pages[1] = guest + size + 7;
	pages[2] = NULL;
	pages[3] = ours + 3 * size;
	assert_int_equal(evidence_pages_node(pages, 4), node);
	assert_int_equal(evidence_pages_node(pages, 0), -1);
	assert_int_equal(evidence_pages_node(&pages[2], 2), -1);

	/* A guest that shrinks its file must not kill us. */
	assert_return_code(ftruncate(fd, 0), errno);
	assert_int_equal(evidence_ring_node(ours + 2 * size), -1);
	assert_int_equal(evidence_ring_node(ours + size), -1);
	munmap(ours, 4 * size);
	assert_int_equal(evidence_ring_node(ours), -1);
	assert_int_equal(evidence_ring_node(NULL), -1);
	munmap(guest, 4 * size);
	close(fd);
}

/* ------------------------------------------------------------------ a peer that is forked */

struct peer_thread {
	const char *name;
	int cpu;   /* pinned to it */
	bool spin; /* else sleeps after it has run there */
};

static void *peer_thread_main(void *argument)
{
	const struct peer_thread *thread = argument;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(thread->cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	if (thread->name)
		prctl(PR_SET_NAME, thread->name);
	while (thread->spin)
		;
	pause();
	return NULL;
}

static pid_t fork_peer(struct peer_thread *threads, unsigned count)
{
	pid_t pid = fork();
	pthread_t handle;
	unsigned i;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (i = 0; i < count; i++)
		if (pthread_create(&handle, NULL, peer_thread_main, &threads[i]))
			_exit(1);
	pause();
	_exit(0);
}

static void end_peer(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Threads take their time to start, to rename and to pin themselves. */
static bool wait_for(pid_t pid, unsigned threads, bool named, const char *cpus, struct evidence_peer *peer)
{
	uint64_t end = now_ns() + PATIENCE_NS;
	char buffer[256];

	do {
		assert_int_equal(evidence_peer_read(pid, &topology, peer), 0);
		cpulist_format(&peer->vcpus, buffer, sizeof(buffer));
		if (peer->threads == threads && peer->named == named && (!cpus || strcmp(buffer, cpus) == 0))
			return true;
		usleep(10000);
	} while (now_ns() < end);
	print_message("%u threads, CPUs %s\n", peer->threads, buffer);
	return false;
}

static int last_allowed_cpu(void)
{
	struct cpulist allowed;
	int cpu, last = -1;

	assert_int_equal(cpulist_allowed(&allowed), 0);
	for (cpu = cpulist_next(&allowed, 0); cpu >= 0; cpu = cpulist_next(&allowed, (unsigned)cpu + 1))
		last = cpu;
	return last;
}

static void named_threads_of_a_peer(void **state)
{
	int cpu = last_allowed_cpu();
	struct peer_thread threads[] = {
		{ "CPU 0/KVM", cpu, false }, { "CPU 1/KVM", cpu, false }, { "IO mon_iothread", cpu, false }, { "CPU load/x", cpu, false },
	};
	pid_t pid = fork_peer(threads, ARRAY_SIZE(threads));
	struct evidence_peer peer;
	char expected[16];
	bool found;

	snprintf(expected, sizeof(expected), "%d", cpu);
	found = wait_for(pid, 2, true, expected, &peer);
	end_peer(pid);
	assert_true(found);
	assert_int_equal(peer.pid, pid);
	assert_int_equal(peer.node, topology_cpu_node(&topology, cpu));
	assert_int_equal(evidence_peer_read(pid, &topology, &peer), -ESRCH);
	assert_int_equal(peer.pid, 0);
	assert_int_equal(evidence_peer_read(0, &topology, &peer), -ESRCH);
	assert_int_equal(evidence_peer_read(-5, &topology, &peer), -ESRCH);
	assert_int_equal(peer.node, -1);
}

static void busiest_thread_of_an_unnamed_peer(void **state)
{
	int cpu = last_allowed_cpu();
	struct peer_thread threads[] = { { NULL, cpu, false }, { NULL, cpu, true }, { NULL, cpu, false } };
	pid_t pid = fork_peer(threads, ARRAY_SIZE(threads));
	struct evidence_peer peer;
	char expected[16];
	bool found;

	snprintf(expected, sizeof(expected), "%d", cpu);
	found = wait_for(pid, 1, false, expected, &peer);
	end_peer(pid);
	assert_true(found);
}

/* The peer in earnest: TCG, one thread a vCPU; stopped, it costs nothing. */
static void qemu_as_a_peer(void **state)
{
	struct evidence_peer peer;
	struct cpulist allowed;
	bool found = false;
	pid_t pid;

	assert_int_equal(cpulist_allowed(&allowed), 0);
	if (system("command -v qemu-system-x86_64 > /dev/null 2>&1")) {
		print_message("skipped: no qemu-system-x86_64\n");
		skip();
	}
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execlp("qemu-system-x86_64", "qemu-system-x86_64", "-name", "evidence,debug-threads=on", "-accel", "tcg,thread=multi", "-S", "-smp", "3",
		       "-m", "32", "-nodefaults", "-display", "none", NULL);
		_exit(1);
	}
	found = wait_for(pid, 3, true, NULL, &peer);
	end_peer(pid);
	assert_true(found);
	/* Its threads run wherever the process may: with one CPU allowed that is a bond, with more it is none. */
	assert_int_equal(cpulist_count(&peer.vcpus), cpulist_count(&allowed) == 1);
}

/* ------------------------------------------------------------------ an invented procfs */

static void put_text(const char *directory, const char *name, const char *text)
{
	char path[PATH_MAX];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* CPUs on which a thread may run. */
static void put_bond(int pid, int tid, int first, int last)
{
	char directory[PATH_MAX - 16], text[128];

	snprintf(directory, sizeof(directory), "%s/%d/task/%d", root, pid, tid);
	snprintf(text, sizeof(text), "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t%d-%d\nMems_allowed:\t1\n", first, last);
	put_text(directory, "status", text);
}

/* Fields 1 to 52 of proc_pid_stat(5), the 39th is the CPU. */
static void put_thread(int pid, int tid, const char *name, int cpu, unsigned long long run_ns)
{
	char directory[PATH_MAX - 16], text[512];

	snprintf(directory, sizeof(directory), "%s/%d", root, pid);
	mkdir(directory, 0700);
	snprintf(directory, sizeof(directory), "%s/%d/task", root, pid);
	mkdir(directory, 0700);
	snprintf(directory, sizeof(directory), "%s/%d/task/%d", root, pid, tid);
	mkdir(directory, 0700);
	snprintf(text, sizeof(text), "%d (%s) S 1 5 5 0 -1 4194560 1 0 0 0 77 88 0 0 20 0 1 0 9 1 1 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 %d 0 0 0 0 0 "
		 "1 1 1 1 1 1 1 0\n", tid, name, cpu);
	put_text(directory, "stat", text);
	snprintf(text, sizeof(text), "%llu 12 3\n", run_ns);
	put_text(directory, "schedstat", text);
	put_bond(pid, tid, cpu, cpu);
}

static void names_of_hypervisors(void **state)
{
	static const struct {
		const char *name;
		bool vcpu;
	} names[] = {
		{ "CPU 0/KVM", true },	{ "CPU 127/TCG", true }, { "ALL CPUs/TCG", true }, { "vcpu0", true },	 { "fc_vcpu 3", true },
		{ "crosvm_vcpu1", true }, { "vcpu_12", true },	 { "CPU 1", false },	   { "CPU /KVM", false }, { "CPU x/KVM", false },
		{ "vcpus", false },	  { "a) S 1 (b", false }, { "", false },	   { "qemu-system-x86", false },
	};
	struct evidence_peer peer;
	unsigned i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		put_thread(100 + (int)i, 100 + (int)i, names[i].name, 5, 0);
		assert_int_equal(evidence_peer_read_from(root, 100 + (int)i, &topology, &peer), 0);
		assert_int_equal(peer.named, names[i].vcpu);
		assert_int_equal(peer.threads, names[i].vcpu);
		assert_cpus(&peer.vcpus, names[i].vcpu ? "5" : "");
		assert_int_equal(peer.node, names[i].vcpu ? 0 : -1); /* 5 / 2 % 2 */
	}
}

static void majority_and_busiest(void **state)
{
	struct evidence_peer peer;

	put_thread(7, 7, "qemu", 0, 900000000);
	put_thread(7, 8, "CPU 0/KVM", 2, 5);
	put_thread(7, 9, "CPU 1/KVM", 3, 5);
	put_thread(7, 10, "CPU 2/KVM", 0, 5);
	assert_int_equal(evidence_peer_read_from(root, 7, &topology, &peer), 0);
	assert_cpus(&peer.vcpus, "0,2-3");
	assert_int_equal(peer.node, 1);
	put_bond(7, 9, 0, 7); /* free to run elsewhere: it binds no CPU, its node counts */
	assert_int_equal(evidence_peer_read_from(root, 7, &topology, &peer), 0);
	assert_cpus(&peer.vcpus, "0,2");
	assert_int_equal(peer.node, 1);
	put_thread(7, 11, "CPU 3/KVM", 1, 5); /* two each: the lower */
	assert_int_equal(evidence_peer_read_from(root, 7, &topology, &peer), 0);
	assert_int_equal(peer.threads, 4);
	assert_int_equal(peer.node, 0);

	put_thread(20, 20, "testpmd", 4, 100);
	put_thread(20, 21, "lcore-worker-1", 2, 4000);
	put_thread(20, 22, "lcore) -worker (", 3, 1000);
	put_thread(20, 23, "helper", 6, 999);
	assert_int_equal(evidence_peer_read_from(root, 20, &topology, &peer), 0);
	assert_false(peer.named);
	assert_cpus(&peer.vcpus, "2-3");
	assert_int_equal(peer.node, 1);
}

static void odd_files_and_many_threads(void **state)
{
	struct evidence_peer peer;
	char path[PATH_MAX - 16];
	int i;

	for (i = 0; i < EVIDENCE_THREADS_MAX + 100; i++)
		put_thread(30, 30 + i, "CPU 0/KVM", i % 64, 0);
	assert_int_equal(evidence_peer_read_from(root, 30, &topology, &peer), 0);
	assert_int_equal(peer.threads, EVIDENCE_THREADS_MAX); /* bounded */

	put_thread(40, 40, "CPU 0/KVM", 1, 0);
	put_thread(40, 41, "CPU 1/KVM", 9999999, 0); /* no CPU of ours */
	snprintf(path, sizeof(path), "%s/40/task/42", root); /* ended while we looked */
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/40/task/43", root);
	mkdir(path, 0700);
	put_text(path, "stat", "43 (CPU 2/KVM) S 1 2 3");
	snprintf(path, sizeof(path), "%s/40/task/44", root);
	mkdir(path, 0700);
	put_text(path, "stat", "nothing of the kind");
	assert_int_equal(evidence_peer_read_from(root, 40, &topology, &peer), 0);
	assert_int_equal(peer.threads, 1);
	assert_cpus(&peer.vcpus, "1");
}

/* ------------------------------------------------------------------ readings over time */

static void add(struct evidence_history *history, pid_t pid, const char *cpus, int node)
{
	struct evidence_peer reading = { .pid = pid, .vcpus = list(cpus), .node = node, .threads = 2 };

	evidence_history_add(history, &reading);
}

#define assert_history(history, cpus, expected_node)            \
	do {                                                    \
		struct evidence_peer got_;                      \
		evidence_history_get(history, &got_);           \
		assert_cpus(&got_.vcpus, cpus);                 \
		assert_int_equal(got_.node, (expected_node));   \
	} while (0)

static void wandering_threads_bind_nothing(void **state)
{
	struct evidence_history history = { 0 };
	unsigned i;

	assert_history(&history, "", -1);
	add(&history, 9, "1,4", 0);
	assert_history(&history, "1,4", 0); /* all that is known yet */
	for (i = 0; i < 40; i++) {
		char cpus[16];

		snprintf(cpus, sizeof(cpus), "1,%u", 4 + i % 4); /* vCPU 0 is pinned, vCPU 1 wanders */
		add(&history, 9, cpus, (int)i % 2); /* and the majority with it */
		if (i > 1)
			assert_history(&history, "1", 0);
	}
	for (i = 0; i < EVIDENCE_SAMPLES; i++)
		add(&history, 9, "1,4", 0);
	add(&history, 9, "2-3", 1); /* both move, for good */
	assert_history(&history, "1,4", 0);
	add(&history, 9, "2-3", 1);
	assert_history(&history, "", 0);
	add(&history, 9, "2-3", 1);
	assert_history(&history, "2-3", 1);
	add(&history, 10, "7", 0); /* another process: from the beginning */
	assert_history(&history, "7", 0);
	add(&history, 10, "6", -1);
	assert_history(&history, "", 0);
}

/* Within its node at once; to another node when it stays there. */
static void kicks_from_two_nodes(void **state)
{
	struct evidence_kick kick = EVIDENCE_KICK_NONE;
	unsigned i;

	evidence_kick_add(&kick, &topology, -1);
	assert_int_equal(kick.cpu, -1);
	evidence_kick_add(&kick, &topology, 1);
	assert_int_equal(kick.cpu, 1);
	evidence_kick_add(&kick, &topology, 0);
	assert_int_equal(kick.cpu, 0);
	evidence_kick_add(&kick, &topology, -1); /* no kick since a move: no news */
	assert_int_equal(kick.cpu, 0);
	for (i = 0; i < 40; i++) { /* to and fro, now and then twice the same */
		evidence_kick_add(&kick, &topology, i % 3 ? 2 : 1);
		assert_int_equal(topology_cpu_node(&topology, kick.cpu), 0);
	}
	evidence_kick_add(&kick, &topology, 0);
	for (i = 0; i < EVIDENCE_KICKS; i++) {
		assert_int_equal(kick.cpu, 0);
		evidence_kick_add(&kick, &topology, 2 + (int)i % 2);
	}
	assert_int_equal(topology_cpu_node(&topology, kick.cpu), 1);
	evidence_kick_add(&kick, &topology, 7); /* node 1 as well */
	assert_int_equal(kick.cpu, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(node_of_pages),
		cmocka_unit_test(named_threads_of_a_peer),
		cmocka_unit_test(busiest_thread_of_an_unnamed_peer),
		cmocka_unit_test(qemu_as_a_peer),
		ON_A_TREE(names_of_hypervisors),
		ON_A_TREE(majority_and_busiest),
		ON_A_TREE(odd_files_and_many_threads),
		cmocka_unit_test(wandering_threads_bind_nothing),
		cmocka_unit_test(kicks_from_two_nodes),
	};

	return cmocka_run_group_tests(tests, invent_topology, NULL);
}
