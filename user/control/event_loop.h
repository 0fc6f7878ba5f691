/* SPDX-License-Identifier: BSD-2-Clause */
/* The control thread's loop: descriptors and timers. Control thread only. */
#ifndef VHOSTLANE_CONTROL_EVENT_LOOP_H
#define VHOSTLANE_CONTROL_EVENT_LOOP_H

#include <stdint.h>
#include <sys/epoll.h>

#include "common/error.h"

struct event_loop;
struct event_source;

struct event_loop *event_loop_create(struct error *error);
void event_loop_free(struct event_loop *loop);

/* @events: EPOLLIN and the like (level triggered). The loop never closes @fd. A handler may remove any source, itself too. */
typedef void (*event_handler)(void *context, int fd, uint32_t events);
struct event_source *event_loop_add(struct event_loop *loop, int fd, uint32_t events, event_handler handler, void *context,
				    struct error *error);
int event_source_modify(struct event_source *source, uint32_t events);
/* Remove before closing the descriptor: its number may be someone else's by then. NULL is fine. */
void event_source_remove(struct event_source *source);

/* Runs @handler every @interval_ns (or once). */
typedef void (*timer_handler)(void *context);
struct event_source *event_loop_timer(struct event_loop *loop, uint64_t interval_ns, int repeat, timer_handler handler, void *context,
				      struct error *error);

/* Returns when event_loop_stop() was called by a handler. Return: 0 or negative errno value. */
int event_loop_run(struct event_loop *loop);
void event_loop_stop(struct event_loop *loop);

#endif
