/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A spinlock for work of one burst: short, seldom contended. Its holder is a worker that may be preempted on a crowded CPU, so
 * a waiter spins for a while and then yields. Lock order: a queue's lock (lane), then the pool's lock (frame_pool).
 */
#ifndef VHOSTLANE_DATAPATH_BURST_LOCK_H
#define VHOSTLANE_DATAPATH_BURST_LOCK_H

#include <ck_spinlock.h>
#include <sched.h>
#include <stdbool.h>

#define BURST_LOCK_SPINS 512 /* pauses before the first yield: about 10 us, more than an undisturbed holder needs */

/* libck's locks are inline assembly, which ThreadSanitizer cannot see: tell it. */
#ifdef __SANITIZE_THREAD__
#define BURST_LOCK_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BURST_LOCK_TSAN 1
#endif
#endif
#ifdef BURST_LOCK_TSAN
#include <sanitizer/tsan_interface.h>
#define burst_lock_acquired(lock) __tsan_acquire(lock)
#define burst_lock_releasing(lock) __tsan_release(lock)
#else
#define burst_lock_acquired(lock) ((void)(lock))
#define burst_lock_releasing(lock) ((void)(lock))
#endif

static inline bool burst_trylock(ck_spinlock_t *lock)
{
	if (ck_spinlock_locked(lock) || !ck_spinlock_trylock(lock))
		return false;
	burst_lock_acquired(lock);
	return true;
}

static inline void burst_lock(ck_spinlock_t *lock)
{
	unsigned spins = 0;

	while (!burst_trylock(lock)) {
		if (++spins < BURST_LOCK_SPINS)
			ck_pr_stall();
		else
			sched_yield();
	}
}

static inline void burst_unlock(ck_spinlock_t *lock)
{
	burst_lock_releasing(lock);
	ck_spinlock_unlock(lock);
}

#endif
