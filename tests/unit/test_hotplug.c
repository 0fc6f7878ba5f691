/* SPDX-License-Identifier: BSD-2-Clause */
/* CPU uevents: the parser, and the real socket with the kernel's own messages (asked for, no CPU is taken away). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/util.h"
#include "control/hotplug.h"

#define PATIENCE_NS 30000000000ull /* only stops hangs */

#define UEVENT(action, path, subsystem) \
	action "@" path "\0ACTION=" action "\0DEVPATH=" path "\0SUBSYSTEM=" subsystem "\0SEQNUM=42"

static void parses_cpus_only(void **state)
{
#define CASE(text, ...) { text, sizeof(text), __VA_ARGS__ }
	static const struct {
		const char *message;
		size_t size;
		bool is_ours;
		unsigned cpu;
		bool online;
	} cases[] = {
		CASE(UEVENT("offline", "/devices/system/cpu/cpu3", "cpu"), true, 3, false),
		CASE(UEVENT("online", "/devices/system/cpu/cpu1023", "cpu"), true, 1023, true),
		CASE(UEVENT("online", "/devices/system/cpu/cpu1024", "cpu"), false, 0, false),
		CASE(UEVENT("add", "/devices/system/cpu/cpu3", "cpu"), false, 0, false),
		CASE(UEVENT("change", "/devices/system/cpu/cpu3", "cpu"), false, 0, false),
		CASE(UEVENT("offline", "/devices/system/memory/memory3", "memory"), false, 0, false),
		CASE(UEVENT("offline", "/devices/system/cpu/cpu3", "memory"), false, 0, false),
		CASE(UEVENT("offline", "/devices/system/cpu/cpu", "cpu"), false, 0, false),
		CASE(UEVENT("offline", "/devices/system/cpu/cpu3/cache", "cpu"), false, 0, false),
		CASE(UEVENT("offline", "/devices/system/cpu/cpu-3", "cpu"), false, 0, false),
		CASE("offline@/devices/system/cpu/cpu3\0ACTION=offline\0SUBSYSTEM=cpu", false, 0, false),
		CASE("", false, 0, false),
	};
	unsigned i, cpu;
	bool online;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		assert_int_equal(hotplug_parse(cases[i].message, cases[i].size, &cpu, &online), cases[i].is_ours);
		if (cases[i].is_ours) {
			assert_int_equal(cpu, cases[i].cpu);
			assert_int_equal(online, cases[i].online);
		}
	}
	/* Cut anywhere: never read past the end (the sanitizer sees it), never taken for whole without its keys. */
	for (i = 0; i < cases[0].size; i++) {
		char part[256];

		memset(part, 'x', sizeof(part));
		memcpy(part, cases[0].message, i);
		if (hotplug_parse(part, i, &cpu, &online))
			assert_int_equal(cpu, 3);
	}
}

struct listener {
	struct event_loop *loop;
	struct hotplug *hotplug;
	unsigned events, wrong;
};

static void on_cpu(void *context, unsigned cpu, bool online)
{
	struct listener *listener = context;

	listener->events++;
	if (cpu != 0 || !online)
		listener->wrong++;
	event_loop_stop(listener->loop);
}

static void on_timeout(void *context)
{
	event_loop_stop(context);
}

/* A message in the kernel's words, from this process to every socket of it that could be the listener's. */
static void send_forgery(void)
{
	static const char forgery[] = UEVENT("offline", "/devices/system/cpu/cpu0", "cpu");
	struct sockaddr_nl to = { .nl_family = AF_NETLINK, .nl_pid = (uint32_t)getpid() };
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT);

	assert_true(fd >= 0);
	if (sendto(fd, forgery, sizeof(forgery), 0, (struct sockaddr *)&to, sizeof(to)) < 0)
		print_message("the kernel itself refuses forged uevents\n");
	close(fd);
}

static void hears_the_kernel_and_nobody_else(void **state)
{
	struct listener listener = { 0 };
	struct event_source *timeout;
	struct error error;

	listener.loop = event_loop_create(&error);
	assert_non_null(listener.loop);
	listener.hotplug = hotplug_open(listener.loop, on_cpu, &listener, &error);
	if (!listener.hotplug) {
		print_message("skipped: %s\n", error.text);
		event_loop_free(listener.loop);
		skip();
	}
	send_forgery();
	/* Makes the kernel tell again that CPU 0 is online, which is true. */
	if (write_text("/sys/devices/system/cpu/cpu0/uevent", "online") < 0) {
		print_message("skipped: no right to ask the kernel for a uevent\n");
		hotplug_close(listener.hotplug);
		event_loop_free(listener.loop);
		skip();
	}
	timeout = event_loop_timer(listener.loop, PATIENCE_NS, 0, on_timeout, listener.loop, &error);
	assert_non_null(timeout);
	assert_int_equal(event_loop_run(listener.loop), 0);
	assert_int_equal(listener.events, 1);
	assert_int_equal(listener.wrong, 0);
	event_source_remove(timeout);
	hotplug_close(listener.hotplug);
	hotplug_close(NULL);
	event_loop_free(listener.loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parses_cpus_only),
		cmocka_unit_test(hears_the_kernel_and_nobody_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
