/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What frontends send, descriptors of any kind and memory of any size, is released by the port's reaper. One that sends
 * faster than that goes, or sends a descriptor whose close() never returns, is not read from until the reaper has caught up;
 * the next frontend of the port is not let in. Nobody else notices.
 */
#include <sys/socket.h>

#include "control/vhost_user_session.h"

#define BACKLOG_MAX 64 /* things to release: as many as one guest has regions */
#define LOOK_NS 10000000u
#define STUCK_NS 5000000000ull /* at one thing: its file system will not answer any more */

static void take_in_again(struct vhost_user_session *s)
{
	struct error error;

	session_hold_end(s);
	if (s->listening && !s->door)
		event_source_modify(s->listening, EPOLLIN);
	if (s->fd >= 0 && session_listen(s, &error))
		session_end(s, true, "%s", error.text);
}

static void on_look(void *context)
{
	struct vhost_user_session *s = context;

	if (reaper_backlog(s->reaper) <= BACKLOG_MAX / 2)
		take_in_again(s);
	else if (s->fd >= 0 && reaper_stuck_ns(s->reaper) > STUCK_NS)
		session_end(s, true, "a descriptor that the frontend sent cannot be closed, its file system does not answer, and more wait; "
			    "end the process that serves that file system, or give the guest memory and eventfds only");
}

static void take_nothing_in(struct vhost_user_session *s)
{
	/* A connection that hung up is readable whatever one asks for. */
	event_source_remove(s->connection);
	s->connection = NULL;
	if (s->listening)
		event_source_modify(s->listening, 0);
}

bool session_must_wait(struct vhost_user_session *s)
{
	struct error error;

	if (!s->hold && reaper_backlog(s->reaper) <= BACKLOG_MAX)
		return false;
	if (!s->hold)
		s->hold = event_loop_timer(s->loop, LOOK_NS, 1, on_look, s, &error);
	if (!s->hold) {
		session_log_limited(LOG_LEVEL_WARNING, s, TALK_DOOR, "%s", error.text);
		return false;
	}
	take_nothing_in(s);
	return true;
}

void session_hold_end(struct vhost_user_session *s)
{
	event_source_remove(s->hold);
	s->hold = NULL;
}

void session_hang_up(struct vhost_user_session *s, int fd)
{
	/* The peer knows at once, whenever the reaper gets to it. */
	if (fd >= 0)
		shutdown(fd, SHUT_RDWR);
	reaper_close(s->reaper, fd);
}
