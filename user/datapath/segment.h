/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Segmentation in software: one frame with offload.gso becomes frames of gso_size payload bytes each. Headers are made
 * anew in private memory, payload stays where it is: slices of the frame's own head and segments. Checksums are left open
 * (needs_checksum), so that they are completed while the segments are copied. No state; any thread.
 *
 * Storage is the caller's and bounded; a long frame takes several bursts:
 *	if (segment_start(&s, frame) != SEGMENT_GOOD) drop;
 *	while (segment_next(&s, &burst)) send burst.list[0 .. burst.count - 1];
 * The frame must stay as it is until its last segments are sent.
 */
#ifndef VHOSTLANE_DATAPATH_SEGMENT_H
#define VHOSTLANE_DATAPATH_SEGMENT_H

#include "datapath/frame.h"

#define SEGMENT_HEAD_MAX (FRAME_HEAD_MAX + FRAME_HEADROOM) /* longest headers: a head, and the tags pushed in front of it */

/* Why a frame cannot be segmented. Names in segment_verdict_names[], as counters have them. */
#define SEGMENT_VERDICTS(X)                                                                                            \
	X(GOOD, "good")                                                                                                \
	X(NO_GSO, "segment_not_asked")		/* asks for no segmentation, or has nothing to be cut */                \
	X(HEADERS, "segment_headers")		/* headers not whole in the private head, or too long */                \
	X(PROTOCOL, "segment_protocol")		/* the headers are not those of offload.gso */

enum segment_verdict {
#define SEGMENT_VERDICT_ENUM(name, text) SEGMENT_##name,
	SEGMENT_VERDICTS(SEGMENT_VERDICT_ENUM)
#undef SEGMENT_VERDICT_ENUM
	SEGMENT_VERDICT_COUNT
};
extern const char *const segment_verdict_names[SEGMENT_VERDICT_COUNT];

#define SEGMENT_ROW (FRAME_HEADROOM + SEGMENT_HEAD_MAX)
/* A frame cut into n pieces has at most n - 1 more slices than pieces of memory: one segment always finds room. */
#define SEGMENT_SLICES (1 + FRAME_SEGMENTS + FRAME_BURST)

struct segment_burst {
	uint32_t count, slice_count;
	struct frame *list[FRAME_BURST]; /* of frames, for those that take lists */
	struct frame frames[FRAME_BURST];
	struct frame_segment slices[SEGMENT_SLICES];
	uint8_t heads[FRAME_BURST][SEGMENT_ROW] __attribute__((aligned(16)));
};

/* How far a frame has been cut, and what the next segment's headers hold. */
struct segment_cursor {
	struct frame_segment piece; /* what is left of the piece of payload at hand */
	uint32_t next_segment;	    /* of the frame, behind it */
	uint32_t left;		    /* payload bytes */
	uint32_t sequence;
	uint16_t identification;
};

struct segmenter {
	const struct frame *frame;
	struct segment_cursor at;
	/* The same for all segments. */
	uint16_t header_length, size, network, transport;
	bool ipv4, tcp, fixed_id;
	uint16_t id_sum; /* folded sum of the IPv4 header of a full segment, without identification and checksum */
	uint8_t first_flags, last_flags; /* TCP flags that only the first, only the last segment has */
	struct frame_offload offload;
	uint8_t head[SEGMENT_HEAD_MAX] __attribute__((aligned(16))); /* of a full segment that is neither first nor last */
};

/* Takes frame->offload for what is asked, and reads the headers again. */
enum segment_verdict segment_start(struct segmenter *s, const struct frame *frame);

/* The next segments, in order, as many as the storage holds. Return: burst->count; 0 = all done. */
uint32_t segment_next(struct segmenter *s, struct segment_burst *burst);

/* Segments that a frame will become. */
static inline uint32_t segment_count(const struct frame *frame)
{
	const struct frame_offload *offload = &frame->offload;

	if (offload->gso == FRAME_GSO_NONE)
		return 1;
	return (frame->length - offload->header_length + offload->gso_size - 1) / offload->gso_size;
}

#endif
