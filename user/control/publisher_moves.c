/* SPDX-License-Identifier: BSD-2-Clause */
/* Places for pairs, and moves between workers that lose and reorder nothing. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "control/pair_memory.h"
#include "control/publisher_private.h"
#include "control/settle.h"
#include "control/workforce.h"

#define DRAIN_WAIT_US 100
#define DRAIN_WAITS_MAX 500
#define SENT_WAITS_MAX 2000 /* only the moved guest's sending waits for it */

#define GATHERING_LASTED_NS 5000000000ull /* gathered pairs that stayed so long were rightly gathered */
#define NO_GATHERING_NS 1000000000ull	  /* after it was wrong, the first time; then twice as long each time */
#define NO_GATHERING_LONGEST_NS 60000000000ull

enum placing { PLACING_REGULAR, PLACING_URGENT, PLACING_AFRESH };

struct placed {
	struct managed_port *mp;
	unsigned index;
};

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
		.kick_cpu = managed->kick.cpu,
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
			.stalled = engine->served[w].stalled,
			.busy_permille = engine->looked[w].busy_permille,
			.others_permille = engine->looked[w].others_permille,
		};
}

/* Chooses a worker for every active pair. Return: count of entries in *placed and *choices (free both); 0 = none. */
static unsigned choose_places(struct engine *engine, unsigned moves_max, enum placing how, struct placed **placed, struct placement_choice **choices)
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
		.urgent = how == PLACING_URGENT,
		.afresh = how == PLACING_AFRESH,
		.no_gathering = now_ns() < engine->no_gathering_until_ns,
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
		managed->moved_ns = managed->worker >= 0 ? now_ns() : 0; /* the first place is no move */
		managed->worker = choice->worker;
		managed->generation = ++engine->place_generation;
		managed->reason = choice->reason;
	} else if (managed->reason == PLACEMENT_REASON_NONE) {
		managed->reason = choice->reason;
	}
}

/* What is ours of the pair goes to the node where it is worked on; never while frames wait for a move: the kernel takes its time. */
static void take_memory_along(const struct engine *engine, struct managed_pair *managed)
{
	const int node = managed->worker >= 0 ? worker_node(engine->workers[managed->worker]) : -1;

	if (node < 0 || node == managed->state_node)
		return;
	pair_memory_follow(managed->pair, node);
	managed->state_node = node;
}

static int node_of_rings(const struct queue_pair *pair)
{
	const struct ring *ring = pair->from_guest.running ? &pair->from_guest : &pair->to_guest;

	return ring->running ? evidence_ring_node(ring->desc) : -1;
}

/* A pair starts where its memory is, rather than go there a look later. Return: false if there is none. */
static bool look_at_new_pairs(struct engine *engine)
{
	bool any = false;

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++) {
			struct managed_pair *managed = &engine->ports[id]->pairs[i];

			if (managed->worker >= 0 || !pair_active(engine->ports[id], i))
				continue;
			managed->ring_node = node_of_rings(managed->pair);
			any = true;
		}
	return any;
}

/* Gives a place to pairs that have none; nobody serves them yet, so nothing has to be moved with care. */
void place_new_pairs(struct engine *engine)
{
	struct placed *placed;
	struct placement_choice *choices;
	unsigned count;

	if (!look_at_new_pairs(engine))
		return;
	count = choose_places(engine, 0, PLACING_REGULAR, &placed, &choices);
	for (unsigned i = 0; i < count; i++) {
		struct managed_pair *managed = &placed[i].mp->pairs[placed[i].index];

		if (managed->worker >= 0)
			continue;
		/* No CPU left to choose is no reason to leave a queue standing: the first worker runs somewhere. */
		if (choices[i].worker < 0)
			choices[i].worker = 0;
		take_place(engine, managed, &choices[i]);
		take_memory_along(engine, managed);
	}
	free(placed);
	free(choices);
}

/* --- moves --------------------------------------------------------------------------------------------------------- */

struct move {
	struct managed_port *mp;
	unsigned index;
	struct placement_choice to;
};

static void settle_steered(const struct engine *engine)
{
	struct cpulist online = {0};

	for (unsigned cpu = 0; cpu < engine->topology.cpu_count; cpu++)
		if (engine->topology.cpus[cpu].online)
			cpulist_add(&online, cpu);
	settle_steering(&online);
}

static void request_drain(struct engine *engine, const bool *sources)
{
	for (unsigned w = 0; w < engine->worker_count; w++)
		if (sources[w])
			worker_drain_request(engine->workers[w]);
}

/* @what: in the words of the warning. */
static void wait_for(struct engine *engine, const bool *sources, bool (*passed)(const struct worker *), unsigned waits_max, const char *what)
{
	for (unsigned w = 0; w < engine->worker_count; w++)
		for (unsigned waits = 0; sources[w] && !passed(engine->workers[w]); waits++) {
			if (waits == waits_max) {
				log_warning("worker %u: %s within %u us; frames of a moved pair may be reordered", w, what,
					    DRAIN_WAIT_US * waits_max);
				break;
			}
			usleep(DRAIN_WAIT_US);
		}
}

static void settle_sent(const struct engine *engine, const bool *sources)
{
	struct cpulist cpus = {0};

	for (unsigned w = 0; w < engine->worker_count; w++) {
		const int cpu = worker_cpu(engine->workers[w]);

		if (sources[w] && cpu >= 0)
			cpulist_add(&cpus, (unsigned)cpu);
		else if (sources[w])
			cpus = engine->cpus; /* not pinned: it may have run on any of them */
	}
	settle_backlogs(cpus);
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
	publish_pair_state(engine);
	publish_plan(engine);
	for (unsigned i = 0; i < count; i++) {
		take_place(engine, &moves[i].mp->pairs[moves[i].index], &moves[i].to);
		put_affinity(engine, moves[i].mp, moves[i].index);
	}
	if (steered) {
		settle_steered(engine);
		request_drain(engine, sources);
		wait_for(engine, sources, worker_drained, DRAIN_WAITS_MAX, "what stood on its lanes was not taken");
	}
	for (unsigned w = 0; steered && w < engine->worker_count; w++)
		if (targets[w])
			worker_hold_lanes(engine->workers[w], false);
	/* Meanwhile the guest's frames wait in its ring, where nothing is lost. */
	if (steered) {
		wait_for(engine, sources, worker_sent, SENT_WAITS_MAX, "what it sent did not leave");
		settle_sent(engine, sources);
	}
	for (unsigned i = 0; i < count; i++)
		moves[i].mp->withdrawn[(2 * moves[i].index + 1) / 64] &= ~(1ull << ((2 * moves[i].index + 1) % 64));
	look_at_rings(engine);
	publish_pair_state(engine);
	publish_plan(engine);
	for (unsigned i = 0; i < count; i++) {
		struct managed_pair *managed = &moves[i].mp->pairs[moves[i].index];

		put_affinity(engine, moves[i].mp, moves[i].index);
		take_memory_along(engine, managed);
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

/* A reason that a pair has for staying is the present policy's. */
static void keep_place(struct managed_pair *managed, enum placement_reason reason)
{
	if (reason != PLACEMENT_REASON_STAYS || managed->reason == PLACEMENT_REASON_PORT_THREAD)
		managed->reason = reason;
}

/* Gathering that did not last, whether its worker was full or work stood on it, is not tried again soon. */
static void note_gathering(struct engine *engine, const struct move *moves, unsigned count)
{
	const uint64_t now = now_ns();
	bool gathers = false, splits = false, stands = false, lasted;

	for (unsigned i = 0; i < count; i++) {
		gathers |= moves[i].to.reason == PLACEMENT_REASON_CONSOLIDATE;
		splits |= moves[i].to.reason == PLACEMENT_REASON_SPLIT;
		stands |= moves[i].to.reason == PLACEMENT_REASON_STANDING;
	}
	lasted = now - engine->gathered_ns > GATHERING_LASTED_NS;
	if (gathers)
		engine->gathered_ns = now;
	if (!splits && (!stands || lasted))
		return;
	if (lasted)
		engine->gathering_penalty_ns = 0;
	engine->gathering_penalty_ns = min_u64(max_u64(2 * engine->gathering_penalty_ns, NO_GATHERING_NS), NO_GATHERING_LONGEST_NS);
	engine->no_gathering_until_ns = now + engine->gathering_penalty_ns;
}

static void place_again(struct engine *engine, unsigned moves_max, enum placing how)
{
	struct placed *placed;
	struct placement_choice *choices;
	const unsigned count = choose_places(engine, moves_max, how, &placed, &choices);
	struct move *moves = calloc(count + 1, sizeof(*moves));
	unsigned move_count = 0;

	put_flood_workers(engine);
	for (unsigned i = 0; moves && i < count; i++) {
		struct managed_pair *managed = &placed[i].mp->pairs[placed[i].index];

		if (choices[i].worker < 0 || managed->worker < 0)
			continue;
		if (choices[i].worker != managed->worker)
			moves[move_count++] = (struct move){placed[i].mp, placed[i].index, choices[i]};
		else
			keep_place(managed, choices[i].reason);
	}
	note_gathering(engine, moves, move_count);
	carry_out_in_steps(engine, moves, move_count);
	free(moves);
	free(placed);
	free(choices);
}

void publisher_rebalance(struct engine *engine, unsigned moves_max)
{
	place_again(engine, moves_max, PLACING_REGULAR);
}

void publisher_relieve(struct engine *engine, unsigned moves_max)
{
	place_again(engine, moves_max, PLACING_URGENT);
}

void publisher_place_afresh(struct engine *engine)
{
	place_again(engine, UINT32_MAX, PLACING_AFRESH);
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
