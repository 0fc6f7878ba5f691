// SPDX-License-Identifier: BSD-2-Clause
/* The option forms NAME=SOCKET[,key=value...] and IFNAME[,key=value...]. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/util.h"
#include "control/config.h"

static int given_twice(const char *what, const char *key, struct error *error)
{
	return error_set(error, -EINVAL, "%s, key '%.64s': given twice; give it once", what, key);
}

/* Does a comma-separated list of pairs have @key? */
static bool has_key(const char *pairs, const char *key)
{
	const size_t length = strlen(key);

	for (; pairs; pairs = strchr(pairs, ',')) {
		pairs += *pairs == ',';
		if (strncmp(pairs, key, length) == 0 && pairs[length] == '=')
			return true;
	}
	return false;
}

/* Takes "key=value" off a comma-separated tail. @*tail moves behind it; NULL at the end. Return: 0 or -EINVAL. */
static int next_pair(char **tail, char **key, char **value, const char *what, struct error *error)
{
	char *pair = *tail, *comma = strchr(pair, ','), *equals;

	if (comma)
		*comma = '\0';
	*tail = comma ? comma + 1 : NULL;
	equals = strchr(pair, '=');
	if (!equals || equals == pair)
		return error_set(error, -EINVAL, "%s, '%.64s': not key=value; write for instance queues=2", what, pair);
	*equals = '\0';
	*key = pair;
	*value = equals + 1;
	if (has_key(*tail, pair))
		return given_twice(what, pair, error);
	return 0;
}

#define OPTION_TEXT_MAX 1024

int config_parse_port(const char *text, struct config_port *port, struct error *error)
{
	char copy[OPTION_TEXT_MAX], what[CONFIG_PORT_NAME_MAX + 16], *tail, *equals, *key, *value;
	int result;

	config_port_init(port);
	if (!copy_string(copy, sizeof(copy), text))
		return error_set(error, -E2BIG, "port '%.32s...': longer than %d bytes; shorten it", text, OPTION_TEXT_MAX - 1);
	tail = strchr(copy, ',');
	if (tail)
		*tail++ = '\0';
	equals = strchr(copy, '=');
	if (!equals)
		return error_set(error, -EINVAL, "port '%.128s': has no socket; write NAME=SOCKET[,key=value...], like vm1=/run/vhostlane/vm1.sock", copy);
	*equals = '\0';
	result = config_port_set(port, "name", copy, error);
	if (result == 0)
		result = config_port_set(port, "socket", equals + 1, error);
	snprintf(what, sizeof(what), "port %s", port->name);
	while (result == 0 && tail) {
		result = next_pair(&tail, &key, &value, what, error);
		if (result == 0 && (strcmp(key, "name") == 0 || strcmp(key, "socket") == 0))
			result = given_twice(what, key, error);
		if (result == 0)
			result = config_port_set(port, key, value, error);
	}
	return result;
}

int config_parse_uplink(const char *text, struct config_uplink *uplink, struct error *error)
{
	char copy[OPTION_TEXT_MAX], what[IF_NAMESIZE + 16], *tail, *key, *value;
	int result;

	memset(uplink, 0, sizeof(*uplink));
	if (!copy_string(copy, sizeof(copy), text))
		return error_set(error, -E2BIG, "uplink '%.32s...': longer than %d bytes; shorten it", text, OPTION_TEXT_MAX - 1);
	tail = strchr(copy, ',');
	if (tail)
		*tail++ = '\0';
	result = config_uplink_set(uplink, "ifname", copy, error);
	snprintf(what, sizeof(what), "uplink %s", uplink->ifname);
	while (result == 0 && tail) {
		result = next_pair(&tail, &key, &value, what, error);
		if (result == 0 && strcmp(key, "ifname") == 0)
			result = given_twice(what, key, error);
		if (result == 0)
			result = config_uplink_set(uplink, key, value, error);
	}
	return result;
}
