/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens the kick probe on a thread of its own: libbpf reads all types of the kernel for it, tens of milliseconds in which guests would wait
 * for the control thread. Meanwhile libbpf's own lines are held back, those of others too. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_KICK_OPENER_H
#define VHOSTLANE_CONTROL_KICK_OPENER_H

#include <stdbool.h>

#include "common/error.h"

struct kick_probe;
struct kick_opener;

/* Begins. Return: NULL with the reason in *error: -ENOMEM, -EAGAIN (no more threads). */
struct kick_opener *kick_opener_start(struct error *error);

/*
 * Does not wait. Return: false while it is at it. Then true, with what kick_probe_open() returned in *probe, the caller's from now on, and its
 * reason in *why. Once; after it only kick_opener_close().
 */
bool kick_opener_take(struct kick_opener *opener, struct kick_probe **probe, struct error *why);

/* Waits for the thread; closes a probe that was not taken. NULL is fine. */
void kick_opener_close(struct kick_opener *opener);

#endif
