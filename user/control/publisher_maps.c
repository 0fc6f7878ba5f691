/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "common/log.h"
#include "control/ports.h"
#include "control/publisher_private.h"
#include "control/workforce.h"

#define FLAGS_REFUSED UINT32_MAX /* the map did not take it: tried again */

/* Does something else stand there than was published? The operator's order, which the next look at the map carries out. */
static bool is_edited(struct uplink *uplink, const struct vl_queue_key *key, const struct managed_pair *managed)
{
	struct vl_queue_value found;

	return managed->is_published && !bpf_set_affinity_get(uplink_bpf(uplink), key, &found) &&
	       memcmp(&found, &managed->published, sizeof(found)) != 0;
}

void put_affinity(struct engine *engine, struct managed_port *mp, unsigned index)
{
	struct managed_pair *managed = &mp->pairs[index];
	struct uplink *uplink = uplink_of(engine, mp);
	const struct vl_queue_key key = {.port = mp->port->id, .queue_pair = index};
	struct worker *w = managed->worker >= 0 ? engine->workers[managed->worker] : NULL;
	struct vl_queue_value value;
	int result;

	if (!uplink)
		return;
	if (!w || !pair_active(mp, index)) {
		if (managed->is_published)
			bpf_set_affinity_delete(uplink_bpf(uplink), &key);
		managed->is_published = false;
		return;
	}
	value = (struct vl_queue_value){
		.cpu = (uint32_t)(worker_cpu(w) < 0 ? engine->cpus_of_slots[(unsigned)managed->worker % engine->cpu_count] : worker_cpu(w)),
		.node = worker_node(w) < 0 ? 0 : (uint32_t)worker_node(w),
		.worker = (uint32_t)managed->worker,
		.generation = managed->generation,
	};
	if (managed->is_published && !memcmp(&value, &managed->published, sizeof(value)))
		return;
	if (is_edited(uplink, &key, managed))
		return; /* written over it would be lost, and nobody told */
	result = bpf_set_affinity_put(uplink_bpf(uplink), &key, &value);
	if (result)
		log_limited(LOG_LEVEL_ERROR, "port %s: queue_affinity refuses pair %u: %s; the worker that takes broadcasts serves what comes for it",
			    mp->config.name, index, strerror(-result));
	managed->published = value;
	managed->is_published = result == 0;
}

static unsigned node_of_port(const struct engine *engine, const struct managed_port *mp, struct uplink *uplink)
{
	for (unsigned i = 0; i < mp->config.queues; i++) {
		const int w = mp->pairs[i].worker;

		if (w >= 0 && worker_node(engine->workers[w]) >= 0 && uplink_host_link(uplink, (unsigned)worker_node(engine->workers[w])))
			return (unsigned)worker_node(engine->workers[w]);
	}
	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		if (uplink_host_link(uplink, node))
			return node;
	return 0;
}

unsigned receiving_pairs(const struct managed_port *mp)
{
	for (unsigned i = mp->config.queues; i > 0; i--)
		if (pair_receives(mp, i - 1))
			return i;
	return 0;
}

static bool key_is_wanted(const struct managed_port *mp, const struct vl_port_key *key)
{
	for (unsigned i = 0; i < mp->address_count; i++)
		if (!memcmp(mp->addresses[i].mac, key->mac, 6) && mp->addresses[i].vlan == key->vlan)
			return true;
	return false;
}

static uint32_t flags_of(const struct port *port)
{
	if (port->key_vlan)
		return 0;
	return VL_PORT_TRUNK | (port->any_vlan ? 0 : VL_PORT_VLANS);
}

/* Addresses that the port has no more. All ports', before any is put: one may have passed to another port. */
void drop_addresses(struct engine *engine, struct managed_port *mp)
{
	struct uplink *uplink = uplink_of(engine, mp);
	unsigned kept = 0;

	for (unsigned i = 0; uplink && i < mp->published_count; i++) {
		if (key_is_wanted(mp, &mp->published[i].key))
			mp->published[kept++] = mp->published[i];
		else
			bpf_set_port_delete(uplink_bpf(uplink), &mp->published[i].key);
	}
	mp->published_count = kept;
}

static bool is_published(const struct managed_port *mp, const struct vl_port_key *key, uint32_t flags)
{
	for (unsigned i = 0; i < mp->published_count; i++)
		if (!memcmp(&mp->published[i].key, key, sizeof(*key)))
			return mp->published[i].flags == flags;
	return false;
}

/* What stands there already is not written again: a publish for one port would cost a call for each address of all. */
static void put_addresses_at(struct engine *engine, struct managed_port *mp, struct uplink *uplink, unsigned node)
{
	struct vl_port_value value = {.port = mp->port->id, .node = node, .queue_pairs = receiving_pairs(mp), .flags = flags_of(mp->port)};
	const bool same = value.node == mp->published_value.node && value.queue_pairs == mp->published_value.queue_pairs;
	struct published_address now[ADDRESSES_PER_PORT];

	if ((!same || !mp->published_count) && (value.flags & VL_PORT_VLANS) &&
	    bpf_set_vlans_put(uplink_bpf(uplink), mp->port->id, &mp->port->vlans))
		log_limited(LOG_LEVEL_ERROR, "port %s: the map `port_vlans` refuses its VLANs; its tagged frames go to the host's stack", mp->config.name);
	drop_addresses(engine, mp);
	for (unsigned i = 0; i < mp->address_count; i++) {
		struct vl_port_key key = {.vlan = mp->addresses[i].vlan};
		int result = 0;

		memcpy(key.mac, mp->addresses[i].mac, 6);
		value.flags = flags_of(mp->port) | (mp->addresses[i].learned ? VL_PORT_LEARNED : 0);
		if (!same || !is_published(mp, &key, value.flags))
			result = bpf_set_port_put(uplink_bpf(uplink), &key, &value);
		if (result)
			log_limited(LOG_LEVEL_ERROR, "port %s: the map `ports` refuses an address: %s; its frames go to the host's stack",
				    mp->config.name, strerror(-result));
		now[i] = (struct published_address){key, result ? FLAGS_REFUSED : value.flags};
	}
	memcpy(mp->published, now, mp->address_count * sizeof(now[0]));
	mp->published_count = mp->address_count;
	mp->published_value = value;
}

/*
 * Makes `ports` say what the port's addresses are now, and how many pairs receive. The node of a port that is up stays what it was: what is
 * under way over one host link would be overtaken by what comes over the other.
 */
void put_addresses(struct engine *engine, struct managed_port *mp)
{
	struct uplink *uplink = uplink_of(engine, mp);

	if (uplink)
		put_addresses_at(engine, mp, uplink, mp->published_value.queue_pairs ? mp->published_value.node : node_of_port(engine, mp, uplink));
}

void publisher_follow_nodes(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];
		struct uplink *uplink = mp ? uplink_of(engine, mp) : NULL;
		uint64_t frames, before;
		unsigned node;

		if (!uplink || !mp->published_value.queue_pairs)
			continue;
		before = mp->frames_looked;
		frames = mp->frames_looked = port_counter_sum(mp, PORT_TO_GUEST_FRAMES);
		node = node_of_port(engine, mp, uplink);
		if (node == mp->published_value.node || frames != before)
			continue;
		put_addresses_at(engine, mp, uplink, node);
	}
}

static bool runs_well(const struct engine *engine, unsigned w)
{
	return workforce_uses(engine, w) && !engine->served[w].stalled;
}

/* Of a device of @node (-1 = none). The present one stays while it is as good as any. */
static void put_flood_worker(const struct engine *engine, struct vl_settings *settings, int node)
{
	int best = -1, best_rank = 0;

	for (unsigned w = 0; settings && w < engine->worker_count; w++) {
		const int rank = !runs_well(engine, w) ? 0 : 1 + 2 * (node >= 0 && worker_node(engine->workers[w]) == node) +
							    (w == settings->flood_worker);

		if (rank > best_rank) {
			best = (int)w;
			best_rank = rank;
		}
	}
	if (best >= 0)
		__atomic_store_n(&settings->flood_worker, (uint32_t)best, __ATOMIC_RELAXED);
}

void put_flood_workers(struct engine *engine)
{
	for (unsigned u = 0; u < engine->uplink_count; u++) {
		struct bpf_set *bpf = uplink_bpf(engine->uplinks[u]);

		put_flood_worker(engine, bpf_set_settings(bpf, -1), uplink_info(engine->uplinks[u])->node);
		for (int node = 0; node < VL_NODES_MAX; node++)
			put_flood_worker(engine, bpf_set_settings(bpf, node), node);
	}
}

void publisher_forget(struct engine *engine, struct managed_port *mp)
{
	mp->address_count = 0;
	put_addresses(engine, mp);
	for (unsigned i = 0; i < mp->config.queues; i++)
		put_affinity(engine, mp, i);
}
