#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# `make check-kernels`: BPF, AF_XDP and rig tests inside virtual machines on several kernels. Not part of `make check`: it fetches
# 130 MB of packages the first time, and takes ten minutes or so for each kernel. Nothing is installed (scripts/fetch-kernels.sh).
#   check-kernels.sh                     the distribution's kernel, 6.12, 6.18 and the newest that there is
#   check-kernels.sh KERNEL ...          only these: `own` (newest in /boot), SUITE, SUITE:VERSION-PREFIX, or a vmlinuz's path
# VHOSTLANE_TEST_QEMU: `system` (default) or a suite, such as bookworm-backports, whose QEMU is fetched.
# From 6.18 on zero-copy is real: the rig's NIC has it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS

python=${PYTHON:-/usr/bin/python3}
logs=build/check-kernels
failures=()

if [ "$(id -u)" -ne 0 ]; then
	echo "check-kernels.sh: needs root: tests make network interfaces and tap devices; use: sudo make check-kernels" >&2
	exit 1
fi
[ $# -gt 0 ] || set -- own bookworm-backports:6.12 trixie-backports:6.18 trixie-backports

find_kernel() {
	case $1 in
	own) env -u VHOSTLANE_TEST_KERNEL tests/guest/kernel.sh ;;
	/*) echo "$1" ;;
	*:*) scripts/fetch-kernels.sh kernel "${1%%:*}" "${1#*:}" ;;
	*) scripts/fetch-kernels.sh kernel "$1" ;;
	esac
}

run_suite() {
	local suite=$1 version=$2 start=$SECONDS status=0 log
	log=$logs/$version.$(basename "$suite").log
	printf '%-34s %-14s ' "$version" "$suite"
	"$python" -m pytest -p no:cacheprovider -q -rs --tb=short "$suite" > "$log" 2>&1 < /dev/null || status=$?
	if [ "$status" -eq 0 ]; then
		printf 'ok      %4d s  %s\n' "$((SECONDS - start))" "$(tail -n 1 "$log")"
	else
		printf 'FAILED  %4d s  %s\n' "$((SECONDS - start))" "$(tail -n 1 "$log")"
		failures+=("$version:$suite")
		tail -n 60 "$log" | sed 's/^/    | /'
	fi
	grep -hE '^SKIPPED \[' "$log" | sed 's/^/    /'
}

scripts/install-deps.sh test || exit 1
make -s -j"$(nproc)" all unit-tests || exit 1
mkdir -p "$logs"
case ${VHOSTLANE_TEST_QEMU:=system} in
system) unset VHOSTLANE_TEST_QEMU ;;
/*) ;;
*) VHOSTLANE_TEST_QEMU=$(scripts/fetch-kernels.sh qemu "$VHOSTLANE_TEST_QEMU") || exit 1 ;;
esac
[ -z "${VHOSTLANE_TEST_QEMU:-}" ] || export VHOSTLANE_TEST_QEMU
for name in "$@"; do
	if ! VHOSTLANE_TEST_KERNEL=$(find_kernel "$name"); then
		failures+=("$name")
		continue
	fi
	export VHOSTLANE_TEST_KERNEL
	version=${VHOSTLANE_TEST_KERNEL##*/vmlinuz-}
	for suite in tests/kernels tests/rig; do
		run_suite "$suite" "$version"
	done
done

[ ${#failures[@]} -eq 0 ] || printf '\nfailed: %s (logs in %s)\n' "${failures[*]}" "$logs"
[ ${#failures[@]} -eq 0 ]
