#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# make fuzz: every target for FUZZ_SECONDS (default 60) each, as many side by side as there are CPUs; each counts as one test.
#   run.sh TARGET ...      programs as build/fuzz/fuzz_NAME
#   FUZZ_JOBS=N            side by side
# What made a target fail is kept beside it as NAME.crash-...: give it to the target as its argument to see it again.
set -uo pipefail

seconds=${FUZZ_SECONDS:-60}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
	echo "run.sh: FUZZ_SECONDS is '$seconds': not a number of seconds above 0; give one, or leave it out for 60" >&2
	exit 2
fi
if [ $# -eq 0 ]; then
	echo "run.sh: no targets; name programs that make fuzz-targets has built" >&2
	exit 2
fi

one() {
	local target=$1 log=$1.log status=0 runs
	rm -f "$target".crash-* "$target".timeout-* "$target".oom-* "$target".leak-*
	# -timeout: one input that takes so long is a hang on the slowest machine.
	"$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$target." > "$log" 2>&1 < /dev/null ||
		status=$?
	runs=$(grep -oP '^stat::number_of_executed_units: \K[0-9]+' "$log" | tail -n 1)
	if [ "$status" -eq 0 ] && [ "${runs:-0}" -gt 0 ]; then
		echo "[  PASSED  ] 1 test: $(basename "$target"), $runs inputs in $seconds s"
		return 0
	fi
	tail -n 60 "$log"
	echo "[  FAILED  ] 1 test: $(basename "$target"), exit status $status after ${runs:-no} inputs; log: $log"
	for kept in "$target".crash-* "$target".timeout-* "$target".oom-* "$target".leak-*; do
		[ ! -e "$kept" ] || echo "  again: $target $kept"
	done
	return 1
}
export -f one
export seconds

# One line at a time, so that what two targets print is not mixed.
printf '%s\0' "$@" | xargs -0 -n 1 -P "${FUZZ_JOBS:-$(nproc)}" bash -c 'text=$(one "$1"); status=$?; printf "%s\n" "$text"; exit $status' one
