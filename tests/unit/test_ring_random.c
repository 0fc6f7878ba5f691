/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Random lawful chains, from a fixed seed, against a simple model: what the guest sent is what was taken, what was put
 * is what the guest finds, lengths and order are right, and no byte outside the posted buffers changes. And random
 * garbage: whatever stands in the ring, calls end and memory stays whole (this is where the AddressSanitizer build
 * looks).
 */
#include "datapath/checksum.h"
#include "ring_burst.h"

#include <pthread.h>

#define GARBAGE_ROUNDS 8000
#ifdef __SANITIZE_THREAD__
#define ROUNDS 60 /* one thread: little for it to find */
#else
#define ROUNDS 400
#endif
#define CHAINS_MAX 64
#define PIECES_MAX 24
#define FRAME_MAX 3000
#define UNTOUCHED 0xa5

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint32_t random_below(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 33) % n;
}

struct piece {
	uint64_t address;
	uint32_t length;
};

struct chain_model {
	uint16_t head;
	uint32_t bytes; /* of all its pieces */
	unsigned pieces;
	struct piece piece[PIECES_MAX];
};

/* The memory that buffers are cut from: two neighbouring regions, then the far one. */
struct cutter {
	uint64_t next, next_far, next_table;
	uint16_t next_desc;
	uint8_t posted[BUFFERS_END - BUFFERS_AT]; /* 1 = belongs to a buffer */
	uint8_t posted_far[FAR_SIZE];
};

static struct cutter cutter;

/* Memory is filled with one byte, and given out with gaps between. The last 4 KiB of the far region are for tables. */
static void cutter_reset(struct driver *d)
{
	memset(driver_at(d, BUFFERS_AT), UNTOUCHED, BORDER - BUFFERS_AT);
	memset(d->mine[1], UNTOUCHED, REGION1_SIZE);
	memset(d->mine[2], UNTOUCHED, FAR_SIZE);
	memset(&cutter, 0, sizeof(cutter));
	cutter.next = BORDER - random_below(60000);
	cutter.next_far = FAR_AT;
	cutter.next_table = FAR_AT + FAR_SIZE - 0x8000;
}

static bool cut(uint32_t length, struct piece *piece)
{
	bool far = random_below(4) == 0 && cutter.next_far + length + 16 < FAR_AT + FAR_SIZE - 0x8000;
	uint64_t *next = far ? &cutter.next_far : &cutter.next;

	if (!far && cutter.next + length + 16 > BUFFERS_END)
		return false;
	*piece = (struct piece){*next, length};
	memset(far ? &cutter.posted_far[*next - FAR_AT] : &cutter.posted[*next - BUFFERS_AT], 1, length);
	*next += length + 1 + random_below(15);
	return true;
}

static void expect_untouched_in(const uint8_t *memory, const uint8_t *posted, uint64_t size, uint64_t address)
{
	for (uint64_t i = 0; i < size; i++) {
		if (!posted[i] && memory[i] != UNTOUCHED)
			fail_msg("byte outside the buffers changed: 0x%llx", (unsigned long long)(address + i));
	}
}

/* Everything outside buffers is as it was. Tables lie in memory that is not looked at. */
static void expect_untouched(struct driver *d)
{
	expect_untouched_in(driver_at(d, BUFFERS_AT), cutter.posted, BORDER - BUFFERS_AT, BUFFERS_AT);
	expect_untouched_in(d->mine[1], cutter.posted + (BORDER - BUFFERS_AT), REGION1_SIZE, BORDER);
	expect_untouched_in(d->mine[2], cutter.posted_far, FAR_SIZE - 0x8000, FAR_AT);
}

/* Cuts total bytes into a random number of descriptors, some of length 0. */
static bool cut_chain(struct chain_model *chain, uint32_t total)
{
	uint32_t left = total;

	chain->pieces = 0;
	chain->bytes = total;
	while (left || chain->pieces == 0) {
		uint32_t length = chain->pieces == PIECES_MAX - 1 || random_below(3) == 0
					  ? left
					  : random_below(min_u32(left, 400) + 1);

		if (!cut(length, &chain->piece[chain->pieces]))
			return false;
		chain->pieces++;
		left -= length;
	}
	return true;
}

static bool cut_plain(struct chain_model *chain, uint32_t total)
{
	chain->pieces = 1;
	chain->bytes = total;
	return cut(total, &chain->piece[0]);
}

/* Writes the chain's descriptors: direct, indirect, or a direct part and then a table. False: no room in the ring. */
static bool write_chain(struct driver *d, struct chain_model *chain, bool indirect, uint16_t direction)
{
	unsigned direct = chain->pieces;
	uint64_t table = cutter.next_table;

	if (indirect && random_below(2))
		direct = random_below(2) ? 0 : random_below(chain->pieces);
	if (cutter.next_desc + direct + 1u > d->size ||
	    table + 16ull * (chain->pieces - direct) > FAR_AT + FAR_SIZE)
		return false;
	chain->head = cutter.next_desc;
	for (unsigned i = 0; i < chain->pieces; i++) {
		bool last = i + 1 == chain->pieces;
		struct vring_desc desc = {.addr = chain->piece[i].address, .len = chain->piece[i].length,
					  .flags = (uint16_t)(direction | (last ? 0 : VRING_DESC_F_NEXT))};

		if (i < direct) {
			desc.next = (uint16_t)(cutter.next_desc + 1);
			d->desc[cutter.next_desc++] = desc;
		} else {
			desc.next = (uint16_t)(i - direct + 1);
			driver_write(d, table + 16 * (i - direct), &desc, sizeof(desc));
		}
	}
	if (direct < chain->pieces) {
		d->desc[cutter.next_desc++] = (struct vring_desc){.addr = table, .len = 16 * (chain->pieces - direct),
								  .flags = VRING_DESC_F_INDIRECT};
		cutter.next_table += 16ull * (chain->pieces - direct) + random_below(3);
	}
	return true;
}

/* Copies between a chain's bytes, taken as one stream, and data. */
static void chain_bytes(struct driver *d, const struct chain_model *chain, uint8_t *data, uint32_t length, bool write)
{
	for (unsigned i = 0; i < chain->pieces && length; i++) {
		uint32_t n = min_u32(chain->piece[i].length, length);

		if (write)
			driver_write(d, chain->piece[i].address, data, n);
		else
			driver_read(d, chain->piece[i].address, data, n);
		data += n;
		length -= n;
	}
}

static uint64_t random_features(void)
{
	return F_MODERN * random_below(2) | F_MERGEABLE * random_below(2) | F_INDIRECT * random_below(2) |
	       F_EVENT * random_below(2);
}

static uint32_t start_round(struct driver *d, uint64_t features)
{
	driver_start(d, 1u << (5 + random_below(5)), features, (uint16_t)(65400 + random_below(300)));
	memset(&d->ring.counters, 0, sizeof(d->ring.counters));
	cutter_reset(d);
	return d->ring.header_length;
}

static void random_bytes(uint8_t *to, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		to[i] = (uint8_t)random_below(256);
}

static void test_take(void **state)
{
	static uint8_t sent[CHAINS_MAX][12 + FRAME_MAX], got[FRAME_MAX];
	static struct chain_model chains[CHAINS_MAX];
	struct driver *d = *state;
	uint64_t frames = 0;

	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t features = random_features();
		uint32_t header = start_round(d, features), count = 0, at = 0, bad = 0, n;

		while (count < CHAINS_MAX) {
			uint32_t length = random_below(5) ? random_below(200) : random_below(FRAME_MAX);
			struct chain_model *chain = &chains[count];

			if (!cut_chain(chain, random_below(20) ? header + length : random_below(header)) ||
			    !write_chain(d, chain, features & F_INDIRECT, 0))
				break;
			random_bytes(sent[count], chain->bytes);
			chain_bytes(d, chain, sent[count], chain->bytes, true);
			driver_offer(d, chain->head);
			count++;
		}
		while (at < count) {
			uint32_t first = at;

			n = ring_take(&d->ring, burst, 1 + random_below(64));
			for (uint32_t i = 0; i < n; i++, at++) {
				const struct frame *frame = &burst->frames[i];

				/* Those without a usable frame were passed over. */
				for (; chains[at].bytes < header + FRAME_LENGTH_MIN; at++)
					bad++;
				assert_int_equal(frame->origin, chains[at].head);
				assert_int_equal(frame->length, chains[at].bytes - header);
				assert_memory_equal(&frame->vnet, sent[at], header);
				frame_join(frame, got);
				assert_memory_equal(got, sent[at] + header, frame->length);
			}
			frames += n;
			/* And those behind the last frame: told by the index. */
			while (at < count && (uint16_t)(d->ring.last_avail - at) != (uint16_t)(d->avail_next - count)) {
				assert_true(chains[at].bytes < header + FRAME_LENGTH_MIN);
				bad++;
				at++;
			}
			driver_expect_none_used(d);
			ring_take_done(&d->ring);
			for (uint32_t i = first; i < at; i++)
				driver_expect_used(d, chains[i].head, 0);
			driver_expect_none_used(d);
			assert_true(at > first);
		}
		assert_int_equal(d->ring.fault, RING_FAULT_NONE);
		assert_int_equal(ring_take(&d->ring, burst, 64), 0);
		assert_int_equal(d->ring.counters.header_bad + d->ring.counters.frames_short, bad);
		for (uint32_t i = 0; i < count; i++) {
			chain_bytes(d, &chains[i], got, min_u32(chains[i].bytes, FRAME_MAX), false);
			assert_memory_equal(got, sent[i], min_u32(chains[i].bytes, FRAME_MAX));
		}
		expect_untouched(d);
	}
	assert_true(frames > ROUNDS * 5); /* the generator is not asleep */
}

/* What ring_put() must say, and how many chains it must use. */
static int model_put(const struct chain_model *chains, uint32_t count, uint32_t total, uint32_t header, bool mergeable,
		     uint32_t *used)
{
	uint32_t room = 0;

	*used = 0;
	if (!count)
		return -ENOBUFS;
	if (!mergeable) {
		*used = 1;
		return chains[0].bytes >= total ? 0 : -EMSGSIZE;
	}
	if (chains[0].bytes < header)
		return -EMSGSIZE;
	while (room < total) {
		if (*used == count)
			return -ENOBUFS;
		room += chains[(*used)++].bytes;
	}
	return 0;
}

/* Frames as coalescing makes them. */
struct coalesced {
	struct frame_segment segments[3];
	uint32_t sums[3];
};

/* The payload, @length bytes from @data on, in up to three pieces of which each or all together are a part. Return: is one wrong? */
static bool coalesce(struct coalesced *c, struct frame *frame, const uint8_t *data, uint32_t length)
{
	uint32_t count = 0, from = 0;
	bool wrong = false;

	for (uint32_t at = 0; at < length; count++) {
		const uint32_t n = count == 2 ? length - at : 1 + random_below(length - at);
		uint16_t rest;

		c->segments[count] = (struct frame_segment){data + at, n};
		c->sums[count] = 0;
		at += n;
		if (at < length && random_below(3) == 0)
			continue;
		rest = (uint16_t)~checksum_fold(checksum_sum_short(data + from, at - from));
		if (random_below(8) == 0) {
			c->sums[count] = FRAME_SUM_VERIFIED;
		} else if (random_below(8) == 0) {
			c->sums[count] = FRAME_SUM_CHECK | (rest ^ 1u << random_below(16));
			wrong = true;
		} else {
			c->sums[count] = FRAME_SUM_CHECK | rest;
		}
		from = at;
	}
	frame->segments = c->segments;
	frame->segment_count = (uint16_t)count;
	frame->offload = (struct frame_offload){.needs_checksum = true, .sums = c->sums};
	return wrong;
}

static void expect_put(struct driver *d, const struct chain_model *chains, uint32_t used, const uint8_t *want,
		       uint32_t total, uint32_t header)
{
	static uint8_t got[FRAME_MAX + 4096];
	uint32_t offset = 0;

	for (uint32_t i = 0; i < used; i++) {
		uint32_t n = min_u32(chains[i].bytes, total - offset);

		driver_expect_used(d, chains[i].head, n);
		chain_bytes(d, &chains[i], got + offset, n, false);
		offset += n;
	}
	assert_int_equal(offset, total);
	assert_memory_equal(got, want, total);
	if (header == VNET_HEADER_MODERN)
		assert_int_equal(got[10] | got[11] << 8, used);
}

static void test_put(void **state)
{
	static struct chain_model chains[512];
	static uint8_t data[FRAME_MAX + 60], want[12 + FRAME_MAX + 60];
	struct driver *d = *state;
	uint64_t put = 0, refused = 0, merged = 0, found_wrong = 0, coalesced_put = 0;

	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t features = random_features();
		uint32_t header = start_round(d, features), count = 0, at = 0, offered = 0;
		uint32_t usual = random_below(2) ? 1600 : 1 + random_below(300);
		const bool plain = random_below(3) == 0; /* each chain one descriptor, as drivers give them */
		unsigned in_vain = 0;

		while (count < ARRAY_SIZE(chains) && count < d->size) {
			struct chain_model *chain = &chains[count];

			if (!(plain ? cut_plain(chain, usual) : cut_chain(chain, random_below(6) ? usual : random_below(2 * usual))) ||
			    !write_chain(d, chain, !plain && features & F_INDIRECT, VRING_DESC_F_WRITE))
				break;
			count++;
		}
		while (in_vain < 8) {
			uint32_t length = random_below(3) ? 14 + random_below(200) : 14 + random_below(FRAME_MAX - 14);
			uint32_t total = header + max_u32(length, 60), used, head = min_u32(length, 128);
			struct vnet_header vnet = {
				.flags = (uint8_t)random_below(256), .csum_offset = 0x1234, .num_buffers = 0x5678};
			struct frame frame = {.head = data, .length = length};
			struct frame_segment segments[3];
			struct coalesced parts;
			bool wrong = false;
			int rc, expected;

			/* More buffers now and then, so that running out and catching up are both met. */
			for (uint32_t n = random_below(12); n && offered < count; n--, offered++)
				driver_offer(d, chains[offered].head);
			random_bytes(data, length);
			if (random_below(2)) {
				frame.head_length = (uint16_t)length;
			} else if (random_below(2) && length > head) {
				frame.head_length = (uint16_t)(random_below(2) ? head : random_below(head));
				wrong = coalesce(&parts, &frame, data + frame.head_length, length - frame.head_length);
			} else {
				uint32_t cut_at = random_below(length - head + 1);

				segments[0] = (struct frame_segment){data + head, cut_at};
				segments[1] = (struct frame_segment){data, 0};
				segments[2] = (struct frame_segment){data + head + cut_at, length - head - cut_at};
				frame.head_length = (uint16_t)head;
				frame.segments = segments;
				frame.segment_count = 3;
			}
			rc = ring_put(&d->ring, &frame, &vnet);
			expected = model_put(&chains[at], offered - at, total, header, features & F_MERGEABLE, &used);
			if (wrong && !expected) {
				expected = -EBADMSG;
				found_wrong++;
			}
			assert_int_equal(rc, expected);
			driver_expect_none_used(d);
			if (random_below(4) == 0 || rc == 0)
				ring_put_done(&d->ring);
			if (rc) {
				refused++;
				in_vain += offered == count;
				driver_expect_none_used(d);
				continue;
			}
			vnet.num_buffers = (uint16_t)used;
			memset(want, 0, sizeof(want));
			memcpy(want, &vnet, header);
			memcpy(want + header, data, length);
			expect_put(d, &chains[at], used, want, total, header);
			at += used;
			put++;
			merged += used > 1;
			coalesced_put += frame.offload.sums && used > 1;
		}
		assert_int_equal(d->ring.fault, RING_FAULT_NONE);
		expect_untouched(d);
	}
	assert_true(put > ROUNDS * 5);
	assert_true(refused > ROUNDS);
	assert_true(merged > ROUNDS / 4);
	assert_true(found_wrong > ROUNDS / 20);
	assert_true(coalesced_put > ROUNDS / 20);
}

/* A descriptor whose every field is likely to be nearly right. */
static struct vring_desc garbage_desc(uint32_t size, bool to_guest)
{
	static const uint64_t wrong[] = {0, RINGS_AT, BUFFERS_END - 30, FAR_AT + FAR_SIZE - 40, UINT64_MAX - 50};
	static const uint64_t right[] = {BUFFERS_AT, BORDER - 20, FAR_AT};
	static const uint32_t lengths[] = {0, 1, 12, 16, 32, 60, 100, 1600, 70000, UINT32_MAX};
	uint16_t flags = (uint16_t)(random_below(20) ? random_below(4) & ~VRING_DESC_F_WRITE : random_below(65536));

	if (to_guest)
		flags ^= VRING_DESC_F_WRITE;
	if (random_below(10) == 0)
		flags |= VRING_DESC_F_INDIRECT;
	return (struct vring_desc){
		.addr = random_below(40) + (random_below(8) ? right[random_below(ARRAY_SIZE(right))]
							    : wrong[random_below(ARRAY_SIZE(wrong))]),
		.len = random_below(3) ? lengths[random_below(ARRAY_SIZE(lengths))] : 16 * random_below(80),
		.flags = flags,
		.next = (uint16_t)random_below(random_below(30) ? size : 65536),
	};
}

static void test_garbage(void **state)
{
	static uint8_t data[FRAME_MAX], joined[FRAME_LENGTH_MAX];
	struct driver *d = *state;
	unsigned faults[RING_FAULT_COUNT] = {0};
	uint64_t taken = 0, put = 0;

	for (unsigned round = 0; round < GARBAGE_ROUNDS; round++) {
		uint32_t size = 1u << random_below(9);
		bool to_guest = round & 1;
		struct frame frame = {.head = data, .length = 14 + random_below(FRAME_MAX - 14)};
		struct vnet_header vnet = {0};
		struct coalesced parts;

		frame.head_length = (uint16_t)frame.length;
		if (random_below(2) && frame.length > 60) {
			frame.head_length = 60;
			coalesce(&parts, &frame, data + 60, frame.length - 60);
		}
		driver_start(d, size, random_features(), (uint16_t)random_below(65536));
		for (uint32_t i = 0; i < size; i++) {
			d->desc[i] = garbage_desc(size, to_guest);
			d->avail->ring[i] = (uint16_t)random_below(random_below(200) ? size : 65536);
		}
		/* Tables may lie where the addresses above point; those in the rings are garbage already. */
		for (unsigned i = 0; i < 20; i++) {
			struct vring_desc desc = garbage_desc(8, to_guest);

			driver_write(d, FAR_AT + random_below(200), &desc, sizeof(desc));
			driver_write(d, BORDER - 20 + random_below(60), &desc, sizeof(desc));
		}
		d->avail_next += random_below(random_below(10) ? size + 1 : 65536);
		driver_publish(d);
		for (unsigned i = 0; i < 4; i++) {
			if (to_guest) {
				put += ring_put(&d->ring, &frame, &vnet) == 0;
				ring_put_done(&d->ring);
			} else {
				uint32_t n = ring_take(&d->ring, burst, 1 + random_below(64));

				for (uint32_t k = 0; k < n; k++)
					frame_join(&burst->frames[k], joined);
				taken += n;
				ring_take_done(&d->ring);
			}
			ring_call(&d->ring);
			ring_arm(&d->ring);
		}
		faults[atomic_load(&d->ring.fault)]++;
	}
	assert_true(taken > GARBAGE_ROUNDS / 8);
	assert_true(put > GARBAGE_ROUNDS / 8);
	for (unsigned i = 0; i <= RING_FAULT_INDIRECT; i++)
		assert_true(faults[i] > 0); /* every kind was met */
}

/* --- a guest that changes everything while we look ---------------------------------------------------------------- */

struct scribbler {
	struct driver *d;
	uint32_t size;
	uint64_t seed;
	atomic_bool stop;
};

/* Turns descriptors, tables and the available ring between lawful and not, as fast as it can. */
static __attribute__((unused)) void *scribble(void *argument)
{
	static const uint64_t addresses[] = {BUFFERS_AT,	FAR_AT,		FAR_AT + FAR_SIZE - 16, BORDER - 50,
					     BUFFERS_END - 100, UINT64_MAX - 20};
	static const uint32_t lengths[] = {12, 16, 32, 76, 512, 0x11000, UINT32_MAX};
	struct scribbler *s = argument;
	uint64_t *desc = (uint64_t *)(void *)s->d->desc, *table = (uint64_t *)(void *)driver_at(s->d, FAR_AT);

	while (!atomic_load_explicit(&s->stop, memory_order_relaxed)) {
		for (unsigned i = 0; i < 64; i++) {
			uint64_t *to = i & 1 ? &desc[2 * (s->seed % s->size)] : &table[2 * (s->seed % 4)];
			uint64_t flags = s->seed >> 20 & 7 & ~(uint64_t)VRING_DESC_F_WRITE;

			s->seed = s->seed * 6364136223846793005 + 1442695040888963407;
			__atomic_store_n(to, addresses[(s->seed >> 33) % ARRAY_SIZE(addresses)], __ATOMIC_RELAXED);
			__atomic_store_n(to + 1, lengths[(s->seed >> 40) % ARRAY_SIZE(lengths)] | flags << 32 |
					 (s->seed >> 50) % s->size << 48, __ATOMIC_RELAXED);
			__atomic_store_n(&s->d->avail->ring[s->seed >> 11 & (s->size - 1)],
					 (uint16_t)((s->seed >> 44) % s->size), __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void test_changing(void **state)
{
#if defined(__SANITIZE_THREAD__)
	skip(); /* a race on purpose */
#else
	static uint8_t joined[FRAME_LENGTH_MAX];
	struct driver *d = *state;
	struct scribbler s = {.d = d, .size = 64, .seed = 1};
	uint64_t taken = 0, faulted = 0, deadline;
	pthread_t thread;

	driver_start(d, s.size, F_MODERN | F_INDIRECT, 0);
	assert_int_equal(pthread_create(&thread, NULL, scribble, &s), 0);
	/* Until both were met often: how long that takes depends on when the two run together. */
	deadline = now_ns() + 60000000000ull;
	for (unsigned round = 0; (round < 100000 || taken < 1000 || faulted < 1000) && now_ns() < deadline; round++) {
		struct ring_setup again = driver_setup(d, s.size, F_MODERN | F_INDIRECT, 0);
		uint32_t n;

		ring_stop(&d->ring);
		assert_int_equal(ring_start(&d->ring, &again, NULL), 0);
		__atomic_store_n(&d->avail->idx, 1 + round % s.size, __ATOMIC_RELEASE);
		n = ring_take(&d->ring, burst, 64);
		for (uint32_t i = 0; i < n; i++) {
			assert_in_range(burst->frames[i].length, FRAME_LENGTH_MIN, FRAME_LENGTH_MAX);
			frame_join(&burst->frames[i], joined);
		}
		taken += n;
		faulted += atomic_load(&d->ring.fault) != RING_FAULT_NONE;
		ring_take_done(&d->ring);
	}
	atomic_store(&s.stop, true);
	pthread_join(thread, NULL);
	assert_true(taken >= 1000);
	assert_true(faulted >= 1000);
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take),
		cmocka_unit_test(test_put),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_changing),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
