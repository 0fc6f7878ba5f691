/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The worker of the sleep model (test_sleep_model.c), and the memory that it shares with whoever kicks, delivers and publishes. Each step is
 * named after the place in the source that it stands for.
 */
#ifndef VHOSTLANE_TESTS_MODEL_WORKER_H
#define VHOSTLANE_TESTS_MODEL_WORKER_H

#include "model_world.h"

/* Memory. The first five go through store buffers; the others are the kernel's, or written behind full barriers. */
enum {
	AVAIL, WISH, PLAN, RX,	   /* avail->idx; used->flags (1 = notify) or avail_event; engine->plan; a lane's producer index */
	LAST,			   /* ring: last_avail. Plain memory of the owner; stands for all of struct ring that changes hands */
	SEEN, ARMED,		   /* ring: avail_seen, notifications_armed: kept simple */
	GRACE, READER0, READER1,   /* urcu: gp.ctr, reader.ctr (0 = offline) */
	FREED,			   /* the highest plan that was freed */
	EPOLL0, EPOLL1,		   /* pending events of a worker's set */
	WATCHED, KICKED,	   /* workers that watch the kick descriptor; was it ever written */
	DRAIN_WANTED, DRAIN_SEEN,
	SERVED,			   /* what must be served next: the oracle of double service */
	MEMORY_USED
};
_Static_assert(MEMORY_USED <= MEMORY_MAX, "room for all");

#define EVENT_KICK 1
#define EVENT_LANE 2
#define EVENT_CONTROL 4

/* --- worker: worker.c, worker_serve() ----------------------------------------------------------------------------- */

#define WORKER_STEPS(X)                                                                                    \
	X(W_PLAN, "worker.c worker_serve(): w->plan = published (acquire)")                                \
	X(W_DRAIN, "worker.c serve_drain(): drain_wanted; arrivals noted, taken: drain_seen")              \
	X(W_LANES, "worker.c poll_lanes(): lane_pending(), lane_receive()")                                \
	X(W_TAKE, "worker.c poll_ring(): ring_disarm() was; ring_take(): avail->idx (acquire), entries")   \
	X(W_REST, "worker_rest.c worker_rest(): window over?")                                             \
	X(W_LOOK_FIRST, "(turned round) look at avail->idx before ring_arm()")                             \
	X(W_ARM, "worker_rest.c may_sleep(): ring_arm(): notify_wish(true)")                               \
	X(W_ARM_FENCE, "ring_split.c ring_arm(): full_barrier()")                                          \
	X(W_ARM_LOOK, "ring_split.c ring_arm(): avail->idx != last_avail")                                 \
	X(W_LANE_LOOK, "worker_rest.c may_sleep(): lane_pending()")                                        \
	X(W_PLAN_LOOK, "worker_rest.c may_sleep(): published == plan, drain_wanted == drain_seen")         \
	X(W_OFFLINE, "worker_rest.c sleep_until_called(): grace_offline()")                                \
	X(W_EPOLL, "worker_rest.c sleep_until_called(): epoll_wait()")                                     \
	X(W_ONLINE, "worker_rest.c sleep_until_called(): grace_online()")                                  \
	X(W_QUIESCENT, "worker.c worker_serve(): grace_quiescent()")
enum { WORKER_STEPS(STEP_ENUM) };
static const char *const worker_labels[] = { WORKER_STEPS(STEP_TEXT) };

/* Registers: the plan held (0 = none), the one with which it went to sleep. Cleared when they mean nothing: fewer states. */
enum { HELD, SLEPT_WITH, WORKED, LANE_NEXT, NOTED, ARRIVALS };

/* Whose share the pair is in, by plan. In world "sleep" always worker 0's. */
static bool owns(const struct world *w, unsigned worker, uint8_t plan)
{
	if (!w->moves)
		return worker == 0;
	if (w->omission == NO_GAP)
		return worker == (plan == 1 ? 0u : 1u);
	return plan == 1 ? worker == 0 : plan == 3 && worker == 1;
}

/* A ring is touched by one worker only, and with the plan that says so not freed. */
static bool is_rightful(const struct world *w, const struct state *s, unsigned me)
{
	const unsigned other = 1 - me;

	if (s->t[me].r[HELD] <= s->memory[FREED])
		return false;
	return !w->moves || !s->t[other].r[HELD] || !owns(w, other, s->t[other].r[HELD]);
}

static bool quiescent(const struct world *w, struct state *s, unsigned me)
{
	/* urcu-qsbr: nothing to do, and no barrier, if no grace period began. */
	if (s->memory[READER0 + me] != s->memory[GRACE]) {
		if (w->omission != QUIESCENT_UNFENCED && !drained(s, me))
			return false;
		s->memory[READER0 + me] = s->memory[GRACE];
	}
	s->t[me].r[HELD] = 0;
	return go(s, me, W_PLAN);
}

/* What only its owner reads needs no FIFO where the owner does not change. */
static bool store_private(const struct world *w, struct state *s, unsigned me, unsigned at, uint8_t value)
{
	if (w->moves)
		return store(s, me, at, value);
	s->memory[at] = value;
	return true;
}

static bool is_mine(const struct world *w, const struct state *s, unsigned me)
{
	return owns(w, me, s->t[me].r[HELD]);
}

static bool after_round(struct state *s, unsigned me)
{
	const bool worked = s->t[me].r[WORKED];

	s->t[me].r[WORKED] = 0;
	return go(s, me, worked ? W_QUIESCENT : W_REST);
}

/* poll_rings(), as far as ring_disarm(): it writes into the worker's own FIFO, so nobody sees it as a step of its own. */
static bool begin_rings(const struct world *w, struct state *s, unsigned me)
{
	if (!is_mine(w, s, me))
		return after_round(s, me);
	if (!is_rightful(w, s, me))
		return interleave_break(s);
	if (s->memory[ARMED] && !w->event_index && !store(s, me, WISH, 0))
		return false;
	s->memory[ARMED] = 0;
	return go(s, me, W_TAKE);
}

static bool take(const struct world *w, struct state *s, unsigned me)
{
	const uint8_t last = load(s, me, LAST);

	if (!is_rightful(w, s, me))
		return interleave_break(s);
	if (s->memory[SEEN] == last) /* take_look(): looks again only if it knows of nothing more */
		s->memory[SEEN] = load(s, me, AVAIL);
	if (s->memory[SEEN] == last)
		return after_round(s, me);
	if (last != s->memory[SERVED]) /* served before, or left out */
		return interleave_break(s);
	s->memory[SERVED]++;
	s->t[me].r[WORKED] = 1;
	return store_private(w, s, me, LAST, (uint8_t)(last + 1)) && after_round(s, me);
}

static bool poll_lanes(const struct world *w, struct state *s, unsigned me)
{
	uint8_t *r = s->t[me].r;

	if (load(s, me, RX) != r[LANE_NEXT]) {
		r[LANE_NEXT]++;
		r[WORKED] = 1;
	}
	return begin_rings(w, s, me);
}

/* What stood on the lanes when the request was seen first is what has to be taken. */
static bool serve_drain(const struct world *w, struct state *s, unsigned me)
{
	uint8_t *r = s->t[me].r;
	const uint8_t wanted = s->memory[DRAIN_WANTED];

	if (wanted != s->memory[DRAIN_SEEN]) {
		if (r[NOTED] != wanted) {
			r[ARRIVALS] = load(s, me, RX);
			r[NOTED] = wanted;
		}
		if (r[LANE_NEXT] >= r[ARRIVALS]) {
			if (!drained(s, me))
				return false;
			s->memory[DRAIN_SEEN] = wanted;
			r[ARRIVALS] = 0;
		}
	}
	return go(s, me, W_LANES);
}

/* may_sleep() from the lanes on, where there are any. */
static unsigned look_at_lanes(const struct world *w)
{
	return w->lane_frames && w->omission != NO_LANE_LOOK ? W_LANE_LOOK : w->omission != NO_PLAN_LOOK ? W_PLAN_LOOK : W_OFFLINE;
}

static bool worker(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;

	if (choice > 1 || (choice && s->t[me].pc != W_REST))
		return false;
	switch (s->t[me].pc) {
	case W_PLAN:
		r[HELD] = load(s, me, PLAN);
		return w->drains ? go(s, me, W_DRAIN) : w->lane_frames ? go(s, me, W_LANES) : begin_rings(w, s, me);
	case W_DRAIN:
		return serve_drain(w, s, me);
	case W_LANES:
		return poll_lanes(w, s, me);
	case W_TAKE:
		return take(w, s, me);
	case W_REST:
		if (!choice) /* within the window */
			return go(s, me, W_QUIESCENT);
		return go(s, me, !is_mine(w, s, me) ? look_at_lanes(w) : w->omission == LOOK_BEFORE_ARM ? W_LOOK_FIRST : W_ARM);
	case W_LOOK_FIRST:
		return go(s, me, load(s, me, AVAIL) != load(s, me, LAST) ? W_QUIESCENT : W_ARM);
	case W_ARM:
		if (!is_rightful(w, s, me))
			return interleave_break(s);
		s->memory[ARMED] = 1;
		if (w->omission != NO_ARM && !store(s, me, WISH, w->event_index ? load(s, me, LAST) : 1))
			return false;
		return go(s, me, W_ARM_FENCE);
	case W_ARM_FENCE:
		if (w->omission != NO_ARM_FENCE && !drained(s, me))
			return false;
		return go(s, me, w->omission == LOOK_BEFORE_ARM || w->omission == NO_SECOND_LOOK ? look_at_lanes(w) : W_ARM_LOOK);
	case W_ARM_LOOK:
		return go(s, me, load(s, me, AVAIL) != load(s, me, LAST) ? W_QUIESCENT : look_at_lanes(w));
	case W_LANE_LOOK:
		return go(s, me, load(s, me, RX) != r[LANE_NEXT] ? W_QUIESCENT : w->omission != NO_PLAN_LOOK ? W_PLAN_LOOK : W_OFFLINE);
	case W_PLAN_LOOK:
		return go(s, me, load(s, me, PLAN) != r[HELD] || s->memory[DRAIN_WANTED] != s->memory[DRAIN_SEEN] ? W_QUIESCENT : W_OFFLINE);
	case W_OFFLINE:
		if (!drained(s, me) && w->omission != SLEEP_ONLINE)
			return false;
		if (w->omission != SLEEP_ONLINE)
			s->memory[READER0 + me] = 0;
		r[SLEPT_WITH] = r[HELD];
		r[HELD] = 0;
		return go(s, me, W_EPOLL);
	case W_EPOLL:
		/* The kernel's lock of the set. POLLED_SLEEP_MS: may end without an event. */
		if (!drained(s, me) || (!s->memory[EPOLL0 + me] && !(w->polled && w->omission != POLLED_FOREVER)))
			return false;
		s->memory[EPOLL0 + me] = 0;
		r[SLEPT_WITH] = 0;
		return go(s, me, W_ONLINE);
	case W_ONLINE:
		s->memory[READER0 + me] = s->memory[GRACE];
		return go(s, me, W_PLAN);
	case W_QUIESCENT:
		return quiescent(w, s, me);
	}
	return false;
}

static bool is_asleep(const struct state *s, unsigned worker)
{
	return s->t[worker].pc == W_EPOLL && !s->memory[EPOLL0 + worker] && drained(s, worker);
}

static void raise_event(const struct world *w, struct state *s, unsigned worker, uint8_t event)
{
	if (w->omission != EVENTS_FORGOTTEN || s->t[worker].pc == W_EPOLL)
		s->memory[EPOLL0 + worker] |= event;
}

#endif
