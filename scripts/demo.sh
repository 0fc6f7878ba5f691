#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Shows vhostlane at work: a wire, this host and two QEMU guests exchange checked traffic through one daemon. Everything
# it makes carries its own name and is gone afterwards, also after a failure or Ctrl-C.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

bytes=$((64 * 1024 * 1024))
network=203.0.113 # TEST-NET-3: nobody's real addresses
host=$network.1 wire=$network.2
macs=(52:54:00:d3:00:01 52:54:00:d3:00:02)
guests=("$network.11" "$network.12")
port=$((20000 + $$ % 20000))
tag=$(printf '%04x' $(($$ % 65536)))
uplink=vlup$tag peer=vlwire$tag namespace=vldemo$tag
dir='' control=''
lock=/run/vhostlane-demo.lock
daemon_pid='' server_pids=() qemu_pids=()
guest=tests/guest/guest.py
steps=8 step=0

say() { printf '%s\n' "$*"; }
title() { step=$((step + 1)); printf '\n[%d/%d] %s\n' "$step" "$steps" "$*"; }
show() { printf '  $ %s\n' "$*"; "$@" 2>&1 | sed 's/^/    /'; }
in_wire() { nsenter --net="/run/netns/$namespace" "$@"; }
in_guest() { local number=$1; shift; python3 "$guest" run --name "vm$number" --directory "$dir" --timeout 300 "$*"; }

# Waits up to $1 seconds for process $2 to end.
ended() {
	local tenths=$(($1 * 10))
	while kill -0 "$2" 2>/dev/null; do
		[ $((tenths--)) -gt 0 ] || return 1
		sleep 0.1
	done
}

finish() {
	local status=$?
	trap '' INT TERM
	trap - EXIT
	set +e
	if [ "$status" -ne 0 ]; then
		say
		say "FAILED (exit $status)."
		if [ -s "$dir/vhostlane.log" ]; then
			say "The daemon's last lines:"
			tail -n 25 "$dir/vhostlane.log" | sed 's/^/    /'
		fi
	fi
	[ ${#qemu_pids[@]} -gt 0 ] && kill -KILL "${qemu_pids[@]}" 2>/dev/null
	[ ${#server_pids[@]} -gt 0 ] && kill "${server_pids[@]}" 2>/dev/null
	if [ -n "$daemon_pid" ] && kill -TERM "$daemon_pid" 2>/dev/null && ! ended 30 "$daemon_pid"; then
		say "vhostlane did not end within 30 s; killing it"
		kill -KILL "$daemon_pid"
		status=1
	fi
	if [ -n "$daemon_pid" ] && [ -d "/sys/fs/bpf/vhostlane/$uplink" ]; then
		say "vhostlane left pins in /sys/fs/bpf/vhostlane/$uplink; removing them"
		rm -rf "/sys/fs/bpf/vhostlane/$uplink"
		status=1
	fi
	ip netns del "$namespace" 2>/dev/null
	ip link del "$uplink" 2>/dev/null
	rm -rf "$dir" "$lock"
	if [ "$status" -eq 0 ]; then
		say
		say "All bytes were right, and nothing is left behind. ($SECONDS s)"
	fi
	exit "$status"
}
if [ "$(id -u)" -ne 0 ]; then
	echo "demo.sh: needs root: it makes network interfaces and loads BPF programs; use: sudo make demo" >&2
	exit 1
fi
# Nothing is made before it is clear that nobody else uses the same addresses. The lock goes with the last process that has it open; its
# file is removed at the end, so it may be another one's by the time that it is locked.
exec 9>> "$lock"
if ! flock -n 9 || ! [ "/proc/$$/fd/9" -ef "$lock" ]; then
	echo "demo.sh: another demo runs on this machine (process $(cat "$lock" 2>/dev/null)), with the same addresses; wait for its end" >&2
	exit 1
fi
echo $$ > "$lock"
if [ -n "$(ip -4 route show table all root "$network.0/24")" ]; then
	echo "demo.sh: $network.0/24 is in use on this machine (ip route show table all root $network.0/24); remove it for as long as the demo runs" >&2
	rm -f "$lock"
	exit 1
fi
dir=$(mktemp -d -t vhostlane-demo.XXXXXX)
control=$dir/control.sock
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

title "Installing what is missing, and building"
scripts/install-deps.sh test 9>&-
if ! env -u MAKEFLAGS -u MAKELEVEL make -s -j"$(nproc)" > "$dir/build.log" 2>&1; then
	tail -n 40 "$dir/build.log" | sed 's/^/    /'
	exit 1
fi
xfer=$(python3 "$guest" xfer)
SECONDS=0
say "  built: build/vhostlane"

title "A wire: $uplink here, its other end in the namespace $namespace"
ip netns add "$namespace"
ip link add "$uplink" numrxqueues 2 numtxqueues 2 type veth peer name "$peer" netns "$namespace" numrxqueues 2 numtxqueues 2
ip addr add "$host/24" dev "$uplink"
ip link set "$uplink" up
in_wire ip addr add "$wire/24" dev "$peer"
in_wire ip link set "$peer" up
# A veth passes checksums on that nobody computed yet; a real wire does not. A queue keeps a full ring from losing frames.
in_wire ethtool -K "$peer" tx off >/dev/null
in_wire tc qdisc add dev "$peer" root pfifo
say "  host $host on $uplink; wire $wire in $namespace"

title "Starting vhostlane with two ports"
command=(build/vhostlane run --control "$control" --uplink "$uplink")
for i in 1 2; do
	command+=(--port "vm$i=$dir/vm$i.sock,queues=2,mac=${macs[i - 1]}")
done
say "  \$ ${command[*]}"
"${command[@]}" > "$dir/stdout" 2> "$dir/vhostlane.log" &
daemon_pid=$!
for ((tenths = 600; tenths > 0; tenths--)); do
	grep -qx ready "$dir/stdout" && break
	kill -0 "$daemon_pid" 2>/dev/null || { say "  vhostlane ended"; exit 1; }
	sleep 0.1
done
grep -x ready "$dir/stdout" | sed 's/^/    /'

title "Booting two guests (QEMU, Linux kernel package, busybox)"
for i in 1 2; do
	qemu_pids+=("$(python3 "$guest" start --name "vm$i" --directory "$dir" --cpus 2 \
		--vhost-user "$dir/vm$i.sock,mac=${macs[i - 1]},queues=2")")
done
for i in 1 2; do
	python3 "$guest" wait --name "vm$i" --directory "$dir"
	in_guest "$i" "ip addr add ${guests[i - 1]}/24 dev eth0; ip link set eth0 up; ethtool -L eth0 combined 2; (xfer serve $port >/dev/null 2>&1 &)"
	say "  vm$i: ${guests[i - 1]}, ${macs[i - 1]}, 2 queue pairs"
done
# Started by themselves, not through a function: $! must be the server, not a shell in front of it.
nsenter --net="/run/netns/$namespace" "$xfer" serve "$port" >/dev/null 2>&1 &
server_pids+=($!)
"$xfer" serve "$port" >/dev/null 2>&1 &
server_pids+=($!)

title "Ping"
ping_ok() { printf '  %-16s' "$1:"; shift; "$@" | grep -o '[0-9]* packets received\|[0-9]* received' | head -n 1; }
ping_ok "wire  -> vm1" in_wire ping -c 3 -i 0.3 -w 60 "${guests[0]}"
ping_ok "vm1   -> wire" in_guest 1 ping -c 3 -w 60 "$wire"
ping_ok "vm1   -> vm2" in_guest 1 ping -c 3 -w 60 "${guests[1]}"
ping_ok "host  -> vm1" ping -c 3 -i 0.3 -w 60 "${guests[0]}"
ping_ok "vm2   -> host" in_guest 2 ping -c 3 -w 60 "$host"
ping_ok "host  -> wire" ping -c 3 -i 0.3 -w 60 "$wire"

title "64 MB over TCP each way; the receiver checks every byte"
transfer_ok() { printf '  %-16s' "$1:"; shift; "$@"; }
transfer_ok "wire  -> vm1" in_wire "$xfer" push "${guests[0]}" "$port" "$bytes"
transfer_ok "vm1   -> wire" in_wire "$xfer" pull "${guests[0]}" "$port" "$bytes"
transfer_ok "vm1   -> vm2" in_guest 1 xfer push "${guests[1]}" "$port" "$bytes"
transfer_ok "vm2   -> vm1" in_guest 1 xfer pull "${guests[1]}" "$port" "$bytes"
transfer_ok "host  -> vm2" "$xfer" push "${guests[1]}" "$port" "$bytes"
transfer_ok "vm2   -> host" "$xfer" pull "${guests[1]}" "$port" "$bytes"

title "What the kernel sees: BPF maps by name"
pins=/sys/fs/bpf/vhostlane/$uplink
show bpftool map dump pinned "$pins/ports"
show bpftool map dump pinned "$pins/queue_affinity"

title "What vhostlane says"
show build/vhostlane port list --control "$control"
show build/vhostlane queue list --control "$control"
show build/vhostlane counters --drops --control "$control"
