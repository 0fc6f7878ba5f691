/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Grace periods between control and workers: liburcu, QSBR flavour, with the order that it guarantees spelled out for
 * ThreadSanitizer, which cannot see the barriers inside a library that it did not build.
 */
#ifndef VHOSTLANE_DATAPATH_GRACE_H
#define VHOSTLANE_DATAPATH_GRACE_H

#include <urcu-qsbr.h>

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define GRACE_TSAN
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define GRACE_TSAN
#endif

/* An address for the annotations; never read or written. */
extern char grace_order;

#ifdef GRACE_TSAN
#include <sanitizer/tsan_interface.h>
#define GRACE_RELEASE() __tsan_release(&grace_order)
#define GRACE_ACQUIRE() __tsan_acquire(&grace_order)
#else
#define GRACE_RELEASE() ((void)0)
#define GRACE_ACQUIRE() ((void)0)
#endif

/* Worker: nothing read before this call is used after it. Once per round. */
static inline void grace_quiescent(void)
{
	GRACE_RELEASE();
	urcu_qsbr_quiescent_state();
	GRACE_ACQUIRE();
}

/* Worker: out of control's way while it sleeps. */
static inline void grace_offline(void)
{
	GRACE_RELEASE();
	urcu_qsbr_thread_offline();
}

static inline void grace_online(void)
{
	urcu_qsbr_thread_online();
	GRACE_ACQUIRE();
}

/* Control (not a registered thread): returns when every worker has been quiescent or asleep since the call. */
static inline void grace_wait(void)
{
	GRACE_RELEASE();
	urcu_qsbr_synchronize_rcu();
	GRACE_ACQUIRE();
}

#endif
