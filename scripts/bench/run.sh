#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# make bench: speed against DPDK, what an idle daemon costs, how soon it is ready, TCP of whole guests. Tables under build/bench.
#   QUICK=1    fewer and shorter turns
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

if [ "$(id -u)" -ne 0 ]; then
	echo "run.sh: needs root: it makes interfaces and takes huge pages; use: sudo make bench" >&2
	exit 1
fi
scripts/install-deps.sh test
env -u MAKEFLAGS -u MAKELEVEL make -s -j"$(nproc)" all benches
mkdir -p build/bench

status=0
for part in forwarding footprint tcp; do
	/usr/bin/python3 "scripts/bench/$part.py" --output "build/bench/$part.md" || status=1
done
cat build/bench/forwarding.md build/bench/footprint.md build/bench/tcp.md > build/bench/bench.md 2>/dev/null || status=1
[ "$status" -eq 0 ] && echo "build/bench/bench.md"
exit "$status"
