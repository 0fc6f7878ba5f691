/* SPDX-License-Identifier: BSD-2-Clause */
/* Options of `run` and `check` that fill struct config: in the order given, the default file before them all. */
#ifndef VHOSTLANE_CLI_CONFIG_OPTIONS_H
#define VHOSTLANE_CLI_CONFIG_OPTIONS_H

#include "cli/command.h"
#include "control/config.h"

struct config_options {
	struct config config;
	bool file_given;
	bool file_failed; /* what is wrong stands in a file: no wrong use of the command */
	bool file_loaded;
	bool verbose;
	bool json; /* check only */
};

/* Rows shared by both commands' tables. */
#define CONFIG_OPTIONS                                                                                                             \
	{ OPTION_CALL, "config", 'c', "FILE", "read FILE (default " CONFIG_FILE_DEFAULT ", if it exists)", 0, option_config },      \
	{ OPTION_CALL, "uplink", 0, "IFNAME[,key=value]", "share this host interface; may be repeated. Keys: mode, queues", 0, option_uplink }, \
	{ OPTION_CALL, "port", 0, "NAME=SOCKET[,key=value]...",                                                                    \
	  "a guest's port; may be repeated. Keys: mac, queues, role, vlan, busy-poll-us, node, mtu, offloads, uplink, group", 0, option_port },     \
	{ OPTION_CALL, "cpus", 0, "LIST", "CPUs of the workers, like 0-3,8 (default: all allowed)", 0, option_cpus },               \
	{ OPTION_CALL, "policy", 0, "POLICY", "per-cpu (default), per-port or multi-worker", 0, option_policy },                   \
	{ OPTION_CALL, "workers-per-port", 0, "N", "workers of one port under multi-worker (default 2)", 0, option_per_port },     \
	{ OPTION_CALL, "threads", 0, "N", "worker slots (default: one a CPU; 32 where the policy ties workers to ports)", 0, option_threads }, \
	{ OPTION_CALL, "no-pin", 0, NULL, "leave the workers to the scheduler (default: pinned)", 0, option_no_pin },              \
	{ OPTION_CALL, "control", 0, "SOCKET", "control socket (default " CONFIG_CONTROL_DEFAULT ")", 0, option_control }

int option_config(void *target, const char *value, struct error *error);
int option_uplink(void *target, const char *value, struct error *error);
int option_port(void *target, const char *value, struct error *error);
int option_cpus(void *target, const char *value, struct error *error);
int option_policy(void *target, const char *value, struct error *error);
int option_per_port(void *target, const char *value, struct error *error);
int option_threads(void *target, const char *value, struct error *error);
int option_no_pin(void *target, const char *value, struct error *error);
int option_control(void *target, const char *value, struct error *error);

/**
 * config_run() - the whole of a command that needs the configuration
 * @act: does it, with the configuration checked among itself. Return: enum exit_code; says itself what is wrong
 * Return: enum exit_code
 */
int config_run(const struct command *command, int argc, char **argv, int (*act)(struct config_options *options));

#endif
