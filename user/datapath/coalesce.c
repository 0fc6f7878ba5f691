/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * Frames are looked at in order. A frame that may be merged at all joins the open run of its flow if it continues it
 * (coalesce_match.c), else it opens a run of its own and the flow's run before it is closed. When all are seen, each run of
 * two or more becomes one frame.
 *
 * Most frames that join do so without being parsed: the bytes that stand where most packets have their addresses and ports
 * hint at a run, and a frame whose headers are those of the run's first, byte by byte where they must be, has its layout and
 * all that was found lawful there. What no hint leads to its run is parsed and looked up by its flow.
 *
 * Checksums are verified only when a second frame wants to join, so that traffic that does not merge pays for a look at its
 * headers alone.
 */
#include "datapath/coalesce_private.h"

#define HINT_AT 26 /* addresses and ports of untagged IPv4 */
#define HINT_LENGTH 12

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

/* --- runs --------------------------------------------------------------------------------------------------------- */

static uint32_t flow_key(const struct layout *layout, const uint8_t *head)
{
	const uint8_t *ip = head + layout->network;
	const uint32_t ports = load_be32(head + layout->transport);
	uint32_t addresses = layout->family == 4 ? load_be32(ip + 12) ^ load_be32(ip + 16) * 31 : load_be32(ip + 20) ^ load_be32(ip + 36) * 31;

	addresses = (addresses ^ ports) * 0x9e3779b1u;
	return addresses ^ addresses >> 15 ^ layout->protocol;
}

static inline uint64_t hint_of(const uint8_t *head)
{
	return (load_64(head + HINT_AT) ^ (uint64_t)load_32(head + HINT_AT + 8) << 21) * 0x9e3779b97f4a7c15ull;
}

static inline uint8_t *hint_slot(struct coalescing *co, uint64_t hint)
{
	return &co->hints[hint >> 58];
}

/* Of one flow: the parts of the headers that never change within one. */
static bool same_flow(const struct run *a, const struct run *b)
{
	const struct layout *la = &a->layout, *lb = &b->layout;
	const bool ipv4 = la->family == 4;
	const uint32_t addresses = ipv4 ? IPV4_ADDRESSES : IPV6_ADDRESSES;

	return a->key == b->key && la->family == lb->family && la->protocol == lb->protocol &&
	       !memcmp(a->head + la->network + addresses, b->head + lb->network + addresses, ipv4 ? 8 : 32) &&
	       !memcmp(a->head + la->transport, b->head + lb->transport, 4);
}

/* The open run of a flow. */
static struct run *find_run(struct coalescing *co, const struct run *like)
{
	for (uint8_t i = co->buckets[like->key % BUCKETS]; i != RUN_NONE; i = co->runs[i].chain)
		if (co->runs[i].open && same_flow(&co->runs[i], like))
			return &co->runs[i];
	return NULL;
}

static void close_all(struct coalescing *co)
{
	for (uint32_t i = 0; i < co->run_count; i++)
		co->runs[i].open = false;
}

/*
 * A frame that cannot belong to any run, seen at a glance: of a protocol that the receiver does not take merged. Tags and
 * extension headers are looked at closely.
 */
static inline bool is_stranger(uint32_t kinds, const uint8_t *head)
{
	const uint16_t ethertype = load_word(head + 12);
	uint32_t wanted;

	if (ethertype == htobe16(0x0800)) {
		const uint8_t protocol = head[ETHERNET_HEADER_LENGTH + 9];

		wanted = protocol == IPPROTO_TCP ? COALESCE_TCP4 : protocol == IPPROTO_UDP ? COALESCE_UDP4 : 0;
	} else if (ethertype == htobe16(0x86dd)) {
		const uint8_t next = head[ETHERNET_HEADER_LENGTH + 6];

		wanted = next == IPPROTO_TCP ? COALESCE_TCP6 : next == IPPROTO_UDP ? COALESCE_UDP6 : next == IPPROTO_ICMPV6 ? 0 : kinds;
	} else {
		return false;
	}
	return !(kinds & wanted);
}

/* A frame that no hint led to its run. @tried: a run that it does not continue. Return: frames dealt with. */
static uint32_t look_closely(struct coalescing *co, uint32_t number, uint64_t hint, const struct run *tried)
{
	struct frame *frame = co->frames[number];
	struct run *run = &co->runs[co->run_count], *before;

	/* A run of its own, unless it joins another. */
	run->frame = frame;
	run->head = frame->head;
	run->first = run->last = (uint8_t)number;
	run->count = 1;
	run->open = run->ended = run->fixed_id = run->prepared = false;
	if (frame->head_length >= HINT_AT + HINT_LENGTH && is_stranger(co->kinds, run->head)) {
		co->run_count++;
		return 1;
	}
	layout_parse(frame->head, frame->head_length, &run->layout);
	if (run->layout.level != LAYOUT_TRANSPORT) {
		if (unlikely(run->layout.flags & LAYOUT_FRAGMENT))
			close_all(co);
		co->run_count++;
		return 1;
	}
	run->open = run_may_merge(co, run);
	run->key = flow_key(&run->layout, run->head);
	before = find_run(co, run);
	if (before) {
		const uint32_t joined = run->open && before != tried ? run_extend(co, before, number) : 0;

		if (joined)
			return joined;
		before->open = false;
	}
	if (run->open) {
		run->chain = co->buckets[run->key % BUCKETS];
		co->buckets[run->key % BUCKETS] = (uint8_t)co->run_count;
		run->hint = hint;
		*hint_slot(co, hint) = (uint8_t)co->run_count;
	}
	co->run_count++;
	return 1;
}

/* Frame number @number and perhaps some that follow it. Return: how many. */
static uint32_t look_at(struct coalescing *co, uint32_t number)
{
	const struct frame *frame = co->frames[number];
	const uint64_t hint = likely(frame->head_length >= HINT_AT + HINT_LENGTH) ? hint_of(frame->head) : 0;
	const uint8_t hinted = *hint_slot(co, hint);
	struct run *run = NULL;

	if (hinted != RUN_NONE && co->runs[hinted].hint == hint && co->runs[hinted].open) {
		uint32_t joined;

		run = &co->runs[hinted];
		joined = run_extend(co, run, number);
		if (likely(joined))
			return joined;
	}
	return look_closely(co, number, hint, run);
}

/* --- what comes out ----------------------------------------------------------------------------------------------- */

/* Headers of the merged frame: lengths, sums, and what the last segment adds. */
static void write_head(const struct coalescing *co, const struct run *run, uint8_t *head)
{
	const struct frame *last = co->frames[run->last];
	const struct layout *layout = &run->layout;
	const uint32_t total = layout->payload + run->length, length = total - layout->transport;
	uint8_t *ip = head + layout->network, *transport = head + layout->transport;
	uint64_t pseudo;

	if (layout->family == 4) {
		store_be16(ip + IPV4_TOTAL_LENGTH, (uint16_t)(total - layout->network));
		store_word(ip + IPV4_CHECKSUM, (uint16_t)~checksum_fold((uint64_t)run->network_sum + load_word(ip + IPV4_TOTAL_LENGTH) +
								   load_word(ip + IPV4_IDENTIFICATION)));
		pseudo = checksum_pseudo_ipv4(ip, layout->protocol, length);
	} else {
		store_be16(ip + IPV6_PAYLOAD_LENGTH, (uint16_t)(total - layout->network - IPV6_HEADER_LENGTH));
		pseudo = checksum_pseudo_ipv6(ip, layout->protocol, length);
	}
	if (run_is_tcp(run)) {
		transport[TCP_FLAGS] |= last->head[layout->transport + TCP_FLAGS] & TCP_PSH;
		store_word(transport + TCP_CHECKSUM, checksum_fold(pseudo));
	} else {
		store_be16(transport + UDP_LENGTH, (uint16_t)length);
		store_word(transport + UDP_CHECKSUM, checksum_fold(pseudo));
	}
}

/* What of one frame becomes segments: the payload in its head, then its own segments, none of them empty. */
static uint32_t gather_frame(const struct frame *frame, uint32_t payload, uint32_t sum, struct frame_segment *segments, uint32_t *sums)
{
	uint32_t count = 0;

	if (frame->head_length > payload) {
		sums[count] = 0;
		segments[count++] = (struct frame_segment){frame->head + payload, frame->head_length - payload};
	}
	for (uint32_t i = 0; i < frame->segment_count; i++) {
		if (unlikely(!frame->segments[i].length))
			continue;
		sums[count] = 0;
		segments[count++] = frame->segments[i];
	}
	sums[count - 1] = sum;
	return count;
}

/* How much of the scratch is in use. */
struct used {
	uint32_t frames, parts, segments;
};

/* Frames of a run that lie among others, or in pieces. Return: their segments. */
static uint32_t gather(const struct coalescing *co, const struct run *run, uint32_t first)
{
	struct coalesce_scratch *scratch = co->scratch;
	uint32_t at = first;

	for (uint32_t k = 0, i = run->first; k < run->count; k++, i = co->next[i])
		at += gather_frame(co->frames[i], run->layout.payload, scratch->sums[i], &scratch->segments[at], &scratch->sums[at]);
	return at - first;
}

static struct frame *merge(const struct coalescing *co, const struct run *run, struct used *used)
{
	struct coalesce_scratch *scratch = co->scratch;
	struct frame *frame = &scratch->frames[used->frames];
	uint8_t *head = scratch->heads[used->frames] + FRAME_HEADROOM;
	const struct layout *layout = &run->layout;
	const bool together = run->last - run->first + 1u == run->count;
	uint32_t segments = run->first, segment_count = run->count;

	memcpy(head, run->head, layout->payload);
	write_head(co, run, head);
	scratch->parts_of[used->frames].first = (uint8_t)used->parts;
	scratch->parts_of[used->frames++].count = run->count;
	if (together) {
		memcpy(&scratch->parts[used->parts], &co->frames[run->first], run->count * sizeof(*co->frames));
		used->parts += run->count;
	} else {
		for (uint32_t k = 0, i = run->first; k < run->count; k++, i = co->next[i])
			scratch->parts[used->parts++] = co->frames[i];
	}
	if (!together || run->in_pieces) {
		segments = used->segments;
		segment_count = gather(co, run, segments);
		used->segments += segment_count;
	}
	*frame = (struct frame){
		.head = head,
		.segments = &scratch->segments[segments],
		.length = layout->payload + run->length,
		.head_length = layout->payload,
		.segment_count = (uint16_t)segment_count,
		.origin = run->frame->origin,
		.offload = {
			.gso = run->kind,
			.ecn = run_is_tcp(run) && (head[layout->transport + TCP_FLAGS] & TCP_CWR),
			.fixed_id = run->fixed_id,
			.needs_checksum = true,
			.csum_start = layout->transport,
			.csum_offset = run_is_tcp(run) ? TCP_CHECKSUM : UDP_CHECKSUM,
			.gso_size = (uint16_t)run->size,
			.header_length = layout->payload,
			.sums = co->kinds & COALESCE_VERIFY_LATER ? &scratch->sums[segments] : NULL,
		},
	};
	return frame;
}

uint32_t coalesce_frames(struct frame *const *frames, uint32_t count, uint32_t kinds, struct coalesce_scratch *scratch)
{
	struct used used = {.segments = FRAME_BURST};
	struct coalescing co; /* what is read of it is written first */

	scratch->counters = (struct coalesce_counters){0};
	if (count < 2 || !(kinds & ~(uint32_t)(COALESCE_ECN | COALESCE_VERIFY_LATER))) {
		memcpy(scratch->list, frames, count * sizeof(*frames));
		return count;
	}
	co.frames = frames;
	co.count = count;
	co.kinds = kinds;
	co.run_count = 0;
	co.scratch = scratch;
	memset(co.buckets, RUN_NONE, sizeof(co.buckets));
	memset(co.hints, RUN_NONE, sizeof(co.hints));
	for (uint32_t i = 0; i < count;)
		i += look_at(&co, i);
	for (uint32_t i = 0; i < co.run_count; i++) {
		const struct run *run = &co.runs[i];

		if (run->count == 1) {
			scratch->list[i] = run->frame;
			continue;
		}
		scratch->list[i] = merge(&co, run, &used);
		scratch->counters.merged += run->count;
	}
	scratch->counters.made = used.frames;
	return co.run_count;
}

uint32_t coalesce_parts(const struct coalesce_scratch *scratch, const struct frame *merged, struct frame *const **parts)
{
	const size_t number = (size_t)(merged - scratch->frames);

	*parts = &scratch->parts[scratch->parts_of[number].first];
	return scratch->parts_of[number].count;
}

void coalesce_burst(struct frame_burst *burst, uint32_t kinds, struct coalesce_scratch *scratch)
{
	struct frame *list[FRAME_BURST];
	uint32_t count;

	for (uint32_t i = 0; i < burst->count; i++)
		list[i] = &burst->frames[i];
	count = coalesce_frames(list, burst->count, kinds & ~(uint32_t)COALESCE_VERIFY_LATER, scratch);
	/* What comes out at i went in at i or behind it: copying forwards overwrites nothing that is still wanted. */
	for (uint32_t i = 0; i < count; i++)
		if (scratch->list[i] != &burst->frames[i])
			burst->frames[i] = *scratch->list[i];
	burst->count = count;
}
