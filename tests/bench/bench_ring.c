/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What one frame costs from one guest's ring into another's: ring_take() -> ring_put() -> done, in one thread, with the
 * guests' drivers in lockstep outside the measured time. No switch, no second core: the floor that the engine builds on.
 *
 *   bench_ring [BURSTS]        a table: layout, frame size, ns per frame at p10 and median of all bursts
 *   valgrind --tool=callgrind --toggle-collect=engine_round bench_ring 1000    counts instructions of the engine alone
 */
#include <inttypes.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/util.h"
#include "datapath/ring_split.h"

#define RING_SIZE 256
#define BURST 32
#define MEMORY_SIZE (4u << 20)
#define BUFFER_SIZE 4096
#define BUFFERS_AT (1u << 20)
#define GUEST_AT 0x100000000ull
#define USER_AT 0x7f0000000000ull

/* One guest: its memory as its driver sees it, and the ring as the engine sees it. */
struct guest {
	uint8_t *memory;
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint16_t avail_next, used_seen;
	struct guest_memory *shared;
	struct ring ring;
};

static void die(const char *what)
{
	fprintf(stderr, "bench_ring: %s\n", what);
	exit(1);
}

static void guest_start(struct guest *g)
{
	struct guest_region_setup region = {.guest_address = GUEST_AT, .size = MEMORY_SIZE, .user_address = USER_AT};
	struct ring_setup setup = {
		.desc_user_address = USER_AT,
		.avail_user_address = USER_AT + 0x10000,
		.used_user_address = USER_AT + 0x20000,
		.features = 1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_NET_F_MRG_RXBUF | 1ull << VIRTIO_RING_F_EVENT_IDX,
		.size = RING_SIZE,
	};
	struct error error;
	int fd = memfd_create("bench-guest", 0);

	if (fd < 0 || ftruncate(fd, MEMORY_SIZE) < 0)
		die("memfd");
	g->memory = mmap(NULL, MEMORY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (g->memory == MAP_FAILED)
		die("mmap");
	g->shared = guest_memory_create(&region, &fd, 1, &error);
	if (!g->shared)
		die(error.text);
	close(fd);
	g->desc = (void *)g->memory;
	g->avail = (void *)(g->memory + 0x10000);
	g->used = (void *)(g->memory + 0x20000);
	ring_init(&g->ring);
	setup.memory = g->shared;
	if (ring_start(&g->ring, &setup, &error) < 0)
		die(error.text);
}

static void guest_offer(struct guest *g, unsigned count)
{
	for (unsigned i = 0; i < count; i++, g->avail_next++)
		g->avail->ring[g->avail_next % RING_SIZE] = g->avail_next % RING_SIZE;
	__atomic_store_n(&g->avail->idx, g->avail_next, __ATOMIC_RELEASE);
}

/* @split: descriptors of a frame that is sent: 1 = header and data together, 2 = apart. */
static void guest_fill(struct guest *g, uint32_t length, bool sender, unsigned split)
{
	for (unsigned i = 0; i < RING_SIZE; i++) {
		uint64_t at = GUEST_AT + BUFFERS_AT + (uint64_t)i * BUFFER_SIZE + 64 - sizeof(struct vnet_header);

		if (!sender) {
			g->desc[i] = (struct vring_desc){.addr = at, .len = 2048, .flags = VRING_DESC_F_WRITE};
		} else if (split == 1) {
			g->desc[i] = (struct vring_desc){.addr = at, .len = sizeof(struct vnet_header) + length};
		} else {
			/* The second half of the table holds the data; only heads 0 .. 127 are used. */
			g->desc[i] = i < RING_SIZE / 2
				? (struct vring_desc){.addr = at, .len = sizeof(struct vnet_header), .flags = VRING_DESC_F_NEXT,
						      .next = (uint16_t)(i + RING_SIZE / 2)}
				: (struct vring_desc){.addr = at, .len = length};
		}
	}
}

static __attribute__((noinline)) unsigned engine_round(struct guest *from, struct guest *to, struct frame_burst *burst)
{
	static const struct vnet_header plain;
	unsigned count = ring_take(&from->ring, burst, BURST);

	for (unsigned i = 0; i < count; i++) {
		if (ring_put(&to->ring, &burst->frames[i], &plain) < 0)
			die("a frame found no place");
	}
	ring_put_done(&to->ring);
	ring_take_done(&from->ring);
	ring_call(&to->ring);
	ring_call(&from->ring);
	return count;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void run(const char *name, uint32_t length, unsigned split, unsigned bursts)
{
	struct guest *a = zalloc_aligned(sizeof(*a)), *b = zalloc_aligned(sizeof(*b));
	struct frame_burst *burst = zalloc_aligned(sizeof(*burst));
	uint64_t *sample = calloc(bursts, sizeof(*sample));

	if (!a || !b || !burst || !sample)
		die("out of memory");
	guest_start(a);
	guest_start(b);
	guest_fill(a, length, true, split);
	guest_fill(b, length, false, 1);
	guest_offer(b, RING_SIZE);
	for (unsigned i = 0; i < bursts; i++) {
		uint64_t start;

		for (unsigned k = 0; k < BURST; k++, a->avail_next++)
			a->avail->ring[a->avail_next % RING_SIZE] = a->avail_next % (RING_SIZE / split);
		__atomic_store_n(&a->avail->idx, a->avail_next, __ATOMIC_RELEASE);
		start = now_ns();
		if (engine_round(a, b, burst) != BURST)
			die("a burst came short");
		sample[i] = now_ns() - start;
		if (b->used->ring[b->used_seen % RING_SIZE].len != sizeof(struct vnet_header) + length)
			die("a frame came with the wrong length");
		b->used_seen += BURST;
		guest_offer(b, BURST);
	}
	qsort(sample, bursts, sizeof(*sample), compare);
	printf("%-22s %5u B  p10 %7.1f ns  median %7.1f ns  a frame\n", name, length, (double)sample[bursts / 10] / BURST,
	       (double)sample[bursts / 2] / BURST);
	guest_memory_free(a->shared);
	guest_memory_free(b->shared);
	munmap(a->memory, MEMORY_SIZE);
	munmap(b->memory, MEMORY_SIZE);
	free(sample);
	free(burst);
	free(b);
	free(a);
}

int main(int argc, char **argv)
{
	unsigned bursts = argc > 1 ? (unsigned)atoi(argv[1]) : 20000;

	if (bursts < 10)
		die("BURSTS must be 10 or more");
	run("one descriptor", 64, 1, bursts);
	run("one descriptor", 1500, 1, bursts);
	run("header apart", 64, 2, bursts);
	run("header apart", 1500, 2, bursts);
	return 0;
}
