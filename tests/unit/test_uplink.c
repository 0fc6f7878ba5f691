// SPDX-License-Identifier: BSD-2-Clause
/* Opening and closing uplinks on real devices: what is refused and in which words, and that nothing is left behind. Needs root. */
#include "uplink_rig.h"

#include <net/if.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/util.h"
#include "control/bpf_loader.h"
#include "control/host_link.h"
#include "control/lane_fit.h"
#include "control/uplink.h"
#include "control/uplink_lock.h"

static struct uplink_setup setup_of(const char *ifname, unsigned workers)
{
	struct uplink_setup s = { .config = { .mode = LANE_MODE_AUTO }, .workers = workers, .nodes = 1 };

	copy_string(s.config.ifname, sizeof(s.config.ifname), ifname);
	return s;
}

static struct uplink *open_or_fail(const struct uplink_setup *s)
{
	struct error error = { 0 };
	struct uplink *uplink = uplink_open(s, &error);

	if (!uplink)
		fail_msg("%s", error.text);
	return uplink;
}

#define assert_refused(s, code_, ...) assert_refused_(s, code_, (const char *const[]){ __VA_ARGS__, NULL })
static void assert_refused_(const struct uplink_setup *s, int code, const char *const *words)
{
	char *before = rig_snapshot();
	struct error error = { 0 };

	assert_null(uplink_open(s, &error));
	if (error.code != code)
		fail_msg("code %d instead of %d: %s", error.code, code, error.text);
	for (; *words; words++)
		if (!strstr(error.text, *words))
			fail_msg("no '%s' in: %s", *words, error.text);
	rig_assert_same(before, rig_snapshot());
}

static void test_fit(void **state)
{
	struct lane_fit fit;

	assert_true(lane_fit_for_mtu(1500, &fit));
	assert_int_equal(fit.frame_size, 2048);
	assert_false(fit.multi_buffer);
	/* The very last MTU that fits, and the next: headroom, header, two tags and the MTU fill the chunk. */
	assert_int_equal(fit.mtu_max + 14 + 8 + 256 + FRAME_HEADROOM, 2048);
	assert_true(lane_fit_for_mtu(fit.mtu_max + 1, &fit));
	assert_int_equal(fit.frame_size, 4096);
	assert_false(fit.multi_buffer);
	assert_true(lane_fit_for_mtu(fit.mtu_max + 1, &fit));
	assert_int_equal(fit.frame_size, 4096);
	assert_true(fit.multi_buffer);
	assert_true(lane_fit_for_mtu(9000, &fit));
	assert_true(lane_fit_for_mtu(LANE_FIT_MTU_MAX, &fit));
	assert_false(lane_fit_for_mtu(LANE_FIT_MTU_MAX + 1, &fit));
}

static void test_host_link_names(void **state)
{
	char name[IF_NAMESIZE];

	assert_true(host_link_name(3, 0, name));
	assert_string_equal(name, "vhl3n0");
	assert_true(host_link_name(12345678, 63, name)); /* 14 characters and the e */
	assert_false(host_link_name(123456789, 63, name));
	assert_false(host_link_name(UINT32_MAX, 0, name));
	assert_true(host_link_is_name("vhl3n0"));
	assert_true(host_link_is_name("vhl3n0e"));
	assert_false(host_link_is_name("vhl3n0x"));
	assert_false(host_link_is_name("vhl03n0"));
	assert_false(host_link_is_name("vhl3n"));
	assert_false(host_link_is_name("eth0"));
}

static void test_refusals(void **state)
{
	struct uplink_setup s = setup_of("vhltnone", 2);

	assert_refused(&s, -ENODEV, "vhltnone", UPLINK);
	s = setup_of("lo", 1);
	assert_refused(&s, -EINVAL, "loopback");
	rig_command("ip link add vhl9n0 type veth peer name vhl9n0e");
	s = setup_of("vhl9n0e", 1);
	assert_refused(&s, -EINVAL, "host link");
	rig_command("ip link del vhl9n0");

	s = setup_of(UPLINK, 1);
	s.config.queues = 1;
	assert_refused(&s, -EINVAL, "2 receive queues", "queues: 1", "leave 1 without", "ethtool -L");
	s.config.queues = 3;
	assert_refused(&s, -EINVAL, "2 receive queues", "queues: 3", "ethtool -L");
	s = setup_of(UPLINK, VL_WORKERS_MAX + 1);
	assert_refused(&s, -EINVAL, "65 workers", "64");

	/* veth has no zero-copy: demanded, that is a failure and not a fallback. */
	s = setup_of(UPLINK, 1);
	s.config.mode = LANE_MODE_ZERO_COPY;
	assert_refused(&s, -EOPNOTSUPP, UPLINK, "zero-copy");

	rig_command("ip link set " UPLINK " mtu 20000");
	s = setup_of(UPLINK, 1);
	assert_refused(&s, -EMSGSIZE, "20000", "9194", "ip link set " UPLINK " mtu");
}

static void test_too_few_transmit_queues(void **state)
{
	struct uplink_setup s = setup_of("vhltq", 2);
	struct uplink *uplink;

	rig_command("ip link add vhltq numrxqueues 4 numtxqueues 1 type veth peer name vhltqp numtxqueues 4 numrxqueues 4");
	rig_command("ip link set vhltq up; ip link set vhltqp up");
	assert_refused(&s, -EINVAL, "1 transmit", "4 receive", "2 workers", "ethtool -L");
	/* One worker sends on queue 0 only. */
	s.workers = 1;
	uplink = open_or_fail(&s);
	uplink_close(uplink);
	rig_command("ip link del vhltq");
}

static void test_open_and_close(void **state)
{
	static const struct {
		enum lane_mode asked, got;
		unsigned workers;
	} cases[] = {
		{ LANE_MODE_AUTO, LANE_MODE_COPY, 1 },
		{ LANE_MODE_COPY, LANE_MODE_COPY, 3 },
		{ LANE_MODE_GENERIC, LANE_MODE_GENERIC, 2 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct uplink_setup s = setup_of(UPLINK, cases[i].workers);
		char *before = rig_snapshot();
		const struct netdev_info *host;
		struct vl_settings *settings;
		struct netdev_info engine;
		struct uplink *uplink;
		char *during;

		s.config.mode = cases[i].asked;
		uplink = open_or_fail(&s);
		settings = bpf_set_settings(uplink_bpf(uplink), -1);
		assert_int_equal(lane_device_mode(uplink_device(uplink)), cases[i].got);
		assert_int_equal(lane_device_queues(uplink_device(uplink)), 2);
		assert_int_equal(lane_device_workers(uplink_device(uplink)), cases[i].workers);
		assert_string_equal(uplink_info(uplink)->ifname, UPLINK);

		host = host_link_host_end(uplink_host_link(uplink, 0));
		assert_null(uplink_host_link(uplink, 1));
		assert_null(uplink_host_link(uplink, 1000));
		assert_true(host->up);
		assert_int_equal(host->rx_queues, cases[i].workers);
		assert_int_equal(host->mtu, 1500);
		assert_int_equal(netdev_get(host_link_engine_end(uplink_host_link(uplink, 0))->ifname, &engine, NULL), 0);
		assert_int_equal(engine.peer_ifindex, host->ifindex);
		assert_false(netdev_get_feature(host->ifname, "tx-checksum-ip-generic"));
		assert_false(netdev_get_feature(host->ifname, "tx-vlan-hw-insert"));
		assert_false(netdev_get_feature(host->ifname, "tx-tcp-segmentation"));
		assert_false(netdev_get_feature(UPLINK, "rx-vlan-hw-parse"));

		assert_int_equal(settings->uplink_ifindex, if_nametoindex(UPLINK));
		assert_int_equal(settings->workers, cases[i].workers);
		assert_int_equal(settings->device_queues, 2);
		assert_int_equal(settings->host_link_node, 0);
		assert_int_equal(settings->host_link_ifindex[0], host->ifindex);
		assert_int_equal(settings->host_link_queues[0], cases[i].workers);
		assert_int_equal(bpf_set_settings(uplink_bpf(uplink), 0)->device_queues, cases[i].workers);
		assert_true(bpf_set_settings(uplink_bpf(uplink), 0)->flags & VL_SETTINGS_HOST_LINK);
		assert_false(settings->flags & VL_SETTINGS_READY);
		uplink_start(uplink);
		assert_true(settings->flags & VL_SETTINGS_READY);
		assert_true(bpf_set_settings(uplink_bpf(uplink), 0)->flags & VL_SETTINGS_READY);
		uplink_stop(uplink);
		assert_false(settings->flags & VL_SETTINGS_READY);
		assert_false(bpf_set_settings(uplink_bpf(uplink), 0)->flags & VL_SETTINGS_READY);

		/* The snapshot sees all that must be undone, else its equality proves nothing. */
		during = rig_snapshot();
		assert_non_null(strstr(during, "promiscuity 1"));
		assert_non_null(strstr(during, "clsact"));
		assert_non_null(strstr(during, "rx-vlan-offload: off"));
		assert_non_null(strstr(during, BPF_PIN_ROOT "/" UPLINK "/lanes_n0"));
		assert_non_null(strstr(during, UPLINK_LOCK_DIRECTORY "/" UPLINK ".lock"));
		assert_non_null(strstr(during, cases[i].got == LANE_MODE_GENERIC ? "xdpgeneric" : " xdp "));
		free(during);
		uplink_close(uplink);
		rig_assert_same(before, rig_snapshot());
	}
	uplink_close(NULL);
}

static void test_second_one_is_refused(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 1);
	struct uplink *uplink = open_or_fail(&s);

	assert_refused(&s, -EBUSY, UPLINK, "another vhostlane");
	uplink_close(uplink);
}

/* Something in the way at the very last step: all before it is undone. */
static void test_unwinds(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 1);
	char name[IF_NAMESIZE];

	assert_true(host_link_name(if_nametoindex(UPLINK), 5, name));
	rig_command("ip link add %s type bridge", name);
	s.nodes = 1 | 1 << 5;
	assert_refused(&s, -EEXIST, name, "ip link del");
	rig_command("ip link del %s", name);
}

static void test_two_nodes(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 2);
	char *before = rig_snapshot();
	struct vl_settings *settings;
	struct uplink *uplink;

	s.nodes = 1 << 1 | 1 << 3;
	uplink = open_or_fail(&s);
	settings = bpf_set_settings(uplink_bpf(uplink), -1);
	assert_null(uplink_host_link(uplink, 0));
	assert_non_null(uplink_host_link(uplink, 1));
	assert_non_null(uplink_host_link(uplink, 3));
	assert_int_equal(settings->host_link_node, 1);
	assert_int_equal(settings->host_link_ifindex[0], 0);
	assert_int_equal(settings->host_link_ifindex[1], host_link_host_end(uplink_host_link(uplink, 1))->ifindex);
	assert_int_equal(settings->host_link_ifindex[3], host_link_host_end(uplink_host_link(uplink, 3))->ifindex);
	uplink_close(uplink);
	rig_assert_same(before, rig_snapshot());
}

/* A daemon killed with everything open; its successor starts, and its end leaves what was before the first. */
static void test_crash_and_successor(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 2);
	char *before = rig_snapshot();
	struct uplink *uplink;
	int told[2], status;
	char byte;
	pid_t child;

	/* The first one served more nodes than the second will. */
	s.nodes = 3;
	assert_int_equal(pipe(told), 0);
	child = fork();
	if (child == 0) {
		uplink = uplink_open(&s, NULL);
		if (!uplink)
			_exit(1);
		uplink_start(uplink);
		if (write(told[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	close(told[1]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_false(netdev_get_feature(UPLINK, "rx-vlan-hw-parse"));

	s.nodes = 1;
	uplink = open_or_fail(&s);
	assert_true(bpf_set_adopted(uplink_bpf(uplink)));
	uplink_close(uplink);
	rmdir(UPLINK_LOCK_DIRECTORY); /* made by the one that was killed */
	rig_assert_same(before, rig_snapshot());
}

static void test_mtu(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 1);
	struct uplink *uplink = open_or_fail(&s);
	const struct host_link *link = uplink_host_link(uplink, 0);
	struct error error = { 0 };
	struct netdev_info info;

	assert_int_equal(uplink_device_changed(uplink, &error), 0); /* it has not */
	rig_command("ip link set " UPLINK " mtu 1400");
	assert_int_equal(uplink_device_changed(uplink, &error), 0);
	assert_int_equal(uplink_info(uplink)->mtu, 1400);
	assert_int_equal(netdev_get(host_link_host_end(link)->ifname, &info, NULL), 0);
	assert_int_equal(info.mtu, 1400);
	assert_int_equal(netdev_get(host_link_engine_end(link)->ifname, &info, NULL), 0);
	assert_int_equal(info.mtu, 1400);

	rig_command("ip link set " UPLINK " mtu 3000");
	assert_int_equal(uplink_device_changed(uplink, &error), -EMSGSIZE);
	assert_non_null(strstr(error.text, "3000"));
	assert_non_null(strstr(error.text, "1754"));
	assert_non_null(strstr(error.text, "restart"));
	assert_int_equal(host_link_host_end(link)->mtu, 1754);
	uplink_close(uplink);

	/* After the restart it is carried. */
	uplink = open_or_fail(&s);
	assert_int_equal(host_link_host_end(uplink_host_link(uplink, 0))->mtu, 3000);
	rig_command("ip link set " UPLINK " mtu 9000");
	assert_int_equal(uplink_device_changed(uplink, &error), -EMSGSIZE);
	uplink_close(uplink);
	uplink = open_or_fail(&s);
	assert_int_equal(host_link_host_end(uplink_host_link(uplink, 0))->mtu, 9000);
	rig_command("ip link set " UPLINK " mtu 1500");
	assert_int_equal(uplink_device_changed(uplink, &error), 0);
	assert_int_equal(host_link_host_end(uplink_host_link(uplink, 0))->mtu, 1500);
	uplink_close(uplink);
}

/* As long as the veth's own checksum offload is on they are left to it, in native and generic mode. What drivers of hardware need, packets
 * of AF_XDP's copy mode do not tell. */
static void test_tx_checksum(void **state)
{
	static const enum lane_mode modes[] = { LANE_MODE_AUTO, LANE_MODE_GENERIC };
	const enum tx_checksum best = lane_kernel_has_metadata() ? TX_CHECKSUM_KERNEL : TX_CHECKSUM_ENGINE;
	struct netdev_info info;

	assert_int_equal(netdev_get(UPLINK, &info, NULL), 0);
	assert_int_equal(tx_checksum_offered(&info, LANE_MODE_COPY), TX_CHECKSUM_KERNEL);
	copy_string(info.driver, sizeof(info.driver), "igb");
	assert_int_equal(tx_checksum_offered(&info, LANE_MODE_COPY), TX_CHECKSUM_ENGINE);
	for (unsigned i = 0; i < ARRAY_SIZE(modes); i++) {
		struct uplink_setup s = setup_of(UPLINK, 1);
		struct uplink *uplink;
		struct error error = { 0 };

		s.config.mode = modes[i];
		uplink = open_or_fail(&s);
		assert_int_equal(uplink_tx_checksum(uplink), best);
		assert_int_equal(host_link_tx_checksum(uplink_host_link(uplink, 0)), best);
		rig_command("ethtool -K " UPLINK " tx off >/dev/null");
		assert_int_equal(uplink_device_changed(uplink, &error), 0);
		assert_int_equal(uplink_tx_checksum(uplink), TX_CHECKSUM_ENGINE);
		assert_false(lane_device_leaves_checksum(uplink_device(uplink)));
		assert_int_equal(host_link_tx_checksum(uplink_host_link(uplink, 0)), best);
		assert_int_equal(tx_checksum_offered(uplink_info(uplink), LANE_MODE_ZERO_COPY), TX_CHECKSUM_ENGINE); /* veth has none */
		uplink_close(uplink);
		uplink = open_or_fail(&s);
		assert_int_equal(uplink_tx_checksum(uplink), TX_CHECKSUM_ENGINE);
		rig_command("ethtool -K " UPLINK " tx on >/dev/null");
		assert_int_equal(uplink_device_changed(uplink, &error), 0);
		assert_int_equal(uplink_tx_checksum(uplink), best);
		uplink_close(uplink);
	}
}

static void test_device_goes_away(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 1);
	struct error error = { 0 };
	struct uplink *uplink = open_or_fail(&s);
	char engine[IF_NAMESIZE];

	copy_string(engine, sizeof(engine), host_link_engine_end(uplink_host_link(uplink, 0))->ifname);
	rig_remove_wire();
	assert_int_equal(uplink_device_changed(uplink, &error), -ENODEV);
	uplink_close(uplink);
	assert_int_equal(if_nametoindex(engine), 0);
	assert_int_equal(access(BPF_PIN_ROOT, F_OK), -1);
	assert_int_equal(access(UPLINK_LOCK_DIRECTORY, F_OK), -1);
	rig_make_wire(2);

	/* And a host link deleted by somebody else. */
	s = setup_of(UPLINK, 1);
	uplink = open_or_fail(&s);
	rig_command("ip link del %s", host_link_host_end(uplink_host_link(uplink, 0))->ifname);
	uplink_close(uplink);
	assert_int_equal(access(BPF_PIN_ROOT, F_OK), -1);
}

static void test_warnings(void **state)
{
	struct uplink_setup s = setup_of(UPLINK, 2);
	struct uplink *uplink = open_or_fail(&s);

	assert_string_equal(uplink_warnings(uplink), "");
	uplink_close(uplink);

	rig_command("ethtool -K " WIRE " tx on txvlan on >/dev/null");
	s.workers = 4;
	uplink = open_or_fail(&s);
	assert_non_null(strstr(uplink_warnings(uplink), "ethtool -K " WIRE " tx off"));
	assert_non_null(strstr(uplink_warnings(uplink), "ethtool -K " WIRE " txvlan off"));
	assert_non_null(strstr(uplink_warnings(uplink), "2 receive queues for 4 workers"));
	assert_null(strstr(uplink_warnings(uplink), "carrier"));
	uplink_close(uplink);

	rig_command("ip link set " WIRE " down");
	uplink = open_or_fail(&s);
	assert_non_null(strstr(uplink_warnings(uplink), "no carrier"));
	uplink_close(uplink);

	rig_command("ip link set " UPLINK " down; ip link add vhltbr type bridge && ip link set " UPLINK " master vhltbr");
	uplink = open_or_fail(&s);
	assert_non_null(strstr(uplink_warnings(uplink), "is down"));
	assert_non_null(strstr(uplink_warnings(uplink), "member of vhltbr"));
	uplink_close(uplink);
	rig_command("ip link del vhltbr");
}

static bool kernel_has(const char *kind)
{
	char command[128];

	snprintf(command, sizeof(command), "ip link add link " UPLINK " vhltprobe type %s $([ %s = vlan ] && echo id 9) 2>/dev/null && ip link del vhltprobe", kind, kind);
	return system(command) == 0;
}

/* XDP there sees frames changed: tc steers instead. On the devices below, XDP does. */
static void test_on_other_devices(void **state)
{
	static const struct {
		const char *kind, *make;
		bool lies;
	} cases[] = {
		{ "bond", "ip link add vhltover numtxqueues 1 numrxqueues 1 type bond mode active-backup && ip link set " UPLINK " down && ip link set " UPLINK " master vhltover", true },
		{ "bridge", "ip link add vhltover type bridge && ip link set " UPLINK " master vhltover", true },
		{ "macvlan", "ip link add link " UPLINK " vhltover type macvlan mode passthru", true },
		{ "vlan", "ip link add link " UPLINK " vhltover type vlan id 7", true },
		{ "veth", "ip link add vhltover type veth peer name vhltpeer && ip link set vhltpeer up", false },
	};

	unsigned tried = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		struct uplink_setup s = setup_of("vhltover", 1);
		struct uplink *uplink;

		/* Not every kernel has them all. */
		if (!kernel_has(cases[i].kind)) {
			print_message("skipped: no %s in this kernel\n", cases[i].kind);
			continue;
		}
		tried++;
		rig_command("ip link set " UPLINK " up && %s && ip link set vhltover up", cases[i].make);
		s.config.mode = LANE_MODE_GENERIC;
		uplink = open_or_fail(&s);
		assert_int_equal(!!(bpf_set_settings(uplink_bpf(uplink), -1)->flags & VL_SETTINGS_BY_TC), cases[i].lies);
		assert_int_equal(strstr(uplink_warnings(uplink), "lies on other devices") != NULL, cases[i].lies);
		uplink_close(uplink);
		rig_command("ip link del vhltover");
	}
	assert_true(tried >= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fit),
		cmocka_unit_test(test_host_link_names),
		cmocka_unit_test_setup_teardown(test_refusals, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_too_few_transmit_queues, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_open_and_close, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_second_one_is_refused, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_unwinds, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_two_nodes, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_crash_and_successor, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_mtu, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_tx_checksum, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_device_goes_away, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_warnings, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_on_other_devices, rig_wire_setup, rig_wire_teardown),
	};
	int code = rig_enter();

	return code ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
