// SPDX-License-Identifier: BSD-2-Clause
#include "control/event_loop.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/util.h"

#define EVENTS_PER_WAIT 64

struct event_source {
	struct event_loop *loop;
	struct event_source *next, **link; /* member of loop->sources or loop->removed */
	int fd;
	bool removed;
	event_handler handler; /* NULL: a timer, whose descriptor is the loop's own */
	timer_handler timer;
	void *context;
};

struct event_loop {
	int epoll_fd;
	bool stop;
	struct event_source *sources;
	/* Removed while events that name them may still be in hand; freed between two waits. */
	struct event_source *removed;
};

static void list_push(struct event_source **head, struct event_source *source)
{
	source->next = *head;
	source->link = head;
	if (*head)
		(*head)->link = &source->next;
	*head = source;
}

static void list_take(struct event_source *source)
{
	*source->link = source->next;
	if (source->next)
		source->next->link = source->link;
}

static void free_removed(struct event_loop *loop)
{
	while (loop->removed) {
		struct event_source *source = loop->removed;

		list_take(source);
		free(source);
	}
}

struct event_loop *event_loop_create(struct error *error)
{
	struct event_loop *loop = calloc(1, sizeof(*loop));

	if (!loop) {
		error_set(error, -ENOMEM, "event loop: out of memory; free some memory");
		return NULL;
	}
	loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll_fd < 0) {
		error_set(error, -errno, "event loop: epoll_create1: %s; raise the limit of open files (ulimit -n, LimitNOFILE=)",
			  strerror(errno));
		free(loop);
		return NULL;
	}
	return loop;
}

void event_loop_free(struct event_loop *loop)
{
	if (!loop)
		return;
	while (loop->sources)
		event_source_remove(loop->sources);
	free_removed(loop);
	close(loop->epoll_fd);
	free(loop);
}

static struct event_source *add(struct event_loop *loop, int fd, uint32_t events, const struct event_source *what, struct error *error)
{
	struct event_source *source = malloc(sizeof(*source));
	struct epoll_event event = { .events = events, .data.ptr = source };

	if (!source) {
		error_set(error, -ENOMEM, "event loop: out of memory; free some memory");
		return NULL;
	}
	*source = *what;
	source->loop = loop;
	source->fd = fd;
	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
		error_set(error, -errno, "event loop: cannot watch descriptor %d: %s; it must be a socket, pipe, eventfd or the like, watched once",
			  fd, strerror(errno));
		free(source);
		return NULL;
	}
	list_push(&loop->sources, source);
	return source;
}

struct event_source *event_loop_add(struct event_loop *loop, int fd, uint32_t events, event_handler handler, void *context,
				    struct error *error)
{
	return add(loop, fd, events, &(struct event_source){ .handler = handler, .context = context }, error);
}

int event_source_modify(struct event_source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	if (source->removed)
		return -ENOENT;
	return epoll_ctl(source->loop->epoll_fd, EPOLL_CTL_MOD, source->fd, &event) == 0 ? 0 : -errno;
}

void event_source_remove(struct event_source *source)
{
	if (!source || source->removed)
		return;
	source->removed = true;
	epoll_ctl(source->loop->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
	if (!source->handler)
		close(source->fd);
	list_take(source);
	list_push(&source->loop->removed, source);
}

struct event_source *event_loop_timer(struct event_loop *loop, uint64_t interval_ns, int repeat, timer_handler handler, void *context,
				      struct error *error)
{
	/* An it_value of 0 would disarm the timer instead of firing it at once. */
	uint64_t ns = interval_ns ? interval_ns : 1;
	struct itimerspec when = { .it_value = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) } };
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	struct event_source *source;

	if (fd < 0) {
		error_set(error, -errno, "event loop: timerfd_create: %s; raise the limit of open files (ulimit -n, LimitNOFILE=)",
			  strerror(errno));
		return NULL;
	}
	if (repeat)
		when.it_interval = when.it_value;
	if (timerfd_settime(fd, 0, &when, NULL) != 0) {
		error_set(error, -errno, "event loop: timer of %llu ns: %s; choose another interval", (unsigned long long)ns,
			  strerror(errno));
		close(fd);
		return NULL;
	}
	source = add(loop, fd, EPOLLIN, &(struct event_source){ .timer = handler, .context = context }, error);
	if (!source)
		close(fd);
	return source;
}

static void dispatch(struct event_source *source, uint32_t events)
{
	uint64_t expirations;

	if (source->handler) {
		source->handler(source->context, source->fd, events);
		return;
	}
	/* Several missed turns are one call: a late timer must not come in a burst. */
	if (read(source->fd, &expirations, sizeof(expirations)) == (ssize_t)sizeof(expirations))
		source->timer(source->context);
}

int event_loop_run(struct event_loop *loop)
{
	struct epoll_event events[EVENTS_PER_WAIT];

	loop->stop = false;
	while (!loop->stop) {
		int n = epoll_wait(loop->epoll_fd, events, EVENTS_PER_WAIT, -1);

		if (n < 0 && errno != EINTR)
			return -errno;
		for (int i = 0; i < n && !loop->stop; i++) {
			struct event_source *source = events[i].data.ptr;

			if (!source->removed)
				dispatch(source, events[i].events);
		}
		free_removed(loop);
	}
	return 0;
}

void event_loop_stop(struct event_loop *loop)
{
	loop->stop = true;
}
