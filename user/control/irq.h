/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which CPU serves the interrupt of each of a device's receive queues, for display. Reads sysfs and procfs, keeps no state; tests invent their
 * own trees. For a command, not for a hot path: on a machine of many CPUs /proc/interrupts has megabytes. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_IRQ_H
#define VHOSTLANE_CONTROL_IRQ_H

/*
 * The interrupt is one of the device's own (msi_irqs, or its one line) and is told by its name in /proc/interrupts, which drivers give:
 * eth0-rx-0, eth0-TxRx-0, i40e-eth0-TxRx-0, virtio0-input.0, mlx5_comp0@pci:..., eth0-q0-rx, eth0-0.
 * @cpus: @count of them, for queues from 0 on, at most VL_DEVICE_QUEUES_MAX; filled with the CPU, the lowest if the kernel names several; -1 for
 * devices without interrupts (veth, tap), for queues that have none of their own, and for names that say nothing.
 */
void irq_cpus_of_queues(const char *ifname, int *cpus, unsigned count);

/* The same below another /sys and /proc. */
void irq_cpus_of_queues_from(const char *sysfs, const char *procfs, const char *ifname, int *cpus, unsigned count);

#endif
