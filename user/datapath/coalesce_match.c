/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which frame may join which. A frame joins if (Linux: inet_gro_receive, ipv6_gro_receive, tcp_gro_receive,
 * udp_gro_receive_segment)
 * - all bytes of the headers are equal: Ethernet with tags, IP with TTL, TOS, DF, flow label and extension headers, ports,
 *   acknowledgement, window, flags, urgent pointer and options; but for lengths, identification, checksums,
 *   sequence number and PSH, and but for CWR, which only the first may have;
 * - the identification counts up by one a segment, or DF is set and it stays the same;
 * - TCP: the sequence number continues; flags are ACK with PSH, ECE or CWR at most;
 * - it has payload, not more than the first; one that is shorter or has PSH is the last;
 * - IPv4 has no options and is no fragment, the packet fills the frame, and its checksums are right;
 * - UDP: it has a checksum;
 * - the whole stays a lawful IP packet, and needs no padding, which would be taken for payload when it is cut again.
 * Stricter than Linux: frames with FIN are left alone; checksum fields in the unusual form of zero are, too, and
 * fragments close all runs, since they hide their flow. So segmentation gives back exactly what came.
 *
 * What headers of a run have in common is worked out when a second frame wants to join: a mask to compare by, and their part
 * of the sums. So most frames are judged by one compare, a few fields and a handful of additions.
 */
#include "datapath/coalesce_private.h"

#define IP_LENGTH_MAX 65535

bool run_may_merge(const struct coalescing *co, struct run *run)
{
	const struct layout *layout = &run->layout;
	const struct frame *frame = run->frame;
	const uint8_t *ip = run->head + layout->network, *transport = run->head + layout->transport;
	const bool tcp = run_is_tcp(run), ipv4 = layout->family == 4;

	if (ipv4)
		run->kind = tcp ? FRAME_GSO_TCP4 : FRAME_GSO_UDP4;
	else
		run->kind = tcp ? FRAME_GSO_TCP6 : FRAME_GSO_UDP6;
	if (!(co->kinds & 1u << run->kind) || frame->offload.needs_checksum || layout->end != frame->length ||
	    layout->payload > COALESCE_HEAD_MAX || layout->payload >= frame->length ||
	    (layout->flags & (LAYOUT_AUTHENTICATED | LAYOUT_SOURCE_ROUTED)) || (ipv4 && (layout->flags & LAYOUT_OPTIONS)))
		return false;
	run->length_at = (uint16_t)(layout->network + (ipv4 ? IPV4_TOTAL_LENGTH : IPV6_PAYLOAD_LENGTH));
	run->length_from = (uint16_t)(layout->network + (ipv4 ? 0 : IPV6_HEADER_LENGTH));
	run->size = run->length = frame->length - layout->payload;
	run->room = min_u32(IP_LENGTH_MAX + run->length_from, FRAME_LENGTH_MAX) - layout->payload;
	/* A checksum of 0xffff would come out as 0, except in UDP, where 0 is none. */
	if (ipv4 && load_word(ip + IPV4_CHECKSUM) == 0xffff)
		return false;
	if (!tcp)
		return load_word(transport + UDP_CHECKSUM) && load_be16(transport + UDP_LENGTH) == frame->length - layout->transport;
	if ((transport[TCP_FLAGS] & (uint8_t)~(TCP_PSH | TCP_ECE | TCP_CWR)) != TCP_ACK || (transport[TCP_OFFSET] & 0xf) ||
	    load_word(transport + TCP_CHECKSUM) == 0xffff)
		return false;
	if ((transport[TCP_FLAGS] & TCP_CWR) && !(co->kinds & COALESCE_ECN))
		return false;
	run->sequence = load_be32(transport + TCP_SEQUENCE);
	run->ended = transport[TCP_FLAGS] & TCP_PSH;
	return true;
}

/* --- what a run's headers have in common --------------------------------------------------------------------------- */

/* Pieces of 16 bytes that hold the headers. */
static inline uint32_t vectors(const struct run *run)
{
	return (run->layout.payload + 15u) / 16;
}

static void make_mask(struct run *run)
{
	const uint32_t network = run->layout.network, transport = run->layout.transport, length = run->layout.payload;

	memset(run->mask, 0xff, length);
	memset(run->mask + length, 0, vectors(run) * 16 - length);
	memset(run->mask + run->length_at, 0, 2);
	if (run->layout.family == 4) {
		memset(run->mask + network + IPV4_IDENTIFICATION, 0, 2);
		memset(run->mask + network + IPV4_CHECKSUM, 0, 2);
	}
	memcpy(run->same, run->head, length);
	memset(run->same + length, 0, vectors(run) * 16 - length);
	if (run_is_tcp(run)) {
		memset(run->mask + transport + TCP_SEQUENCE, 0, 4);
		memset(run->mask + transport + TCP_CHECKSUM, 0, 2);
		run->mask[transport + TCP_FLAGS] = (uint8_t)~TCP_PSH;
		run->same[transport + TCP_FLAGS] &= (uint8_t)~TCP_CWR;
	} else {
		memset(run->mask + transport + UDP_LENGTH, 0, 4); /* checksum, too */
	}
	for (uint32_t i = 0; i < length; i++)
		run->same[i] &= run->mask[i];
}

/* Ranges of an even offset from the IP header's first byte, so that the mask can stand for what is left out. */
static uint64_t sum_same(const struct run *run, uint32_t from, uint32_t to)
{
	return checksum_sum_short(run->same + from, to - from);
}

static void sum_headers(struct run *run)
{
	const uint32_t network = run->layout.network, transport = run->layout.transport;
	const uint32_t addresses = network + (run->layout.family == 4 ? IPV4_ADDRESSES : IPV6_ADDRESSES);
	const uint64_t pseudo = sum_same(run, addresses, addresses + (run->layout.family == 4 ? 8 : 32)) + htobe16(run->layout.protocol);

	if (run->layout.family == 4)
		run->network_sum = checksum_fold(sum_same(run, network, network + 20));
	if (!run_is_tcp(run)) {
		run->transport_sum = checksum_fold(pseudo + sum_same(run, transport, transport + UDP_LENGTH));
		return;
	}
	/* Flags are added for each frame. */
	run->transport_sum = checksum_fold(pseudo + sum_same(run, transport, transport + TCP_OFFSET) +
					   sum_same(run, transport + TCP_OFFSET + 2, run->layout.payload));
}

/* --- a frame's checksums ------------------------------------------------------------------------------------------- */

/* Of a frame's pseudo-header and transport header: less than FRAME_SUM_CHECK. */
static inline uint32_t sum_of_headers(const struct run *run, const struct frame *frame)
{
	const uint8_t *transport = frame->head + run->layout.transport;
	const uint32_t sum = run->transport_sum + htobe16((uint16_t)(frame->length - run->layout.transport));

	if (run_is_tcp(run))
		return sum + load_word(transport + TCP_SEQUENCE) + load_word(transport + TCP_SEQUENCE + 2) + load_word(transport + TCP_OFFSET) +
		       load_word(transport + TCP_CHECKSUM);
	return sum + load_word(transport + UDP_LENGTH) + load_word(transport + UDP_CHECKSUM);
}

static uint64_t sum_of_payload(const struct frame *frame, uint32_t payload)
{
	struct checksum sum = {0};

	checksum_add(&sum, frame->head + payload, frame->head_length - payload);
	for (uint32_t i = 0; i < frame->segment_count; i++)
		checksum_add(&sum, frame->segments[i].data, frame->segments[i].length);
	return sum.sum;
}

/* Right, and in the usual form, which is how it will be made again. */
static inline bool ipv4_sum_good(const struct run *run, const uint8_t *ip)
{
	const uint64_t sum = (uint64_t)run->network_sum + load_word(ip + IPV4_TOTAL_LENGTH) + load_word(ip + IPV4_IDENTIFICATION);
	const uint16_t right = (uint16_t)~checksum_fold(sum);

	return load_word(ip + IPV4_CHECKSUM) == right;
}

/* Right as far as it is verified here? Else @later says what is to be done later. */
static inline bool transport_sum_good(struct coalescing *co, const struct run *run, struct frame *frame, uint32_t *later)
{
	uint32_t sum;

	*later = 0;
	if (frame->offload.verified)
		return true;
	sum = sum_of_headers(run, frame);
	if (co->kinds & COALESCE_VERIFY_LATER) {
		*later = FRAME_SUM_CHECK | sum;
		return true;
	}
	frame->offload.verified = checksum_fold(sum + sum_of_payload(frame, run->layout.payload)) == 0xffff;
	return frame->offload.verified;
}

/* A second frame wants to join. */
static __attribute__((noinline)) void prepare(struct coalescing *co, struct run *run)
{
	const uint8_t *ip = run->head + run->layout.network;

	run->prepared = true;
	run->identification = load_be16(ip + IPV4_IDENTIFICATION);
	make_mask(run);
	sum_headers(run);
	run->good = (run->layout.family == 6 || ipv4_sum_good(run, ip)) &&
		    transport_sum_good(co, run, run->frame, &co->sums[run->first]);
	co->scratch->counters.bad_sums += !run->good;
}

/* --- a frame's headers --------------------------------------------------------------------------------------------- */

/* @head holds @length bytes, at least as many as the run's headers. */
static inline bool same_headers(const struct run *run, const uint8_t *head, uint32_t length)
{
	typedef uint64_t any_vector __attribute__((vector_size(16), aligned(1), may_alias));
	typedef uint64_t vector __attribute__((vector_size(16), may_alias));
	const uint32_t end = vectors(run) * 16;
	vector differ = {0};

	if (unlikely(length < end)) {
		bool same = true;

		for (uint32_t i = 0; i < run->layout.payload; i++)
			same &= (head[i] & run->mask[i]) == run->same[i];
		return same;
	}
	for (uint32_t at = 0; at < end; at += 16)
		differ |= (*(const any_vector *)(head + at) & *(const vector *)(run->mask + at)) ^ *(const vector *)(run->same + at);
	return !(differ[0] | differ[1]);
}

/* Sequence number or length, and a checksum in its usual form. */
static inline bool transport_continues(const struct run *run, const struct frame *frame, uint32_t sequence)
{
	const uint8_t *transport = frame->head + run->layout.transport;

	if (run_is_tcp(run))
		return load_be32(transport + TCP_SEQUENCE) == sequence && load_word(transport + TCP_CHECKSUM) != 0xffff;
	return load_be16(transport + UDP_LENGTH) == frame->length - run->layout.transport && load_word(transport + UDP_CHECKSUM);
}

/* Of the second frame of a run: does the identification stay the same? */
static bool id_is_fixed(const struct run *run, const uint8_t *ip)
{
	return load_be16(ip + IPV4_IDENTIFICATION) == run->identification && (load_be16(ip + IPV4_FRAGMENT) & IPV4_DF);
}

uint32_t run_extend(struct coalescing *co, struct run *run, uint32_t number)
{
	const struct layout layout = run->layout;
	const bool ipv4 = layout.family == 4, tcp = run_is_tcp(run);
	const uint32_t size = run->size, room = run->room, length_from = run->length_from;
	uint32_t length = run->length, count = run->count, i;
	bool ended = run->ended;

	if (unlikely(!run->prepared))
		prepare(co, run);
	if (!run->good || run->frame->length < FRAME_LENGTH_PADDED)
		return 0;
	for (i = number; i < co->count && !ended; i++) {
		struct frame *frame = co->frames[i];
		const uint8_t *head = frame->head, *ip = head + layout.network;
		const uint32_t payload = frame->length - layout.payload;

		if (frame->head_length < layout.payload || payload - 1 >= size /* wraps for none */ || length + payload > room ||
		    frame->offload.needs_checksum)
			break;
		if (!same_headers(run, head, frame->head_length) || load_be16(head + run->length_at) != frame->length - length_from ||
		    !transport_continues(run, frame, run->sequence + length))
			break;
		if (ipv4) {
			const bool fixed_id = likely(count > 1) ? run->fixed_id : id_is_fixed(run, ip);

			if (load_be16(ip + IPV4_IDENTIFICATION) != (uint16_t)(run->identification + (fixed_id ? 0 : count)))
				break;
			if (unlikely(!ipv4_sum_good(run, ip))) {
				co->scratch->counters.bad_sums++;
				break;
			}
			run->fixed_id = fixed_id;
		}
		if (unlikely(!transport_sum_good(co, run, frame, &co->sums[i]))) {
			co->scratch->counters.bad_sums++;
			break;
		}
		co->next[run->last] = (uint8_t)i;
		run->last = (uint8_t)i;
		count++;
		length += payload;
		ended = payload < size || (tcp && (head[layout.transport + TCP_FLAGS] & TCP_PSH));
	}
	run->length = length;
	run->count = (uint8_t)count;
	run->ended = ended;
	return i - number;
}
