#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# TCP of whole guests with and without offloads and against QEMU's own virtio backend; part of make bench. Table: build/bench/tcp.md.
#   tcp.sh [--quick] [--turns N] [--seconds N]
#   QUICK=1    fewer and shorter turns
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

if [ "$(id -u)" -ne 0 ]; then
	echo "tcp.sh: needs root: it makes interfaces and starts guests; use: sudo scripts/bench/tcp.sh" >&2
	exit 1
fi
scripts/install-deps.sh test
env -u MAKEFLAGS -u MAKELEVEL make -s -j"$(nproc)" all benches
exec /usr/bin/python3 scripts/bench/tcp.py --output build/bench/tcp.md "$@"
