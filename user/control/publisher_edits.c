/* SPDX-License-Identifier: BSD-2-Clause */
/* What the operator wrote into queue_affinity: orders that are carried out, and what is put back. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "control/publisher_private.h"

static void put_back(struct engine *engine, struct managed_port *mp, unsigned index, const char *why)
{
	log_warning("queue_affinity: %s; put back", why);
	mp->pairs[index].is_published = false; /* written anew */
	put_affinity(engine, mp, index);
}

/*
 * Only the cpu is an order. Whoever left it and the generation as they were has read the entry and wants something of its other fields:
 * holding the pair where it is would be the opposite of what was meant.
 */
static bool edit_names_no_cpu(const struct vl_queue_value *found, const struct vl_queue_value *published)
{
	return found->cpu == published->cpu && found->generation == published->generation;
}

/* An edit's cpu is the order, be it the present one; whatever else was written, the engine knows better. */
static void read_affinity_of(struct engine *engine, struct managed_port *mp, unsigned index)
{
	struct managed_pair *managed = &mp->pairs[index];
	const struct vl_queue_key key = {.port = mp->port->id, .queue_pair = index};
	const int worker = managed->worker;
	struct vl_queue_value found;
	struct error error;
	char text[128];

	if (!managed->is_published)
		return;
	if (bpf_set_affinity_get(uplink_bpf(uplink_of(engine, mp)), &key, &found)) {
		snprintf(text, sizeof(text), "the entry of queue %s/%u was deleted while the pair is in service", mp->config.name, index);
		put_back(engine, mp, index, text);
		return;
	}
	if (!memcmp(&found, &managed->published, sizeof(found)))
		return;
	if (edit_names_no_cpu(&found, &managed->published)) {
		snprintf(text, sizeof(text), "queue %s/%u: node and worker are not for edits; write the cpu to which it shall move", mp->config.name,
			 index);
		put_back(engine, mp, index, text);
		return;
	}
	managed->is_published = false; /* whatever happens, the entry is written anew */
	if (publisher_order(engine, mp, index, found.cpu <= INT32_MAX ? (int)found.cpu : INT32_MAX, &error)) {
		put_back(engine, mp, index, error.text);
		return;
	}
	log_info("queue %s/%u: %s CPU %u by an edit of queue_affinity", mp->config.name, index, managed->worker == worker ? "held on" : "moved to",
		 found.cpu);
	put_affinity(engine, mp, index);
}

static bool key_is_ours(const struct engine *engine, const struct uplink *uplink, const struct vl_queue_key *key)
{
	const struct managed_port *mp = key->port < VL_PORTS_MAX ? engine->ports[key->port] : NULL;

	return mp && uplink_of(engine, mp) == uplink && key->queue_pair < mp->config.queues && mp->pairs[key->queue_pair].is_published;
}

/* Entries that name no pair in service: XDP would read them the day there is one. */
static void remove_foreign_keys(struct engine *engine, struct uplink *uplink)
{
	struct vl_queue_key key, before, first = {0};
	unsigned removed = 0;
	bool found = !bpf_set_affinity_next(uplink_bpf(uplink), NULL, &key);

	for (unsigned n = 0; found && n < VL_PORTS_MAX * VL_QUEUE_PAIRS_MAX; n++) {
		before = key;
		/* The next one first: from a key that is gone the walk would start anew. */
		found = !bpf_set_affinity_next(uplink_bpf(uplink), &before, &key);
		if (key_is_ours(engine, uplink, &before) || bpf_set_affinity_delete(uplink_bpf(uplink), &before))
			continue;
		if (!removed++)
			first = before;
	}
	if (removed)
		log_warning("queue_affinity: removed %u %s no queue pair in service (port %u, queue_pair %u%s); `vhostlane port list` shows the ids of ports",
			    removed, removed == 1 ? "entry, of" : "entries, of", first.port, first.queue_pair, removed > 1 ? " and others" : "");
}

/* What a look at a whole map has found. */
struct look {
	const struct engine *engine;
	const struct uplink *uplink;
	uint64_t as_published[VL_PORTS_MAX][VL_QUEUE_PAIRS_MAX / 64]; /* a bit a pair */
	bool foreign; /* some entry names no pair in service */
};
_Static_assert(VL_QUEUE_PAIRS_MAX % 64 == 0, "a bit a pair");

static void look_at_entry(void *context, const struct vl_queue_key *key, const struct vl_queue_value *value)
{
	struct look *look = context;

	if (!key_is_ours(look->engine, look->uplink, key))
		look->foreign = true;
	else if (!memcmp(value, &look->engine->ports[key->port]->pairs[key->queue_pair].published, sizeof(*value)))
		look->as_published[key->port][key->queue_pair / 64] |= 1ull << (key->queue_pair % 64);
}

/* One look takes a system call or few, however many pairs there are; what it finds changed or missing is read by itself. */
void publisher_read_affinity(struct engine *engine)
{
	struct look look = {.engine = engine};

	for (unsigned u = 0; u < engine->uplink_count; u++) {
		look.uplink = engine->uplinks[u];
		if (bpf_set_affinity_each(uplink_bpf(engine->uplinks[u]), look_at_entry, &look))
			look.foreign = true; /* not all was seen */
	}
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned i = 0; mp && uplink_of(engine, mp) && i < mp->config.queues; i++)
			if (!(look.as_published[id][i / 64] >> (i % 64) & 1))
				read_affinity_of(engine, mp, i);
	}
	for (unsigned u = 0; look.foreign && u < engine->uplink_count; u++)
		remove_foreign_keys(engine, engine->uplinks[u]);
}
