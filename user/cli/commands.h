/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands, one file per verb. */
#ifndef VHOSTLANE_CLI_COMMANDS_H
#define VHOSTLANE_CLI_COMMANDS_H

#include "cli/command.h"

extern const struct command run_command;						     /* run.c */
extern const struct command check_command;						     /* check.c */
extern const struct command status_command;						     /* status.c */
extern const struct command port_list_command, port_show_command, port_add_command, port_del_command, port_set_command; /* port.c */
extern const struct command queue_list_command, queue_set_command;			     /* queue.c */
extern const struct command worker_list_command, worker_set_command;					     /* worker.c */
extern const struct command uplink_list_command;					     /* uplink.c */
extern const struct command counters_command;						     /* counters.c */

#endif
