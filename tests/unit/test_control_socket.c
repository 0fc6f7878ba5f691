// SPDX-License-Identifier: BSD-2-Clause
/* The control socket over real sockets: JSON-RPC forms and errors, framing, hostile clients, takeover of the path. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/util.h"
#include "control/control_socket.h"
#include "control/json_rpc.h"
#include "vhostlane/control_abi.h"

#define CLIENT_TIMEOUT_S 60 /* only so that a fault does not hang the run */

struct fixture {
	char directory[64], path[96];
	struct event_loop *loop;
	struct control_socket *socket;
	int stop_fd;
	pthread_t thread;
	unsigned calls; /* touched by the loop's thread; read after it answered */
};

static json_t *echo(void *context, json_t *params, struct error *error)
{
	((struct fixture *)context)->calls++;
	return json_incref(params);
}

static json_t *refuse(void *context, json_t *params, struct error *error)
{
	const char *how = json_string_value(json_object_get(params, "how"));

	if (how && strcmp(how, "exists") == 0)
		error_set(error, -EEXIST, "port vm1: named twice; give each port a name of its own");
	else if (how && strcmp(how, "invalid") == 0)
		error_set(error, -EINVAL, "queues '0': out of range; give 1 to 128");
	else if (how && strcmp(how, "memory") == 0)
		error_set(error, -ENOMEM, "out of memory; free some memory");
	else if (how && strcmp(how, "bytes") == 0)
		error_set(error, -EPERM, "name '\xff': no; give another");
	else if (how && strcmp(how, "cut") == 0)
		error_set(error, -EPERM, "name '\xc3\xb6\xe2\x82\xac\xf0\x9f\x90\xa7\xc3': has '\xed\xa0\x80' \xc0\xaf where it may not; rename it");
	return NULL;
}

static json_t *large(void *context, json_t *params, struct error *error)
{
	json_int_t size = json_integer_value(json_object_get(params, "size"));
	char *text = malloc((size_t)size + 1);
	json_t *result;

	memset(text, 'a', (size_t)size);
	text[size] = '\0';
	result = json_string(text);
	free(text);
	return result;
}

static const struct control_method methods[] = {
	{ "echo", NULL, echo }, { "refuse", NULL, refuse }, { "large", NULL, large }, { "place", "port pair cpu", echo }, { "bare", "", echo },
};

static void stop_now(void *context, int fd, uint32_t events)
{
	event_loop_stop(((struct fixture *)context)->loop);
}

static void *run(void *context)
{
	event_loop_run(((struct fixture *)context)->loop);
	return NULL;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct error error = { 0 };

	strcpy(f->directory, "/tmp/vhostlane-control-XXXXXX");
	if (!mkdtemp(f->directory))
		return -1;
	snprintf(f->path, sizeof(f->path), "%s/control.sock", f->directory);
	f->loop = event_loop_create(&error);
	f->socket = control_socket_open(f->loop, f->path, methods, ARRAY_SIZE(methods), f, &error);
	if (!f->socket) {
		print_error("%s\n", error.text);
		return -1;
	}
	f->stop_fd = eventfd(0, 0);
	event_loop_add(f->loop, f->stop_fd, EPOLLIN, stop_now, f, &error);
	*state = f;
	return pthread_create(&f->thread, NULL, run, f);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	eventfd_write(f->stop_fd, 1);
	pthread_join(f->thread, NULL);
	control_socket_close(f->socket);
	event_loop_free(f->loop);
	close(f->stop_fd);
	if (access(f->path, F_OK) == 0 || rmdir(f->directory) != 0) /* nothing is left behind */
		return -1;
	free(f);
	return 0;
}

/* --- a client ------------------------------------------------------------------------------------------------------ */

static int dial(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval timeout = { .tv_sec = CLIENT_TIMEOUT_S };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(address.sun_path, path);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static void send_text(int fd, const char *text)
{
	size_t length = strlen(text);

	while (length) {
		ssize_t n = send(fd, text, length, MSG_NOSIGNAL);

		assert_true(n > 0);
		text += n;
		length -= (size_t)n;
	}
}

/* One line, parsed; NULL at the end of the stream. */
static json_t *receive(int fd)
{
	size_t length = 0, size = 4096;
	char *line = malloc(size);
	json_t *json;
	ssize_t n;

	for (;;) {
		n = recv(fd, line + length, 1, 0);
		if (n <= 0 || line[length] == '\n')
			break;
		if (++length == size)
			line = realloc(line, size *= 2);
	}
	assert_true(n >= 0 || errno == ECONNRESET);
	json = n > 0 ? json_loadb(line, length, 0, NULL) : NULL;
	if (n > 0)
		assert_non_null(json);
	free(line);
	return json;
}

static int error_code(json_t *response)
{
	return (int)json_integer_value(json_object_get(json_object_get(response, "error"), "code"));
}

/* Sends a line and expects this error code, with id null unless the line has "id":1. */
static void expect_error(int fd, const char *line, int code)
{
	json_t *response;

	send_text(fd, line);
	send_text(fd, "\n");
	response = receive(fd);
	assert_int_equal(error_code(response), code);
	assert_string_equal(json_string_value(json_object_get(response, "jsonrpc")), "2.0");
	assert_true(json_is_string(json_object_get(json_object_get(response, "error"), "message")));
	assert_null(json_object_get(response, "result"));
	if (strstr(line, "\"id\":1"))
		assert_int_equal(json_integer_value(json_object_get(response, "id")), 1);
	else
		assert_true(json_is_null(json_object_get(response, "id")));
	json_decref(response);
}

static void expect_alive(int fd)
{
	json_t *response;

	send_text(fd, "{\"jsonrpc\":\"2.0\",\"id\":77,\"method\":\"echo\",\"params\":{\"a\":[1,2]}}\n");
	response = receive(fd);
	assert_int_equal(json_integer_value(json_object_get(response, "id")), 77);
	assert_int_equal(json_array_size(json_object_get(json_object_get(response, "result"), "a")), 2);
	json_decref(response);
}

/* --- tests --------------------------------------------------------------------------------------------------------- */

static void requests(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);
	struct stat s;
	json_t *response;

	assert_int_equal(stat(f->path, &s), 0);
	assert_int_equal(s.st_mode & 0777, 0600);
	expect_alive(fd);
	/* Ids come back as they were, params may be missing, blank lines and CR do not matter. */
	send_text(fd, "\n \r\n{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"echo\"}\r\n");
	response = receive(fd);
	assert_string_equal(json_string_value(json_object_get(response, "id")), "x");
	assert_int_equal(json_object_size(json_object_get(response, "result")), 0);
	json_decref(response);
	close(fd);
}

static void errors(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);

	expect_error(fd, "{", JSON_RPC_PARSE_ERROR);
	expect_error(fd, "{\"a\":1,\"a\":2}", JSON_RPC_PARSE_ERROR);
	expect_error(fd, "\xff\xfe", JSON_RPC_PARSE_ERROR);
	expect_error(fd, "5", JSON_RPC_INVALID_REQUEST);
	expect_error(fd, "{}", JSON_RPC_INVALID_REQUEST);
	expect_error(fd, "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"echo\"}", JSON_RPC_INVALID_REQUEST);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", JSON_RPC_INVALID_REQUEST);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":[],\"method\":\"echo\"}", JSON_RPC_INVALID_REQUEST);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ehco\"}", JSON_RPC_METHOD_NOT_FOUND);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"place\",\"params\":{\"port\":\"a\",\"cpus\":1}}", JSON_RPC_INVALID_PARAMS);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"bare\",\"params\":{\"cpu\":1}}", JSON_RPC_INVALID_PARAMS);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\",\"params\":[1]}", JSON_RPC_INVALID_PARAMS);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\",\"params\":{\"how\":\"invalid\"}}", JSON_RPC_INVALID_PARAMS);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\",\"params\":{\"how\":\"exists\"}}", CONTROL_ERROR_REFUSED);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\",\"params\":{\"how\":\"memory\"}}", JSON_RPC_INTERNAL_ERROR);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\",\"params\":{\"how\":\"bytes\"}}", CONTROL_ERROR_REFUSED);
	expect_error(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\"}", JSON_RPC_INTERNAL_ERROR);
	expect_error(fd, "[]", JSON_RPC_INVALID_REQUEST);
	expect_alive(fd);
	close(fd);
}

/* A reason that quotes bytes which are no UTF-8, or was cut within a character, keeps all else that it says. */
static void reason_survives_bytes(void **state)
{
	static const struct {
		const char *how, *message;
	} cases[] = {
		{ "bytes", "name '?': no; give another" },
		{ "cut", "name '\xc3\xb6\xe2\x82\xac\xf0\x9f\x90\xa7?': has '?\?\?' ?\? where it may not; rename it" },
	};
	struct fixture *f = *state;
	int fd = dial(f->path);

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		char line[128];
		json_t *response;

		snprintf(line, sizeof(line), "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\",\"params\":{\"how\":\"%s\"}}\n", cases[i].how);
		send_text(fd, line);
		response = receive(fd);
		assert_string_equal(json_string_value(json_object_get(json_object_get(response, "error"), "message")), cases[i].message);
		json_decref(response);
	}
	close(fd);
}

static void refusal_names_errno(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);
	json_t *response, *error;

	send_text(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"refuse\",\"params\":{\"how\":\"exists\"}}\n");
	response = receive(fd);
	error = json_object_get(response, "error");
	assert_string_equal(json_string_value(json_object_get(json_object_get(error, "data"), "errno")), "EEXIST");
	assert_string_equal(json_string_value(json_object_get(error, "message")), "port vm1: named twice; give each port a name of its own");
	json_decref(response);
	close(fd);
}

static void notifications_and_batches(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);
	json_t *response;

	/* Notifications, failing and unknown ones too, are carried out and never answered. */
	send_text(fd, "{\"jsonrpc\":\"2.0\",\"method\":\"echo\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"refuse\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"no\"}\n");
	send_text(fd, "[{\"jsonrpc\":\"2.0\",\"method\":\"echo\"}]\n");
	expect_alive(fd);
	assert_int_equal(f->calls, 3);

	send_text(fd, "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"},{\"jsonrpc\":\"2.0\",\"method\":\"echo\"},7,"
		      "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"no\"}]\n");
	response = receive(fd);
	assert_int_equal(json_array_size(response), 3);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(response, 0), "id")), 1);
	assert_int_equal(error_code(json_array_get(response, 1)), JSON_RPC_INVALID_REQUEST);
	assert_int_equal(error_code(json_array_get(response, 2)), JSON_RPC_METHOD_NOT_FOUND);
	json_decref(response);
	close(fd);
}

static void batch_too_long(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);
	json_t *response;

	send_text(fd, "[1");
	for (unsigned i = 0; i < CONTROL_BATCH_MAX; i++)
		send_text(fd, ",1");
	send_text(fd, "]\n");
	response = receive(fd);
	assert_int_equal(error_code(response), JSON_RPC_INVALID_REQUEST);
	json_decref(response);
	expect_alive(fd);
	close(fd);
}

static void split_and_joined_lines(void **state)
{
	struct fixture *f = *state;
	const char *text = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"echo\"}\n"
			   "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"echo\"}"; /* no newline: the closed half ends the line */
	int fd = dial(f->path);

	for (const char *c = text; *c; c++)
		assert_int_equal(send(fd, c, 1, 0), 1);
	shutdown(fd, SHUT_WR);
	for (unsigned i = 1; i <= 3; i++) {
		json_t *response = receive(fd);

		assert_int_equal(json_integer_value(json_object_get(response, "id")), i);
		json_decref(response);
	}
	assert_null(receive(fd));
	close(fd);
}

static void line_too_long(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path), other = dial(f->path);
	char *text = malloc(CONTROL_LINE_MAX + 2);
	json_t *response;

	/* The longest lawful one is served. */
	memset(text, ' ', CONTROL_LINE_MAX);
	memcpy(text, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}", strlen("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}"));
	text[CONTROL_LINE_MAX] = '\n';
	text[CONTROL_LINE_MAX + 1] = '\0';
	send_text(fd, text);
	response = receive(fd);
	assert_int_equal(json_integer_value(json_object_get(response, "id")), 1);
	json_decref(response);

	/* One byte more, without an end, is told so and dropped; others are not. */
	memset(text, 'x', CONTROL_LINE_MAX + 1);
	send_text(fd, text);
	response = receive(fd);
	assert_int_equal(error_code(response), JSON_RPC_INVALID_REQUEST);
	json_decref(response);
	assert_null(receive(fd));
	expect_alive(other);
	free(text);
	close(fd);
	close(other);
}

static void reader_that_never_reads(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path), other = dial(f->path);
	struct timeval short_timeout = { .tv_usec = 200000 };
	const char *line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"large\",\"params\":{\"size\":1000000}}\n";
	unsigned sent = 0;
	json_t *response;

	/* It may queue what socket buffers hold, no more: the daemon stops reading from it and serves others. */
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &short_timeout, sizeof(short_timeout));
	while (sent < 100000 && send(fd, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line))
		sent++;
	assert_true(sent < 100000);
	expect_alive(other);
	/* Once it reads, it gets its answers. */
	for (unsigned i = 0; i < 3; i++) {
		response = receive(fd);
		assert_int_equal(json_string_length(json_object_get(response, "result")), 1000000);
		json_decref(response);
	}
	close(fd);
	expect_alive(other);
	close(other);
}

static void response_too_large(void **state)
{
	struct fixture *f = *state;
	int fd = dial(f->path);
	char line[128];

	snprintf(line, sizeof(line), "{\"jsonrpc\":\"2.0\",\"method\":\"large\",\"id\":null,\"params\":{\"size\":%d}}", CONTROL_RESPONSE_MAX);
	expect_error(fd, line, JSON_RPC_INTERNAL_ERROR);
	expect_alive(fd);
	close(fd);
}

static void too_many_clients(void **state)
{
	struct fixture *f = *state;
	int fds[CONTROL_CLIENTS_MAX], late;

	for (unsigned i = 0; i < ARRAY_SIZE(fds); i++) {
		fds[i] = dial(f->path);
		expect_alive(fds[i]);
	}
	expect_alive(fds[0]); /* now 1 is the one silent longest */
	late = dial(f->path);
	expect_alive(late);
	assert_null(receive(fds[1]));
	expect_alive(fds[0]);
	expect_alive(fds[2]);
	for (unsigned i = 0; i < ARRAY_SIZE(fds); i++)
		close(fds[i]);
	expect_alive(late);
	close(late);
}

static void hang_ups(void **state)
{
	struct fixture *f = *state;
	struct linger reset = { .l_onoff = 1 };
	int fd;

	for (unsigned i = 0; i < 100; i++) {
		fd = dial(f->path);
		if (i % 4 == 1)
			send_text(fd, "{\"jsonrpc\":");
		if (i % 4 == 2)
			send_text(fd, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"large\",\"params\":{\"size\":500000}}\n");
		if (i % 4 == 3)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		close(fd);
	}
	fd = dial(f->path);
	expect_alive(fd);
	close(fd);
}

static void second_instance(void **state)
{
	struct fixture *f = *state;
	struct event_loop *loop = event_loop_create(NULL);
	struct error error = { 0 };
	char want[256];
	int fd;

	assert_null(control_socket_open(loop, f->path, methods, ARRAY_SIZE(methods), f, &error));
	snprintf(want, sizeof(want), "control socket %s: another vhostlane answers there; stop it or give --control another path", f->path);
	assert_string_equal(error.text, want);
	assert_int_equal(error.code, -EADDRINUSE);
	fd = dial(f->path); /* the first one is unharmed */
	expect_alive(fd);
	close(fd);
	event_loop_free(loop);
}

static void stale_socket(void **state)
{
	struct fixture *f = *state;
	struct event_loop *loop = event_loop_create(NULL);
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct control_socket *socket_;
	struct error error = { 0 };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/stale", f->directory);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	close(fd); /* as SIGKILL leaves it */
	socket_ = control_socket_open(loop, address.sun_path, methods, ARRAY_SIZE(methods), f, &error);
	assert_non_null(socket_);
	fd = dial(address.sun_path);
	close(fd);
	control_socket_close(socket_);
	assert_int_equal(access(address.sun_path, F_OK), -1);
	event_loop_free(loop);
}

static void not_ours_to_remove(void **state)
{
	struct fixture *f = *state;
	struct event_loop *loop = event_loop_create(NULL);
	struct control_socket *socket_;
	struct error error = { 0 };
	char path[96], long_path[200];
	FILE *file;

	snprintf(path, sizeof(path), "%s/file", f->directory);
	file = fopen(path, "w");
	fclose(file);
	assert_null(control_socket_open(loop, path, methods, ARRAY_SIZE(methods), f, &error));
	assert_int_equal(error.code, -EEXIST);
	assert_int_equal(unlink(path), 0);

	/* Somebody put another file at the path while the daemon ran: it stays. */
	socket_ = control_socket_open(loop, path, methods, ARRAY_SIZE(methods), f, &error);
	assert_non_null(socket_);
	assert_int_equal(unlink(path), 0);
	file = fopen(path, "w");
	fclose(file);
	control_socket_close(socket_);
	assert_int_equal(unlink(path), 0);

	snprintf(path, sizeof(path), "%s/missing/control.sock", f->directory);
	assert_null(control_socket_open(loop, path, methods, ARRAY_SIZE(methods), f, &error));
	assert_int_equal(error.code, -ENOENT);
	assert_non_null(strstr(error.text, "/missing: "));
	memset(long_path, 'x', sizeof(long_path) - 1);
	long_path[0] = '/';
	long_path[sizeof(long_path) - 1] = '\0';
	assert_null(control_socket_open(loop, long_path, methods, ARRAY_SIZE(methods), f, &error));
	assert_int_equal(error.code, -ENAMETOOLONG);
	event_loop_free(loop);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(requests),	     T(errors),	      T(reason_survives_bytes), T(refusal_names_errno),	  T(notifications_and_batches), T(batch_too_long),
		T(split_and_joined_lines), T(line_too_long), T(reader_that_never_reads), T(response_too_large),	 T(too_many_clients),
		T(hang_ups),	     T(second_instance), T(stale_socket),	  T(not_ours_to_remove),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
