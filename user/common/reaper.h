/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Does in a thread of its own what may take long or for ever, in the order in which it was given: closing a descriptor that
 * a stranger sent (close() asks its file system, and a FUSE server answers when it likes), unmapping and freeing gigabytes.
 *
 * One reaper an owner, so that whoever sends something on which a thread sticks holds up only what is his. Its thread is
 * made when there is work and goes after a while without. What is handed over is bounded by the owner: it looks at
 * reaper_backlog() and takes in nothing more from its peer while that is long.
 *
 * Owner's thread, but for what the reaper runs. A NULL reaper does everything at once, in the caller's thread.
 */
#ifndef VHOSTLANE_COMMON_REAPER_H
#define VHOSTLANE_COMMON_REAPER_H

#include <stdbool.h>
#include <stdint.h>

struct reaper;

/* Return: NULL when out of memory. */
struct reaper *reaper_create(void);

/* Does not wait: what is handed over is still done, unless the process ends before, which releases it all. NULL is fine. */
void reaper_free(struct reaper *reaper);

/* @act runs once, with @argument, in the reaper's thread, after all that was handed over before. */
void reaper_do(struct reaper *reaper, void (*act)(void *argument), void *argument);

/* Closes a descriptor of whatever kind. -1 is fine. */
void reaper_close(struct reaper *reaper, int fd);

/* What is handed over and not done. */
unsigned reaper_backlog(struct reaper *reaper);

/* For how long the reaper has been at the same piece of work; 0 if at none. */
uint64_t reaper_stuck_ns(struct reaper *reaper);

/* True if @fd is an eventfd. Asks no file system, so it is safe with any descriptor. */
bool fd_is_eventfd(int fd);

#endif
