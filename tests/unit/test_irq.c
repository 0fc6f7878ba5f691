/* SPDX-License-Identifier: BSD-2-Clause */
/* Interrupts of receive queues, on invented trees with the names that drivers give, and on this machine. */
#include <dirent.h>

#include "common/cpulist.h"
#include "common/util.h"
#include "control/irq.h"
#include "invented_tree.h"
#include "vhostlane/bpf_abi.h"

/* ------------------------------------------------------------------ inventing a machine */

/* A network device at a place in sys/devices, whose interrupts are shown @above it ("" = at itself). */
static void put_netdev(const char *ifname, const char *place)
{
	char name[512], target[512];

	snprintf(name, sizeof(name), "sys/devices/%s/uevent", place);
	put_file(name, "");
	snprintf(name, sizeof(name), "sys/class/net/%s/device", ifname);
	snprintf(target, sizeof(target), "../../../devices/%s", place);
	put_link(name, target);
}

static void put_msi(const char *place, unsigned first, unsigned last)
{
	char name[512];

	snprintf(name, sizeof(name), "sys/devices/%s/irq", place);
	put_file(name, "0");
	for (unsigned irq = first; irq <= last; irq++) {
		snprintf(name, sizeof(name), "sys/devices/%s/msi_irqs/%u", place, irq);
		put_file(name, "msix");
	}
}

static void put_affinity(unsigned irq, const char *list)
{
	char name[64];

	snprintf(name, sizeof(name), "proc/irq/%u/effective_affinity_list", irq);
	put_file(name, list);
}

/* /proc/interrupts with these lines behind its head and before its tail. IRQ n runs on CPU n % 8. */
static void put_interrupts(const char *const *lines, unsigned count)
{
	char text[16384];
	int at = snprintf(text, sizeof(text), "           CPU0       CPU1\n   1:          9          0   IO-APIC   1-edge      i8042\n");

	for (unsigned i = 0; i < count; i++) {
		char cpu[16];
		unsigned irq = (unsigned)atoi(lines[i]);

		at += snprintf(text + at, sizeof(text) - (size_t)at, "%4u:         12   99999999 %s\n", irq, strchr(lines[i], ' '));
		snprintf(cpu, sizeof(cpu), "%u", irq % 8);
		put_affinity(irq, cpu);
	}
	snprintf(text + at, sizeof(text) - (size_t)at, " NMI:          0          0   Non-maskable interrupts\n ERR:          0\n");
	put_file("proc/interrupts", text);
}

static int cpu_of(const char *ifname, unsigned queue)
{
	char sysfs[PATH_MAX / 2], procfs[PATH_MAX / 2];
	int cpus[VL_DEVICE_QUEUES_MAX];

	assert_true(queue < ARRAY_SIZE(cpus));
	snprintf(sysfs, sizeof(sysfs), "%s/sys", root);
	snprintf(procfs, sizeof(procfs), "%s/proc", root);
	irq_cpus_of_queues_from(sysfs, procfs, ifname, cpus, ARRAY_SIZE(cpus));
	return cpus[queue];
}

#define PCI "pci0000:00/0000:00:03.0"
#define PUT_INTERRUPTS(...)                                            \
	do {                                                           \
		static const char *const lines_[] = { __VA_ARGS__ };   \
		put_interrupts(lines_, ARRAY_SIZE(lines_));            \
	} while (0)

/* ------------------------------------------------------------------ tests */

/* Names as drivers give them; four interrupts from 40 on, the first for the device itself. Queue n is served by IRQ 41 + n. */
static void names_of_drivers(void **state)
{
	static const char *const forms[] = {
		"eth0-rx-%u",	    "eth0-TxRx-%u",	 "i40e-eth0-TxRx-%u",  "ice-eth0-TxRx-%u",
		"eth0-Tx-Rx-%u",    "eth0-rxtx-%u",	 "bnxt_en-eth0-TxRx-%u", "mlx5_comp%u@pci:0000:00:03.0",
		"virtio0-input.%u", "eth0-fp-%u",	 "eth0-q%u-rx",		 "eth0-%u",
		"eth0-rx%u",	    "virtio0-input-%u",
	};

	put_netdev("eth0", PCI);
	put_msi(PCI, 40, 43);
	for (unsigned f = 0; f < ARRAY_SIZE(forms); f++) {
		char lines[4][128];
		const char *pointers[] = { lines[0], lines[1], lines[2], lines[3] };

		snprintf(lines[0], sizeof(lines[0]), "40 PCI-MSIX-0000:00:03.0   0-edge   eth0");
		for (unsigned q = 0; q < 3; q++) {
			int at = snprintf(lines[q + 1], sizeof(lines[0]), "%u PCI-MSIX-0000:00:03.0   %u-edge   ", 41 + q, q + 1);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
			snprintf(lines[q + 1] + at, sizeof(lines[0]) - (size_t)at, forms[f], q);
#pragma GCC diagnostic pop
		}
		put_interrupts(pointers, 4);
		for (unsigned q = 0; q < 3; q++)
			if (cpu_of("eth0", q) != (int)(41 + q) % 8)
				fail_msg("%s: queue %u on CPU %d, not %u", forms[f], q, cpu_of("eth0", q), (41 + q) % 8);
		assert_int_equal(cpu_of("eth0", 3), -1);
	}
}

static void receive_and_transmit_apart(void **state)
{
	put_netdev("eth0", PCI "/virtio0");
	put_msi(PCI, 40, 45);
	PUT_INTERRUPTS("40 MSI 0-edge virtio0-config", "41 MSI 1-edge virtio0-output.0", "42 MSI 2-edge virtio0-input.0",
		       "43 MSI 3-edge virtio0-output.1", "44 MSI 4-edge virtio0-input.1", "45 MSI 5-edge virtio0-control");
	assert_int_equal(cpu_of("eth0", 0), 42 % 8);
	assert_int_equal(cpu_of("eth0", 1), 44 % 8);
	assert_int_equal(cpu_of("eth0", 2), -1);

	PUT_INTERRUPTS("40 MSI 0-edge eth0-tx-0", "41 MSI 1-edge eth0-rx-0", "42 MSI 2-edge eth0-tx-1", "43 MSI 3-edge eth0-rx-1",
		       "44 MSI 4-edge eth0");
	assert_int_equal(cpu_of("eth0", 0), 41 % 8);
	assert_int_equal(cpu_of("eth0", 1), 43 % 8);
}

static void two_digits(void **state)
{
	put_netdev("eth0", PCI);
	put_msi(PCI, 40, 42);
	PUT_INTERRUPTS("40 MSI 0-edge eth0-TxRx-1", "41 MSI 1-edge eth0-TxRx-10", "42 MSI 2-edge eth0-TxRx-11");
	assert_int_equal(cpu_of("eth0", 1), 40 % 8);
	assert_int_equal(cpu_of("eth0", 10), 41 % 8);
	assert_int_equal(cpu_of("eth0", 11), 42 % 8);
	assert_int_equal(cpu_of("eth0", 0), -1);
}

/* An interface whose own name looks like a queue's. */
static void misleading_interface_names(void **state)
{
	put_netdev("rx0", PCI);
	put_msi(PCI, 40, 44);
	PUT_INTERRUPTS("40 MSI 0-edge rx0", "41 MSI 1-edge rx0-tx-0", "42 MSI 1-edge rx0-tx-1", "43 MSI 1-edge rx0-rx-1",
		       "44 MSI 1-edge rx0-rx-0");
	assert_int_equal(cpu_of("rx0", 0), 44 % 8);
	assert_int_equal(cpu_of("rx0", 1), 43 % 8);
}

/* Interrupts of other devices are not taken, whatever they are called. */
static void only_its_own(void **state)
{
	put_netdev("eth0", PCI);
	put_msi(PCI, 40, 41);
	put_netdev("eth1", "pci0000:00/0000:00:04.0");
	put_msi("pci0000:00/0000:00:04.0", 50, 51);
	PUT_INTERRUPTS("33 MSI 1-edge virtio3-rx", "34 MSI 1-edge eth0-rx-0", "40 MSI 0-edge eth0-rx-0", "41 MSI 1-edge eth0-rx-1",
		       "50 MSI 0-edge eth0-rx-1", "51 MSI 1-edge eth1-rx-0");
	assert_int_equal(cpu_of("eth0", 0), 40 % 8);
	assert_int_equal(cpu_of("eth0", 1), 41 % 8);
	assert_int_equal(cpu_of("eth1", 0), 51 % 8);
}

/* One function of the bus with two network devices: the one that bears the name. */
static void two_devices_in_one(void **state)
{
	put_netdev("eth0", PCI);
	put_netdev("eth1", PCI);
	put_msi(PCI, 40, 43);
	PUT_INTERRUPTS("40 MSI 0-edge eth0-rx-0", "41 MSI 1-edge eth1-rx-0", "42 MSI 2-edge eth1-rx-1", "43 MSI 3-edge eth0-rx-1");
	assert_int_equal(cpu_of("eth0", 0), 40 % 8);
	assert_int_equal(cpu_of("eth1", 0), 41 % 8);
	assert_int_equal(cpu_of("eth1", 1), 42 % 8);
	assert_int_equal(cpu_of("eth0", 1), 43 % 8);
}

/* One line, or one vector, for everything: it serves every queue. */
static void one_for_all(void **state)
{
	put_netdev("eth0", PCI "/virtio0");
	put_file("sys/devices/" PCI "/irq", "11");
	PUT_INTERRUPTS("11 IO-APIC 11-fasteoi virtio0, uhci_hcd:usb1", "12 IO-APIC 12-edge i8042");
	assert_int_equal(cpu_of("eth0", 0), 11 % 8);
	assert_int_equal(cpu_of("eth0", 3), 11 % 8);

	put_netdev("eth1", "pci0000:00/0000:00:05.0");
	put_msi("pci0000:00/0000:00:05.0", 60, 60);
	PUT_INTERRUPTS("60 MSI 0-edge eth1");
	assert_int_equal(cpu_of("eth1", 0), 60 % 8);
	assert_int_equal(cpu_of("eth1", 1), 60 % 8);

	put_netdev("eth2", "pci0000:00/0000:00:06.0/virtio2");
	put_msi("pci0000:00/0000:00:06.0", 61, 62);
	PUT_INTERRUPTS("61 MSI 0-edge virtio2-config", "62 MSI 1-edge virtio2-virtqueues");
	assert_int_equal(cpu_of("eth2", 5), 62 % 8);
}

/* The bridge above has an interrupt, which is nobody's queue. */
static void not_the_bridge(void **state)
{
	put_netdev("eth0", "pci0000:00/0000:00:1c.0/0000:02:00.0");
	put_file("sys/devices/pci0000:00/0000:00:1c.0/0000:02:00.0/irq", "0");
	put_msi("pci0000:00/0000:00:1c.0", 24, 24);
	PUT_INTERRUPTS("24 PCI-MSI 458752-edge PCIe PME, pciehp");
	assert_int_equal(cpu_of("eth0", 0), -1);
}

/* A bus that shows no interrupts: only a name with the interface's own in it is believed. */
static void names_alone(void **state)
{
	put_netdev("eth0", "vif-0");
	PUT_INTERRUPTS("70 xen-dyn -event eth0-q0-tx", "71 xen-dyn -event eth0-q0-rx", "72 xen-dyn -event eth0-q1-rx",
		       "73 xen-dyn -event eth00-q2-rx", "74 MSI 0-edge virtio0-input.2");
	assert_int_equal(cpu_of("eth0", 0), 71 % 8);
	assert_int_equal(cpu_of("eth0", 1), 72 % 8);
	assert_int_equal(cpu_of("eth0", 2), -1);
}

static void where_the_kernel_is_vague(void **state)
{
	put_netdev("eth0", PCI);
	put_msi(PCI, 40, 43);
	PUT_INTERRUPTS("40 MSI 0-edge eth0-rx-0", "41 MSI 1-edge eth0-rx-1", "42 MSI 2-edge eth0-rx-2", "43 MSI 3-edge eth0-rx-3");
	put_affinity(40, "5-7");
	assert_int_equal(cpu_of("eth0", 0), 5);
	put_affinity(41, "");
	assert_int_equal(cpu_of("eth0", 1), -1);
	put_file("proc/irq/41/smp_affinity_list", "6");
	assert_int_equal(cpu_of("eth0", 1), 6);
	put_file("proc/irq/41/smp_affinity_list", "0-7");
	assert_int_equal(cpu_of("eth0", 1), -1);
	put_affinity(42, "none");
	assert_int_equal(cpu_of("eth0", 2), -1);
	remove(in_root("proc/irq/43/effective_affinity_list"));
	assert_int_equal(cpu_of("eth0", 3), -1);
}

static void no_device(void **state)
{
	static const char *const no_names[] = { "", ".", "..", "nothing", "eth0/device", "../net/eth0", "a-name-of-16-chr" };
	int cpu = 0;

	put_netdev("eth0", PCI);
	put_msi(PCI, 40, 40);
	PUT_INTERRUPTS("40 MSI 0-edge eth0-rx-0");
	put_file("sys/class/net/veth0/ifindex", "7");
	assert_int_equal(cpu_of("veth0", 0), -1);
	for (unsigned i = 0; i < ARRAY_SIZE(no_names); i++)
		assert_int_equal(cpu_of(no_names[i], 0), -1);
	remove(in_root("proc/interrupts"));
	assert_int_equal(cpu_of("eth0", 0), -1);
	irq_cpus_of_queues_from("/nonexistent", "/nonexistent", "eth0", &cpu, 1);
	assert_int_equal(cpu, -1);
}

static void broken_lines(void **state)
{
	put_netdev("eth0", PCI);
	put_msi(PCI, 40, 41);
	put_affinity(40, "3");
	put_file("proc/interrupts", "\n:\n40\n40 eth0-rx-0\nx40: eth0-rx-0\n41:\n  40:\n40: 1 2 3\n99999999999999999999: eth0-rx-0\n 40: eth0-rx-");
	assert_int_equal(cpu_of("eth0", 0), -1);
	put_file("proc/interrupts", " 40: eth0-rx-0");
	assert_int_equal(cpu_of("eth0", 0), 3);
}

/* Whatever this machine has: an online CPU or nothing; nothing for the loopback. */
static void this_machine(void **state)
{
	DIR *directory = opendir("/sys/class/net");
	struct dirent *entry;
	struct cpulist online;
	int lo = 0;

	assert_non_null(directory);
	assert_int_equal(cpulist_online(&online), 0);
	while ((entry = readdir(directory))) {
		int cpu = -1;

		if (entry->d_name[0] != '.')
			irq_cpus_of_queues(entry->d_name, &cpu, 1);
		assert_true(cpu == -1 || cpulist_has(&online, (unsigned)cpu));
	}
	closedir(directory);
	irq_cpus_of_queues("lo", &lo, 1);
	assert_int_equal(lo, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_A_TREE(names_of_drivers),
		ON_A_TREE(receive_and_transmit_apart),
		ON_A_TREE(two_digits),
		ON_A_TREE(misleading_interface_names),
		ON_A_TREE(only_its_own),
		ON_A_TREE(two_devices_in_one),
		ON_A_TREE(one_for_all),
		ON_A_TREE(not_the_bridge),
		ON_A_TREE(names_alone),
		ON_A_TREE(where_the_kernel_is_vague),
		ON_A_TREE(no_device),
		ON_A_TREE(broken_lines),
		cmocka_unit_test(this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
