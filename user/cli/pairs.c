// SPDX-License-Identifier: BSD-2-Clause
#include "cli/pairs.h"

#include <errno.h>
#include <string.h>

#include "common/suggest.h"
#include "common/util.h"

const char *pair_split(const char *word, const char *whom, const char *example, const json_t *given, char *key, struct error *error)
{
	const char *equals = strchr(word, '=');

	if (!equals || equals == word || equals - word >= PAIR_KEY_MAX) {
		error_set(error, -EINVAL, "%s, '%.64s': not key=value; write for instance %s", whom, word, example);
		return NULL;
	}
	copy_string(key, (size_t)(equals - word) + 1, word);
	if (json_object_get(given, key)) {
		error_set(error, -EINVAL, "%s, key '%s': given twice; give it once", whom, key);
		return NULL;
	}
	return equals + 1;
}

int pair_find_key(const char *key, const char *const *keys, unsigned count, const char *whom, struct error *error)
{
	char near[64];

	for (unsigned i = 0; i < count; i++)
		if (strcmp(key, keys[i]) == 0)
			return (int)i;
	return error_set(error, -EINVAL, "%s, key '%s': unknown%s", whom, key, suggest_text(key, keys, count, near, sizeof(near)));
}

int pair_put(json_t *params, const char *key, const char *value, const char *whom, struct error *error)
{
	if (json_object_set_new(params, key, json_string(value)) == 0)
		return 0;
	return error_set(error, -EINVAL, "%s, %s '%.128s': no UTF-8 text; write it in UTF-8", whom, key, value);
}
