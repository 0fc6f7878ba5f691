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
 * - the whole is an IP packet of 64 KiB - 1 at most, IPv6 header included (GRO_LEGACY_MAX_SIZE), and needs no padding, which would be
 *   taken for payload when it is cut again.
 * Stricter than Linux: segments so small that the guest could not ask for them itself (VNET_GSO_SIZE_MIN_TCP), for it may be
 * one that forwards; frames with FIN are left alone; checksum fields in the unusual form of zero are, too, and
 * fragments close all runs, since they hide their flow. So segmentation gives back exactly what came.
 *
 * What headers of a run have in common is worked out when a second frame wants to join: a mask to compare by, and their part
 * of the sums. So most frames are judged by one compare, a few fields and a handful of additions.
 */
#include "datapath/coalesce_private.h"
#include "vhostlane/flow_hash.h"

#define IP_LENGTH_MAX 65535u
_Static_assert(ETHERNET_HEADER_LENGTH + 4 * VL_FLOW_VLAN_TAGS + IP_LENGTH_MAX <= FRAME_LENGTH_MAX, "with all tags that layouts know");

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
	run->room = IP_LENGTH_MAX + layout->network - layout->payload;
	if (run->length > run->room)
		return false;
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

typedef uint64_t any_vector __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t vector __attribute__((vector_size(16), may_alias));

#define COMPARED_MIN 64 /* bytes compared without a loop: as many as headers of IPv4 and TCP have, and one vector less */

/* Bytes of a head that are compared, those behind the headers without effect. */
static inline uint32_t bytes_compared(const struct run *run)
{
	return max_u32(run->layout.payload, COMPARED_MIN);
}

static void make_mask(struct run *run)
{
	const uint32_t network = run->layout.network, transport = run->layout.transport, length = run->layout.payload;
	const uint32_t end = (bytes_compared(run) + 15u) & ~15u;

	memset(run->mask, 0xff, length);
	memset(run->mask + length, 0, end - length);
	if (run->layout.family == 4) {
		memset(run->mask + network + IPV4_IDENTIFICATION, 0, 2);
		memset(run->mask + network + IPV4_CHECKSUM, 0, 2);
	}
	memcpy(run->same, run->head, length);
	memset(run->same + length, 0, end - length);
	if (run_is_tcp(run)) {
		memset(run->mask + transport + TCP_SEQUENCE, 0, 4);
		memset(run->mask + transport + TCP_CHECKSUM, 0, 2);
		run->same[transport + TCP_FLAGS] &= (uint8_t)~(TCP_CWR | TCP_PSH);
	} else {
		memset(run->mask + transport + UDP_CHECKSUM, 0, 2);
	}
	for (uint32_t at = 0; at < end; at += 16)
		*(vector *)(run->same + at) &= *(const vector *)(run->mask + at);
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
		run->network_sum = checksum_fold(sum_same(run, network, network + 20) + (uint16_t)~load_word(run->same + run->length_at));
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

/* The field for the sum of a header: a few words. */
static inline uint16_t field_for(uint32_t sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	return (uint16_t)~((sum >> 16) + sum);
}

/* Right, and in the usual form, which is how it will be made again. */
static inline bool ipv4_sum_good(const struct run *run, const uint8_t *ip)
{
	const uint32_t sum = (uint32_t)run->network_sum + load_word(ip + IPV4_TOTAL_LENGTH) + load_word(ip + IPV4_IDENTIFICATION);

	return load_word(ip + IPV4_CHECKSUM) == field_for(sum);
}

/* Right as far as it is verified here? Else @later says what is to be done later. */
static bool transport_sum_good(const struct coalescing *co, const struct run *run, struct frame *frame, uint32_t *later)
{
	uint32_t sum;

	*later = FRAME_SUM_VERIFIED;
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

static inline bool in_one_piece(const struct frame *frame)
{
	return frame->head_length == frame->length;
}

/* The payload of a frame in one piece, as a segment of what it becomes part of. */
static inline void note_segment(struct coalescing *co, uint32_t number, const struct frame *frame, uint32_t header)
{
	co->scratch->segments[number] = (struct frame_segment){frame->head + header, frame->length - header};
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
		    transport_sum_good(co, run, run->frame, &co->scratch->sums[run->first]);
	co->scratch->counters.bad_sums += !run->good;
	note_segment(co, run->first, run->frame, run->layout.payload);
	run->in_pieces = !in_one_piece(run->frame);
}

/* --- a frame's headers --------------------------------------------------------------------------------------------- */

/* Where headers differ from the run's, of the 16 bytes at @at. */
static inline __attribute__((always_inline)) vector differences(const struct run *run, const uint8_t *head, uint32_t at)
{
	return (*(const any_vector *)(head + at) & *(const any_vector *)(run->mask + at)) ^ *(const any_vector *)(run->same + at);
}

/* @head holds at least bytes_compared() of the run. The last vector ends with the headers, so that it may overlap the one before. */
static inline __attribute__((always_inline)) bool same_headers(const struct run *run, const uint8_t *head, uint32_t header)
{
	vector differ = differences(run, head, 0) | differences(run, head, 16) | differences(run, head, 32) | differences(run, head, 48);

	for (uint32_t at = 64; unlikely(at + 16 < header); at += 16)
		differ |= differences(run, head, at);
	differ |= differences(run, head, header - 16);
	return !(differ[0] | differ[1]);
}

/* The same of a frame that may be shorter, or have PSH: made equal in that before it is compared. */
static bool similar_headers(const struct run *run, const struct frame *frame)
{
	const uint32_t transport = run->layout.transport;
	uint8_t head[COALESCE_HEAD_MAX] = {0};

	memcpy(head, frame->head, run->layout.payload);
	if (load_be16(head + run->length_at) != frame->length - run->length_from)
		return false;
	memcpy(head + run->length_at, run->same + run->length_at, 2);
	if (run_is_tcp(run)) {
		head[transport + TCP_FLAGS] &= (uint8_t)~TCP_PSH;
	} else {
		if (load_be16(head + transport + UDP_LENGTH) != frame->length - transport)
			return false;
		memcpy(head + transport + UDP_LENGTH, run->same + transport + UDP_LENGTH, 2);
	}
	return same_headers(run, head, run->layout.payload);
}

/* Sequence number, and a checksum in its usual form. */
static bool transport_continues(const struct run *run, const uint8_t *transport)
{
	if (run_is_tcp(run))
		return load_be32(transport + TCP_SEQUENCE) == run->sequence + run->length && load_word(transport + TCP_CHECKSUM) != 0xffff;
	return load_word(transport + UDP_CHECKSUM);
}

/* What the identification of the run's next frame must be. @ip: that frame's, which decides it if it is the second. */
static uint16_t next_identification(struct run *run, const uint8_t *ip)
{
	if (run->count == 1)
		run->fixed_id = load_be16(ip + IPV4_IDENTIFICATION) == run->identification && (load_be16(ip + IPV4_FRAGMENT) & IPV4_DF);
	return (uint16_t)(run->identification + (run->fixed_id ? 0 : run->count));
}

static inline void join(struct coalescing *co, struct run *run, uint32_t number, uint32_t payload)
{
	note_segment(co, number, co->frames[number], run->layout.payload);
	run->in_pieces |= !in_one_piece(co->frames[number]);
	co->next[run->last] = (uint8_t)number;
	run->last = (uint8_t)number;
	run->count++;
	run->length += payload;
}

/* Any frame. */
static bool extend_by_any(struct coalescing *co, struct run *run, uint32_t number)
{
	struct frame *frame = co->frames[number];
	const uint8_t *head = frame->head, *ip = head + run->layout.network, *transport = head + run->layout.transport;
	const uint32_t payload = frame->length - run->layout.payload;

	if (frame->head_length < run->layout.payload || payload - 1 >= run->size /* wraps for none */ ||
	    run->length + payload > run->room || frame->offload.needs_checksum)
		return false;
	if (!similar_headers(run, frame) || !transport_continues(run, transport))
		return false;
	if (run->layout.family == 4 && load_be16(ip + IPV4_IDENTIFICATION) != next_identification(run, ip))
		return false;
	if (unlikely((run->layout.family == 4 && !ipv4_sum_good(run, ip)) || !transport_sum_good(co, run, frame, &co->scratch->sums[number]))) {
		co->scratch->counters.bad_sums++;
		return false;
	}
	join(co, run, number, payload);
	run->ended = payload < run->size || (run_is_tcp(run) && (transport[TCP_FLAGS] & TCP_PSH));
	return true;
}

/* What the next frame of full size must be like. */
struct expected {
	uint32_t length, sequence;
	uint32_t network_sum, transport_sum; /* with lengths and flags */
	uint16_t identification, step;
};

static struct expected what_is_expected(struct run *run, const uint8_t *ip)
{
	const uint32_t length = run->size + run->layout.payload, transport_length = htobe16((uint16_t)(length - run->layout.transport));
	const uint8_t *same = run->same + run->layout.transport;
	struct expected e = {
		.length = length,
		.sequence = run->sequence + run->length,
		.network_sum = run->network_sum + (uint32_t)htobe16((uint16_t)(length - run->length_from)),
		.transport_sum = run->transport_sum + transport_length + (run_is_tcp(run) ? load_word(same + TCP_OFFSET) : transport_length),
	};

	if (run->layout.family == 4) {
		e.identification = next_identification(run, ip);
		e.step = !run->fixed_id;
	}
	return e;
}

/*
 * Frames as most are: in one piece, of full size, without PSH, their checksum to be verified later. Once for each kind, so that what is asked
 * of all of them is a few compares with what stands in registers. Return: how many joined.
 */
static inline __attribute__((always_inline)) uint32_t extend_by_full(struct coalescing *co, struct run *run, uint32_t number,
								      const bool ipv4, const bool tcp)
{
	struct frame *const *frames = co->frames;
	struct coalesce_scratch *scratch = co->scratch;
	const uint32_t header = run->layout.payload, network = run->layout.network, transport = run->layout.transport, size = run->size;
	const uint32_t end = number + min_u32(co->count - number, (run->room - run->length) / size);
	struct expected e;
	uint32_t last = run->last, i = number;

	if (number >= end || frames[number]->head_length < header)
		return 0;
	e = what_is_expected(run, frames[number]->head + network);
	if (e.length < bytes_compared(run))
		return 0;
	for (; i < end; i++) {
		const struct frame *frame = frames[i];
		const uint8_t *head = frame->head, *ip = head + network, *at = head + transport;
		uint32_t sum = e.transport_sum;

		if (frame->length != e.length || frame->head_length != e.length || frame->offload.needs_checksum ||
		    frame->offload.verified || !same_headers(run, head, header))
			break;
		if (tcp) {
			const uint32_t sequence = load_32(at + TCP_SEQUENCE), field = load_word(at + TCP_CHECKSUM);

			if (sequence != htobe32(e.sequence) || field == 0xffff)
				break;
			sum += field + (sequence & 0xffff) + (sequence >> 16);
			e.sequence += size;
		} else {
			const uint32_t field = load_word(at + UDP_CHECKSUM);

			if (!field)
				break;
			sum += field;
		}
		if (ipv4) {
			const uint16_t identification = load_word(ip + IPV4_IDENTIFICATION);

			if (identification != htobe16(e.identification) ||
			    load_word(ip + IPV4_CHECKSUM) != field_for(e.network_sum + identification))
				break;
			e.identification = (uint16_t)(e.identification + e.step);
		}
		scratch->segments[i] = (struct frame_segment){head + header, size};
		scratch->sums[i] = FRAME_SUM_CHECK | sum;
		co->next[last] = (uint8_t)i;
		last = i;
	}
	run->last = (uint8_t)last;
	run->count = (uint8_t)(run->count + (i - number));
	run->length += (i - number) * size;
	return i - number;
}

static uint32_t extend_by_many(struct coalescing *co, struct run *run, uint32_t number)
{
	if (!(co->kinds & COALESCE_VERIFY_LATER))
		return 0;
	if (run->layout.family == 4)
		return run_is_tcp(run) ? extend_by_full(co, run, number, true, true) : extend_by_full(co, run, number, true, false);
	return run_is_tcp(run) ? extend_by_full(co, run, number, false, true) : extend_by_full(co, run, number, false, false);
}

uint32_t run_extend(struct coalescing *co, struct run *run, uint32_t number)
{
	uint32_t i = number;

	if (unlikely(!run->prepared))
		prepare(co, run);
	if (!run->good || run->frame->length < FRAME_LENGTH_PADDED || (run_is_tcp(run) && run->size < VNET_GSO_SIZE_MIN_TCP))
		return 0;
	while (i < co->count && !run->ended) {
		i += extend_by_many(co, run, i);
		if (i == co->count || !extend_by_any(co, run, i))
			break;
		i++;
	}
	return i - number;
}
