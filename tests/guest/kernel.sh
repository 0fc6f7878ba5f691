#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Prints the newest cloud kernel in /boot: the one test guests boot. VHOSTLANE_TEST_KERNEL names another; its modules lie beside its
# boot directory, as a kernel package unpacks them.
set -euo pipefail
if [ -n "${VHOSTLANE_TEST_KERNEL:-}" ]; then
	echo "$VHOSTLANE_TEST_KERNEL"
	exit 0
fi
kernel=$(find /boot -maxdepth 1 -name 'vmlinuz-*-cloud-*' | sort -V | tail -n 1)
if [ -z "$kernel" ]; then
	echo "kernel.sh: no /boot/vmlinuz-*-cloud-*: no kernel for test guests; install linux-image-cloud-amd64" >&2
	exit 1
fi
echo "$kernel"
