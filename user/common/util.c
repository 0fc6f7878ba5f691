// SPDX-License-Identifier: BSD-2-Clause
#include "common/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *zalloc_aligned(size_t size)
{
	void *memory;

	if (size > SIZE_MAX - CACHE_LINE)
		return NULL;
	/* aligned_alloc() wants a multiple of the alignment; at least one line so that 0 is no special case. */
	size = (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
	if (size == 0)
		size = CACHE_LINE;
	memory = aligned_alloc(CACHE_LINE, size);
	if (memory)
		memset(memory, 0, size);
	return memory;
}

bool copy_string(char *to, size_t size, const char *from)
{
	size_t length = strlen(from);
	bool fits = length < size;

	if (size == 0)
		return false;
	if (!fits)
		length = size - 1;
	memmove(to, from, length);
	to[length] = '\0';
	return fits;
}

int read_text(const char *path, char *buffer, size_t size)
{
	size_t length = 0;
	int fd, result = 0;

	if (size == 0)
		return -EINVAL;
	buffer[0] = '\0';
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (;;) {
		char beyond;
		/* A full buffer asks for one byte more: a file that was cut must not pass for a whole one. */
		bool full = length == size - 1;
		ssize_t n = full ? read(fd, &beyond, 1) : read(fd, buffer + length, size - 1 - length);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			result = -errno;
			break;
		}
		if (n == 0)
			break;
		if (full) {
			result = -E2BIG;
			break;
		}
		length += (size_t)n;
	}
	close(fd);
	buffer[length] = '\0';
	if (result < 0)
		return result;
	if (length && buffer[length - 1] == '\n')
		buffer[--length] = '\0';
	return (int)length;
}

int write_text(const char *path, const char *text)
{
	size_t length = strlen(text);
	int fd = open(path, O_WRONLY | O_CLOEXEC), result = 0;
	ssize_t n;

	if (fd < 0)
		return -errno;
	/* sysfs and procfs take a value in one write(); a part of one would be another value. */
	do
		n = write(fd, text, length);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		result = -errno;
	else if ((size_t)n != length)
		result = -EIO;
	if (close(fd) != 0 && result == 0)
		result = -errno;
	return result;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool mac_parse(const char *text, uint8_t mac[6])
{
	uint8_t parsed[6];

	for (unsigned i = 0; i < 6; i++, text += 3) {
		int high = hex_digit(text[0]), low = high < 0 ? -1 : hex_digit(text[1]);

		if (low < 0 || text[2] != (i < 5 ? ':' : '\0'))
			return false;
		parsed[i] = (uint8_t)(high << 4 | low);
	}
	memcpy(mac, parsed, sizeof(parsed));
	return true;
}

const char *mac_format(const uint8_t mac[6], char text[MAC_TEXT])
{
	snprintf(text, MAC_TEXT, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
	return text;
}

bool number_parse(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *value)
{
	uint64_t v = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || __builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*text - '0'), &v))
			return false;
	}
	if (v < minimum || v > maximum)
		return false;
	*value = v;
	return true;
}
