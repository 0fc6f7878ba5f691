#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# make bench-seeds: the seeds' tables on this machine. Table, plots and all points under build/bench. About 40 minutes on two CPUs.
# A policy has a second to settle before each point.
#   QUICK=1    fewer points and shorter, about 6 minutes
#   KEEP=1     also keep table and plots in docs/
# Options go on to seeds.py (--guests, --repetitions, --seconds, --tables, ...).
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

if [ "$(id -u)" -ne 0 ]; then
	echo "seeds.sh: needs root: it makes interfaces and loads BPF programs; use: sudo make bench-seeds" >&2
	exit 1
fi
scripts/install-deps.sh bench
env -u MAKEFLAGS -u MAKELEVEL make -s -j"$(nproc)" all benches
mkdir -p build/bench

/usr/bin/python3 scripts/bench/seeds.py --output build/bench/seeds.json "$@"
/usr/bin/python3 scripts/bench/seeds_report.py build/bench/seeds.json --directory build/bench
if [ "${KEEP:-0}" != 0 ]; then
	cp build/bench/bench-seeds.md build/bench/bench-seeds-*.svg docs/
	echo "kept in docs/bench-seeds.md"
fi
