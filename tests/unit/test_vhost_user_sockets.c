// SPDX-License-Identifier: BSD-2-Clause
/* Frontends that come, go and misbehave on a session's socket, and what stands in its place in the file system. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "session_rig.h"

static void stale_socket_is_taken_over(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct error error = { 0 };
	struct stat st;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(address.sun_path, f->path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_null(vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error));
	assert_int_equal(error.code, -EADDRINUSE);
	assert_non_null(strstr(error.text, "living process"));
	close(fd);
	open_session(f, PORT_ROLE_SERVER);
	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	connect_peer(f);
	vhost_user_close(f->session);
	f->session = NULL;
	assert_int_equal(stat(f->path, &st), -1);
}

static void socket_refused(void **state)
{
	struct fixture *f = *state;
	struct error error = { 0 };
	int fd = open(f->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	close(fd);
	assert_null(vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error));
	assert_non_null(strstr(error.text, "no socket"));
	assert_int_equal(access(f->path, F_OK), 0);
	snprintf(f->config.socket, sizeof(f->config.socket), "%s/nowhere/p.sock", f->directory);
	assert_null(vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error));
	assert_int_equal(error.code, -ENOENT);
	assert_non_null(strstr(error.text, "/nowhere does not exist; create it"));
}

static void one_frontend_at_a_time(void **state)
{
	struct fixture *f = *state;
	int first = f->peer;
	char byte;

	connect_peer(f);
	turn_until(f, readable(f->peer));
	assert_int_equal(read(f->peer, &byte, 1), 0);
	close(f->peer);
	f->peer = first;
	bring_up(f, 1);
	/* But the next one is welcome the moment that the first has hung up. */
	for (unsigned i = 0; i < 20; i++) {
		close(f->peer);
		connect_peer(f);
		turn(f);
		negotiate(f);
	}
	/* Also if the loop hears of the new one before it hears of the end. */
	for (unsigned i = 0; i < 20; i++) {
		struct sockaddr_un address = { .sun_family = AF_UNIX };
		int next = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		strcpy(address.sun_path, f->path);
		assert_int_equal(connect(next, (struct sockaddr *)&address, sizeof(address)), 0);
		close(f->peer);
		f->peer = next;
		turn(f);
		negotiate(f);
	}
	assert_int_equal(vhost_user_sessions_served(f->session), 41);
}

static void client_role_connects_again(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	open_session(f, PORT_ROLE_CLIENT);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	strcpy(address.sun_path, f->path);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	for (unsigned i = 1; i <= 2; i++) {
		turn_until(f, vhost_user_sessions_served(f->session) == i);
		f->peer = accept(listener, NULL, NULL);
		assert_true(f->peer >= 0);
		negotiate(f);
		memset(f->held, 0, sizeof(f->held));
		bring_up(f, 1);
		assert_int_equal(vhost_user_peer_pid(f->session), getpid());
		hang_up(f);
	}
	close(listener);
}

/* No descriptor left: the frontend is turned away, the loop comes to rest, and the next one is served. */
static void no_descriptors_left(void **state)
{
	struct fixture *f = *state;
	struct rlimit old, tight;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct event_source *timer;
	int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char byte;

	open_session(f, PORT_ROLE_SERVER);
	strcpy(address.sun_path, f->path);
	assert_int_equal(connect(peer, (struct sockaddr *)&address, sizeof(address)), 0);
	timer = event_loop_timer(f->loop, 20000000, 0, stop, f->loop, NULL);
	getrlimit(RLIMIT_NOFILE, &old);
	tight = (struct rlimit){ (rlim_t)dup(0), old.rlim_max };
	close((int)tight.rlim_cur);
	setrlimit(RLIMIT_NOFILE, &tight);
	event_loop_run(f->loop);
	setrlimit(RLIMIT_NOFILE, &old);
	event_source_remove(timer);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	assert_int_equal(recv(peer, &byte, 1, MSG_DONTWAIT), 0);
	close(peer);
	connect_peer(f);
	negotiate(f);
}

static void on_other(void *context, int fd, uint32_t events)
{
	struct fixture *f = context;
	unsigned since = f->publishes - f->publishes_seen;

	f->publishes_seen = f->publishes;
	if (f->publishes_between < since)
		f->publishes_between = since;
}

/* A turn lasts as long as it may, however much a message costs: whoever else is on the loop gets his turn between. */
static void costly_messages_share_the_loop(void **state)
{
	struct fixture *f = *state;
	struct event_source *other;
	int always = eventfd(1, EFD_CLOEXEC);
	unsigned before;

	bring_up(f, 1);
	other = event_loop_add(f->loop, always, EPOLLIN, on_other, f, NULL);
	assert_non_null(other);
	turn(f);
	f->publishes_between = 0;
	before = f->publishes;
	f->publish_us = 5000;
	for (unsigned i = 0; i < 40; i++)
		send_request(f, VHOST_USER_SET_VRING_ENABLE, VHOST_USER_FLAG_NEED_REPLY, &(struct vhost_user_vring_state){ 1, i % 2 }, 8, NULL, 0);
	turn_until(f, f->publishes - before >= 40);
	/* A message is at most a publish of what it withdrew and one of what it left. */
	assert_in_range(f->publishes_between, 1, 2);
	event_source_remove(other);
	close(always);
}

/* A frontend that sends without ever reading is dropped, and nothing piles up here. */
static void answers_not_read(void **state)
{
	struct fixture *f = *state;
	struct vhost_user_header h = { VHOST_USER_GET_FEATURES, VHOST_USER_VERSION, 0 };

	for (unsigned i = 0; i < 100000 && vhost_user_state_of(f->session) != VHOST_USER_WAITING; i++)
		if (send(f->peer, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			turn(f);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	assert_non_null(strstr(vhost_user_last_fault(f->session), "does not read"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(stale_socket_is_taken_over, setup, teardown),
		cmocka_unit_test_setup_teardown(socket_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(one_frontend_at_a_time, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(client_role_connects_again, setup, teardown),
		cmocka_unit_test_setup_teardown(no_descriptors_left, setup, teardown),
		cmocka_unit_test_setup_teardown(costly_messages_share_the_loop, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(answers_not_read, setup_connected, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
