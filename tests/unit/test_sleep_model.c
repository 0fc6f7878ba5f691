/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * That no wake-up is lost: the protocols by which a worker, a guest's driver, the kernel's AF_XDP and the control thread tell each other of
 * work, in every interleaving, on a machine with store buffers (interleave.h).
 *
 * Three worlds, each with flags and with the event index (virtio 1.2, 2.7.7 to 2.7.10):
 *   sleep   worker, guest, lane, control: kicks, frames, a new plan, a drain request, against arm - look - sleep
 *   move    two workers, guest, control: a queue pair leaves one and goes to the other (publisher.c, carry_out())
 *   call    two workers that fill one to_guest ring, driver, control: calls, and a new call descriptor
 *
 * Each step (model_worker.h, model_kicks.h, model_calls.h) is named after the place in the source that it stands for; a counterexample is
 * told in these words. What is left out: whatever takes no part in telling others (copying, switching, counters), and of a move what keeps
 * frames in order (worker_hold_lanes(); a held worker does not sleep). What is simplified: time (a busy-poll window ends whenever it
 * likes), indices of eight bits (255 -> 0 is passed in every run), an epoll set is a bit a kind of descriptor.
 * epoll is edge-triggered: an event stays pending until epoll_wait() has told it, whether the worker slept or not; a descriptor
 * that is ready when it is added is pending at once. Eventfds are never read by workers, so a kick descriptor that was ever
 * written is ready.
 *
 * That the models can fail is a test of its own: each fence, second look and wake-up is taken away in turn (model_world.h, OMISSIONS), and
 * must be missed. Some are not: two looks of may_sleep() only spare a sleep that would end at once; a kick descriptor that changes
 * owners is kept safe in two ways; a lock is a barrier. That is asserted, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/util.h"
#include "model_calls.h"
#include "model_kicks.h"

static const char *const omission_texts[] = {
#define OMISSION_TEXT(name, text) [name] = text,
	OMISSIONS(OMISSION_TEXT)
#undef OMISSION_TEXT
};
static const char *const verdict_texts[] = { [HOLDS] = "holds", [BROKEN] = "breaks a rule", [STUCK] = "gets stuck" };

typedef struct result (*run)(const struct world *w, bool aloud);

static void must_hold(run run_world, const char *name, struct world w)
{
	for (unsigned event_index = 0; event_index < 2; event_index++) {
		struct result result;

		w.event_index = event_index;
		result = run_world(&w, false);
		print_message("%s, %s, %s: %s, %u states\n", name, event_index ? "event index" : "flags", omission_texts[w.omission],
			      verdict_texts[result.verdict], result.states);
		if (result.verdict != HOLDS) {
			run_world(&w, true);
			fail_msg("%s: %s", name, verdict_texts[result.verdict]);
		}
	}
}

enum when { FLAGS = 1, EVENTS = 2, BOTH = 3 };

struct missed {
	enum omission omission;
	enum verdict verdict;
	enum when when; /* where it is missed */
};

/* What was left out must be missed, in the way that is expected. */
static void must_fail(run run_world, const char *name, struct world w, const struct missed *missed, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		for (unsigned event_index = 0; event_index < 2; event_index++) {
			struct result result;

			if (!(missed[i].when >> event_index & 1))
				continue;
			w.event_index = event_index;
			w.omission = missed[i].omission;
			result = run_world(&w, false);
			print_message("%s, %s, %s: %s in %u steps\n", name, event_index ? "event index" : "flags", omission_texts[w.omission],
				      verdict_texts[result.verdict], result.steps);
			if (result.verdict != missed[i].verdict)
				fail_msg("%s, %s: %s, and should not", name, omission_texts[w.omission], verdict_texts[result.verdict]);
		}
}

/* --- sleep ---------------------------------------------------------------------------------------------------------- */

/* Each kind of news against the guest's kicks, and all at once but smaller. */
static const struct world kicks = { .buffers = 4 };
static const struct world kicks_and_frames = { .buffers = 2, .lane_frames = 2 };
static const struct world kicks_and_news = { .buffers = 2, .publishes = true, .drains = true };
static const struct world all_at_once = { .buffers = 1, .lane_frames = 1, .publishes = true, .drains = true };

static void sleep_holds(void **state)
{
	must_hold(run_sleep, "kicks", kicks);
	must_hold(run_sleep, "kicks and frames", kicks_and_frames);
	must_hold(run_sleep, "kicks and news", kicks_and_news);
	must_hold(run_sleep, "all at once", all_at_once);
	must_hold(run_sleep, "polled", (struct world){ .buffers = 3, .lane_frames = 1, .polled = true });
}

static void sleep_misses(void **state)
{
	static const struct missed of_kicks[] = {
		{ NO_ARM, STUCK, BOTH },	 { NO_ARM_FENCE, STUCK, BOTH },	  { NO_SECOND_LOOK, STUCK, BOTH },
		{ LOOK_BEFORE_ARM, STUCK, BOTH }, { NO_GUEST_FENCE, STUCK, BOTH }, { WISH_BEFORE_INDEX, STUCK, BOTH },
		{ EVENTS_FORGOTTEN, STUCK, BOTH },
	};
	static const struct missed of_frames[] = { { LANE_WAKE_FIRST, STUCK, BOTH }, { EVENTS_FORGOTTEN, STUCK, BOTH } };
	static const struct missed of_news[] = { { NO_WAKE, STUCK, BOTH }, { WAKE_FIRST, STUCK, BOTH }, { EVENTS_FORGOTTEN, STUCK, BOTH } };
	static const struct missed of_polled[] = { { POLLED_FOREVER, STUCK, BOTH } };

	must_fail(run_sleep, "kicks", kicks, of_kicks, ARRAY_SIZE(of_kicks));
	must_fail(run_sleep, "frames", (struct world){ .lane_frames = 2 }, of_frames, ARRAY_SIZE(of_frames));
	must_fail(run_sleep, "news", (struct world){ .publishes = true, .drains = true }, of_news, ARRAY_SIZE(of_news));
	must_fail(run_sleep, "polled", (struct world){ .buffers = 2, .polled = true }, of_polled, ARRAY_SIZE(of_polled));
}

/* Events stay pending: these two only spare a sleep that would end at once. */
static void looks_that_only_spare_a_sleep(void **state)
{
	struct world w = all_at_once;

	w.omission = NO_LANE_LOOK;
	must_hold(run_sleep, "all at once", w);
	w.omission = NO_PLAN_LOOK;
	must_hold(run_sleep, "all at once", w);
}

/* --- move ----------------------------------------------------------------------------------------------------------- */

static const struct world move = { .moves = true, .buffers = 2 };
static const struct world small_move = { .moves = true, .buffers = 1 };

static void move_holds(void **state)
{
	must_hold(run_move, "move", move);
}

static void move_misses(void **state)
{
	static const struct missed missed[] = {
		{ NO_WAKE, STUCK, BOTH },	   { NO_WATCH, STUCK, BOTH },	   { NO_GRACE, BROKEN, BOTH },
		{ NO_GAP, BROKEN, BOTH },	   { SLEEP_ONLINE, STUCK, BOTH },  { QUIESCENT_UNFENCED, BROKEN, BOTH },
		{ WATCH_LATE_ADD_FORGETS, STUCK, BOTH }, { NO_ARM_FENCE, STUCK, FLAGS }, { NO_SECOND_LOOK, STUCK, FLAGS },
		{ EVENTS_FORGOTTEN, STUCK, BOTH },
	};
	/* The first buffer is kicked for in any case: ring_start() left the event index there. */
	static const struct missed at_second_buffer[] = { { NO_ARM_FENCE, STUCK, EVENTS }, { NO_SECOND_LOOK, STUCK, EVENTS } };

	must_fail(run_move, "move", small_move, missed, ARRAY_SIZE(missed));
	must_fail(run_move, "move", move, at_second_buffer, ARRAY_SIZE(at_second_buffer));
}

/* Two safeguards: watched before the plan, and EPOLL_CTL_ADD tells what is ready. Either is enough. */
static void either_safeguard_is_enough(void **state)
{
	struct world w = small_move;

	w.omission = ADD_FORGETS;
	must_hold(run_move, "move", w);
	w.omission = WATCH_LATE;
	must_hold(run_move, "move", w);
}

/* --- call ----------------------------------------------------------------------------------------------------------- */

static const struct world call_to_guest = { .puts = 2 };
static const struct world call_from_guest = { .puts = 4, .from_guest = true };
static const struct world change_of_call = { .puts = 1, .changes_call = true };

static void call_holds(void **state)
{
	must_hold(run_call, "call, to_guest", call_to_guest);
	must_hold(run_call, "call, from_guest", call_from_guest);
	must_hold(run_call, "change of the call descriptor", change_of_call);
}

/* A lock is taken between index and wish, by an instruction that is a full barrier: on this machine, to_guest would do without another. */
static void lock_is_a_fence(void **state)
{
	struct world w = call_to_guest;

	w.omission = NO_CALL_FENCE;
	must_hold(run_call, "call, to_guest", w);
}

static void call_misses(void **state)
{
	static const struct missed of_calls[] = {
		{ CALL_BEFORE_INDEX, STUCK, BOTH },
		{ NO_DRIVER_FENCE, STUCK, BOTH },
		{ NO_DRIVER_LOOK, STUCK, BOTH },
	};
	static const struct missed of_the_fence[] = { { NO_CALL_FENCE, STUCK, BOTH } };
	static const struct missed of_changes[] = { { NO_SIGNAL_AT_CHANGE, STUCK, BOTH }, { NO_GRACE_AT_CHANGE, BROKEN, BOTH } };

	must_fail(run_call, "call, to_guest", call_to_guest, of_calls, ARRAY_SIZE(of_calls));
	must_fail(run_call, "call, from_guest", call_from_guest, of_calls, ARRAY_SIZE(of_calls));
	must_fail(run_call, "call, from_guest", call_from_guest, of_the_fence, ARRAY_SIZE(of_the_fence));
	must_fail(run_call, "change of the call descriptor", change_of_call, of_changes, ARRAY_SIZE(of_changes));
}

/*
 * A device was killed between used->idx and its call; its successor takes the ring over while the driver sleeps. The first call after
 * ring_start() is given whatever the driver's event index says, so the driver wakes with the next entry; but where no next entry comes (a
 * full from_guest ring: all its entries are used, the driver waits for them) only a call at the start itself wakes it.
 */
static void call_after_takeover(void **state)
{
	static const struct missed judged[] = { { FIRST_CALL_JUDGED, STUCK, EVENTS } };
	static const struct missed nothing_comes[] = { { NOTHING, STUCK, BOTH } };
	struct world w = { .puts = 1, .must_put = true, .start = CALL_LOST };

	must_hold(run_call, "takeover, an entry follows", w);
	must_fail(run_call, "takeover, an entry follows", w, judged, ARRAY_SIZE(judged));
	w.must_put = false;
	must_fail(run_call, "takeover, perhaps no entry follows, no call at start", w, nothing_comes, ARRAY_SIZE(nothing_comes));
	w.start = CALL_LOST_SIGNALLED;
	must_hold(run_call, "takeover, perhaps no entry follows", w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sleep_holds),
		cmocka_unit_test(sleep_misses),
		cmocka_unit_test(looks_that_only_spare_a_sleep),
		cmocka_unit_test(move_holds),
		cmocka_unit_test(move_misses),
		cmocka_unit_test(either_safeguard_is_enough),
		cmocka_unit_test(call_holds),
		cmocka_unit_test(lock_is_a_fence),
		cmocka_unit_test(call_misses),
		cmocka_unit_test(call_after_takeover),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
