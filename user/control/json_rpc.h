/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * JSON-RPC 2.0 (jsonrpc.org/specification): one request line to one response line. Knows no sockets. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_JSON_RPC_H
#define VHOSTLANE_CONTROL_JSON_RPC_H

#include <stddef.h>

#include "control/control_socket.h"

#define JSON_RPC_PARSE_ERROR (-32700)
#define JSON_RPC_INVALID_REQUEST (-32600)
#define JSON_RPC_METHOD_NOT_FOUND (-32601)
#define JSON_RPC_INVALID_PARAMS (-32602)
#define JSON_RPC_INTERNAL_ERROR (-32603)

/**
 * json_rpc_serve() - carry out what one line asks: a request, a notification, or a batch of them
 * Return: malloc()ed response without newline; NULL if none is due (notifications) or none could be made.
 */
char *json_rpc_serve(const char *line, size_t length, const struct control_method *methods, unsigned method_count, void *context);

/* An error response to nobody in particular (id null). malloc()ed. */
char *json_rpc_error_text(int code, const char *message);

#endif
