/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * A worker's round: read the plan; poll its lanes; poll the from_guest rings of its share, a burst each; flush (calls to guests,
 * kicks to devices); pass a quiescent state. With work found it goes round again at once. Without, it keeps polling for the longest
 * busy-poll window of its pairs, then arms the guests' notifications, looks once more, and sleeps in epoll_wait().
 *
 * Buffers that come back from from_guest rings are called for a little later (worker_calls.c); a sleep ends in time for that.
 *
 * No wake-up is lost: a kick descriptor or lane that becomes ready after the last look is still ready when epoll_wait() is entered,
 * and a guest that adds a buffer after ring_arm() sees notifications on (virtio 1.2, 2.7.13.3). Descriptors are watched edge-triggered, so
 * none has to be read. While asleep the worker is offline for grace periods and holds no pointer into a plan.
 *
 * The window adapts to what it catches: it is doubled over the length of each rest that ended within the bound, and halved by each that
 * was longer, so that a quiet guest costs nothing and a chatty one is never slept on. Control shrinks it further where the CPU is
 * wanted by others (worker_set_patience), polling that the scheduler interrupted pauses, and an adaptive one is tried (poll_trial.h).
 *
 * Descriptors enter and leave the epoll set by the control thread, before they are closed: a worker that sleeps could not do it.
 */
#include "datapath/worker.h"

#include <errno.h>
#include <numa.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log.h"
#include "datapath/frame_checksum.h"
#include "datapath/grace.h"
#include "datapath/worker_private.h"

/* --- a round ------------------------------------------------------------------------------------------------------- */

/* A veth's peer may leave checksums to a device that is not there. Those that hold just the pseudo-header's sum are completed. */
static void find_open_checksums(struct frame_burst *burst)
{
	struct layout layout;

	for (uint32_t i = 0; i < burst->count; i++) {
		struct frame *frame = &burst->frames[i];

		layout_parse(frame->head, frame->head_length, &layout);
		if (unlikely(frame_looks_partial(frame, &layout)) && frame_verify(frame, &layout) == FRAME_VERIFY_PARTIAL)
			frame_expect_completion(frame, &layout);
	}
}

static unsigned poll_lane(struct worker *w, struct device_end *end, struct lane *lane)
{
	unsigned frames = lane_receive(end->port, lane, &w->burst, FRAME_BURST);

	if (!frames)
		return 0;
	if (unlikely(end->of.open_checksums))
		find_open_checksums(&w->burst);
	switch_from_device(w->plan, end->of.domain, w->index, &w->burst, &w->output, w->counters);
	lane_release(end->port, lane, &w->burst);
	worker_count(w, WORKER_FRAMES_FROM_LANES, frames);
	return frames;
}

static unsigned poll_lanes(struct worker *w)
{
	unsigned frames = 0, polls = 0;

	w->from_lane = true;
	for (unsigned d = 0; d < w->device_count; d++) {
		struct device_end *end = &w->devices[d];
		const unsigned queues = lane_device_queues(end->of.device);

		polls += queues;
		for (unsigned q = 0; q < queues; q++) {
			struct lane *lane = lane_of(end->of.device, q, w->index);

			if (lane_pending(lane))
				frames += poll_lane(w, end, lane);
		}
	}
	w->from_lane = false;
	worker_count(w, WORKER_POLLS, polls);
	return frames;
}

/* Bursts that take long get shorter, so that a guest cannot keep its neighbours waiting by what its frames cost. */
static void adapt_burst(struct worker *w, struct queue_pair *pair, uint64_t cycles)
{
	if (!w->burst_long_cycles)
		return;
	if (unlikely(cycles > w->burst_long_cycles))
		pair->burst_shift = pair->burst_shift < 6 ? pair->burst_shift + 1 : 6;
	else if (pair->burst_shift && cycles < w->burst_short_cycles)
		pair->burst_shift--;
}

static unsigned poll_ring(struct worker *w, struct queue_pair *pair)
{
	struct ring *ring = &pair->from_guest;
	const uint64_t start = cycles_now();
	unsigned frames;

	_Static_assert(FRAME_BURST >> 6 == 1, "the shortest burst is one frame");
	if (ring->notifications_armed)
		ring_disarm(ring);
	frames = ring_take(ring, &w->burst, FRAME_BURST >> pair->burst_shift);
	if (frames)
		switch_from_guest(w->plan, pair, w->index, &w->burst, &w->output);
	if (ring->used_next != ring->used_published)
		ring_take_done(ring);
	if (ring_owes_call(ring))
		worker_call_later(w, pair);
	if (unlikely(atomic_load_explicit(&ring->fault, memory_order_relaxed)))
		worker_report_fault(w, pair);
	if (frames) {
		const uint64_t cycles = cycles_now() - start;

		w->busy_pairs++;
		worker_charge(pair, cycles);
		adapt_burst(w, pair, cycles);
	}
	return frames;
}

static unsigned poll_rings(struct worker *w)
{
	const struct plan_share *share = &w->plan->shares[w->index];
	unsigned frames = 0;

	for (uint32_t i = 0; i < share->pair_count; i++)
		frames += poll_ring(w, share->pairs[i]);
	worker_count(w, WORKER_POLLS, share->pair_count);
	worker_count(w, WORKER_FRAMES_FROM_RINGS, frames);
	return frames;
}

static void flush_devices(struct worker *w)
{
	for (unsigned d = 0; d < w->device_count; d++)
		lane_flush(w->devices[d].port);
}

static void note_arrivals(struct worker *w)
{
	for (unsigned d = 0; d < w->device_count; d++)
		for (unsigned q = 0; q < lane_device_queues(w->devices[d].of.device); q++)
			w->devices[d].drain_to[q] = lane_arrived(lane_of(w->devices[d].of.device, q, w->index));
	for (unsigned d = 0; d < w->device_count; d++)
		w->devices[d].drain_tx_to = lane_tx_mark(w->devices[d].port);
}

static bool arrivals_taken(const struct worker *w)
{
	for (unsigned d = 0; d < w->device_count; d++)
		for (unsigned q = 0; q < lane_device_queues(w->devices[d].of.device); q++)
			if (lane_taken(lane_of(w->devices[d].of.device, q, w->index)) < w->devices[d].drain_to[q])
				return false;
	return true;
}

/* What a moved pair's guest sent before leaves before what it sends by another worker, on another queue: completed, or after a
 * while at least taken by the device, because some drivers complete only when they have more to send. */
static bool sent_passed(const struct worker *w)
{
	const bool completed = w->round_start_ns - w->drain_noted_ns < DRAIN_COMPLETION_NS;

	for (unsigned d = 0; d < w->device_count; d++)
		if (!lane_tx_passed(w->devices[d].port, &w->devices[d].drain_tx_to, completed))
			return false;
	return true;
}

/* Control wants to know when all that stood on the lanes at its request has been delivered, and all that was sent is on its way. */
static void serve_drain(struct worker *w)
{
	const uint32_t wanted = atomic_load(&w->drain_wanted);

	if (likely(wanted == atomic_load_explicit(&w->sent_seen, memory_order_relaxed)))
		return;
	if (w->drain_noted != wanted) {
		note_arrivals(w);
		w->drain_noted = wanted;
		w->drain_noted_ns = w->round_start_ns;
	}
	if (!arrivals_taken(w))
		return;
	atomic_store(&w->drain_seen, wanted);
	if (sent_passed(w))
		atomic_store(&w->sent_seen, wanted);
}

static void settle_devices(struct worker *w)
{
	for (unsigned d = 0; d < w->device_count; d++)
		lane_settle(w->devices[d].port);
	w->settled_ns = w->round_start_ns;
}

static unsigned serve_round(struct worker *w)
{
	unsigned frames = 0;

	w->busy_pairs = 0;
	serve_drain(w);
	if (!atomic_load_explicit(&w->hold_lanes, memory_order_acquire))
		frames = poll_lanes(w);
	frames += poll_rings(w);
	if (frames) {
		worker_flush_calls(w);
		flush_devices(w);
		worker_count(w, WORKER_HITS, 1);
	} else if (w->round_start_ns - w->settled_ns > SETTLE_NS) {
		settle_devices(w);
	}
	return frames;
}

/* How fast the cheap clock runs, once a millisecond of it has passed. */
static void measure_clock(struct worker *w)
{
	const uint64_t ns = w->round_start_ns - w->start_ns;

	if (ns < 1000000)
		return;
	w->burst_long_cycles = (cycles_now() - w->start_cycles) * (BURST_LONG_NS / 1000) / (ns / 1000);
	w->burst_short_cycles = w->burst_long_cycles / (BURST_LONG_NS / BURST_SHORT_NS);
}

static void serve(struct worker *w)
{
	w->start_ns = w->round_start_ns = w->last_work_ns = now_ns();
	w->start_cycles = cycles_now();
	while (!atomic_load_explicit(&w->stopping, memory_order_relaxed)) {
		bool worked;

		w->plan = atomic_load_explicit(w->published, memory_order_acquire);
		if (w->generation != w->plan->generation) {
			w->generation = w->plan->generation;
			worker_adopt_bound(w);
		}
		worked = serve_round(w) != 0;
		worker_account_round(w, worked);
		if (unlikely(!w->burst_long_cycles))
			measure_clock(w);
		if (!worked)
			worker_rest(w);
		grace_quiescent();
	}
}

/* --- life ---------------------------------------------------------------------------------------------------------- */

static int set_affinity(pid_t tid, const struct cpulist *cpus)
{
	/* struct cpulist has the kernel's own layout: one bit a CPU, lowest first. */
	return sched_setaffinity(tid, sizeof(cpus->bits), (const cpu_set_t *)cpus->bits) < 0 ? -errno : 0;
}

static int pin(pid_t tid, int cpu)
{
	struct cpulist one = {0};

	if (cpu < 0)
		return 0;
	if (cpu >= CPUS_MAX)
		return -EINVAL;
	cpulist_add(&one, (unsigned)cpu);
	return set_affinity(tid, &one);
}

static void *worker_main(void *argument)
{
	struct worker *w = argument;
	char name[16];
	int result;

	snprintf(name, sizeof(name), "vhostlane-w%u", w->index);
	pthread_setname_np(pthread_self(), name);
	atomic_store(&w->tid, (int)syscall(SYS_gettid));
	result = pin(0, atomic_load(&w->cpu));
	atomic_store(&w->start_error, result);
	if (result)
		return NULL;
	urcu_qsbr_register_thread();
	serve(w);
	urcu_qsbr_unregister_thread();
	return NULL;
}

static void ignore_signal(int signal)
{
}

static int watch(struct worker *w, int fd, enum watched what)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = what};

	return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

int worker_watch_kick(struct worker *w, int kick_fd)
{
	return watch(w, kick_fd, WATCHED_KICK);
}

void worker_unwatch_kick(struct worker *w, int kick_fd)
{
	epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, kick_fd, NULL);
}

static int open_device(struct worker *w, const struct worker_device *of, struct error *error)
{
	struct device_end *end = &w->devices[w->device_count];

	end->of = *of;
	end->port = lane_port_create(of->device, w->index, error);
	if (!end->port)
		return error->code;
	w->device_count++;
	if (of->is_uplink)
		w->uplink[of->domain] = end;
	else if (!w->host_link[of->domain] || of->node == atomic_load(&w->node))
		w->host_link[of->domain] = end;
	for (unsigned q = 0; q < lane_device_queues(of->device); q++) {
		int result = watch(w, lane_fd(lane_of(of->device, q, w->index)), WATCHED_LANE);

		if (result)
			return error_set(error, result, "worker %u: cannot watch a lane of %s: %s; raise the limit of open files (ulimit -n)",
					 w->index, lane_device_name(of->device), strerror(-result));
	}
	return 0;
}

static int open_descriptors(struct worker *w, struct error *error)
{
	int result;

	w->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (w->wake_fd < 0 || w->epoll_fd < 0)
		return error_set(error, -errno, "worker %u: no descriptor: %s; raise the limit of open files (ulimit -n)", w->index,
				 strerror(errno));
	result = watch(w, w->wake_fd, WATCHED_CONTROL);
	if (result)
		return error_set(error, result, "worker %u: epoll: %s; raise the limit of open files (ulimit -n)", w->index, strerror(-result));
	return 0;
}

static void free_worker(struct worker *w)
{
	for (unsigned d = 0; d < w->device_count; d++)
		lane_port_destroy(w->devices[d].port);
	if (w->wake_fd >= 0)
		close(w->wake_fd);
	if (w->epoll_fd >= 0)
		close(w->epoll_fd);
	numa_free(w, sizeof(*w));
}

/* A worker's memory lies on its own node. */
static struct worker *allocate_worker(int node)
{
	struct worker *w = node >= 0 && numa_available() >= 0 ? numa_alloc_onnode(sizeof(*w), node) : numa_alloc_local(sizeof(*w));

	if (w)
		memset(w, 0, sizeof(*w));
	return w;
}

static int start_thread(struct worker *w, struct error *error)
{
	const struct sigaction action = {.sa_handler = ignore_signal};
	sigset_t all, before;
	int result;

	sigaction(UNSTICK_SIGNAL, &action, NULL);
	sigfillset(&all);
	sigdelset(&all, UNSTICK_SIGNAL);
	sigdelset(&all, SIGBUS); /* guest_memory.h: a short memory file is handled in the thread that touches it */
	sigdelset(&all, SIGSEGV);
	atomic_store(&w->start_error, 1);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	result = -pthread_create(&w->thread, NULL, worker_main, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (result)
		return error_set(error, result, "worker %u: cannot start a thread: %s; raise the limit of tasks", w->index, strerror(-result));
	while ((result = atomic_load(&w->start_error)) == 1)
		usleep(100);
	if (result) {
		pthread_join(w->thread, NULL);
		return error_set(error, result, "worker %u: cannot run on CPU %d: %s; give --cpus CPUs that are online and allowed", w->index,
				 atomic_load(&w->cpu), strerror(-result));
	}
	return 0;
}

struct worker *worker_start(const struct worker_setup *setup, struct error *error)
{
	struct worker *w = allocate_worker(setup->node);

	if (!w) {
		error_set(error, -ENOMEM, "worker %u: out of memory; free some memory", setup->index);
		return NULL;
	}
	w->index = setup->index;
	w->published = setup->plan;
	w->control_fd = setup->control_fd;
	w->wake_fd = w->epoll_fd = -1;
	atomic_store(&w->cpu, setup->cpu);
	atomic_store(&w->node, setup->node);
	atomic_store(&w->patience, WORKER_PATIENCE_FULL);
	w->generation = UINT64_MAX;
	w->output = worker_output;
	w->output.context = w;
	ck_ring_init(&w->learn_ring, LEARN_RING);
	if (open_descriptors(w, error))
		goto fail;
	for (unsigned d = 0; d < setup->device_count; d++)
		if (open_device(w, &setup->devices[d], error))
			goto fail;
	if (start_thread(w, error))
		goto fail;
	return w;
fail:
	free_worker(w);
	return NULL;
}

/* One that is stuck in a guest's call descriptor is interrupted until it comes. */
static void join(struct worker *w)
{
	struct timespec until;

	do {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += JOIN_STEP_NS;
		if (until.tv_nsec >= 1000000000) {
			until.tv_sec++;
			until.tv_nsec -= 1000000000;
		}
		if (!pthread_timedjoin_np(w->thread, NULL, &until))
			return;
	} while (!pthread_kill(w->thread, UNSTICK_SIGNAL));
	pthread_join(w->thread, NULL);
}

void worker_stop(struct worker *w)
{
	if (!w)
		return;
	atomic_store(&w->stopping, true);
	worker_wake(w);
	join(w);
	free_worker(w);
}

void worker_wake(struct worker *w)
{
	const uint64_t one = 1;

	if (write(w->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_limited(LOG_LEVEL_ERROR, "worker %u: cannot wake it: %s", w->index, strerror(errno));
}

void worker_hold_lanes(struct worker *w, bool hold)
{
	atomic_store(&w->hold_lanes, hold);
	worker_wake(w);
}

void worker_drain_request(struct worker *w)
{
	atomic_fetch_add(&w->drain_wanted, 1);
	worker_wake(w);
}

bool worker_drained(const struct worker *w)
{
	return atomic_load(&w->drain_seen) == atomic_load(&w->drain_wanted);
}

bool worker_sent(const struct worker *w)
{
	return atomic_load(&w->sent_seen) == atomic_load(&w->drain_wanted);
}

int worker_cpu(const struct worker *w)
{
	return atomic_load(&w->cpu);
}

int worker_node(const struct worker *w)
{
	return atomic_load(&w->node);
}

int worker_move(struct worker *w, int cpu, int node, struct error *error)
{
	const int result = cpu < 0 ? -EINVAL : pin(atomic_load(&w->tid), cpu);

	if (result)
		return error_set(error, result, "worker %u: cannot run on CPU %d: %s; name a CPU that is online and allowed", w->index, cpu,
				 strerror(-result));
	atomic_store(&w->cpu, cpu);
	atomic_store(&w->node, node);
	return 0;
}

int worker_unpin(struct worker *w, const struct cpulist *cpus, struct error *error)
{
	const int result = set_affinity(atomic_load(&w->tid), cpus);

	if (result)
		return error_set(error, result, "worker %u: cannot be let go of its CPU: %s; name CPUs that are online and allowed", w->index,
				 strerror(-result));
	atomic_store(&w->cpu, -1);
	return 0;
}

int worker_tid(const struct worker *w)
{
	return atomic_load(&w->tid);
}

bool worker_asleep(const struct worker *w)
{
	return atomic_load(&w->asleep);
}

uint64_t worker_counter(const struct worker *w, enum worker_counter which)
{
	return __atomic_load_n(&w->counters[which], __ATOMIC_RELAXED);
}

void worker_set_patience(struct worker *w, uint32_t patience)
{
	const uint32_t before = atomic_exchange(&w->patience, patience);

	/* Without any, even one that always polls fell asleep, and would sleep on until somebody has work for it. */
	if (!before && patience)
		worker_wake(w);
}

uint32_t worker_patience(const struct worker *w)
{
	return atomic_load_explicit(&w->patience, memory_order_relaxed);
}

uint64_t worker_take_standing_ns(struct worker *w)
{
	return atomic_exchange(&w->standing_ns, 0);
}

struct lane_port *worker_lane_port(const struct worker *w, unsigned device)
{
	return w->devices[device].port;
}

bool worker_take_learn(struct worker *w, struct learn_request *request)
{
	return CK_RING_DEQUEUE_SPSC(learn, &w->learn_ring, w->learn_buffer, request);
}

bool worker_watchdog(struct worker *w)
{
	const uint64_t rounds = worker_counter(w, WORKER_ROUNDS);
	const bool asleep = atomic_load(&w->asleep);

	if (rounds == w->watchdog_rounds && !asleep)
		pthread_kill(w->thread, UNSTICK_SIGNAL);
	w->watchdog_rounds = rounds;
	return !asleep;
}
