#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Runs inside the NUMA machine: one line a node, "node N cpus LIST memory KB distance ROW".
set -eu
for node in /sys/devices/system/node/node[0-9]*; do
	printf 'node %s cpus %s memory %s distance %s\n' "${node##*node}" "$(cat "$node/cpulist")" \
		"$(sed -n 's/.*MemTotal: *\([0-9]*\) kB/\1/p' "$node/meminfo")" "$(cat "$node/distance")"
done
