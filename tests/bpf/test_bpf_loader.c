// SPDX-License-Identifier: BSD-2-Clause
/*
 * bpf_loader on real devices, in a network namespace of its own: load, adopt, attach beside others, leave no trace. bpffs is
 * shared with the rest of the machine, so the uplink has a name of this process.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xdp/libxdp.h>

#include "common/log.h"
#include "control/bpf_loader.h"

#define TC_ACT_UNSPEC (-1)

struct fixture {
	char uplink[IF_NAMESIZE];
	unsigned ifindex;
	char directory[128];
	struct error error;
};

/* Return: exit status of a shell command. */
__attribute__((format(printf, 2, 3))) static int shell(struct fixture *f, const char *format, ...)
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

static bool exists(const char *directory, const char *name)
{
	char path[256];
	struct stat unused;

	snprintf(path, sizeof(path), "%s%s%s", directory, name[0] ? "/" : "", name);
	return lstat(path, &unused) == 0;
}

static uint32_t xdp_on(unsigned ifindex)
{
	uint32_t id = 0;

	assert_int_equal(bpf_xdp_query_id((int)ifindex, 0, &id), 0);
	return id;
}

static uint32_t pinned_program(struct fixture *f, const char *name)
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

static uint32_t filter_on(struct fixture *f, enum bpf_tc_attach_point point)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)f->ifindex, .attach_point = point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .handle = 1, .priority = 30312);

	return bpf_tc_query(&hook, &opts) ? 0 : opts.prog_id;
}

/* Programs named @name behind the uplink's dispatcher, or -1 without a dispatcher. */
static int behind_dispatcher(struct fixture *f, const char *name)
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

static void expect_attached(struct fixture *f)
{
	if (xdp_on(f->ifindex) != pinned_program(f, "xdp_steer"))
		assert_int_equal(behind_dispatcher(f, "xdp_steer"), 1);
	assert_int_equal(filter_on(f, BPF_TC_EGRESS), pinned_program(f, "tc_host"));
	assert_int_equal(filter_on(f, BPF_TC_INGRESS), pinned_program(f, "tc_uplink_ingress"));
}

static void expect_no_trace(struct fixture *f)
{
	assert_int_equal(xdp_on(f->ifindex), 0);
	assert_int_equal(shell(f, "tc qdisc show dev %s | grep -q clsact", f->uplink), 1);
	assert_false(exists(f->directory, ""));
}

static struct bpf_set *open_set(struct fixture *f)
{
	struct bpf_set *set = bpf_set_open(f->uplink, f->ifindex, &f->error);

	if (!set)
		fail_msg("%s", f->error.text);
	return set;
}

static void attach(struct fixture *f, struct bpf_set *set, enum lane_mode mode)
{
	if (bpf_set_attach_uplink(set, mode, &f->error))
		fail_msg("%s", f->error.text);
}

static int setup(void **state)
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

static int teardown(void **state)
{
	struct fixture *f = *state;

	shell(f,
	      "ip link del %s; ip link del hl; [ ! -e %s ] || find %s -type f -delete; find %s -depth -type d -exec rmdir {} + 2>/dev/null; rmdir %s 2>/dev/null",
	      f->uplink, f->directory, f->directory, f->directory, BPF_PIN_ROOT);
	free(f);
	return 0;
}

static void opens_attaches_leaves_no_trace(void **state)
{
	static const enum lane_mode modes[] = { LANE_MODE_AUTO, LANE_MODE_COPY, LANE_MODE_GENERIC };
	struct fixture *f = *state;
	bool libxdp_before = exists("/sys/fs/bpf", "xdp");

	for (unsigned i = 0; i < 3; i++) {
		struct bpf_set *set = open_set(f);

		assert_false(bpf_set_adopted(set));
		assert_true(exists(f->directory, "queue_affinity"));
		assert_int_equal(xdp_on(f->ifindex), 0);
		attach(f, set, modes[i]);
		expect_attached(f);
		assert_int_equal(shell(f, "ip link show dev %s | grep -q xdpgeneric", f->uplink),
				 modes[i] == LANE_MODE_GENERIC ? 0 : 1);
		bpf_set_close(set);
		expect_no_trace(f);
	}
	assert_int_equal(exists("/sys/fs/bpf", "xdp"), libxdp_before);
}

static void closes_without_attaching(void **state)
{
	struct fixture *f = *state;

	bpf_set_close(open_set(f));
	expect_no_trace(f);
	bpf_set_close(NULL);
}

static void maps_read_back(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set = open_set(f);
	struct vl_port_key port = { .mac = { 2, 0, 0, 0, 0, 1 }, .vlan = 7 };
	struct vl_port_value value = { .port = 3, .queue_pairs = 2 };
	struct vl_queue_key pair = { .port = 3, .queue_pair = 1 };
	struct vl_queue_value at = { .cpu = 5, .node = 1, .worker = 2, .generation = 9 }, back;
	uint64_t counters[VL_REASON_COUNT];

	assert_int_equal(bpf_set_port_put(set, &port, &value), 0);
	assert_int_equal(bpf_set_affinity_put(set, &pair, &at), 0);
	assert_int_equal(bpf_set_affinity_get(set, &pair, &back), 0);
	assert_memory_equal(&back, &at, sizeof(at));
	bpf_set_flow_steering(set, 3)[17] = 1;
	bpf_set_settings(set, -1)->flood_worker = 6;
	/* As an operator sees it: field names, and what was stored through mmap(). */
	assert_int_equal(shell(f,
			       "bpftool -j map dump pinned %s/queue_affinity | grep -q '\"worker\":2,\"generation\":9'",
			       f->directory),
			 0);
	assert_int_equal(shell(f, "bpftool -j map dump pinned %s/ports | grep -q '\"vlan\":7'", f->directory), 0);
	assert_int_equal(
		shell(f,
		      "bpftool -j map dump pinned %s/flow_steering | grep -q '\"key\":3,\"value\":{\"queue_pair\":\\[\\(0,\\)\\{17\\}1,0,'",
		      f->directory),
		0);
	assert_int_equal(
		shell(f, "bpftool -j map dump pinned %s/settings | grep -q '\"flood_worker\":6'", f->directory), 0);
	/* And the other way: an edit. */
	assert_int_equal(
		shell(f,
		      "bpftool map update pinned %s/queue_affinity key 3 0 0 0 1 0 0 0 value 8 0 0 0 1 0 0 0 2 0 0 0 9 0 0 0",
		      f->directory),
		0);
	assert_int_equal(bpf_set_affinity_get(set, &pair, &back), 0);
	assert_int_equal(back.cpu, 8);
	assert_int_equal(bpf_set_affinity_delete(set, &pair), 0);
	assert_true(bpf_set_affinity_get(set, &pair, &back) < 0);
	assert_int_equal(bpf_set_port_delete(set, &port), 0);
	assert_true(bpf_set_port_delete(set, &port) < 0);
	assert_int_equal(bpf_set_counters(set, counters), 0);
	for (int i = 0; i < VL_REASON_COUNT; i++)
		assert_int_equal(counters[i], 0);
	assert_null(bpf_set_flow_steering(set, VL_PORTS_MAX));
	assert_null(bpf_set_settings(set, 0)); /* no host link yet */
	bpf_set_close(set);
}

/* A program of somebody else's, in either mode, is named and stays. */
static void foreign_xdp_is_refused(void **state)
{
	static const struct bpf_insn passes[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	static const uint32_t modes[] = { XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE };
	struct fixture *f = *state;
	int fd = bpf_prog_load(BPF_PROG_TYPE_XDP, "somebody", "GPL", passes, 2, NULL);

	assert_true(fd >= 0);
	for (unsigned i = 0; i < 2; i++) {
		struct bpf_set *set = open_set(f);
		char id[32];

		assert_int_equal(bpf_xdp_attach((int)f->ifindex, fd, modes[i], NULL), 0);
		snprintf(id, sizeof(id), "id %u", xdp_on(f->ifindex));
		assert_int_equal(bpf_set_attach_uplink(set, LANE_MODE_AUTO, &f->error), -EBUSY);
		assert_non_null(strstr(f->error.text, "'somebody'"));
		assert_non_null(strstr(f->error.text, id));
		assert_non_null(strstr(f->error.text, modes[i] == XDP_FLAGS_SKB_MODE ? "xdpgeneric off" : "xdp off"));
		bpf_set_close(set);
		assert_int_not_equal(xdp_on(f->ifindex), 0);
		assert_int_equal(bpf_xdp_detach((int)f->ifindex, modes[i], NULL), 0);
		expect_no_trace(f);
	}
	close(fd);
}

static int tc_program(int verdict, const char *name)
{
	const struct bpf_insn instructions[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = verdict },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	int fd = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, name, "GPL", instructions, 2, NULL);

	assert_true(fd >= 0);
	return fd;
}

static void foreign_filters_and_qdisc_stay(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;
	int fd = tc_program(TC_ACT_UNSPEC, "somebody");
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)f->ifindex, .attach_point = BPF_TC_EGRESS);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .prog_fd = fd, .handle = 1, .priority = 10);

	/* The qdisc was there before us. */
	assert_int_equal(shell(f, "tc qdisc add dev %s clsact", f->uplink), 0);
	set = open_set(f);
	attach(f, set, LANE_MODE_AUTO);
	bpf_set_close(set);
	assert_int_equal(shell(f, "tc qdisc show dev %s | grep -q clsact", f->uplink), 0);
	assert_int_equal(shell(f, "tc qdisc del dev %s clsact", f->uplink), 0);

	/* It was not, but somebody has put a filter into it meanwhile. */
	set = open_set(f);
	attach(f, set, LANE_MODE_AUTO);
	assert_int_equal(bpf_tc_attach(&hook, &opts), 0);
	bpf_set_close(set);
	assert_int_equal(filter_on(f, BPF_TC_EGRESS), 0);
	opts.prog_fd = 0;
	opts.prog_id = 0;
	assert_int_equal(bpf_tc_query(&hook, &opts), 0);

	/* Somebody sits in our very place. */
	opts.prog_fd = fd;
	opts.prog_id = 0;
	opts.priority = 30312;
	assert_int_equal(bpf_tc_attach(&hook, &opts), 0);
	set = open_set(f);
	assert_int_equal(bpf_set_attach_uplink(set, LANE_MODE_AUTO, &f->error), -EBUSY);
	assert_non_null(strstr(f->error.text, "'somebody'"));
	assert_int_equal(xdp_on(f->ifindex), 0); /* what went before is undone */
	bpf_set_close(set);
	assert_int_not_equal(filter_on(f, BPF_TC_EGRESS), 0);
	close(fd);
}

static void second_daemon_is_refused(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set = open_set(f);

	attach(f, set, LANE_MODE_AUTO);
	assert_null(bpf_set_open(f->uplink, f->ifindex, &f->error));
	assert_int_equal(f->error.code, -EBUSY);
	expect_attached(f);
	bpf_set_close(set);
	expect_no_trace(f);
}

static void operator_load_is_adopted_and_stays(void **state)
{
	struct fixture *f = *state;
	struct vl_port_key port = { .mac = { 2, 0, 0, 0, 0, 1 } };
	struct vl_port_value value = { .port = 3, .queue_pairs = 2 };
	struct bpf_set *set;
	uint32_t xdp;

	assert_int_equal(shell(f, "scripts/load-with-bpftool.sh %s >/dev/null", f->uplink), 0);
	expect_attached(f);
	xdp = xdp_on(f->ifindex);
	set = open_set(f);
	assert_true(bpf_set_adopted(set));
	assert_int_equal(bpf_set_settings(set, -1)->abi, VL_ABI_VERSION);
	attach(f, set, LANE_MODE_AUTO);
	assert_int_equal(xdp_on(f->ifindex), xdp);
	assert_int_equal(bpf_set_port_put(set, &port, &value), 0);
	bpf_set_settings(set, -1)->flags |= VL_SETTINGS_READY;
	assert_int_not_equal(shell(f, "scripts/load-with-bpftool.sh --unload %s 2>/dev/null", f->uplink),
			     0); /* not under a running daemon */
	if (bpf_set_attach_host_link(set, 0, if_nametoindex("hl"), if_nametoindex("hle"), 2, &f->error))
		fail_msg("%s", f->error.text);
	bpf_set_close(set);

	expect_attached(f);
	assert_int_equal(xdp_on(f->ifindex), xdp);
	assert_int_equal(shell(f, "bpftool -j map dump pinned %s/ports | grep -q vlan", f->directory), 1);
	assert_int_equal(shell(f, "bpftool -j map dump pinned %s/settings | grep -q '\"flags\":0'", f->directory), 0);
	assert_false(exists(f->directory, "lanes_n0"));
	assert_int_equal(shell(f, "scripts/load-with-bpftool.sh --unload %s", f->uplink), 0);
	expect_no_trace(f);
}

/* Maps and programs pinned, nothing attached: we attach, and take away only that. */
static void operator_load_without_attachment(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;

	assert_int_equal(shell(f, "mkdir -p %s && bpftool prog loadall build/bpf/xdp_steer.bpf.o %s/progs pinmaps %s",
			       f->directory, f->directory, f->directory),
			 0);
	set = open_set(f);
	assert_true(bpf_set_adopted(set));
	attach(f, set, LANE_MODE_AUTO);
	expect_attached(f);
	bpf_set_close(set);
	assert_int_equal(xdp_on(f->ifindex), 0);
	assert_int_equal(shell(f, "tc qdisc show dev %s | grep -q clsact", f->uplink), 1);
	assert_true(exists(f->directory, "ports"));
	assert_int_equal(shell(f, "scripts/load-with-bpftool.sh --unload %s", f->uplink), 0);
	expect_no_trace(f);
}

/* A daemon with everything attached, killed where it stands. Its device may be gone before the next comes. */
static void crash(struct fixture *f, enum lane_mode mode)
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

static void crashed_daemon_is_adopted(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;
	uint32_t xdp;

	crash(f, LANE_MODE_AUTO);
	xdp = xdp_on(f->ifindex);
	set = open_set(f);
	assert_true(bpf_set_adopted(set));
	assert_int_equal(bpf_set_settings(set, -1)->flags & VL_SETTINGS_READY, 0);
	assert_int_equal(bpf_set_settings(set, -1)->host_link_ifindex[1], 0);
	assert_int_equal(shell(f, "bpftool -j map dump pinned %s/ports | grep -q vlan", f->directory),
			 1); /* its ports are gone with it */
	attach(f, set, LANE_MODE_AUTO);
	assert_int_equal(xdp_on(f->ifindex), xdp);
	bpf_set_close(set);
	expect_no_trace(f);
}

static void crashed_daemon_in_another_mode(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;

	crash(f, LANE_MODE_AUTO);
	set = open_set(f);
	attach(f, set, LANE_MODE_GENERIC);
	expect_attached(f);
	assert_int_equal(shell(f, "ip link show dev %s | grep -q xdpgeneric", f->uplink), 0);
	bpf_set_close(set);
	expect_no_trace(f);
}

/* A program of that name on the set's maps that does nothing: what another build had in its place. */
static int other_program(struct fixture *f, enum bpf_prog_type type, const char *name, int verdict)
{
	struct bpf_insn code[] = {
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD }, { 0 },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD }, { 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = verdict },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	static const char *const maps[] = { "ports", "settings" };
	char path[256];
	int fd;

	for (unsigned i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", f->directory, maps[i]);
		code[2 * i].imm = bpf_obj_get(path);
		assert_true(code[2 * i].imm >= 0);
	}
	fd = bpf_prog_load(type, name, "GPL", code, sizeof(code) / sizeof(code[0]), NULL);
	assert_true(fd >= 0);
	close(code[0].imm);
	close(code[2].imm);
	snprintf(path, sizeof(path), "%s/progs/%s", f->directory, name);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(bpf_obj_pin(fd, path), 0);
	return fd;
}

/* A crashed daemon of another build: its XDP program and its egress filter are not ours. */
static void crash_of_another_build(struct fixture *f)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, egress, .ifindex = (int)f->ifindex, .attach_point = BPF_TC_EGRESS);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, filter, .handle = 1, .priority = 30312, .flags = BPF_TC_F_REPLACE);
	int xdp;

	crash(f, LANE_MODE_AUTO);
	xdp = other_program(f, BPF_PROG_TYPE_XDP, "xdp_steer", XDP_PASS);
	assert_int_equal(shell(f, "ip link set dev %s xdp off", f->uplink), 0);
	assert_int_equal(bpf_xdp_attach((int)f->ifindex, xdp, XDP_FLAGS_DRV_MODE, NULL), 0);
	filter.prog_fd = other_program(f, BPF_PROG_TYPE_SCHED_CLS, "tc_host", -1 /* TC_ACT_UNSPEC */);
	assert_int_equal(bpf_tc_attach(&egress, &filter), 0);
	close(xdp);
	close(filter.prog_fd);
	expect_attached(f);
}

static void programs_of_another_build_are_replaced(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;
	uint32_t xdp, egress, ingress;

	crash_of_another_build(f);
	xdp = xdp_on(f->ifindex);
	egress = filter_on(f, BPF_TC_EGRESS);
	ingress = filter_on(f, BPF_TC_INGRESS);
	set = open_set(f);
	assert_true(bpf_set_adopted(set));
	assert_int_not_equal(pinned_program(f, "xdp_steer"), xdp);
	assert_int_not_equal(pinned_program(f, "tc_host"), egress);
	assert_int_equal(pinned_program(f, "tc_uplink_ingress"), ingress); /* the same in both builds */
	attach(f, set, LANE_MODE_AUTO);
	expect_attached(f);
	bpf_set_close(set);
	expect_no_trace(f);
}

static void another_build_then_a_start_that_fails(void **state)
{
	struct fixture *f = *state;

	crash_of_another_build(f);
	bpf_set_close(open_set(f));
	expect_no_trace(f);
}

/* A start that fails between open and attach clears up after the crash all the same. */
static void crash_then_a_start_that_fails(void **state)
{
	struct fixture *f = *state;

	crash(f, LANE_MODE_GENERIC);
	bpf_set_close(open_set(f));
	expect_no_trace(f);
}

static void crash_then_unload_by_script(void **state)
{
	struct fixture *f = *state;

	crash(f, LANE_MODE_AUTO);
	assert_int_equal(shell(f, "scripts/load-with-bpftool.sh --unload %s", f->uplink), 0);
	expect_no_trace(f);
}

/* The device was made anew under its old name: pins are there, attachments are not. */
static void crash_and_another_device(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;

	crash(f, LANE_MODE_AUTO);
	assert_int_equal(
		shell(f,
		      "ip link del %s && ip link add %s up numtxqueues 4 numrxqueues 4 type veth peer name wire numtxqueues 4 numrxqueues 4",
		      f->uplink, f->uplink),
		0);
	f->ifindex = if_nametoindex(f->uplink);
	set = open_set(f);
	assert_true(bpf_set_adopted(set));
	attach(f, set, LANE_MODE_AUTO);
	expect_attached(f);
	assert_int_equal(bpf_set_settings(set, -1)->uplink_ifindex, f->ifindex);
	bpf_set_close(set);
	expect_no_trace(f);
}

static void load_that_was_cut_off(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set;

	crash(f, LANE_MODE_AUTO);
	assert_int_equal(shell(f, "ip link set dev %s xdp off && tc qdisc del dev %s clsact && rm %s/lanes", f->uplink,
			       f->uplink, f->directory),
			 0);
	set = open_set(f);
	assert_false(bpf_set_adopted(set));
	attach(f, set, LANE_MODE_AUTO);
	expect_attached(f);
	bpf_set_close(set);
	expect_no_trace(f);
}

static void incompatible_pins_are_named(void **state)
{
	struct fixture *f = *state;

	crash(f, LANE_MODE_AUTO);
	assert_int_equal(
		shell(f,
		      "rm %s/ports && bpftool map create %s/ports type hash key 8 value 12 entries 4096 name ports flags 1",
		      f->directory, f->directory),
		0);
	assert_null(bpf_set_open(f->uplink, f->ifindex, &f->error));
	assert_int_equal(f->error.code, -EEXIST);
	assert_non_null(strstr(f->error.text, "ports"));
	assert_non_null(strstr(f->error.text, "value 12"));
	assert_non_null(strstr(f->error.text, "--unload"));
	assert_int_not_equal(xdp_on(f->ifindex), 0); /* nothing touched */
	assert_int_equal(shell(f, "scripts/load-with-bpftool.sh --unload %s", f->uplink), 0);
	expect_no_trace(f);
}

/* The other version's daemon crashed: its number is found in its settings. */
static void other_abi_version_is_named(void **state)
{
	struct fixture *f = *state;
	struct vl_settings *settings;
	char path[256];
	int fd;

	crash(f, LANE_MODE_AUTO);
	snprintf(path, sizeof(path), "%s/settings", f->directory);
	fd = bpf_obj_get(path);
	settings = mmap(NULL, sizeof(*settings), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(settings, MAP_FAILED);
	settings->abi = VL_ABI_VERSION + 41;
	assert_null(bpf_set_open(f->uplink, f->ifindex, &f->error));
	assert_non_null(strstr(f->error.text, "ABI version 42"));
	assert_int_not_equal(settings->flags & VL_SETTINGS_READY, 0); /* not ours to touch */
	munmap(settings, sizeof(*settings));
	close(fd);
	assert_int_equal(shell(f, "scripts/load-with-bpftool.sh --unload %s", f->uplink), 0);
	expect_no_trace(f);
}

/* Host links: maps of their own, ports shared. A tag that the stack holds beside the frame must reach XDP on the other end. */
static void host_link(void **state)
{
	static const struct bpf_insn tags_with_100[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K,
		  .dst_reg = BPF_REG_2,
		  .imm = 0x0081 }, /* 0x8100 in network byte order */
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = 100 },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_skb_vlan_push },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = TC_ACT_UNSPEC },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	struct fixture *f = *state;
	struct bpf_set *set = open_set(f);
	struct vl_port_key port = { .mac = { 2, 0, 0, 0, 0, 1 }, .vlan = 100 };
	struct vl_port_value value = { .port = 3, .node = 1, .queue_pairs = 1 };
	uint64_t counters[VL_REASON_COUNT] = { 0 };
	struct vl_settings *own;
	int tagger = bpf_prog_load(BPF_PROG_TYPE_SCHED_CLS, "tagger", "GPL", tags_with_100, 5, NULL);
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)f->ifindex, .attach_point = BPF_TC_EGRESS);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .prog_fd = tagger, .handle = 1, .priority = 10);

	attach(f, set, LANE_MODE_AUTO);
	for (int again = 0; again < 2; again++) { /* a second time: made anew */
		if (bpf_set_attach_host_link(set, 1, if_nametoindex("hl"), if_nametoindex("hle"), 2, &f->error))
			fail_msg("%s", f->error.text);
		assert_int_equal(xdp_on(if_nametoindex("hle")), pinned_program(f, "xdp_steer_n1"));
	}
	own = bpf_set_settings(set, 1);
	assert_non_null(own);
	assert_ptr_not_equal(own, bpf_set_settings(set, -1));
	assert_int_equal(own->flags & VL_SETTINGS_HOST_LINK, VL_SETTINGS_HOST_LINK);
	assert_int_equal(bpf_set_settings(set, -1)->host_link_ifindex[1], if_nametoindex("hl"));
	assert_int_equal(bpf_set_settings(set, -1)->host_link_queues[1], 2);

	assert_int_equal(bpf_set_port_put(set, &port, &value), 0);
	own->workers = own->device_queues = 1;
	own->flags |= VL_SETTINGS_READY;
	bpf_set_settings(set, -1)->flags |= VL_SETTINGS_READY;
	assert_int_equal(bpf_tc_attach(&hook, &opts), 0);
	assert_int_equal(
		shell(f,
		      "ip address add 192.0.2.1/24 dev %s; ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:01 dev %s;"
		      "echo x | timeout 5 bash -c 'cat >/dev/udp/192.0.2.2/9'",
		      f->uplink, f->uplink),
		0);
	for (int i = 0; i < 10000 && !counters[VL_XDP_NO_LANE] && !counters[VL_XDP_HOST_LINK_UNKNOWN]; i++) {
		usleep(1000);
		assert_int_equal(bpf_set_counters(set, counters), 0);
	}
	assert_int_equal(counters[VL_TC_HOST_TO_GUEST], 1);
	assert_int_equal(counters[VL_XDP_HOST_LINK_UNKNOWN], 0); /* without its tag it would be for nobody */
	assert_int_equal(counters[VL_XDP_NO_LANE], 1);		 /* no sockets in this test */

	bpf_set_detach_host_link(set, 1);
	assert_null(bpf_set_settings(set, 1));
	assert_int_equal(xdp_on(if_nametoindex("hle")), 0);
	assert_false(exists(f->directory, "settings_n1"));
	opts.prog_fd = 0;
	opts.prog_id = 0;
	opts.flags = 0;
	assert_int_equal(bpf_tc_detach(&hook, &opts), 0);
	close(tagger);
	bpf_set_close(set);
	expect_no_trace(f);
}

/* Beside a program that libxdp loaded: xdp-filter. Needs a kernel that permits freplace. */
static void chained_with_others(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set = open_set(f);
	bool possible;

	attach(f, set, LANE_MODE_AUTO);
	possible = bpf_set_dispatcher(set);
	bpf_set_close(set);
	expect_no_trace(f);
	if (!possible) {
		print_message("skipped: this kernel refuses freplace programs, so libxdp has no dispatcher here\n");
		skip();
	}

	/* Theirs first, goes last. */
	assert_int_equal(shell(f, "xdp-filter load -f ethernet %s >/dev/null", f->uplink), 0);
	assert_int_equal(behind_dispatcher(f, "xdpfilt_alw_eth"), 1);
	set = open_set(f);
	attach(f, set, LANE_MODE_AUTO);
	assert_true(bpf_set_dispatcher(set));
	assert_int_equal(behind_dispatcher(f, "xdpfilt_alw_eth"), 1);
	expect_attached(f);
	bpf_set_close(set);
	assert_int_equal(behind_dispatcher(f, "xdpfilt_alw_eth"), 1);
	assert_int_equal(behind_dispatcher(f, "xdp_steer"), 0);
	assert_false(exists(f->directory, ""));

	/* Ours is left by a crash beside theirs: adopted, and goes without them. */
	crash(f, LANE_MODE_AUTO);
	assert_int_equal(behind_dispatcher(f, "xdp_steer"), 1);
	set = open_set(f);
	assert_true(bpf_set_adopted(set));
	attach(f, set, LANE_MODE_AUTO);
	assert_true(bpf_set_dispatcher(set));
	assert_int_equal(behind_dispatcher(f, "xdp_steer"), 1);
	bpf_set_close(set);
	assert_int_equal(behind_dispatcher(f, "xdpfilt_alw_eth"), 1);
	assert_int_equal(behind_dispatcher(f, "xdp_steer"), 0);
	assert_int_equal(shell(f, "xdp-filter unload %s", f->uplink), 0);
	expect_no_trace(f);

	/* Ours first, theirs joins and stays. */
	set = open_set(f);
	attach(f, set, LANE_MODE_AUTO);
	assert_int_equal(shell(f, "xdp-filter load -f ethernet %s >/dev/null", f->uplink), 0);
	expect_attached(f);
	bpf_set_close(set);
	assert_int_equal(behind_dispatcher(f, "xdpfilt_alw_eth"), 1);
	assert_int_equal(shell(f, "xdp-filter unload %s", f->uplink), 0);
	expect_no_trace(f);
}

static void errors_name_the_device(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set = bpf_set_open("lo", 1, &f->error);

	assert_non_null(set);
	assert_int_equal(bpf_set_attach_uplink(set, LANE_MODE_AUTO, &f->error), -EOPNOTSUPP); /* no native XDP there */
	assert_non_null(strstr(f->error.text, "lo:"));
	assert_non_null(strstr(f->error.text, "mode generic"));
	bpf_set_close(set);
	set = open_set(f);
	assert_int_equal(shell(f, "ip link del %s", f->uplink), 0);
	assert_true(bpf_set_attach_uplink(set, LANE_MODE_AUTO, &f->error) < 0);
	assert_non_null(strstr(f->error.text, f->uplink));
	bpf_set_close(set);
	assert_false(exists(f->directory, ""));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(opens_attaches_leaves_no_trace),
		TEST(closes_without_attaching),
		TEST(maps_read_back),
		TEST(foreign_xdp_is_refused),
		TEST(foreign_filters_and_qdisc_stay),
		TEST(second_daemon_is_refused),
		TEST(operator_load_is_adopted_and_stays),
		TEST(operator_load_without_attachment),
		TEST(crashed_daemon_is_adopted),
		TEST(crashed_daemon_in_another_mode),
		TEST(programs_of_another_build_are_replaced),
		TEST(another_build_then_a_start_that_fails),
		TEST(crash_then_a_start_that_fails),
		TEST(crash_then_unload_by_script),
		TEST(crash_and_another_device),
		TEST(load_that_was_cut_off),
		TEST(incompatible_pins_are_named),
		TEST(other_abi_version_is_named),
		TEST(host_link),
		TEST(chained_with_others),
		TEST(errors_name_the_device),
#undef TEST
	};

	if (geteuid() != 0) {
		fprintf(stderr, "test_bpf_loader: needs root to load BPF programs\n");
		return 1;
	}
	if (access("scripts/load-with-bpftool.sh", X_OK)) {
		fprintf(stderr, "test_bpf_loader: run it from the top of the source tree\n");
		return 1;
	}
	libbpf_set_print(NULL);
	if (getenv("DEBUG"))
		log_set_level(LOG_LEVEL_DEBUG);
	if (unshare(CLONE_NEWNET) ||
	    system("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 && ip link set lo up")) {
		fprintf(stderr, "test_bpf_loader: cannot make a network namespace\n");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
