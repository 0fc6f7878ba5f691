/* SPDX-License-Identifier: BSD-2-Clause */
/* Words like "cpu=3" behind a command: what they say, before anybody judges it. */
#ifndef VHOSTLANE_CLI_PAIRS_H
#define VHOSTLANE_CLI_PAIRS_H

#include <jansson.h>

#include "common/error.h"

#define PAIR_KEY_MAX 64

/**
 * pair_split() - a word's key and value
 * @whom:    whose word it is ("queue vm1/0"); errors start with it
 * @example: what to write instead
 * @given:   object of the keys given before: none may come twice
 * @key:     PAIR_KEY_MAX bytes
 * Return: the value, within @word; NULL with *error
 */
const char *pair_split(const char *word, const char *whom, const char *example, const json_t *given, char *key, struct error *error);

/* Which of @keys it is. Return: its index, or -EINVAL with *error, which suggests one. */
int pair_find_key(const char *key, const char *const *keys, unsigned count, const char *whom, struct error *error);

/* Puts @value under @key into @params. Return: 0, or -EINVAL with *error if it is no UTF-8 text, which JSON can't carry. */
int pair_put(json_t *params, const char *key, const char *value, const char *whom, struct error *error);

#endif
