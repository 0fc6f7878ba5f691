#!/usr/bin/env bash
# Installs what vhostlane needs from Debian's packages.
#   install-deps.sh build   to build it (and to run it)
#   install-deps.sh test    also what demo, check and bench need (the default)
#   install-deps.sh bench   also what bench-seeds draws its plots with
# Does nothing, and asks no mirror, when everything is there already.
set -euo pipefail

build=(gcc clang llvm make pkg-config bpftool libc6-dev linux-libc-dev libelf-dev zlib1g-dev
	libbpf-dev libxdp-dev libnuma-dev liburcu-dev libck-dev libcyaml-dev
	libjansson-dev libnl-route-3-dev libcap-ng-dev libsystemd-dev scdoc)
test=(libcmocka-dev python3 python3-pytest python3-scapy iproute2 ethtool tcpdump
	iputils-ping qemu-system-x86 ipxe-qemu dnsmasq-base linux-image-cloud-amd64 busybox-static cpio kmod
	dpdk dpdk-dev librte-mempool-ring23 librte-net-virtio23 librte-net-vhost23 librte-net-af-xdp23 procps
	xdp-tools util-linux libclang-rt-14-dev iperf3 libubsan1)
bench=(gnuplot-nox)

want=("${build[@]}")
case "${1:-test}" in
build) ;;
test) want+=("${test[@]}") ;;
bench) want+=("${test[@]}" "${bench[@]}") ;;
*) echo "install-deps.sh: unknown set '$1': neither build, test nor bench; name one of them" >&2; exit 2 ;;
esac

missing=()
for package in "${want[@]}"; do
	dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
	echo "install-deps.sh: missing: ${missing[*]}; run as root (sudo $0)" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
