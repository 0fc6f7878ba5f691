/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/unserved.h"

#include <stdatomic.h>

#include "common/log.h"
#include "control/publisher.h"

/* More than an hour shows as an hour. */
static uint32_t microseconds(uint64_t ns)
{
	return (uint32_t)min_u64(ns / 1000, UINT32_MAX);
}

/* Return: age in nanoseconds. */
static uint64_t look_at_pair(struct managed_pair *managed, bool served, uint64_t now)
{
	uint16_t oldest = 0;

	if (!served || !ring_unserved(&managed->pair->from_guest, &oldest)) {
		managed->unserved_since_ns = 0;
		return 0;
	}
	if (!managed->unserved_since_ns || managed->unserved_oldest != oldest) {
		managed->unserved_since_ns = now;
		managed->unserved_oldest = oldest;
	}
	return now - managed->unserved_since_ns;
}

uint32_t unserved_age_us(const struct managed_pair *managed)
{
	uint16_t oldest;

	if (!managed->unserved_since_ns || !ring_unserved(&managed->pair->from_guest, &oldest) || oldest != managed->unserved_oldest)
		return 0;
	return microseconds(now_ns() - managed->unserved_since_ns);
}

/* The longest age on each worker, in nanoseconds. */
static void look_at_pairs(struct engine *engine, uint64_t *longest)
{
	const uint64_t now = now_ns();

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		for (unsigned i = 0; engine->ports[id] && i < engine->ports[id]->config.queues; i++) {
			struct managed_pair *managed = &engine->ports[id]->pairs[i];
			const int w = atomic_load(&managed->pair->worker);
			const uint64_t age = look_at_pair(managed, w >= 0 && ring_in_service(engine->ports[id], 2 * i + 1), now);

			managed->longest_wait_us = max_u32(managed->longest_wait_us, microseconds(age));
			if (w >= 0 && age > longest[w])
				longest[w] = age;
		}
}

/* Return: true if it is trusted again. */
static bool try_again(struct engine *engine, unsigned w, bool ran)
{
	engine->served[w].ran = ran ? engine->served[w].ran + 1 : 0;
	if (engine->served[w].ran < engine->served[w].trust) {
		worker_wake(engine->workers[w]);
		return false;
	}
	engine->served[w].stalled = false;
	log_info("worker %u: comes to run again on CPU %d", w, worker_cpu(engine->workers[w]));
	return true;
}

/* Return: true if it is found to be stalled. */
static bool judge(struct engine *engine, unsigned w, bool ran, uint64_t age)
{
	if (ran || !age) {
		engine->served[w].stood = 0;
		return false;
	}
	worker_wake(engine->workers[w]);
	if (++engine->served[w].stood < UNSERVED_STALL_LOOKS)
		return false;
	engine->served[w].stood = 0;
	engine->served[w].stalled = true;
	engine->served[w].ran = 0;
	engine->served[w].trust = min_u32(max_u32(2 * engine->served[w].trust, UNSERVED_TRUST_LOOKS), UNSERVED_TRUST_LOOKS_MAX);
	log_warning("worker %u: does not come to run on CPU %d, and work has waited for %u ms; its queue pairs move to other workers, if there are any", w,
		    worker_cpu(engine->workers[w]), (unsigned)(age / 1000000));
	return true;
}

static void on_look(void *context)
{
	struct engine *engine = context;
	uint64_t longest[VL_WORKERS_MAX] = {0};
	bool changed = false;

	look_at_pairs(engine, longest);
	for (unsigned w = 0; w < engine->worker_count; w++) {
		const uint64_t rounds = worker_counter(engine->workers[w], WORKER_ROUNDS);
		const bool ran = rounds != engine->served[w].rounds;

		engine->served[w].rounds = rounds;
		changed |= engine->served[w].stalled ? try_again(engine, w, ran) : judge(engine, w, ran, longest[w]);
	}
	if (changed)
		publisher_rebalance(engine, 0);
}

int unserved_open(struct engine *engine, struct error *error)
{
	return event_loop_timer(engine->loop, UNSERVED_LOOK_NS, 1, on_look, engine, error) ? 0 : error->code;
}
