// SPDX-License-Identifier: BSD-2-Clause
/* netdev against real veth devices in a network namespace of its own, which ends with the process. Needs root. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if_arp.h>
#include <netlink/route/link.h>
#include <netlink/socket.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/util.h"
#include "control/netdev.h"
#include "control/netdev_ethtool.h"

#define A "vhltA"
#define B "vhltB"

static int make_pair(void **state)
{
	struct error error = { 0 };

	if (netdev_make_veth(A, B, 3, 1500, &error) < 0) {
		print_error("%s\n", error.text);
		return -1;
	}
	return 0;
}

static int delete_pair(void **state)
{
	return if_nametoindex(A) ? netdev_delete(A, NULL) : 0;
}

/* The kernel's count of those that want the device promiscuous; flags do not show it for packet sockets. */
static unsigned promiscuity(const char *ifname)
{
	struct nl_sock *socket = nl_socket_alloc();
	struct rtnl_link *link;
	unsigned count;

	assert_int_equal(nl_connect(socket, NETLINK_ROUTE), 0);
	assert_int_equal(rtnl_link_get_kernel(socket, 0, ifname, &link), 0);
	count = rtnl_link_get_promiscuity(link);
	rtnl_link_put(link);
	nl_socket_free(socket);
	return count;
}

static void test_bad_names(void **state)
{
	static const char *const bad[] = { "", "eth0/x", "a b", "a:b", "..", ".", "a\tb" };
	struct netdev_info info;
	struct error error = { 0 };

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		assert_int_equal(netdev_get(bad[i], &info, &error), -EINVAL);
	assert_int_equal(netdev_get("0123456789abcdef", &info, &error), -ENAMETOOLONG);
	assert_non_null(strstr(error.text, "0123456789abcdef"));
	assert_non_null(strstr(error.text, "16 characters"));
	assert_non_null(strstr(error.text, "15"));
	assert_int_equal(netdev_get("0123456789abcde", &info, &error), -ENODEV);
}

static void test_missing_names_candidates(void **state)
{
	struct netdev_info info;
	struct error error = { 0 };

	assert_int_equal(netdev_get("vhltnone", &info, &error), -ENODEV);
	assert_non_null(strstr(error.text, "vhltnone"));
	assert_non_null(strstr(error.text, A));
	assert_non_null(strstr(error.text, B));
	assert_non_null(strstr(error.text, "ip link"));
	assert_int_equal(netdev_delete("vhltnone", &error), -ENODEV);
	assert_int_equal(netdev_set_mtu("vhltnone", 1500, &error), -ENODEV);
	assert_int_equal(netdev_set_up("vhltnone", true, &error), -ENODEV);
}

static void test_loopback(void **state)
{
	struct netdev_info info;

	assert_int_equal(netdev_get("lo", &info, NULL), 0);
	assert_int_equal(info.link_type, ARPHRD_LOOPBACK);
	assert_false(info.up);
	assert_int_equal(info.node, -1);
}

static void test_veth(void **state)
{
	struct netdev_info a, b;
	struct error error = { 0 };

	assert_int_equal(netdev_get(A, &a, &error), 0);
	assert_int_equal(netdev_get(B, &b, &error), 0);
	assert_string_equal(a.ifname, A);
	assert_string_equal(a.kind, "veth");
	assert_string_equal(a.driver, "veth");
	assert_int_equal(a.ifindex, if_nametoindex(A));
	assert_int_equal(a.peer_ifindex, b.ifindex);
	assert_int_equal(b.peer_ifindex, a.ifindex);
	assert_false(a.peer_elsewhere);
	assert_int_equal(a.link_type, ARPHRD_ETHER);
	assert_int_equal(a.rx_queues, 3);
	assert_int_equal(a.tx_queues, 3);
	assert_int_equal(b.rx_queues, 3);
	assert_int_equal(b.tx_queues, 3);
	assert_int_equal(a.mtu, 1500);
	assert_int_equal(b.mtu, 1500);
	assert_int_equal(a.master_ifindex, 0);
	assert_int_equal(a.node, -1);
	assert_true(a.up && a.running && b.up && b.running);
	/* Unicast, locally administered, not the same on both ends. */
	assert_int_equal(a.mac[0] & 3, 2);
	assert_int_equal(b.mac[0] & 3, 2);
	assert_memory_not_equal(a.mac, b.mac, 6);

	assert_int_equal(netdev_make_veth(A, B, 1, 1500, &error), -EEXIST);
	assert_non_null(strstr(error.text, A));

	assert_int_equal(netdev_set_mtu(B, 9000, &error), 0);
	assert_int_equal(netdev_get(B, &b, &error), 0);
	assert_int_equal(b.mtu, 9000);
	assert_int_equal(netdev_set_mtu(B, 10000000, &error), -EINVAL);
	assert_non_null(strstr(error.text, "10000000"));

	assert_int_equal(netdev_set_up(B, false, &error), 0);
	assert_int_equal(netdev_get(A, &a, &error), 0);
	assert_true(a.up);
	assert_false(a.running);

	assert_int_equal(netdev_delete(B, &error), 0);
	assert_int_equal(if_nametoindex(A), 0);
}

static void test_veth_is_silent(void **state)
{
	struct ifaddrs *all;
	struct netdev_info info;
	char path[80], text[8];

	for (unsigned i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/disable_ipv6", i ? B : A);
		if (access(path, F_OK) == 0) {
			assert_true(read_text(path, text, sizeof(text)) > 0);
			assert_string_equal(text, "1");
		}
	}
	/* Another veth, made as everybody makes them, has a link-local address at once: the check below can fail. */
	assert_int_equal(system("ip link add vhltC type veth peer name vhltD && ip link set vhltC up && ip link set vhltD up"), 0);
	assert_int_equal(netdev_get("vhltC", &info, NULL), 0);
	assert_int_equal(getifaddrs(&all), 0);
	bool control = false;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		bool address = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET6 || i->ifa_addr->sa_family == AF_INET);
		bool ours = !strcmp(i->ifa_name, A) || !strcmp(i->ifa_name, B);

		control |= address && !strcmp(i->ifa_name, "vhltC");
		assert_false(address && ours);
		if (ours)
			assert_true(i->ifa_flags & IFF_NOARP);
	}
	freeifaddrs(all);
	if (access("/proc/sys/net/ipv6", F_OK) == 0)
		assert_true(control);
	assert_int_equal(netdev_delete("vhltC", NULL), 0);
}

static void test_peer_elsewhere(void **state)
{
	struct netdev_info info;
	char command[64];
	pid_t child;
	int ready[2];

	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		if (unshare(CLONE_NEWNET) == 0 && write(ready[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], command, 1), 1);
	snprintf(command, sizeof(command), "ip link set %s netns %d", B, (int)child);
	assert_int_equal(system(command), 0);
	assert_int_equal(netdev_get(A, &info, NULL), 0);
	assert_true(info.peer_elsewhere);
	assert_int_equal(info.peer_ifindex, 0);
	/* Before its namespace goes, which would take it away at some later moment. */
	assert_int_equal(netdev_delete(A, NULL), 0);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	close(ready[0]);
	close(ready[1]);
}

static void test_member_of_bridge(void **state)
{
	struct netdev_info info, bridge;

	if (system("ip link add vhltbr type bridge 2>/dev/null") != 0) {
		print_message("skipped: no bridge in this kernel\n");
		skip();
	}
	assert_int_equal(system("ip link set " A " master vhltbr"), 0);
	assert_int_equal(netdev_get(A, &info, NULL), 0);
	assert_int_equal(netdev_get("vhltbr", &bridge, NULL), 0);
	assert_string_equal(bridge.kind, "bridge");
	assert_int_equal(info.master_ifindex, bridge.ifindex);
	assert_int_equal(netdev_delete("vhltbr", NULL), 0);
}

static void test_promiscuous(void **state)
{
	struct netdev_undo_log log;
	struct error error = { 0 };
	pid_t child;
	int status;

	netdev_undo_init(&log, A);
	assert_int_equal(promiscuity(A), 0);
	assert_int_equal(netdev_set_promiscuous(&log, &error), 0);
	assert_int_equal(promiscuity(A), 1);
	assert_int_equal(netdev_set_promiscuous(&log, &error), 0); /* twice is once */
	assert_int_equal(promiscuity(A), 1);
	netdev_undo(&log);
	assert_int_equal(promiscuity(A), 0);
	assert_int_equal(log.promiscuous_fd, -1);

	/* A process that dies without undoing leaves nothing. */
	child = fork();
	if (child == 0) {
		netdev_set_promiscuous(&log, &error);
		_exit(promiscuity(A) == 1 ? 7 : 8);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 7);
	assert_int_equal(promiscuity(A), 0);

	netdev_undo_init(&log, "vhltnone");
	assert_int_equal(netdev_set_promiscuous(&log, &error), -ENODEV);
	assert_int_equal(log.count, 0);
}

static void test_feature(void **state)
{
	struct netdev_undo_log log;
	struct ethtool_feature feature;
	struct error error = { 0 };

	netdev_undo_init(&log, A);
	assert_true(netdev_get_feature(A, "tx-checksum-ip-generic"));
	assert_true(netdev_get_feature(A, "tx-tcp-segmentation"));
	assert_int_equal(netdev_set_feature(&log, "tx-checksum-ip-generic", true, &error), 0);
	assert_int_equal(log.count, 0); /* nothing to do, nothing to undo */
	assert_int_equal(netdev_set_feature(&log, "tx-checksum-ip-generic", false, &error), 0);
	assert_int_equal(log.count, 1);
	assert_false(netdev_get_feature(A, "tx-checksum-ip-generic"));
	assert_false(netdev_get_feature(A, "tx-tcp-segmentation")); /* hangs on the other one */
	/* Off, but still wished for: a change must remember the wish, not the effect. */
	assert_int_equal(ethtool_feature_get(A, "tx-tcp-segmentation", &feature), 0);
	assert_true(feature.wanted && !feature.active);
	/* Can't be had while the checksum is off: refused, and the wish is as before. */
	assert_int_equal(netdev_set_feature(&log, "tx-tcp-segmentation", true, &error), -EOPNOTSUPP);
	assert_int_equal(log.count, 1);
	netdev_undo(&log);
	assert_int_equal(log.count, 0);
	assert_true(netdev_get_feature(A, "tx-checksum-ip-generic"));
	assert_true(netdev_get_feature(A, "tx-tcp-segmentation"));

	assert_int_equal(netdev_set_feature(&log, "rx-nonsense", false, &error), -EOPNOTSUPP);
	assert_non_null(strstr(error.text, "rx-nonsense"));
	assert_false(netdev_get_feature(A, "rx-nonsense"));
	assert_false(netdev_get_feature("vhltnone", "tx-checksum-ip-generic"));
	/* Fixed on veth. */
	assert_int_equal(netdev_set_feature(&log, "tx-lockless", !netdev_get_feature(A, "tx-lockless"), &error), -EOPNOTSUPP);
	assert_int_equal(log.count, 0);
	/* Fixed as it is wanted: fine. */
	assert_int_equal(netdev_set_feature(&log, "rx-lro", false, &error), 0);
	assert_int_equal(log.count, 0);
}

static void test_undo_order(void **state)
{
	struct netdev_undo_log log;
	struct error error = { 0 };

	/* Newest first: a later change of the same thing must not win. */
	netdev_undo_init(&log, A);
	assert_int_equal(netdev_set_feature(&log, "tx-checksum-ip-generic", false, &error), 0);
	assert_int_equal(netdev_set_feature(&log, "tx-checksum-ip-generic", true, &error), 0);
	assert_int_equal(netdev_set_feature(&log, "tx-checksum-ip-generic", false, &error), 0);
	assert_int_equal(log.count, 3);
	netdev_undo(&log);
	assert_true(netdev_get_feature(A, "tx-checksum-ip-generic"));

	/* A device that is gone is no trouble. */
	assert_int_equal(netdev_set_feature(&log, "tx-checksum-ip-generic", false, &error), 0);
	assert_int_equal(netdev_set_promiscuous(&log, &error), 0);
	assert_int_equal(netdev_delete(A, &error), 0);
	netdev_undo(&log);
	assert_int_equal(log.count, 0);
	assert_int_equal(log.promiscuous_fd, -1);
}

/* "lo" of this namespace and "lo" of the one that /sys shows are two devices. */
static void test_napi_in_own_namespace(void **state)
{
	static const char path[] = "/sys/class/net/lo/gro_flush_timeout";
	struct netdev_undo_log log, second;
	struct error error = { 0 };
	char outer[32], now[32];

	if (read_text(path, outer, sizeof(outer)) < 0) {
		print_message("skipped: %s is not readable\n", path);
		skip();
	}
	netdev_undo_init(&log, "lo");
	assert_int_equal(netdev_set_napi(&log, "gro_flush_timeout", 123456, &error), 0);
	assert_int_equal(log.count, 1);
	assert_int_equal(log.changes[0].before, 0);
	assert_true(read_text(path, now, sizeof(now)) > 0);
	assert_string_equal(now, outer);
	/* What was written is what is read. */
	netdev_undo_init(&second, "lo");
	assert_int_equal(netdev_set_napi(&second, "gro_flush_timeout", 123456, &error), 0);
	assert_int_equal(second.count, 0);
	netdev_undo(&log);
	assert_int_equal(netdev_set_napi(&second, "gro_flush_timeout", 0, &error), 0);
	assert_int_equal(second.count, 0);

	assert_int_equal(netdev_set_napi(&log, "no_such_attribute", 1, &error), -ENOENT);
	assert_non_null(strstr(error.text, "no_such_attribute"));
}

static void test_undo_log_is_bounded(void **state)
{
	struct netdev_undo_log log, look;
	struct error error = { 0 };

	netdev_undo_init(&log, A);
	for (unsigned i = 1; i <= NETDEV_CHANGES_MAX; i++)
		assert_int_equal(netdev_set_napi(&log, "napi_defer_hard_irqs", i, &error), 0);
	assert_int_equal(netdev_set_napi(&log, "napi_defer_hard_irqs", 99, &error), -ENOSPC);
	assert_int_equal(netdev_set_promiscuous(&log, &error), -ENOSPC);
	assert_int_equal(netdev_set_feature(&log, "rx-gro", true, &error), -ENOSPC);
	netdev_undo(&log);
	netdev_undo_init(&look, A);
	assert_int_equal(netdev_set_napi(&look, "napi_defer_hard_irqs", 0, &error), 0);
	assert_int_equal(look.count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_names),
		cmocka_unit_test(test_loopback),
		cmocka_unit_test_setup_teardown(test_missing_names_candidates, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_veth, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_veth_is_silent, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_peer_elsewhere, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_member_of_bridge, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_promiscuous, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_feature, make_pair, delete_pair),
		cmocka_unit_test_setup_teardown(test_undo_order, make_pair, delete_pair),
		cmocka_unit_test(test_napi_in_own_namespace),
		cmocka_unit_test_setup_teardown(test_undo_log_is_bounded, make_pair, delete_pair),
	};

	if (unshare(CLONE_NEWNET) < 0) {
		printf("1..0 # SKIP no network namespace of its own: %s (run as root)\n", strerror(errno));
		return errno == EPERM ? 77 : 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
