/* SPDX-License-Identifier: BSD-2-Clause */
/* The two kinds of ends: a guest's queue pair, and the remote host behind the wire. Each belongs to one thread (but see struct end, shared). */
#ifndef TESTS_BENCH_ENDS_H
#define TESTS_BENCH_ENDS_H

#include "common/error.h"
#include "frontend.h"
#include "traffic.h"

/* A queue pair; its call eventfd is the end's wake_fd. @poll: never blocks. */
struct guest_end {
	struct end end;
	struct frontend_pair *pair;
	bool poll;
};
void guest_end_init(struct guest_end *end, struct frontend_pair *pair, bool poll);

/* An AF_XDP socket per queue of a device of another network namespace, which is entered by the calling thread and not left. The device's
 * XDP program is ours for that time. */
struct wire_end;
struct wire_end *wire_end_open(const char *namespace, const char *ifname, unsigned queues, bool poll, struct error *error);
void wire_end_close(struct wire_end *wire);
struct end *wire_end_of(struct wire_end *wire);
/* Frames that its device took and lost. */
uint64_t wire_end_lost(const struct wire_end *wire);

#endif
