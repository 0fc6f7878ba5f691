/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The CPU that kicks: a small tracing program on eventfd signalling (bpf/kick_cpu.bpf.c), where the kernel allows it. Optional evidence
 * for placement: all calls but kick_probe_open() take NULL for a probe that could not be had. Nothing is pinned; with the last
 * descriptor, at kick_probe_close() or the end of the process, all of it is gone. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_KICK_PROBE_H
#define VHOSTLANE_CONTROL_KICK_PROBE_H

#include <stdint.h>

#include "common/error.h"

struct kick_probe;

/*
 * Return: NULL with the reason in *error: -EOPNOTSUPP (the kernel has neither BPF trampolines nor kprobes for it, or no BTF), -EPERM, ...
 * Worth one line in the log, not the end of anything.
 */
struct kick_probe *kick_probe_open(struct error *error);
void kick_probe_close(struct kick_probe *probe);

/* "trampoline" or "kprobe": how the kernel's functions are traced; "none" without a probe. */
const char *kick_probe_way(const struct kick_probe *probe);

/*
 * From here on signals of the eventfd @fd are counted; from 0 if they were before. One entry an eventfd, not a descriptor: two descriptors
 * of one eventfd share it. Return: 0; -EINVAL if @fd is no eventfd or shows no id; -EOPNOTSUPP without a probe; -ENOMEM, -E2BIG.
 */
int kick_probe_watch(struct kick_probe *probe, int fd);

/* Before @fd is closed: the kernel gives an id again once the eventfd is gone. Not watched: nothing. */
void kick_probe_unwatch(struct kick_probe *probe, int fd);

/* CPU that signalled @fd last; -1 = none since kick_probe_watch(), or not watched. */
int kick_probe_cpu(const struct kick_probe *probe, int fd);

/*
 * Signals of @fd since kick_probe_watch(). A lower bound: the kernel leaves a program out that interrupts itself, so a signal is missed
 * when its CPU was taken from another thread in the middle of noting one.
 */
uint64_t kick_probe_count(const struct kick_probe *probe, int fd);

#endif
