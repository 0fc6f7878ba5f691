/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a worker does, by its own thread. Its start, its end and control's calls: worker_life.c.
 *
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

#include "datapath/frame_checksum.h"
#include "datapath/grace.h"
#include "datapath/worker_private.h"

/* Stacks behind a veth or a bridge may leave checksums to a device that is not there. Those that hold just the pseudo-header's sum are completed. */
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

void worker_serve(struct worker *w)
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
