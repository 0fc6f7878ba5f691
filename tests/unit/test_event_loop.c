// SPDX-License-Identifier: BSD-2-Clause
/* The control loop: level-triggered descriptors, timers, and removal from within handlers. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "control/event_loop.h"

struct fixture {
	struct event_loop *loop;
	struct event_source *mine, *other;
	int fd[2];
	unsigned calls, other_calls, ticks, ticks_wanted;
	uint32_t last_events;
};

static int setup(void **state)
{
	static struct fixture f;

	f = (struct fixture){ .ticks_wanted = 1 };
	f.loop = event_loop_create(NULL);
	f.fd[0] = eventfd(1, EFD_NONBLOCK);
	f.fd[1] = eventfd(1, EFD_NONBLOCK);
	*state = &f;
	return f.loop && f.fd[0] >= 0 && f.fd[1] >= 0 ? 0 : -1;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	event_loop_free(f->loop);
	close(f->fd[0]);
	close(f->fd[1]);
	return 0;
}

static void count_and_stop_at_three(void *context, int fd, uint32_t events)
{
	struct fixture *f = context;

	f->last_events = events;
	assert_int_equal(fd, f->fd[0]);
	if (++f->calls == 3)
		event_loop_stop(f->loop);
}

static void level_triggered(void **state)
{
	struct fixture *f = *state;

	/* Nobody reads the eventfd: it must be reported again and again. */
	assert_non_null(event_loop_add(f->loop, f->fd[0], EPOLLIN, count_and_stop_at_three, f, NULL));
	assert_int_equal(event_loop_run(f->loop), 0);
	assert_int_equal(f->calls, 3);
	assert_int_equal(f->last_events, EPOLLIN);
}

static void modify_handler(void *context, int fd, uint32_t events)
{
	struct fixture *f = context;

	if (f->calls++ == 0) {
		assert_int_equal(events, EPOLLIN);
		assert_int_equal(event_source_modify(f->mine, EPOLLOUT), 0);
		return;
	}
	assert_int_equal(events, EPOLLOUT);
	event_loop_stop(f->loop);
}

static void modify(void **state)
{
	struct fixture *f = *state;

	f->mine = event_loop_add(f->loop, f->fd[0], EPOLLIN, modify_handler, f, NULL);
	assert_int_equal(event_loop_run(f->loop), 0);
	assert_int_equal(f->calls, 2);
}

static void stop_on_tick(void *context)
{
	struct fixture *f = context;

	if (++f->ticks == f->ticks_wanted)
		event_loop_stop(f->loop);
}

static void remove_both(void *context, int fd, uint32_t events)
{
	struct fixture *f = context;

	/* Both are ready in the same wait: whichever comes first removes itself and the other, which must stay silent. */
	f->calls++;
	event_source_remove(f->mine);
	event_source_remove(f->other);
	event_source_remove(f->other);
	assert_int_equal(event_source_modify(f->other, EPOLLIN), -ENOENT);
	event_loop_timer(f->loop, 1000000, 0, stop_on_tick, f, NULL);
}

static void remove_within_handler(void **state)
{
	struct fixture *f = *state;

	f->mine = event_loop_add(f->loop, f->fd[0], EPOLLIN, remove_both, f, NULL);
	f->other = event_loop_add(f->loop, f->fd[1], EPOLLIN, remove_both, f, NULL);
	assert_int_equal(event_loop_run(f->loop), 0);
	assert_int_equal(f->calls, 1);
	assert_int_equal(f->ticks, 1);
}

static void timer_repeats(void **state)
{
	struct fixture *f = *state;

	f->ticks_wanted = 3;
	assert_non_null(event_loop_timer(f->loop, 1000000, 1, stop_on_tick, f, NULL));
	assert_int_equal(event_loop_run(f->loop), 0);
	assert_int_equal(f->ticks, 3);
}

static void once_only(void *context)
{
	((struct fixture *)context)->other_calls++;
}

static void timer_once(void **state)
{
	struct fixture *f = *state;

	f->ticks_wanted = 5;
	assert_non_null(event_loop_timer(f->loop, 0, 0, once_only, f, NULL));
	assert_non_null(event_loop_timer(f->loop, 2000000, 1, stop_on_tick, f, NULL));
	assert_int_equal(event_loop_run(f->loop), 0);
	assert_int_equal(f->other_calls, 1);
}

static void timer_removes_itself(void *context)
{
	struct fixture *f = context;

	f->calls++;
	event_source_remove(f->mine);
}

static void timer_removed_within(void **state)
{
	struct fixture *f = *state;

	f->mine = event_loop_timer(f->loop, 1000000, 1, timer_removes_itself, f, NULL);
	f->ticks_wanted = 5;
	assert_non_null(event_loop_timer(f->loop, 2000000, 1, stop_on_tick, f, NULL));
	assert_int_equal(event_loop_run(f->loop), 0);
	assert_int_equal(f->calls, 1);
}

static void bad_descriptor(void **state)
{
	struct fixture *f = *state;
	struct error error = { 0 };

	assert_null(event_loop_add(f->loop, -1, EPOLLIN, remove_both, f, &error));
	assert_int_equal(error.code, -EBADF);
	event_source_remove(NULL);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(level_triggered), T(modify),	       T(remove_within_handler), T(timer_repeats),	   T(timer_once),
		T(timer_removed_within), T(bad_descriptor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
