/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the tracing program of eventfd signals (bpf/kick_cpu.bpf.c) and the engine (control/kick_probe) share:
 *   kicks   __u32 id of the eventfd -> struct vl_kick   engine adds and removes ids; the program writes; engine reads
 * The id is that of struct eventfd_ctx, which /proc/PID/fdinfo/FD shows as "eventfd-id". Not pinned, private to one daemon.
 */
#ifndef VHOSTLANE_KICK_ABI_H
#define VHOSTLANE_KICK_ABI_H

#include "vhostlane/bpf_abi.h"

#define VL_KICKS_MAX (VL_PORTS_MAX * VL_QUEUE_PAIRS_MAX) /* one kick descriptor a queue pair */

struct vl_kick {
	__u64 count; /* signals since the id was added; 0 = cpu says nothing */
	__u32 cpu;   /* that gave the last one */
	__u32 reserved;
};

#endif
