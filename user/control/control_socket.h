/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The control socket: JSON-RPC 2.0, one object a line (jansson). This room knows framing, clients and errors; the
 * methods are a table given by the daemon. Control thread only; a slow or hostile client is bounded (line length,
 * number of clients, output queue) and dropped alone.
 */
#ifndef VHOSTLANE_CONTROL_CONTROL_SOCKET_H
#define VHOSTLANE_CONTROL_CONTROL_SOCKET_H

#include <jansson.h>

#include "common/error.h"
#include "control/event_loop.h"

#define CONTROL_CLIENTS_MAX 16	   /* a further one takes the place of the one that was silent longest */
#define CONTROL_BATCH_MAX 64	   /* calls of one batch array */
#define CONTROL_RESPONSE_MAX (48 * 1024 * 1024) /* bytes of one response line: queue.list of all ports with all pairs, less than 1.5 KiB each */

struct control_method {
	const char *name; /* "port.add" */
	/* Names of its parameters, a blank between them; others are answered as "invalid params". "": none. NULL: @call judges them. */
	const char *params;
	/* @params: object, never NULL. Return: new reference, or NULL with *error filled; its code -EINVAL is answered as
	 * "invalid params", -ENOMEM as "internal error", any other as CONTROL_ERROR_REFUSED. Must not close the socket. */
	json_t *(*call)(void *context, json_t *params, struct error *error);
};

struct control_socket;

/* Binds @path (0600, directory made if it is /run/vhostlane); refuses a path on which another daemon answers, takes over a dead one. */
struct control_socket *control_socket_open(struct event_loop *loop, const char *path, const struct control_method *methods,
					   unsigned method_count, void *context, struct error *error);
void control_socket_close(struct control_socket *socket); /* unlinks */

#endif
