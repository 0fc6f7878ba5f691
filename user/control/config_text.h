/* SPDX-License-Identifier: BSD-2-Clause */
/* Values as text, for config*.c only: each says what is wrong with the value named @what. Control thread. */
#ifndef VHOSTLANE_CONTROL_CONFIG_TEXT_H
#define VHOSTLANE_CONTROL_CONFIG_TEXT_H

#include <stdint.h>

#include "common/error.h"
#include "control/config.h"

/* One of @names. */
int config_parse_name(const char *value, const char *const *names, unsigned count, const char *what, unsigned *index, struct error *error);
int config_parse_number(const char *value, uint64_t minimum, uint64_t maximum, const char *what, unsigned *number, struct error *error);

/* Absolute, not too long for a Unix socket, printable ASCII without blanks (so that it is fit for options, logs and JSON), no "..". */
int config_check_socket_path(const char *path, const char *what, struct error *error);
int config_check_ifname(const char *ifname, const char *what, struct error *error);

/* "0", "N" or "trunk:A+B-C[/native:N]". @vlan is written only if it is right. */
int config_parse_vlan(const char *value, struct config_vlan *vlan, struct error *error);

#endif
