/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_NS 5000000	       /* while a worker runs */
#define LOOK_IDLE_NS 100000000 /* while all sleep */

struct watchdog {
	pthread_t thread;
	struct worker *const *workers;
	unsigned count;
	_Atomic bool stopping;
};

static void *watch(void *argument)
{
	struct watchdog *watchdog = argument;

	pthread_setname_np(pthread_self(), "vhostlane-dog");
	while (!atomic_load(&watchdog->stopping)) {
		struct timespec pause = {0};
		bool awake = false;

		for (unsigned w = 0; w < watchdog->count; w++)
			awake |= worker_watchdog(watchdog->workers[w]);
		pause.tv_nsec = awake ? LOOK_NS : LOOK_IDLE_NS;
		nanosleep(&pause, NULL);
	}
	return NULL;
}

struct watchdog *watchdog_start(struct worker *const *workers, unsigned count, struct error *error)
{
	struct watchdog *watchdog = calloc(1, sizeof(*watchdog));
	sigset_t all, before;
	int result;

	if (!watchdog) {
		error_set(error, -ENOMEM, "watchdog: out of memory; free some memory");
		return NULL;
	}
	watchdog->workers = workers;
	watchdog->count = count;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = pthread_create(&watchdog->thread, NULL, watch, watchdog);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result) {
		error_set(error, -result, "watchdog: cannot start a thread: %s; raise the limit of tasks", strerror(result));
		free(watchdog);
		return NULL;
	}
	return watchdog;
}

void watchdog_stop(struct watchdog *watchdog)
{
	if (!watchdog)
		return;
	atomic_store(&watchdog->stopping, true);
	pthread_join(watchdog->thread, NULL);
	free(watchdog);
}
