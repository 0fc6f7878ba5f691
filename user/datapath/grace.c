/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/grace.h"

char grace_order;
