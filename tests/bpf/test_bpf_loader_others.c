// SPDX-License-Identifier: BSD-2-Clause
/* bpf_loader beside others: programs and filters of strangers stay, an operator's load is adopted and stays. */
#include <errno.h>
#include <linux/if_link.h>

#include "loader_rig.h"

#define TC_ACT_UNSPEC (-1)

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

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(foreign_xdp_is_refused),
		TEST(foreign_filters_and_qdisc_stay),
		TEST(operator_load_is_adopted_and_stays),
		TEST(operator_load_without_attachment),
		TEST(chained_with_others),
#undef TEST
	};
	const char *why = loader_rig_enter();

	if (why) {
		fprintf(stderr, "test_bpf_loader_others: %s\n", why);
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
