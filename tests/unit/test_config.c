// SPDX-License-Identifier: BSD-2-Clause
/* The configuration: keys and values, option forms, what holds among ports and uplinks, CPUs. The file: test_config_file.c. */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/util.h"
#include "config_try.h"
#include "control/config.h"

/* --- one port's keys ------------------------------------------------------------------------------------------------ */

static void port_keys(void **state)
{
	struct config_port p;
	struct error e;

	config_port_init(&p);
	assert_int_equal(p.role, PORT_ROLE_SERVER);
	assert_int_equal(p.queues, 1);
	assert_int_equal(p.busy_poll_us, 50);
	assert_int_equal(p.node, -1);
	assert_false(p.has_mac);

	assert_int_equal(config_port_set(&p, "name", "vm1", &e), 0);
	assert_int_equal(config_port_set(&p, "socket", "/run/vm1.sock", &e), 0);
	assert_int_equal(config_port_set(&p, "role", "client", &e), 0);
	assert_int_equal(config_port_set(&p, "mac", "52:54:00:AB:cd:01", &e), 0);
	assert_int_equal(config_port_set(&p, "vlan", "4094", &e), 0);
	assert_int_equal(config_port_set(&p, "queues", "128", &e), 0);
	assert_int_equal(config_port_set(&p, "busy-poll-us", "always", &e), 0);
	assert_int_equal(config_port_set(&p, "node", "1", &e), 0);
	assert_int_equal(config_port_set(&p, "mtu", "9000", &e), 0);
	assert_int_equal(config_port_set(&p, "uplink", "eth1", &e), 0);
	assert_string_equal(p.name, "vm1");
	assert_string_equal(p.socket, "/run/vm1.sock");
	assert_int_equal(p.role, PORT_ROLE_CLIENT);
	assert_true(p.has_mac);
	assert_int_equal(p.mac[5], 1);
	assert_int_equal(p.vlan.mode, CONFIG_VLAN_ACCESS);
	assert_int_equal(p.vlan.id, 4094);
	assert_int_equal(p.queues, 128);
	assert_true(p.busy_poll_us == CONFIG_BUSY_POLL_ALWAYS);
	assert_int_equal(p.node, 1);
	assert_int_equal(p.mtu, 9000);
	assert_string_equal(p.uplink, "eth1");
	assert_int_equal(config_port_set(&p, "busy-poll-us", "adaptive", &e), 0);
	assert_true(p.busy_poll_us == CONFIG_BUSY_POLL_ADAPTIVE);
	assert_int_equal(config_port_set(&p, "busy-poll-us", "0", &e), 0);
	assert_int_equal(p.busy_poll_us, 0);
	assert_int_equal(config_port_set(&p, "node", "auto", &e), 0);
	assert_int_equal(p.node, -1);
	assert_int_equal(config_port_set(&p, "mtu", "0", &e), 0);
	assert_int_equal(p.mtu, 0);
	assert_int_equal(config_port_set(&p, "mac", "auto", &e), 0);
	assert_false(p.has_mac);
	assert_int_equal(p.mac[0] | p.mac[5], 0);
}

/* `port set` can change some keys; of the others it says what can be done, of unknown ones what was meant. */
static void settable_keys(void **state)
{
	struct error e;

	assert_int_equal(config_port_check_settable("vm1", "mac", &e), 0);
	assert_int_equal(config_port_check_settable("vm1", "offloads", &e), 0);
	for (const char *key = CONFIG_PORT_SETTABLE; key; key = strstr(key, ", ") ? strstr(key, ", ") + 2 : NULL) {
		char text[32];

		snprintf(text, sizeof(text), "%.*s", (int)strcspn(key, ","), key);
		assert_int_equal(config_port_check_settable("vm1", text, &e), 0);
	}
	assert_int_equal(config_port_check_settable("vm1", "queues", &e), -EINVAL);
	assert_says(&e, "port del vm1");
	assert_says(&e, CONFIG_PORT_SETTABLE);
	assert_int_equal(config_port_check_settable("vm1", "mack", &e), -EINVAL);
	assert_says(&e, "did you mean 'mac'?");
}

static void vlan_trunks(void **state)
{
	static const char *const same[] = { "trunk:10", "trunk:10+20-29", "trunk:1-4094/native:7", "trunk:5+7+9/native:5", "17", "0" };
	char text[CONFIG_VLAN_TEXT];
	struct config_port p;
	struct error e;

	for (unsigned i = 0; i < ARRAY_SIZE(same); i++) {
		config_port_init(&p);
		assert_int_equal(config_port_set(&p, "vlan", same[i], &e), 0);
		assert_string_equal(config_format_vlan(&p.vlan, text), same[i]);
	}
	assert_int_equal(config_port_set(&p, "vlan", "trunk:3+2+1/native:9", &e), 0);
	assert_string_equal(config_format_vlan(&p.vlan, text), "trunk:1-3/native:9");
	assert_int_equal(p.vlan.id, 9);
	assert_true(vl_vlan_allowed(&p.vlan.listed, 2));
	assert_false(vl_vlan_allowed(&p.vlan.listed, 9));
}

/* The list that takes most text is shown whole: what is shown can be given back. */
static void longest_trunk(void **state)
{
	struct config_port p, again;
	char text[CONFIG_VLAN_TEXT];
	struct error e;

	config_port_init(&p);
	p.vlan = (struct config_vlan){ .mode = CONFIG_VLAN_TRUNK, .id = 4094 };
	for (unsigned v = 1; v <= 4094; v++)
		if (v % 3 != 1)
			p.vlan.listed.allowed[v / 64] |= 1ull << (v % 64);
	config_port_init(&again);
	assert_int_equal(config_port_set(&again, "vlan", config_format_vlan(&p.vlan, text), &e), 0);
	assert_memory_equal(&again.vlan, &p.vlan, sizeof(p.vlan));
}

static void port_values_refused(void **state)
{
	static const struct {
		const char *key, *value;
	} bad[] = {
		{ "name", "" },	       { "name", "../x" },	{ "name", ".." },	   { "name", "-a" },	  { "name", "a/b" },
		{ "name", "a b" },     { "name", "a,b" },	{ "name", "a=b" },	   { "name", "\xc3\xa4" },
		{ "name", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" },	{ "socket", "" },	   { "socket", "vm.sock" },
		{ "socket", "/a/../b" }, { "socket", "/.." },	{ "socket", "/a/" },	   { "socket", "/a b" },  { "socket", "/a\n" },
		{ "role", "Server" },  { "role", "" },		{ "mac", "52:54:00:00:00" }, { "mac", "" },	  { "mac", "01:00:5e:00:00:01" },
		{ "mac", "ff:ff:ff:ff:ff:ff" },			{ "mac", "00:00:00:00:00:00" },			  { "vlan", "4095" },
		{ "vlan", "-1" },      { "vlan", "trunk:" },	{ "vlan", "trunk:0" },	   { "vlan", "trunk:5-4" }, { "vlan", "trunk:4095" },
		{ "vlan", "trunk:1+" }, { "vlan", "trunk:1,2" }, { "vlan", "trunk:1/native:0" }, { "vlan", "trunk:1/2" }, { "vlan", "trunk:1-" },
		     { "queues", "0" },	{ "queues", "129" },	   { "queues", "" },	  { "queues", "2 " },
		{ "queues", "0x2" },   { "queues", "18446744073709551617" },			   { "busy-poll-us", "1000001" },
		{ "busy-poll-us", "4294967295" },		{ "busy-poll-us", "often" }, { "node", "64" },	  { "node", "-1" },
		{ "mtu", "67" },       { "mtu", "65536" },	{ "uplink", "a-name-too-long-x" },		  { "uplink", "a/b" },
		{ "uplink", ".." },    { "uplink", "a b" },
	};
	struct config_port p, before;
	struct error e;

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		config_port_init(&p);
		copy_string(p.name, sizeof(p.name), "vm1");
		before = p;
		memset(&e, 0, sizeof(e));
		assert_true(config_port_set(&p, bad[i].key, bad[i].value, &e) < 0);
		assert_says(&e, bad[i].key);
		assert_memory_equal(&p, &before, sizeof(p)); /* a refused value changes nothing */
	}
	assert_int_equal(config_port_set(&p, "quees", "1", &e), -EINVAL);
	assert_says(&e, "did you mean 'queues'?");
}

static void socket_path_length(void **state)
{
	char path[CONFIG_SOCKET_PATH_MAX + 2];
	struct config_port p;
	struct error e;

	config_port_init(&p);
	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[CONFIG_SOCKET_PATH_MAX + 1] = '\0';
	assert_int_equal(config_port_set(&p, "socket", path, &e), -ENAMETOOLONG);
	assert_says(&e, "108 bytes");
	path[CONFIG_SOCKET_PATH_MAX] = '\0';
	assert_int_equal(config_port_set(&p, "socket", path, &e), 0);
	assert_string_equal(p.socket, path);
}

static void busy_poll_text(void **state)
{
	static const char *const texts[] = { "0", "50", "1000000", "always" };
	char text[CONFIG_BUSY_POLL_TEXT];
	uint32_t us;

	for (unsigned i = 0; i < ARRAY_SIZE(texts); i++) {
		assert_int_equal(config_parse_busy_poll(texts[i], &us, NULL), 0);
		assert_string_equal(config_format_busy_poll(us, text), texts[i]);
	}
}

/* --- option forms --------------------------------------------------------------------------------------------------- */

static void port_option(void **state)
{
	static const char *const bad[] = {
		"",	  "vm1",	 "vm1=",       "=/s",	    "vm1=s",	   "vm1=/s,",	     "vm1=/s,queues",	 "vm1=/s,=2",
		"vm1=/s,,queues=2", "vm1=/s,queues=2,queues=2", "vm1=/s,name=x", "vm1=/s,socket=/t", "vm1=/s,colour=red", "vm1,queues=2",
	};
	struct config_port p;
	struct error e;
	char text[2000];

	assert_int_equal(config_parse_port("vm1=/run/a.sock,mac=52:54:00:00:00:01,queues=4,role=client,vlan=7,busy-poll-us=always,node=0,mtu=1400,uplink=eth0",
					   &p, &e), 0);
	assert_string_equal(p.name, "vm1");
	assert_string_equal(p.socket, "/run/a.sock");
	assert_int_equal(p.queues, 4);
	assert_int_equal(p.vlan.id, 7);
	assert_int_equal(p.node, 0);
	assert_string_equal(p.uplink, "eth0");
	assert_int_equal(config_parse_port("vm1=/run/a=b.sock", &p, &e), 0);
	assert_string_equal(p.socket, "/run/a=b.sock");
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		memset(&e, 0, sizeof(e));
		assert_true(config_parse_port(bad[i], &p, &e) < 0);
		assert_well_formed(&e);
	}
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(config_parse_port(text, &p, &e), -E2BIG);
	assert_well_formed(&e);
}

static void uplink_option(void **state)
{
	static const char *const bad[] = { "", "sixteen-letters-", "a/b", ".", "..", "eth0,mode=fast", "eth0,queues=65", "eth0,queues=0", "eth0,", "eth0,mtu=1",
					   "eth0,mode=copy,mode=auto", "eth0,queues=2,queues=2", "eth0,ifname=eth1" };
	struct config_uplink u;
	struct error e;

	assert_int_equal(config_parse_uplink("fifteen-letters", &u, &e), 0);
	assert_int_equal(u.mode, LANE_MODE_AUTO);
	assert_int_equal(u.queues, 0);
	assert_int_equal(config_parse_uplink("eth0,mode=zero-copy,queues=4", &u, &e), 0);
	assert_int_equal(u.mode, LANE_MODE_ZERO_COPY);
	assert_int_equal(u.queues, 4);
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		memset(&e, 0, sizeof(e));
		assert_true(config_parse_uplink(bad[i], &u, &e) < 0);
		assert_well_formed(&e);
	}
}

static void workers_and_control(void **state)
{
	static const struct {
		const char *key, *value;
	} bad[] = {
		{ "cpus", "" },	    { "cpus", "0-" },	  { "cpus", "0-64" },  { "cpus", "1024" }, { "policy", "percpu" }, { "pin", "maybe" },
		{ "per-port", "0" }, { "per-port", "65" }, { "threads", "0" }, { "threads", "65" }, { "control", "x" }, { "cpu", "1" },
	};
	struct config c;
	struct error e;

	config_init(&c);
	assert_int_equal(c.policy, PLACEMENT_PER_CPU);
	assert_true(c.pin);
	assert_int_equal(c.workers_per_port, 2);
	assert_false(c.cpus_given);
	assert_string_equal(c.control, "/run/vhostlane/control.sock");
	assert_int_equal(config_set(&c, "cpus", "0-3,8", &e), 0);
	assert_true(c.cpus_given);
	assert_int_equal(cpulist_count(&c.cpus), 5);
	assert_int_equal(config_set(&c, "policy", "multi-worker", &e), 0);
	assert_int_equal(c.policy, PLACEMENT_MULTI_WORKER);
	assert_int_equal(config_set(&c, "pin", "no", &e), 0);
	assert_false(c.pin);
	assert_int_equal(config_set(&c, "pin", "true", &e), 0);
	assert_true(c.pin);
	assert_int_equal(config_set(&c, "per-port", "3", &e), 0);
	assert_int_equal(c.workers_per_port, 3);
	assert_int_equal(c.threads, 0);
	assert_int_equal(config_set(&c, "threads", "9", &e), 0);
	assert_int_equal(c.threads, 9);
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		memset(&e, 0, sizeof(e));
		assert_true(config_set(&c, bad[i].key, bad[i].value, &e) < 0);
		assert_says(&e, bad[i].key);
	}
	config_free(&c);
}

/* --- among each other ----------------------------------------------------------------------------------------------- */

static void duplicates(void **state)
{
	struct config_uplink u;
	struct config c;
	struct error e;

	config_init(&c);
	assert_int_equal(add(&c, "a=/run/a,mac=52:54:00:00:00:01", &e), 0);
	assert_int_equal(add(&c, "a=/run/b", &e), -EEXIST);
	assert_says(&e, "named twice");
	assert_int_equal(add(&c, "b=/run/a", &e), -EEXIST);
	assert_says(&e, "port a has it");
	assert_int_equal(add(&c, "b=/run/b,mac=52:54:00:00:00:01", &e), -EEXIST);
	assert_says(&e, "52:54:00:00:00:01");
	assert_int_equal(add(&c, "b=/run/b,mac=52:54:00:00:00:01,vlan=5", &e), 0);
	assert_int_equal(add(&c, "c=/run/c,mac=52:54:00:00:00:01,uplink=eth1", &e), 0); /* another wire */
	assert_int_equal(c.port_count, 3);

	assert_int_equal(config_check(&c, &e), -ENODEV); /* eth1 is no uplink */
	assert_says(&e, "eth1");
	assert_int_equal(config_parse_uplink("eth0", &u, &e), 0);
	assert_int_equal(config_add_uplink(&c, &u, &e), 0);
	assert_int_equal(config_add_uplink(&c, &u, &e), -EEXIST);
	assert_int_equal(config_parse_uplink("eth1", &u, &e), 0);
	assert_int_equal(config_add_uplink(&c, &u, &e), 0);
	assert_int_equal(config_check(&c, &e), 0);

	/* "the first uplink" and its name are the same wire, whatever the order of options was. */
	assert_int_equal(add(&c, "d=/run/d,mac=52:54:00:00:00:01,uplink=eth0", &e), -EEXIST);
	assert_int_equal(config_set(&c, "control", "/run/a", &e), 0);
	assert_int_equal(config_check(&c, &e), -EEXIST);
	assert_says(&e, "control socket");
	config_free(&c);

	config_init(&c);
	assert_int_equal(add(&c, "a=/run/a,mac=52:54:00:00:00:01", &e), 0);
	assert_int_equal(add(&c, "b=/run/b,mac=52:54:00:00:00:01,uplink=eth0", &e), 0);
	assert_int_equal(config_parse_uplink("eth0", &u, &e), 0);
	assert_int_equal(config_add_uplink(&c, &u, &e), 0);
	assert_int_equal(config_check(&c, &e), -EEXIST);
	config_free(&c);
}

static void too_many(void **state)
{
	struct config_uplink u;
	struct config c;
	struct error e;
	char text[64];

	config_init(&c);
	for (unsigned i = 0; i < VL_PORTS_MAX; i++) {
		snprintf(text, sizeof(text), "p%u=/run/p%u", i, i);
		assert_int_equal(add(&c, text, &e), 0);
	}
	assert_int_equal(add(&c, "more=/run/more", &e), -E2BIG);
	assert_well_formed(&e);
	for (unsigned i = 0; i < CONFIG_UPLINKS_MAX; i++) {
		snprintf(text, sizeof(text), "eth%u", i);
		assert_int_equal(config_parse_uplink(text, &u, &e), 0);
		assert_int_equal(config_add_uplink(&c, &u, &e), 0);
	}
	copy_string(u.ifname, sizeof(u.ifname), "more");
	assert_int_equal(config_add_uplink(&c, &u, &e), -E2BIG);
	assert_well_formed(&e);
	assert_int_equal(config_check(&c, &e), 0);
	config_free(&c);
}

static void port_without_socket(void **state)
{
	struct config_port p;
	struct error e;

	config_port_init(&p);
	assert_true(config_check_port(&p, &e) < 0);
	assert_says(&e, "name");
	copy_string(p.name, sizeof(p.name), "vm1");
	assert_int_equal(config_check_port(&p, &e), -EINVAL);
	assert_says(&e, "socket");
}

/* --- CPUs ----------------------------------------------------------------------------------------------------------- */

static void resolved_cpus(void **state)
{
	struct cpulist allowed, out;
	cpu_set_t before, one;
	struct config c;
	struct error e = { 0 };
	char text[64];
	int first, second;

	config_init(&c);
	assert_int_equal(cpulist_allowed(&allowed), 0);
	assert_int_equal(config_resolve_cpus(&c, &out, &e), 0);
	assert_int_equal(cpulist_count(&out), min_u32(cpulist_count(&allowed), VL_WORKERS_MAX));

	/* A CPU that no machine of ours has. */
	assert_int_equal(config_set(&c, "cpus", "1023", &e), 0);
	assert_int_equal(config_resolve_cpus(&c, &out, &e), -ENXIO);
	assert_says(&e, "CPU 1023");
	config_free(&c);

	/* One that is there but forbidden. */
	first = cpulist_next(&allowed, 0);
	second = cpulist_next(&allowed, (unsigned)first + 1);
	if (second < 0) {
		print_message("only one CPU here: no forbidden one to name\n");
		return;
	}
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	config_init(&c);
	assert_int_equal(config_resolve_cpus(&c, &out, &e), 0);
	assert_int_equal(cpulist_count(&out), 1);
	snprintf(text, sizeof(text), "%d-%d", first, second);
	assert_int_equal(config_set(&c, "cpus", text, &e), 0);
	assert_int_equal(config_resolve_cpus(&c, &out, &e), -EPERM);
	snprintf(text, sizeof(text), "CPU %d", second);
	assert_says(&e, text);
	snprintf(text, sizeof(text), "choose among %d ", first);
	assert_says(&e, text);
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
	config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(port_keys),
		cmocka_unit_test(settable_keys),
		cmocka_unit_test(vlan_trunks), cmocka_unit_test(longest_trunk),
		cmocka_unit_test(port_values_refused),
		cmocka_unit_test(socket_path_length),
		cmocka_unit_test(busy_poll_text),
		cmocka_unit_test(port_option),
		cmocka_unit_test(uplink_option),
		cmocka_unit_test(workers_and_control),
		cmocka_unit_test(duplicates),
		cmocka_unit_test(too_many),
		cmocka_unit_test(port_without_socket),
		cmocka_unit_test(resolved_cpus),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
