/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/daemon.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/log.h"
#include "control/addresses.h"
#include "control/descriptors.h"
#include "control/engine.h"
#include "control/link_monitor.h"
#include "control/methods.h"
#include "control/ports.h"
#include "control/publisher.h"
#include "control/rebalance.h"
#include "control/unserved.h"
#include "control/watchdog.h"
#include "control/workforce.h"

#define AFFINITY_POLL_NS 200000000ull /* how soon an edit of queue_affinity is seen */

/* --- what the loop does -------------------------------------------------------------------------------------------- */

static void on_signal(void *context, int fd, uint32_t events)
{
	struct engine *engine = context;
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof(info)) != sizeof(info))
		return;
	log_info("%s: stopping", strsignal((int)info.ssi_signo));
	event_loop_stop(engine->loop);
}

static void on_worker_news(void *context, int fd, uint32_t events)
{
	uint64_t count;

	if (read(fd, &count, sizeof(count)) == sizeof(count))
		ports_handle_worker_news(context);
}

static void on_affinity_timer(void *context)
{
	publisher_read_affinity(context);
	addresses_read_claims(context);
}

/* --- start --------------------------------------------------------------------------------------------------------- */

static int open_signals(struct engine *engine, struct error *error)
{
	sigset_t set;
	int fd;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP); /* the terminal of a foreground run was closed */
	sigaddset(&set, SIGQUIT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd < 0)
		return error_set(error, -errno, "signals: %s; raise the limit of open files (ulimit -n)", strerror(errno));
	return event_loop_add(engine->loop, fd, EPOLLIN, on_signal, engine, error) ? 0 : error->code;
}

static int open_worker_news(struct engine *engine, struct error *error)
{
	int result;

	engine->worker_event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (engine->worker_event_fd < 0)
		return error_set(error, -errno, "workers: no descriptor: %s; raise the limit of open files (ulimit -n)", strerror(errno));
	if (!event_loop_add(engine->loop, engine->worker_event_fd, EPOLLIN, on_worker_news, engine, error))
		return error->code;
	result = guest_memory_guard_install(engine->worker_event_fd);
	return result ? error_set(error, result, "workers: SIGBUS cannot be handled: %s; run without a system call filter", strerror(-result)) : 0;
}

/* One descriptor a lane, six a queue pair, and some: the soft limit must not be what ends a busy host's growth. */
static void raise_limits(const struct config *config)
{
	const unsigned long need = descriptors_needed(config);
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};

	if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (limit.rlim_cur < need)
		log_warning("open files: the limit is %llu, this configuration takes about %lu: guests may be turned away; raise it (ulimit -n %lu, or "
			    "LimitNOFILE=%lu in the unit)", (unsigned long long)limit.rlim_cur, need, need, need);
	/* One arena: workers do not allocate, and more arenas are only memory never given back. */
	mallopt(M_ARENA_MAX, 1);
}

static uint64_t nodes_in_use(const struct engine *engine)
{
	uint64_t nodes = 0;

	for (unsigned i = 0; i < engine->cpu_count; i++) {
		const int node = engine->topology.cpus[engine->cpus_of_slots[i]].node;

		nodes |= 1ull << (node < 0 ? 0 : node);
	}
	return nodes ? nodes : 1;
}

/*
 * Do frames come whose checksum was left to a device? Never from hardware that hands its own frames to XDP: they were on a wire. But a device
 * of software passes on what stacks behind it left to "hardware", and generic XDP sees a frame when the kernel has begun to work on it.
 */
static bool has_open_checksums(struct uplink *uplink)
{
	return uplink_info(uplink)->kind[0] || lane_device_mode(uplink_device(uplink)) == LANE_MODE_GENERIC;
}

static int add_device(struct engine *engine, struct lane_device *device, unsigned domain, bool is_uplink, int node, struct error *error)
{
	if (engine->device_count == WORKER_DEVICES_MAX)
		return error_set(error, -E2BIG, "uplink %s: more than %d uplinks and host links together; use fewer uplinks, or CPUs of fewer nodes (--cpus)",
				 engine->config->uplinks[domain].ifname, WORKER_DEVICES_MAX);
	engine->devices[engine->device_count++] = (struct worker_device){
		.device = device,
		.domain = (uint16_t)domain,
		.is_uplink = is_uplink,
		.open_checksums = is_uplink && has_open_checksums(engine->uplinks[domain]),
		.node = node,
	};
	return 0;
}

static int open_uplinks(struct engine *engine, struct error *error)
{
	const uint64_t nodes = nodes_in_use(engine);

	for (unsigned i = 0; i < engine->config->uplink_count; i++) {
		const struct uplink_setup setup = {
			.config = engine->config->uplinks[i],
			.workers = engine->slot_count,
			.cpus = engine->cpu_count,
			.nodes = nodes,
		};
		struct uplink *uplink = uplink_open(&setup, error);

		if (!uplink)
			return error->code;
		engine->uplinks[engine->uplink_count++] = uplink;
		if (add_device(engine, uplink_device(uplink), i, true, uplink_info(uplink)->node, error))
			return error->code;
		for (unsigned node = 0; node < VL_NODES_MAX; node++) {
			struct host_link *link = uplink_host_link(uplink, node);

			if (link && add_device(engine, host_link_device(link), i, false, (int)node, error))
				return error->code;
		}
	}
	return 0;
}

static int add_ports(struct engine *engine, struct error *error)
{
	for (unsigned i = 0; i < engine->config->port_count; i++)
		if (ports_add(engine, &engine->config->ports[i], error))
			return error->code;
	return 0;
}

static int start(struct engine *engine, struct error *error)
{
	char text[256];

	raise_limits(engine->config);
	if (workforce_plan(engine, error))
		return error->code;
	engine->loop = event_loop_create(error);
	if (!engine->loop || open_signals(engine, error) || open_worker_news(engine, error))
		return error->code;
	engine->control = control_socket_open(engine->loop, engine->config->control, engine_methods, engine_method_count, engine, error);
	if (!engine->control || open_uplinks(engine, error) || publisher_open(engine, error) || workforce_start(engine, error) ||
	    !(engine->watchdog = watchdog_start(engine->workers, engine->worker_count, error)))
		return error->code;
	if (add_ports(engine, error))
		return error->code;
	if (engine->uplink_count && !event_loop_timer(engine->loop, AFFINITY_POLL_NS, 1, on_affinity_timer, engine, error))
		return error->code;
	if (rebalance_open(engine, error) || unserved_open(engine, error) || (engine->uplink_count && link_monitor_open(engine, error)))
		return error->code;
	for (unsigned i = 0; i < engine->uplink_count; i++)
		uplink_start(engine->uplinks[i]);
	log_info("%u workers on CPUs %s, policy %s%s", engine->worker_count, cpulist_format(&engine->cpus, text, sizeof(text)),
		 placement_policy_names[engine->config->policy], engine->config->pin ? "" : ", not pinned");
	return 0;
}

/* --- stop ---------------------------------------------------------------------------------------------------------- */

static void stop(struct engine *engine)
{
	for (unsigned i = 0; i < engine->uplink_count; i++)
		uplink_stop(engine->uplinks[i]);
	ports_remove_all(engine);
	rebalance_close(engine);
	link_monitor_close(engine);
	watchdog_stop(engine->watchdog); /* only after the last grace period */
	workforce_stop(engine);
	publisher_close(engine);
	while (engine->uplink_count)
		uplink_close(engine->uplinks[--engine->uplink_count]);
	if (engine->control)
		control_socket_close(engine->control);
	if (engine->loop)
		event_loop_free(engine->loop);
	wire_talk_close(&engine->talk);
	if (engine->worker_event_fd >= 0)
		close(engine->worker_event_fd);
}

int daemon_run(struct config *config, struct error *error)
{
	struct engine *engine = calloc(1, sizeof(*engine));
	int result;

	if (!engine)
		return error_set(error, -ENOMEM, "daemon: out of memory; free some memory");
	engine->config = config;
	engine->start_ns = now_ns();
	engine->worker_event_fd = -1;
	wire_talk_init(&engine->talk);
	result = start(engine, error);
	if (!result) {
		puts("ready");
		fflush(stdout);
		sd_notify(0, "READY=1");
		result = event_loop_run(engine->loop);
		if (result)
			error_set(error, result, "event loop: %s; everything is undone, start again", strerror(-result));
		sd_notify(0, "STOPPING=1");
	}
	stop(engine);
	free(engine);
	return result;
}
