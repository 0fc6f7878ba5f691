/* SPDX-License-Identifier: BSD-2-Clause */
/* For tests that take frames off a ring: a driver, which is their state, and a burst to take them into. */
#ifndef VHOSTLANE_TESTS_UNIT_RING_BURST_H
#define VHOSTLANE_TESTS_UNIT_RING_BURST_H

#include "common/util.h"
#include "ring_driver.h"

static struct frame_burst *burst;

static inline int setup(void **state)
{
	burst = zalloc_aligned(sizeof(*burst));
	return driver_begin(state);
}

static inline int teardown(void **state)
{
	free(burst);
	return driver_end(state);
}

/* Writes header and frame at address as one stream; @length without the header. */
static inline void write_frame(struct driver *d, uint64_t address, uint32_t length, uint8_t seed)
{
	uint8_t *data = malloc(length + 1);

	assert_non_null(data);
	pattern(data, length, seed);
	driver_write(d, address, &marked, sizeof(marked));
	driver_write(d, address + sizeof(marked), data, length);
	free(data);
}

#endif
