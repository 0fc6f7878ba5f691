/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Those who give a worker something to do in the sleep model (test_sleep_model.c): guest, lane and control; and the worlds "sleep" and
 * "move" that they make together. Each step is named after the place in the source that it stands for.
 */
#ifndef VHOSTLANE_TESTS_MODEL_KICKS_H
#define VHOSTLANE_TESTS_MODEL_KICKS_H

#include "model_worker.h"

/* --- guest: a driver's virtqueue_add(), virtqueue_kick() ------------------------------------------------------------- */

#define GUEST_STEPS(X)                                                                                 \
	X(G_NEXT, "guest: one or two buffers more; avail->idx stored; or ends")                        \
	X(G_FENCE, "guest: full barrier (virtio 1.2, 2.7.13.4.1)")                                     \
	X(G_WISH, "guest: used->flags or avail_event")                                                 \
	X(G_INDEX_LATE, "(turned round) avail->idx stored after the wish was read")                    \
	X(G_KICK, "guest: kick: eventfd signalled, epoll woken")                                       \
	X(G_END, "guest: end")
enum { GUEST_STEPS(STEP_ENUM) };
static const char *const guest_labels[] = { GUEST_STEPS(STEP_TEXT) };

enum { GIVEN, ASKED, WANTED }; /* registers: index after the last buffer; at the last look at the wish */

static bool guest_wish(const struct world *w, struct state *s, unsigned me)
{
	uint8_t *r = s->t[me].r;
	const uint8_t wish = load(s, me, WISH);
	const bool wanted = w->event_index ? need_event(wish, r[GIVEN], r[ASKED]) : wish;

	r[ASKED] = r[GIVEN];
	if (w->omission == WISH_BEFORE_INDEX) {
		r[WANTED] = wanted;
		return go(s, me, G_INDEX_LATE);
	}
	return go(s, me, wanted && !w->polled ? G_KICK : G_NEXT);
}

static bool guest_kick(const struct world *w, struct state *s, unsigned me)
{
	if (!drained(s, me))
		return false;
	s->memory[KICKED] = 1;
	for (unsigned worker = 0; worker < 2; worker++)
		if (s->memory[WATCHED] >> worker & 1)
			raise_event(w, s, worker, EVENT_KICK);
	return go(s, me, G_NEXT);
}

static bool guest(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;

	if (choice && s->t[me].pc != G_NEXT)
		return false;
	switch (s->t[me].pc) {
	case G_NEXT:
		if (!choice)
			return go(s, me, G_END);
		if ((uint8_t)(r[GIVEN] - BASE) + choice > w->buffers)
			return false;
		r[GIVEN] = (uint8_t)(r[GIVEN] + choice);
		if (w->omission == WISH_BEFORE_INDEX)
			return go(s, me, G_WISH);
		return store(s, me, AVAIL, r[GIVEN]) && go(s, me, G_FENCE);
	case G_FENCE:
		return (w->omission == NO_GUEST_FENCE || drained(s, me)) && go(s, me, G_WISH);
	case G_WISH:
		return guest_wish(w, s, me);
	case G_INDEX_LATE:
		return store(s, me, AVAIL, r[GIVEN]) && go(s, me, r[WANTED] ? G_KICK : G_NEXT);
	case G_KICK:
		return guest_kick(w, s, me);
	}
	return false;
}

/* --- lane: the kernel's xsk_rcv(), xsk_flush() ----------------------------------------------------------------------- */

#define LANE_STEPS(X)                                                                                  \
	X(L_NEXT, "kernel: a frame more, or ends")                                                     \
	X(L_INDEX, "kernel: xskq_prod_submit(): producer index (release)")                             \
	X(L_WAKE, "kernel: sock_def_readable(): full barrier, epoll woken")                            \
	X(L_END, "kernel: end")
enum { LANE_STEPS(STEP_ENUM) };
static const char *const lane_labels[] = { LANE_STEPS(STEP_TEXT) };

static bool lane(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;
	const bool turned = w->omission == LANE_WAKE_FIRST;

	if (choice && (s->t[me].pc != L_NEXT || choice > 1))
		return false;
	switch (s->t[me].pc) {
	case L_NEXT:
		if (!choice)
			return go(s, me, L_END);
		if (r[0] == w->lane_frames)
			return false;
		r[0]++;
		return go(s, me, turned ? L_WAKE : L_INDEX);
	case L_INDEX:
		return store(s, me, RX, r[0]) && go(s, me, turned ? L_NEXT : L_WAKE);
	case L_WAKE:
		if (!drained(s, me))
			return false;
		raise_event(w, s, 0, EVENT_LANE);
		return go(s, me, turned ? L_INDEX : L_NEXT);
	}
	return false;
}

/* --- control: publisher.c ------------------------------------------------------------------------------------------- */

#define CONTROL_STEPS(X)                                                                               \
	X(C_NEXT, "control: publishes, asks for a drain, or ends")                                     \
	X(C_WAKE_EARLY, "(turned round) worker_wake() before the plan is there")                       \
	X(C_PUBLISH, "publisher.c publish_plan(): plan stored")                                        \
	X(C_WAKE, "publisher.c publish_plan(): worker_wake(): wake_fd written")                        \
	X(C_GRACE, "publisher.c publish_plan(): grace_wait(): begins")                                 \
	X(C_GRACE_END, "publisher.c publish_plan(): grace_wait(): all were quiescent or offline; plan_free(old)") \
	X(C_DRAIN, "worker_life.c worker_drain_request(): drain_wanted + 1")                           \
	X(C_DRAIN_WAKE, "worker_life.c worker_drain_request(): worker_wake()")                         \
	X(C_DRAIN_END, "publisher_moves.c wait_for(): worker_drained()")                               \
	X(C_UNWATCH, "publisher_moves.c carry_out(): watch_kick(): worker_unwatch_kick() at the old owner") \
	X(C_WATCH, "publisher_moves.c carry_out(): watch_kick(): worker_watch_kick() at the new owner") \
	X(C_END, "control: end")
enum { CONTROL_STEPS(STEP_ENUM) };
static const char *const control_labels[] = { CONTROL_STEPS(STEP_TEXT) };

enum { NEXT_PLAN, PUBLISHED, DRAINED }; /* registers */

static bool has_grace_passed(const struct world *w, const struct state *s)
{
	for (unsigned worker = 0; worker < (w->moves ? 2u : 1u); worker++)
		if (s->memory[READER0 + worker] && s->memory[READER0 + worker] != s->memory[GRACE])
			return false;
	return true;
}

/* publish_plan() wakes those that have a share in the new or the old plan. */
static void wake_shares(const struct world *w, struct state *s, uint8_t plan)
{
	for (unsigned worker = 0; worker < (w->moves ? 2u : 1u); worker++)
		if (owns(w, worker, plan) || owns(w, worker, (uint8_t)(plan - 1)))
			raise_event(w, s, worker, EVENT_CONTROL);
}

/* The steps of publish_plan(), the same for both worlds. */
static bool publish(const struct world *w, struct state *s, unsigned me, unsigned then)
{
	uint8_t *r = s->t[me].r;

	switch (s->t[me].pc) {
	case C_WAKE_EARLY:
		wake_shares(w, s, r[NEXT_PLAN]);
		return go(s, me, C_PUBLISH);
	case C_PUBLISH:
		return store(s, me, PLAN, r[NEXT_PLAN]) && go(s, me, w->omission == WAKE_FIRST ? C_GRACE : C_WAKE);
	case C_WAKE:
		if (!drained(s, me))
			return false;
		/* Taken away where it is needed: at the plan that gives work. */
		if (w->omission != NO_WAKE || (w->moves && r[NEXT_PLAN] == 2))
			wake_shares(w, s, r[NEXT_PLAN]);
		return go(s, me, w->omission == NO_GRACE ? then : C_GRACE);
	case C_GRACE:
		if (!drained(s, me))
			return false;
		s->memory[GRACE]++;
		return go(s, me, C_GRACE_END);
	case C_GRACE_END:
		if (!has_grace_passed(w, s))
			return false;
		s->memory[FREED] = (uint8_t)(r[NEXT_PLAN] - 1);
		return go(s, me, then);
	}
	return false;
}

static bool control_news(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;

	if (choice && s->t[me].pc != C_NEXT)
		return false;
	switch (s->t[me].pc) {
	case C_NEXT:
		if (!choice)
			return go(s, me, C_END);
		if (choice == 1) {
			if (!w->publishes || r[PUBLISHED])
				return false;
			r[PUBLISHED] = 1;
			r[NEXT_PLAN]++;
			return go(s, me, w->omission == WAKE_FIRST ? C_WAKE_EARLY : C_PUBLISH);
		}
		if (!w->drains || r[DRAINED])
			return false;
		r[DRAINED] = 1;
		return go(s, me, C_DRAIN);
	case C_DRAIN:
		s->memory[DRAIN_WANTED]++; /* a locked instruction; nothing waits in the FIFO here */
		return go(s, me, w->omission == NO_WAKE ? C_DRAIN_END : C_DRAIN_WAKE);
	case C_DRAIN_WAKE:
		raise_event(w, s, 0, EVENT_CONTROL);
		return go(s, me, C_DRAIN_END);
	case C_DRAIN_END:
		return s->memory[DRAIN_SEEN] == s->memory[DRAIN_WANTED] && go(s, me, C_NEXT);
	}
	return publish(w, s, me, C_NEXT);
}

static void watch_at_new_owner(const struct world *w, struct state *s)
{
	if (w->omission == NO_WATCH)
		return;
	s->memory[WATCHED] |= 2;
	if (s->memory[KICKED] && w->omission != ADD_FORGETS && w->omission != WATCH_LATE_ADD_FORGETS)
		raise_event(w, s, 1, EVENT_KICK);
}

/* carry_out() without lanes: plan 1 has the pair at worker 0, plan 2 nowhere, plan 3 at worker 1. */
static bool control_move(const struct world *w, struct state *s, unsigned me, unsigned choice)
{
	uint8_t *r = s->t[me].r;
	const bool late = w->omission == WATCH_LATE || w->omission == WATCH_LATE_ADD_FORGETS;
	const unsigned last_plan = w->omission == NO_GAP ? 2 : 3;

	if (choice)
		return false;
	switch (s->t[me].pc) {
	case C_NEXT: /* begins when it likes */
		return go(s, me, C_UNWATCH);
	case C_UNWATCH:
		s->memory[WATCHED] &= 2;
		s->memory[EPOLL0] &= (uint8_t)~EVENT_KICK;
		r[NEXT_PLAN]++;
		if (w->omission == NO_GAP)
			return go(s, me, C_WATCH);
		return go(s, me, C_PUBLISH);
	case C_WATCH:
		watch_at_new_owner(w, s);
		if (late)
			return go(s, me, C_END);
		if (w->omission != NO_GAP)
			r[NEXT_PLAN]++;
		return go(s, me, w->omission == WAKE_FIRST ? C_WAKE_EARLY : C_PUBLISH);
	}
	if (r[NEXT_PLAN] == last_plan)
		return publish(w, s, me, late ? C_WATCH : C_END);
	if (!late)
		return publish(w, s, me, C_WATCH);
	/* The next plan at once, the descriptor after it. */
	if (!publish(w, s, me, C_PUBLISH))
		return false;
	r[NEXT_PLAN] = (uint8_t)(r[NEXT_PLAN] + (s->t[me].pc == C_PUBLISH));
	return true;
}

/* --- the two worlds of workers and kicks ----------------------------------------------------------------------------- */

static bool step_sleep(const void *context, struct state *s, unsigned thread, unsigned choice)
{
	static const program programs[] = { worker, guest, lane, control_news };

	return programs[thread](context, s, thread, choice);
}

static bool settled_sleep(const void *context, const struct state *s)
{
	return is_asleep(s, 0) && s->t[1].pc == G_END && s->t[2].pc == L_END && s->t[3].pc == C_END && drained(s, 1) && drained(s, 2) &&
	       drained(s, 3) && s->memory[LAST] == s->memory[AVAIL] && s->t[0].r[LANE_NEXT] == s->memory[RX] &&
	       s->t[0].r[SLEPT_WITH] == s->memory[PLAN] && s->memory[DRAIN_SEEN] == s->memory[DRAIN_WANTED];
}

static const char *label_sleep(const void *context, unsigned thread, unsigned pc)
{
	static const char *const *const labels[] = { worker_labels, guest_labels, lane_labels, control_labels };

	return labels[thread][pc];
}

static bool step_move(const void *context, struct state *s, unsigned thread, unsigned choice)
{
	static const program programs[] = { worker, worker, guest, control_move };

	return programs[thread](context, s, thread, choice);
}

static bool settled_move(const void *context, const struct state *s)
{
	return is_asleep(s, 0) && is_asleep(s, 1) && s->t[2].pc == G_END && s->t[3].pc == C_END && drained(s, 2) && drained(s, 3) &&
	       s->memory[LAST] == s->memory[AVAIL] && s->t[1].r[SLEPT_WITH] == s->memory[PLAN];
}

static const char *label_move(const void *context, unsigned thread, unsigned pc)
{
	static const char *const *const labels[] = { worker_labels, worker_labels, guest_labels, control_labels };

	return labels[thread][pc];
}

/* Ring started (ring_start(): armed), plan 1 adopted by nobody yet, worker 0 watches the kick descriptor. */
static struct state start_of_kicks(const struct world *w, unsigned guest_thread)
{
	struct state s = { 0 };

	s.memory[AVAIL] = s.memory[LAST] = s.memory[SEEN] = s.memory[SERVED] = BASE;
	s.memory[WISH] = w->event_index ? BASE : 1;
	s.memory[ARMED] = 1;
	s.memory[PLAN] = 1;
	s.memory[GRACE] = s.memory[READER0] = 1;
	s.memory[READER1] = guest_thread == 2 ? 1 : 0;
	s.memory[WATCHED] = w->polled ? 0 : 1;
	s.t[guest_thread].r[GIVEN] = s.t[guest_thread].r[ASKED] = BASE;
	s.t[3].r[NEXT_PLAN] = 1;
	return s;
}

static struct result run_sleep(const struct world *w, bool aloud)
{
	const struct program_set p = { 4, step_sleep, settled_sleep, label_sleep, w };
	const struct state s = start_of_kicks(w, 1);

	return explore(&p, &s, aloud);
}

static struct result run_move(const struct world *w, bool aloud)
{
	const struct program_set p = { 4, step_move, settled_move, label_move, w };
	const struct state s = start_of_kicks(w, 2);

	return explore(&p, &s, aloud);
}

#endif
