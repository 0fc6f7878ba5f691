/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/workforce.h"

#include <errno.h>
#include <string.h>

#include "common/log.h"

#define SLOTS_OF_THREAD_POLICIES 32 /* slots where workers belong to ports, if `threads` does not say */

static bool is_good_in(const struct topology *topology, int cpu)
{
	return cpu >= 0 && topology->cpus[cpu].online && topology->cpus[cpu].allowed;
}

static bool cpu_is_good(const struct engine *engine, int cpu)
{
	return is_good_in(&engine->topology, cpu);
}

static int cpu_of_slot(const struct engine *engine, unsigned slot)
{
	return engine->cpus_of_slots[slot % engine->cpu_count];
}

static int node_of_cpu(const struct engine *engine, int cpu)
{
	return cpu >= 0 ? engine->topology.cpus[cpu].node : -1;
}

unsigned workforce_slots(const struct config *config, unsigned cpus)
{
	if (!config->threads && config->policy != PLACEMENT_PER_CPU)
		return max_u32(cpus, SLOTS_OF_THREAD_POLICIES);
	return max_u32(cpus, config->threads);
}

int workforce_plan(struct engine *engine, struct error *error)
{
	const struct config *config = engine->config;
	int result;

	if (topology_read(&engine->topology, error))
		return error->code;
	result = config_resolve_cpus(config, &engine->cpus, error);
	if (result)
		return result;
	engine->cpu_count = 0;
	for (int cpu = cpulist_next(&engine->cpus, 0); cpu >= 0; cpu = cpulist_next(&engine->cpus, (unsigned)cpu + 1)) {
		if (engine->cpu_count == VL_WORKERS_MAX)
			return error_set(error, -E2BIG, "workers.cpus: more than %d CPUs; name fewer with --cpus", VL_WORKERS_MAX);
		engine->cpus_of_slots[engine->cpu_count++] = cpu;
	}
	engine->slot_count = workforce_slots(config, engine->cpu_count);
	if (config->threads && config->threads < engine->slot_count)
		log_warning("threads: %u is less than one a CPU: there are %u workers all the same; name fewer CPUs (--cpus), or leave threads out",
			    config->threads, engine->slot_count);
	return 0;
}

/* Pinned to its CPU, or free on all chosen ones. */
static int place_worker(struct engine *engine, unsigned slot, struct error *error)
{
	const int cpu = cpu_of_slot(engine, slot);

	if (!engine->config->pin)
		return worker_unpin(engine->workers[slot], &engine->cpus, error);
	return worker_move(engine->workers[slot], cpu, node_of_cpu(engine, cpu), error);
}

int workforce_start(struct engine *engine, struct error *error)
{
	while (engine->worker_count < engine->slot_count) {
		const int cpu = cpu_of_slot(engine, engine->worker_count);
		const struct worker_setup setup = {
			.index = engine->worker_count,
			.cpu = cpu,
			.node = node_of_cpu(engine, cpu),
			.plan = &engine->plan,
			.devices = engine->devices,
			.device_count = engine->device_count,
			.control_fd = engine->worker_event_fd,
		};
		struct worker *worker = worker_start(&setup, error);

		if (!worker)
			return error->code;
		engine->workers[engine->worker_count++] = worker;
		if (!engine->config->pin && place_worker(engine, setup.index, error))
			return error->code;
	}
	return 0;
}

void workforce_stop(struct engine *engine)
{
	while (engine->worker_count)
		worker_stop(engine->workers[--engine->worker_count]);
}

bool workforce_uses(const struct engine *engine, unsigned worker)
{
	if (engine->config->policy == PLACEMENT_PER_CPU && worker >= engine->cpu_count)
		return false;
	return !engine->config->pin || cpu_is_good(engine, cpu_of_slot(engine, worker));
}

int workforce_set_policy(struct engine *engine, enum placement_policy policy, unsigned workers_per_port, bool pin, struct error *error)
{
	const bool pin_changed = pin != engine->config->pin;

	if (workers_per_port < 1 || workers_per_port > VL_WORKERS_MAX)
		return error_set(error, -EINVAL, "workers: per-port=%u: out of range; give 1 to %d", workers_per_port, VL_WORKERS_MAX);
	engine->config->policy = policy;
	engine->config->workers_per_port = workers_per_port;
	engine->config->pin = pin;
	for (unsigned w = 0; pin_changed && w < engine->worker_count; w++)
		if ((!pin || cpu_is_good(engine, cpu_of_slot(engine, w))) && place_worker(engine, w, error))
			log_warning("%s", error->text); /* its CPU goes just now: the next look at the machine settles it */
	if (policy != PLACEMENT_PER_CPU && engine->slot_count == engine->cpu_count)
		log_warning("workers: policy %s with %u worker slots, one a CPU: ports share them; start with --threads N for more",
			    placement_policy_names[policy], engine->slot_count);
	log_info("workers: policy %s, %s", placement_policy_names[policy], pin ? "pinned" : "not pinned");
	return 0;
}

static bool any_cpu_is_good(const struct engine *engine, const struct topology *topology)
{
	for (unsigned i = 0; i < engine->cpu_count; i++)
		if (is_good_in(topology, engine->cpus_of_slots[i]))
			return true;
	return false;
}

bool workforce_machine_changed(struct engine *engine)
{
	struct topology *now = &engine->topology_next;
	struct error error;
	bool changed = false;

	if (topology_read(now, &error)) {
		/* Asked every second, and told once. */
		if (!engine->topology_unread)
			log_warning("changes of the machine go unnoticed for now: %s", error.text);
		engine->topology_unread = true;
		return false;
	}
	if (engine->topology_unread)
		log_info("the machine can be looked at again");
	engine->topology_unread = false;
	for (unsigned i = 0; i < engine->cpu_count; i++) {
		const int cpu = engine->cpus_of_slots[i];
		const bool was = cpu_is_good(engine, cpu), is = is_good_in(now, cpu);

		if (was == is)
			continue;
		changed = true;
		if (is)
			log_info("CPU %d: back; its worker is pinned again", cpu);
		else
			log_warning("CPU %d: %s; %s", cpu, now->cpus[cpu].online ? "no longer allowed" : "offline",
				    any_cpu_is_good(engine, now) ?
					    "its queue pairs move to other workers" :
					    "the workers have no CPU left: queue pairs stay, and are served where the kernel lets the workers run");
	}
	engine->topology = *now;
	/* The kernel widened or narrowed the threads of a CPU that went, and does not put them back. */
	for (unsigned w = 0; changed && w < engine->worker_count; w++)
		if ((!engine->config->pin || cpu_is_good(engine, cpu_of_slot(engine, w))) && place_worker(engine, w, &error))
			log_warning("%s", error.text);
	return changed;
}
