/* SPDX-License-Identifier: BSD-2-Clause */
/* The parser of sysfs on invented trees and on this machine. */
#include <sched.h>

#include "common/util.h"
#include "control/topology.h"
#include "invented_tree.h"

/* ------------------------------------------------------------------ inventing a sysfs */

static struct topology topology;

static struct cpulist list(const char *text)
{
	struct cpulist l;

	assert_true(cpulist_parse(text, &l, NULL));
	return l;
}

static int read_root(const char *allowed)
{
	struct cpulist l = list(allowed);
	struct error error = { 0 };
	int code = topology_read_from(root, &l, &topology, &error);

	if (code < 0)
		assert_true(strstr(error.text, "; ") != NULL); /* says a remedy */
	return code;
}

static void put_core(unsigned cpu, const char *file, const char *siblings)
{
	char name[128];

	snprintf(name, sizeof(name), "devices/system/cpu/cpu%u/topology/%s", cpu, file);
	put_file(name, siblings);
}

/* Two nodes of two cores of two threads, numbered as Intel does: 0,4 1,5 on node 0, 2,6 3,7 on node 1; node 2 has memory alone. CPU 6 is offline. */
static void put_two_nodes(void)
{
	put_file("devices/system/cpu/online", "0-5,7");
	put_file("devices/system/cpu/present", "0-7");
	put_core(0, "core_cpus_list", "0,4");
	put_core(4, "core_cpus_list", "0,4");
	put_core(1, "core_cpus_list", "1,5");
	put_core(5, "core_cpus_list", "1,5");
	put_core(2, "core_cpus_list", "2");
	put_core(3, "thread_siblings_list", "3,7"); /* the older name */
	put_core(7, "thread_siblings_list", "3,7");
	put_file("devices/system/node/online", "0-2");
	put_file("devices/system/node/has_memory", "0,2");
	put_file("devices/system/node/node0/cpulist", "0-1,4-5");
	put_file("devices/system/node/node1/cpulist", "2-3,7");
	put_file("devices/system/node/node2/cpulist", "");
	put_file("devices/system/node/node0/distance", "10 21 31");
	put_file("devices/system/node/node1/distance", "21 10 17");
	put_file("devices/system/node/node2/distance", "31 17 10");
	put_link("devices/system/cpu/cpu6/node1", "../../node/node1");
}

/* ------------------------------------------------------------------ tests */

static void reads_nodes_cores_distances(void **state)
{
	static const int nodes[] = { 0, 0, 1, 1, 0, 0, 1, 1 }, cores[] = { 0, 1, 2, 3, 0, 1, -1, 3 };
	static const unsigned distances[3][3] = { { 10, 21, 31 }, { 21, 10, 17 }, { 31, 17, 10 } };
	unsigned i, k;

	put_two_nodes();
	assert_int_equal(read_root("0-3,6"), 0);
	assert_int_equal(topology.cpu_count, 8);
	assert_int_equal(topology.node_count, 3);
	for (i = 0; i < 8; i++) {
		assert_true(topology.cpus[i].present);
		assert_int_equal(topology.cpus[i].online, i != 6);
		assert_int_equal(topology.cpus[i].allowed, i < 4 || i == 6);
		assert_int_equal(topology.cpus[i].node, nodes[i]); /* 6 by its link: the cpulist forgets an offline CPU */
		assert_int_equal(topology.cpus[i].core, cores[i]);
	}
	assert_false(topology.cpus[8].present);
	assert_int_equal(topology.cpus[8].node, -1);
	for (i = 0; i < 3; i++) {
		assert_int_equal(topology.node_has_memory[i], i != 1);
		for (k = 0; k < 3; k++) {
			assert_int_equal(topology.distance[i][k], distances[i][k]);
			assert_int_equal(topology_distance(&topology, (int)i, (int)k), distances[i][k]);
		}
	}
	assert_int_equal(topology_distance(&topology, 0, 5), TOPOLOGY_DISTANCE_UNKNOWN);
	assert_int_equal(topology_distance(&topology, -1, 0), TOPOLOGY_DISTANCE_UNKNOWN);
	assert_int_equal(topology_cpu_node(&topology, 7), 1);
	assert_int_equal(topology_cpu_node(&topology, -1), -1);
	assert_int_equal(topology_cpu_node(&topology, CPUS_MAX), -1);
}

/* With memory alone, and with CPUs alone; not those in between or beyond. */
static void tells_which_nodes_there_are(void **state)
{
	char text[64];

	put_two_nodes();
	assert_int_equal(read_root("0-7"), 0);
	for (int node = -2; node < VL_NODES_MAX + 2; node++)
		assert_int_equal(topology_has_node(&topology, node), node >= 0 && node <= 2);
	assert_string_equal(topology_format_nodes(&topology, text, sizeof(text)), "0-2");
	topology.node_has_memory[2] = false;
	topology.node_has_memory[40] = true;
	assert_false(topology_has_node(&topology, 2));
	assert_string_equal(topology_format_nodes(&topology, text, sizeof(text)), "0-1,40");
}

/* Node numbers with a hole: the distances of a line belong to the online nodes, in order. */
static void node_numbers_with_holes(void **state)
{
	put_file("devices/system/cpu/online", "0-1");
	put_file("devices/system/node/online", "1,8");
	put_file("devices/system/node/node1/cpulist", "0");
	put_file("devices/system/node/node8/cpulist", "1");
	put_file("devices/system/node/node1/distance", "10 40");
	put_file("devices/system/node/node8/distance", "40 10");
	assert_int_equal(read_root("0-1"), 0);
	assert_int_equal(topology.cpu_count, 2); /* no `present`: those online */
	assert_int_equal(topology.node_count, 9);
	assert_int_equal(topology.cpus[1].node, 8);
	assert_int_equal(topology.cpus[1].core, -1);
	assert_int_equal(topology.distance[1][8], 40);
	assert_int_equal(topology.distance[8][1], 40);
	assert_int_equal(topology.distance[0][1], 0);
	assert_true(topology.node_has_memory[8]); /* no `has_memory`: taken for granted */
}

static void a_kernel_without_numa(void **state)
{
	put_file("devices/system/cpu/online", "0-3");
	assert_int_equal(read_root("1,900"), 0);
	assert_int_equal(topology.node_count, 1);
	assert_int_equal(topology.cpus[3].node, 0);
	assert_true(topology.cpus[1].allowed);
	assert_false(topology.cpus[0].allowed);
	assert_false(topology.cpus[900].present);
	assert_int_equal(topology.distance[0][0], 10);
}

static void refuses_what_is_no_sysfs(void **state)
{
	assert_int_equal(read_root("0"), -ENOENT);
	put_file("devices/system/cpu/online", "zero");
	assert_int_equal(read_root("0"), -EINVAL);
	put_file("devices/system/cpu/online", "");
	assert_int_equal(read_root("0"), -ENODATA);
	put_file("devices/system/cpu/online", "0-5000");
	assert_int_equal(read_root("0"), -EINVAL);
	/* Nonsense in what is optional takes nothing else along. */
	put_file("devices/system/cpu/online", "0-1");
	put_file("devices/system/node/online", "0-1");
	put_file("devices/system/node/node0/cpulist", "0-1");
	put_file("devices/system/node/node1/cpulist", "!");
	put_file("devices/system/node/node0/distance", "10 9999 7 7 7");
	put_core(0, "core_cpus_list", "1"); /* not of its own core? */
	assert_int_equal(read_root("0"), 0);
	assert_int_equal(topology.cpus[1].node, 0);
	assert_int_equal(topology.cpus[0].core, -1);
	assert_int_equal(topology.distance[0][1], 0);
}

static void device_node_of_ancestors(void **state)
{
	static const char *const no_names[] = { "", ".", "..", "../lo", "a/b", "a-name-of-seventeen", "nothere" };
	unsigned i;

	/* A PCI NIC, a virtio NIC on a bridge that knows, one where nobody knows, a veth. */
	put_file("devices/pci0000:00/0000:00:02.0/numa_node", "3");
	put_link("class/net/nic0/device", "../../../devices/pci0000:00/0000:00:02.0");
	put_file("devices/pci0000:80/numa_node", "1");
	put_file("devices/pci0000:80/0000:80:00.0/numa_node", "-1");
	put_file("devices/pci0000:80/0000:80:00.0/virtio2/features", "1");
	put_link("class/net/virt0/device", "../../../devices/pci0000:80/0000:80:00.0/virtio2");
	put_file("devices/pci0000:00/0000:00:03.0/numa_node", "-1");
	put_file("devices/pci0000:00/0000:00:03.0/virtio0/features", "1");
	put_link("class/net/virt1/device", "../../../devices/pci0000:00/0000:00:03.0/virtio0");
	put_file("class/net/veth0/ifindex", "7");
	put_file("elsewhere/numa_node", "0"); /* outside of devices/: not an ancestor */
	put_link("class/net/odd0/device", "../../../elsewhere");

	assert_int_equal(topology_device_node_from(root, "nic0"), 3);
	assert_int_equal(topology_device_node_from(root, "virt0"), 1);
	assert_int_equal(topology_device_node_from(root, "virt1"), -1);
	assert_int_equal(topology_device_node_from(root, "veth0"), -1);
	assert_int_equal(topology_device_node_from(root, "odd0"), -1);
	for (i = 0; i < ARRAY_SIZE(no_names); i++)
		assert_int_equal(topology_device_node_from(root, no_names[i]), -1);
	assert_int_equal(topology_device_node_from("/nonexistent", "nic0"), -1);
}

static void this_machine(void **state)
{
	struct cpulist allowed, online;
	struct error error;
	unsigned cpu, seen = 0;

	assert_int_equal(topology_read(&topology, &error), 0);
	assert_int_equal(cpulist_allowed(&allowed), 0);
	assert_int_equal(cpulist_online(&online), 0);
	for (cpu = 0; cpu < CPUS_MAX; cpu++) {
		const struct topology_cpu *c = &topology.cpus[cpu];

		if (cpulist_has(&online, cpu)) {
			assert_true(c->present && c->online);
			assert_int_equal(c->allowed, cpulist_has(&allowed, cpu));
			assert_in_range(c->node, 0, topology.node_count - 1);
			assert_in_range(c->core, 0, cpu); /* the lowest sibling names the core */
			assert_int_equal(topology.cpus[c->core].core, c->core);
			assert_int_equal(topology.distance[c->node][c->node], 10);
			seen++;
		}
		if (c->present)
			assert_true(cpu < topology.cpu_count);
	}
	assert_true(seen > 0);
	assert_int_equal(topology_device_node("lo"), -1);
}

/* The CPU that this thread runs on, by the kernel's own word. */
static void agrees_with_getcpu(void **state)
{
	cpu_set_t before, one;
	unsigned cpu, node;

	assert_int_equal(topology_read(&topology, NULL), 0);
	assert_return_code(sched_getaffinity(0, sizeof(before), &before), errno);
	for (unsigned c = 0; c < topology.cpu_count && c < CPU_SETSIZE; c++) {
		if (!topology.cpus[c].allowed || !topology.cpus[c].online)
			continue;
		CPU_ZERO(&one);
		CPU_SET(c, &one);
		if (sched_setaffinity(0, sizeof(one), &one) < 0 || getcpu(&cpu, &node) < 0 || cpu != c)
			continue; /* just went offline */
		assert_int_equal(topology.cpus[c].node, (int)node);
	}
	sched_setaffinity(0, sizeof(before), &before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_A_TREE(reads_nodes_cores_distances),
		ON_A_TREE(tells_which_nodes_there_are),
		ON_A_TREE(node_numbers_with_holes),
		ON_A_TREE(a_kernel_without_numa),
		ON_A_TREE(refuses_what_is_no_sysfs),
		ON_A_TREE(device_node_of_ancestors),
		cmocka_unit_test(this_machine),
		cmocka_unit_test(agrees_with_getcpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
