/* SPDX-License-Identifier: BSD-2-Clause */
/* The daemon: starts everything in order, runs the control loop, undoes everything in reverse. Control thread only. */
#ifndef VHOSTLANE_CONTROL_DAEMON_H
#define VHOSTLANE_CONTROL_DAEMON_H

#include "common/error.h"
#include "control/config.h"

/**
 * daemon_run() - serve until SIGTERM, SIGINT, SIGHUP or SIGQUIT
 * @config: checked; belongs to the caller and must outlive the call
 *
 * Prints `ready` on stdout and tells systemd when sockets exist and programs are attached.
 * Return: 0 after a signal; negative errno value with *error filled if it failed (everything is undone then).
 */
int daemon_run(struct config *config, struct error *error);

#endif
