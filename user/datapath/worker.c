/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * A worker's round: read the plan; poll its lanes; poll the from_guest rings of its share, a burst each; flush (calls to guests,
 * kicks to devices); pass a quiescent state. With work found it goes round again at once. Without, it keeps polling for the longest
 * busy-poll window of its pairs, then arms the guests' notifications, looks once more, and sleeps in epoll_wait().
 *
 * No wake-up is lost: a kick descriptor or lane that becomes ready after the last look is still ready when epoll_wait() is entered,
 * and a guest that adds a buffer after ring_arm() sees notifications on (virtio 1.2, 2.7.13.3). Descriptors are watched edge-triggered, so
 * none has to be read. While asleep the worker is offline for grace periods and holds no pointer into a plan.
 *
 * The window adapts to what it catches: it is doubled over the length of each rest that ended within the bound, and halved by each that
 * was longer, so that a quiet guest costs nothing and a chatty one is never slept on. Control shrinks it further where the CPU is
 * wanted by others (worker_set_patience).
 *
 * Descriptors enter and leave the epoll set by the control thread, before they are closed: a worker that sleeps could not do it.
 */
#include "datapath/worker.h"

#include <ck_ring.h>
#include <errno.h>
#include <numa.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/log.h"
#include "datapath/burst_lock.h"
#include "datapath/coalesce.h"
#include "datapath/frame_checksum.h"
#include "datapath/grace.h"
#include "datapath/segment.h"
#include "datapath/switch.h"

#define DIRTY_MAX 64		     /* pairs that wait for their call at the end of the round */
#define LEARN_RING 256		     /* learn requests in flight; a power of two */
#define LEARN_PER_PORT 32	     /* learn requests of one port in LEARN_WINDOW_NS */
#define LEARN_WINDOW_NS 100000000ull
#define POLLED_SLEEP_MS 1	     /* longest sleep with something that nobody will wake us for */
#define ZERO_COPY_SLEEP_MS 100
#define UNSTICK_SIGNAL SIGUSR2
#define WINDOW_FIRST_NS 10000	     /* from 0, the first step up */
#define STANDING_NS 10000	     /* a round that took longer kept the others' work standing */
#define STANDING_TELL_NS 10000000ull /* how often control is told of it */
#define SETTLE_NS 100000	     /* how often devices are settled by a worker that never sleeps */
/* A ring whose burst takes longer gets fewer frames at a time: what they cost (chains, segmentation) is its guest's choice. */
#define BURST_LONG_NS 100000
#define BURST_SHORT_NS 50000
#define DRAIN_COMPLETION_NS 2000000  /* how long a drain waits for the device to have sent, and not only to have taken */
#define JOIN_STEP_NS 10000000	     /* how often a worker that does not end is interrupted */

enum watched { WATCHED_CONTROL, WATCHED_LANE, WATCHED_KICK };

CK_RING_PROTOTYPE(learn, learn_request)

struct device_end {
	struct worker_device of;
	struct lane_port *port;
	uint64_t drain_to[VL_DEVICE_QUEUES_MAX]; /* what had arrived on each lane when control asked to drain */
	uint64_t drain_tx_to; /* and what had been sent */
};

struct worker {
	/* Constant while it runs. */
	unsigned index;
	struct plan *_Atomic *published;
	struct device_end devices[WORKER_DEVICES_MAX];
	unsigned device_count;
	struct device_end *uplink[DOMAINS_MAX];	   /* by domain; NULL = none */
	struct device_end *host_link[DOMAINS_MAX]; /* by domain: the one of this worker's node, else the first */
	int control_fd, wake_fd, epoll_fd;
	pthread_t thread;
	struct switch_output output;

	/* Control writes, the worker reads. */
	_Atomic bool stopping;
	_Atomic bool hold_lanes;
	_Atomic uint32_t drain_wanted;
	_Atomic int cpu, node;
	_Atomic uint32_t patience; /* 0 .. WORKER_PATIENCE_FULL: share of its window that it polls */

	/* The worker writes, control reads. */
	_Atomic int tid;
	_Atomic int start_error; /* 1 = not yet, 0 = running, else negative errno value */
	_Atomic bool asleep;
	_Atomic uint32_t drain_seen;
	_Atomic uint64_t standing_ns; /* longest round since control asked last, if several pairs had work in it */
	uint64_t counters[WORKER_COUNTER_COUNT] CACHE_ALIGNED;
	ck_ring_t learn_ring;
	struct learn_request learn_buffer[LEARN_RING];

	/* The watchdog's own. */
	uint64_t watchdog_rounds;

	/* The worker's own. */
	struct plan *plan CACHE_ALIGNED; /* valid from the start of a round to its quiescent state */
	uint64_t generation;
	uint64_t round_start_ns, last_work_ns;
	uint64_t window_ns, window_bound_ns; /* how long it polls now, and at most */
	uint64_t standing_told_ns, settled_ns;
	uint32_t busy_pairs; /* with work in this round */
	uint32_t drain_noted; /* the request that drain_to[] is of */
	uint64_t drain_noted_ns;
	uint64_t start_ns, start_cycles, burst_long_cycles, burst_short_cycles; /* cycles are 0 until the clock is measured */
	bool from_lane; /* the burst in hand came up a lane */
	uint32_t dirty_count;
	struct queue_pair *dirty[DIRTY_MAX];
	uint64_t learn_window_start_ns;
	uint8_t learn_asked[VL_PORTS_MAX]; /* in this window */
	struct learn_request last_learn;
	uint64_t last_learn_generation;
	struct frame_burst burst;
	struct coalesce_scratch coalesce;
	struct segmenter segmenter;
	struct segment_burst segments;
};

static void count(struct worker *w, enum worker_counter which, uint64_t n)
{
	__atomic_store_n(&w->counters[which], w->counters[which] + n, __ATOMIC_RELAXED);
}

static void tell_control(struct worker *w)
{
	const uint64_t one = 1;

	/* Non-blocking; full means that control has been told already. */
	if (write(w->control_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_limited(LOG_LEVEL_WARNING, "worker %u: cannot tell control: %s", w->index, strerror(errno));
}

static void report_fault(struct worker *w, struct queue_pair *pair)
{
	if (!atomic_exchange(&pair->fault_reported, true))
		tell_control(w);
}

/* --- output: where the switch sends groups of frames --------------------------------------------------------------- */

/* Calls of to_guest rings wait for the end of the round, so that one call covers all that the round delivered. */
static void flush_dirty(struct worker *w)
{
	for (uint32_t i = 0; i < w->dirty_count; i++) {
		struct queue_pair *pair = w->dirty[i];
		int call_fd;

		burst_lock(&pair->to_guest_lock);
		call_fd = ring_call_due(&pair->to_guest);
		burst_unlock(&pair->to_guest_lock);
		if (call_fd >= 0)
			ring_call_write(&pair->to_guest, call_fd);
		if (unlikely(atomic_load_explicit(&pair->to_guest.fault, memory_order_relaxed)))
			report_fault(w, pair);
	}
	w->dirty_count = 0;
}

static void mark_dirty(struct worker *w, struct queue_pair *pair)
{
	for (uint32_t i = w->dirty_count; i-- > 0;)
		if (w->dirty[i] == pair)
			return;
	if (w->dirty_count == DIRTY_MAX)
		flush_dirty(w);
	w->dirty[w->dirty_count++] = pair;
}

/* Time spent on a pair; lanes' workers charge pairs of others too. */
static void charge(struct queue_pair *pair, uint64_t cycles)
{
	atomic_fetch_add_explicit(&pair->busy_cycles, cycles, memory_order_relaxed);
}

/* What came of a group of frames that were put into one ring. */
struct put_result {
	unsigned delivered, too_large, no_buffers, faulted;
	uint32_t too_large_length; /* of the last one */
	uint64_t bytes;
};

/* Return: false if the ring takes nothing more at all. */
static bool count_put_one(struct put_result *result, const struct frame *frame, int code)
{
	switch (code) {
	case 0:
		result->delivered++;
		result->bytes += frame->length;
		return true;
	case -EMSGSIZE:
		result->too_large++;
		result->too_large_length = frame->length;
		return true;
	case -ENOBUFS: /* a shorter one may still find room; what fails again fails cheaply */
		result->no_buffers++;
		return true;
	default:
		result->faulted++;
		return false;
	}
}

static bool put_one(struct ring *ring, const struct frame *frame, const struct vnet_header *header, struct put_result *result)
{
	return count_put_one(result, frame, ring_put(ring, frame, header));
}

/* Segments of a frame for a guest that does not take it whole, straight into its buffers. */
static bool put_segments(struct worker *w, const struct port_view *view, struct ring *ring, const struct frame *frame,
			 struct put_result *result)
{
	struct port_counters *counters = &view->port->counters[w->index];
	struct vnet_header header;

	if (segment_start(&w->segmenter, frame) != SEGMENT_GOOD) {
		counter_add(counters, PORT_DROP_SEGMENT, 1);
		return true;
	}
	counter_add(counters, PORT_SEGMENTED, 1);
	while (segment_next(&w->segmenter, &w->segments))
		for (uint32_t i = 0; i < w->segments.count; i++) {
			vnet_header_for(w->segments.list[i], view->features, &header);
			if (!put_one(ring, w->segments.list[i], &header, result))
				return false;
		}
	return true;
}

/* Of a merged frame one part turned out to have a wrong checksum while it was copied: each goes as it came. */
static bool put_parts(struct worker *w, struct ring *ring, const struct frame *merged, struct put_result *result)
{
	static const struct vnet_header plain;
	struct frame *const *parts;
	const uint32_t part_count = coalesce_parts(&w->coalesce, merged, &parts);
	bool more = true;

	for (uint32_t i = 0; i < part_count && more; i++)
		more = put_one(ring, parts[i], &plain, result);
	return more;
}

/* A frame whose checksum is open or known, or that is to be cut. */
static bool put_offloaded(struct worker *w, const struct port_view *view, struct ring *ring, const struct frame *frame,
			  struct put_result *result)
{
	struct vnet_header header;
	int code;

	if (frame->offload.gso != FRAME_GSO_NONE && !vnet_receiver_takes(frame, view->features))
		return put_segments(w, view, ring, frame, result);
	if (w->from_lane && frame->offload.gso == FRAME_GSO_NONE && frame->offload.needs_checksum)
		counter_add(&view->port->counters[w->index], PORT_COMPLETED_PARTIAL, 1);
	vnet_header_for(frame, view->features, &header);
	code = ring_put(ring, frame, &header);
	return code == -EBADMSG ? put_parts(w, ring, frame, result) : count_put_one(result, frame, code);
}

static void count_put(struct worker *w, const struct port_view *view, struct queue_pair *pair, const struct put_result *result)
{
	struct port_counters *counters = &view->port->counters[w->index];

	if (result->delivered) {
		mark_dirty(w, pair);
		counter_add(counters, PORT_TO_GUEST_FRAMES, result->delivered);
		counter_add(counters, PORT_TO_GUEST_BYTES, result->bytes);
	}
	if (unlikely(result->too_large)) {
		counter_add(counters, PORT_DROP_TO_GUEST_TOO_LARGE, result->too_large);
		log_limited(LOG_LEVEL_WARNING, "port %s: a frame of %u bytes is larger than the guest's buffers; raise the guest's MTU or lower the sender's",
			    view->port->name, result->too_large_length);
	}
	if (unlikely(result->no_buffers))
		counter_add(counters, PORT_DROP_TO_GUEST_NO_BUFFERS, result->no_buffers);
	if (unlikely(result->faulted)) {
		counter_add(counters, PORT_DROP_TO_GUEST_FAULT, result->faulted);
		report_fault(w, pair);
	}
}

/* TCP segments (and datagrams) of one burst from a device become few large frames, if the guest takes those. */
static unsigned coalesce(struct worker *w, const struct port_view *view, struct frame *const **frames, unsigned frame_count)
{
	const unsigned count_out = coalesce_frames(*frames, frame_count, view->coalesce | COALESCE_VERIFY_LATER, &w->coalesce);

	if (w->coalesce.counters.merged)
		counter_add(&view->port->counters[w->index], PORT_COALESCED, w->coalesce.counters.merged);
	*frames = w->coalesce.list;
	return count_out;
}

static unsigned output_to_guest(void *context, const struct port_view *view, struct queue_pair *pair, struct frame *const *frames,
				unsigned frame_count)
{
	static const struct vnet_header plain;
	struct worker *w = context;
	struct ring *ring = &pair->to_guest;
	struct put_result result = {0};
	const uint64_t start = w->from_lane ? cycles_now() : 0;
	bool more = true;
	unsigned i;

	if (w->from_lane) {
		if (unlikely(atomic_load_explicit(&pair->worker, memory_order_relaxed) != (int)w->index))
			count(w, WORKER_LANE_STRAYS, frame_count);
		if (view->coalesce && frame_count > 1)
			frame_count = coalesce(w, view, &frames, frame_count);
	}
	burst_lock(&pair->to_guest_lock);
	for (i = 0; i < frame_count && more; i++)
		more = likely(!frames[i]->offload.needs_checksum && !frames[i]->offload.verified)
			       ? put_one(ring, frames[i], &plain, &result)
			       : put_offloaded(w, view, ring, frames[i], &result);
	ring_put_done(ring);
	burst_unlock(&pair->to_guest_lock);

	result.faulted += frame_count - i; /* only a fault ends the group early */
	count_put(w, view, pair, &result);
	if (w->from_lane) {
		w->busy_pairs++;
		charge(pair, cycles_now() - start);
	}
	return result.delivered;
}

/* Frames that must be cut go out as their segments, in their place among the others. */
static unsigned send_cut(struct worker *w, struct device_end *end, const struct frame *frame)
{
	unsigned offered = 0, sent = 0;

	if (segment_start(&w->segmenter, frame) != SEGMENT_GOOD)
		return 0;
	while (segment_next(&w->segmenter, &w->segments)) {
		offered += w->segments.count;
		sent += lane_send(end->port, w->segments.list, w->segments.count);
	}
	return sent == offered;
}

static unsigned send_on(struct worker *w, struct device_end *end, struct frame *const *frames, unsigned frame_count)
{
	unsigned start = 0, sent = 0;

	if (!end)
		return 0;
	for (unsigned i = 0; i < frame_count; i++) {
		if (likely(frames[i]->offload.gso == FRAME_GSO_NONE))
			continue;
		sent += lane_send(end->port, frames + start, i - start);
		sent += send_cut(w, end, frames[i]);
		start = i + 1;
	}
	return sent + lane_send(end->port, frames + start, frame_count - start);
}

static unsigned output_to_uplink(void *context, unsigned domain, struct frame *const *frames, unsigned frame_count)
{
	struct worker *w = context;

	return send_on(w, w->uplink[domain], frames, frame_count);
}

static unsigned output_to_host(void *context, unsigned domain, struct frame *const *frames, unsigned frame_count)
{
	struct worker *w = context;

	return send_on(w, w->host_link[domain], frames, frame_count);
}

static void output_learn(void *context, struct port *port, const uint8_t *mac, uint16_t vlan)
{
	struct worker *w = context;
	struct learn_request request = {.port = port->id, .vlan = vlan};

	memcpy(request.mac, mac, sizeof(request.mac));
	if (w->last_learn_generation == w->generation && !memcmp(&request, &w->last_learn, sizeof(request)))
		return;
	if (w->round_start_ns - w->learn_window_start_ns > LEARN_WINDOW_NS) {
		w->learn_window_start_ns = w->round_start_ns;
		memset(w->learn_asked, 0, sizeof(w->learn_asked));
	}
	if (w->learn_asked[port->id] >= LEARN_PER_PORT ||
	    !CK_RING_ENQUEUE_SPSC(learn, &w->learn_ring, w->learn_buffer, &request)) {
		count(w, WORKER_LEARN_DELAYED, 1);
		return;
	}
	w->learn_asked[port->id]++;
	w->last_learn = request;
	w->last_learn_generation = w->generation;
	tell_control(w);
}

/* --- a round ------------------------------------------------------------------------------------------------------- */

/* A veth's peer may leave checksums to a device that is not there. Those that hold just the pseudo-header's sum are completed. */
static void find_open_checksums(struct frame_burst *burst)
{
	struct layout layout;

	for (uint32_t i = 0; i < burst->count; i++) {
		struct frame *frame = &burst->frames[i];

		layout_parse(frame->head, frame->head_length, &layout);
		if (frame_verify(frame, &layout) == FRAME_VERIFY_PARTIAL)
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
	count(w, WORKER_FRAMES_FROM_LANES, frames);
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
	count(w, WORKER_POLLS, polls);
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
	if (ring->used_next != ring->used_published) {
		ring_take_done(ring);
		ring_call(ring);
	}
	if (unlikely(atomic_load_explicit(&ring->fault, memory_order_relaxed)))
		report_fault(w, pair);
	if (frames) {
		const uint64_t cycles = cycles_now() - start;

		w->busy_pairs++;
		charge(pair, cycles);
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
	count(w, WORKER_POLLS, share->pair_count);
	count(w, WORKER_FRAMES_FROM_RINGS, frames);
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
		if (!lane_tx_passed(w->devices[d].port, w->devices[d].drain_tx_to, completed))
			return false;
	return true;
}

/* Control wants to know when all that stood on the lanes at its request has been delivered, and all that was sent is on its way. */
static void serve_drain(struct worker *w)
{
	const uint32_t wanted = atomic_load(&w->drain_wanted);

	if (likely(wanted == atomic_load_explicit(&w->drain_seen, memory_order_relaxed)))
		return;
	if (w->drain_noted != wanted) {
		note_arrivals(w);
		w->drain_noted = wanted;
		w->drain_noted_ns = w->round_start_ns;
	}
	if (arrivals_taken(w) && sent_passed(w))
		atomic_store(&w->drain_seen, wanted);
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
		flush_dirty(w);
		flush_devices(w);
		count(w, WORKER_HITS, 1);
	} else if (w->round_start_ns - w->settled_ns > SETTLE_NS) {
		settle_devices(w);
	}
	return frames;
}

/* --- rest ---------------------------------------------------------------------------------------------------------- */

/* The longest window of the share's pairs: an upper bound. */
static uint64_t busy_poll_bound_ns(const struct worker *w)
{
	const struct plan_share *share = &w->plan->shares[w->index];
	uint32_t longest = 0;

	for (uint32_t i = 0; i < share->pair_count; i++)
		longest = max_u32(longest, atomic_load_explicit(&share->pairs[i]->busy_poll_us, memory_order_relaxed));
	return longest == BUSY_POLL_ALWAYS ? UINT64_MAX : (uint64_t)longest * 1000;
}

static void adopt_bound(struct worker *w)
{
	w->window_bound_ns = busy_poll_bound_ns(w);
	w->window_ns = w->window_bound_ns;
}

/* A rest ended after @rest_ns, caught by polling or by a wake-up. */
static void adapt_window(struct worker *w, uint64_t rest_ns)
{
	if (w->window_bound_ns == UINT64_MAX)
		w->window_ns = UINT64_MAX;
	else if (rest_ns > w->window_bound_ns)
		w->window_ns /= 2;
	else if (w->window_ns < 2 * rest_ns || w->window_ns < WINDOW_FIRST_NS)
		w->window_ns = 2 * rest_ns > WINDOW_FIRST_NS ? 2 * rest_ns : WINDOW_FIRST_NS;
	if (w->window_ns > w->window_bound_ns)
		w->window_ns = w->window_bound_ns;
}

static uint64_t patient_window_ns(const struct worker *w)
{
	const uint32_t patience = atomic_load_explicit(&w->patience, memory_order_relaxed);

	return patience == WORKER_PATIENCE_FULL ? w->window_ns : w->window_ns / WORKER_PATIENCE_FULL * patience;
}

/* Arms everything and looks once more. Return: false if there is work, or news from control. */
static bool may_sleep(struct worker *w, int *timeout_ms)
{
	const struct plan_share *share = &w->plan->shares[w->index];

	*timeout_ms = -1;
	for (uint32_t i = 0; i < share->pair_count; i++) {
		if (share->pairs[i]->from_guest_kick_fd < 0 || atomic_load_explicit(&share->pairs[i]->unwatched, memory_order_relaxed))
			*timeout_ms = POLLED_SLEEP_MS;
		if (ring_arm(&share->pairs[i]->from_guest))
			return false;
	}
	for (unsigned d = 0; d < w->device_count; d++) {
		struct device_end *end = &w->devices[d];

		lane_settle(end->port);
		if (end->port->tx_pending)
			*timeout_ms = POLLED_SLEEP_MS;
		/* A driver checks its rings before it asks to be woken: the wish may come after our look. */
		else if (lane_device_mode(end->of.device) == LANE_MODE_ZERO_COPY && *timeout_ms < 0)
			*timeout_ms = ZERO_COPY_SLEEP_MS;
		for (unsigned q = 0; q < lane_device_queues(end->of.device); q++)
			if (lane_pending(lane_of(end->of.device, q, w->index)))
				return false;
	}
	return atomic_load(w->published) == w->plan && !atomic_load(&w->stopping) && !atomic_load(&w->hold_lanes) &&
	       atomic_load(&w->drain_wanted) == atomic_load(&w->drain_seen);
}

static void count_wakes(struct worker *w, const struct epoll_event *events, int event_count)
{
	static const enum worker_counter counter_of[] = {
		[WATCHED_CONTROL] = WORKER_WAKE_CONTROL,
		[WATCHED_LANE] = WORKER_WAKE_LANE,
		[WATCHED_KICK] = WORKER_WAKE_KICK,
	};

	for (int i = 0; i < event_count; i++)
		count(w, counter_of[events[i].data.u32], 1);
}

static void sleep_until_called(struct worker *w, int timeout_ms)
{
	struct epoll_event events[16];
	const uint64_t start = now_ns();
	int event_count;

	w->plan = NULL;
	atomic_store(&w->asleep, true);
	grace_offline();
	event_count = epoll_wait(w->epoll_fd, events, ARRAY_SIZE(events), timeout_ms);
	grace_online();
	atomic_store(&w->asleep, false);
	count(w, WORKER_SLEEPS, 1);
	count_wakes(w, events, event_count);
	w->round_start_ns = now_ns();
	count(w, WORKER_NS_ASLEEP, w->round_start_ns - start);
}

static void rest(struct worker *w)
{
	int timeout_ms;

	if (w->round_start_ns - w->last_work_ns < patient_window_ns(w))
		cpu_pause();
	else if (may_sleep(w, &timeout_ms))
		sleep_until_called(w, timeout_ms);
}

/* Control spreads pairs that keep each other waiting, if another worker has nothing to do. */
static void report_standing(struct worker *w, uint64_t round_ns)
{
	if (round_ns > atomic_load_explicit(&w->standing_ns, memory_order_relaxed))
		atomic_store_explicit(&w->standing_ns, round_ns, memory_order_relaxed);
	if (w->round_start_ns - w->standing_told_ns > STANDING_TELL_NS) {
		w->standing_told_ns = w->round_start_ns;
		tell_control(w);
	}
}

static void account_round(struct worker *w, bool worked)
{
	const uint64_t now = now_ns(), round_ns = now - w->round_start_ns;

	count(w, WORKER_ROUNDS, 1);
	count(w, worked ? WORKER_NS_BUSY : WORKER_NS_POLLING, round_ns);
	if (worked) {
		const uint64_t rest_ns = w->round_start_ns - w->last_work_ns;

		if (rest_ns)
			adapt_window(w, rest_ns);
		w->last_work_ns = now;
		if (unlikely(round_ns > STANDING_NS && w->busy_pairs > 1))
			report_standing(w, round_ns);
	}
	w->round_start_ns = now;
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
			adopt_bound(w);
		}
		worked = serve_round(w) != 0;
		account_round(w, worked);
		if (unlikely(!w->burst_long_cycles))
			measure_clock(w);
		if (!worked)
			rest(w);
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
	w->output = (struct switch_output){
		.context = w,
		.to_guest = output_to_guest,
		.to_uplink = output_to_uplink,
		.to_host = output_to_host,
		.learn = output_learn,
	};
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
	atomic_store_explicit(&w->patience, patience, memory_order_relaxed);
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
