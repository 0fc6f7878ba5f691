/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The machine's CPUs and NUMA nodes. topology_read() asks sysfs and the scheduler; tests invent their own. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_TOPOLOGY_H
#define VHOSTLANE_CONTROL_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cpulist.h"
#include "common/error.h"
#include "vhostlane/bpf_abi.h"

struct topology_cpu {
	bool present; /* possible and has a known place */
	bool online;
	bool allowed; /* the process may run there */
	int16_t node; /* -1 = unknown */
	int16_t core; /* SMT siblings share a core number, unique machine-wide; -1 = unknown */
};

struct topology {
	unsigned cpu_count;  /* highest CPU number + 1 */
	unsigned node_count; /* highest node number + 1, at least 1 */
	struct topology_cpu cpus[CPUS_MAX];
	bool node_has_memory[VL_NODES_MAX];
	uint8_t distance[VL_NODES_MAX][VL_NODES_MAX]; /* ACPI SLIT; 10 = local, 0 = unknown */
};

#define TOPOLOGY_DISTANCE_LOCAL 10
#define TOPOLOGY_DISTANCE_UNKNOWN 256 /* farther than any that the firmware states */

/*
 * The kernel forgets the core of an offline CPU, and takes it off the set of allowed ones: an offline CPU has core -1, keeps its
 * node, and its `allowed` says nothing. Read again after every online event.
 */
int topology_read(struct topology *topology, struct error *error);

/* The same from another sysfs tree (tests) and set of allowed CPUs. A machine without NUMA support is one node, number 0. */
int topology_read_from(const char *sysfs, const struct cpulist *allowed, struct topology *topology, struct error *error);

/* Node of a network device: its own, else that of the nearest ancestor in sysfs that has one (virtio has none itself); -1. */
int topology_device_node(const char *ifname);
int topology_device_node_from(const char *sysfs, const char *ifname);

/* Node of a CPU; -1 if it has none or @cpu is no CPU. */
static inline int topology_cpu_node(const struct topology *topology, int cpu)
{
	return cpu >= 0 && cpu < CPUS_MAX ? topology->cpus[cpu].node : -1;
}

/* Is there such a node: one with memory or with a CPU, be it offline? */
bool topology_has_node(const struct topology *topology, int node);
/* "0-1,4": the nodes that there are. Return: @buffer. */
const char *topology_format_nodes(const struct topology *topology, char *buffer, size_t size);

/* TOPOLOGY_DISTANCE_LOCAL from a node to itself, TOPOLOGY_DISTANCE_UNKNOWN where nothing is known. */
static inline unsigned topology_distance(const struct topology *topology, int from, int to)
{
	if (from < 0 || to < 0 || from >= VL_NODES_MAX || to >= VL_NODES_MAX)
		return TOPOLOGY_DISTANCE_UNKNOWN;
	if (from == to)
		return TOPOLOGY_DISTANCE_LOCAL;
	return topology->distance[from][to] ? topology->distance[from][to] : TOPOLOGY_DISTANCE_UNKNOWN;
}

#endif
