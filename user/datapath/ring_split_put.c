/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * to_guest: frames into chains. Heads and first descriptors are read some entries ahead of use (ring->ahead), and
 * their buffers fetched for writing, so that the misses of several frames overlap though frames come one by one.
 *
 * A frame goes out whole or not at all: bytes and used entries are written while walking, and only at the end the
 * private indices move. What was written before a walk failed lies in buffers that stay ours, beyond used->idx.
 */
#include <errno.h>

#include "datapath/frame_checksum.h"
#include "datapath/frame_scatter.h"
#include "datapath/ring_split_private.h"

/* Buffers of less than this, on average, are none that a driver gives: a frame's cost stays in proportion to its length. */
#define BYTES_PER_DESCRIPTOR 16

#define PLACES_MAX 64 /* chains of one frame that are filled at once: 64 KB are 43 buffers of 1536 bytes */

#define NUM_BUFFERS_AT offsetof(struct vnet_header, num_buffers)

/* Reads entries ahead until ahead[] is full or nothing more is known to be available. @next: those before it are done with. */
static void look_ahead(struct ring *ring, uint16_t next)
{
	uint16_t end = ring->ahead_end;
	uint16_t limit = (uint16_t)min_u32((uint16_t)(ring->avail_seen - next), RING_AHEAD);

	limit = (uint16_t)(next + limit);
	for (; end != limit; end++) {
		struct ring_slot *slot = &ring->ahead[end % RING_AHEAD];

		slot_read(ring, end, VRING_DESC_F_WRITE, slot);
		if (slot->at)
			prefetch_frame_write(slot->at);
	}
	ring->ahead_end = end;
	/* The descriptors that come after these, most drivers' being one behind the other. */
	if (end != ring->avail_seen)
		prefetch_read(&ring->desc[(ring->ahead[(uint16_t)(end - 1) % RING_AHEAD].head + 8u) & ring->mask]);
	prefetch_write(&ring->used->ring[(ring->used_next + RING_AHEAD) & ring->mask]);
}

/* Makes sure that the entry at last_avail is in ahead[]. False: none is available (or the ring faulted). */
static __attribute__((noinline)) bool have_slot(struct ring *ring)
{
	if (ring->avail_seen == ring->last_avail && (!ring_look(ring) || ring->avail_seen == ring->last_avail))
		return false;
	if (ring->ahead_end != ring->avail_seen)
		look_ahead(ring, ring->last_avail);
	return true;
}

/* --- any frame into any chains ------------------------------------------------------------------------------------ */

static const uint8_t zeros[FRAME_LENGTH_PADDED];

/* What is to be written, as one stream: virtio header, head, segments, padding. */
struct source {
	const struct frame *frame;
	const uint8_t *at;
	uint32_t left;	   /* at at */
	uint32_t total;	   /* of all, the part at at included */
	uint32_t segment;  /* next */
	bool head_done;
	bool of_frame;	   /* what is at at belongs to the frame: is summed if the checksum is to be completed */
	struct frame_checksum *checksum; /* NULL = nothing to complete */
};

static void source_advance(struct source *source)
{
	const struct frame *frame = source->frame;

	while (!source->left && source->total) {
		if (!source->head_done) {
			source->at = frame->head;
			source->left = frame->head_length;
			source->head_done = true;
			source->of_frame = true;
		} else if (source->segment < frame->segment_count) {
			source->at = frame->segments[source->segment].data;
			source->left = frame->segments[source->segment++].length;
		} else {
			source->at = zeros;
			source->left = min_u32(source->total, sizeof(zeros));
			source->of_frame = false;
		}
	}
}

static void source_copy(struct source *source, uint8_t *to, uint32_t length)
{
	while (length) {
		uint32_t n = min_u32(length, source->left);

		if (unlikely(source->checksum && source->of_frame))
			frame_checksum_copy(source->checksum, to, source->at, n);
		else
			memcpy(to, source->at, n);
		to += n;
		length -= n;
		source->at += n;
		source->left -= n;
		source->total -= n;
		source_advance(source);
	}
}

struct put {
	struct source source;
	uint8_t *num_buffers[2]; /* where its two bytes went */
	uint32_t offset;	 /* bytes written so far */
	uint32_t budget;	 /* descriptors that may still be looked at */
	uint16_t avail, used;	 /* the indices as they will be */
	uint16_t chains;
};

/* @piece bytes to @at, no more than there are. */
static inline void put_piece(struct put *put, uint8_t *at, uint32_t piece)
{
	if (put->offset < sizeof(struct vnet_header))
		for (unsigned i = 0; i < 2; i++)
			if (NUM_BUFFERS_AT + i - put->offset < piece) /* wraps when it lies before */
				put->num_buffers[i] = at + (NUM_BUFFERS_AT + i - put->offset);
	source_copy(&put->source, at, piece);
	put->offset += piece;
}

/* Fills one chain as far as there is something to write. Return: 0 or -EIO; *written. */
static int put_chain(struct ring *ring, struct put *put, const struct ring_slot *slot, uint32_t *written)
{
	struct chain chain;
	uint32_t piece;
	uint8_t *at;

	if (likely(slot->at && put->budget)) {
		put->budget--;
		*written = min_u32(slot->desc.len, put->source.total);
		put_piece(put, slot->at, *written);
		return 0;
	}
	*written = 0;
	if (!chain_start(ring, &chain, slot, VRING_DESC_F_WRITE))
		return -EIO;
	while (put->source.total) {
		enum chain_result result = chain_next(ring, &chain, &put->budget, &at, &piece);

		if (result == CHAIN_FAULT)
			return -EIO;
		if (result == CHAIN_END)
			break;
		piece = min_u32(piece, put->source.total);
		put_piece(put, at, piece);
		*written += piece;
	}
	return 0;
}

/* The slot at put->avail. Those beyond the first may be overwritten by later ones: put_frame() forgets them all. */
static const struct ring_slot *put_slot(struct ring *ring, struct put *put)
{
	uint16_t served = (uint16_t)(put->avail - ring->last_avail);

	if (served == (uint16_t)(ring->avail_seen - ring->last_avail) &&
	    (!ring_look(ring) || served == (uint16_t)(ring->avail_seen - ring->last_avail)))
		return NULL;
	if ((uint16_t)(ring->ahead_end - put->avail) <= RING_AHEAD - PREFETCH_FRAMES && ring->ahead_end != ring->avail_seen)
		look_ahead(ring, put->avail);
	return &ring->ahead[put->avail % RING_AHEAD];
}

static int put_chains(struct ring *ring, struct put *put)
{
	const struct ring_slot *slot;
	uint32_t written;
	int rc;

	do {
		if (put->chains == ring->size)
			return -EMSGSIZE; /* all that the guest can offer at once */
		slot = put_slot(ring, put);
		if (!slot)
			return ring_usable(ring) ? -ENOBUFS : -EIO;
		rc = put_chain(ring, put, slot, &written);
		if (rc < 0)
			return rc;
		/* The header lies whole in the first chain; without mergeable buffers all does (5.1.6.3.1). */
		if (put->offset < ring->header_length || (!ring->mergeable && put->source.total))
			return -EMSGSIZE;
		used_write(ring, put->used++, slot->head, written);
		put->avail++;
		put->chains++;
	} while (put->source.total);
	return 0;
}

/* A frame that comes again in parts is not counted: a coalesced one, and one to be segmented that is too large as it is. */
static int put_failed(struct ring *ring, const struct frame *frame, uint32_t total, int rc)
{
	if (!frame->offload.sums && rc == -ENOBUFS)
		ring_count(&ring->counters.no_buffers, 1);
	else if (frame->offload.gso == FRAME_GSO_NONE && rc == -EMSGSIZE)
		ring_count(&ring->counters.buffers_too_small, 1);
	if (rc != -EIO) {
		ring->lacking_length = total;
		ring->lacking_avail = ring->last_avail;
		ring->lacking_seen = ring->avail_seen;
		ring->lacking_result = rc;
	}
	return rc;
}

/* True if a frame no longer than this one found no room, and the guest has added nothing since. */
static bool put_known_to_fail(struct ring *ring, uint32_t total)
{
	return ring->lacking_length && total >= ring->lacking_length && ring->last_avail == ring->lacking_avail &&
	       (ring->lacking_result == -EMSGSIZE ||
		__atomic_load_n(&ring->avail->idx, __ATOMIC_RELAXED) == ring->lacking_seen);
}

/* To be summed while it is copied: its checksum is open and the receiver is not told so, or its parts are to be verified. */
static inline bool must_sum(const struct frame *frame, const struct vnet_header *header)
{
	return unlikely(frame_checksum_wanted(frame, header->flags & VNET_NEEDS_CSUM));
}

/* Nothing was put. What was written lies in buffers that stay ours, and is forgotten; slots that others overwrote are read again. */
static void put_back(struct ring *ring)
{
	if ((uint16_t)(ring->ahead_end - ring->last_avail) > RING_AHEAD)
		ring->ahead_end = ring->last_avail;
}

static inline void copy_any_head(const struct frame *frame, uint8_t *to)
{
	if (likely(frame->head_length <= FRAME_HEAD_MAX))
		copy_head(to, frame->head, frame->head_length);
	else
		memcpy(to, frame->head, frame->head_length);
}

static inline void vnet_write(uint32_t header_length, const struct vnet_header *header, uint8_t *to)
{
	uint64_t first;
	uint32_t last;

	__builtin_memcpy(&first, header, 8);
	__builtin_memcpy(&last, (const uint8_t *)header + 8, 4);
	last = (last & 0xffff) | 1u << 16; /* num_buffers */
	__builtin_memcpy(to, &first, 8);
	if (likely(header_length == VNET_HEADER_MODERN))
		__builtin_memcpy(to + 8, &last, 4);
	else
		__builtin_memcpy(to + 8, &last, 2);
}

/*
 * A coalesced frame into chains of one descriptor, as drivers with mergeable buffers give them. Return: 0, -EBADMSG, -EAGAIN: not so,
 * and nothing was done.
 */
static int put_scattered(struct ring *ring, struct put put, const struct frame *frame, const struct vnet_header *header)
{
	const uint32_t heads = ring->header_length + frame->head_length;
	struct scatter_place places[PLACES_MAX];
	uint32_t left = put.source.total, count;
	uint8_t *first;

	for (count = 0; left; count++) {
		const struct ring_slot *slot = count < PLACES_MAX ? put_slot(ring, &put) : NULL;

		if (unlikely(!slot || !slot->at || !slot->desc.len))
			return -EAGAIN;
		places[count] = (struct scatter_place){slot->at, min_u32(left, slot->desc.len)};
		left -= places[count].length;
		used_write(ring, put.used++, slot->head, places[count].length);
		put.avail++;
	}
	if (unlikely(places[0].length < heads))
		return -EAGAIN;
	first = places[0].to;
	vnet_write(ring->header_length, header, first);
	store_word(first + NUM_BUFFERS_AT, (uint16_t)count);
	copy_any_head(frame, first + ring->header_length);
	places[0] = (struct scatter_place){first + heads, places[0].length - heads};
	if (unlikely(!frame_scatter_verified(frame, places)))
		return -EBADMSG;
	ring->last_avail = put.avail;
	ring->used_next = put.used;
	return 0;
}

static __attribute__((noinline)) int put_frame(struct ring *ring, const struct frame *frame,
					       const struct vnet_header *header, uint32_t total)
{
	struct vnet_header first = *header;
	struct frame_checksum checksum;
	struct put put = {
		.source = {.frame = frame, .at = (const uint8_t *)&first, .left = ring->header_length, .total = total},
		.budget = CHAIN_STEPS_MAX + total / BYTES_PER_DESCRIPTOR,
		.avail = ring->last_avail,
		.used = ring->used_next,
	};
	int rc;

	if (put_known_to_fail(ring, total))
		return put_failed(ring, frame, ring->lacking_length, ring->lacking_result);
	if (frame->offload.sums && ring->mergeable && frame->length >= FRAME_LENGTH_PADDED) {
		rc = put_scattered(ring, put, frame, header);
		if (likely(!rc))
			return 0;
		put_back(ring);
		if (rc != -EAGAIN)
			return rc;
	}
	first.num_buffers = 1;
	if (must_sum(frame, header)) {
		frame_checksum_start(&checksum, frame);
		put.source.checksum = &checksum;
	}
	rc = put_chains(ring, &put);
	if (rc < 0) {
		put_back(ring);
		return put_failed(ring, frame, total, rc);
	}
	if (put.source.checksum && !frame_checksum_finish(&checksum)) {
		put_back(ring);
		return -EBADMSG;
	}
	if (put.chains > 1) {
		*put.num_buffers[0] = (uint8_t)put.chains;
		*put.num_buffers[1] = (uint8_t)(put.chains >> 8);
	}
	ring->last_avail = put.avail;
	ring->used_next = put.used;
	return 0;
}

/* --- the usual frame: one chain of one descriptor ----------------------------------------------------------------- */

/* A frame that is more than a short head, or less than the shortest one, or has a checksum to complete. */
static __attribute__((noinline)) void put_rest(const struct frame *frame, uint8_t *to, bool complete)
{
	if (complete) {
		frame_copy(frame, to, true);
		if (frame->length < FRAME_LENGTH_PADDED)
			memset(to + frame->length, 0, FRAME_LENGTH_PADDED - frame->length);
		return;
	}
	copy_any_head(frame, to);
	to += frame->head_length;
	for (uint32_t i = 0; i < frame->segment_count; i++) {
		memcpy(to, frame->segments[i].data, frame->segments[i].length);
		to += frame->segments[i].length;
	}
	if (frame->length < FRAME_LENGTH_PADDED)
		memset(to, 0, FRAME_LENGTH_PADDED - frame->length);
}

int ring_put(struct ring *ring, const struct frame *frame, const struct vnet_header *header)
{
	uint32_t header_length = ring->header_length;
	uint32_t length = frame->length;
	uint32_t total = header_length + max_u32(length, FRAME_LENGTH_PADDED);
	struct ring_slot *slot;

	if (unlikely(!ring_usable(ring)))
		return -EIO;
	if (unlikely((uint16_t)(ring->ahead_end - ring->last_avail) <= RING_AHEAD - PREFETCH_FRAMES) &&
	    unlikely(!have_slot(ring)))
		return put_failed(ring, frame, total, ring_usable(ring) ? -ENOBUFS : -EIO);
	slot = &ring->ahead[ring->last_avail % RING_AHEAD];
	if (likely(slot->at && total <= slot->desc.len && !frame->offload.sums)) {
		uint8_t *to = slot->at;

		vnet_write(header_length, header, to);
		/* One test for "no segments, FRAME_LENGTH_PADDED .. FRAME_HEAD_MAX": head_length is length then. */
		if (likely(length - FRAME_LENGTH_PADDED <= FRAME_HEAD_MAX - FRAME_LENGTH_PADDED &&
			   frame->head_length == length && !frame->offload.needs_checksum))
			copy_head(to + header_length, frame->head, length);
		else
			put_rest(frame, to + header_length, must_sum(frame, header));
		used_write(ring, ring->used_next++, slot->head, total);
		ring->last_avail++;
	} else {
		int rc = put_frame(ring, frame, header, total);

		if (rc < 0)
			return rc;
	}
	ring->lacking_length = 0;
	ring_count(&ring->counters.frames, 1);
	ring_count(&ring->counters.bytes, length);
	return 0;
}

void ring_put_done(struct ring *ring)
{
	if (!ring->running)
		return;
	if (unlikely(ring->notifications_armed)) /* nobody waits for buffers */
		ring_disarm(ring);
	ring_publish(ring);
}
