#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# `make check`: installs what is missing, builds every variant with warnings as errors, and runs all tests. All stages are run, also
# after a failure; the last line counts tests. Output of each stage: build/check/STAGE.log.
#   check.sh                all stages
#   check.sh STAGE ...      only these (see the table at the end)
set -uo pipefail
shopt -s extglob
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS

python=${PYTHON:-/usr/bin/python3}
jobs=$(nproc)
logs=build/check
passed=0 failed=0 skipped=0 stage_tests=0
failures=()

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-second_deadlock_stack=1:exitcode=66}

sum() { awk '{ n += $1 } END { print n + 0 }'; }

# Adds what cmocka and pytest report in a log. Nothing is counted that does not say so itself.
count() {
	local log=$1 status=$2 p f s
	p=$({ grep -oP '\[  PASSED  \] \K[0-9]+(?= test)' "$log"; summary "$log" | grep -oP '[0-9]+(?= passed)'; } | sum)
	f=$({ grep -oP '\[  FAILED  \] \K[0-9]+(?= test)' "$log"; summary "$log" | grep -oP '[0-9]+(?= (failed|error))'
		grep -c '^DIED ' "$log"; } | sum)
	s=$({ grep -oP '\[  SKIPPED \] \K[0-9]+(?= test)' "$log"; summary "$log" | grep -oP '[0-9]+(?= skipped)'; } | sum)
	# A stage that failed without naming a test is one failure: of the build, or of the runner.
	if [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	stage_tests=$((p + f + s))
}
summary() { grep -E '^(=+ )?([0-9]+ (passed|failed|skipped|error|errors|deselected|warnings?|xfailed|xpassed)(, )?)+ in [0-9.]+s' "$1"; }

# Stages joined by "+" run side by side: they wait more than they compute, and share nothing.
run_group() {
	local stage stages=${1//+/ }
	for stage in $stages; do
		(
			begin=$SECONDS status=0
			"stage_${stage//-/_}" > "$logs/$stage.log" 2>&1 < /dev/null || status=$?
			echo "$status $((SECONDS - begin))" > "$logs/$stage.status"
		) &
	done
	wait
	for stage in $stages; do report_stage "$stage"; done
}

# What failed, rather than the noise behind it.
excerpt() {
	if grep -q '^=* FAILURES =*$' "$1"; then
		sed -n '/^=* FAILURES =*$/,$p' "$1" | head -n 60
		tail -n 1 "$1"
	else
		grep -hE '^\[  FAILED  \]|^DIED ' "$1"
		tail -n 60 "$1"
	fi
}

report_stage() {
	local name=$1 log=$logs/$1.log status seconds verdict=ok
	read -r status seconds < "$logs/$name.status"
	count "$log" "$status"
	[ "$status" -eq 0 ] || verdict=FAILED
	printf '%-16s %-7s %4d s  %4d tests\n' "$name" "$verdict" "$seconds" "$stage_tests"
	if [ "$status" -ne 0 ]; then
		failures+=("$name")
		excerpt "$log" | sed 's/^/    | /'
	fi
	grep -h '^UNSTEADY ' "$log" | sed 's/^/    failed once, passed when run again: /'
	# A skip names its reason: pytest's -rs does; cmocka's tests print a line `skipped: REASON` first.
	grep -hE '^SKIPPED \[|^skipped: ' "$log" | sort | uniq -c | sed 's/^ *\([0-9]*\) /    \1 x /'
	return 0
}

# All cmocka programs of one variant: units, BPF programs by BPF_PROG_TEST_RUN, lanes over veth.
unit() {
	local variant=$1 status=0 code program start
	for program in $(make -s VARIANT="$variant" list-tests); do
		start=$SECONDS
		timeout 600 "$program" 2>&1
		code=$?
		echo "== $program: exit status $code, $((SECONDS - start)) s"
		[ "$code" -eq 0 ] || status=1
		# cmocka exits with the number of failed tests; a crash takes its report along.
		[ "$code" -lt 124 ] || echo "DIED $program: exit status $code"
	done
	return $status
}

run_pytest() { VHOSTLANE_BUILD=$build "$python" -m pytest -p no:cacheprovider -q -rsfE --tb=short "$@" 2>&1; }

# One file, whose output comes in one piece. 5: -k leaves nothing of it.
run_file() {
	local status=0 text
	text=$(run_pytest "$@") || status=$?
	[ "$status" -eq 5 ] && return 0
	printf '%s\n' "$text"
	return "$status"
}
export -f run_pytest run_file

# tests BUILD BESIDE FILE... [-k WORDS]: so many files side by side, the largest first. More than one only where the tests of different
# files share nothing and wait more than they compute. -p: no cache files in the tree.
tests() {
	export build=$1 python
	local beside=$2 files=() first second status=0 again
	shift 2
	while [ $# -gt 0 ] && [ "$1" != -k ]; do
		files+=("$1")
		shift
	done
	first=$(mktemp)
	if [ "$beside" -eq 1 ]; then
		run_pytest "${files[@]}" "$@" > "$first" || status=$?
	else
		# shellcheck disable=SC2011,SC2012 # their names are ours
		ls -S "${files[@]}" | xargs -P "$beside" -I FILE bash -c 'run_file "$@"' run_file FILE "$@" > "$first" || status=$?
	fi
	mapfile -t again < <(grep -oP '^(FAILED|ERROR) \K[^ ]+::[^ ]+' "$first" | sort -u)
	if [ "$status" -ne 0 ] && [ ${#again[@]} -gt 0 ] && [ ${#again[@]} -le 6 ]; then
		# Real guests, real kernels, emulated machines: a few that fail are run once more by themselves, and named if they pass then.
		echo "== again: ${again[*]}" >> "$first"
		second=$(mktemp)
		if run_pytest "${again[@]}" > "$second"; then
			status=0
			cat "$second" >> "$first"
			sed -i -E 's/^[0-9]+ failed, ([0-9]+ passed)/\1/; s/^[0-9]+ (failed|errors?) in /0 passed in /; s/^([0-9]+ passed(, [0-9]+ skipped)?), [0-9]+ errors? /\1 /' "$first"
			printf 'UNSTEADY %s\n' "${again[@]}" >> "$first"
		else
			sed 's/^/again: /' "$second" >> "$first" # failures count once
		fi
		rm -f "$second"
	fi
	if [ "$status" -eq 0 ] && ! summary "$first" | grep -q passed; then
		echo "no test of ${files[*]} was run"
		status=1
	fi
	cat "$first"
	rm -f "$first"
	return "$status"
}

stage_dependencies() { scripts/install-deps.sh test; }
stage_includes() { scripts/check-includes.sh; }
stage_build() { make -s -j"$jobs" all unit-tests; }
# The fuzz targets are clang's, too.
stage_build_clang() { make -s -j"$jobs" CC=clang OUT=build/clang OPT="-O1 -g" build/clang/vhostlane && make -s -j"$jobs" fuzz-targets; }
stage_build_asan() { make -s -j"$jobs" VARIANT=asan build/asan/vhostlane unit-tests; }
stage_build_tsan() { make -s -j"$jobs" VARIANT=tsan build/tsan/vhostlane; }
stage_unit() { unit release; }
stage_unit_asan() { unit asan; }
stage_frontend_asan() { tests build/asan 3 tests/frontend/test_*.py; }
# Where several threads meet. Hostile rings and wrong messages are one thread's business, and for the address sanitizer.
stage_frontend_tsan() { tests build/tsan 2 tests/frontend/test_*.py -k "data or session or calls or worker or release"; }
stage_net() { tests build 3 tests/net/test_!(testpmd).py; }
# Alone: it makes huge pages for itself, and every daemon beside it would take some.
stage_testpmd() { tests build 1 tests/net/test_testpmd.py; }
stage_guest() { tests build 2 tests/guest/test_*.py; }
stage_rig() { tests build 1 tests/rig/test_*.py; }
# As long as make fuzz takes: FUZZ_SECONDS, 60 by default, a target.
stage_fuzz() { make -s -j"$jobs" fuzz-targets && make -s fuzz; }

all=(dependencies includes build build-asan build-tsan build-clang+unit+unit-asan+frontend-asan+frontend-tsan+net testpmd guest rig fuzz)

if [ "$(id -u)" -ne 0 ]; then
	echo "check.sh: needs root: tests make network interfaces and load BPF programs; use: sudo make check" >&2
	exit 1
fi
mkdir -p "$logs"
[ $# -gt 0 ] || set -- "${all[@]}"
for group in "$@"; do
	for stage in ${group//+/ }; do
		if ! declare -F "stage_${stage//-/_}" > /dev/null; then
			echo "check.sh: unknown stage '$stage': not one of ${all[*]//+/ }; name one of them" >&2
			exit 2
		fi
	done
done
for group in "$@"; do run_group "$group"; done

[ ${#failures[@]} -eq 0 ] || printf '\nfailed stages: %s (logs in %s)\n' "${failures[*]}" "$logs"
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ ${#failures[@]} -eq 0 ] && [ "$failed" -eq 0 ]
