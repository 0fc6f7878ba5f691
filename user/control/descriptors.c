// SPDX-License-Identifier: BSD-2-Clause
#include "control/descriptors.h"

#include "common/util.h"
#include "control/host_link.h"
#include "control/netdev.h"
#include "control/workforce.h"

#define OF_DAEMON 48	/* standard ones, signals, timers, netlink, the control socket and its 16 clients */
#define OF_WORKER 2	/* epoll, eventfd */
#define OF_PORT 12	/* listening, spare, connection; memory files while they are mapped */
#define OF_QUEUE_PAIR 6 /* kick, call and error descriptors of two rings */
#define OF_UPLINK 64	/* maps and programs, twice for a moment while they are loaded; lock, pins, promiscuous mode */

unsigned long descriptors_needed(const struct config *config)
{
	struct netdev_info info;
	struct error error;
	struct cpulist cpus;
	unsigned long need, slots, cpu_count = 1;

	if (config_resolve_cpus(config, &cpus, &error) == 0)
		cpu_count = cpulist_count(&cpus);
	slots = workforce_slots(config, (unsigned)cpu_count);
	need = OF_DAEMON + OF_WORKER * slots;
	for (unsigned i = 0; i < config->port_count; i++)
		need += OF_PORT + OF_QUEUE_PAIR * config->ports[i].queues;
	for (unsigned i = 0; i < config->uplink_count; i++) {
		const unsigned long queues = netdev_get(config->uplinks[i].ifname, &info, &error) == 0 ? info.rx_queues : 1;

		/* A lane for each worker on each queue, of the uplink and of its host link. */
		need += OF_UPLINK + slots * (queues + min_u32((uint32_t)cpu_count, HOST_LINK_QUEUES_MAX));
	}
	return need;
}
