/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/topology.h"

#include <errno.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/util.h"

#define SYSFS "/sys"

static bool exists(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0;
}

/* Return: 0, or the negative errno value of the read, or -EINVAL for text that is no list. */
static int read_list(const char *sysfs, const char *name, struct cpulist *list)
{
	char path[PATH_MAX], text[4096];
	int n;

	snprintf(path, sizeof(path), "%s/devices/system/%s", sysfs, name);
	n = read_text(path, text, sizeof(text));
	if (n < 0)
		return n;
	memset(list, 0, sizeof(*list));
	return cpulist_parse(text, list, NULL) ? 0 : -EINVAL;
}

/* The kernel keeps cpuN/nodeM for an offline CPU, while nodeM/cpulist forgets it. */
static int node_by_link(const char *sysfs, unsigned cpu)
{
	char path[PATH_MAX];
	int node;

	for (node = 0; node < VL_NODES_MAX; node++) {
		snprintf(path, sizeof(path), "%s/devices/system/cpu/cpu%u/node%d", sysfs, cpu, node);
		if (exists(path))
			return node;
	}
	return -1;
}

/* The lowest sibling's number names the core: unique machine-wide, which core_id is not. */
static int core_of(const char *sysfs, unsigned cpu)
{
	/* The second name is what kernels before 5.3 call it. */
	static const char *const names[] = { "core_cpus_list", "thread_siblings_list" };
	struct cpulist siblings;
	char name[64];
	unsigned i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		snprintf(name, sizeof(name), "cpu/cpu%u/topology/%s", cpu, names[i]);
		if (read_list(sysfs, name, &siblings) == 0 && cpulist_has(&siblings, cpu))
			return cpulist_next(&siblings, 0);
	}
	return -1;
}

static void read_distances(const char *sysfs, const struct cpulist *nodes, int from, struct topology *topology)
{
	char path[PATH_MAX], text[1024], *word, *rest = NULL;
	int to = cpulist_next(nodes, 0);

	snprintf(path, sizeof(path), "%s/devices/system/node/node%d/distance", sysfs, from);
	if (read_text(path, text, sizeof(text)) < 0)
		return;
	/* One number per online node, in their order. */
	for (word = strtok_r(text, " ", &rest); word && to >= 0 && to < VL_NODES_MAX; word = strtok_r(NULL, " ", &rest)) {
		uint64_t value;

		if (number_parse(word, TOPOLOGY_DISTANCE_LOCAL, 255, &value))
			topology->distance[from][to] = (uint8_t)value;
		to = cpulist_next(nodes, (unsigned)to + 1);
	}
}

static void read_nodes(const char *sysfs, struct topology *topology)
{
	struct cpulist nodes, memory, cpus;
	char name[64];
	int node, cpu;

	topology->node_count = 1;
	if (read_list(sysfs, "node/online", &nodes) < 0 || cpulist_count(&nodes) == 0) {
		topology->node_has_memory[0] = true;
		topology->distance[0][0] = TOPOLOGY_DISTANCE_LOCAL;
		for (cpu = 0; cpu < (int)topology->cpu_count; cpu++)
			topology->cpus[cpu].node = topology->cpus[cpu].present ? 0 : -1;
		return;
	}
	if (read_list(sysfs, "node/has_memory", &memory) < 0)
		memory = nodes;
	for (node = cpulist_next(&nodes, 0); node >= 0 && node < VL_NODES_MAX; node = cpulist_next(&nodes, (unsigned)node + 1)) {
		topology->node_count = (unsigned)node + 1;
		topology->node_has_memory[node] = cpulist_has(&memory, (unsigned)node);
		topology->distance[node][node] = TOPOLOGY_DISTANCE_LOCAL;
		read_distances(sysfs, &nodes, node, topology);
		snprintf(name, sizeof(name), "node/node%d/cpulist", node);
		if (read_list(sysfs, name, &cpus) < 0)
			continue;
		for (cpu = cpulist_next(&cpus, 0); cpu >= 0; cpu = cpulist_next(&cpus, (unsigned)cpu + 1))
			topology->cpus[cpu].node = (int16_t)node;
	}
	for (cpu = 0; cpu < (int)topology->cpu_count; cpu++)
		if (topology->cpus[cpu].present && topology->cpus[cpu].node < 0)
			topology->cpus[cpu].node = (int16_t)node_by_link(sysfs, (unsigned)cpu);
}

int topology_read_from(const char *sysfs, const struct cpulist *allowed, struct topology *topology, struct error *error)
{
	struct cpulist online, present;
	int code, cpu;

	memset(topology, 0, sizeof(*topology));
	for (cpu = 0; cpu < CPUS_MAX; cpu++)
		topology->cpus[cpu].node = topology->cpus[cpu].core = -1;

	code = read_list(sysfs, "cpu/online", &online);
	if (code == 0 && cpulist_count(&online) == 0)
		code = -ENODATA;
	if (code == -EINVAL)
		return error_set(error, code, "%s/devices/system/cpu/online: no list of CPUs below %d; boot with nr_cpus=%d", sysfs, CPUS_MAX,
				 CPUS_MAX);
	if (code < 0)
		return error_set(error, code, "%s/devices/system/cpu/online: %s; mount sysfs there", sysfs, strerror(-code));
	if (read_list(sysfs, "cpu/present", &present) < 0)
		present = online;

	for (cpu = 0; cpu < CPUS_MAX; cpu++) {
		struct topology_cpu *c = &topology->cpus[cpu];

		if (!cpulist_has(&present, (unsigned)cpu))
			continue;
		topology->cpu_count = (unsigned)cpu + 1;
		c->present = true;
		c->online = cpulist_has(&online, (unsigned)cpu);
		c->allowed = cpulist_has(allowed, (unsigned)cpu);
		c->core = c->online ? (int16_t)core_of(sysfs, (unsigned)cpu) : -1;
	}
	read_nodes(sysfs, topology);
	return 0;
}

int topology_read(struct topology *topology, struct error *error)
{
	struct cpulist allowed;
	int code = cpulist_allowed(&allowed);

	if (code < 0)
		return error_set(error, code, "allowed CPUs: sched_getaffinity: %s; start with `--cpus LIST`", strerror(-code));
	return topology_read_from(SYSFS, &allowed, topology, error);
}

int topology_device_node_from(const char *sysfs, const char *ifname)
{
	char path[PATH_MAX], device[PATH_MAX], root[PATH_MAX], text[32];
	size_t root_length;
	char *end;

	if (!*ifname || strlen(ifname) >= IF_NAMESIZE || strchr(ifname, '/') || ifname[0] == '.')
		return -1;
	snprintf(path, sizeof(path), "%s/devices", sysfs);
	if (!realpath(path, root))
		return -1;
	snprintf(path, sizeof(path), "%s/class/net/%s/device", sysfs, ifname);
	if (!realpath(path, device)) /* veth, tap and other devices of software */
		return -1;
	root_length = strlen(root);
	while (strncmp(device, root, root_length) == 0 && device[root_length] == '/') {
		if (snprintf(path, sizeof(path), "%s/numa_node", device) < (int)sizeof(path) && read_text(path, text, sizeof(text)) > 0) {
			uint64_t node;

			/* -1 here does not end the walk: a bridge above may know. */
			if (number_parse(text, 0, VL_NODES_MAX - 1, &node))
				return (int)node;
		}
		end = strrchr(device, '/');
		*end = '\0';
	}
	return -1;
}

int topology_device_node(const char *ifname)
{
	return topology_device_node_from(SYSFS, ifname);
}

bool topology_has_node(const struct topology *topology, int node)
{
	if (node < 0 || node >= VL_NODES_MAX)
		return false;
	if (topology->node_has_memory[node])
		return true;
	for (unsigned cpu = 0; cpu < topology->cpu_count; cpu++)
		if (topology->cpus[cpu].present && topology->cpus[cpu].node == node)
			return true;
	return false;
}

const char *topology_format_nodes(const struct topology *topology, char *buffer, size_t size)
{
	struct cpulist nodes = { 0 }; /* a set of small numbers in the kernel's notation is what it is */

	for (int node = 0; node < VL_NODES_MAX; node++)
		if (topology_has_node(topology, node))
			cpulist_add(&nodes, (unsigned)node);
	return cpulist_format(&nodes, buffer, size);
}
