/* SPDX-License-Identifier: BSD-2-Clause */
/* "Did you mean ...?" for words that a user mistyped. No state; any thread. */
#ifndef VHOSTLANE_COMMON_SUGGEST_H
#define VHOSTLANE_COMMON_SUGGEST_H

#include <stddef.h>

/* The one of @words that @word was most likely meant to be, or NULL if none is near. */
const char *suggest(const char *word, const char *const *words, unsigned count);

/* "; did you mean 'X'?" if one is near, else "; known: A, B, C". Return: @buffer. */
const char *suggest_text(const char *word, const char *const *words, unsigned count, char *buffer, size_t size);

#endif
