// SPDX-License-Identifier: BSD-2-Clause
#include "control/json_rpc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/suggest.h"
#include "common/util.h"
#include "vhostlane/control_abi.h"

#define METHODS_LISTED 64
#define PARAMETERS_MAX 16
#define MESSAGE_MAX sizeof(((struct error *)NULL)->text)

/* Length of the UTF-8 sequence at @p (RFC 3629, section 4), 0 if there is none. */
static unsigned utf8_length(const unsigned char *p)
{
	const unsigned length = p[0] < 0x80 ? 1 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;

	for (unsigned i = 1; i < length; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90))
		return 0;
	return length;
}

/* Messages quote users' values, and cut them where room ends: what is no UTF-8 becomes '?'. */
static json_t *text_of_bytes(const char *message)
{
	char text[MESSAGE_MAX];
	unsigned length;

	copy_string(text, sizeof(text), message);
	for (char *p = text; *p; p += length) {
		length = utf8_length((const unsigned char *)p);
		if (!length) {
			*p = '?';
			length = 1;
		}
	}
	return json_string(text);
}

/* Takes @id's reference. @error_name: symbolic errno or NULL. */
static json_t *error_response(json_t *id, int code, const char *message, const char *error_name)
{
	json_t *error = json_pack("{s:i, s:o}", "code", code, "message", text_of_bytes(message));

	if (error && error_name)
		json_object_set_new(error, "data", json_pack("{s:s}", "errno", error_name));
	return json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "error", error, "id", id);
}

char *json_rpc_error_text(int code, const char *message)
{
	json_t *response = error_response(json_null(), code, message, NULL);
	char *text = response ? json_dumps(response, JSON_COMPACT) : NULL;

	json_decref(response);
	return text;
}

static json_t *method_not_found(json_t *id, const char *name, const struct control_method *methods, unsigned method_count)
{
	const char *names[METHODS_LISTED];
	unsigned count = min_u32(method_count, METHODS_LISTED);
	char near[512], message[640] = "method '";
	size_t length;

	for (unsigned i = 0; i < count; i++)
		names[i] = methods[i].name;
	length = strlen(message);
	copy_string(message + length, 65, name);
	strcat(message, "': unknown");
	suggest_text(name, names, count, near, sizeof(near));
	length = strlen(message);
	copy_string(message + length, sizeof(message) - length, near);
	return error_response(id, JSON_RPC_METHOD_NOT_FOUND, message, NULL);
}

/* Splits @list at its blanks, in @text. Return: how many. */
static unsigned split(const char *list, char *text, size_t size, const char **names, unsigned most)
{
	char *word, *rest = NULL;
	unsigned count = 0;

	copy_string(text, size, list);
	for (word = strtok_r(text, " ", &rest); word && count < most; word = strtok_r(NULL, " ", &rest))
		names[count++] = word;
	return count;
}

/* A parameter that is passed over would leave its sender in the belief that it counts. Return: 0 or -EINVAL with *error. */
static int check_names(const struct control_method *method, json_t *params, struct error *error)
{
	const char *names[PARAMETERS_MAX], *key;
	char list[256], near[320] = "; it takes none";
	unsigned count, i;
	json_t *value;

	if (!method->params)
		return 0;
	count = split(method->params, list, sizeof(list), names, PARAMETERS_MAX);
	json_object_foreach(params, key, value) {
		for (i = 0; i < count && strcmp(names[i], key) != 0; i++)
			;
		if (i < count)
			continue;
		return error_set(error, -EINVAL, "%s, parameter '%.64s': unknown%s", method->name, key,
				 count ? suggest_text(key, names, count, near, sizeof(near)) : near);
	}
	return 0;
}

static json_t *failure(json_t *id, const struct error *error)
{
	int code = CONTROL_ERROR_REFUSED;

	if (error->code == 0)
		return error_response(id, JSON_RPC_INTERNAL_ERROR, "method failed without a reason: a fault of vhostlane; report it", NULL);
	if (error->code == -EINVAL)
		code = JSON_RPC_INVALID_PARAMS;
	else if (error->code == -ENOMEM)
		code = JSON_RPC_INTERNAL_ERROR;
	return error_response(id, code, error->text, strerrorname_np(-error->code));
}

/* Return: the response, or NULL for a notification. */
static json_t *serve_one(json_t *request, const struct control_method *methods, unsigned method_count, void *context)
{
	json_t *id = json_object_get(request, "id"), *method = json_object_get(request, "method"), *params = json_object_get(request, "params"),
	       *version = json_object_get(request, "jsonrpc"), *result;
	bool notification = !id;
	struct error error = { 0 };

	if (id && !json_is_string(id) && !json_is_number(id) && !json_is_null(id))
		return error_response(json_null(), JSON_RPC_INVALID_REQUEST, "id: neither string, number nor null; give one of them", NULL);
	id = id ? json_incref(id) : json_null();
	/* A request whose form is wrong cannot be told from a notification: it is answered (section 5). */
	if (!json_is_object(request))
		return error_response(id, JSON_RPC_INVALID_REQUEST, "request: not an object; send {\"jsonrpc\": \"2.0\", \"method\": ...}", NULL);
	if (!json_is_string(version) || strcmp(json_string_value(version), "2.0") != 0)
		return error_response(id, JSON_RPC_INVALID_REQUEST, "jsonrpc: not \"2.0\"; send {\"jsonrpc\": \"2.0\", ...}", NULL);
	if (!json_is_string(method))
		return error_response(id, JSON_RPC_INVALID_REQUEST, "method: not a string; name a method, like \"status\"", NULL);

	for (unsigned i = 0; i < method_count; i++) {
		if (strcmp(json_string_value(method), methods[i].name) != 0)
			continue;
		if (params && !json_is_object(params)) {
			if (notification)
				return NULL;
			return error_response(id, JSON_RPC_INVALID_PARAMS, "params: not an object; name each parameter", NULL);
		}
		params = params ? json_incref(params) : json_object();
		result = params && !check_names(&methods[i], params, &error) ? methods[i].call(context, params, &error) : NULL;
		json_decref(params);
		if (notification) {
			json_decref(result);
			return NULL;
		}
		if (!result)
			return failure(id, &error);
		return json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "result", result, "id", id);
	}
	if (notification)
		return NULL;
	return method_not_found(id, json_string_value(method), methods, method_count);
}

static json_t *serve_batch(json_t *batch, const struct control_method *methods, unsigned method_count, void *context)
{
	json_t *responses, *request, *response;
	size_t index;

	if (json_array_size(batch) == 0)
		return error_response(json_null(), JSON_RPC_INVALID_REQUEST, "batch: empty; put requests into it", NULL);
	if (json_array_size(batch) > CONTROL_BATCH_MAX)
		return error_response(json_null(), JSON_RPC_INVALID_REQUEST, "batch: more than 64 requests; send several smaller ones", NULL);
	_Static_assert(CONTROL_BATCH_MAX == 64, "the message above says so");
	responses = json_array();
	json_array_foreach(batch, index, request) {
		response = serve_one(request, methods, method_count, context);
		if (response)
			json_array_append_new(responses, response);
	}
	if (json_array_size(responses) == 0) {
		json_decref(responses);
		return NULL;
	}
	return responses;
}

char *json_rpc_serve(const char *line, size_t length, const struct control_method *methods, unsigned method_count, void *context)
{
	json_error_t json_error;
	json_t *request = json_loadb(line, length, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &json_error), *response;
	char *text = NULL;

	if (!request) {
		char message[JSON_ERROR_TEXT_LENGTH + 64] = "request: not JSON: ";

		strcat(message, json_error.text);
		strcat(message, "; send one JSON object a line");
		return json_rpc_error_text(JSON_RPC_PARSE_ERROR, message);
	}
	response = json_is_array(request) ? serve_batch(request, methods, method_count, context) :
					    serve_one(request, methods, method_count, context);
	json_decref(request);
	if (!response)
		return NULL;
	text = json_dumps(response, JSON_COMPACT);
	json_decref(response);
	if (!text || strlen(text) > CONTROL_RESPONSE_MAX) {
		free(text);
		return json_rpc_error_text(JSON_RPC_INTERNAL_ERROR, "response: too large or out of memory; ask for less at once");
	}
	return text;
}
