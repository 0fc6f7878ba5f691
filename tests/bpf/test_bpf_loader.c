// SPDX-License-Identifier: BSD-2-Clause
/* bpf_loader by itself: opens, attaches, reads and writes its maps, links to the host, and leaves no trace. */
#include <errno.h>

#include "loader_rig.h"

#define TC_ACT_UNSPEC (-1)

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

struct seen {
	unsigned times[VL_PORTS_MAX][8], count;
};

static void see(void *context, const struct vl_queue_key *key, const struct vl_queue_value *value)
{
	struct seen *seen = context;

	assert_in_range(key->port, 0, VL_PORTS_MAX - 1);
	assert_in_range(key->queue_pair, 0, 7);
	assert_int_equal(value->cpu, key->port + 1000 * key->queue_pair);
	seen->times[key->port][key->queue_pair]++;
	seen->count++;
}

/* More entries than one call to the kernel gives: each comes once, and what was taken out does not. */
static void all_of_affinity(void **state)
{
	struct fixture *f = *state;
	struct bpf_set *set = open_set(f);
	struct seen *seen = calloc(1, sizeof(*seen));

	assert_int_equal(bpf_set_affinity_each(set, see, seen), 0);
	assert_int_equal(seen->count, 0);
	for (unsigned i = 0; i < VL_PORTS_MAX * 8; i++) {
		const struct vl_queue_key key = { .port = i / 8, .queue_pair = i % 8 };
		const struct vl_queue_value value = { .cpu = i / 8 + 1000 * (i % 8) };

		assert_int_equal(bpf_set_affinity_put(set, &key, &value), 0);
	}
	assert_int_equal(bpf_set_affinity_each(set, see, seen), 0);
	assert_int_equal(seen->count, VL_PORTS_MAX * 8);
	for (unsigned i = 0; i < VL_PORTS_MAX * 8; i++) {
		const struct vl_queue_key key = { .port = i / 8, .queue_pair = i % 8 };

		assert_int_equal(seen->times[key.port][key.queue_pair], 1);
		if (i % 3)
			assert_int_equal(bpf_set_affinity_delete(set, &key), 0);
	}
	memset(seen, 0, sizeof(*seen));
	assert_int_equal(bpf_set_affinity_each(set, see, seen), 0);
	for (unsigned i = 0; i < VL_PORTS_MAX * 8; i++)
		assert_int_equal(seen->times[i / 8][i % 8], i % 3 == 0);
	free(seen);
	bpf_set_close(set);
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
		TEST(all_of_affinity),
		TEST(second_daemon_is_refused),
		TEST(host_link),
		TEST(errors_name_the_device),
#undef TEST
	};
	const char *why = loader_rig_enter();

	if (why) {
		fprintf(stderr, "test_bpf_loader: %s\n", why);
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
