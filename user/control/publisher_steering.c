/* SPDX-License-Identifier: BSD-2-Clause */
/* The rows of flow_steering. Workers store into them too, as guests send: entries are single words, and the last word counts. */
#include "control/publisher_private.h"

unsigned list_receiving(const struct managed_port *mp, unsigned *receiving)
{
	unsigned count = 0;

	for (unsigned i = 0; i < mp->config.queues; i++)
		if (pair_receives(mp, i))
			receiving[count++] = i;
	return count;
}

static void age_flows_of(struct managed_port *mp)
{
	unsigned receiving[VL_QUEUE_PAIRS_MAX];
	const unsigned count = list_receiving(mp, receiving);

	for (unsigned b = 0; count > 1 && b < VL_FLOW_BUCKETS; b++) {
		if (__atomic_exchange_n(&mp->port->flow_used[b], 0, __ATOMIC_RELAXED)) {
			mp->flow_idle[b] = 0;
		} else if (mp->flow_idle[b] < FLOW_IDLE_AGINGS && ++mp->flow_idle[b] == FLOW_IDLE_AGINGS) {
			__atomic_store_n(&mp->port->flow_steering[b], receiving[b % count], __ATOMIC_RELAXED);
		}
	}
}

void publisher_age_flows(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			age_flows_of(engine->ports[id]);
}

/*
 * Every bucket points at a pair that receives. Buckets in which the guest sends are left to their flows; the others are spread anew, for
 * guests switch their queues on one after the other.
 */
void repair_steering(struct managed_port *mp)
{
	uint32_t *steering = mp->port->flow_steering;
	unsigned receiving[VL_QUEUE_PAIRS_MAX];
	const unsigned count = list_receiving(mp, receiving);

	for (unsigned b = 0; count && b < VL_FLOW_BUCKETS; b++) {
		const uint32_t now = __atomic_load_n(&steering[b], __ATOMIC_RELAXED);
		const bool idle = mp->flow_idle[b] == FLOW_IDLE_AGINGS && !__atomic_load_n(&mp->port->flow_used[b], __ATOMIC_RELAXED);

		if (idle || now >= mp->config.queues || !pair_receives(mp, now))
			__atomic_store_n(&steering[b], receiving[b % count], __ATOMIC_RELAXED);
	}
}
