/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A place for bpf_loader on real devices: an uplink and a host link in a network namespace of its own, and what can be seen of the
 * loader from outside. bpffs is shared with the rest of the machine, so the uplink has a name of this process.
 */
#ifndef TESTS_BPF_LOADER_RIG_H
#define TESTS_BPF_LOADER_RIG_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xdp/libxdp.h>

#include "common/log.h"
#include "control/bpf_loader.h"

struct fixture {
	char uplink[IF_NAMESIZE];
	unsigned ifindex;
	char directory[128];
	struct error error;
};

/* Return: exit status of a shell command. */
__attribute__((format(printf, 2, 3))) static inline int shell(struct fixture *f, const char *format, ...)
{
	char command[1024];
	va_list arguments;
	int r;

	(void)f;
	va_start(arguments, format);
	vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	r = system(command);
	return WIFEXITED(r) ? WEXITSTATUS(r) : -1;
}

static inline bool exists(const char *directory, const char *name)
{
	char path[256];
	struct stat unused;

	snprintf(path, sizeof(path), "%s%s%s", directory, name[0] ? "/" : "", name);
	return lstat(path, &unused) == 0;
}

static inline uint32_t xdp_on(unsigned ifindex)
{
	uint32_t id = 0;

	assert_int_equal(bpf_xdp_query_id((int)ifindex, 0, &id), 0);
	return id;
}

static inline uint32_t pinned_program(struct fixture *f, const char *name)
{
	struct bpf_prog_info info = { 0 };
	uint32_t size = sizeof(info);
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/progs/%s", f->directory, name);
	fd = bpf_obj_get(path);
	assert_true(fd >= 0);
	assert_int_equal(bpf_obj_get_info_by_fd(fd, &info, &size), 0);
	close(fd);
	return info.id;
}

static inline uint32_t filter_on(struct fixture *f, enum bpf_tc_attach_point point)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)f->ifindex, .attach_point = point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .handle = 1, .priority = 30312);

	return bpf_tc_query(&hook, &opts) ? 0 : opts.prog_id;
}

/* Programs named @name behind the uplink's dispatcher, or -1 without a dispatcher. */
static inline int behind_dispatcher(struct fixture *f, const char *name)
{
	struct xdp_multiprog *multiprog = xdp_multiprog__get_from_ifindex((int)f->ifindex);
	struct xdp_program *program = NULL;
	int count = 0;

	if (libxdp_get_error(multiprog))
		return -1;
	if (xdp_multiprog__is_legacy(multiprog))
		count = -1;
	while (count >= 0 && (program = xdp_multiprog__next_prog(program, multiprog)))
		count += strcmp(xdp_program__name(program), name) == 0;
	xdp_multiprog__close(multiprog);
	return count;
}

static inline void expect_attached(struct fixture *f)
{
	if (xdp_on(f->ifindex) != pinned_program(f, "xdp_steer"))
		assert_int_equal(behind_dispatcher(f, "xdp_steer"), 1);
	assert_int_equal(filter_on(f, BPF_TC_EGRESS), pinned_program(f, "tc_host"));
	assert_int_equal(filter_on(f, BPF_TC_INGRESS), pinned_program(f, "tc_uplink_ingress"));
}

static inline void expect_no_trace(struct fixture *f)
{
	assert_int_equal(xdp_on(f->ifindex), 0);
	assert_int_equal(shell(f, "tc qdisc show dev %s | grep -q clsact", f->uplink), 1);
	assert_false(exists(f->directory, ""));
}

static inline struct bpf_set *open_set(struct fixture *f)
{
	struct bpf_set *set = bpf_set_open(f->uplink, f->ifindex, &f->error);

	if (!set)
		fail_msg("%s", f->error.text);
	return set;
}

static inline void attach(struct fixture *f, struct bpf_set *set, enum lane_mode mode)
{
	if (bpf_set_attach_uplink(set, mode, &f->error))
		fail_msg("%s", f->error.text);
}

static inline int setup(void **state)
{
	static int count;
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	/* The first has a dot in its name, which bpffs does not know. */
	snprintf(f->uplink, sizeof(f->uplink), "vt%d%c%d", getpid() % 1000000, count ? '-' : '.', count);
	snprintf(f->directory, sizeof(f->directory), "%s/vt%d%c%d", BPF_PIN_ROOT, getpid() % 1000000, count ? '-' : ':',
		 count);
	count++;
	assert_int_equal(
		shell(f,
		      "ip link add %s up numtxqueues 4 numrxqueues 4 type veth peer name wire numtxqueues 4 numrxqueues 4 && ip link set wire up"
		      " && ip link add hl numtxqueues 2 numrxqueues 2 up type veth peer name hle numtxqueues 2 numrxqueues 2 && ip link set hle up"
		      " && ethtool -K hl txvlan off >/dev/null",
		      f->uplink),
		0);
	f->ifindex = if_nametoindex(f->uplink);
	*state = f;
	return 0;
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	shell(f,
	      "ip link del %s; ip link del hl; [ ! -e %s ] || find %s -type f -delete; find %s -depth -type d -exec rmdir {} + 2>/dev/null; rmdir %s 2>/dev/null",
	      f->uplink, f->directory, f->directory, f->directory, BPF_PIN_ROOT);
	free(f);
	return 0;
}

/* A daemon with everything attached, killed where it stands. Its device may be gone before the next comes. */
static inline void crash(struct fixture *f, enum lane_mode mode)
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0) {
		struct bpf_set *set = bpf_set_open(f->uplink, f->ifindex, &f->error);
		struct vl_port_key port = { .mac = { 2, 0, 0, 0, 0, 1 } };
		struct vl_port_value value = { .port = 3, .queue_pairs = 2 };

		if (!set || bpf_set_attach_uplink(set, mode, &f->error) || bpf_set_port_put(set, &port, &value) ||
		    bpf_set_attach_host_link(set, 1, if_nametoindex("hl"), if_nametoindex("hle"), 2, &f->error)) {
			fprintf(stderr, "%s\n", f->error.text);
			_exit(1);
		}
		bpf_set_settings(set, -1)->flags |= VL_SETTINGS_READY;
		raise(SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_not_equal(xdp_on(f->ifindex), 0);
	assert_true(exists(f->directory, "lanes_n1"));
}

/* Return: NULL, or why the tests cannot run here. In a network of its own from then on. */
static inline const char *loader_rig_enter(void)
{
	if (geteuid() != 0)
		return "needs root to load BPF programs";
	if (access("scripts/load-with-bpftool.sh", X_OK))
		return "run it from the top of the source tree";
	libbpf_set_print(NULL);
	if (getenv("DEBUG"))
		log_set_level(LOG_LEVEL_DEBUG);
	if (unshare(CLONE_NEWNET) ||
	    system("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 && ip link set lo up"))
		return "cannot make a network namespace";
	return NULL;
}

#endif
