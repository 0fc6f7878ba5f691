/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/evidence.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/util.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

#define CANDIDATES_MAX 128 /* threads taken for vCPUs of a process that names none */
#define STAT_PROCESSOR 39  /* field numbers of proc_pid_stat(5) */
#define STAT_STATE 3

struct thread {
	pid_t tid;
	int cpu;
	uint64_t run_ns;
};

/* ------------------------------------------------------------------ memory */

int evidence_ring_node(const void *page)
{
	uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
	void *start = (void *)((uintptr_t)page & ~(size - 1));
	int node = -1;

	if (!page || move_pages(0, 1, &start, NULL, &node, 0) < 0)
		return -1;
	if (node == -ENOENT && madvise(start, size, MADV_POPULATE_READ) == 0 && move_pages(0, 1, &start, NULL, &node, 0) < 0)
		return -1;
	return node >= 0 && node < VL_NODES_MAX ? node : -1;
}

int evidence_pages_node(const void *const *addresses, unsigned count)
{
	const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
	unsigned on_node[VL_NODES_MAX] = { 0 };
	void *pages[EVIDENCE_PAGES_MAX];
	int nodes[EVIDENCE_PAGES_MAX], best = -1, node;
	unsigned i;

	count = min_u32(count, EVIDENCE_PAGES_MAX);
	for (i = 0; i < count; i++)
		pages[i] = (void *)((uintptr_t)addresses[i] & ~(size - 1));
	if (!count || move_pages(0, count, pages, NULL, nodes, 0) < 0)
		return -1;
	for (i = 0; i < count; i++)
		if (nodes[i] >= 0 && nodes[i] < VL_NODES_MAX)
			on_node[nodes[i]]++;
	for (node = 0; node < VL_NODES_MAX; node++)
		if (on_node[node] && (best < 0 || on_node[node] > on_node[best]))
			best = node;
	return best;
}

/* ------------------------------------------------------------------ threads */

/* "CPU 0/KVM", "CPU 0/TCG", "ALL CPUs/TCG" (QEMU), "vcpu0" (cloud-hypervisor), "fc_vcpu 0" (Firecracker), "crosvm_vcpu0". */
static bool is_vcpu_name(const char *name)
{
	const char *p;

	if (strncmp(name, "ALL CPUs/", 9) == 0)
		return true;
	if (strncmp(name, "CPU ", 4) == 0 && isdigit((unsigned char)name[4])) {
		for (p = name + 4; isdigit((unsigned char)*p); p++)
			;
		return *p == '/';
	}
	p = strstr(name, "vcpu");
	if (!p)
		return false;
	p += 4;
	if (*p == ' ' || *p == '_')
		p++;
	return isdigit((unsigned char)*p);
}

static int read_at(int directory, const char *name, char *buffer, size_t size)
{
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, buffer, size - 1);
	if (n < 0)
		n = -errno;
	buffer[n < 0 ? 0 : n] = '\0';
	close(fd);
	return (int)n;
}

/* One read tells name and CPU. The name may hold anything, parentheses too: the last one ends it. */
static bool read_thread(int tasks, pid_t tid, char name[64], int *cpu)
{
	char path[32], text[1024], *open, *close, *field, *rest = NULL;
	int number = STAT_STATE;

	snprintf(path, sizeof(path), "%d/stat", (int)tid);
	if (read_at(tasks, path, text, sizeof(text)) <= 0)
		return false; /* ended meanwhile */
	open = strchr(text, '(');
	close = strrchr(text, ')');
	if (!open || !close || close < open)
		return false;
	*close = '\0';
	copy_string(name, 64, open + 1);
	for (field = strtok_r(close + 1, " ", &rest); field && number < STAT_PROCESSOR; field = strtok_r(NULL, " ", &rest))
		number++;
	if (!field || !isdigit((unsigned char)*field))
		return false;
	*cpu = atoi(field);
	return *cpu < CPUS_MAX;
}

static uint64_t read_run_ns(int tasks, pid_t tid)
{
	char path[32], text[128];

	snprintf(path, sizeof(path), "%d/schedstat", (int)tid);
	return read_at(tasks, path, text, sizeof(text)) > 0 ? strtoull(text, NULL, 10) : 0;
}

/* Is the thread bound to one CPU? One that may run elsewhere gets out of a busy worker's way by itself. */
static bool is_bound(int tasks, pid_t tid)
{
	char path[32], text[4096];
	const char *line;
	struct cpulist allowed;
	char *end;

	snprintf(path, sizeof(path), "%d/status", (int)tid);
	if (read_at(tasks, path, text, sizeof(text)) <= 0)
		return false;
	line = strstr(text, "\nCpus_allowed_list:");
	if (!line)
		return false;
	line += strcspn(line, "\t") + 1;
	end = strchr(line, '\n');
	if (end)
		*end = '\0';
	return cpulist_parse(line, &allowed, NULL) && cpulist_count(&allowed) == 1;
}

struct count {
	const struct topology *topology;
	struct evidence_peer *out;
	unsigned on_node[VL_NODES_MAX];
};

static void count_thread(struct count *count, int tasks, pid_t tid, int cpu)
{
	int node = topology_cpu_node(count->topology, cpu);

	if (is_bound(tasks, tid))
		cpulist_add(&count->out->vcpus, (unsigned)cpu);
	count->out->threads++;
	if (node >= 0 && node < VL_NODES_MAX)
		count->on_node[node]++;
}

static void count_busiest(struct count *count, struct thread *threads, unsigned thread_count, int tasks)
{
	uint64_t most = 0;
	unsigned i;

	for (i = 0; i < thread_count; i++) {
		threads[i].run_ns = read_run_ns(tasks, threads[i].tid);
		if (threads[i].run_ns > most)
			most = threads[i].run_ns;
	}
	/* most = 0: a kernel without schedstat, or a peer that never ran. Then nothing is known. */
	for (i = 0; most && i < thread_count && count->out->threads < CANDIDATES_MAX; i++)
		if (threads[i].run_ns >= most / 4)
			count_thread(count, tasks, threads[i].tid, threads[i].cpu);
}

static void count_threads(struct count *count, DIR *directory)
{
	struct thread threads[EVIDENCE_THREADS_MAX];
	int tasks = dirfd(directory);
	unsigned thread_count = 0;
	struct dirent *entry;
	char name[64];

	while (thread_count < EVIDENCE_THREADS_MAX && (entry = readdir(directory))) {
		struct thread *thread = &threads[thread_count];

		thread->tid = atoi(entry->d_name);
		if (thread->tid <= 0 || !read_thread(tasks, thread->tid, name, &thread->cpu))
			continue;
		thread_count++;
		if (!is_vcpu_name(name))
			continue;
		count->out->named = true;
		count_thread(count, tasks, thread->tid, thread->cpu);
	}
	if (!count->out->named)
		count_busiest(count, threads, thread_count, tasks);
}

int evidence_peer_read_from(const char *procfs, pid_t pid, const struct topology *topology, struct evidence_peer *out)
{
	struct count count = { .topology = topology, .out = out };
	char path[256];
	DIR *directory;
	int node, code;

	*out = (struct evidence_peer){ .node = -1 };
	if (pid <= 0) /* a peer of another PID namespace has none here */
		return -ESRCH;
	snprintf(path, sizeof(path), "%s/%d/task", procfs, (int)pid);
	directory = opendir(path);
	if (!directory) {
		code = -errno;
		return code == -ENOENT ? -ESRCH : code;
	}
	count_threads(&count, directory);
	closedir(directory);

	out->pid = pid;
	for (node = 0; node < VL_NODES_MAX; node++)
		if (count.on_node[node] && (out->node < 0 || count.on_node[node] > count.on_node[out->node]))
			out->node = node;
	return 0;
}

int evidence_peer_read(pid_t pid, const struct topology *topology, struct evidence_peer *out)
{
	return evidence_peer_read_from("/proc", pid, topology, out);
}

/* ------------------------------------------------------------------ agreement over time */

static unsigned held_samples(const struct evidence_history *history)
{
	return min_u32(history->count, EVIDENCE_SAMPLES);
}

/* With few readings all must agree, with all of them one may differ. */
static bool is_agreed(const struct evidence_history *history, unsigned votes)
{
	unsigned held = held_samples(history);

	return votes && votes >= (held == EVIDENCE_SAMPLES ? EVIDENCE_SAMPLES - 1 : held);
}

static int agreed_node(const struct evidence_history *history)
{
	unsigned held = held_samples(history), i, k;

	for (i = 0; i < held; i++) {
		unsigned votes = 0;

		for (k = 0; k < held; k++)
			votes += history->samples[k].node == history->samples[i].node;
		if (is_agreed(history, votes))
			return history->samples[i].node;
	}
	return history->node;
}

void evidence_history_add(struct evidence_history *history, const struct evidence_peer *reading)
{
	if (history->count == 0 || history->samples[0].pid != reading->pid)
		*history = (struct evidence_history){ .node = reading->node };
	history->samples[history->count++ % EVIDENCE_SAMPLES] = *reading;
	if (history->count == 2 * EVIDENCE_SAMPLES) /* the same remainder, never an overflow */
		history->count = EVIDENCE_SAMPLES;
	history->node = agreed_node(history);
}

void evidence_history_get(const struct evidence_history *history, struct evidence_peer *out)
{
	unsigned held = held_samples(history), i;
	int cpu;

	*out = (struct evidence_peer){ .node = -1 };
	if (!held)
		return;
	*out = history->samples[(history->count - 1) % EVIDENCE_SAMPLES];
	out->node = history->node;
	memset(&out->vcpus, 0, sizeof(out->vcpus));
	for (cpu = 0; cpu < CPUS_MAX; cpu++) {
		unsigned votes = 0;

		for (i = 0; i < held; i++)
			votes += cpulist_has(&history->samples[i].vcpus, (unsigned)cpu);
		if (is_agreed(history, votes))
			cpulist_add(&out->vcpus, (unsigned)cpu);
	}
}

void evidence_kick_add(struct evidence_kick *kick, const struct topology *topology, int cpu)
{
	if (cpu < 0)
		return;
	if (kick->cpu >= 0 && topology_cpu_node(topology, cpu) != topology_cpu_node(topology, kick->cpu) && ++kick->other < EVIDENCE_KICKS)
		return;
	*kick = (struct evidence_kick){ .cpu = cpu };
}
