// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation. Each client has an input buffer that grows up to CONTROL_LINE_MAX and at most one response in its output
 * buffer: while that is not written out, nothing more is read from it. So a client that sends and never reads costs one line and
 * one response of memory and no time. At most CONTROL_CLIENTS_MAX are served; a further one takes the place of the one that was
 * silent longest, so that forgotten connections lock nobody out.
 */
#include "control/control_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log.h"
#include "common/util.h"
#include "control/json_rpc.h"
#include "vhostlane/control_abi.h"

#define RUN_DIRECTORY "/run/vhostlane"
#define READ_SIZE 65536
#define BACKLOG 16
#define LOCK_TRIES 200
#define LOCK_RETRY_US 10000
#define NO_DESCRIPTOR_PAUSE_US 1000

struct control_client {
	struct control_socket *socket;
	struct event_source *source;
	int fd;
	uint64_t last_heard_ns;
	char *input;
	size_t input_length, input_size;
	size_t input_scanned; /* bytes known to hold no newline: a line sent byte by byte is not searched anew each time */
	char *output;
	size_t output_length, output_sent;
	bool end_of_input; /* it sent all it wants to; what it asked is still answered */
	bool end_after_output;
};

struct control_socket {
	struct event_loop *loop;
	struct event_source *source;
	const struct control_method *methods;
	unsigned method_count;
	void *context;
	int fd;
	int spare_fd; /* given up for a moment to turn a client away when no descriptor is left; -1 = not there */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	dev_t device; /* of the file that bind() made: unlinked only if it is still that one */
	ino_t inode;
	bool made_directory;
	struct control_client *clients[CONTROL_CLIENTS_MAX];
};

/* --- clients ------------------------------------------------------------------------------------------------------ */

static void client_drop(struct control_client *client)
{
	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++)
		if (client->socket->clients[i] == client)
			client->socket->clients[i] = NULL;
	event_source_remove(client->source);
	close(client->fd);
	free(client->input);
	free(client->output);
	free(client);
}

/* Takes @text (malloc()ed; NULL: nothing to say) as the client's output. Its NUL gives way to the newline. */
static void client_answer(struct control_client *client, char *text)
{
	if (!text)
		return;
	client->output = text;
	client->output_length = strlen(text) + 1;
	client->output_sent = 0;
	text[client->output_length - 1] = '\n';
}

/* Return: false if the client is lost. */
static bool client_write(struct control_client *client)
{
	while (client->output) {
		ssize_t n = send(client->fd, client->output + client->output_sent, client->output_length - client->output_sent, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN;
		client->output_sent += (size_t)n;
		if (client->output_sent == client->output_length) {
			free(client->output);
			client->output = NULL;
		}
	}
	return !client->end_after_output;
}

static bool client_read(struct control_client *client)
{
	ssize_t n;

	if (client->input_size - client->input_length < READ_SIZE) {
		char *input = realloc(client->input, client->input_length + READ_SIZE);

		if (!input)
			return false;
		client->input = input;
		client->input_size = client->input_length + READ_SIZE;
	}
	n = recv(client->fd, client->input + client->input_length, READ_SIZE, 0);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0)
		client->end_of_input = true;
	client->input_length += (size_t)n;
	client->last_heard_ns = now_ns();
	return true;
}

static bool blank(const char *line, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (!strchr(" \t\r", line[i]) || !line[i])
			return false;
	return true;
}

/* Carries out buffered lines as long as the answers leave at once. Return: false if the client is to be dropped. */
static bool client_serve(struct control_client *client)
{
	size_t taken = 0;
	bool alive = client_write(client);

	while (alive && !client->output && taken < client->input_length) {
		char *line = client->input + taken;
		char *end = memchr(line + client->input_scanned, '\n', client->input_length - taken - client->input_scanned);
		size_t length = end ? (size_t)(end - line) : client->input_length - taken;

		if (length > CONTROL_LINE_MAX) {
			client_answer(client, json_rpc_error_text(JSON_RPC_INVALID_REQUEST, "request: line longer than 1 MiB; send less at once"));
			client->end_after_output = true;
			alive = client_write(client);
			break;
		}
		/* The last line may lack its newline once the client has closed its half. */
		if (!end && !client->end_of_input) {
			client->input_scanned = length;
			break;
		}
		client->input_scanned = 0;
		taken += length + (end ? 1 : 0);
		if (!blank(line, length))
			client_answer(client, json_rpc_serve(line, length, client->socket->methods, client->socket->method_count,
							     client->socket->context));
		alive = client_write(client);
	}
	_Static_assert(CONTROL_LINE_MAX == 1024 * 1024, "the message above says so");
	client->input_length -= taken;
	if (client->input_length) {
		memmove(client->input, client->input + taken, client->input_length);
	} else {
		free(client->input);
		client->input = NULL;
		client->input_size = 0;
	}
	if (client->end_of_input && !client->output)
		alive = false;
	return alive;
}

static void client_ready(void *context, int fd, uint32_t events)
{
	struct control_client *client = context;
	bool alive = true;

	if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && !client->output && !client->end_of_input)
		alive = client_read(client);
	/* With output in hand, a hang-up shows in send(). */
	if (alive)
		alive = client_serve(client);
	if (alive)
		alive = event_source_modify(client->source, client->output ? EPOLLOUT : EPOLLIN) == 0;
	if (!alive)
		client_drop(client);
}

/* --- listening ---------------------------------------------------------------------------------------------------- */

static unsigned free_slot(struct control_socket *socket)
{
	struct control_client *oldest = NULL;
	unsigned slot = 0;

	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		if (!socket->clients[i])
			return i;
		if (!oldest || socket->clients[i]->last_heard_ns < oldest->last_heard_ns) {
			oldest = socket->clients[i];
			slot = i;
		}
	}
	log_limited(LOG_LEVEL_WARNING, "control socket %s: more than %d clients; the one silent longest was dropped", socket->path,
		    CONTROL_CLIENTS_MAX);
	client_drop(oldest);
	return slot;
}

static void reserve_descriptor(struct control_socket *socket)
{
	if (socket->spare_fd < 0)
		socket->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* Out of descriptors: a client that nobody accepts would keep the loop spinning. */
static void turn_away(struct control_socket *socket, int code)
{
	int fd;

	log_limited(LOG_LEVEL_WARNING, "control socket %s: a client is turned away: %s", socket->path, error_why(code));
	if (socket->spare_fd < 0) {
		usleep(NO_DESCRIPTOR_PAUSE_US);
		return;
	}
	close(socket->spare_fd);
	fd = accept4(socket->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd >= 0)
		close(fd);
	socket->spare_fd = -1;
	reserve_descriptor(socket);
}

static void accept_ready(void *context, int fd, uint32_t events)
{
	struct control_socket *socket = context;
	struct error error = { 0 };
	struct control_client *client;
	int client_fd;
	unsigned slot;

	reserve_descriptor(socket);
	client_fd = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (client_fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			turn_away(socket, -errno);
		else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			log_limited(LOG_LEVEL_WARNING, "control socket %s: accept: %s", socket->path, strerror(errno));
		return;
	}
	slot = free_slot(socket);
	client = calloc(1, sizeof(*client));
	if (!client) {
		close(client_fd);
		return;
	}
	client->socket = socket;
	client->fd = client_fd;
	client->last_heard_ns = now_ns();
	client->source = event_loop_add(socket->loop, client_fd, EPOLLIN, client_ready, client, &error);
	if (!client->source) {
		log_limited(LOG_LEVEL_WARNING, "%s", error.text);
		close(client_fd);
		free(client);
		return;
	}
	socket->clients[slot] = client;
}

/* Is anybody there? 1 yes, 0 a file without a listener, negative errno value otherwise (-ENOENT: nothing there). */
static int probe(const struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), result = 1;

	if (fd < 0)
		return -errno;
	/* EAGAIN: its backlog is full, but it has one. */
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 && errno != EAGAIN && errno != EINPROGRESS)
		result = errno == ECONNREFUSED ? 0 : -errno;
	close(fd);
	return result;
}

static int clear_path(const struct sockaddr_un *address, struct error *error)
{
	struct stat s;
	int alive;

	if (lstat(address->sun_path, &s) != 0) {
		if (errno == ENOENT)
			return 0;
		return error_set(error, -errno, "control socket %s: %s; give --control another path", address->sun_path, strerror(errno));
	}
	if (!S_ISSOCK(s.st_mode))
		return error_set(error, -EEXIST, "control socket %s: a file that is no socket lies there; remove it or give --control another path",
				 address->sun_path);
	alive = probe(address);
	if (alive == 1)
		return error_set(error, -EADDRINUSE, "control socket %s: another vhostlane answers there; stop it or give --control another path",
				 address->sun_path);
	if (alive < 0 && alive != -ENOENT)
		return error_set(error, alive, "control socket %s: %s; remove it or give --control another path", address->sun_path,
				 strerror(-alive));
	log_info("control socket %s: left by a process that is gone; taken over", address->sun_path);
	if (unlink(address->sun_path) != 0 && errno != ENOENT)
		return error_set(error, -errno, "control socket %s: cannot remove the old one: %s; remove it or give --control another path",
				 address->sun_path, strerror(errno));
	return 0;
}

/* Opens the directory, so that two daemons starting at once take the path one after the other (flock leaves no file behind). */
static int lock_directory(struct control_socket *socket, struct error *error)
{
	char directory[sizeof(socket->path)];
	char *slash;
	int fd;

	copy_string(directory, sizeof(directory), socket->path);
	slash = strrchr(directory, '/');
	if (!slash)
		return error_set(error, -EINVAL, "control socket %s: not an absolute path; start it with '/'", socket->path);
	slash[slash == directory ? 1 : 0] = '\0';
	if (strcmp(directory, RUN_DIRECTORY) == 0 && mkdir(RUN_DIRECTORY, 0755) == 0)
		socket->made_directory = true;
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Anybody may lock a directory that he can read, so do not wait for ever. */
	for (unsigned i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
		if (i == LOCK_TRIES) {
			close(fd);
			return error_set(error, -EBUSY, "control socket %s: directory %s: another process keeps it locked; end it (see lslocks)",
					 socket->path, directory);
		}
		usleep(LOCK_RETRY_US);
	}
	if (fd < 0) {
		int code = -errno;

		error_set(error, code, "control socket %s: directory %s: %s; make it or give --control another path", socket->path, directory,
			  strerror(-code));
		return code;
	}
	return fd;
}

static int listen_at(struct control_socket *socket_, struct error *error)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct stat s;
	int directory = lock_directory(socket_, error), result;

	if (directory < 0)
		return directory;
	copy_string(address.sun_path, sizeof(address.sun_path), socket_->path);
	result = clear_path(&address, error);
	if (result < 0)
		goto unlock;
	socket_->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* The file gets the socket inode's mode, so it is never there with a wider one. */
	if (socket_->fd < 0 || fchmod(socket_->fd, 0600) != 0 || bind(socket_->fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		result = error_set(error, -errno, "control socket %s: %s; give --control another path", socket_->path,
				   errno == ENOENT || errno == EPERM ? "its directory takes no sockets" : strerror(errno));
		goto unlock;
	}
	if (lstat(socket_->path, &s) == 0) {
		socket_->device = s.st_dev;
		socket_->inode = s.st_ino;
	}
	if (listen(socket_->fd, BACKLOG) != 0)
		result = error_set(error, -errno, "control socket %s: listen: %s; give --control another path", socket_->path, strerror(errno));
unlock:
	close(directory);
	return result;
}

struct control_socket *control_socket_open(struct event_loop *loop, const char *path, const struct control_method *methods,
					   unsigned method_count, void *context, struct error *error)
{
	struct control_socket *socket = calloc(1, sizeof(*socket));

	if (!socket) {
		error_set(error, -ENOMEM, "control socket %s: out of memory; free some memory", path);
		return NULL;
	}
	socket->loop = loop;
	socket->methods = methods;
	socket->method_count = method_count;
	socket->context = context;
	socket->fd = socket->spare_fd = -1;
	if (!copy_string(socket->path, sizeof(socket->path), path)) {
		error_set(error, -ENAMETOOLONG, "control socket %s: %zu bytes long, a Unix socket's path has at most %zu; give --control a shorter one",
			  path, strlen(path), sizeof(socket->path) - 1);
		free(socket);
		return NULL;
	}
	if (listen_at(socket, error) < 0)
		goto fail;
	socket->source = event_loop_add(loop, socket->fd, EPOLLIN, accept_ready, socket, error);
	if (!socket->source)
		goto fail;
	reserve_descriptor(socket);
	return socket;
fail:
	control_socket_close(socket);
	return NULL;
}

void control_socket_close(struct control_socket *socket)
{
	struct stat s;

	if (!socket)
		return;
	for (unsigned i = 0; i < CONTROL_CLIENTS_MAX; i++) {
		if (!socket->clients[i])
			continue;
		/* What is already written leaves; the rest is not worth waiting for. */
		client_write(socket->clients[i]);
		client_drop(socket->clients[i]);
	}
	event_source_remove(socket->source);
	if (socket->inode && lstat(socket->path, &s) == 0 && s.st_dev == socket->device && s.st_ino == socket->inode)
		unlink(socket->path);
	if (socket->fd >= 0)
		close(socket->fd);
	if (socket->spare_fd >= 0)
		close(socket->spare_fd);
	if (socket->made_directory)
		rmdir(RUN_DIRECTORY);
	free(socket);
}
