// SPDX-License-Identifier: BSD-2-Clause
/* bpf_loader after a daemon that was killed: what it left is adopted, mended or named, and goes in the end. */
#include <errno.h>
#include <linux/if_link.h>
#include <sys/mman.h>

#include "loader_rig.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
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
#undef TEST
	};
	const char *why = loader_rig_enter();

	if (why) {
		fprintf(stderr, "test_bpf_loader_crash: %s\n", why);
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
