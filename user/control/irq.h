/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which CPU serves the interrupt of a device's receive queue: evidence for placement and display. Reads sysfs and procfs, keeps no state;
 * tests invent their own trees. For a timer or a command, not for a hot path. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_IRQ_H
#define VHOSTLANE_CONTROL_IRQ_H

/*
 * The interrupt is one of the device's own (msi_irqs, or its one line) and is told by its name in /proc/interrupts, which drivers give:
 * eth0-rx-0, eth0-TxRx-0, i40e-eth0-TxRx-0, virtio0-input.0, mlx5_comp0@pci:..., eth0-q0-rx, eth0-0.
 * Return: the CPU, the lowest if the kernel names several; -1 for devices without interrupts (veth, tap), for queues that have none of
 * their own, and for names that say nothing.
 */
int irq_cpu_of_queue(const char *ifname, unsigned queue);

/* The same below another /sys and /proc. */
int irq_cpu_of_queue_from(const char *sysfs, const char *procfs, const char *ifname, unsigned queue);

#endif
