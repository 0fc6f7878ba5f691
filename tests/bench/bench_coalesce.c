/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What coalescing costs and gains: a burst of 32 full TCP segments from a device, in UMEM frames, delivered to a guest's ring
 * one by one, against the same burst coalesced (checksums verified) and delivered as one frame. Both in turn in one run,
 * by the real ring_put(); the ratio is of each turn's own two times. The guest's own cost falls with the number of
 * frames, which is printed too.
 *
 *   bench_coalesce [ROUNDS]
 *   valgrind --tool=callgrind --toggle-collect='merged_round*' bench_coalesce 100      instructions of one of the two
 */
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/util.h"
#include "datapath/coalesce.h"
#include "datapath/ring_split.h"
#include "measure.h"
#include "../unit/offload_packet.h"

#define MSS 1448
#define BURST 32
#define RING_SIZE 256
#define BUFFERS_AT (1u << 20)
#define MEMORY_SIZE (BUFFERS_AT + RING_SIZE * 4096)
#define GUEST_AT 0x100000000ull
#define CHUNK 4096
#define CHUNK_OFFSET 256

struct bench {
	uint8_t *memory; /* the guest's */
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct ring ring;
	uint16_t avail_next;
	uint8_t *umem;
	struct frame frames[BURST];
	struct frame *list[BURST];
	struct coalesce_scratch scratch;
	uint32_t kinds;
	uint64_t features;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_coalesce: %s\n", what);
	exit(1);
}

static void start_ring(struct bench *b, uint32_t buffer)
{
	struct guest_region_setup region = {.guest_address = GUEST_AT, .size = MEMORY_SIZE, .user_address = GUEST_AT};
	struct ring_setup setup = {
		.desc_user_address = GUEST_AT,
		.avail_user_address = GUEST_AT + 0x10000,
		.used_user_address = GUEST_AT + 0x20000,
		.features = 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_NET_F_MRG_RXBUF | 1ull << VIRTIO_RING_F_EVENT_IDX,
		.size = RING_SIZE,
	};
	struct error error;
	int fd = memfd_create("bench-guest", 0);

	if (fd < 0 || ftruncate(fd, MEMORY_SIZE) < 0)
		die("memfd");
	b->memory = mmap(NULL, MEMORY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	setup.memory = guest_memory_create(&region, &fd, 1, &error);
	if (b->memory == MAP_FAILED || !setup.memory)
		die("guest memory");
	close(fd);
	memset(b->memory, 0, MEMORY_SIZE);
	b->desc = (void *)b->memory;
	b->avail = (void *)(b->memory + 0x10000);
	b->avail_next = 0;
	for (unsigned i = 0; i < RING_SIZE; i++) {
		b->desc[i] = (struct vring_desc){.addr = GUEST_AT + BUFFERS_AT + i * 4096ull, .len = buffer, .flags = VRING_DESC_F_WRITE};
		b->avail->ring[i] = (uint16_t)i;
	}
	ring_init(&b->ring);
	if (ring_start(&b->ring, &setup, &error) < 0)
		die(error.text);
}

static void stop_ring(struct bench *b)
{
	struct guest_memory *shared = (struct guest_memory *)(uintptr_t)b->ring.memory;

	ring_stop(&b->ring);
	guest_memory_free(shared);
	munmap(b->memory, MEMORY_SIZE);
}

/* All buffers that were used are offered again. */
static void offer(struct bench *b)
{
	b->avail_next = (uint16_t)(b->ring.last_avail + RING_SIZE);
	__atomic_store_n(&b->avail->idx, b->avail_next, __ATOMIC_RELEASE);
}

/* A new burst has arrived: nothing is known of its frames yet. @set: which part of the UMEM. */
static void arrive(struct bench *b, unsigned set)
{
	for (unsigned i = 0; i < BURST; i++) {
		b->frames[i].head = b->umem + ((size_t)set * BURST + i) * CHUNK + CHUNK_OFFSET;
		b->frames[i].offload = (struct frame_offload){0};
	}
}

static __attribute__((noinline)) unsigned single_round(struct bench *b)
{
	static const struct vnet_header plain;

	for (unsigned i = 0; i < BURST; i++)
		if (ring_put(&b->ring, b->list[i], &plain) < 0)
			die("a frame found no place");
	ring_put_done(&b->ring);
	return BURST;
}

static __attribute__((noinline)) unsigned merged_round(struct bench *b)
{
	const uint32_t count = coalesce_frames(b->list, BURST, b->kinds, &b->scratch);

	for (uint32_t i = 0; i < count; i++) {
		struct vnet_header header;

		vnet_header_for(b->scratch.list[i], b->features, &header);
		if (ring_put(&b->ring, b->scratch.list[i], &header) < 0)
			die("a frame found no place");
	}
	ring_put_done(&b->ring);
	return count;
}

static void run(const char *what, uint32_t buffer, unsigned sets, uint32_t kinds, unsigned rounds)
{
	struct bench *b = zalloc_aligned(sizeof(*b));
	double *ratios = calloc(rounds, sizeof(*ratios)), *singles = calloc(rounds, sizeof(*singles)), *merges = calloc(rounds, sizeof(*merges));
	struct packet whole = packet_tcp4;
	unsigned delivered = 0;

	b->features = EVERY_RECEIVER_FEATURE;
	b->kinds = kinds;
	whole.payload = BURST * MSS;
	start_ring(b, buffer);
	b->umem = aligned_alloc(4096, (size_t)sets * BURST * CHUNK);
	memset(b->umem, 0, (size_t)sets * BURST * CHUNK);
	for (unsigned i = 0; i < sets * BURST; i++) {
		const struct packet part = packet_part(&whole, MSS, i % BURST);
		struct frame *frame = &b->frames[i % BURST];

		frame->length = packet_make(&part, b->umem + (size_t)i * CHUNK + CHUNK_OFFSET, false);
		frame->head_length = (uint16_t)frame->length;
		b->list[i % BURST] = frame;
	}
	for (unsigned r = 0; r < rounds; r++) {
		uint64_t spent[2];

		for (unsigned turn = 0; turn < 2; turn++) {
			const unsigned which = (turn + r) % 2; /* ABBA */
			uint64_t start;

			arrive(b, (2 * r + turn) % sets);
			offer(b);
			start = now_ns();
			if (which)
				delivered = merged_round(b);
			else
				single_round(b);
			spent[which] = now_ns() - start;
		}
		singles[r] = (double)spent[0];
		merges[r] = (double)spent[1];
		ratios[r] = (double)spent[1] / (double)spent[0];
	}
	printf("%-22s buffers of %u B: one by one %6.0f ns, coalesced %6.0f ns into %u, ratio %.2f\n", what, buffer, median(singles, rounds),
	       median(merges, rounds), delivered, median(ratios, rounds));
	stop_ring(b);
	free(b->umem);
	free(b);
	free(ratios);
	free(singles);
	free(merges);
}

int main(int argc, char **argv)
{
	const unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 8000;

	if (rounds < 10) {
		fprintf(stderr, "bench_coalesce: ROUNDS must be 10 or more\n");
		return 2;
	}
	printf("%u segments of %u B\n", BURST, MSS);
	for (unsigned i = 0; i < 2; i++) {
		const uint32_t buffer = i ? 4096 : 1536; /* what Linux offers while frames are small, and once they are large */

		run("in cache", buffer, 1, COALESCE_TCP4 | COALESCE_VERIFY_LATER, rounds);
		run("out of cache", buffer, 64, COALESCE_TCP4 | COALESCE_VERIFY_LATER, rounds); /* 8 MiB of UMEM */
		/* What looking in vain costs: a receiver that takes only datagrams merged. */
		run("nothing to merge", buffer, 1, COALESCE_UDP4, rounds);
	}
	return 0;
}
