#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Prints the newest cloud kernel in /boot: the one test guests boot.
set -euo pipefail
kernel=$(find /boot -maxdepth 1 -name 'vmlinuz-*-cloud-*' | sort -V | tail -n 1)
if [ -z "$kernel" ]; then
	echo "kernel.sh: no /boot/vmlinuz-*-cloud-*: no kernel for test guests; install linux-image-cloud-amd64" >&2
	exit 1
fi
echo "$kernel"
