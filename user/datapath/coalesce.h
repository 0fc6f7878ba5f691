/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Coalescing in software: segments of one flow that lie in one burst from a device become one large frame, by the rules of
 * Linux's GRO (coalesce.c names them). No state beyond the call; any thread.
 *
 * Headers of what is merged are copied to the scratch; payload stays where it is, and the given frames as they were but for
 * offload.verified. So the same frames can be coalesced for one receiver and go one by one to another. What comes out is
 * valid as long as the given frames and the scratch are.
 */
#ifndef VHOSTLANE_DATAPATH_COALESCE_H
#define VHOSTLANE_DATAPATH_COALESCE_H

#include "datapath/frame.h"

/* What a receiver takes merged. */
enum coalesce_kinds {
	COALESCE_TCP4 = 1 << FRAME_GSO_TCP4,
	COALESCE_TCP6 = 1 << FRAME_GSO_TCP6,
	COALESCE_UDP4 = 1 << FRAME_GSO_UDP4,
	COALESCE_UDP6 = 1 << FRAME_GSO_UDP6,
	COALESCE_ECN = 1, /* TCP whose first segment has CWR */
	/*
	 * Transport checksums are not verified here but while the large frame is copied (offload.sums), which spares a pass over
	 * all bytes. Whoever copies must then be ready to find it wrong, and to deliver coalesce_parts() instead.
	 */
	COALESCE_VERIFY_LATER = 1 << 7,
};

#define COALESCE_HEAD_MAX (FRAME_HEAD_MAX + FRAME_HEADROOM)
#define COALESCE_SEGMENTS (FRAME_SEGMENTS + FRAME_BURST) /* each frame's head can hold payload, too */

struct coalesce_counters {
	uint32_t merged;   /* frames that went into larger ones */
	uint32_t made;	   /* large frames */
	uint32_t bad_sums; /* frames left alone for a wrong checksum */
};

/* One worker's, reused for each burst; contents need not be cleared. */
struct coalesce_scratch {
	struct frame *list[FRAME_BURST];   /* what comes out, in order */
	struct coalesce_counters counters; /* of the last call */
	struct frame *parts[FRAME_BURST];  /* of merged frames, run by run */
	struct {
		uint8_t first, count;
	} parts_of[FRAME_BURST]; /* by number of the merged frame: which of ->parts */
	struct frame frames[FRAME_BURST];
	/*
	 * Of merged frames, and what offload.sums points to. The first FRAME_BURST by number of the frame whose payload it is: frames
	 * that lie one behind the other, each in one piece, are merged without being gone through again. Then those of others.
	 */
	struct frame_segment segments[FRAME_BURST + COALESCE_SEGMENTS];
	uint32_t sums[FRAME_BURST + COALESCE_SEGMENTS];
	uint8_t heads[FRAME_BURST][FRAME_HEADROOM + COALESCE_HEAD_MAX] __attribute__((aligned(16)));
};

/* Kinds for a guest with these features: GUEST_CSUM, MRG_RXBUF and GUEST_TSO or GUEST_USO. 0 = nothing to be gained. */
uint32_t coalesce_kinds_for(uint64_t negotiated);

/**
 * coalesce_frames() - merge what may be merged
 * @frames: at most FRAME_BURST, all for one receiver, in the order in which they came. Their memory must not change any
 *          more (frames of a device, never a guest's), since checksums are verified here and trusted afterwards.
 * @kinds:  enum coalesce_kinds, ored
 *
 * A merged frame stands where its first segment stood. Frames of one flow keep their order, as do those left alone.
 * Return: frames in scratch->list, which point into @frames' or the scratch's.
 */
uint32_t coalesce_frames(struct frame *const *frames, uint32_t count, uint32_t kinds, struct coalesce_scratch *scratch);

/* The frames that went into a merged one, in order, as they came. Return: how many. */
uint32_t coalesce_parts(const struct coalesce_scratch *scratch, const struct frame *merged, struct frame *const **parts);

/* The same for a whole burst, in place: burst->frames and ->count are what came out; ->segments still belong to it. Not for
 * COALESCE_VERIFY_LATER: the parts are gone. */
void coalesce_burst(struct frame_burst *burst, uint32_t kinds, struct coalesce_scratch *scratch);

#endif
