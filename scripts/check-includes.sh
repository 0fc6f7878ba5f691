#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Holds the directions of the source layout: which room may include which. Only direct includes are judged.
# Prints FILE:LINE of every include that breaks a rule; exit 1 if there was one.
set -euo pipefail
cd "${1:-$(dirname "$0")/../user}"

# Files (extended regular expression) | includes that they may not have | why.
rules=(
	'^common/|"(datapath|control|cli)/|common serves all rooms and knows none of them'
	'^datapath/|"(control|cli)/|the data path never includes control'
	'^control/|"cli/|the daemon does not know its command line client'
	'^datapath/lane|"datapath/ring_|lanes and rings know nothing of each other'
	'^datapath/ring_|"datapath/(lane|worker|switch|plan)|rings and lanes know nothing of each other'
	'^datapath/switch|"datapath/(lane|ring_)|the switch knows neither sockets nor the insides of rings'
	'^datapath/switch|<(sys/socket|linux/if_xdp|linux/virtio_ring|sys/un)\.h>|the switch knows neither sockets nor the insides of rings'
	'^control/vhost_user_message|"control/(vhost_user|vhost_user_[^m].*|config|daemon|event_loop)\.h"|messages have no session state'
)
# Files that may include, of this project, only what the second expression names.
only=(
	'^control/placement[^/]*$|"(common/|control/placement|control/topology|vhostlane/bpf_abi)|placement is a pure function of topology and plan'
)

includes=$(grep -rnE '^[[:space:]]*#[[:space:]]*include' --include='*.c' --include='*.h' . | sed 's|^\./||' || true)
broken=0
complain() {
	printf '%s: %s\n' "user/$1" "$2" >&2
	broken=1
}

# Splits RULE at its first and last bar: the middle part may hold bars of its own.
split() {
	files=${1%%|*}
	why=${1##*|}
	pattern=${1#*|}
	pattern=${pattern%|*}
}

while IFS= read -r line; do
	[ -n "$line" ] || continue
	file=${line%%:*}
	for rule in "${rules[@]}"; do
		split "$rule"
		if [[ $file =~ $files && $line =~ $pattern ]]; then complain "$line" "$why"; fi
	done
	for rule in "${only[@]}"; do
		split "$rule"
		if [[ $file =~ $files && $line == *'"'* && ! $line =~ $pattern ]]; then complain "$line" "$why"; fi
	done
done <<< "$includes"
exit "$broken"
