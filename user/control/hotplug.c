/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/hotplug.h"

#include <errno.h>
#include <linux/netlink.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/cpulist.h"
#include "common/log.h"
#include "common/util.h"

#define KERNEL_GROUP 1		 /* udev's own messages go to group 2 */
#define MESSAGE_MAX 8192	 /* the kernel's limit of a uevent's text is 2 KiB */
#define BURST_MAX 64		 /* messages per wake-up, so that a flood does not hold the loop */
#define RECEIVE_BUFFER (1 << 20) /* a machine full of devices announces itself at once */
#define CPU_PATH "/devices/system/cpu/cpu"

struct hotplug {
	int fd;
	struct event_source *source;
	hotplug_handler handler;
	void *context;
	struct cpulist online; /* as last passed on: what a lost message is found by */
};

bool hotplug_parse(const char *message, size_t size, unsigned *cpu, bool *online)
{
	const char *action = NULL, *path = NULL, *subsystem = NULL, *line, *end;
	uint64_t number;

	for (line = message; line < message + size; line = end + 1) {
		end = memchr(line, '\0', (size_t)(message + size - line));
		if (!end)
			return false;
		if (strncmp(line, "ACTION=", 7) == 0)
			action = line + 7;
		else if (strncmp(line, "DEVPATH=", 8) == 0)
			path = line + 8;
		else if (strncmp(line, "SUBSYSTEM=", 10) == 0)
			subsystem = line + 10;
	}
	if (!action || !path || !subsystem || strcmp(subsystem, "cpu") != 0)
		return false;
	if (strcmp(action, "online") != 0 && strcmp(action, "offline") != 0)
		return false; /* a CPU that is added is told of once more when it goes online */
	if (strncmp(path, CPU_PATH, strlen(CPU_PATH)) != 0 || !number_parse(path + strlen(CPU_PATH), 0, CPUS_MAX - 1, &number))
		return false;
	*cpu = (unsigned)number;
	*online = action[1] == 'n';
	return true;
}

static void tell(struct hotplug *hotplug, unsigned cpu, bool online)
{
	if (online)
		cpulist_add(&hotplug->online, cpu);
	else
		cpulist_remove(&hotplug->online, cpu);
	hotplug->handler(hotplug->context, cpu, online);
}

/* Messages were lost: what they told shows in sysfs. */
static void resync(struct hotplug *hotplug)
{
	struct cpulist now;
	unsigned cpu;

	if (cpulist_online(&now) < 0)
		return;
	for (cpu = 0; cpu < CPUS_MAX; cpu++)
		if (cpulist_has(&now, cpu) != cpulist_has(&hotplug->online, cpu))
			tell(hotplug, cpu, cpulist_has(&now, cpu));
}

static void on_message(void *context, int fd, uint32_t events)
{
	struct hotplug *hotplug = context;
	char message[MESSAGE_MAX];
	unsigned i, cpu;
	bool online;

	for (i = 0; i < BURST_MAX; i++) {
		struct sockaddr_nl from = { 0 };
		socklen_t from_size = sizeof(from);
		ssize_t n = recvfrom(fd, message, sizeof(message), MSG_DONTWAIT | MSG_TRUNC, (struct sockaddr *)&from, &from_size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == ENOBUFS) {
			log_debug("uevents: receive buffer full: messages lost; reading sysfs instead");
			resync(hotplug);
			continue;
		}
		if (n < 0)
			return;
		/* Any process may send to a group it can join; the kernel's own messages carry no sender. */
		if (from.nl_pid != 0 || (size_t)n > sizeof(message))
			continue;
		if (hotplug_parse(message, (size_t)n, &cpu, &online))
			tell(hotplug, cpu, online);
	}
}

struct hotplug *hotplug_open(struct event_loop *loop, hotplug_handler handler, void *context, struct error *error)
{
	struct sockaddr_nl address = { .nl_family = AF_NETLINK, .nl_groups = KERNEL_GROUP };
	struct hotplug *hotplug = calloc(1, sizeof(*hotplug));
	int size = RECEIVE_BUFFER;

	if (!hotplug) {
		error_set(error, -ENOMEM, "CPU hotplug: out of memory; free some");
		return NULL;
	}
	hotplug->handler = handler;
	hotplug->context = context;
	hotplug->fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	if (hotplug->fd < 0) {
		error_set(error, -errno, "CPU hotplug: uevent socket: %s; allow AF_NETLINK sockets", strerror(errno));
		goto free_hotplug;
	}
	if (setsockopt(hotplug->fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) < 0)
		setsockopt(hotplug->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	if (bind(hotplug->fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		error_set(error, -errno, "CPU hotplug: uevent group: %s; run in the first user namespace", strerror(errno));
		goto close_socket;
	}
	/* After the bind, so that no change falls between. */
	if (cpulist_online(&hotplug->online) < 0)
		log_debug("CPU hotplug: /sys/devices/system/cpu/online can't be read");
	hotplug->source = event_loop_add(loop, hotplug->fd, EPOLLIN, on_message, hotplug, error);
	if (!hotplug->source)
		goto close_socket;
	return hotplug;

close_socket:
	close(hotplug->fd);
free_hotplug:
	free(hotplug);
	return NULL;
}

void hotplug_close(struct hotplug *hotplug)
{
	if (!hotplug)
		return;
	event_source_remove(hotplug->source);
	close(hotplug->fd);
	free(hotplug);
}
