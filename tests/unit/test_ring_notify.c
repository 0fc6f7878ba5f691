/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Notification in both directions (virtio 1.2, 2.7.7 to 2.7.10), and that no wake-up is ever lost between two
 * sleepers.
 */
#include "ring_driver.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>

#define HANG_MS 60000 /* long enough for any machine; only a lost wake-up takes it */
#define ROUNDS 50000

static const struct vnet_header plain;

static uint64_t drain(int fd)
{
	uint64_t count = 0;

	return read(fd, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

/* One chain served; to_guest or from_guest. */
static void serve(struct driver *d, bool to_guest)
{
	static struct frame_burst burst;
	uint8_t data[60] = {0};
	struct frame frame = {.head = data, .length = 60, .head_length = 60};

	if (to_guest) {
		assert_int_equal(ring_put(&d->ring, &frame, &plain), 0);
		ring_put_done(&d->ring);
	} else {
		assert_int_equal(ring_take(&d->ring, &burst, 1), 1);
		ring_take_done(&d->ring);
	}
}

static void start(struct driver *d, bool to_guest, uint64_t features, uint16_t base, uint16_t chains)
{
	driver_start(d, 256, F_MODERN | features, base);
	memset(&d->ring.counters, 0, sizeof(d->ring.counters));
	for (uint16_t i = 0; i < 256; i++)
		d->desc[i] =
			(struct vring_desc){.addr = BUFFERS_AT, .len = 100, .flags = to_guest ? VRING_DESC_F_WRITE : 0};
	for (uint16_t i = 0; i < chains; i++)
		driver_offer(d, i);
}

static void set_used_event(struct driver *d, uint16_t event)
{
	__atomic_store_n(&d->avail->ring[d->size], event, __ATOMIC_RELAXED);
}

static uint16_t avail_event(struct driver *d)
{
	return __atomic_load_n((uint16_t *)(void *)&d->used->ring[d->size], __ATOMIC_RELAXED);
}

static void test_call_flag(void **state)
{
	struct driver *d = *state;
	int fd = eventfd(0, EFD_NONBLOCK);

	for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
		start(d, to_guest, 0, 65535, 10);
		atomic_store(&d->ring.call_fd, fd);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 0); /* nothing was published */
		serve(d, to_guest);
		serve(d, to_guest);
		ring_call(&d->ring);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 1);
		d->avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
		serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 0);
		d->avail->flags = 0;
		serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 1);
		assert_int_equal(d->ring.counters.calls_sent, 2);
		assert_int_equal(d->ring.counters.calls_suppressed, 1);
		ring_call_always(&d->ring);
		assert_int_equal(drain(fd), 1);
		atomic_store(&d->ring.call_fd, -1);
		serve(d, to_guest);
		ring_call(&d->ring);
		ring_call_always(&d->ring);
		assert_int_equal(drain(fd), 0);
	}
	close(fd);
}

static void test_call_event(void **state)
{
	struct driver *d = *state;
	int fd = eventfd(0, EFD_NONBLOCK);

	for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
		start(d, to_guest, F_EVENT, 65532, 40);
		atomic_store(&d->ring.call_fd, fd);
		d->avail->flags = VRING_AVAIL_F_NO_INTERRUPT; /* means nothing with the event index */
		set_used_event(d, 100);
		serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd),
				 1); /* the first, whatever the guest says: what it was told before is not known */
		set_used_event(d, 65535);	/* wants to know when the used index passes it: at 65536 = 0 */
		serve(d, to_guest);
		serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 0); /* 65535 */
		serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 1); /* 0 */
		for (unsigned i = 0; i < 10; i++)
			serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 0); /* 10; the event is behind */
		set_used_event(d, 12);
		for (unsigned i = 0; i < 5; i++)
			serve(d, to_guest);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 1); /* a batch from 10 to 15 passes 12 */
		assert_int_equal(d->ring.counters.calls_sent, 3);
		assert_int_equal(d->ring.counters.calls_suppressed, 2);
	}
	close(fd);
}

/* A call that is put off is asked for at the end, for all that was published meanwhile. */
static void test_call_owed(void **state)
{
	struct driver *d = *state;
	int fd = eventfd(0, EFD_NONBLOCK);

	for (unsigned event = 0; event < 2; event++) {
		start(d, false, event ? F_EVENT : 0, 65530, 40);
		atomic_store(&d->ring.call_fd, fd);
		assert_int_equal(ring_owes_call(&d->ring), 0);
		assert_true(ring_call_unwanted(&d->ring));
		serve(d, false);
		ring_call(&d->ring); /* the first, whatever the guest says */
		assert_int_equal(drain(fd), 1);
		set_used_event(d, (uint16_t)(d->ring.used_published + 2));
		serve(d, false);
		serve(d, false);
		assert_int_equal(ring_owes_call(&d->ring), 2);
		if (event) {
			/* It looks for itself and wants to know of the one after these. That is still known of the next. */
			assert_true(ring_call_unwanted(&d->ring));
			assert_int_equal(ring_owes_call(&d->ring), 0);
			assert_int_equal(d->ring.counters.calls_suppressed, 1);
			serve(d, false);
			assert_int_equal(ring_owes_call(&d->ring), 1);
		}
		assert_false(ring_call_unwanted(&d->ring));
		assert_false(ring_call_unwanted(&d->ring)); /* asking changes nothing */
		assert_int_equal(drain(fd), 0);
		ring_call(&d->ring);
		assert_int_equal(drain(fd), 1);
		assert_int_equal(ring_owes_call(&d->ring), 0);
		if (!event) {
			serve(d, false);
			d->avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
			assert_true(ring_call_unwanted(&d->ring));
			d->avail->flags = 0;
			assert_true(ring_call_unwanted(&d->ring)); /* a driver that wants calls again looks first */
			ring_call(&d->ring);
			assert_int_equal(drain(fd), 0);
		}
		ring_stop(&d->ring);
		assert_true(ring_call_unwanted(&d->ring));
	}
	close(fd);
}

static void test_arm(void **state)
{
	struct driver *d = *state;

	for (unsigned event = 0; event < 2; event++) {
		start(d, false, event ? F_EVENT : 0, 65535, 0);
		/* On from the start: a kick before the first poll is not lost. */
		assert_int_equal(d->used->flags, 0);
		if (event)
			assert_int_equal(avail_event(d), 65535);
		assert_false(ring_arm(&d->ring));
		ring_disarm(&d->ring);
		if (!event)
			assert_int_equal(d->used->flags, VRING_USED_F_NO_NOTIFY);
		driver_offer(d, 0);
		driver_offer(d, 1);
		assert_true(ring_arm(&d->ring));
		assert_int_equal(d->used->flags, 0);
		ring_disarm(&d->ring);
		serve(d, false);
		assert_true(ring_arm(&d->ring));
		serve(d, false);
		assert_false(ring_arm(&d->ring));
		if (event)
			assert_int_equal(avail_event(d), 1);
		assert_int_equal(d->ring.counters.kicks_armed, 2);
	}
}

/* Nobody waits for buffers: the guest is spared kicks that would be for nothing, until whoever comes next may wait for one. */
static void test_no_kicks_for_buffers(void **state)
{
	struct driver *d = *state;

	for (unsigned event = 0; event < 2; event++) {
		start(d, true, event ? F_EVENT : 0, 65535, 2);
		assert_int_equal(d->used->flags, 0);
		serve(d, true);
		assert_int_equal(d->used->flags, event ? 0 : VRING_USED_F_NO_NOTIFY);
		serve(d, true);
		assert_int_equal(d->used->flags, event ? 0 : VRING_USED_F_NO_NOTIFY);
		if (event)
			assert_int_equal(avail_event(d), 65535);
		ring_stop(&d->ring);
		assert_int_equal(d->used->flags, 0);
		if (event)
			assert_int_equal(avail_event(d), 1);
	}
}

/* --- a call descriptor that blocks -------------------------------------------------------------------------------- */

static void nothing(int number)
{
}

static void *watchdog(void *argument)
{
	struct driver *d = ((void **)argument)[0];
	pthread_t *caller = ((void **)argument)[1];
	struct timespec pause = {.tv_nsec = 1000000};

	/* A signal that comes too early does nothing and is followed by another. */
	while (atomic_load(&d->ring.fault) == RING_FAULT_NONE) {
		nanosleep(&pause, NULL);
		pthread_kill(*caller, SIGUSR1);
	}
	return NULL;
}

static void test_call_blocks(void **state)
{
	struct driver *d = *state;
	struct sigaction action = {.sa_handler = nothing}, old;
	uint64_t full = UINT64_MAX - 1;
	int fd = eventfd(0, 0);
	pthread_t self = pthread_self(), thread;
	void *argument[] = {d, &self};

	sigaction(SIGUSR1, &action, &old);
	assert_int_equal(write(fd, &full, sizeof(full)), sizeof(full));
	start(d, false, 0, 0, 2);
	atomic_store(&d->ring.call_fd, fd);
	ring_call_always(&d->ring); /* does not block: the guest has a call to see */
	assert_int_equal(atomic_load(&d->ring.fault), RING_FAULT_NONE);
	assert_int_equal(pthread_create(&thread, NULL, watchdog, argument), 0);
	serve(d, false);
	ring_call(&d->ring);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&d->ring.fault), RING_FAULT_CALL_BLOCKED);
	sigaction(SIGUSR1, &old, NULL);

	/* One that does not block and is full: no fault, the guest has a call to see. */
	close(fd);
	fd = eventfd(0, EFD_NONBLOCK);
	assert_int_equal(write(fd, &full, sizeof(full)), sizeof(full));
	start(d, false, 0, 0, 2);
	atomic_store(&d->ring.call_fd, fd);
	serve(d, false);
	ring_call(&d->ring);
	assert_int_equal(atomic_load(&d->ring.fault), RING_FAULT_NONE);
	close(fd);
}

/* --- no lost wake-up ---------------------------------------------------------------------------------------------- */

struct pingpong {
	struct driver *d;
	bool event, to_guest;
	int kick, call;
	atomic_bool stop;
	unsigned served, device_sleeps, driver_sleeps, kicks;
	atomic_bool hang, wrong;
};

static void full_barrier(struct pingpong *p)
{
	uint32_t any = 0;

	/* A read-modify-write is a full barrier on this CPU and, unlike a fence, known to ThreadSanitizer. */
	__atomic_fetch_add(&any, 1, __ATOMIC_SEQ_CST);
#ifndef __x86_64__
	__sync_synchronize();
#endif
}

/* Return: false if nobody woke us. */
static bool sleep_on(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	if (poll(&wait, 1, HANG_MS) != 1)
		return false;
	drain(fd);
	return true;
}

/* The engine: serve what there is, call, arm, look again, sleep. */
static void *device(void *argument)
{
	struct pingpong *p = argument;
	struct ring *ring = &p->d->ring;
	struct frame_burst *burst = zalloc_aligned(sizeof(*burst));
	uint8_t data[60] = {0};
	struct frame frame = {.head = data, .length = 60, .head_length = 60};

	while (!atomic_load(&p->stop) && !p->hang) {
		unsigned got = 0;

		if (p->to_guest) {
			while (got < 4 && ring_put(ring, &frame, &plain) == 0)
				got++;
			ring_put_done(ring);
		} else {
			got = ring_take(ring, burst, 4);
			ring_take_done(ring);
		}
		p->served += got;
		if (got) {
			ring_call(ring);
			continue;
		}
		if (atomic_load(&ring->fault)) {
			p->wrong = true;
			break;
		}
		if (!ring_arm(ring)) {
			p->device_sleeps++;
			if (!sleep_on(p->kick))
				p->hang = true;
		}
		ring_disarm(ring);
	}
	free(burst);
	return NULL;
}

/* Kicks if the device wants it: 2.7.10 without and with the event index. */
static void driver_kick(struct pingpong *p, uint16_t old)
{
	struct driver *d = p->d;
	uint64_t one = 1;

	full_barrier(p);
	if (p->event ? vring_need_event(avail_event(d), d->avail_next, old)
		     : !(__atomic_load_n(&d->used->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY)) {
		p->kicks++;
		if (write(p->kick, &one, sizeof(one)) < 0)
			p->wrong = true;
	}
}

/*
 * Waits for one used entry: awake for so many looks, then asleep. Who looks sees an entry at once and makes the next
 * chain available just while the device looks, arms and goes to sleep: the window in which a wake-up could be lost.
 */
static bool driver_wait(struct pingpong *p, unsigned looks)
{
	struct driver *d = p->d;
	struct vring_used_elem element;

	for (;;) {
		if (driver_used(d, &element)) {
			if (element.len != (p->to_guest ? 72u : 0u))
				p->wrong = true;
			return true;
		}
		if (looks) {
			looks--;
			continue;
		}
		if (p->event)
			set_used_event(d, d->used_seen);
		else
			__atomic_store_n(&d->avail->flags, 0, __ATOMIC_RELAXED);
		full_barrier(p);
		if (__atomic_load_n(&d->used->idx, __ATOMIC_ACQUIRE) == d->used_seen) {
			p->driver_sleeps++;
			if (!sleep_on(p->call))
				return false;
		}
		if (!p->event)
			__atomic_store_n(&d->avail->flags, VRING_AVAIL_F_NO_INTERRUPT, __ATOMIC_RELAXED);
	}
}

/* The two on different CPUs if there are two: on one they would never meet. Return: the set to go back to. */
static cpu_set_t keep_apart(pthread_t device_thread)
{
	cpu_set_t allowed, one;
	int cpu = 0;

	pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed);
	for (unsigned i = 0; i < 2 && CPU_COUNT(&allowed) > 1; i++) {
		while (!CPU_ISSET(cpu, &allowed))
			cpu++;
		CPU_ZERO(&one);
		CPU_SET(cpu++, &one);
		pthread_setaffinity_np(i ? pthread_self() : device_thread, sizeof(one), &one);
	}
	return allowed;
}

static void run_pingpong(struct driver *d, bool to_guest, bool event)
{
	struct pingpong p = {.d = d, .event = event, .to_guest = to_guest, .kick = eventfd(0, EFD_NONBLOCK),
			     .call = eventfd(0, EFD_NONBLOCK)};
	unsigned rounds = 0, in_flight = 0, random = 1;
	uint64_t one = 1;
	cpu_set_t allowed;
	pthread_t thread;

	start(d, to_guest, event ? F_EVENT : 0, 65000, 0);
	atomic_store(&d->ring.call_fd, p.call);
	assert_int_equal(pthread_create(&thread, NULL, device, &p), 0);
	allowed = keep_apart(thread);
	while (rounds < ROUNDS) {
		uint16_t old = d->avail_next;
		unsigned n;

		random = random * 1103515245 + 12345;
		n = 1 + (random >> 16) % 3;
		for (unsigned i = 0; i < n; i++)
			d->avail->ring[d->avail_next++ & 255] = (uint16_t)(rounds++ & 255);
		in_flight += n;
		for (unsigned i = 0; i < (random >> 18) % 64; i++)
			__asm__ volatile("" : : : "memory");
		driver_publish(d);
		driver_kick(&p, old);
		/* Sometimes all, sometimes all but one: both sides meet empty and half full rings. */
		while (in_flight > (random >> 20) % 2) {
			if (!driver_wait(&p, (random >> 16) % 4 ? 60000 : 0)) {
				p.hang = true;
				goto out;
			}
			in_flight--;
		}
	}
	while (in_flight && driver_wait(&p, 0))
		in_flight--;
out:
	atomic_store(&p.stop, true);
	assert_int_equal(write(p.kick, &one, sizeof(one)), sizeof(one));
	pthread_join(thread, NULL);
	pthread_setaffinity_np(pthread_self(), sizeof(allowed), &allowed);
	if (p.hang)
		fail_msg("a wake-up was lost: %s guest, event index %d, after %u", to_guest ? "to" : "from", event,
			 rounds);
	assert_false(p.wrong);
	assert_int_equal(p.served, rounds);
	assert_int_equal(in_flight, 0);
	/* The test would see nothing if nobody had slept. */
	assert_true(p.device_sleeps > 0);
	assert_true(p.driver_sleeps > 0);
	close(p.kick);
	close(p.call);
}

static void test_no_lost_wakeup(void **state)
{
	for (unsigned to_guest = 0; to_guest < 2; to_guest++) {
		for (unsigned event = 0; event < 2; event++)
			run_pingpong(*state, to_guest, event);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_call_flag, driver_begin, driver_end),
		cmocka_unit_test_setup_teardown(test_call_event, driver_begin, driver_end),
		cmocka_unit_test_setup_teardown(test_call_owed, driver_begin, driver_end),
		cmocka_unit_test_setup_teardown(test_arm, driver_begin, driver_end),
		cmocka_unit_test_setup_teardown(test_no_kicks_for_buffers, driver_begin, driver_end),
		cmocka_unit_test_setup_teardown(test_call_blocks, driver_begin, driver_end),
		cmocka_unit_test_setup_teardown(test_no_lost_wakeup, driver_begin, driver_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
