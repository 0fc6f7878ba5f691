/* SPDX-License-Identifier: BSD-2-Clause */
/* The control socket's methods (vhostlane/control_abi.h) on the engine. Control thread only. */
#ifndef VHOSTLANE_CONTROL_METHODS_H
#define VHOSTLANE_CONTROL_METHODS_H

#include "control/control_socket.h"
#include "control/engine.h"

extern const struct control_method engine_methods[]; /* context: struct engine */
extern const unsigned engine_method_count;

#endif
