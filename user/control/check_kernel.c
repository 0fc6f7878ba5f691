// SPDX-License-Identifier: BSD-2-Clause
/* What the kernel can do. Probes by doing it: sockets and programs that are closed again, devices in a namespace of our own. */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control/check_report.h"
#include "control/netdev.h"
#include "datapath/lane.h"

#define VERSION(major, minor) ((major) * 1000u + (minor))
#define VERSION_NEEDED VERSION(5, 18) /* XDP programs that take frames in several buffers */
#define VERSION_TESTED VERSION(6, 1)
#define VERSION_JUMBO VERSION(6, 6) /* AF_XDP sockets that take frames in several buffers */

static void check_version(struct check *check)
{
	struct utsname u;
	unsigned major, minor;

	uname(&u);
	if (sscanf(u.release, "%u.%u", &major, &minor) != 2)
		check_found(check, CHECK_WARN, "kernel", "use Linux 6.1 or newer", "release '%s' is no version number", u.release);
	else if (VERSION(major, minor) < VERSION_NEEDED)
		check_found(check, check->uplinks_need, "kernel", "use Linux 6.1 or newer", "%s: lacks XDP frags, which 5.18 brought", u.release);
	else if (VERSION(major, minor) < VERSION_TESTED)
		check_found(check, CHECK_WARN, "kernel", "use Linux 6.1 or newer", "%s: older than what vhostlane is tested on", u.release);
	else if (VERSION(major, minor) < VERSION_JUMBO)
		check_found(check, CHECK_OK, "kernel", NULL, "%s: has XDP frags; AF_XDP frames over one buffer (MTU above about 3500) need 6.6",
			    u.release);
	else
		check_found(check, CHECK_OK, "kernel", NULL, "%s", u.release);
}

static void check_af_xdp(struct check *check)
{
	int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	if (fd >= 0) {
		close(fd);
		check_found(check, CHECK_OK, "AF_XDP sockets", NULL, "there");
		check_found(check, CHECK_OK, "AF_XDP transmit metadata", NULL,
			    lane_kernel_has_metadata() ? "taken: checksums that guests leave open can be left to a device that completes them"
						       : "not taken (before Linux 6.11): vhostlane completes guests' checksums itself");
	} else if (errno == EPERM || errno == EACCES) {
		check_found(check, check->uplinks_need, "AF_XDP sockets", "run as root or with CAP_NET_RAW", "%s", strerror(errno));
	} else {
		check_found(check, check->uplinks_need, "AF_XDP sockets", "use a kernel with CONFIG_XDP_SOCKETS=y", "%s", strerror(errno));
	}
}

static void check_bpf(struct check *check)
{
	static const struct {
		const char *what;
		int program, map; /* -1 = none */
	} probes[] = {
		{ "BPF programs, XDP", BPF_PROG_TYPE_XDP, -1 },
		{ "BPF programs, tc", BPF_PROG_TYPE_SCHED_CLS, -1 },
		{ "BPF maps, XSKMAP", -1, BPF_MAP_TYPE_XSKMAP },
	};

	for (unsigned i = 0; i < sizeof(probes) / sizeof(probes[0]); i++) {
		int result = probes[i].program >= 0 ? libbpf_probe_bpf_prog_type((enum bpf_prog_type)probes[i].program, NULL) :
						      libbpf_probe_bpf_map_type((enum bpf_map_type)probes[i].map, NULL);

		if (result == 1)
			check_found(check, CHECK_OK, probes[i].what, NULL, "loads");
		else
			check_found(check, check->uplinks_need, probes[i].what,
				    "run as root or with CAP_BPF and CAP_NET_ADMIN, on a kernel with CONFIG_BPF_SYSCALL", "does not load%s%s",
				    result < 0 ? ": " : "", result < 0 ? strerror(-result) : "");
	}
	if (access("/sys/kernel/btf/vmlinux", R_OK) == 0)
		check_found(check, CHECK_OK, "kernel types (BTF)", NULL, "/sys/kernel/btf/vmlinux");
	else
		check_found(check, check->uplinks_need, "kernel types (BTF)", "use a kernel with CONFIG_DEBUG_INFO_BTF=y",
			    "/sys/kernel/btf/vmlinux: %s", strerror(errno));
	if (libbpf_probe_bpf_prog_type(BPF_PROG_TYPE_EXT, NULL) == 1)
		check_found(check, CHECK_OK, "libxdp dispatcher", NULL, "possible: shares an uplink with other XDP programs");
	else
		check_found(check, CHECK_OK, "libxdp dispatcher", NULL, "not possible (no freplace programs): an uplink takes one XDP program only");
}

static void check_bpf_fs(struct check *check)
{
	struct statfs s;

	if (statfs("/sys/fs/bpf", &s) == 0 && (unsigned long)s.f_type == BPF_FS_MAGIC)
		check_found(check, CHECK_OK, "bpffs", NULL, "mounted on /sys/fs/bpf");
	else if (geteuid() == 0)
		check_found(check, CHECK_OK, "bpffs", NULL, "not mounted on /sys/fs/bpf: `run` mounts it");
	else
		check_found(check, check->uplinks_need, "bpffs", "mount -t bpf bpf /sys/fs/bpf", "not mounted on /sys/fs/bpf");
}

/* --- devices, tried in a network namespace that goes with its process ------------------------------------------------ */

static int try_clsact(void)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = 1, .attach_point = BPF_TC_INGRESS);

	return bpf_tc_hook_create(&hook);
}

static int try_veth(void)
{
	return netdev_make_veth("vhlcheck0", "vhlcheck1", 2, 1500, NULL);
}

/* Return: 0 or negative errno value; -ENOTSUP if no namespace could be made. */
static int in_own_namespace(int (*try)(void))
{
	pid_t pid;
	int status;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		if (unshare(CLONE_NEWNET) != 0)
			_exit(ENOTSUP);
		_exit(-try() & 0xff);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -EFAULT;
}

static void check_devices(struct check *check)
{
	static const struct {
		const char *what, *remedy;
		int (*try)(void);
	} tries[] = {
		{ "clsact qdisc", "use a kernel with CONFIG_NET_SCH_INGRESS (modprobe sch_ingress)", try_clsact },
		{ "veth devices", "use a kernel with CONFIG_VETH (modprobe veth)", try_veth },
	};

	for (unsigned i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		int result = in_own_namespace(tries[i].try);

		if (result == 0)
			check_found(check, CHECK_OK, tries[i].what, NULL, "can be made");
		else if (result == -ENOTSUP)
			check_found(check, CHECK_WARN, tries[i].what, "run as root to have it tried",
				    "not tried: no network namespace of our own to try it in");
		else
			check_found(check, check->uplinks_need, tries[i].what, tries[i].remedy, "%s", strerror(-result));
	}
}

void check_kernel(struct check *check)
{
	/* What libbpf says of a failed probe is said here in other words. */
	libbpf_set_print(NULL);
	check_version(check);
	check_af_xdp(check);
	check_bpf(check);
	check_bpf_fs(check);
	check_devices(check);
}
