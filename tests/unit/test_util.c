// SPDX-License-Identifier: BSD-2-Clause
/* Helpers: strings, numbers, addresses, small files, errors, suggestions, log lines and their limit. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/error.h"
#include "common/log.h"
#include "common/suggest.h"
#include "common/util.h"

static void numbers(void **state)
{
	static const char *const bad[] = { "", " 1", "1 ", "-1", "+1", "0x10", "1e3", "18446744073709551616", "99999999999999999999999" };
	uint64_t v = 7;

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		assert_false(number_parse(bad[i], 0, UINT64_MAX, &v));
	assert_int_equal(v, 7);
	assert_true(number_parse("18446744073709551615", 0, UINT64_MAX, &v));
	assert_true(v == UINT64_MAX);
	assert_true(number_parse("007", 7, 7, &v));
	assert_int_equal(v, 7);
	assert_false(number_parse("8", 0, 7, &v));
	assert_false(number_parse("6", 7, 9, &v));
}

static void macs(void **state)
{
	static const char *const bad[] = { "",	"52:54:00:12:34",	 "52:54:00:12:34:5", "52:54:00:12:34:56:", "52:54:00:12:34:56:78", "52-54-00-12-34-56",
					   "g2:54:00:12:34:56", "5254:00:12:34:56", " 52:54:00:12:34:56" };
	uint8_t mac[6] = { 1, 2, 3, 4, 5, 6 };
	char text[MAC_TEXT];

	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++)
		assert_false(mac_parse(bad[i], mac));
	assert_int_equal(mac[0], 1);
	assert_true(mac_parse("52:54:00:Ab:cD:ef", mac));
	assert_string_equal(mac_format(mac, text), "52:54:00:ab:cd:ef");
}

static void strings(void **state)
{
	char to[5] = "xxxx";

	assert_true(copy_string(to, sizeof(to), "abcd"));
	assert_string_equal(to, "abcd");
	assert_false(copy_string(to, sizeof(to), "abcde"));
	assert_string_equal(to, "abcd");
	assert_false(copy_string(to, 0, ""));
	assert_true(copy_string(to, 1, ""));
	assert_string_equal(to, "");
}

static void aligned(void **state)
{
	static const size_t sizes[] = { 0, 1, 64, 65, 4097 };

	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint8_t *p = zalloc_aligned(sizes[i]);

		assert_non_null(p);
		assert_int_equal((uintptr_t)p % CACHE_LINE, 0);
		for (size_t j = 0; j < sizes[i]; j++)
			assert_int_equal(p[j], 0);
		free(p);
	}
	assert_null(zalloc_aligned(SIZE_MAX));
}

static void files(void **state)
{
	char path[] = "/tmp/vhostlane-util-XXXXXX", text[9];
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(write_text(path, "1234567\n"), 0);
	assert_int_equal(read_text(path, text, sizeof(text)), 7);
	assert_string_equal(text, "1234567");
	/* A file that does not fit is no value: its beginning alone would be another one. */
	assert_int_equal(write_text(path, "123456789"), 0);
	assert_int_equal(read_text(path, text, sizeof(text)), -E2BIG);
	assert_string_equal(text, "12345678");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(read_text(path, text, sizeof(text)), -ENOENT);
	assert_string_equal(text, "");
	assert_int_equal(write_text(path, "x"), -ENOENT);
	assert_int_equal(read_text("/", text, sizeof(text)), -EISDIR);
}

static void errors(void **state)
{
	struct error error = { 0 };
	char text[2000];

	assert_int_equal(error_set(NULL, -EIO, "x"), -EIO);
	assert_int_equal(error_set(&error, -EINVAL, "queues '%d': too many; give fewer", 9), -EINVAL);
	assert_int_equal(error.code, -EINVAL);
	assert_string_equal(error.text, "queues '9': too many; give fewer");
	error_set(&error, -EINVAL, "port vm1, %s", error.text); /* quotes itself */
	assert_string_equal(error.text, "port vm1, queues '9': too many; give fewer");

	/* Out of descriptors: whatever was tried, only the limit helps. */
	error_set(&error, -EMFILE, "uplink x: does not load: %s; it needs Linux 6.1; see the log", strerror(EMFILE));
	assert_string_equal(error.text, "uplink x: does not load: Too many open files; raise the limit of open files (ulimit -n, LimitNOFILE=)");
	error_set(&error, -EMFILE, "port vm1: %s", error.text);
	assert_string_equal(error.text, "port vm1: uplink x: does not load: Too many open files; raise the limit of open files (ulimit -n, LimitNOFILE=)");
	error_set(&error, -ENFILE, "x: no socket; run as root");
	assert_string_equal(error.text, "x: no socket; raise the system's limit of open files (sysctl fs.file-max)");
	memset(error.text, 0, sizeof(error.text));
	error_set(&error, -EMFILE, "%0800d: %s; as root", 1, strerror(EMFILE)); /* longer than there is room for */
	assert_int_equal(strlen(error.text), sizeof(error.text) - 1);
	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	error_set(&error, -EINVAL, "%s", text);
	assert_int_equal(strlen(error.text), sizeof(error.text) - 1);
}

static void suggestions(void **state)
{
	static const char *const words[] = { "queues", "mac", "role", "busy-poll-us", "run" };
	char text[128], small[12];

	assert_string_equal(suggest("quees", words, ARRAY_SIZE(words)), "queues");
	assert_string_equal(suggest("rnu", words, ARRAY_SIZE(words)), "run");
	assert_string_equal(suggest("busy_poll_us", words, ARRAY_SIZE(words)), "busy-poll-us");
	assert_null(suggest("xyz", words, ARRAY_SIZE(words)));
	assert_null(suggest("", words, ARRAY_SIZE(words)));
	memset(text, 'q', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	assert_null(suggest(text, words, ARRAY_SIZE(words)));
	assert_string_equal(suggest_text("zzz", words, 2, text, sizeof(text)), "; known: queues, mac");
	assert_string_equal(suggest_text("mca", words, 2, text, sizeof(text)), "; did you mean 'mac'?");
	assert_string_equal(suggest_text("zzz", words, 2, small, sizeof(small)), "; known: qu");
}

/* Runs @body with stderr in a pipe. Return: what it wrote. */
static const char *captured(void (*body)(void))
{
	static char text[8192];
	int saved = dup(STDERR_FILENO), pipes[2];
	ssize_t n;

	assert_int_equal(pipe(pipes), 0);
	dup2(pipes[1], STDERR_FILENO);
	close(pipes[1]);
	body();
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = read(pipes[0], text, sizeof(text) - 1);
	close(pipes[0]);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void say_levels(void)
{
	log_error("port %s: gone", "vm1");
	log_warning("two\nlines\x1b[31m");
	log_info("info");
	log_debug("hidden");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("shown");
	log_set_level(LOG_LEVEL_INFO);
}

static void say_long(void)
{
	char text[5000];

	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_info("%s", text);
}

static void say_much(void)
{
	for (unsigned i = 0; i < 1000; i++)
		log_limited(LOG_LEVEL_INFO, "line");
}

static unsigned lines(const char *text)
{
	unsigned n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void log_lines(void **state)
{
	const char *text = captured(say_levels);

	assert_string_equal(text, "vhostlane: port vm1: gone\nvhostlane: warning: two lines?[31m\nvhostlane: info\nvhostlane: debug: shown\n");
	text = captured(say_long);
	assert_int_equal(lines(text), 1);
	assert_int_equal(text[strlen(text) - 1], '\n');
	assert_int_equal(lines(captured(say_much)), LOG_LIMIT_BURST);
}

static void limit_opens_again(void **state)
{
	struct log_limit limit = { 0 };
	unsigned passed = 0;

	for (unsigned i = 0; i < 100; i++)
		passed += log_limit_pass(&limit);
	assert_int_equal(passed, LOG_LIMIT_BURST);
	assert_int_equal(limit.held_back, 100 - LOG_LIMIT_BURST);
	limit.window_start_ns = now_ns() - LOG_LIMIT_NS - 1;
	assert_true(log_limit_pass(&limit));
	assert_int_equal(limit.held_back, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers), cmocka_unit_test(macs),	  cmocka_unit_test(strings),   cmocka_unit_test(aligned),
		cmocka_unit_test(files),   cmocka_unit_test(errors),	  cmocka_unit_test(suggestions), cmocka_unit_test(log_lines),
		cmocka_unit_test(limit_opens_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
