/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of queue pairs' state. Each lies on pages of its own, so that it can follow its pair to another NUMA node: the kernel moves the
 * page under whoever uses it, and no pointer changes. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_PAIR_MEMORY_H
#define VHOSTLANE_CONTROL_PAIR_MEMORY_H

#include "datapath/plan.h"

/* Zeroed. @number: neighbours' differ. NULL = out of memory. */
struct queue_pair *pair_memory_create(unsigned number);
/* After the grace period that follows its removal. NULL is fine. */
void pair_memory_free(struct queue_pair *pair);

/* Moves it to @node, in microseconds; -1 or a node without room: it stays where it is. */
void pair_memory_follow(struct queue_pair *pair, int node);

#endif
