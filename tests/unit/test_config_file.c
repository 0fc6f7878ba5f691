// SPDX-License-Identifier: BSD-2-Clause
/* The configuration's YAML file, with the lines that its errors name. */
#include <errno.h>
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

static int load(const char *yaml, struct config *c, struct error *e)
{
	char path[] = "/tmp/vhostlane-config-XXXXXX";
	int fd = mkstemp(path), result;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, yaml, strlen(yaml)), strlen(yaml));
	close(fd);
	memset(e, 0, sizeof(*e));
	config_init(c);
	result = config_load_file(c, path, e);
	if (result < 0)
		assert_non_null(strstr(e->text, path));
	unlink(path);
	return result;
}

static void whole_file(void **state)
{
	struct config c;
	struct error e;

	assert_int_equal(load("# comment\n"
			      "workers:\n"
			      "  cpus: 0-1,4\n"
			      "  policy: multi-worker\n"
			      "  pin: false\n"
			      "  per-port: 4\n"
			      "uplinks:\n"
			      "  - ifname: eth0\n"
			      "    mode: copy\n"
			      "    queues: 2\n"
			      "  - {ifname: eth1}\n"
			      "ports:\n"
			      "  - name: vm1\n"
			      "    socket: /run/vm1.sock\n"
			      "    role: client\n"
			      "    mac: 52:54:00:12:34:56\n"
			      "    vlan: 7\n"
			      "    queues: 4\n"
			      "    busy-poll-us: always\n"
			      "    node: 1\n"
			      "    mtu: 9000\n"
			      "    uplink: eth1\n"
			      "  - {name: vm2, socket: \"/run/vm2.sock\"}\n"
			      "control: /run/other.sock\n",
			      &c, &e), 0);
	assert_int_equal(config_check(&c, &e), 0);
	assert_int_equal(cpulist_count(&c.cpus), 3);
	assert_int_equal(c.policy, PLACEMENT_MULTI_WORKER);
	assert_false(c.pin);
	assert_int_equal(c.workers_per_port, 4);
	assert_int_equal(c.uplink_count, 2);
	assert_int_equal(c.uplinks[0].mode, LANE_MODE_COPY);
	assert_int_equal(c.uplinks[0].queues, 2);
	assert_int_equal(c.uplinks[1].mode, LANE_MODE_AUTO);
	assert_int_equal(c.port_count, 2);
	assert_int_equal(c.ports[0].role, PORT_ROLE_CLIENT);
	assert_int_equal(c.ports[0].mac[5], 0x56);
	assert_true(c.ports[0].busy_poll_us == CONFIG_BUSY_POLL_ALWAYS);
	assert_string_equal(c.ports[0].uplink, "eth1");
	assert_int_equal(c.ports[1].queues, 1);
	assert_string_equal(c.control, "/run/other.sock");
	config_free(&c);
}

/* Lists and mappings mean what the text forms mean; a block may span lines, and what follows keeps its line in errors. */
static void vlans_and_offloads_in_yaml(void **state)
{
	static const struct {
		const char *key, *yaml, *same;
	} forms[] = {
		{ "vlan", "{trunk: [10, 20-29], native: 5}", "trunk:10+20-29/native:5" },
		{ "vlan", "{native: 5, trunk: [10]}", "trunk:10/native:5" },
		{ "vlan", "{trunk: 10}", "trunk:10" },
		{ "vlan", "{trunk: [1-4094]}", "trunk:1-4094" },
		{ "vlan", "\n      trunk:\n        - 10\n        - 20-29  # two\n\n      native: 5", "trunk:10+20-29/native:5" },
		{ "vlan", "{trunk: [10,\n        20-29],\n      native: 5}", "trunk:10+20-29/native:5" },
		{ "vlan", "trunk:10+20-29/native:5", "trunk:10+20-29/native:5" },
		{ "vlan", "'7'", "7" },
		{ "offloads", "[csum, tso4]", "csum+tso4" },
		{ "offloads", "\n    - csum\n    - tso6", "csum+tso6" },
		{ "offloads", "[]", "none" },
		{ "offloads", "csum+tso4", "csum+tso4" },
		{ "offloads", "all", "all" },
	};
	char yaml[512], vlan[CONFIG_VLAN_TEXT], offloads[CONFIG_OFFLOADS_TEXT], line[16];
	struct config c;
	struct error e;

	for (unsigned i = 0; i < ARRAY_SIZE(forms); i++) {
		const bool is_vlan = strcmp(forms[i].key, "vlan") == 0;
		unsigned lines = 6;

		snprintf(yaml, sizeof(yaml), "# \xc3\xa4\nports:\n  - name: a\n    socket: /a\n    %s: %s\n    mtu: 9000\n", forms[i].key, forms[i].yaml);
		if (load(yaml, &c, &e) < 0)
			fail_msg("%s%s", yaml, e.text);
		assert_string_equal(is_vlan ? config_format_vlan(&c.ports[0].vlan, vlan) : config_format_offloads(c.ports[0].offloads, offloads),
				    forms[i].same);
		assert_int_equal(c.ports[0].mtu, 9000);
		config_free(&c);

		strcpy(strstr(yaml, "mtu"), "mtu: x\n");
		for (const char *p = forms[i].yaml; *p; p++)
			lines += *p == '\n';
		snprintf(line, sizeof(line), ":%u: ", lines);
		assert_true(load(yaml, &c, &e) < 0);
		assert_says(&e, "mtu 'x'");
		assert_says(&e, line);
		config_free(&c);
	}
}

static void origin_of_ports(void **state)
{
	struct config c;
	struct error e;

	assert_int_equal(load("uplinks: [{ifname: eth0}]\nports:\n  - {name: a, socket: /a}\n  - name: b\n    socket: /b\n    uplink: eth1\n", &c, &e), 0);
	assert_int_equal(config_check(&c, &e), -ENODEV);
	assert_says(&e, ":4: port b, uplink 'eth1'");
	assert_non_null(strstr(c.ports[0].origin, ":3"));
	config_free(&c);
	config_init(&c);
	assert_int_equal(add(&c, "a=/a,uplink=eth1", &e), 0);
	assert_int_equal(config_check(&c, &e), -ENODEV);
	assert_int_equal(strncmp(e.text, "port a", 6), 0);
	config_free(&c);
}

static void empty_files(void **state)
{
	static const char *const texts[] = { "", "\n", "# only a comment\n", "ports:\n", "ports: []\nuplinks: []\nworkers: {}\n", "workers:\nuplinks:\nports:\n" };
	struct config c;
	struct error e;

	for (unsigned i = 0; i < ARRAY_SIZE(texts); i++) {
		assert_int_equal(load(texts[i], &c, &e), 0);
		assert_int_equal(c.port_count + c.uplink_count, 0);
		assert_true(c.pin);
		config_free(&c);
	}
}

static void bad_files(void **state)
{
	static const struct {
		const char *yaml, *line, *says;
	} bad[] = {
		{ "prots: []\n", ":1: ", "did you mean 'ports'?" },
		/* Only what can stand at that place is suggested; what stands elsewhere is sent there. */
		{ "uplink: eth0\n", ":1: ", "did you mean 'uplinks'?" },
		{ "workers:\n  cpus: 0\nport: []\n", ":3: ", "did you mean 'ports'?" },
		{ "cpus: 0\n", ":1: ", "it stands under 'workers'" },
		{ "\nbusy-poll-us: 1\n", ":2: ", "it stands in an entry of 'ports'" },
		{ "uplinks:\n  - ifname: eth0\n    colour: 1\n", ":3: ", "known: ifname, mode, queues" },
		{ "workers:\n  mode: copy\n", ":2: ", "it stands in an entry of 'uplinks'" },
		{ "ports:\n  - {name: a, socket: /a, ports: 1}\n", ":2: ", "it stands at top level" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: [10], nativ: 5}\n", ":4: ", "did you mean 'native'?" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan:\n      trunk:\n        - 10\n        - 4095\n", ":7: ", "'4095'" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: []}\n", ":4: ", "names no VLAN" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {native: 5}\n", ":4: ", "no trunk" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: [1], native: [2]}\n", ":4: ", "native is one VLAN" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: [1], native: 0}\n", ":4: ", "'0'" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: [[1]]}\n", ":4: ", "in 'vlan'" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: ['1+2']}\n", ":4: ", "'1+2'" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: {trunk: [1], trunk: [2]}\n", ":4: ", "given twice" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: [10]\n", ":4: ", "{trunk: [10, 20-29]" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: 7x\n", ":4: ", "vlan '7x'" },
		{ "ports:\n  - name: a\n    socket: /a\n    vlan: 7\n    vlan: 8\n", ":5: ", "given twice" },
		{ "ports:\n  - name: a\n    socket: /a\n    offloads:\n      - csum\n      - tso5\n", ":6: ", "'tso5'" },
		{ "ports:\n  - name: a\n    socket: /a\n    offloads: {csum: true}\n", ":4: ", "[csum, tso4]" },
		{ "ports:\n  - name: &x a\n    socket: /a\n    offloads: [*x]\n", ":4: ", "alias" },
		{ "ports:\n  - name: a\n\tsocket: /a\n", ":3: ", "tab" },
		{ "\tports: []\n", ":1: ", "tab" },
		{ "ports:\n  - name: a\n    socket: /a\n    quees: 2\n", ":4: ", "did you mean 'queues'?" },
		{ "ports:\n  - name: a\n    socket: /a\n    colour: 2\n", ":4: ", "colour" },
		{ "workers:\n  cpus: 0\n\n\n  polcy: per-cpu\n", ":5: ", "did you mean 'policy'?" },
		{ "ports:\n  - name: a\n    socket: /a\n  - name: b\n    socket: /b\n    queues: 200\n", ":6: ", "queues '200'" },
		{ "ports:\n  - name: a\n    socket: /a\n    mac: 1\n", ":4: ", "mac '1'" },
		{ "ports:\n  - {name: a, socket: /a}\n  - {name: a, socket: /b}\n", ":3: ", "named twice" },
		{ "ports:\n  - socket: /a\n", ":2: ", "no name" },
		{ "ports:\n\n  - name: a\n", ":3: ", "no socket; add a line `socket: /run/vhostlane/a.sock`" },
		{ "ports:\n  - name: a\n    name: b\n    socket: /a\n", ":3: ", "given twice" },
		{ "ports: 5\n", ":1: ", "in 'ports': needs a list" },
		{ "ports:\n  a: b\n", ":2: ", "ports" },
		{ "ports:\n  - vm1\n", ":2: ", "in 'ports': needs key: value lines" },
		{ "ports:\n  - name: [a]\n", ":2: ", "name" },
		{ "uplinks:\n  - mode: copy\n", ":2: ", "no ifname" },
		{ "uplinks:\n  - ifname: eth0\n    mode: fast\n", ":3: ", "mode 'fast'" },
		{ "uplinks:\n  - ifname: eth0\n  - ifname: eth0\n", ":3: ", "given twice" },
		{ "workers:\n  cpus: [0, 1]\n", ":2: ", "cpus" },
		{ "workers:\n  cpus: x\n", ":2: ", "cpus 'x'" },
		{ "workers:\n  pin: 7\n", ":2: ", "pin '7'" },
		{ "control: relative\n", ":1: ", "control 'relative'" },
		{ "control: /a\n---\ncontrol: /b\n", ":2: ", "second document" },
		{ "control: 'a\n", ":2: ", "not YAML" },
		{ "a:\n\t- b\n", ":2: ", "tab" },
		{ "control: &x /a\nports:\n  - {name: *x}\n", ":3: ", "alias" },
		{ "- a\n", ":1: ", "configuration" },
		{ "just text\n", ":1: ", "configuration" },
		{ "\x01\n", ":1: ", "not YAML" },
		{ "uplinks: [{ifname: a}, {ifname: b}, {ifname: c}, {ifname: d}, {ifname: e}, {ifname: f}, {ifname: g}, {ifname: h}, {ifname: i}]\n", ":1: ",
		  "uplinks" },
	};
	struct config c;
	struct error e;

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		if (load(bad[i].yaml, &c, &e) == 0)
			fail_msg("accepted: %s", bad[i].yaml);
		assert_says(&e, bad[i].says);
		assert_says(&e, bad[i].line);
		config_free(&c);
	}
}

static void unreadable_files(void **state)
{
	struct config c;
	struct error e;

	config_init(&c);
	assert_int_equal(config_load_file(&c, "/nonexistent/vhostlane.yaml", &e), -ENOENT);
	assert_says(&e, "/nonexistent/vhostlane.yaml");
	assert_int_equal(config_load_file(&c, "/tmp", &e), -EINVAL);
	assert_says(&e, "not a file");
	assert_int_equal(config_load_file(&c, "/dev/zero", &e), -E2BIG);
	assert_well_formed(&e);
	config_free(&c);
}

/* The example that is installed is lawful, as it is and with its comments taken off. */
static void example_file(void **state)
{
	struct config c;
	struct error e;
	char *text = calloc(1, 65536), *bare = calloc(1, 65536), *out = bare;
	int length = read_text("docs/vhostlane.yaml", text, 65536);

	if (length < 0)
		fail_msg("docs/vhostlane.yaml: run from the top of the source tree");
	assert_int_equal(load(text, &c, &e), 0);
	config_free(&c);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		out += sprintf(out, "%s\n", line[0] == '#' && line[1] != '#' ? line + 1 : line);
	if (load(bare, &c, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(config_check(&c, &e), 0);
	assert_true(c.port_count > 0 && c.uplink_count > 0 && c.cpus_given);
	config_free(&c);
	free(text);
	free(bare);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vlans_and_offloads_in_yaml),
		cmocka_unit_test(origin_of_ports),
		cmocka_unit_test(whole_file),
		cmocka_unit_test(empty_files),
		cmocka_unit_test(bad_files),
		cmocka_unit_test(unreadable_files),
		cmocka_unit_test(example_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
