// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Which CPU kicks. A kick is a signal on an eventfd: KVM gives it on the CPU of the vCPU that wrote to the device's
 * notification register (ioeventfd: eventfd_signal() or eventfd_signal_mask()), a frontend in user space by write()
 * (eventfd_write()). All of them are traced at their entry, whoever calls; who is not in `kicks` costs one look-up.
 *
 * Only the first argument is used: the others changed over the kernel versions. Two programs a function, of which one is
 * loaded: a trampoline (fentry) where the kernel has them, else a kprobe. Function names are chosen by user space.
 */
#include "vmlinux.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "vhostlane/kick_abi.h"

/* Entries come one by one, as queue pairs do: no memory for all that there could be. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, VL_KICKS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct vl_kick);
} kicks SEC(".maps");

static __always_inline void note_kick(struct eventfd_ctx *eventfd)
{
	__u32 id = (__u32)BPF_CORE_READ(eventfd, id);
	struct vl_kick *kick = bpf_map_lookup_elem(&kicks, &id);

	if (!kick)
		return;
	kick->cpu = bpf_get_smp_processor_id();
	__sync_fetch_and_add(&kick->count, 1);
}

SEC("?fentry/eventfd_signal_mask")
int BPF_PROG(signal_by_trampoline, struct eventfd_ctx *eventfd)
{
	note_kick(eventfd);
	return 0;
}

SEC("?fentry/eventfd_write")
int BPF_PROG(write_by_trampoline, struct file *file)
{
	note_kick(BPF_CORE_READ(file, private_data));
	return 0;
}

SEC("?kprobe")
int BPF_KPROBE(signal_by_kprobe, struct eventfd_ctx *eventfd)
{
	note_kick(eventfd);
	return 0;
}

SEC("?kprobe")
int BPF_KPROBE(write_by_kprobe, struct file *file)
{
	note_kick(BPF_CORE_READ(file, private_data));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
