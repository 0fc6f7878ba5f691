/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * Frames are looked at in order. A frame that may be merged at all joins the open run of its flow if it continues it, else it
 * opens a run of its own and the flow's run before it is closed. When all are seen, each run of two or more becomes one
 * frame. Checksums are verified only when a second frame wants to join, so that traffic that does not merge pays for a look
 * at its headers alone.
 *
 * A frame joins if (Linux: inet_gro_receive, ipv6_gro_receive, tcp_gro_receive, udp_gro_receive_segment)
 * - all bytes of the headers are equal: Ethernet with tags, IP with TTL, TOS, DF, flow label and extension headers, ports,
 *   acknowledgement, window, flags, urgent pointer and options; but for lengths, identification, checksums,
 *   sequence number and PSH, and but for CWR, which only the first may have;
 * - the identification counts up by one a segment, or DF is set and it stays the same;
 * - TCP: the sequence number continues; flags are ACK with PSH, ECE or CWR at most;
 * - it has payload, not more than the first; one that is shorter or has PSH is the last;
 * - IPv4 has no options and is no fragment, the packet fills the frame, and its checksums are right;
 * - UDP: it has a checksum;
 * - the whole stays a lawful IP packet.
 * Stricter than Linux: frames with FIN are left alone; checksum fields in the unusual form of zero are, too, and
 * fragments close all runs, since they hide their flow. So segmentation gives back exactly what came.
 */
#include "datapath/coalesce.h"

#include <netinet/in.h>

#include "common/util.h"
#include "datapath/checksum.h"
#include "datapath/frame_checksum.h"
#include "datapath/layout.h"

#define RUN_NONE 0xff
#define BUCKETS 64 /* of flows; a power of two */
#define IP_LENGTH_MAX 65535

#define IPV4_TOTAL_LENGTH 2
#define IPV4_IDENTIFICATION 4
#define IPV4_FRAGMENT 6
#define IPV4_DF 0x4000
#define IPV4_CHECKSUM 10
#define IPV6_PAYLOAD_LENGTH 4
#define IPV6_HEADER_LENGTH 40
#define TCP_SEQUENCE 4
#define TCP_OFFSET 12 /* and reserved bits */
#define TCP_FLAGS 13
#define TCP_CHECKSUM 16
#define TCP_PSH 0x08
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80
#define UDP_LENGTH 4
#define UDP_CHECKSUM 6

_Static_assert(FRAME_BURST < RUN_NONE, "a run's number is a byte");

enum sums { SUMS_UNKNOWN, SUMS_GOOD, SUMS_BAD };

/* What is known of a frame that may be merged. */
struct candidate {
	struct frame *frame;
	struct layout layout;
	uint32_t key; /* equal for frames of one flow */
	uint32_t sequence, payload;
	uint16_t identification;
	uint8_t kind; /* enum frame_gso */
	uint8_t sums; /* enum sums */
	uint8_t next; /* of its run; RUN_NONE = last */
	bool last;    /* nothing may follow */
};

/* Frames to be merged, or a single one. */
struct run {
	uint8_t first, last; /* candidates */
	uint8_t count;
	uint8_t chain; /* next run in its bucket */
	bool open, fixed_id;
	uint32_t length; /* payload of all */
};

struct coalescing {
	uint32_t kinds;
	uint32_t run_count;
	struct coalesce_scratch *scratch;
	uint8_t buckets[BUCKETS];
	struct run runs[FRAME_BURST];		 /* in the order in which they come out */
	struct candidate candidates[FRAME_BURST]; /* by number of the frame */
};

uint32_t coalesce_kinds_for(uint64_t negotiated)
{
	uint32_t kinds = 0;

	if (!(negotiated & VNET_F_GUEST_CSUM) || !(negotiated & VNET_F_MRG_RXBUF))
		return 0;
	kinds |= negotiated & VNET_F_GUEST_TSO4 ? COALESCE_TCP4 : 0;
	kinds |= negotiated & VNET_F_GUEST_TSO6 ? COALESCE_TCP6 : 0;
	kinds |= negotiated & VNET_F_GUEST_USO4 ? COALESCE_UDP4 : 0;
	kinds |= negotiated & VNET_F_GUEST_USO6 ? COALESCE_UDP6 : 0;
	if (kinds && (negotiated & VNET_F_GUEST_ECN))
		kinds |= COALESCE_ECN;
	return kinds;
}

/* --- one frame ---------------------------------------------------------------------------------------------------- */

static uint32_t flow_key(const struct layout *layout, const uint8_t *head)
{
	const uint8_t *ip = head + layout->network;
	const uint32_t ports = load_be32(head + layout->transport);
	uint32_t addresses = layout->family == 4 ? load_be32(ip + 12) ^ load_be32(ip + 16) * 31 : load_be32(ip + 20) ^ load_be32(ip + 36) * 31;

	addresses = (addresses ^ ports) * 0x9e3779b1u;
	return addresses ^ addresses >> 15 ^ layout->protocol;
}

/* TCP or UDP, whole, of a kind that the receiver takes: fills all of @c but ->next. Return: may it be merged? */
static bool may_merge(const struct coalescing *co, struct candidate *c)
{
	const struct layout *layout = &c->layout;
	const struct frame *frame = c->frame;
	const uint8_t *head = frame->head, *ip = head + layout->network, *transport = head + layout->transport;
	const bool tcp = layout->protocol == IPPROTO_TCP;

	if (layout->family == 4) {
		c->kind = tcp ? FRAME_GSO_TCP4 : FRAME_GSO_UDP4;
		c->identification = load_be16(ip + IPV4_IDENTIFICATION);
	} else {
		c->kind = tcp ? FRAME_GSO_TCP6 : FRAME_GSO_UDP6;
		c->identification = 0;
	}
	if (!(co->kinds & 1u << c->kind) || frame->offload.needs_checksum || layout->end != frame->length ||
	    layout->payload > COALESCE_HEAD_MAX || layout->payload >= frame->length ||
	    (layout->flags & (LAYOUT_AUTHENTICATED | LAYOUT_SOURCE_ROUTED)) || (layout->family == 4 && (layout->flags & LAYOUT_OPTIONS)))
		return false;
	c->payload = frame->length - layout->payload;
	c->sequence = 0;
	c->sums = SUMS_UNKNOWN;
	c->last = false;
	/* A checksum of 0xffff would come out as 0, except in UDP, where 0 is none. */
	if (layout->family == 4 && load_word(ip + IPV4_CHECKSUM) == 0xffff)
		return false;
	if (!tcp)
		return load_word(transport + UDP_CHECKSUM) && load_be16(transport + UDP_LENGTH) == frame->length - layout->transport;
	if ((transport[TCP_FLAGS] & (uint8_t)~(TCP_PSH | TCP_ECE | TCP_CWR)) != TCP_ACK || (transport[TCP_OFFSET] & 0xf) ||
	    load_word(transport + TCP_CHECKSUM) == 0xffff)
		return false;
	if ((transport[TCP_FLAGS] & TCP_CWR) && !(co->kinds & COALESCE_ECN))
		return false;
	c->sequence = load_be32(transport + TCP_SEQUENCE);
	c->last = transport[TCP_FLAGS] & TCP_PSH;
	return true;
}

/* Are the checksums right? Looked at once for each frame. */
static bool sums_good(struct coalescing *co, struct candidate *c)
{
	const uint8_t *ip = c->frame->head + c->layout.network;

	if (c->sums == SUMS_UNKNOWN) {
		const bool good = (c->layout.family == 6 || checksum_fold(checksum_sum_short(ip, 20)) == 0xffff) &&
				  (c->frame->offload.verified || frame_verify(c->frame, &c->layout) == FRAME_VERIFY_GOOD);

		c->sums = good ? SUMS_GOOD : SUMS_BAD;
		co->scratch->counters.bad_sums += !good;
	}
	return c->sums == SUMS_GOOD;
}

/* --- two frames --------------------------------------------------------------------------------------------------- */

/* Of one flow: the parts of the headers that never change within one. */
static bool same_flow(const struct candidate *a, const struct candidate *b)
{
	const struct layout *la = &a->layout, *lb = &b->layout;
	const uint8_t *ha = a->frame->head, *hb = b->frame->head;
	const uint32_t addresses = la->family == 4 ? 12 : 8;

	return a->key == b->key && la->family == lb->family && la->protocol == lb->protocol &&
	       !memcmp(ha + la->network + addresses, hb + lb->network + addresses, la->family == 4 ? 8 : 32) &&
	       !memcmp(ha + la->transport, hb + lb->transport, 4);
}

/* All of the headers that must be equal. @a and @b are of one flow. */
static bool same_headers(const struct candidate *a, const struct candidate *b)
{
	const struct layout *layout = &a->layout;
	const uint8_t *ha = a->frame->head, *hb = b->frame->head;
	const uint32_t network = layout->network, transport = layout->transport;

	if (network != b->layout.network || transport != b->layout.transport || layout->payload != b->layout.payload ||
	    memcmp(ha, hb, network))
		return false;
	if (layout->family == 4) {
		/* Version, TOS; fragment bits, TTL, protocol. Addresses are equal, options there are none. */
		if (load_word(ha + network) != load_word(hb + network) || memcmp(ha + network + IPV4_FRAGMENT, hb + network + IPV4_FRAGMENT, 4))
			return false;
	} else if (memcmp(ha + network, hb + network, 4) ||
		   memcmp(ha + network + 6, hb + network + 6, transport - network - 6)) {
		return false;
	}
	if (layout->protocol == IPPROTO_UDP)
		return true;
	ha += transport;
	hb += transport;
	if (memcmp(ha + 8, hb + 8, 5)) /* acknowledgement, data offset */
		return false;
	if ((ha[TCP_FLAGS] ^ hb[TCP_FLAGS]) & (uint8_t)~(TCP_PSH | TCP_CWR) || (hb[TCP_FLAGS] & TCP_CWR))
		return false;
	return !memcmp(ha + 14, hb + 14, 2) && !memcmp(ha + 18, hb + 18, layout->payload - transport - 18u); /* window; urgent pointer, options */
}

static bool id_continues(const struct run *run, const struct candidate *first, const struct candidate *c, bool *fixed)
{
	const uint8_t *ip = first->frame->head + first->layout.network;

	*fixed = run->fixed_id;
	if (first->layout.family == 6)
		return true;
	if (run->count == 1)
		*fixed = c->identification == first->identification && (load_be16(ip + IPV4_FRAGMENT) & IPV4_DF);
	return c->identification == (uint16_t)(first->identification + (*fixed ? 0 : run->count));
}

/* Whether @c is what comes next in the run of its flow. */
static bool continues(struct coalescing *co, struct run *run, struct candidate *c)
{
	struct candidate *first = &co->candidates[run->first], *last = &co->candidates[run->last];
	const uint32_t headers = first->layout.payload - first->layout.network - (first->layout.family == 6 ? IPV6_HEADER_LENGTH : 0);
	bool fixed;

	if (last->last || c->payload > first->payload || c->sequence != (first->layout.protocol == IPPROTO_TCP ? first->sequence + run->length : 0) ||
	    headers + run->length + c->payload > IP_LENGTH_MAX ||
	    first->frame->length + run->length + c->payload - first->payload > FRAME_LENGTH_MAX)
		return false;
	if (!same_headers(first, c) || !id_continues(run, first, c, &fixed))
		return false;
	if (!sums_good(co, first) || !sums_good(co, c))
		return false;
	run->fixed_id = fixed;
	return true;
}

/* --- the burst ---------------------------------------------------------------------------------------------------- */

static struct run *add_run(struct coalescing *co, uint8_t number, bool open)
{
	struct run *run = &co->runs[co->run_count++];

	*run = (struct run){.first = number, .last = number, .count = 1, .chain = RUN_NONE, .open = open};
	return run;
}

/* The open run of the candidate's flow. */
static struct run *find_run(struct coalescing *co, const struct candidate *c)
{
	for (uint8_t i = co->buckets[c->key % BUCKETS]; i != RUN_NONE; i = co->runs[i].chain)
		if (co->runs[i].open && same_flow(&co->candidates[co->runs[i].first], c))
			return &co->runs[i];
	return NULL;
}

static void look_at(struct coalescing *co, uint8_t number)
{
	struct candidate *c = &co->candidates[number];
	struct run *run;
	bool mergeable;

	layout_parse(c->frame->head, min_u32(c->frame->head_length, c->frame->length), &c->layout);
	if (c->layout.level != LAYOUT_TRANSPORT) {
		if (unlikely(c->layout.flags & LAYOUT_FRAGMENT))
			memset(co->buckets, RUN_NONE, sizeof(co->buckets));
		add_run(co, number, false);
		return;
	}
	mergeable = may_merge(co, c);
	c->key = flow_key(&c->layout, c->frame->head);
	run = find_run(co, c);
	if (run && mergeable && continues(co, run, c)) {
		co->candidates[run->last].next = number;
		run->last = number;
		run->count++;
		run->length += c->payload;
		c->last |= c->payload < co->candidates[run->first].payload;
		return;
	}
	if (run)
		run->open = false;
	run = add_run(co, number, mergeable);
	if (!mergeable)
		return;
	run->length = c->payload;
	run->chain = co->buckets[c->key % BUCKETS];
	co->buckets[c->key % BUCKETS] = (uint8_t)(run - co->runs);
}

/* Headers of the merged frame: lengths, sums, and what the last segment adds. */
static void write_head(const struct coalescing *co, const struct run *run, uint8_t *head)
{
	const struct candidate *first = &co->candidates[run->first], *last = &co->candidates[run->last];
	const struct layout *layout = &first->layout;
	const uint32_t total = layout->payload + run->length, length = total - layout->transport;
	uint8_t *ip = head + layout->network, *transport = head + layout->transport;
	uint64_t pseudo;

	if (layout->family == 4) {
		store_be16(ip + IPV4_TOTAL_LENGTH, (uint16_t)(total - layout->network));
		store_word(ip + IPV4_CHECKSUM, 0);
		store_word(ip + IPV4_CHECKSUM, (uint16_t)~checksum_fold(checksum_sum_short(ip, 20)));
		pseudo = checksum_pseudo_ipv4(ip, layout->protocol, length);
	} else {
		store_be16(ip + IPV6_PAYLOAD_LENGTH, (uint16_t)(total - layout->network - IPV6_HEADER_LENGTH));
		pseudo = checksum_pseudo_ipv6(ip, layout->protocol, length);
	}
	if (layout->protocol == IPPROTO_TCP) {
		transport[TCP_FLAGS] |= last->frame->head[last->layout.transport + TCP_FLAGS] & TCP_PSH;
		store_word(transport + TCP_CHECKSUM, checksum_fold(pseudo));
	} else {
		store_be16(transport + UDP_LENGTH, (uint16_t)length);
		store_word(transport + UDP_CHECKSUM, checksum_fold(pseudo));
	}
}

/* Payload of all of the run's frames, as segments. Return: how many. */
static uint32_t gather(const struct coalescing *co, const struct run *run, struct frame_segment *segment)
{
	uint32_t count = 0;

	for (uint8_t i = run->first; i != RUN_NONE; i = co->candidates[i].next) {
		const struct candidate *c = &co->candidates[i];
		const struct frame *frame = c->frame;

		if (frame->head_length > c->layout.payload)
			segment[count++] = (struct frame_segment){frame->head + c->layout.payload, frame->head_length - (uint32_t)c->layout.payload};
		for (uint32_t k = 0; k < frame->segment_count; k++)
			segment[count++] = frame->segments[k];
	}
	return count;
}

static struct frame *merge(const struct coalescing *co, const struct run *run, uint32_t number, struct frame_segment *segments)
{
	const struct candidate *first = &co->candidates[run->first];
	struct frame *frame = &co->scratch->frames[number];
	uint8_t *head = co->scratch->heads[number] + FRAME_HEADROOM;
	const bool tcp = first->layout.protocol == IPPROTO_TCP;

	memcpy(head, first->frame->head, first->layout.payload);
	write_head(co, run, head);
	*frame = (struct frame){
		.head = head,
		.segments = segments,
		.length = first->layout.payload + run->length,
		.head_length = first->layout.payload,
		.segment_count = (uint16_t)gather(co, run, segments),
		.origin = first->frame->origin,
		.offload = {
			.gso = first->kind,
			.ecn = tcp && (head[first->layout.transport + TCP_FLAGS] & TCP_CWR),
			.fixed_id = run->fixed_id,
			.needs_checksum = true,
			.csum_start = first->layout.transport,
			.csum_offset = tcp ? TCP_CHECKSUM : UDP_CHECKSUM,
			.gso_size = (uint16_t)first->payload,
			.header_length = first->layout.payload,
		},
	};
	return frame;
}

uint32_t coalesce_frames(struct frame *const *frames, uint32_t count, uint32_t kinds, struct coalesce_scratch *scratch)
{
	struct coalescing co; /* what is read of it is written first */
	uint32_t made = 0, segments = 0;

	scratch->counters = (struct coalesce_counters){0};
	if (count < 2 || !(kinds & ~(uint32_t)COALESCE_ECN)) {
		memcpy(scratch->list, frames, count * sizeof(*frames));
		return count;
	}
	co.kinds = kinds;
	co.run_count = 0;
	co.scratch = scratch;
	memset(co.buckets, RUN_NONE, sizeof(co.buckets));
	for (uint32_t i = 0; i < count; i++) {
		co.candidates[i].frame = frames[i];
		co.candidates[i].next = RUN_NONE;
		look_at(&co, (uint8_t)i);
	}
	for (uint32_t i = 0; i < co.run_count; i++) {
		const struct run *run = &co.runs[i];

		if (run->count == 1) {
			scratch->list[i] = co.candidates[run->first].frame;
			continue;
		}
		scratch->list[i] = merge(&co, run, made++, &scratch->segments[segments]);
		segments += scratch->list[i]->segment_count;
		scratch->counters.merged += run->count;
	}
	scratch->counters.made = made;
	return co.run_count;
}

void coalesce_burst(struct frame_burst *burst, uint32_t kinds, struct coalesce_scratch *scratch)
{
	struct frame *list[FRAME_BURST];
	uint32_t count;

	for (uint32_t i = 0; i < burst->count; i++)
		list[i] = &burst->frames[i];
	count = coalesce_frames(list, burst->count, kinds, scratch);
	/* What comes out at i went in at i or behind it: copying forwards overwrites nothing that is still wanted. */
	for (uint32_t i = 0; i < count; i++)
		if (scratch->list[i] != &burst->frames[i])
			burst->frames[i] = *scratch->list[i];
	burst->count = count;
}
