/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A frame's transport checksum: completed or verified while the frame is copied, or verified before. No state; any thread.
 *
 * To one contiguous place: frame_copy(). A large frame's payload to many places: frame_scatter.h. To scattered places, piece by
 * piece in the frame's order:
 *	frame_checksum_start(&c, frame); frame_checksum_copy(&c, to, from, length) ...; frame_checksum_finish(&c);
 * A piece is of the head or of one segment, not of two. What is to be done is what the frame's offload says: its parts are
 * verified (->sums), else its checksum is completed (->needs_checksum), else it is only copied.
 * One pass over guest memory: a guest that changes what it sends gets a wrong sum, and nothing worse (checksum_copy()).
 */
#ifndef VHOSTLANE_DATAPATH_FRAME_CHECKSUM_H
#define VHOSTLANE_DATAPATH_FRAME_CHECKSUM_H

#include "common/util.h"
#include "datapath/checksum.h"
#include "datapath/frame.h"
#include "datapath/layout.h"

struct frame_checksum {
	struct checksum sum;
	uint32_t start;	      /* frame bytes to pass before summing begins; UINT32_MAX = nothing to complete */
	uint32_t csum_offset; /* from start to the checksum field */
	uint32_t offset;      /* frame bytes copied so far */
	uint8_t *to[2];	      /* where the field's two bytes went */
	const uint32_t *sums; /* verification: of the segment at hand; NULL = completion */
	const struct frame_segment *segment, *end; /* the one at hand; behind the last */
	uint32_t left; /* of the segment at hand */
	bool bad;      /* a part was wrong */
};

/* Whether copying takes frame_checksum_copy(). @open: the receiver takes the checksum open. */
static inline bool frame_checksum_wanted(const struct frame *frame, bool open)
{
	return frame->offload.needs_checksum && (!open || frame->offload.sums);
}

void frame_checksum_start(struct frame_checksum *c, const struct frame *frame);

void frame_checksum_copy_any(struct frame_checksum *c, uint8_t *to, const uint8_t *from, uint32_t length);

/* The frame's next @length bytes from @from to @to. */
static inline void frame_checksum_copy(struct frame_checksum *c, uint8_t *to, const uint8_t *from, uint32_t length)
{
	if (!c->sums || unlikely(c->offset < c->start)) {
		frame_checksum_copy_any(c, to, from, length);
		return;
	}
	/* A piece of a coalesced frame's payload; its segments are never empty. */
	checksum_add_copy(&c->sum, to, from, length);
	c->left -= length;
	if (c->left)
		return;
	if (*c->sums) {
		c->bad |= *c->sums != FRAME_SUM_VERIFIED && checksum_fold(c->sum.sum + (*c->sums & ~FRAME_SUM_CHECK)) != 0xffff;
		c->sum = (struct checksum){0};
	}
	c->sums++;
	if (++c->segment < c->end)
		c->left = c->segment->length;
}

/*
 * Stores the checksum, after all of the frame was copied; where it went must still be writable. Return: false if a part of a
 * coalesced frame was found wrong: the copy must not be delivered, the parts are (coalesce_parts()).
 */
bool frame_checksum_finish(struct frame_checksum *c);

/*
 * Head and segments to @to, which has room for frame->length bytes. No padding. @complete: the checksum, if the frame needs it;
 * false for a receiver that takes it open. Not for frames with offload.sums.
 */
void frame_copy(const struct frame *frame, uint8_t *to, bool complete);

enum frame_verify {
	FRAME_VERIFY_UNKNOWN, /* no whole TCP or UDP packet, or one without a checksum */
	FRAME_VERIFY_GOOD,
	FRAME_VERIFY_BAD,
	FRAME_VERIFY_PARTIAL, /* wrong, but just the pseudo-header's sum: the sender left completion to a device */
};

/**
 * frame_verify() - is the TCP or UDP checksum of a frame right?
 *
 * Only sound for frames whose memory does not change any more: those of a device. Sets offload.verified if GOOD. A PARTIAL frame
 * is made whole by frame_expect_completion().
 */
enum frame_verify frame_verify(struct frame *frame, const struct layout *layout);

/* Whether frame_verify() may find it PARTIAL, by a look at its headers only. */
bool frame_looks_partial(const struct frame *frame, const struct layout *layout);

/* Marks a PARTIAL frame as one whose checksum is to be completed. False: padding behind the packet would be summed too. */
bool frame_expect_completion(struct frame *frame, const struct layout *layout);

#endif
