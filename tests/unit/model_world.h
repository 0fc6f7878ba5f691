/* SPDX-License-Identifier: BSD-2-Clause */
/* What the worlds of the sleep model (test_sleep_model.c) have in common: what may be left out, and how large they are. */
#ifndef VHOSTLANE_TESTS_MODEL_WORLD_H
#define VHOSTLANE_TESTS_MODEL_WORLD_H

#include "interleave.h"

#define BASE 254 /* of all ring indices: 255 -> 0 is passed */

/* What is left out or turned round, to see that it is missed. */
#define OMISSIONS(X)                                                                                       \
	X(NOTHING, "nothing")                                                                              \
	/* worker */                                                                                       \
	X(NO_ARM, "ring_arm() writes no wish")                                                             \
	X(NO_ARM_FENCE, "ring_arm() without full_barrier()")                                               \
	X(NO_SECOND_LOOK, "ring_arm() does not look again")                                                \
	X(LOOK_BEFORE_ARM, "ring_arm() looks, then writes its wish")                                       \
	X(NO_LANE_LOOK, "may_sleep() without lane_pending()")                                              \
	X(NO_PLAN_LOOK, "may_sleep() does not look what control published")                                \
	X(POLLED_FOREVER, "a pair without kick descriptor, and a sleep without end")                       \
	X(SLEEP_ONLINE, "sleep without grace_offline()")                                                   \
	X(QUIESCENT_UNFENCED, "grace_quiescent() before others see what was stored")                       \
	/* guest, kernel */                                                                                \
	X(NO_GUEST_FENCE, "the guest's index and its look at the wish without a barrier between")          \
	X(WISH_BEFORE_INDEX, "the guest reads the wish, then publishes")                                   \
	X(LANE_WAKE_FIRST, "the lane wakes before the frame is there")                                     \
	X(EVENTS_FORGOTTEN, "epoll forgets what happens while nobody waits")                               \
	X(ADD_FORGETS, "EPOLL_CTL_ADD of a ready descriptor tells nothing")                                \
	/* control */                                                                                      \
	X(NO_WAKE, "no worker_wake()")                                                                     \
	X(WAKE_FIRST, "worker_wake(), then the plan")                                                      \
	X(NO_WATCH, "the new owner does not watch the kick descriptor")                                    \
	X(WATCH_LATE, "watched after the plan is published")                                               \
	X(WATCH_LATE_ADD_FORGETS, "watched after the plan, and EPOLL_CTL_ADD tells nothing")               \
	X(NO_GRACE, "no grace period between the owners")                                                  \
	X(NO_GAP, "from owner to owner in one plan")                                                       \
	/* calls */                                                                                        \
	X(NO_CALL_FENCE, "ring_call() without full_barrier()")                                             \
	X(CALL_BEFORE_INDEX, "the wish for calls is read before the used index is published")              \
	X(NO_DRIVER_FENCE, "the driver's wish and its second look without a barrier between")              \
	X(NO_DRIVER_LOOK, "the driver does not look again")                                                \
	X(NO_SIGNAL_AT_CHANGE, "ring_set_call() does not signal the new descriptor")                       \
	X(NO_GRACE_AT_CHANGE, "ring_set_call() closes the old descriptor at once")                         \
	X(FIRST_CALL_JUDGED, "ring_start() with signalled_valid: what the guest was told is believed known")

enum omission {
#define OMISSION_ENUM(name, text) name,
	OMISSIONS(OMISSION_ENUM)
#undef OMISSION_ENUM
	OMISSION_COUNT
};

/* How a to_guest or from_guest ring is taken over from a device that was killed after it published and before it called. */
enum start { FRESH, CALL_LOST, CALL_LOST_SIGNALLED /* and ring_start() is followed by a call */ };

struct world {
	bool event_index;
	enum omission omission;
	/* kicks */
	bool moves;		/* world "move", else "sleep" */
	bool polled;		/* the guest gave no kick descriptor */
	unsigned buffers;	/* that the guest gives, at most */
	unsigned lane_frames;	/* at most */
	bool publishes, drains; /* control may */
	/* calls */
	bool from_guest; /* used entries of a from_guest ring: one worker, no lock */
	unsigned puts;	 /* bursts of each worker, at most */
	bool must_put;	 /* and at least one */
	bool changes_call;
	enum start start;
};

typedef bool (*program)(const struct world *w, struct state *s, unsigned me, unsigned choice);

#define STEP_ENUM(name, text) name,
#define STEP_TEXT(name, text) text,

/* virtio 1.2, 2.7.10.1, with eight bits. */
static inline bool need_event(uint8_t event, uint8_t now, uint8_t old)
{
	return (uint8_t)(now - event - 1) < (uint8_t)(now - old);
}

#endif
