// SPDX-License-Identifier: BSD-2-Clause
#include "common/suggest.h"

#include <stdio.h>
#include <string.h>

#include "common/util.h"

#define WORD_MAX 48 /* longer words are no typing errors */

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal string alignment). */
static unsigned distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);
	unsigned row[3][WORD_MAX + 1];

	if (la > WORD_MAX || lb > WORD_MAX)
		return WORD_MAX;
	for (size_t j = 0; j <= lb; j++)
		row[0][j] = (unsigned)j;
	for (size_t i = 1; i <= la; i++) {
		unsigned *now = row[i % 3], *before = row[(i + 2) % 3], *two_before = row[(i + 1) % 3];

		now[0] = (unsigned)i;
		for (size_t j = 1; j <= lb; j++) {
			unsigned best = before[j - 1] + (a[i - 1] != b[j - 1]);

			best = min_u32(best, before[j] + 1);
			best = min_u32(best, now[j - 1] + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				best = min_u32(best, two_before[j - 2] + 1);
			now[j] = best;
		}
	}
	return row[la % 3][lb];
}

const char *suggest(const char *word, const char *const *words, unsigned count)
{
	const char *best = NULL;
	/* A third of the letters may be wrong, but never the whole of a short word. */
	unsigned limit = (unsigned)min_u32((uint32_t)(strlen(word) + 2) / 3, 3) + 1;

	for (unsigned i = 0; i < count; i++) {
		unsigned d = distance(word, words[i]);

		if (d < limit && d < strlen(words[i])) {
			limit = d;
			best = words[i];
		}
	}
	return best;
}

const char *suggest_text(const char *word, const char *const *words, unsigned count, char *buffer, size_t size)
{
	const char *near = suggest(word, words, count);
	size_t length;

	if (near) {
		snprintf(buffer, size, "; did you mean '%s'?", near);
		return buffer;
	}
	snprintf(buffer, size, "; known: ");
	for (unsigned i = 0; i < count; i++) {
		length = strlen(buffer);
		snprintf(buffer + length, size - length, "%s%s", i ? ", " : "", words[i]);
	}
	return buffer;
}
