/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A place of its own for tests of uplinks: network and mount namespace, bpffs and /run of its own, and a wire: veth UPLINK (several
 * queues) whose peer WIRE plays the LAN. All of it ends with the process.
 */
#ifndef TESTS_UNIT_UPLINK_RIG_H
#define TESTS_UNIT_UPLINK_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>

#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define UPLINK "vhltup"
#define WIRE "vhltwire"

/* Exit status for "cannot run here", with the reason on stdout. */
#define RIG_SKIP 77

static inline int rig_enter(void)
{
	if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0) {
		printf("1..0 # SKIP no namespaces of its own: %s (run as root)\n", strerror(errno));
		return errno == EPERM ? RIG_SKIP : 1;
	}
	/* sysfs anew, so that it shows this network namespace to the commands that the tests run. */
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("sysfs", "/sys", "sysfs", 0, NULL) < 0 ||
	    mount("bpf", "/sys/fs/bpf", "bpf", 0, NULL) < 0 || mount("tmpfs", "/run", "tmpfs", 0, "mode=755") < 0) {
		printf("cannot set up the rig: %s\n", strerror(errno));
		return 1;
	}
	return 0;
}

static inline void rig_command(const char *format, ...)
{
	char command[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	if (system(command) != 0)
		fail_msg("failed: %s", command);
}

static inline void rig_make_wire(unsigned uplink_queues)
{
	rig_command("ip link add " UPLINK " numrxqueues %u numtxqueues %u type veth peer name " WIRE " numrxqueues %u numtxqueues %u",
		    uplink_queues, uplink_queues, uplink_queues, uplink_queues);
	/* Quiet: what arrives is what a test sent. */
	rig_command("for i in " UPLINK " " WIRE "; do f=/proc/sys/net/ipv6/conf/$i/disable_ipv6; [ ! -e $f ] || echo 1 > $f; done");
	rig_command("ethtool -K " WIRE " tx off txvlan off >/dev/null");
	rig_command("ip link set " UPLINK " up && ip link set " WIRE " up");
	/* The kernel tells of the carrier some time later, which no snapshot may see as a change. */
	rig_command("for i in " UPLINK " " WIRE "; do n=0; until [ $(cat /sys/class/net/$i/operstate) = up ] || [ $n = 600 ]; do "
		    "sleep 0.05; n=$((n + 1)); done; [ $n -lt 600 ]; done");
}

static inline void rig_remove_wire(void)
{
	rig_command("ip link del " UPLINK);
}

/* cmocka's setup and teardown, for tests that want the wire and nothing more. */
static inline int rig_wire_setup(void **state)
{
	rig_make_wire(2);
	return 0;
}

static inline int rig_wire_teardown(void **state)
{
	rig_remove_wire();
	return 0;
}

/* All that vhostlane may not leave changed, as text; free() it. */
static inline char *rig_snapshot(void)
{
	static const char command[] =
		"{ ip -d link; tc qdisc; for i in " UPLINK " " WIRE
		"; do tc filter show dev $i ingress; tc filter show dev $i egress; ethtool -k $i; "
		"head -99 /sys/class/net/$i/napi_defer_hard_irqs /sys/class/net/$i/gro_flush_timeout; done; find /sys/fs/bpf /run | sort; } 2>&1";
	FILE *pipe = popen(command, "r");
	size_t size = 1 << 20, used;
	char *text = malloc(size);

	assert_non_null(pipe);
	assert_non_null(text);
	used = fread(text, 1, size - 1, pipe);
	text[used] = '\0';
	pclose(pipe);
	assert_true(used > 1000);
	return text;
}

/* Compares and frees both. */
static inline void rig_assert_same(char *before, char *after)
{
	if (strcmp(before, after) != 0) {
		FILE *a = fopen("/run/before", "w"), *b = fopen("/run/after", "w");

		fputs(before, a);
		fputs(after, b);
		fclose(a);
		fclose(b);
		if (system("diff /run/before /run/after"))
			unlink("/run/before");
		unlink("/run/after");
		fail_msg("the host is not as it was before");
	}
	free(before);
	free(after);
}

#endif
