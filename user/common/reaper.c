/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A list under a mutex, and a detached thread that lives while there is work. The thread may be stuck in the kernel when the
 * owner lets go; therefore owner and thread each hold a reference, and the last one frees.
 */
#include "common/reaper.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/util.h"

#define THREAD_LINGER_S 1	   /* without work, then the thread ends */
#define THREAD_STACK (128 * 1024u) /* it calls the kernel and little else */

struct work {
	struct work *next;
	void (*act)(void *argument); /* NULL: close fd */
	void *argument;
	int fd;
};

struct reaper {
	pthread_mutex_t lock; /* held for moments only, never around work */
	pthread_cond_t news;  /* work came, or the owner let go */
	struct work *first, **end;
	unsigned backlog;  /* the work at hand included */
	uint64_t began_ns; /* the work at hand; 0 = none */
	bool threaded;	   /* there is a thread */
	bool owned;
};

struct reaper *reaper_create(void)
{
	struct reaper *reaper = calloc(1, sizeof(*reaper));
	pthread_condattr_t attributes;

	if (!reaper)
		return NULL;
	pthread_mutex_init(&reaper->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&reaper->news, &attributes);
	pthread_condattr_destroy(&attributes);
	reaper->end = &reaper->first;
	reaper->owned = true;
	return reaper;
}

/* With the lock, which it gives up. */
static void unlock_and_free(struct reaper *reaper)
{
	const bool last = !reaper->owned && !reaper->threaded;

	pthread_mutex_unlock(&reaper->lock);
	if (!last)
		return;
	pthread_cond_destroy(&reaper->news);
	pthread_mutex_destroy(&reaper->lock);
	free(reaper);
}

static void work_do(const struct work *work)
{
	if (work->act)
		work->act(work->argument);
	else
		close(work->fd);
}

static struct timespec monotonic_in(uint64_t ns)
{
	const uint64_t at = now_ns() + ns;

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u) };
}

/* --- the thread ------------------------------------------------------------------------------------------------------ */

/* With the lock. Return: false if there was nothing for a while, or nobody will bring more. */
static bool wait_for_work(struct reaper *reaper)
{
	const struct timespec until = monotonic_in(THREAD_LINGER_S * 1000000000ull);

	while (!reaper->first && reaper->owned)
		if (pthread_cond_timedwait(&reaper->news, &reaper->lock, &until))
			break;
	return reaper->first;
}

static void *reap(void *context)
{
	struct reaper *reaper = context;

	pthread_setname_np(pthread_self(), "vhostlane-reap");
	pthread_mutex_lock(&reaper->lock);
	while (wait_for_work(reaper)) {
		struct work *work = reaper->first;

		reaper->first = work->next;
		if (!reaper->first)
			reaper->end = &reaper->first;
		reaper->began_ns = now_ns();
		pthread_mutex_unlock(&reaper->lock);
		work_do(work);
		free(work);
		pthread_mutex_lock(&reaper->lock);
		reaper->began_ns = 0;
		reaper->backlog--;
	}
	reaper->threaded = false;
	unlock_and_free(reaper);
	return NULL;
}

/* With the lock. Where no thread can be had, the work waits until one can: done here it could stop the caller for ever. */
static void need_thread(struct reaper *reaper)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	pthread_t thread;

	if (reaper->threaded || !reaper->first)
		return;
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, THREAD_STACK);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	reaper->threaded = !pthread_create(&thread, &attributes, reap, reaper);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
}

/* --- the owner ------------------------------------------------------------------------------------------------------- */

static void hand_over(struct reaper *reaper, const struct work *what)
{
	struct work *work = reaper ? malloc(sizeof(*work)) : NULL;

	if (!work) {
		work_do(what);
		return;
	}
	*work = *what;
	pthread_mutex_lock(&reaper->lock);
	*reaper->end = work;
	reaper->end = &work->next;
	reaper->backlog++;
	need_thread(reaper);
	pthread_cond_signal(&reaper->news);
	pthread_mutex_unlock(&reaper->lock);
}

void reaper_do(struct reaper *reaper, void (*act)(void *argument), void *argument)
{
	hand_over(reaper, &(struct work){ .act = act, .argument = argument });
}

void reaper_close(struct reaper *reaper, int fd)
{
	if (fd >= 0)
		hand_over(reaper, &(struct work){ .fd = fd });
}

unsigned reaper_backlog(struct reaper *reaper)
{
	unsigned backlog;

	if (!reaper)
		return 0;
	pthread_mutex_lock(&reaper->lock);
	need_thread(reaper);
	backlog = reaper->backlog;
	pthread_mutex_unlock(&reaper->lock);
	return backlog;
}

uint64_t reaper_stuck_ns(struct reaper *reaper)
{
	uint64_t began;

	if (!reaper)
		return 0;
	pthread_mutex_lock(&reaper->lock);
	began = reaper->began_ns;
	pthread_mutex_unlock(&reaper->lock);
	return began ? now_ns() - began : 0;
}

void reaper_free(struct reaper *reaper)
{
	if (!reaper)
		return;
	pthread_mutex_lock(&reaper->lock);
	need_thread(reaper);
	reaper->owned = false;
	pthread_cond_signal(&reaper->news);
	unlock_and_free(reaper);
}

bool fd_is_eventfd(int fd)
{
	static const char wanted[] = "anon_inode:[eventfd]";
	char path[32], target[sizeof(wanted)];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof(target));
	return length == sizeof(wanted) - 1 && !memcmp(target, wanted, sizeof(wanted) - 1);
}
