/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One daemon per uplink: an flock()ed file /run/vhostlane/UPLINK.lock, which the kernel releases with the process. In it stands what the
 * daemon changed on the device, so that the next one can put it back after a crash. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_UPLINK_LOCK_H
#define VHOSTLANE_CONTROL_UPLINK_LOCK_H

#include "common/error.h"
#include "control/netdev.h"

#define UPLINK_LOCK_DIRECTORY "/run/vhostlane"

struct uplink_lock;

/* Takes the lock and puts back what a crashed predecessor changed. Return: NULL with *error; -EBUSY names the holder's process. */
struct uplink_lock *uplink_lock_take(const char *ifname, unsigned ifindex, struct error *error);
/* Would it be refused? Takes and leaves nothing. Return: 0, or -EBUSY with *error. */
int uplink_lock_probe(const char *ifname, struct error *error);
/* Notes the changes in @log in place of those noted before. */
void uplink_lock_record(struct uplink_lock *lock, const struct netdev_undo_log *log);
/* Removes the file: nothing is left to put back. NULL is fine. */
void uplink_lock_release(struct uplink_lock *lock);

#endif
