// SPDX-License-Identifier: BSD-2-Clause
/* A port's VLANs as text, both ways: "0", "N", "trunk:A+B-C[/native:N]". */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/util.h"
#include "control/config.h"
#include "control/config_text.h"

#define VLAN_FIRST 1
#define VLAN_LAST 4094 /* IEEE 802.1Q 9.6: 0 and 4095 are none */
#define TRUNK_PREFIX "trunk:"
#define NATIVE_PREFIX "native:"

static int vlan_error(const char *value, struct error *error)
{
	return error_set(error, -EINVAL,
			 "vlan '%.64s': neither 0, a VLAN from %d to %d, nor trunk:LIST[/native:VLAN]; write for instance trunk:10+20-29/native:1",
			 value, VLAN_FIRST, VLAN_LAST);
}

/* "A+B-C" up to @end. */
static bool parse_list(const char *p, const char *end, struct vl_vlan_row *row)
{
	while (p < end) {
		unsigned long first, last;
		char *next;

		if (*p < '0' || *p > '9')
			return false;
		first = last = strtoul(p, &next, 10);
		if (*next == '-' && next[1] >= '0' && next[1] <= '9')
			last = strtoul(next + 1, &next, 10);
		if (first < VLAN_FIRST || last > VLAN_LAST || first > last || next > end || (next < end && *next != '+'))
			return false;
		for (unsigned long v = first; v <= last; v++)
			row->allowed[v / 64] |= 1ull << (v % 64);
		p = next < end ? next + 1 : next;
		if (next < end && p == end)
			return false;
	}
	return true;
}

static int parse_trunk(struct config_vlan *vlan, const char *value, struct error *error)
{
	const char *list = value + strlen(TRUNK_PREFIX), *slash = strchr(list, '/'), *end = slash ? slash : list + strlen(list);
	uint64_t native = 0;

	if (list == end || !parse_list(list, end, &vlan->listed))
		return vlan_error(value, error);
	if (slash && (strncmp(slash + 1, NATIVE_PREFIX, strlen(NATIVE_PREFIX)) != 0 ||
		      !number_parse(slash + 1 + strlen(NATIVE_PREFIX), VLAN_FIRST, VLAN_LAST, &native)))
		return vlan_error(value, error);
	vlan->mode = CONFIG_VLAN_TRUNK;
	vlan->id = (uint16_t)native;
	return 0;
}

int config_parse_vlan(const char *value, struct config_vlan *vlan, struct error *error)
{
	struct config_vlan parsed = { 0 };
	uint64_t id;

	if (strncmp(value, TRUNK_PREFIX, strlen(TRUNK_PREFIX)) == 0) {
		if (parse_trunk(&parsed, value, error))
			return error->code;
	} else if (!number_parse(value, 0, VLAN_LAST, &id)) {
		return vlan_error(value, error);
	} else if (id) {
		parsed = (struct config_vlan){ .mode = CONFIG_VLAN_ACCESS, .id = (uint16_t)id };
	}
	*vlan = parsed;
	return 0;
}

const char *config_format_vlan(const struct config_vlan *vlan, char text[CONFIG_VLAN_TEXT])
{
	size_t used;

	if (vlan->mode != CONFIG_VLAN_TRUNK) {
		snprintf(text, CONFIG_VLAN_TEXT, "%u", vlan->id);
		return text;
	}
	used = (size_t)snprintf(text, CONFIG_VLAN_TEXT, TRUNK_PREFIX);
	for (unsigned v = VLAN_FIRST, last; v <= VLAN_LAST && used < CONFIG_VLAN_TEXT; v = last + 1) {
		last = v;
		if (!vl_vlan_allowed(&vlan->listed, v))
			continue;
		while (last < VLAN_LAST && vl_vlan_allowed(&vlan->listed, last + 1))
			last++;
		used += (size_t)snprintf(text + used, CONFIG_VLAN_TEXT - used, last > v ? "%s%u-%u" : "%s%u", text[used - 1] == ':' ? "" : "+", v, last);
	}
	if (vlan->id && used < CONFIG_VLAN_TEXT)
		snprintf(text + used, CONFIG_VLAN_TEXT - used, "/" NATIVE_PREFIX "%u", vlan->id);
	return text;
}
