/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/publisher.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "control/kick_probe.h"
#include "control/publisher_private.h"
#include "datapath/coalesce.h"
#include "datapath/grace.h"

/*
 * One look at which rings are in service, for all that is built from it: a ring may fault between two looks, and then a plan
 * would contradict itself.
 */
void look_at_rings(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		if (!mp)
			continue;
		memset(mp->active, 0, sizeof(mp->active));
		for (unsigned ring = 0; mp->session && ring < 2 * mp->config.queues; ring++)
			if (!ring_is_withdrawn(mp, ring) && vhost_user_ring_active(mp->session, ring))
				mp->active[ring / 64] |= 1ull << (ring % 64);
	}
}

unsigned count_pairs(const struct engine *engine)
{
	unsigned count = 0;

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			count += engine->ports[id]->config.queues;
	return count;
}

/* --- plan ---------------------------------------------------------------------------------------------------------- */

static int build_view(struct managed_port *mp, struct port_view *view)
{
	unsigned receiving[VL_QUEUE_PAIRS_MAX];

	view->port = mp->port;
	view->features = vhost_user_features(mp->session);
	view->coalesce = mp->config.offloads >> PORT_OFFLOAD_COALESCE & 1 ? coalesce_kinds_for(view->features) : 0;
	view->slots = calloc(mp->config.queues, sizeof(struct queue_pair *));
	if (!view->slots)
		return -ENOMEM;
	view->receiving = (uint16_t)list_receiving(mp, receiving);
	for (unsigned i = 0; view->receiving && i < mp->config.queues; i++)
		view->slots[i] = mp->pairs[pair_receives(mp, i) ? i : receiving[i % view->receiving]].pair;
	return 0;
}

static int build_share(const struct engine *engine, unsigned w, struct plan_share *share)
{
	share->pairs = calloc(count_pairs(engine) + 1, sizeof(struct queue_pair *));
	if (!share->pairs)
		return -ENOMEM;
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned i = 0; mp && i < mp->config.queues; i++)
			if (mp->pairs[i].worker == (int)w && pair_sends(mp, i))
				share->pairs[share->pair_count++] = mp->pairs[i].pair;
	}
	return 0;
}

static int build_domain(const struct engine *engine, const struct plan *plan, unsigned domain, struct plan_domain *out)
{
	struct forwarding_entry *entries = calloc(VL_MACS_MAX + 1, sizeof(*entries));
	uint32_t count = 0;

	out->has_uplink = domain < engine->uplink_count;
	out->flood_ports = calloc(VL_PORTS_MAX, sizeof(uint16_t));
	if (!entries || !out->flood_ports)
		goto fail;
	if (out->has_uplink) {
		entries[count] = (struct forwarding_entry){.trunk = true, .port = FORWARDING_HOST};
		memcpy(entries[count++].mac, uplink_info(engine->uplinks[domain])->mac, 6);
	}
	for (unsigned id = 0; id < plan->port_count; id++) {
		const struct managed_port *mp = engine->ports[id];

		if (!mp || mp->port->domain != domain)
			continue;
		if (plan->ports[id].receiving)
			out->flood_ports[out->flood_count++] = (uint16_t)id;
		for (unsigned a = 0; a < mp->address_count && count < VL_MACS_MAX; a++) {
			entries[count] = (struct forwarding_entry){
				.vlan = mp->addresses[a].vlan,
				.trunk = !mp->port->key_vlan,
				.port = (int32_t)id,
			};
			memcpy(entries[count++].mac, mp->addresses[a].mac, 6);
		}
	}
	out->forwarding = forwarding_create(entries, count);
fail:
	free(entries);
	return out->forwarding ? 0 : -ENOMEM;
}

static struct plan *build_plan(struct engine *engine)
{
	struct plan *plan = calloc(1, sizeof(*plan));

	if (!plan)
		return NULL;
	plan->generation = ++engine->generation;
	plan->worker_count = VL_WORKERS_MAX;
	plan->domain_count = domain_count(engine);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		if (!engine->ports[id])
			continue;
		plan->port_count = id + 1;
		if (build_view(engine->ports[id], &plan->ports[id]))
			goto fail;
	}
	for (unsigned d = 0; d < plan->domain_count; d++)
		if (build_domain(engine, plan, d, &plan->domains[d]))
			goto fail;
	for (unsigned w = 0; w < engine->worker_count; w++)
		if (build_share(engine, w, &plan->shares[w]))
			goto fail;
	return plan;
fail:
	plan_free(plan);
	return NULL;
}

/* Kick descriptors are watched by the worker in whose share the pair is. */
static void watch_kick(struct engine *engine, struct managed_port *mp, unsigned index)
{
	struct managed_pair *managed = &mp->pairs[index];
	const int fd = pair_sends(mp, index) ? managed->pair->from_guest_kick_fd : -1;
	const int by = fd >= 0 ? managed->worker : -1;

	if (managed->watched_by == by && managed->watched_fd == fd)
		return;
	if (managed->watched_by >= 0) {
		worker_unwatch_kick(engine->workers[managed->watched_by], managed->watched_fd);
		kick_probe_unwatch(engine->kick_probe, managed->watched_fd);
	}
	managed->watched_by = -1;
	managed->watched_fd = -1;
	if (by >= 0) {
		const int result = worker_watch_kick(engine->workers[by], fd);

		if (result)
			log_limited(LOG_LEVEL_ERROR, "port %s: cannot watch the kick descriptor of pair %u: %s; it is looked at every millisecond",
				    mp->config.name, index, strerror(-result));
		atomic_store(&managed->pair->unwatched, result != 0);
		kick_probe_watch(engine->kick_probe, fd);
		managed->watched_by = by;
		managed->watched_fd = fd;
	}
}

static void publish_port_maps(struct engine *engine, struct managed_port *mp, bool going_down)
{
	const unsigned receiving = receiving_pairs(mp);

	if (going_down != (receiving < mp->published_value.queue_pairs))
		return;
	if (going_down) {
		put_addresses(engine, mp);
		return;
	}
	repair_steering(mp);
	for (unsigned i = 0; i < mp->config.queues; i++)
		put_affinity(engine, mp, i);
	put_addresses(engine, mp);
}

static void publish_pair_state_of(struct engine *engine, struct managed_port *mp)
{
	for (unsigned i = 0; i < mp->config.queues; i++) {
		const bool active = pair_active(mp, i);

		watch_kick(engine, mp, i);
		atomic_store(&mp->pairs[i].pair->worker, active ? mp->pairs[i].worker : -1);
	}
}

void publish_pair_state(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			publish_pair_state_of(engine, engine->ports[id]);
}

void publish_plan(struct engine *engine)
{
	struct plan *old = atomic_load(&engine->plan), *new = build_plan(engine);

	if (!new) {
		/* Workers must not go on with rings that are about to change: stop everything rather than serve freed memory. */
		log_error("plan: out of memory; cannot go on safely");
		abort();
	}
	atomic_store(&engine->plan, new);
	for (unsigned w = 0; w < engine->worker_count; w++)
		if (new->shares[w].pair_count || (old && old->shares[w].pair_count))
			worker_wake(engine->workers[w]);
	grace_wait();
	plan_free(old);
}

/* Whether XDP compares sources with learned addresses. In generic mode it also sees what guests send to the host: it cannot. */
static void tell_of_learned(struct engine *engine)
{
	bool learned[DOMAINS_MAX] = {false};

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned a = 0; engine->ports[id] && a < engine->ports[id]->address_count; a++)
			learned[engine->ports[id]->port->domain] |= engine->ports[id]->addresses[a].learned;
	for (unsigned d = 0; d < engine->uplink_count; d++) {
		struct vl_settings *settings = bpf_set_settings(uplink_bpf(engine->uplinks[d]), -1);
		const bool compare = learned[d] && lane_device_mode(uplink_device(engine->uplinks[d])) != LANE_MODE_GENERIC;

		settings->flags = (settings->flags & ~(uint32_t)VL_SETTINGS_LEARNED) | (compare ? VL_SETTINGS_LEARNED : 0);
	}
}

static void publish_maps(struct engine *engine, bool going_down)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			publish_port_maps(engine, engine->ports[id], going_down);
}

void publisher_publish(struct engine *engine)
{
	tell_of_learned(engine);
	look_at_rings(engine);
	put_flood_workers(engine);
	place_new_pairs(engine);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			drop_addresses(engine, engine->ports[id]);
	publish_maps(engine, true);
	publish_pair_state(engine);
	publish_plan(engine);
	publish_maps(engine, false);
}

void publisher_synchronize(struct engine *engine)
{
	grace_wait();
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

int publisher_open(struct engine *engine, struct error *error)
{
	struct plan *plan = build_plan(engine);

	if (!plan)
		return error_set(error, -ENOMEM, "plan: out of memory; free some memory");
	atomic_store(&engine->plan, plan);
	return 0;
}

void publisher_close(struct engine *engine)
{
	plan_free(atomic_exchange(&engine->plan, NULL));
}
