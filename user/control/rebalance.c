/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/rebalance.h"

#include <errno.h>
#include <stdatomic.h>

#include "common/log.h"
#include "control/cpu_use.h"
#include "control/kick_opener.h"
#include "control/kick_probe.h"
#include "control/publisher.h"
#include "control/workforce.h"

#define LOOK_NS 1000000000ull
#define MOVES_PER_LOOK 2
#define LOADS_NS 100000000ull /* shortest interval of which loads are taken: /proc/stat counts in hundredths of a second */
#define LOOKS_PER_AGING 30
#define MOVES_STANDING 4
#define DELAY_LOOK_NS 100000000ull
/* Share of its time that a worker waits for its CPU, from which on it polls less; below half of it, patience comes back. */
#define DELAY_TOO_MUCH_PERMILLE 50
#define PATIENCE_STEP (WORKER_PATIENCE_FULL / 8)

/* --- loads --------------------------------------------------------------------------------------------------------- */

static uint32_t permille(uint64_t part, uint64_t whole)
{
	return whole ? min_u32((uint32_t)(part * 1000 / whole), 1000) : 0;
}

/*
 * The wall clock says how long a worker had work, including the time for which others had its CPU. What it needs of the CPU: what it ran, but
 * for its share of polling. Without schedstat in the kernel the wall clock must do.
 */
static void look_at_worker(struct engine *engine, unsigned w, uint64_t ns)
{
	struct looked_worker *looked = &engine->looked[w];
	const struct worker *worker = engine->workers[w];
	const uint64_t busy = worker_counter(worker, WORKER_NS_BUSY), polling = worker_counter(worker, WORKER_NS_POLLING);
	const uint64_t awake = busy - looked->busy_ns + polling - looked->polling_ns;
	uint64_t run = looked->run_ns, waited;

	looked->busy_permille = permille(busy - looked->busy_ns, ns);
	looked->ran_permille = permille(awake, ns);
	looked->busy_scale_permille = 1000;
	if (awake && cpu_use_of_thread(worker_tid(worker), &run, &waited)) {
		const uint64_t ran = run - looked->run_ns;
		const uint64_t polled = (uint64_t)((double)ran * (double)(polling - looked->polling_ns) / (double)awake);

		looked->busy_permille = permille(ran - min_u64(polled, ran), ns);
		looked->ran_permille = permille(ran, ns);
		looked->busy_scale_permille = permille(ran, awake);
	}
	looked->run_ns = run;
	looked->busy_ns = busy;
	looked->polling_ns = polling;
}

static void look_at_cpus(struct engine *engine)
{
	struct cpu_use now;

	if (cpu_use_read(&now))
		return;
	for (unsigned w = 0; w < engine->worker_count; w++) {
		const int cpu = worker_cpu(engine->workers[w]);
		const uint32_t taken = cpu_use_taken_permille(&engine->cpu_use, &now, cpu);
		uint32_t ours = 0;

		/* Several workers may share a CPU; unpinned ones run anywhere. */
		for (unsigned other = 0; other < engine->worker_count; other++)
			if (worker_cpu(engine->workers[other]) == cpu)
				ours += engine->looked[other].ran_permille;
		engine->looked[w].others_permille = taken > ours ? taken - ours : 0;
	}
	engine->cpu_use = now;
}

static void look_at_loads(struct engine *engine)
{
	const uint64_t cycles = cycles_now() - engine->looked_cycles, ns = now_ns() - engine->looked_ns;
	uint32_t anybody = 0;

	engine->looked_cycles += cycles;
	engine->looked_ns += ns;
	for (unsigned w = 0; w < engine->worker_count; w++) {
		look_at_worker(engine, w, ns);
		anybody |= engine->looked[w].ran_permille;
	}
	if (anybody) /* on large machines the kernel takes milliseconds for the answer */
		look_at_cpus(engine);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned i = 0; mp && i < mp->config.queues; i++) {
			const uint64_t busy = atomic_load(&mp->pairs[i].pair->busy_cycles);
			const int w = mp->pairs[i].worker;

			mp->pairs[i].load_permille = permille(busy - mp->pairs[i].busy_cycles, cycles);
			if (w >= 0)
				mp->pairs[i].load_permille = mp->pairs[i].load_permille * engine->looked[w].busy_scale_permille / 1000;
			mp->pairs[i].busy_cycles = busy;
		}
	}
}

/* Whether workers have work on CPUs that others use too: then moves pay soon, and are looked for more often. */
static bool is_crowded(const struct engine *engine)
{
	for (unsigned w = 0; w < engine->worker_count; w++)
		if (engine->looked[w].busy_permille && engine->looked[w].others_permille >= PLACEMENT_CROWDED_PERMILLE)
			return true;
	return false;
}

/* --- guests -------------------------------------------------------------------------------------------------------- */

/* Of what it posted to receive and what it sent last. */
static int look_at_buffers(const struct queue_pair *pair)
{
	const void *buffers[EVIDENCE_PAGES_MAX];
	unsigned count = ring_recent_buffers(&pair->to_guest, buffers, EVIDENCE_PAGES_MAX / 2);

	count += ring_recent_buffers(&pair->from_guest, buffers + count, EVIDENCE_PAGES_MAX / 2);
	return evidence_pages_node(buffers, count);
}

static void look_at_guest(struct engine *engine, struct managed_port *mp)
{
	const pid_t pid = vhost_user_peer_pid(mp->session);
	struct evidence_peer peer;

	if (vhost_user_state_of(mp->session) != VHOST_USER_SERVING) {
		for (unsigned i = 0; i < mp->config.queues; i++)
			mp->pairs[i].kick = EVIDENCE_KICK_NONE;
		return;
	}
	/* A peer of another PID namespace shows no threads here; its rings and kicks tell all the same. */
	if (!pid)
		mp->history = (struct evidence_history){0};
	else if (!evidence_peer_read(pid, &engine->topology, &peer))
		evidence_history_add(&mp->history, &peer);
	for (unsigned i = 0; i < mp->config.queues; i++) {
		const struct ring *ring = &mp->pairs[i].pair->from_guest;

		evidence_kick_add(&mp->pairs[i].kick, &engine->topology, kick_probe_cpu(engine->kick_probe, mp->pairs[i].watched_fd));
		mp->pairs[i].ring_node = ring->running ? evidence_ring_node(ring->desc) : -1;
		mp->pairs[i].buffer_node = look_at_buffers(mp->pairs[i].pair);
	}
}

/* --- the CPU that kicks --------------------------------------------------------------------------------------------- */

static bool serves_anybody(const struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id] && vhost_user_state_of(engine->ports[id]->session) == VHOST_USER_SERVING)
			return true;
	return false;
}

static void watch_all_kicks(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++)
			if (engine->ports[id]->pairs[i].watched_by >= 0)
				kick_probe_watch(engine->kick_probe, engine->ports[id]->pairs[i].watched_fd);
}

/*
 * Optional: without it, placement goes by memory and vCPU threads alone. Opened when there is a guest whose kicks it could see, so that no
 * start waits for it; whether it came is asked at the next look.
 */
static void look_for_kick_probe(struct engine *engine)
{
	struct error why;

	if (!engine->kicks_wanted && serves_anybody(engine)) {
		engine->kicks_wanted = true;
		engine->kick_opener = kick_opener_start(&why);
		if (!engine->kick_opener)
			log_info("%s", why.text);
	} else if (engine->kick_opener && kick_opener_take(engine->kick_opener, &engine->kick_probe, &why)) {
		kick_opener_close(engine->kick_opener);
		engine->kick_opener = NULL;
		watch_all_kicks(engine);
		if (engine->kick_probe)
			log_info("kicks: their CPUs are traced by %s", kick_probe_way(engine->kick_probe));
		else
			log_info("%s", why.text);
	}
}

/* --- the look ------------------------------------------------------------------------------------------------------- */

static void on_look(void *context)
{
	struct engine *engine = context;
	bool machine_changed;

	look_at_loads(engine);
	look_for_kick_probe(engine);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			look_at_guest(engine, engine->ports[id]);
	/* A cpuset change has no event. */
	machine_changed = workforce_machine_changed(engine);
	publisher_rebalance(engine, machine_changed ? UINT32_MAX : MOVES_PER_LOOK);
	publisher_follow_nodes(engine);
	if (++engine->looks % LOOKS_PER_AGING == 0)
		publisher_age_flows(engine);
}

/* --- standing work ------------------------------------------------------------------------------------------------- */

void rebalance_standing(struct engine *engine)
{
	uint32_t standing[VL_WORKERS_MAX];
	uint32_t longest = 0;

	for (unsigned w = 0; w < engine->worker_count; w++) {
		standing[w] = (uint32_t)(worker_take_standing_ns(engine->workers[w]) / 1000);
		longest = max_u32(longest, standing[w]);
	}
	if (!longest || engine->config->policy != PLACEMENT_PER_CPU)
		return;
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++) {
			struct managed_pair *managed = &engine->ports[id]->pairs[i];

			managed->standing_us = managed->worker >= 0 ? standing[managed->worker] : 0;
			managed->longest_wait_us = max_u32(managed->longest_wait_us, managed->standing_us);
		}
	if (now_ns() - engine->looked_ns > LOADS_NS)
		look_at_loads(engine);
	publisher_relieve(engine, MOVES_STANDING);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++)
			engine->ports[id]->pairs[i].standing_us = 0;
}

/* --- CPUs wanted by others ----------------------------------------------------------------------------------------- */

static void on_delay_look(void *context)
{
	struct engine *engine = context;
	const uint64_t ns = now_ns() - engine->delay_looked_ns;

	engine->delay_looked_ns += ns;
	for (unsigned w = 0; w < engine->worker_count; w++) {
		struct worker *worker = engine->workers[w];
		uint32_t patience = worker_patience(worker), waited, average;
		uint64_t run, delay;

		/* One that sleeps waits for nothing; its next sample would span more than this interval, and is only taken as a base. */
		if (worker_asleep(worker) && patience == WORKER_PATIENCE_FULL) {
			engine->looked[w].delay_is_fresh = false;
			continue;
		}
		if (!cpu_use_of_thread(worker_tid(worker), &run, &delay))
			continue;
		waited = engine->looked[w].delay_is_fresh ? permille(delay - engine->looked[w].run_delay_ns, ns) : 0;
		engine->looked[w].delay_is_fresh = true;
		engine->looked[w].run_delay_ns = delay;
		/* Of two looks: one time slice of a task of the idle class may spoil one. */
		average = (waited + engine->looked[w].waited_permille) / 2;
		engine->looked[w].waited_permille = waited;
		if (average > DELAY_TOO_MUCH_PERMILLE)
			worker_set_patience(worker, patience / 2);
		else if (average < DELAY_TOO_MUCH_PERMILLE / 2)
			worker_set_patience(worker, min_u32(patience + PATIENCE_STEP, WORKER_PATIENCE_FULL));
	}
	if (is_crowded(engine) && now_ns() - engine->looked_ns > LOADS_NS) {
		look_at_loads(engine);
		publisher_relieve(engine, MOVES_PER_LOOK);
	}
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

static void on_cpu(void *context, unsigned cpu, bool online)
{
	struct engine *engine = context;

	if (workforce_machine_changed(engine))
		publisher_rebalance(engine, UINT32_MAX);
}

void rebalance_all(struct engine *engine, bool afresh)
{
	look_at_loads(engine);
	if (afresh)
		publisher_place_afresh(engine);
	else
		publisher_rebalance(engine, UINT32_MAX);
}

int rebalance_open(struct engine *engine, struct error *error)
{
	engine->looked_cycles = cycles_now();
	engine->looked_ns = engine->delay_looked_ns = now_ns();
	engine->hotplug = hotplug_open(engine->loop, on_cpu, engine, error);
	if (!engine->hotplug)
		log_warning("%s", error->text);
	if (!event_loop_timer(engine->loop, LOOK_NS, 1, on_look, engine, error) ||
	    !event_loop_timer(engine->loop, DELAY_LOOK_NS, 1, on_delay_look, engine, error))
		return error->code;
	return 0;
}

void rebalance_close(struct engine *engine)
{
	kick_opener_close(engine->kick_opener);
	engine->kick_opener = NULL;
	kick_probe_close(engine->kick_probe);
	engine->kick_probe = NULL;
	hotplug_close(engine->hotplug);
}
