/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/counters.h"

#define PORT_COUNTER_TEXT(name, text, drop) [PORT_##name] = text,
const char *const port_counter_names[PORT_COUNTER_COUNT] = {PORT_COUNTERS(PORT_COUNTER_TEXT)};

#define PORT_COUNTER_DROP(name, text, drop) [PORT_##name] = drop,
const uint8_t port_counter_is_drop[PORT_COUNTER_COUNT] = {PORT_COUNTERS(PORT_COUNTER_DROP)};

#define WORKER_COUNTER_TEXT(name, text, drop) [WORKER_##name] = text,
const char *const worker_counter_names[WORKER_COUNTER_COUNT] = {WORKER_COUNTERS(WORKER_COUNTER_TEXT)};

#define WORKER_COUNTER_DROP(name, text, drop) [WORKER_##name] = drop,
const uint8_t worker_counter_is_drop[WORKER_COUNTER_COUNT] = {WORKER_COUNTERS(WORKER_COUNTER_DROP)};
