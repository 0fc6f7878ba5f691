#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Loads vhostlane's BPF programs on an interface with bpftool and tc alone, without the daemon. Until `vhostlane run` adopts
# them they let every frame pass to the stack. What is loaded this way outlives the daemon.
#
# Usage: load-with-bpftool.sh IFNAME [generic]     generic: XDP in generic mode, for drivers without native XDP
#        load-with-bpftool.sh --unload IFNAME      undoes it
#
# --unload also clears up after a daemon that was killed: programs, pins, its host links (vhl<ifindex>n<node>), the settings of the
# interface that its lock file has noted, and that file. Sockets that it left are taken over by the next start.
#
# The objects are looked for in $VHOSTLANE_BPF_DIR, ../build/bpf and ../lib/vhostlane/bpf beside this script.
set -eu

priority=30312 # as TC_HOOK_PRIORITY in user/control/bpf_set.h
handle=1
bpffs=/sys/fs/bpf
root=$bpffs/vhostlane
locks=/run/vhostlane # as UPLINK_LOCK_DIRECTORY in user/control/uplink_lock.h
shared_maps="ports queue_affinity flow_steering port_vlans wire_claims counters settings"

fail()
{
	echo "load-with-bpftool: $*" >&2
	exit 1
}

usage()
{
	echo "usage: load-with-bpftool.sh IFNAME [generic] | --unload IFNAME" >&2
	exit 2
}

object_directory()
{
	here=$(dirname "$(readlink -f "$0")")
	for directory in "${VHOSTLANE_BPF_DIR:-}" "$here/../build/bpf" "$here/../lib/vhostlane/bpf"; do
		if [ -n "$directory" ] && [ -e "$directory/xdp_steer.bpf.o" ] && [ -e "$directory/tc_host.bpf.o" ]; then
			echo "$directory"
			return
		fi
	done
	fail "xdp_steer.bpf.o and tc_host.bpf.o: not found; run make, or set VHOSTLANE_BPF_DIR"
}

# By rtnetlink: /sys may belong to another network namespace.
interface_exists() { ip link show dev "$ifname" >/dev/null 2>&1; }

# Ids of the XDP programs on the interface.
attached_xdp()
{
	ip -d link show dev "$ifname" | sed -n 's/.*prog\/xdp[a-z]* id \([0-9]*\).*/\1/p'
}

xdp_mode()
{
	case "$(ip -d link show dev "$ifname")" in
	*xdpgeneric*) echo xdpgeneric ;;
	*) echo xdp ;;
	esac
}

# Name of the program with id $1, and id of the program pinned at $1.
program_name() { bpftool prog show id "$1" 2>/dev/null | sed -n '1s/.* name \([^ ]*\).*/\1/p'; }
pinned_id() { bpftool prog show pinned "$1" 2>/dev/null | sed -n '1s/^\([0-9]*\):.*/\1/p'; }

# Nothing else may work on the directory meanwhile; a running daemon holds this lock.
lock_directory()
{
	exec 9<"$directory"
	flock -n 9 || fail "$ifname: $directory is locked by a running vhostlane; stop it first"
}

# The same for what the daemon did beside the BPF side. Without the file there is nothing of it.
lock_record()
{
	if [ -f "$record" ]; then
		exec 8<"$record"
		flock -n 8 || fail "$ifname: $record is locked by a running vhostlane; stop it first"
	fi
}

ifindex() { ip -o link show dev "$ifname" 2>/dev/null | sed 's/^\([0-9]*\):.*/\1/'; }

# Index of the interface that the daemon had: the interface's own, or that of one which is gone.
recorded_ifindex() { sed -n 's/^ifindex \([0-9][0-9]*\)$/\1/p' "$record" 2>/dev/null; }

remove_host_links()
{
	for index in $(ifindex) $(recorded_ifindex); do
		for link in $(ip -o link show type veth | sed -n "s/^[0-9]*: \(vhl${index}n[0-9]*\)@.*/\1/p"); do
			ip link del dev "$link" 2>/dev/null || true
		done
	done
}

# Lines "feature NAME BEFORE" and "napi NAME BEFORE", put back in reverse; only on the very device that they are of.
put_settings_back()
{
	[ -n "$(ifindex)" ] && [ "$(ifindex)" = "$(recorded_ifindex)" ] || return 0
	sed -n '/^feature [a-z0-9-]* [01]$/p; /^napi [a-z_]* [0-9]*$/p' "$record" | tac | while read -r kind name before; do
		case $kind in
		feature)
			state=off
			[ "$before" = 0 ] || state=on
			ethtool -K "$ifname" "$name" $state >/dev/null ||
				echo "load-with-bpftool: $ifname: cannot put $name back to $state; set it with ethtool -K" >&2
			;;
		napi)
			# /sys may belong to another network namespace.
			if [ "$(cat "/sys/class/net/$ifname/ifindex" 2>/dev/null)" = "$(ifindex)" ]; then
				echo "$before" > "/sys/class/net/$ifname/$name"
			else
				echo "load-with-bpftool: $ifname: $name was $before; write it to /sys/class/net/$ifname/$name in its namespace" >&2
			fi
			;;
		esac
	done
}

remove_record()
{
	[ ! -f "$record" ] || rm -f "$record"
	rmdir "$locks" 2>/dev/null || true
}

# libxdp's directory, if it was not there before vhostlane: that is what the sticky bit says.
remove_libxdp_directory()
{
	[ ! -k $bpffs/xdp ] || rmdir $bpffs/xdp 2>/dev/null || true
}

remove_filter()
{
	if tc filter show dev "$ifname" "$1" pref $priority 2>/dev/null | grep -q "$2"; then
		tc filter del dev "$ifname" "$1" pref $priority
	fi
}

# clsact goes if we made it and nobody else uses it.
remove_clsact()
{
	[ -d "$directory/made_clsact" ] || return 0
	rmdir "$directory/made_clsact"
	if [ -z "$(tc filter show dev "$ifname" ingress; tc filter show dev "$ifname" egress)" ]; then
		tc qdisc del dev "$ifname" clsact 2>/dev/null || true
	fi
}

# A daemon attaches through libxdp's dispatcher where the kernel can; that is taken apart with libxdp's own tool.
detach_from_dispatcher()
{
	command -v xdp-loader >/dev/null ||
		fail "$ifname: xdp_steer is behind a libxdp dispatcher; install the package xdp-tools and try again"
	for steer in $(xdp-loader status "$ifname" | awk '$1 == "=>" && $3 == "xdp_steer" { print $4 }'); do
		xdp-loader unload "$ifname" -i "$steer" ||
			fail "$ifname: xdp-loader cannot unload program $steer; see \`xdp-loader status $ifname\`"
	done
}

detach()
{
	remove_filter egress tc_host
	remove_filter ingress tc_uplink_ingr
	remove_clsact
	for id in $(attached_xdp); do
		if [ "$id" = "$(pinned_id "$directory/progs/xdp_steer")" ]; then
			ip link set dev "$ifname" "$(xdp_mode)" off
		elif [ "$(program_name "$id")" = xdp_dispatcher ]; then
			detach_from_dispatcher
		fi
	done
}

# Pins and directories that are empty then.
remove_pins()
{
	find "$directory" -type f -exec rm -f {} +
	for each in "$directory/progs" "$directory/made_clsact" "$directory" "$root"; do
		rmdir "$each" 2>/dev/null || true
	done
}

unload()
{
	[ -d "$directory" ] || [ -f "$record" ] || fail "$ifname: nothing of vhostlane's is pinned under $root, and there is no $record"
	lock_record
	if [ -d "$directory" ]; then
		lock_directory
		if interface_exists; then
			detach
		fi
		remove_pins
		remove_libxdp_directory
	fi
	remove_host_links
	if [ -f "$record" ]; then
		put_settings_back
		remove_record
	fi
}

undo_load()
{
	trap - EXIT
	detach
	remove_pins
}

load()
{
	interface_exists || fail "$ifname: no such interface; see \`ip link\`"
	[ ! -e "$directory/settings" ] || fail "$ifname: already loaded under $directory; undo it with \`$0 --unload $ifname\`"
	objects=$(object_directory)
	for id in $(attached_xdp); do
		fail "$ifname: XDP program '$(program_name "$id")' (id $id) is attached and is not replaced;" \
			"remove it with \`ip link set dev $ifname $(xdp_mode) off\`"
	done
	if [ "$(stat -f -c %T $bpffs 2>/dev/null)" != bpf_fs ]; then
		mount -t bpf bpf $bpffs || fail "$bpffs: cannot mount the BPF file system; run as root"
	fi
	mkdir -p "$directory/progs"
	lock_directory
	trap undo_load EXIT

	bpftool prog loadall "$objects/xdp_steer.bpf.o" "$directory/progs" pinmaps "$directory" ||
		fail "$ifname: bpftool cannot load xdp_steer; it needs a kernel with BTF (6.1 or newer) and root"
	set --
	for map in $shared_maps; do
		set -- "$@" map name "$map" pinned "$directory/$map"
	done
	bpftool prog loadall "$objects/tc_host.bpf.o" "$directory/progs" type classifier "$@" ||
		fail "$ifname: bpftool cannot load tc_host; it needs a kernel with BTF (6.1 or newer) and root"

	bpftool net attach $attach_type pinned "$directory/progs/xdp_steer" dev "$ifname" ||
		fail "$ifname: cannot attach XDP ($attach_type); if its driver has no native XDP, or its MTU or queues do not permit it, add \`generic\`"
	if tc qdisc add dev "$ifname" clsact 2>/dev/null; then
		mkdir "$directory/made_clsact"
	fi
	tc filter add dev "$ifname" egress pref $priority handle $handle bpf direct-action object-pinned "$directory/progs/tc_host" &&
		tc filter add dev "$ifname" ingress pref $priority handle $handle bpf direct-action object-pinned "$directory/progs/tc_uplink_ingress" ||
		fail "$ifname: cannot attach the tc programs; the interface needs a clsact qdisc (see \`tc qdisc show dev $ifname\`)"
	trap - EXIT
	echo "$ifname: loaded under $directory; \`vhostlane run --uplink $ifname\` adopts it"
}

command=load
attach_type=xdpdrv
case "${1:-}" in
--unload)
	command=unload
	shift
	[ $# -eq 1 ] || usage
	;;
-*) usage ;;
esac
case $#,${2:-} in
1,) ;;
2,generic) attach_type=xdpgeneric ;;
*) usage ;;
esac
ifname=$1
case $ifname in
'' | . | .. | */*) usage ;;
esac
[ "$(id -u)" -eq 0 ] || fail "needs root"
for tool in bpftool tc ip flock; do
	command -v $tool >/dev/null || fail "$tool: not found; install the packages bpftool, iproute2 and util-linux"
done
directory=$root/$(echo "$ifname" | tr . :) # bpffs knows no dots
record=$locks/$ifname.lock
$command
