#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause
# Fetches newer kernels and a newer QEMU as Debian packages and unpacks them under build/kernels; installs nothing, and leaves the
# system's package sources and lists alone: apt runs on directories of its own.
#   fetch-kernels.sh kernel SUITE [PREFIX]   newest cloud kernel of a suite, of versions that begin with PREFIX; prints its vmlinuz
#   fetch-kernels.sh qemu SUITE              prints the directory that QEMU lies in
#   fetch-kernels.sh list SUITE              cloud kernels of a suite
# What is there already is not fetched again. MIRROR: http://deb.debian.org/debian by default.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?fetch-kernels.sh: neither kernel, qemu nor list; name one}
suite=${2:?fetch-kernels.sh: no suite; name one, such as trixie-backports}
prefix=${3:-}
mirror=${MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
top=$PWD/build/kernels
apt=$top/apt/$suite

run_apt() {
	local tool=$1
	shift
	"$tool" -qq -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::Preferences=/dev/null \
		-o Dir::Etc::PreferencesParts=/dev/null -o Dir::State="$apt" -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" \
		-o Dir::Cache="$apt/cache" -o APT::Architecture=amd64 -o APT::Sandbox::User=root "$@"
}

# Package lists of that suite; anew when they are older than a day.
update() {
	mkdir -p "$apt"/{lists/partial,cache/archives/partial}
	if [ -z "$(find "$apt/updated" -mmin -1440 2>/dev/null)" ]; then
		echo "deb [signed-by=$keyring] $mirror $suite main" > "$apt/sources.list"
		: > "$apt/status"
		run_apt apt-get update
		touch "$apt/updated"
	fi
}

kernels() {
	run_apt apt-cache search --names-only '^linux-image-[0-9].*-cloud-amd64$' | sed -n 's/^linux-image-\([^ ]*\) .*/\1/p' | sort -V
}

# Newest version of a package that this suite has.
has() { run_apt apt-cache madison "$1" | grep -q .; }

# Fetches packages and unpacks them together into a directory, which appears only when it is whole.
unpack() {
	local into=$1 new
	shift
	new=$(mktemp -d "$top/new.XXXXXX")
	(cd "$new" && run_apt apt-get download "$@")
	for package in "$new"/*.deb; do
		dpkg -x "$package" "$new"
		rm "$package"
	done
	mv "$new" "$into"
}

get_kernel() {
	local version into package packages=()
	version=$(kernels | grep "^$prefix" | tail -n 1)
	if [ -z "$version" ]; then
		echo "fetch-kernels.sh: $suite has no cloud kernel '$prefix*'; \`fetch-kernels.sh list $suite\` names those that it has" >&2
		exit 1
	fi
	into=$top/$version
	if [ ! -d "$into" ]; then
		# In some releases the image package is empty and others hold its parts.
		for package in image modules binary base; do
			if has "linux-$package-$version"; then packages+=("linux-$package-$version"); fi
		done
		unpack "$into" "${packages[@]}"
	fi
	# Where older packages have them.
	[ -e "$into/lib" ] || ln -s usr/lib "$into/lib"
	mkdir -p "$into/boot"
	[ -e "$into/boot/vmlinuz-$version" ] || ln -s "../lib/modules/$version/vmlinuz" "$into/boot/vmlinuz-$version"
	[ -e "$into/lib/modules/$version/modules.dep" ] || depmod -b "$into" "$version"
	ls "$into/boot/vmlinuz-$version"
}

get_qemu() {
	local into=$top/qemu-$suite
	[ -d "$into" ] || unpack "$into" qemu-system-x86 qemu-system-common qemu-system-data seabios
	echo "$into"
}

update >&2
case $what in
kernel) get_kernel ;;
qemu) get_qemu ;;
list) kernels ;;
*) echo "fetch-kernels.sh: '$what': neither kernel, qemu nor list; name one of them" >&2; exit 2 ;;
esac
