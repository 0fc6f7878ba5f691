/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flow hash that XDP and the engine both compute: symmetric, so that a frame and its answer fall into one bucket
 * and meet on one queue pair (virtio 1.2, 5.1.6.5.6: automatic receive steering).
 *
 * IPv4 and IPv6 without fragmentation: addresses, protocol, and ports for TCP, UDP and SCTP. Fragments and other
 * protocols: addresses and protocol only. All else: the two MAC addresses. VLAN tags play no part. The walk over headers
 * is here too, so that both sides see the same flow in the same bytes; it looks at the first VL_FLOW_DEPTH bytes only.
 */
#ifndef VHOSTLANE_FLOW_HASH_H
#define VHOSTLANE_FLOW_HASH_H

#ifndef __VMLINUX_H__
#include <linux/types.h>
#endif

#define VL_FLOW_DEPTH	   128 /* bytes of a frame that may decide its flow: what the engine holds as a private head */
#define VL_FLOW_EXTENSIONS 6   /* IPv6 extension headers walked; a frame with more hashes without ports */
#define VL_FLOW_VLAN_TAGS  2

#ifdef __bpf__
/* Packet memory: the program's loads may be unaligned, and the verifier wants them whole. */
#define vl_flow_inline	  static __attribute__((always_inline)) inline
#define vl_flow_load16(p) (*(const __u16 *)(p))
#define vl_flow_load32(p) (*(const __u32 *)(p))
#else
#define vl_flow_inline static inline
vl_flow_inline __u16 vl_flow_load16(const __u8 *p)
{
	__u16 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

vl_flow_inline __u32 vl_flow_load32(const __u8 *p)
{
	__u32 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}
#endif

/* What is hashed; unused parts are zero. Network byte order as read from the frame. */
struct vl_flow {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u32 protocol; /* IP protocol; for non-IP the EtherType << 8 */
};

vl_flow_inline __u32 vl_flow_mix(__u32 h)
{
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	h ^= h >> 16;
	return h;
}

/* Mixes each end by itself and adds the ends, which makes the result blind to direction. */
vl_flow_inline __u32 vl_flow_hash(const struct vl_flow *f)
{
	__u32 a = vl_flow_mix(
		f->source[0] ^
		vl_flow_mix(f->source[1] ^ vl_flow_mix(f->source[2] ^ vl_flow_mix(f->source[3] ^ f->source_port))));
	__u32 b = vl_flow_mix(
		f->destination[0] ^
		vl_flow_mix(f->destination[1] ^
			    vl_flow_mix(f->destination[2] ^ vl_flow_mix(f->destination[3] ^ f->destination_port))));

	return vl_flow_mix(a + b + f->protocol);
}

/* EtherTypes and IP protocols as they stand in a frame. */
#define VL_BE16(v)		  ((__u16)(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ((v) << 8 & 0xff00) | ((v) >> 8 & 0xff) : (v)))
#define VL_ETHERTYPE_IPV4	  VL_BE16(0x0800)
#define VL_ETHERTYPE_IPV6	  VL_BE16(0x86dd)
#define VL_ETHERTYPE_VLAN	  VL_BE16(0x8100)
#define VL_ETHERTYPE_SERVICE_VLAN VL_BE16(0x88a8)
enum vl_flow_protocol {
	VL_FLOW_HOP_BY_HOP = 0,
	VL_FLOW_TCP = 6,
	VL_FLOW_UDP = 17,
	VL_FLOW_ROUTING = 43,
	VL_FLOW_FRAGMENT = 44,
	VL_FLOW_AUTHENTICATION = 51,
	VL_FLOW_DESTINATION_OPTIONS = 60,
	VL_FLOW_SCTP = 132,
};

vl_flow_inline int vl_ethertype_is_vlan(__u16 ethertype)
{
	return ethertype == VL_ETHERTYPE_VLAN || ethertype == VL_ETHERTYPE_SERVICE_VLAN;
}

/* Whether @n bytes at @p may be looked at. */
#define vl_flow_has(p, n, offset) ((offset) + (n) <= VL_FLOW_DEPTH && (p) + (n) <= end)

/* Ports of the protocols that begin with them. */
vl_flow_inline void vl_flow_ports(struct vl_flow *f, const __u8 *p, const __u8 *end, __u32 offset)
{
	if (f->protocol != VL_FLOW_TCP && f->protocol != VL_FLOW_UDP && f->protocol != VL_FLOW_SCTP)
		return;
	if (!vl_flow_has(p, 4, offset))
		return;
	f->source_port = vl_flow_load16(p);
	f->destination_port = vl_flow_load16(p + 2);
}

/* Return: 0 if this is no whole IPv4 header. */
vl_flow_inline int vl_flow_ipv4(struct vl_flow *f, const __u8 *p, const __u8 *end, __u32 offset)
{
	__u32 length;

	if (!vl_flow_has(p, 20, offset) || p[0] >> 4 != 4)
		return 0;
	length = (p[0] & 0xf) * 4;
	if (length < 20)
		return 0;
	f->source[0] = vl_flow_load32(p + 12);
	f->destination[0] = vl_flow_load32(p + 16);
	f->protocol = p[9];
	if (vl_flow_load16(p + 6) & VL_BE16(0x3fff)) /* more fragments, or not the first */
		return 1;
	vl_flow_ports(f, p + length, end, offset + length);
	return 1;
}

/* Return: 0 if this is no whole IPv6 header. */
vl_flow_inline int vl_flow_ipv6(struct vl_flow *f, const __u8 *p, const __u8 *end, __u32 offset)
{
	__u32 next, length, i;

	if (!vl_flow_has(p, 40, offset) || p[0] >> 4 != 6)
		return 0;
	for (i = 0; i < 4; i++) {
		f->source[i] = vl_flow_load32(p + 8 + 4 * i);
		f->destination[i] = vl_flow_load32(p + 24 + 4 * i);
	}
	next = p[6];
	p += 40;
	offset += 40;
	for (i = 0; i < VL_FLOW_EXTENSIONS; i++) {
		if (next != VL_FLOW_HOP_BY_HOP && next != VL_FLOW_ROUTING && next != VL_FLOW_DESTINATION_OPTIONS &&
		    next != VL_FLOW_AUTHENTICATION && next != VL_FLOW_FRAGMENT)
			break;
		if (!vl_flow_has(p, 8, offset))
			break;
		if (next == VL_FLOW_FRAGMENT) {
			f->protocol = p[0];
			return 1;
		}
		length = next == VL_FLOW_AUTHENTICATION ? (p[1] + 2u) * 4 : (p[1] + 1u) * 8;
		next = p[0];
		p += length;
		offset += length;
	}
	f->protocol = next;
	vl_flow_ports(f, p, end, offset);
	return 1;
}

/**
 * vl_flow_parse() - what a frame's flow is known by
 * @data: Ethernet header
 * @end:  behind the last byte that may be read
 * @f:    filled; all zero for less than an Ethernet header
 */
vl_flow_inline void vl_flow_parse(const __u8 *data, const __u8 *end, struct vl_flow *f)
{
	const __u8 *p = data + 14;
	__u32 i, offset = 14;
	__u16 ethertype;
	int known = 0;

	__builtin_memset(f, 0, sizeof(*f));
	if (p > end)
		return;
	ethertype = vl_flow_load16(data + 12);
	for (i = 0; i < VL_FLOW_VLAN_TAGS; i++) {
		if (!vl_ethertype_is_vlan(ethertype) || !vl_flow_has(p, 4, offset))
			break;
		ethertype = vl_flow_load16(p + 2);
		p += 4;
		offset += 4;
	}
	if (ethertype == VL_ETHERTYPE_IPV4)
		known = vl_flow_ipv4(f, p, end, offset);
	else if (ethertype == VL_ETHERTYPE_IPV6)
		known = vl_flow_ipv6(f, p, end, offset);
	if (known)
		return;
	f->destination[0] = vl_flow_load32(data);
	f->destination[1] = vl_flow_load16(data + 4);
	f->source[0] = vl_flow_load32(data + 6);
	f->source[1] = vl_flow_load16(data + 10);
	f->protocol = (__u32)ethertype << 8;
}

/* Of a frame's first bytes: what the engine has as its private head, what XDP sees as its linear part. */
vl_flow_inline __u32 vl_flow_hash_frame(const __u8 *data, const __u8 *end)
{
	struct vl_flow f;

	vl_flow_parse(data, end, &f);
	return vl_flow_hash(&f);
}

#endif
