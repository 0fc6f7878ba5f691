#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Builds the test guest's initramfs: busybox, the kernel package's virtio and VLAN modules, ethtool, agent and xfer.
#   make-initramfs.sh OUTPUT [PROGRAM ...]   further programs come to /bin with their libraries
#   MODULES="NAME ..."                       further kernel modules, loaded at boot
#   FILES="SOURCE:TARGET ..."                further files
# Prints nothing. Uncompressed on purpose: decompression is the slow part under emulation.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
output=${1:?make-initramfs.sh: no output file; name one}
shift

kernel=$("$here/kernel.sh")
version=${kernel#*/vmlinuz-}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,modules,etc}
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in $("$root/bin/busybox" --list); do
	[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done

# A dynamically linked program and the libraries that ldd names, at the places where the loader looks.
add_program() {
	local path library
	if ! path=$(command -v "$1"); then
		echo "make-initramfs.sh: no program $1: build it, or install its package" >&2
		return 1
	fi
	path=$(readlink -f "$path")
	rm -f "$root/bin/$(basename "$1")"
	install -D "$path" "$root/bin/$(basename "$1")"
	for library in $(ldd "$path" 2>/dev/null | grep -o '/[^ ]*' || true); do
		[ -e "$root$library" ] || install -D "$(readlink -f "$library")" "$root$library"
	done
}
for program in ethtool "$@"; do
	add_program "$program"
done
for tool in agent xfer; do
	"${CC:-gcc}" -static -O2 -Wall -Wextra -Werror -D_GNU_SOURCE -o "$root/bin/$tool" "$here/$tool.c"
done

for pair in ${FILES:-}; do
	install -D "${pair%%:*}" "$root/${pair#*:}"
done

for module in virtio_pci virtio_net 8021q ${MODULES:-}; do
	modprobe -d "${kernel%/boot/*}/" -S "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
	name=$(basename "$path")
	case $name in
	*.xz) xz -dc "$path" > "$root/modules/${name%.xz}" ;;
	*.zst) zstd -qdc "$path" > "$root/modules/${name%.zst}" ;;
	*) cp "$path" "$root/modules/$name" ;;
	esac
	name=${name%.xz}
	echo "${name%.zst}" >> "$root/modules/modules.order"
done

install -m 755 "$here/init" "$root/init"
mkdir -p "$(dirname "$output")"
(cd "$root" && find . -print0 | cpio --null --create --format=newc --quiet) > "$output.$$"
mv "$output.$$" "$output"
