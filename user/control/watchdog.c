/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/util.h"

#define LOOK_NS 5000000	       /* while a worker runs */
#define LOOK_IDLE_NS 100000000 /* while all sleep */

struct watchdog {
	pthread_t thread;
	struct worker *const *workers;
	unsigned count;
	pthread_mutex_t lock;
	pthread_cond_t told; /* stopping: not after the pause, for whoever restarts the daemon waits for it */
	bool stopping;
};

/* Return: false if it is to stop. */
static bool pause_for(struct watchdog *watchdog, uint64_t ns)
{
	const uint64_t at = now_ns() + ns;
	const struct timespec until = { .tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u) };
	bool stopping;

	pthread_mutex_lock(&watchdog->lock);
	while (!watchdog->stopping)
		if (pthread_cond_timedwait(&watchdog->told, &watchdog->lock, &until))
			break;
	stopping = watchdog->stopping;
	pthread_mutex_unlock(&watchdog->lock);
	return !stopping;
}

static void *watch(void *argument)
{
	struct watchdog *watchdog = argument;
	bool awake;

	pthread_setname_np(pthread_self(), "vhostlane-dog");
	do {
		awake = false;
		for (unsigned w = 0; w < watchdog->count; w++)
			awake |= worker_watchdog(watchdog->workers[w]);
	} while (pause_for(watchdog, awake ? LOOK_NS : LOOK_IDLE_NS));
	return NULL;
}

static void watchdog_free(struct watchdog *watchdog)
{
	pthread_cond_destroy(&watchdog->told);
	pthread_mutex_destroy(&watchdog->lock);
	free(watchdog);
}

struct watchdog *watchdog_start(struct worker *const *workers, unsigned count, struct error *error)
{
	struct watchdog *watchdog = calloc(1, sizeof(*watchdog));
	pthread_condattr_t attributes;
	sigset_t all, before;
	int result;

	if (!watchdog) {
		error_set(error, -ENOMEM, "watchdog: out of memory; free some memory");
		return NULL;
	}
	watchdog->workers = workers;
	watchdog->count = count;
	pthread_mutex_init(&watchdog->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&watchdog->told, &attributes);
	pthread_condattr_destroy(&attributes);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = pthread_create(&watchdog->thread, NULL, watch, watchdog);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result) {
		error_set(error, -result, "watchdog: cannot start a thread: %s; raise the limit of tasks", strerror(result));
		watchdog_free(watchdog);
		return NULL;
	}
	return watchdog;
}

void watchdog_stop(struct watchdog *watchdog)
{
	if (!watchdog)
		return;
	pthread_mutex_lock(&watchdog->lock);
	watchdog->stopping = true;
	pthread_cond_signal(&watchdog->told);
	pthread_mutex_unlock(&watchdog->lock);
	pthread_join(watchdog->thread, NULL);
	watchdog_free(watchdog);
}
