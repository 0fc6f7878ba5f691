/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the switch sends groups of frames. To a guest: coalesced, cut or with its checksum completed as the guest takes them, straight into
 * its buffers, under the ring's lock, once a group. To a device: cut, the rest is the lane's. A question to control: bounded.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "datapath/burst_lock.h"
#include "datapath/worker_private.h"

void worker_tell_control(struct worker *w)
{
	const uint64_t one = 1;

	/* Non-blocking; full means that control has been told already. */
	if (write(w->control_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_limited(LOG_LEVEL_WARNING, "worker %u: cannot tell control: %s", w->index, strerror(errno));
}

void worker_report_fault(struct worker *w, struct queue_pair *pair)
{
	if (!atomic_exchange(&pair->fault_reported, true))
		worker_tell_control(w);
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

/*
 * A merged frame that was not taken whole: one part turned out to have a wrong checksum while it was copied, or there are fewer buffers than
 * all need. Each part goes as it came, or is counted as it came.
 */
static bool put_parts(struct worker *w, struct ring *ring, const struct frame *merged, struct put_result *result)
{
	static const struct vnet_header plain;
	struct frame *const *parts;
	const uint32_t part_count = coalesce_parts(&w->coalesce, merged, &parts);

	for (uint32_t i = 0; i < part_count; i++)
		if (!put_one(ring, parts[i], &plain, result)) {
			result->faulted += part_count - i - 1;
			return false;
		}
	return true;
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
	if (unlikely(code && frame->offload.sums))
		return put_parts(w, ring, frame, result);
	/* Not even all of the ring's buffers hold it (a short ring, short buffers): in pieces it comes all the same. */
	if (unlikely(code == -EMSGSIZE && frame->offload.gso != FRAME_GSO_NONE))
		return put_segments(w, view, ring, frame, result);
	return count_put_one(result, frame, code);
}

static void count_put(struct worker *w, const struct port_view *view, struct queue_pair *pair, const struct put_result *result)
{
	struct port_counters *counters = &view->port->counters[w->index];

	if (result->delivered) {
		worker_call_after_round(w, pair);
		counter_add(counters, PORT_TO_GUEST_FRAMES, result->delivered);
		counter_add(counters, PORT_TO_GUEST_BYTES, result->bytes);
	}
	if (unlikely(result->too_large)) {
		counter_add(counters, PORT_DROP_TO_GUEST_TOO_LARGE, result->too_large);
		log_limited_by(&view->port->large_limit, LOG_LEVEL_WARNING, "port %s: a frame of %u bytes is larger than the guest's buffers; raise the guest's MTU or lower the sender's",
			    view->port->name, result->too_large_length);
	}
	if (unlikely(result->no_buffers))
		counter_add(counters, PORT_DROP_TO_GUEST_NO_BUFFERS, result->no_buffers);
	if (unlikely(result->faulted)) {
		counter_add(counters, PORT_DROP_TO_GUEST_FAULT, result->faulted);
		worker_report_fault(w, pair);
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
			worker_count(w, WORKER_LANE_STRAYS, frame_count);
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
		worker_charge(pair, cycles_now() - start);
	}
	return result.delivered;
}

/* Frames that must be cut go out as their segments, in their place among the others. One whose segments would be too long goes not at all. */
static unsigned send_cut(struct worker *w, struct device_end *end, const struct frame *frame, struct too_long *too_long)
{
	unsigned offered = 0, sent = 0;

	if (frame->offload.header_length + frame->offload.gso_size > lane_device_frame_max(end->of.device)) {
		too_long->count++;
		too_long->length = frame->offload.header_length + frame->offload.gso_size;
		return 0;
	}
	if (segment_start(&w->segmenter, frame) != SEGMENT_GOOD)
		return 0;
	while (segment_next(&w->segmenter, &w->segments)) {
		offered += w->segments.count;
		sent += lane_send(end->port, w->segments.list, w->segments.count);
	}
	return sent == offered;
}

static unsigned send_whole(struct device_end *end, struct frame *const *frames, unsigned frame_count, struct too_long *too_long)
{
	const uint64_t before = end->port->dropped_too_long;
	const unsigned sent = lane_send(end->port, frames, frame_count);

	if (unlikely(end->port->dropped_too_long != before)) {
		too_long->count += (uint32_t)(end->port->dropped_too_long - before);
		for (unsigned i = 0; i < frame_count; i++)
			too_long->length = max_u32(too_long->length, frames[i]->length);
	}
	return sent;
}

static unsigned send_on(struct worker *w, struct device_end *end, struct frame *const *frames, unsigned frame_count,
			struct too_long *too_long)
{
	unsigned start = 0, sent = 0;

	if (!end)
		return 0;
	for (unsigned i = 0; i < frame_count; i++) {
		if (likely(frames[i]->offload.gso == FRAME_GSO_NONE))
			continue;
		sent += send_whole(end, frames + start, i - start, too_long);
		sent += send_cut(w, end, frames[i], too_long);
		start = i + 1;
	}
	return sent + send_whole(end, frames + start, frame_count - start, too_long);
}

static unsigned output_to_uplink(void *context, unsigned domain, struct frame *const *frames, unsigned frame_count,
				 struct too_long *too_long)
{
	struct worker *w = context;

	return send_on(w, w->uplink[domain], frames, frame_count, too_long);
}

static unsigned output_to_host(void *context, unsigned domain, struct frame *const *frames, unsigned frame_count,
			       struct too_long *too_long)
{
	struct worker *w = context;

	return send_on(w, w->host_link[domain], frames, frame_count, too_long);
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
		worker_count(w, WORKER_LEARN_DELAYED, 1);
		return;
	}
	w->learn_asked[port->id]++;
	w->last_learn = request;
	w->last_learn_generation = w->generation;
	worker_tell_control(w);
}

const struct switch_output worker_output = {
	.to_guest = output_to_guest,
	.to_uplink = output_to_uplink,
	.to_host = output_to_host,
	.learn = output_learn,
};
