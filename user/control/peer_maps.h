/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How another process has mapped a file that it handed to us: shared, or privately, so that what it writes never reaches the file.
 * The system is asked in the reaper's thread, because a process can see to it that looking at its mappings takes for ever.
 * Control thread.
 */
#ifndef VHOSTLANE_CONTROL_PEER_MAPS_H
#define VHOSTLANE_CONTROL_PEER_MAPS_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/reaper.h"

/* Questions about one process, and answers. */
struct peer_maps;

struct peer_maps_answer {
	dev_t device;
	ino_t inode;
	bool unshared; /* mapped, and nowhere shared. False also if the process is out of sight, or does not have the file mapped */
};

/* Return: NULL if out of memory or descriptors. */
struct peer_maps *peer_maps_open(pid_t pid, struct reaper *reaper);
/* Waits for nobody; answers still to come go nowhere. NULL is fine. */
void peer_maps_close(struct peer_maps *maps);

void peer_maps_ask(struct peer_maps *maps, dev_t device, ino_t inode);
/* Readable when there are answers. */
int peer_maps_fd(const struct peer_maps *maps);
/* Return: false if there is none (any more); the descriptor is quiet then. */
bool peer_maps_take(struct peer_maps *maps, struct peer_maps_answer *answer);

#endif
