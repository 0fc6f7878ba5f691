/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device side of a split virtqueue (virtio 1.2, 2.7), in guest memory. Knows nothing of sockets, switches or messages.
 *
 * Who may call: a ring is set up, started and stopped by the control thread while no worker sees it. While it runs,
 * from_guest rings are touched by the one worker that owns the pair; to_guest rings by any worker that holds the pair's lock.
 * Fields of the ring struct are the ring's own but for those that say otherwise.
 *
 * Trust: every shared field is read once into private memory, then checked, then used. Chain walks are bounded by the
 * ring size and RING_CHAIN_MAX, indirect tables by RING_INDIRECT_MAX. Anything unlawful sets ->fault; a faulted ring does nothing more
 * until it is stopped and started again.
 */
#ifndef VHOSTLANE_DATAPATH_RING_SPLIT_H
#define VHOSTLANE_DATAPATH_RING_SPLIT_H

#include <linux/virtio_ring.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/util.h"
#include "datapath/frame.h"
#include "datapath/guest_memory.h"

#define RING_SIZE_MAX 32768 /* virtio 1.2, 2.7: a power of two */
#define RING_INDIRECT_MAX 1024
#define RING_CHAIN_MAX 1024 /* descriptors of one chain in the ring: drivers use two dozen, QEMU's rings have no more entries */

/* Why a ring stopped. Names in ring_fault_names[]. */
#define RING_FAULTS(X)                                                                \
	X(NONE, "none")                                                               \
	X(AVAIL_JUMP, "available index ran back, or ahead by more than the ring size") \
	X(HEAD_RANGE, "chain head beyond the ring size")                              \
	X(CHAIN_LOOP, "descriptor chain longer than the ring, or than 1024: a loop")                \
	X(NEXT_RANGE, "next index beyond the table")                                  \
	X(ADDRESS, "descriptor address or length outside guest memory")               \
	X(DIRECTION, "descriptor with the wrong direction")                           \
	X(INDIRECT, "unlawful indirect descriptor")                                   \
	X(CALL_BLOCKED, "call descriptor blocks")                                     \
	X(MEMORY, "guest memory file became shorter")

enum ring_fault {
#define RING_FAULT_ENUM(name, text) RING_FAULT_##name,
	RING_FAULTS(RING_FAULT_ENUM)
#undef RING_FAULT_ENUM
	RING_FAULT_COUNT
};
_Static_assert(RING_CHAIN_MAX == 1024, "as the text of CHAIN_LOOP says");
extern const char *const ring_fault_names[RING_FAULT_COUNT];

/* What the control thread fills before ring_start(). */
struct ring_setup {
	const struct guest_memory *memory;
	uint64_t desc_user_address, avail_user_address, used_user_address;
	uint64_t features; /* negotiated VIRTIO feature bits: EVENT_IDX, INDIRECT_DESC, VERSION_1, MRG_RXBUF */
	uint32_t size;
	uint16_t base; /* next available index to serve (SET_VRING_BASE) */
};

struct ring_counters {	/* written by the ring's user only; read by the control thread with relaxed loads */
	uint64_t frames, bytes;
	uint64_t kicks_armed;		 /* times notifications were switched on */
	uint64_t calls_sent, calls_suppressed;
	uint64_t no_buffers;		 /* to_guest: frames that found no buffer */
	uint64_t buffers_too_small;	 /* to_guest: frame larger than the buffers the guest may use for one frame */
	uint64_t frames_short, frames_long, segments_exhausted, header_bad; /* from_guest: chains taken and dropped, by reason */
};

#define RING_AHEAD 16 /* to_guest: entries read ahead of use; a power of two */

/* A chain's head and first descriptor, read once. Lawful to keep: what is available belongs to the device (2.7.13). */
struct ring_slot {
	struct vring_desc desc;
	uint8_t *at;   /* the whole chain is this one piece of desc.len bytes; NULL = look closer */
	uint16_t head; /* unchecked */
};

struct ring {
	/* Constant while it runs. */
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	const struct guest_memory *memory;
	uint16_t size, mask;
	uint8_t header_length; /* VNET_HEADER_* */
	bool event_idx, indirect, mergeable;
	bool running;
	/* Last region hit, copied so that a hit costs one compare. */
	uint64_t cached_guest, cached_size;
	uint8_t *cached_base;

	/* The running state. */
	uint16_t last_avail;	   /* next available entry to look at */
	uint16_t avail_seen;	   /* last value read from avail->idx */
	uint16_t used_next;	   /* private copy of used->idx, entries written but maybe not published */
	uint16_t used_published;
	uint16_t used_signalled;   /* used index at the last call (event index) */
	bool signalled_valid;
	bool notifications_armed;
	uint16_t ahead_end; /* to_guest: entries last_avail .. ahead_end - 1 stand in ahead[index % RING_AHEAD] */
	/* to_guest: a frame of this length found no room at this state of the ring. Spares a second walk in vain. */
	uint32_t lacking_length;
	uint16_t lacking_avail, lacking_seen;
	int lacking_result;

	_Atomic int call_fd; /* -1 = none: the guest polls. Swapped by control; the old one is closed after a grace period */
	_Atomic int fault;   /* enum ring_fault; set by the ring's user, read by control */
	struct ring_counters counters;
	struct ring_slot ahead[RING_AHEAD];
} CACHE_ALIGNED;

/* An empty, stopped ring with no descriptors. */
void ring_init(struct ring *ring);

/**
 * ring_start() - translate and check the addresses, take the indices, run
 * Return: 0; -EINVAL (size: power of two, 1..RING_SIZE_MAX; alignment 16/2/4: virtio 1.2, 2.7), -EFAULT (not in memory).
 * Notifications start switched on (armed), so that a kick before the first poll is not lost.
 */
int ring_start(struct ring *ring, const struct ring_setup *setup, struct error *error);

/* Stop; keeps counters, leaves notifications switched on. Return: the base for GET_VRING_BASE (next available index not served yet). */
uint16_t ring_stop(struct ring *ring);

/* --- from_guest ------------------------------------------------------------------------------------------------- */

/**
 * ring_take() - fetch a burst of frames the guest wants sent
 *
 * Fills @burst: heads copied, rest as segments into guest memory. Chains that carry no usable frame are taken and counted;
 * they appear in no frame but are returned to the guest with the burst.
 * Return: frames in the burst. 0 can mean idle, fault, or only unusable chains.
 */
unsigned ring_take(struct ring *ring, struct frame_burst *burst, unsigned max);

/* Gives all chains of the last ring_take() back (used length 0, 2.7.8) and publishes the used index. No call yet. */
void ring_take_done(struct ring *ring);

/* Frames waiting, without taking them; cheap. 0 if not running or faulted. */
unsigned ring_pending(struct ring *ring);

/* --- to_guest --------------------------------------------------------------------------------------------------- */

/**
 * ring_put() - copy one frame into the guest's buffers, header first
 *
 * An open checksum (frame->offload.needs_checksum) is completed on the way unless @header leaves it to the guest (NEEDS_CSUM).
 * Pads to FRAME_LENGTH_PADDED. With mergeable buffers spreads over as many chains as needed and sets num_buffers
 * (5.1.6.4); a frame that does not fit what is available is left out whole: no chain is consumed (-ENOBUFS), and without
 * mergeable buffers a frame larger than its chain is dropped and counted (-EMSGSIZE), the chain kept for the next.
 * A coalesced frame whose parts are to be verified (offload.sums) and of which one is wrong is left out whole, too (-EBADMSG). Such a frame
 * is never counted as dropped: its parts can be put. Nor is one with offload.gso that is too large: its segments can.
 * Return: 0, -ENOBUFS, -EMSGSIZE, -EBADMSG, -EIO (faulted). Used entries are published by ring_put_done().
 */
int ring_put(struct ring *ring, const struct frame *frame, const struct vnet_header *header);

/* Publishes what was put, and asks for no kicks: nobody waits for buffers. No call yet. */
void ring_put_done(struct ring *ring);

/* --- notifications ----------------------------------------------------------------------------------------------- */

/*
 * Calls the guest if it wants to know of what was published since the last call (event index: 2.7.10). In two steps for a ring that several
 * workers fill: the decision, under the lock (return: descriptor to write, -1 = none), and the write, which may stand for as long as
 * the watchdog lets it, without.
 */
void ring_call(struct ring *ring);
int ring_call_due(struct ring *ring);
/* For calls that need not be made at once. Entries published since the last call, or since one was last unwanted: the guest may wait for it. */
static inline uint16_t ring_owes_call(const struct ring *ring)
{
	return (uint16_t)(ring->used_published - ring->used_signalled);
}
/* Asks the guest. True: nothing is owed, or it does not want a call for that; then nothing is owed any more. */
bool ring_call_unwanted(struct ring *ring);
void ring_call_write(struct ring *ring, int fd);

/* Calls whatever the guest says: after a new call descriptor, so that no wake-up is lost in the change. */
void ring_call_always(struct ring *ring);

/**
 * ring_arm() - switch notifications from the guest on, then look once more
 * Return: true if there is work already: do not sleep.
 */
bool ring_arm(struct ring *ring);
void ring_disarm(struct ring *ring);

/* --- looks from outside: the control thread, while workers use the ring ---------------------------------------------- */

/*
 * Chains that the guest made available and was not given back. *oldest is the index of the first of them: two looks that find the same
 * one know that it was not served in between. 0 if the ring does not run. A guest that writes over its used index deceives whoever looks.
 */
unsigned ring_unserved(const struct ring *ring, uint16_t *oldest);

/* Where the first buffers of the chains lie that were made available last, at most @max. Addresses of this process. Return: how many. */
unsigned ring_recent_buffers(const struct ring *ring, const void **buffers, unsigned max);

#endif
