/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/kick_opener.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "control/kick_probe.h"

struct kick_opener {
	pthread_t thread;
	_Atomic bool done; /* set by the thread, which touches nothing afterwards */
	struct kick_probe *probe;
	struct error why;
};

/* Types of the whole kernel were in this thread's heap, 10 MiB and more, which the C library would keep for it. */
static void give_back(void)
{
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}

static void *open_probe(void *argument)
{
	struct kick_opener *opener = argument;

	pthread_setname_np(pthread_self(), "vhostlane-kick");
	opener->probe = kick_probe_open(&opener->why);
	give_back();
	atomic_store(&opener->done, true);
	return NULL;
}

struct kick_opener *kick_opener_start(struct error *error)
{
	struct kick_opener *opener = calloc(1, sizeof(*opener));
	sigset_t all, before;
	int result;

	if (!opener) {
		error_set(error, -ENOMEM, "the CPU that kicks: out of memory; free some");
		return NULL;
	}
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = pthread_create(&opener->thread, NULL, open_probe, opener);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result) {
		error_set(error, -result, "the CPU that kicks: cannot start a thread: %s; raise the limit of tasks", strerror(result));
		free(opener);
		return NULL;
	}
	return opener;
}

bool kick_opener_take(struct kick_opener *opener, struct kick_probe **probe, struct error *why)
{
	if (!atomic_load(&opener->done))
		return false;
	*probe = opener->probe;
	*why = opener->why;
	opener->probe = NULL;
	return true;
}

void kick_opener_close(struct kick_opener *opener)
{
	if (!opener)
		return;
	pthread_join(opener->thread, NULL);
	kick_probe_close(opener->probe);
	free(opener);
}
