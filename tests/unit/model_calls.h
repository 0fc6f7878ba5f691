/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The world of the sleep model (test_sleep_model.c) in which the device calls: two workers fill one to_guest ring under its lock, or one
 * gives back the entries of a from_guest ring without a lock; the driver takes, arms, looks again and sleeps; control exchanges the call
 * descriptor under them. Each step is named after the place in the source that it stands for.
 */
#ifndef VHOSTLANE_TESTS_MODEL_CALLS_H
#define VHOSTLANE_TESTS_MODEL_CALLS_H

#include "model_world.h"

/* Memory. The first five go through store buffers; the others are the kernel's, or written behind full barriers. */
enum {
	USED, CALL_WISH,	/* used->idx; avail->flags (1 = interrupt) or used_event */
	SIGNALLED, VALID, LOCK, /* ring: used_signalled, signalled_valid; to_guest_lock */
	CALL_FD,		/* ring->call_fd: OLD_FD or NEW_FD */
	CALLED,			/* bits: descriptors that were signalled and not read */
	CLOSED,			/* the old one is closed */
};
enum { OLD_FD, NEW_FD };

/* --- worker: worker.c, a round that delivers ------------------------------------------------------------------------- */

#define DEVICE_STEPS(X)                                                                                \
	X(D_NEXT, "worker.c worker_serve(): a round with frames, or ends; quiescent")                  \
	X(D_LOCK, "worker_output.c output_to_guest(): burst_lock()")                                   \
	X(D_INDEX, "ring_split.c ring_publish() of ring_put_done(), ring_take_done(): used->idx (release)") \
	X(D_UNLOCK, "worker_output.c output_to_guest(): burst_unlock()")                               \
	X(D_MORE, "worker.c serve_round(): another burst, or worker_flush_calls()")                    \
	X(D_LOCK_CALL, "worker_calls.c worker_flush_calls(): burst_lock(); ring_call(): anything new?") \
	X(D_FENCE, "ring_split.c ring_call(): full_barrier()")                                         \
	X(D_WISH, "ring_split.c call_wanted()")                                                        \
	X(D_FD, "ring_split.c ring_call(): call_fd (acquire)")                                         \
	X(D_CALL, "ring_split.c ring_call_write(): write()")                                           \
	X(D_UNLOCK_CALL, "worker_calls.c worker_flush_calls(): burst_unlock()")                        \
	X(D_END, "worker: end")
enum { DEVICE_STEPS(STEP_ENUM) };
static const char *const device_labels[] = { DEVICE_STEPS(STEP_TEXT) };

enum { PUTS, EARLY_WISH, FD }; /* registers */

static bool lock(struct state *s, unsigned me)
{
	if (!drained(s, me) || s->memory[LOCK])
		return false;
	s->memory[LOCK] = 1;
	return true;
}

static unsigned after_call(const struct world *w)
{
	return w->from_guest ? D_NEXT : D_UNLOCK_CALL;
}

static bool call_wanted(const struct world *w, struct state *s, unsigned me)
{
	const uint8_t now = load(s, me, USED), old = load(s, me, SIGNALLED);
	const uint8_t wish = w->omission == CALL_BEFORE_INDEX ? s->t[me].r[EARLY_WISH] : load(s, me, CALL_WISH);
	const bool valid = load(s, me, VALID);
	bool wanted = wish;

	if (w->event_index)
		wanted = !valid || need_event(wish, now, old);
	return store(s, me, SIGNALLED, now) && store(s, me, VALID, 1) && go(s, me, wanted ? D_FD : after_call(w));
}

static bool begin_burst(const struct world *w, struct state *s, unsigned me)
{
	uint8_t *r = s->t[me].r;

	r[PUTS]++;
	r[EARLY_WISH] = w->omission == CALL_BEFORE_INDEX ? load(s, me, CALL_WISH) : 0;
	return go(s, me, D_INDEX);
}

static bool device(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;

	if (choice > 1 || (choice && s->t[me].pc != D_NEXT && s->t[me].pc != D_MORE))
		return false;
	switch (s->t[me].pc) {
	case D_NEXT:
		if (!choice)
			return (!w->must_put || r[PUTS] || (w->from_guest && me)) && go(s, me, D_END);
		if (r[PUTS] == w->puts || (w->from_guest && me))
			return false;
		return w->from_guest ? begin_burst(w, s, me) : go(s, me, D_LOCK);
	case D_LOCK:
		return lock(s, me) && begin_burst(w, s, me);
	case D_INDEX:
		return store(s, me, USED, (uint8_t)(load(s, me, USED) + 1)) && go(s, me, w->from_guest ? D_FENCE : D_UNLOCK);
	case D_UNLOCK:
		return store(s, me, LOCK, 0) && go(s, me, D_MORE);
	case D_MORE:
		return choice ? r[PUTS] < w->puts && go(s, me, D_LOCK) : go(s, me, D_LOCK_CALL);
	case D_LOCK_CALL:
		return lock(s, me) && go(s, me, load(s, me, SIGNALLED) == load(s, me, USED) ? D_UNLOCK_CALL : D_FENCE);
	case D_FENCE:
		return (w->omission == NO_CALL_FENCE || drained(s, me)) && go(s, me, D_WISH);
	case D_WISH:
		return call_wanted(w, s, me);
	case D_FD:
		r[FD] = s->memory[CALL_FD];
		return go(s, me, D_CALL);
	case D_CALL:
		if (!drained(s, me))
			return false;
		if (r[FD] == OLD_FD && s->memory[CLOSED])
			return interleave_break(s);
		s->memory[CALLED] |= (uint8_t)(1 << r[FD]);
		r[FD] = 0;
		return go(s, me, after_call(w));
	case D_UNLOCK_CALL:
		return store(s, me, LOCK, 0) && go(s, me, D_NEXT);
	}
	return false;
}

/* --- driver: interrupt, poll, virtqueue_enable_cb() ------------------------------------------------------------------- */

#define DRIVER_STEPS(X)                                                                                \
	X(V_TAKE, "driver: takes what is used")                                                        \
	X(V_ARM, "driver: wish for a call: avail->flags or used_event")                                \
	X(V_FENCE, "driver: full barrier (virtio 1.2, 2.7.14)")                                        \
	X(V_LOOK, "driver: looks at used->idx again")                                                  \
	X(V_SLEEP, "driver: sleeps until called")                                                      \
	X(V_DISARM, "driver: awake; no calls wanted")
enum { DRIVER_STEPS(STEP_ENUM) };
static const char *const driver_labels[] = { DRIVER_STEPS(STEP_TEXT) };

enum { TAKEN }; /* register: used index up to which it took */

/* A frontend that exchanges the descriptor listens to the new one from then on. */
static uint8_t call_bit(const struct world *w)
{
	return (uint8_t)(1 << (w->changes_call ? NEW_FD : OLD_FD));
}

static bool driver(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;

	if (choice)
		return false;
	switch (s->t[me].pc) {
	case V_TAKE:
		r[TAKEN] = load(s, me, USED);
		return go(s, me, V_ARM);
	case V_ARM:
		return store(s, me, CALL_WISH, w->event_index ? r[TAKEN] : 1) && go(s, me, V_FENCE);
	case V_FENCE:
		return (w->omission == NO_DRIVER_FENCE || drained(s, me)) && go(s, me, w->omission == NO_DRIVER_LOOK ? V_SLEEP : V_LOOK);
	case V_LOOK:
		return go(s, me, load(s, me, USED) != r[TAKEN] ? V_DISARM : V_SLEEP);
	case V_SLEEP:
		if (!drained(s, me) || !(s->memory[CALLED] & call_bit(w)))
			return false;
		s->memory[CALLED] &= (uint8_t)~call_bit(w);
		return go(s, me, V_DISARM);
	case V_DISARM:
		return (w->event_index || store(s, me, CALL_WISH, 0)) && go(s, me, V_TAKE);
	}
	return false;
}

/* --- control: vhost_user_rings.c, ring_set_call() --------------------------------------------------------------------- */

#define CHANGE_STEPS(X)                                                                                \
	X(K_EXCHANGE, "vhost_user_rings.c ring_set_call(): call_fd exchanged")                         \
	X(K_GRACE, "vhost_user_rings.c ring_set_call(): synchronize(): a worker was quiescent")        \
	X(K_CLOSE, "vhost_user_rings.c ring_set_call(): close(old)")                                   \
	X(K_SIGNAL, "vhost_user_rings.c ring_set_call(): signal_eventfd(new)")                         \
	X(K_END, "control: end")
enum { CHANGE_STEPS(STEP_ENUM) };
static const char *const change_labels[] = { CHANGE_STEPS(STEP_TEXT) };

/* Register: workers that were quiescent since the exchange. How a grace period comes about is world "move"'s matter. */
enum { WERE_QUIESCENT };

static bool change(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;

	if (choice > 1 || (choice && s->t[me].pc != K_GRACE))
		return false;
	switch (s->t[me].pc) {
	case K_EXCHANGE:
		s->memory[CALL_FD] = NEW_FD;
		return go(s, me, w->omission == NO_GRACE_AT_CHANGE ? K_CLOSE : K_GRACE);
	case K_GRACE:
		if ((s->t[choice].pc != D_NEXT && s->t[choice].pc != D_END) || r[WERE_QUIESCENT] >> choice & 1)
			return false;
		r[WERE_QUIESCENT] |= (uint8_t)(1 << choice);
		return go(s, me, r[WERE_QUIESCENT] == 3 ? K_CLOSE : K_GRACE);
	case K_CLOSE:
		s->memory[CLOSED] = 1;
		return go(s, me, w->omission == NO_SIGNAL_AT_CHANGE ? K_END : K_SIGNAL);
	case K_SIGNAL:
		s->memory[CALLED] |= 1 << NEW_FD;
		return go(s, me, K_END);
	}
	return false;
}

/* --- the world ------------------------------------------------------------------------------------------------------- */

static bool step_call(const void *context, struct state *s, unsigned thread, unsigned choice)
{
	static const program programs[] = { device, device, driver, change };

	return programs[thread](context, s, thread, choice);
}

static bool settled_call(const void *context, const struct state *s)
{
	return s->t[0].pc == D_END && s->t[1].pc == D_END && s->t[2].pc == V_SLEEP && s->t[3].pc == K_END && drained(s, 0) && drained(s, 1) &&
	       drained(s, 2) && !(s->memory[CALLED] & call_bit(context)) && s->t[2].r[TAKEN] == s->memory[USED];
}

static const char *label_call(const void *context, unsigned thread, unsigned pc)
{
	static const char *const *const labels[] = { device_labels, device_labels, driver_labels, change_labels };

	return labels[thread][pc];
}

/* As ring_start() leaves it. The driver is about to look, or sleeps over an entry for which its late device never called. */
static struct result run_call(const struct world *w, bool aloud)
{
	const struct program_set p = { 4, step_call, settled_call, label_call, w };
	const bool lost = w->start != FRESH;
	struct state s = { 0 };

	s.memory[USED] = s.memory[SIGNALLED] = lost ? BASE + 1 : BASE;
	s.memory[VALID] = w->omission == FIRST_CALL_JUDGED;
	s.memory[CALL_WISH] = w->event_index ? BASE : 1;
	s.memory[CALLED] = w->start == CALL_LOST_SIGNALLED ? call_bit(w) : 0;
	s.t[2].pc = lost ? V_SLEEP : V_TAKE;
	s.t[2].r[TAKEN] = BASE;
	s.t[3].pc = w->changes_call ? K_EXCHANGE : K_END;
	return explore(&p, &s, aloud);
}

#endif
