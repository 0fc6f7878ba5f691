#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Prints vmlinux.h: of all types of the running kernel only those that bpf/ uses, with what they hold by value.
# CO-RE relocates their fields at load time, so the result serves other kernels too. Used by `make vmlinux`.
#
# Usage: make-vmlinux.sh [BTF]      BTF: default /sys/kernel/btf/vmlinux
set -eu

btf=${1:-/sys/kernel/btf/vmlinux}

# Names of structs, enums and typedefs; ENUMERATOR@ stands for the nameless enum that holds it.
wanted="bool false@ __u8 __u16 __u32 __u64 __s8 __s16 __s32 __s64 __be16 __be32 __wsum __sum16
xdp_action bpf_map_type ethhdr vlan_hdr BPF_F_MMAPABLE@ BPF_F_INGRESS@"

# Programs' contexts. Their layout is the verifier's own, the same on all kernels, and it refuses a context pointer that
# a relocated field access has moved: so no CO-RE for them.
contexts="xdp_md __sk_buff"

# STRUCT:MEMBER,... of large kernel structs only what is read: CO-RE finds members by name, wherever they lie.
parts="eventfd_ctx:id file:private_data pt_regs:di"

fail()
{
	echo "make-vmlinux: $*" >&2
	exit 1
}

command -v bpftool >/dev/null || fail "bpftool: not found; install the package bpftool"
[ -r "$btf" ] || fail "$btf: not readable; the kernel needs CONFIG_DEBUG_INFO_BTF, or name a BTF file"

dump=$(mktemp)
trap 'rm -f "$dump"' EXIT
bpftool btf dump file "$btf" format c >"$dump" || fail "$btf: bpftool cannot print it; a newer bpftool may"

# bpftool puts a blank line between definitions, so awk reads one definition a record.
awk -v wanted="$wanted" -v contexts="$contexts" -v parts="$parts" '
BEGIN { RS = "" }

/^typedef / {
	name = $NF
	sub(/;$/, "", name)
	sub(/\[.*$/, "", name)
	keep(name)
	next
}
/^(struct|union|enum) [A-Za-z0-9_]+ \{/ { keep($2); next }
/^enum \{/ {
	count = split($0, part, /[ \t\n,]+/)
	for (i = 3; i <= count; i++)
		if (part[i] ~ /^[A-Za-z_]/)
			keep(part[i] "@")
}

function keep(n) { if (!(n in text)) text[n] = $0 }

# Prints a definition after those that it holds by value (a pointer needs no more than its name). The type of a member
# is what its line begins with.
function emit(n,    lines, word, i, total) {
	if (n in done)
		return
	done[n] = 1
	total = split(text[n], lines, /\n/)
	for (i = 1; i <= total; i++) {
		sub(/^[ \t]*(typedef )?(const )?/, "", lines[i])
		if (lines[i] ~ /[{}*]/)
			continue
		sub(/^(struct|union|enum) /, "", lines[i])
		word = lines[i]
		sub(/[^A-Za-z0-9_].*$/, "", word)
		if (word != n && word in text)
			emit(word)
	}
	print "\n" text[n]
}

function emit_all(names,    list, i, total) {
	total = split(names, list, /[ \t\n]+/)
	for (i = 1; i <= total; i++) {
		if (list[i] != "" && !(list[i] in text)) {
			print "make-vmlinux: " list[i] ": not among the types of this kernel" > "/dev/stderr"
			exit 1
		}
		if (list[i] != "")
			emit(list[i])
	}
}

# Prints the named members of a struct, in the order in which they are named.
function emit_part(n, members,    lines, wanted_list, i, k, count, total, found) {
	if (!(n in text)) {
		print "make-vmlinux: " n ": not among the types of this kernel" > "/dev/stderr"
		exit 1
	}
	total = split(text[n], lines, /\n/)
	count = split(members, wanted_list, ",")
	print "\nstruct " n " {"
	for (k = 1; k <= count; k++) {
		found = ""
		for (i = 2; i <= total && !found; i++)
			if (lines[i] ~ ("[ *]" wanted_list[k] "(\\[[0-9]+\\])?;$"))
				found = lines[i]
		if (!found) {
			print "make-vmlinux: " n "." wanted_list[k] ": not among the members on this kernel" > "/dev/stderr"
			exit 1
		}
		sub(/^[ \t]+/, "\t", found)
		print found
	}
	print "};"
}

function emit_parts(names,    list, pair, i, total) {
	total = split(names, list, " ")
	for (i = 1; i <= total; i++) {
		split(list[i], pair, ":")
		emit_part(pair[1], pair[2])
	}
}

END {
	print "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */"
	print "/* Kernel types that bpf/ uses. Made by scripts/make-vmlinux.sh (`make vmlinux`); not edited by hand. */"
	print "#ifndef __VMLINUX_H__\n#define __VMLINUX_H__\n"
	print "#ifndef BPF_NO_PRESERVE_ACCESS_INDEX"
	print "#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)\n#endif"
	emit_all(wanted)
	emit_parts(parts)
	print "\n#ifndef BPF_NO_PRESERVE_ACCESS_INDEX\n#pragma clang attribute pop\n#endif"
	emit_all(contexts)
	print "\n#endif"
}' "$dump"
