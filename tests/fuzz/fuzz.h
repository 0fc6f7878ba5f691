/* SPDX-License-Identifier: BSD-2-Clause */
/* What the fuzz targets share: taking decisions from the input, and failing loudly. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                                                                \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                        \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

struct input {
	const uint8_t *at;
	size_t left;
};

/* Zero when the input is used up. */
static inline uint8_t input_byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->at++;
}

static inline uint16_t input_word(struct input *in)
{
	const uint16_t high = input_byte(in);

	return (uint16_t)(high << 8 | input_byte(in));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
