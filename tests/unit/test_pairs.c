// SPDX-License-Identifier: BSD-2-Clause
/* key=value words of a command line: what is taken, and what is said of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "cli/pairs.h"
#include "common/util.h"

static void splits_at_the_first_equals(void **state)
{
	struct error error = { 0 };
	json_t *given = json_object();
	char key[PAIR_KEY_MAX];

	assert_string_equal(pair_split("socket=/a=b", "port vm1", "queues=2", given, key, &error), "/a=b");
	assert_string_equal(key, "socket");
	assert_string_equal(pair_split("cpu=", "queue vm1/0", "cpu=N", given, key, &error), "");
	assert_string_equal(key, "cpu");
	json_decref(given);
}

static void what_is_no_pair_is_shown_how(void **state)
{
	static const char *const words[] = { "", "cpu", "=3", "0123456789012345678901234567890123456789012345678901234567890123=1" };
	json_t *given = json_object();
	char key[PAIR_KEY_MAX];

	for (unsigned i = 0; i < ARRAY_SIZE(words); i++) {
		struct error error = { 0 };

		assert_null(pair_split(words[i], "queue vm1/0", "cpu=N", given, key, &error));
		assert_int_equal(strncmp(error.text, "queue vm1/0, '", 14), 0);
		assert_non_null(strstr(error.text, "not key=value; write for instance cpu=N"));
	}
	json_decref(given);
}

static void no_key_twice(void **state)
{
	struct error error = { 0 };
	json_t *given = json_object();
	char key[PAIR_KEY_MAX];

	assert_int_equal(pair_put(given, "policy", "per-port", "worker set", &error), 0);
	assert_non_null(pair_split("pin=no", "worker set", "pin=yes", given, key, &error));
	assert_null(pair_split("policy=per-cpu", "worker set", "pin=yes", given, key, &error));
	assert_string_equal(error.text, "worker set, key 'policy': given twice; give it once");
	json_decref(given);
}

static void unknown_keys_get_a_suggestion(void **state)
{
	static const char *const keys[] = { "policy", "per-port", "pin" };
	struct error error = { 0 };

	for (unsigned i = 0; i < ARRAY_SIZE(keys); i++)
		assert_int_equal(pair_find_key(keys[i], keys, ARRAY_SIZE(keys), "worker set", &error), i);
	assert_true(pair_find_key("polcy", keys, ARRAY_SIZE(keys), "worker set", &error) < 0);
	assert_int_equal(strncmp(error.text, "worker set, key 'polcy': unknown", 32), 0);
	assert_non_null(strstr(error.text, "'policy'"));
}

/* A value that JSON can't carry must not be lost on the way. */
static void what_is_no_utf8_is_refused(void **state)
{
	struct error error = { 0 };
	json_t *params = json_object();

	assert_true(pair_put(params, "group", "k\xffvm", "port vm1", &error) < 0);
	assert_non_null(strstr(error.text, "port vm1, group"));
	assert_non_null(strstr(error.text, "UTF-8"));
	assert_int_equal(json_object_size(params), 0);
	assert_int_equal(pair_put(params, "group", "kvm", "port vm1", &error), 0);
	assert_string_equal(json_string_value(json_object_get(params, "group")), "kvm");
	json_decref(params);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(splits_at_the_first_equals),
		cmocka_unit_test(what_is_no_pair_is_shown_how),
		cmocka_unit_test(no_key_twice),
		cmocka_unit_test(unknown_keys_get_a_suggestion),
		cmocka_unit_test(what_is_no_utf8_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
