/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/publisher.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "control/kick_probe.h"
#include "control/workforce.h"
#include "datapath/coalesce.h"
#include "datapath/grace.h"

/* After steering changed, a frame that XDP steered by the old entry may still be on its way into its lane, for the rest of one NAPI
 * poll at the longest. */
#define STEERING_SETTLE_US 1000
#define DRAIN_WAIT_US 100
#define DRAIN_WAITS_MAX 500

static bool is_active(const struct managed_port *mp, unsigned ring)
{
	return mp->active[ring / 64] >> (ring % 64) & 1;
}

static bool pair_receives(const struct managed_port *mp, unsigned index)
{
	return is_active(mp, 2 * index);
}

static bool pair_sends(const struct managed_port *mp, unsigned index)
{
	return is_active(mp, 2 * index + 1);
}

static bool pair_active(const struct managed_port *mp, unsigned index)
{
	return pair_receives(mp, index) || pair_sends(mp, index);
}

/*
 * One look at which rings are in service, for all that is built from it: a ring may fault between two looks, and then a plan
 * would contradict itself.
 */
static void look_at_rings(struct engine *engine)
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

/* --- placement ----------------------------------------------------------------------------------------------------- */

struct placed {
	struct managed_port *mp;
	unsigned index;
};

static unsigned count_pairs(const struct engine *engine)
{
	unsigned count = 0;

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			count += engine->ports[id]->config.queues;
	return count;
}

static void describe_pair(const struct engine *engine, const struct managed_port *mp, unsigned index, struct placement_pair *out)
{
	const struct managed_pair *managed = &mp->pairs[index];
	const uint64_t rest_ms = managed->moved_ns ? (now_ns() - managed->moved_ns) / 1000000 + 1 : 0;
	struct evidence_peer peer;

	evidence_history_get(&mp->history, &peer);
	*out = (struct placement_pair){
		.port = mp->port->id,
		.index = (uint16_t)index,
		.ring_node = managed->ring_node,
		.vcpu_node = peer.node,
		.vcpus = peer.vcpus,
		.kick_cpu = managed->kick_cpu,
		.load_permille = managed->load_permille,
		.standing_us = managed->standing_us,
		.rest_ms = rest_ms > UINT32_MAX ? 0 : (uint32_t)rest_ms,
		.node_wanted = mp->config.node,
		.worker_wanted = managed->worker_wanted,
		.worker_now = managed->worker,
	};
}

static void describe_workers(const struct engine *engine, struct placement_worker *workers)
{
	for (unsigned w = 0; w < engine->worker_count; w++)
		workers[w] = (struct placement_worker){
			.cpu = worker_cpu(engine->workers[w]),
			.node = worker_node(engine->workers[w]),
			.usable = workforce_uses(engine, w),
			.busy_permille = engine->looked[w].busy_permille,
		};
}

/* Chooses a worker for every active pair. Return: count of entries in *placed and *choices (free both); 0 = none. */
static unsigned choose_places(struct engine *engine, unsigned moves_max, struct placed **placed, struct placement_choice **choices)
{
	const unsigned room = count_pairs(engine);
	struct placement_worker workers[VL_WORKERS_MAX];
	struct placement_pair *pairs = calloc(room + 1, sizeof(*pairs));
	struct placement_input input = {
		.topology = &engine->topology,
		.policy = engine->config->policy,
		.workers_per_port = engine->config->workers_per_port,
		.workers = workers,
		.worker_count = engine->worker_count,
		.pairs = pairs,
		.moves_max = moves_max,
	};

	*placed = calloc(room + 1, sizeof(**placed));
	*choices = calloc(room + 1, sizeof(**choices));
	if (!pairs || !*placed || !*choices) {
		log_error("placement: out of memory; pairs stay where they are");
		free(pairs);
		return 0;
	}
	describe_workers(engine, workers);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned i = 0; mp && i < mp->config.queues; i++) {
			if (!pair_active(mp, i))
				continue;
			describe_pair(engine, mp, i, &pairs[input.pair_count]);
			(*placed)[input.pair_count++] = (struct placed){mp, i};
		}
	}
	placement_compute(&input, *choices);
	free(pairs);
	return input.pair_count;
}

static void take_place(struct engine *engine, struct managed_pair *managed, const struct placement_choice *choice)
{
	if (managed->worker != choice->worker) {
		managed->worker = choice->worker;
		managed->generation = ++engine->place_generation;
		managed->reason = choice->reason;
		managed->moved_ns = now_ns();
	} else if (managed->reason == PLACEMENT_REASON_NONE) {
		managed->reason = choice->reason;
	}
}

static int node_of_rings(const struct queue_pair *pair)
{
	const struct ring *ring = pair->from_guest.running ? &pair->from_guest : &pair->to_guest;

	return ring->running ? evidence_ring_node(ring->desc) : -1;
}

/* A pair starts where its memory is, rather than go there a look later. */
static void look_at_new_pairs(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++) {
			struct managed_pair *managed = &engine->ports[id]->pairs[i];

			if (managed->worker < 0 && pair_active(engine->ports[id], i))
				managed->ring_node = node_of_rings(managed->pair);
		}
}

/* Gives a place to pairs that have none; nobody serves them yet, so nothing has to be moved with care. */
static void place_new_pairs(struct engine *engine)
{
	struct placed *placed;
	struct placement_choice *choices;
	unsigned count;

	look_at_new_pairs(engine);
	count = choose_places(engine, 0, &placed, &choices);
	for (unsigned i = 0; i < count; i++) {
		struct managed_pair *managed = &placed[i].mp->pairs[placed[i].index];

		if (managed->worker >= 0)
			continue;
		/* No CPU left to choose is no reason to leave a queue standing: the first worker runs somewhere. */
		if (choices[i].worker < 0)
			choices[i].worker = 0;
		take_place(engine, managed, &choices[i]);
	}
	free(placed);
	free(choices);
}

/* --- maps ---------------------------------------------------------------------------------------------------------- */

static void put_affinity(struct engine *engine, struct managed_port *mp, unsigned index)
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
	result = bpf_set_affinity_put(uplink_bpf(uplink), &key, &value);
	if (result)
		log_error("port %s: queue_affinity refuses pair %u: %s; its frames go to the host's stack", mp->config.name, index, strerror(-result));
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
static void drop_addresses(struct engine *engine, struct managed_port *mp, bool unused)
{
	struct uplink *uplink = uplink_of(engine, mp);
	unsigned kept = 0;

	for (unsigned i = 0; uplink && i < mp->published_count; i++) {
		if (key_is_wanted(mp, &mp->published_keys[i]))
			mp->published_keys[kept++] = mp->published_keys[i];
		else
			bpf_set_port_delete(uplink_bpf(uplink), &mp->published_keys[i]);
	}
	mp->published_count = kept;
}

/* Makes `ports` say what the port's addresses are now, and how many pairs receive. */
static void put_addresses(struct engine *engine, struct managed_port *mp, unsigned receiving_pairs)
{
	struct uplink *uplink = uplink_of(engine, mp);
	struct vl_port_value value = {.port = mp->port->id, .queue_pairs = receiving_pairs, .flags = flags_of(mp->port)};

	if (!uplink)
		return;
	value.node = node_of_port(engine, mp, uplink);
	if ((value.flags & VL_PORT_VLANS) && bpf_set_vlans_put(uplink_bpf(uplink), mp->port->id, &mp->port->vlans))
		log_error("port %s: the map `port_vlans` refuses its VLANs; its tagged frames go to the host's stack", mp->config.name);
	drop_addresses(engine, mp, false);
	for (unsigned i = 0; i < mp->address_count; i++) {
		struct vl_port_key key = {.vlan = mp->addresses[i].vlan};
		int result;

		memcpy(key.mac, mp->addresses[i].mac, 6);
		value.flags = flags_of(mp->port) | (mp->addresses[i].learned ? VL_PORT_LEARNED : 0);
		result = bpf_set_port_put(uplink_bpf(uplink), &key, &value);
		if (result)
			log_limited(LOG_LEVEL_ERROR, "port %s: the map `ports` refuses an address: %s; its frames go to the host's stack",
				    mp->config.name, strerror(-result));
		mp->published_keys[i] = key;
	}
	mp->published_count = mp->address_count;
	mp->published_value = value;
}

static unsigned list_receiving(const struct managed_port *mp, unsigned *receiving)
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
static void repair_steering(struct managed_port *mp)
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
			log_error("port %s: cannot watch the kick descriptor of pair %u: %s; it is looked at every millisecond", mp->config.name, index,
				  strerror(-result));
		atomic_store(&managed->pair->unwatched, result != 0);
		kick_probe_watch(engine->kick_probe, fd);
		managed->watched_by = by;
		managed->watched_fd = fd;
	}
}

static unsigned receiving_pairs(const struct managed_port *mp)
{
	for (unsigned i = mp->config.queues; i > 0; i--)
		if (pair_receives(mp, i - 1))
			return i;
	return 0;
}

static void publish_port_maps(struct engine *engine, struct managed_port *mp, bool going_down)
{
	const unsigned receiving = receiving_pairs(mp);

	if (going_down != (receiving < mp->published_value.queue_pairs))
		return;
	if (going_down) {
		put_addresses(engine, mp, receiving);
		return;
	}
	repair_steering(mp);
	for (unsigned i = 0; i < mp->config.queues; i++)
		put_affinity(engine, mp, i);
	put_addresses(engine, mp, receiving);
}

static void for_each_port(struct engine *engine, void (*call)(struct engine *, struct managed_port *, bool), bool argument)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			call(engine, engine->ports[id], argument);
}

static void publish_pair_state(struct engine *engine, struct managed_port *mp, bool unused)
{
	for (unsigned i = 0; i < mp->config.queues; i++) {
		const bool active = pair_active(mp, i);

		watch_kick(engine, mp, i);
		atomic_store(&mp->pairs[i].pair->worker, active ? mp->pairs[i].worker : -1);
	}
}

static void publish_plan(struct engine *engine)
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

void publisher_publish(struct engine *engine)
{
	tell_of_learned(engine);
	look_at_rings(engine);
	place_new_pairs(engine);
	for_each_port(engine, drop_addresses, false);
	for_each_port(engine, publish_port_maps, true);
	for_each_port(engine, publish_pair_state, false);
	publish_plan(engine);
	for_each_port(engine, publish_port_maps, false);
}

void publisher_forget(struct engine *engine, struct managed_port *mp)
{
	mp->address_count = 0;
	put_addresses(engine, mp, 0);
	for (unsigned i = 0; i < mp->config.queues; i++)
		put_affinity(engine, mp, i);
}

void publisher_synchronize(struct engine *engine)
{
	grace_wait();
}

/* --- moves --------------------------------------------------------------------------------------------------------- */

struct move {
	struct managed_port *mp;
	unsigned index;
	struct placement_choice to;
};

static void wait_for_drain(struct engine *engine, const bool *sources)
{
	for (unsigned w = 0; w < engine->worker_count; w++)
		if (sources[w])
			worker_drain_request(engine->workers[w]);
	for (unsigned w = 0; w < engine->worker_count; w++)
		for (unsigned waits = 0; sources[w] && !worker_drained(engine->workers[w]); waits++) {
			if (waits == DRAIN_WAITS_MAX) {
				log_warning("worker %u: what stood on its lanes was not taken within %u us; frames of a moved pair may be reordered", w,
					    DRAIN_WAIT_US * DRAIN_WAITS_MAX);
				break;
			}
			usleep(DRAIN_WAIT_US);
		}
}

/* Moves of which no worker is both source and target, so that a held worker never has to drain. */
static void carry_out(struct engine *engine, struct move *moves, unsigned count)
{
	bool sources[VL_WORKERS_MAX] = {false}, targets[VL_WORKERS_MAX] = {false};
	bool steered = false;

	for (unsigned i = 0; i < count; i++) {
		const int from = moves[i].mp->pairs[moves[i].index].worker;

		if (from >= 0)
			sources[from] = true;
		targets[moves[i].to.worker] = true;
		steered |= uplink_of(engine, moves[i].mp) != NULL;
		/* The old owner lets go of the ring; nobody serves it until the last step. */
		moves[i].mp->withdrawn[(2 * moves[i].index + 1) / 64] |= 1ull << ((2 * moves[i].index + 1) % 64);
	}
	look_at_rings(engine);
	for (unsigned w = 0; steered && w < engine->worker_count; w++)
		if (targets[w])
			worker_hold_lanes(engine->workers[w], true);
	for_each_port(engine, publish_pair_state, false);
	publish_plan(engine);
	for (unsigned i = 0; i < count; i++) {
		take_place(engine, &moves[i].mp->pairs[moves[i].index], &moves[i].to);
		put_affinity(engine, moves[i].mp, moves[i].index);
	}
	if (steered) {
		usleep(STEERING_SETTLE_US);
		wait_for_drain(engine, sources);
	}
	for (unsigned i = 0; i < count; i++)
		moves[i].mp->withdrawn[(2 * moves[i].index + 1) / 64] &= ~(1ull << ((2 * moves[i].index + 1) % 64));
	look_at_rings(engine);
	for_each_port(engine, publish_pair_state, false);
	publish_plan(engine);
	for (unsigned w = 0; steered && w < engine->worker_count; w++)
		if (targets[w])
			worker_hold_lanes(engine->workers[w], false);
	for (unsigned i = 0; i < count; i++) {
		const struct managed_pair *managed = &moves[i].mp->pairs[moves[i].index];

		put_affinity(engine, moves[i].mp, moves[i].index);
		put_addresses(engine, moves[i].mp, receiving_pairs(moves[i].mp)); /* their node may be another */
		log_info("queue %s/%u: moved to worker %d on CPU %d (%s)", moves[i].mp->config.name, moves[i].index, managed->worker,
			 worker_cpu(engine->workers[managed->worker]), placement_reason_names[managed->reason]);
	}
}

static void carry_out_in_steps(struct engine *engine, struct move *moves, unsigned count)
{
	while (count) {
		bool source[VL_WORKERS_MAX] = {false}, target[VL_WORKERS_MAX] = {false};
		unsigned taken = 0;

		for (unsigned i = 0; i < count; i++) {
			const int from = moves[i].mp->pairs[moves[i].index].worker, to = moves[i].to.worker;
			struct move move = moves[i];

			if (from == to || target[from] || source[to])
				continue;
			source[from] = target[to] = true;
			moves[i] = moves[taken];
			moves[taken++] = move;
		}
		if (!taken)
			break;
		carry_out(engine, moves, taken);
		memmove(moves, moves + taken, (count - taken) * sizeof(*moves));
		count -= taken;
	}
}

void publisher_rebalance(struct engine *engine, unsigned moves_max)
{
	struct placed *placed;
	struct placement_choice *choices;
	const unsigned count = choose_places(engine, moves_max, &placed, &choices);
	struct move *moves = calloc(count + 1, sizeof(*moves));
	unsigned move_count = 0;

	for (unsigned i = 0; moves && i < count; i++) {
		const int now = placed[i].mp->pairs[placed[i].index].worker;

		if (choices[i].worker >= 0 && now >= 0 && choices[i].worker != now)
			moves[move_count++] = (struct move){placed[i].mp, placed[i].index, choices[i]};
	}
	carry_out_in_steps(engine, moves, move_count);
	free(moves);
	free(placed);
	free(choices);
}

/* Where workers are not pinned, a CPU stands for the slot that would be pinned there. Of several, @present has precedence. */
static int worker_on_cpu(const struct engine *engine, int cpu, int present)
{
	if (present >= 0 && engine->cpus_of_slots[(unsigned)present % engine->cpu_count] == cpu)
		return present;
	for (unsigned i = 0; i < engine->cpu_count; i++)
		if (engine->cpus_of_slots[i] == cpu)
			return (int)i;
	return -1;
}

int publisher_order(struct engine *engine, struct managed_port *mp, unsigned index, int cpu, struct error *error)
{
	struct managed_pair *managed = &mp->pairs[index];
	const int w = worker_on_cpu(engine, cpu, managed->worker);
	struct move move = {.mp = mp, .index = index, .to = {.worker = w, .reason = PLACEMENT_REASON_PINNED}};

	if (w < 0)
		return error_set(error, -EINVAL, "queue %s/%u: cpu=%d: no worker runs on that CPU; choose one that `vhostlane worker list` shows",
				 mp->config.name, index, cpu);
	if (!engine->topology.cpus[cpu].online || !engine->topology.cpus[cpu].allowed)
		return error_set(error, -EINVAL, "queue %s/%u: cpu=%d: that CPU is %s; choose one that `vhostlane worker list` shows in use",
				 mp->config.name, index, cpu, engine->topology.cpus[cpu].online ? "no longer allowed" : "offline");
	managed->worker_wanted = w;
	if (managed->worker == w || managed->worker < 0 || !pair_active(mp, index)) {
		if (managed->worker != w)
			take_place(engine, managed, &move.to);
		managed->reason = PLACEMENT_REASON_PINNED; /* it may stay where it is, but by order from now on */
		return 0;
	}
	carry_out(engine, &move, 1);
	return 0;
}

void publisher_release(struct engine *engine, struct managed_port *mp, unsigned index)
{
	struct managed_pair *managed = &mp->pairs[index];

	managed->worker_wanted = -1;
	if (managed->worker < 0)
		return;
	managed->reason = PLACEMENT_REASON_STAYS;
	publisher_rebalance(engine, UINT32_MAX);
}

static void put_back(struct engine *engine, struct managed_port *mp, unsigned index, const char *why)
{
	log_warning("queue_affinity: %s; put back", why);
	mp->pairs[index].is_published = false; /* written anew */
	put_affinity(engine, mp, index);
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

void publisher_read_affinity(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned i = 0; mp && uplink_of(engine, mp) && i < mp->config.queues; i++)
			read_affinity_of(engine, mp, i);
	}
	for (unsigned u = 0; u < engine->uplink_count; u++)
		remove_foreign_keys(engine, engine->uplinks[u]);
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
