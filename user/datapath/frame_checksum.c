/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/frame_checksum.h"

#include <netinet/in.h>

#include "common/util.h"

#define TCP_CHECKSUM_OFFSET 16
#define UDP_CHECKSUM_OFFSET 6

/*
 * @sum of all, the field's own content included, which is the pseudo-header's sum. Return: the field. Where a field of 0 means
 * that there is none, its other form is sent (RFC 768); all protocols with the field at UDP's place have that rule.
 */
static uint16_t completed(uint64_t sum, uint32_t csum_offset)
{
	const uint16_t field = (uint16_t)~checksum_fold(sum);

	return field == 0 && csum_offset == UDP_CHECKSUM_OFFSET ? 0xffff : field;
}

/* --- completion while copying ------------------------------------------------------------------------------------- */

void frame_checksum_start(struct frame_checksum *c, const struct frame *frame)
{
	const struct frame_offload *offload = &frame->offload;

	c->sum = (struct checksum){0};
	c->start = offload->needs_checksum ? offload->csum_start : UINT32_MAX;
	c->csum_offset = offload->csum_offset;
	c->offset = 0;
	c->to[0] = c->to[1] = NULL;
	c->sums = offload->sums;
	c->bad = false;
	if (!c->sums)
		return;
	c->start = frame->head_length;
	c->segment = frame->segments;
	c->end = frame->segments + frame->segment_count;
	c->left = c->segment < c->end ? c->segment->length : 0;
}

/* Remembers where the field goes, if it is among the next @length bytes. */
static void note_field(struct frame_checksum *c, uint8_t *to, uint32_t length)
{
	const uint32_t field = c->start + c->csum_offset;

	for (uint32_t i = 0; i < 2; i++)
		if (field + i - c->offset < length) /* wraps when it lies before */
			c->to[i] = to + (field + i - c->offset);
}

void frame_checksum_copy_any(struct frame_checksum *c, uint8_t *to, const uint8_t *from, uint32_t length)
{
	uint32_t before = 0;

	if (likely(c->start == UINT32_MAX)) {
		memcpy(to, from, length);
		return;
	}
	if (c->sums) { /* the head */
		memcpy(to, from, length);
		c->offset += length;
		return;
	}
	if (!c->to[1])
		note_field(c, to, length);
	if (c->offset < c->start) {
		before = min_u32(length, c->start - c->offset);
		memcpy(to, from, before);
	}
	if (length > before)
		checksum_add_copy(&c->sum, to + before, from + before, length - before);
	c->offset += length;
}

bool frame_checksum_finish(struct frame_checksum *c)
{
	uint16_t field;

	if (c->sums)
		return !c->bad;
	if (!c->to[0] || !c->to[1])
		return true;
	field = completed(c->sum.sum, c->csum_offset);
	memcpy(c->to[0], &field, 1);
	memcpy(c->to[1], (const uint8_t *)&field + 1, 1);
	return true;
}

/* A private head. Most are short, and then a call of memcpy() costs more than the copy; the last piece may overlap. */
static inline void copy_head(uint8_t *to, const uint8_t *from, uint32_t length)
{
	uint32_t i;

	if (unlikely(length < 16 || length > FRAME_HEAD_MAX)) {
		memcpy(to, from, length);
		return;
	}
	for (i = 0; i + 16 < length; i += 16)
		__builtin_memcpy(to + i, from + i, 16);
	__builtin_memcpy(to + length - 16, from + length - 16, 16);
}

/* The field may lie behind the head, or across its border. */
static __attribute__((noinline)) void copy_any(const struct frame *frame, uint8_t *to)
{
	struct frame_checksum c;

	frame_checksum_start(&c, frame);
	frame_checksum_copy(&c, to, frame->head, frame->head_length);
	to += frame->head_length;
	for (uint32_t i = 0; i < frame->segment_count; i++) {
		frame_checksum_copy(&c, to, frame->segments[i].data, frame->segments[i].length);
		to += frame->segments[i].length;
	}
	frame_checksum_finish(&c);
}

void frame_copy(const struct frame *frame, uint8_t *to, bool complete)
{
	const struct frame_offload *offload = &frame->offload;
	const uint32_t field = (uint32_t)offload->csum_start + offload->csum_offset;
	struct checksum sum = {0};
	uint8_t *at = to + frame->head_length;

	complete &= offload->needs_checksum;
	if (unlikely(complete && field + 2 > frame->head_length)) {
		copy_any(frame, to);
		return;
	}
	copy_head(to, frame->head, frame->head_length);
	if (!complete) {
		for (uint32_t i = 0; i < frame->segment_count; i++) {
			memcpy(at, frame->segments[i].data, frame->segments[i].length);
			at += frame->segments[i].length;
		}
		return;
	}
	checksum_add(&sum, frame->head + offload->csum_start, frame->head_length - offload->csum_start);
	for (uint32_t i = 0; i < frame->segment_count; i++) {
		checksum_add_copy(&sum, at, frame->segments[i].data, frame->segments[i].length);
		at += frame->segments[i].length;
	}
	store_word(to + field, completed(sum.sum, offload->csum_offset));
}

/* --- verification ------------------------------------------------------------------------------------------------- */

/* Sum of the frame's bytes from @start to @end. */
static uint64_t sum_range(const struct frame *frame, uint32_t start, uint32_t end)
{
	struct checksum sum = {0};
	uint32_t at = min_u32(frame->head_length, end), n;

	checksum_add(&sum, frame->head + start, at - start);
	for (uint32_t i = 0; at < end; i++, at += n) {
		n = min_u32(frame->segments[i].length, end - at);
		checksum_add(&sum, frame->segments[i].data, n);
	}
	return sum.sum;
}

/* The sum of the pseudo-header, and the checksum field. False: no whole TCP or UDP packet, or one without a checksum. */
static bool read_sums(const struct frame *frame, const struct layout *layout, uint64_t *pseudo, uint16_t *field)
{
	const uint8_t *ip = frame->head + layout->network, *transport = frame->head + layout->transport;
	const uint32_t length = layout->end - layout->transport;

	if (layout->level != LAYOUT_TRANSPORT || (layout->flags & LAYOUT_SOURCE_ROUTED) || layout->end > frame->length ||
	    layout->end < layout->payload)
		return false;
	if (layout->protocol == IPPROTO_UDP) {
		*field = load_word(transport + UDP_CHECKSUM_OFFSET);
		if (*field == 0 || load_be16(transport + 4) != length)
			return false;
	} else {
		*field = load_word(transport + TCP_CHECKSUM_OFFSET);
	}
	*pseudo = layout->family == 4 ? checksum_pseudo_ipv4(ip, layout->protocol, length)
				      : checksum_pseudo_ipv6(ip, layout->protocol, length);
	return true;
}

bool frame_looks_partial(const struct frame *frame, const struct layout *layout)
{
	uint64_t pseudo;
	uint16_t field;

	return read_sums(frame, layout, &pseudo, &field) && field == checksum_fold(pseudo);
}

enum frame_verify frame_verify(struct frame *frame, const struct layout *layout)
{
	uint64_t pseudo;
	uint16_t field;

	if (!read_sums(frame, layout, &pseudo, &field))
		return FRAME_VERIFY_UNKNOWN;
	if (checksum_fold(pseudo + sum_range(frame, layout->transport, layout->end)) == 0xffff) {
		frame->offload.verified = true;
		return FRAME_VERIFY_GOOD;
	}
	return field == checksum_fold(pseudo) ? FRAME_VERIFY_PARTIAL : FRAME_VERIFY_BAD;
}

bool frame_expect_completion(struct frame *frame, const struct layout *layout)
{
	if (frame->length != layout->end)
		return false;
	frame->offload = (struct frame_offload){
		.needs_checksum = true,
		.csum_start = layout->transport,
		.csum_offset = layout->protocol == IPPROTO_TCP ? TCP_CHECKSUM_OFFSET : UDP_CHECKSUM_OFFSET,
		.header_length = layout->payload,
		.plain_checksum = layout_is_plain(layout),
	};
	return true;
}
