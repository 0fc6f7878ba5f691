/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What one frame costs from one guest's ring into another's: ring_take() -> ring_put() -> done. No switch: the floor
 * that the engine builds on. First in one thread, with the guests' drivers in lockstep outside the measured time; then
 * with both drivers in a thread of their own on another CPU, where the lines of rings and buffers travel between the
 * cores.
 *
 *   bench_ring [BURSTS]        a table: layout, frame size, ns per frame at p10 and median of all bursts; then frames
 *   per second
 *   valgrind --tool=callgrind --toggle-collect=engine_round bench_ring 1000    counts instructions of the engine alone
 */
#include <inttypes.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
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
		.features =
			1ull << VIRTIO_F_VERSION_1 | 1ull << VIRTIO_NET_F_MRG_RXBUF | 1ull << VIRTIO_RING_F_EVENT_IDX,
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

static void guest_end(struct guest *g)
{
	guest_memory_free(g->shared);
	munmap(g->memory, MEMORY_SIZE);
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
			g->desc[i] = i < RING_SIZE / 2 ? (struct vring_desc){.addr = at,
									     .len = sizeof(struct vnet_header),
									     .flags = VRING_DESC_F_NEXT,
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
	printf("%-22s %5u B  p10 %7.1f ns  median %7.1f ns  a frame\n", name, length,
	       (double)sample[bursts / 10] / BURST, (double)sample[bursts / 2] / BURST);
	guest_end(a);
	guest_end(b);
	free(sample);
	free(burst);
	free(b);
	free(a);
}

/* --- two cores ---------------------------------------------------------------------------------------------------- */

struct frontend {
	struct guest *a, *b;
	uint32_t length;
	atomic_bool stop;
};

/* To the nth CPU of those that the process had when it started. */
static void pin(pthread_t thread, const cpu_set_t *allowed, unsigned nth)
{
	cpu_set_t one;
	int cpu = 0;

	for (;; cpu++) {
		if (CPU_ISSET(cpu, allowed) && nth-- == 0)
			break;
	}
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	pthread_setaffinity_np(thread, sizeof(one), &one);
}

/* Both guests' drivers: what was sent is sent again with a new virtio header, what was received is given back. */
static void *frontend_run(void *argument)
{
	struct frontend *f = argument;
	struct guest *a = f->a, *b = f->b;
	uint64_t received = 0;

	while (!atomic_load_explicit(&f->stop, memory_order_relaxed)) {
		unsigned sent = (uint16_t)(__atomic_load_n(&a->used->idx, __ATOMIC_ACQUIRE) - a->used_seen);
		unsigned got = (uint16_t)(__atomic_load_n(&b->used->idx, __ATOMIC_ACQUIRE) - b->used_seen);

		for (unsigned i = 0; i < sent; i++, a->avail_next++) {
			uint32_t id = a->used->ring[a->used_seen++ % RING_SIZE].id;

			memset(a->memory + (a->desc[id].addr - GUEST_AT), 0, sizeof(struct vnet_header));
			a->avail->ring[a->avail_next % RING_SIZE] = (uint16_t)id;
		}
		if (sent)
			__atomic_store_n(&a->avail->idx, a->avail_next, __ATOMIC_RELEASE);
		for (unsigned i = 0; i < got; i++, b->avail_next++) {
			struct vring_used_elem element = b->used->ring[b->used_seen++ % RING_SIZE];

			if (element.len != sizeof(struct vnet_header) + f->length)
				die("a frame came with the wrong length");
			b->avail->ring[b->avail_next % RING_SIZE] = (uint16_t)element.id;
		}
		if (got)
			__atomic_store_n(&b->avail->idx, b->avail_next, __ATOMIC_RELEASE);
		received += got;
	}
	return (void *)(uintptr_t)received;
}

/* Takes no more than the other guest has room for, so that nothing is dropped. */
static void engine_two_cores(struct guest *a, struct guest *b, struct frame_burst *burst)
{
	static const struct vnet_header plain;
	unsigned room = ring_pending(&b->ring);
	unsigned count = room ? ring_take(&a->ring, burst, min_u32(room, BURST)) : 0;

	for (unsigned i = 0; i < count; i++) {
		if (ring_put(&b->ring, &burst->frames[i], &plain) < 0)
			die("a frame found no place");
	}
	if (!count)
		return;
	ring_put_done(&b->ring);
	ring_take_done(&a->ring);
}

static void run_two_cores(uint32_t length, unsigned milliseconds)
{
	struct guest *a = zalloc_aligned(sizeof(*a)), *b = zalloc_aligned(sizeof(*b));
	struct frame_burst *burst = zalloc_aligned(sizeof(*burst));
	struct frontend f = {.a = a, .b = b, .length = length};
	uint64_t start, end;
	cpu_set_t allowed;
	pthread_t thread;

	pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed);
	if (!a || !b || !burst)
		die("out of memory");
	guest_start(a);
	guest_start(b);
	guest_fill(a, length, true, 1);
	guest_fill(b, length, false, 1);
	guest_offer(a, RING_SIZE);
	guest_offer(b, RING_SIZE);
	if (pthread_create(&thread, NULL, frontend_run, &f))
		die("pthread_create");
	pin(thread, &allowed, 1);
	pin(pthread_self(), &allowed, 0);
	start = now_ns();
	while ((end = now_ns()) < start + milliseconds * 1000000ull) {
		for (unsigned i = 0; i < 256; i++)
			engine_two_cores(a, b, burst);
	}
	atomic_store(&f.stop, true);
	pthread_join(thread, NULL);
	pthread_setaffinity_np(pthread_self(), sizeof(allowed), &allowed);
	printf("%-22s %5u B  %6.2f Mpps\n", "drivers on other core", length,
	       (double)b->ring.counters.frames * 1000 / (double)(end - start));
	guest_end(a);
	guest_end(b);
	free(burst);
	free(b);
	free(a);
}

int main(int argc, char **argv)
{
	cpu_set_t allowed;
	unsigned bursts = argc > 1 ? (unsigned)atoi(argv[1]) : 20000;

	if (bursts < 10)
		die("BURSTS must be 10 or more");
	run("one descriptor", 64, 1, bursts);
	run("one descriptor", 1500, 1, bursts);
	run("header apart", 64, 2, bursts);
	run("header apart", 1500, 2, bursts);
	sched_getaffinity(0, sizeof(allowed), &allowed);
	if (CPU_COUNT(&allowed) < 2) {
		printf("drivers on other core: not measured, one CPU is allowed\n");
		return 0;
	}
	run_two_cores(64, 500);
	run_two_cores(1500, 500);
	return 0;
}
