// SPDX-License-Identifier: BSD-2-Clause
#include "cli/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/util.h"
#include "control/config.h"
#include "vhostlane/control_abi.h"

#define ANSWER_TIMEOUT_S 60
#define ANSWER_MAX (64 * 1024 * 1024)
#define READ_SIZE 65536

static int dial(const char *path, struct error *error)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct timeval timeout = { .tv_sec = ANSWER_TIMEOUT_S };
	int fd;

	if (!copy_string(address.sun_path, sizeof(address.sun_path), path))
		return error_set(error, -ENAMETOOLONG, "control socket %.128s: %zu bytes long, a Unix socket's path has at most %d; give --control another",
				 path, strlen(path), CONFIG_SOCKET_PATH_MAX);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_set(error, -errno, "control socket %s: %s; close some files", path, strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
		int code = -errno;

		close(fd);
		return error_set(error, code, "control socket %s: %s; %s", path, strerror(-code),
				 code == -EACCES ? "use sudo" : "start the daemon (vhostlane run) or name its socket by --control");
	}
	return fd;
}

static int send_all(int fd, const char *text, size_t length)
{
	while (length) {
		ssize_t n = send(fd, text, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		length -= (size_t)n;
	}
	return 0;
}

/* Reads one line. Return: 0 with *line (malloc()ed) and *length, or negative errno value. */
static int receive_line(int fd, char **line, size_t *length)
{
	char *text = NULL, *end;
	size_t have = 0;

	for (;;) {
		char *grown = realloc(text, have + READ_SIZE);
		ssize_t n;

		if (!grown || have > ANSWER_MAX) {
			free(grown ? grown : text);
			return grown ? -EMSGSIZE : -ENOMEM;
		}
		text = grown;
		do
			n = recv(fd, text + have, READ_SIZE, 0);
		while (n < 0 && errno == EINTR);
		if (n <= 0) {
			int code = n == 0 ? -ECONNRESET : errno == EAGAIN ? -ETIMEDOUT : -errno;

			free(text);
			return code;
		}
		end = memchr(text + have, '\n', (size_t)n);
		have += (size_t)n;
		if (end) {
			*line = text;
			*length = (size_t)(end - text);
			return 0;
		}
	}
}

/* What the daemon said, down to its result. */
static json_t *unwrap(const char *socket, const char *line, size_t length, struct error *error)
{
	json_t *response = json_loadb(line, length, 0, NULL), *result, *failure;

	result = json_object_get(response, "result");
	failure = json_object_get(response, "error");
	if (json_is_object(failure)) {
		const char *message = json_string_value(json_object_get(failure, "message"));

		error_set(error, -EPROTO, "%s", message ? message : "the daemon refused without a reason; see its log");
		result = NULL;
	} else if (!result) {
		error_set(error, -EPROTO, "control socket %s: the answer is no JSON-RPC response; is a vhostlane behind it?", socket);
	}
	json_incref(result);
	json_decref(response);
	return result;
}

/* Takes @params' reference. Return: the result, or NULL with *error: no daemon, no answer, or what the daemon refused. */
static json_t *call(const char *socket, const char *method, json_t *params, struct error *error)
{
	json_t *request = json_pack("{s:s, s:i, s:s, s:o}", "jsonrpc", "2.0", "id", 1, "method", method, "params", params), *result = NULL;
	char *text = request ? json_dumps(request, JSON_COMPACT) : NULL, *line = NULL;
	int fd = -1, code = -ENOMEM;
	size_t length = 0;

	json_decref(request);
	if (!text) {
		error_set(error, -ENOMEM, "%s: no memory for the call; free some", method);
		return NULL;
	}
	fd = dial(socket, error);
	if (fd < 0)
		goto out;
	length = strlen(text);
	text[length] = '\n'; /* in the place of the NUL: send_all() goes by length */
	code = send_all(fd, text, length + 1);
	if (code == 0)
		code = receive_line(fd, &line, &length);
	if (code < 0)
		error_set(error, code, "control socket %s: no answer: %s; see the daemon's log", socket, strerror(-code));
	else
		result = unwrap(socket, line, length, error);
	close(fd);
out:
	free(line);
	free(text);
	return result;
}

static int call_and_print(const struct client_options *options, const char *method, json_t *params, client_print *print)
{
	struct error error = { 0 };
	json_t *result = call(options->control ? options->control : CONFIG_CONTROL_DEFAULT, method, params, &error);

	if (!result)
		return report(EXIT_FAILED, &error);
	if (options->json) {
		json_dumpf(result, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
		putchar('\n');
	} else if (print) {
		print(stdout, result);
	}
	json_decref(result);
	return EXIT_DONE;
}

int client_run(const struct command *command, int argc, char **argv, const char *method, client_params *make, client_print *print)
{
	struct client_options options = { 0 };
	struct error error = { 0 };
	const char *words[COMMAND_WORDS_MAX];
	json_t *params = json_object();
	unsigned count;
	int result = options_parse(command, &options, argc, argv, words, &count, &error);

	if (result == 0 && make)
		result = make(&options, words, count, params, &error);
	if (result == 0)
		return call_and_print(&options, method, params, print);
	json_decref(params);
	return result == OPTIONS_HELP_SHOWN ? EXIT_DONE : report(EXIT_WRONG_USE, &error);
}
