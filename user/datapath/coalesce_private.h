/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the two files of coalescing share: coalesce_match.c judges frames, coalesce.c keeps runs and makes what comes out.
 * Nobody else includes this.
 */
#ifndef VHOSTLANE_DATAPATH_COALESCE_PRIVATE_H
#define VHOSTLANE_DATAPATH_COALESCE_PRIVATE_H

#include <netinet/in.h>

#include "common/util.h"
#include "datapath/checksum.h"
#include "datapath/coalesce.h"
#include "datapath/layout.h"

#define RUN_NONE 0xff
#define BUCKETS 64 /* of flows and of hints; a power of two */

#define IPV4_TOTAL_LENGTH 2
#define IPV4_IDENTIFICATION 4
#define IPV4_FRAGMENT 6
#define IPV4_DF 0x4000
#define IPV4_CHECKSUM 10
#define IPV4_ADDRESSES 12
#define IPV6_PAYLOAD_LENGTH 4
#define IPV6_ADDRESSES 8
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
_Static_assert(COALESCE_HEAD_MAX % 16 == 0, "compared in pieces of 16");

/* Frames to be merged, or a single one. The first gives headers and layout. */
struct run {
	struct frame *frame;
	const uint8_t *head;
	struct layout layout;
	uint64_t hint;		/* by which its frames are found without a look at their headers */
	uint32_t key;		/* of its flow */
	uint8_t kind;		/* enum frame_gso */
	uint8_t first, last, count; /* frames, by their number in the burst */
	uint8_t chain;		/* next run in its bucket */
	bool open;		/* frames may still join */
	bool ended;		/* the last that joined was short, or had PSH */
	bool fixed_id;
	bool prepared, good;	/* what follows is filled; the first's checksums are right */
	bool in_pieces;		/* a frame has payload elsewhere than in its head */
	uint32_t size;		/* payload of each but the last */
	uint32_t length, room;	/* payload of all, now and at most */
	uint32_t sequence;	/* TCP: the first's */
	uint16_t identification; /* IPv4: the first's */
	uint16_t length_at, length_from; /* the IP header's length field; what it counts from */
	uint16_t network_sum, transport_sum; /* of headers and pseudo-header, without what differs from frame to frame */
	/* Headers as they must be where mask has ones; up to the next multiple of 16 mask has zeros. */
	uint8_t same[COALESCE_HEAD_MAX] __attribute__((aligned(16)));
	uint8_t mask[COALESCE_HEAD_MAX] __attribute__((aligned(16)));
};

struct coalescing {
	struct frame *const *frames;
	uint32_t count, kinds;
	uint32_t run_count;
	struct coalesce_scratch *scratch;
	uint8_t buckets[BUCKETS], hints[BUCKETS];
	uint8_t next[FRAME_BURST];  /* frame of the same run; of the last it means nothing */
	struct run runs[FRAME_BURST]; /* in the order in which they come out */
};

static inline bool run_is_tcp(const struct run *run)
{
	return run->layout.protocol == IPPROTO_TCP;
}

/* May others be merged to the run's first frame, of which layout and head are known? Fills what the run starts with. */
bool run_may_merge(const struct coalescing *co, struct run *run);

/*
 * Joins frames from number @number on to an open run, as long as each is what comes next in it. Their layout need not be
 * known: it is the run's if their headers are. Return: how many joined.
 */
uint32_t run_extend(struct coalescing *co, struct run *run, uint32_t number);

#endif
