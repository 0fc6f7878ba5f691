/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When guests are called (virtio 1.2, 2.7.7: "used buffer notification"). A call wakes two threads, the backend's and the guest's CPU, and
 * interrupts what that does: it costs more than most frames.
 *
 * to_guest: at the end of the round, one call for all that the round delivered.
 * from_guest: buffers that come back are waited for by nobody while the guest has others, and a driver looks for them by itself whenever
 * it sends or receives. So the call is owed for a while, and when its time comes the guest mostly does not want it any more (event
 * index, 2.7.10). It comes at once when a good part of the ring is owed: a guest that sends many frames may have stopped for them.
 * What is owed is the ring's own state (ring_owes_call), so it moves with the pair; control pays it when the ring stops.
 */
#include "datapath/burst_lock.h"
#include "datapath/worker_private.h"

void worker_flush_calls(struct worker *w)
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
			worker_report_fault(w, pair);
	}
	w->dirty_count = 0;
}

void worker_call_after_round(struct worker *w, struct queue_pair *pair)
{
	for (uint32_t i = w->dirty_count; i-- > 0;)
		if (w->dirty[i] == pair)
			return;
	if (w->dirty_count == DIRTY_MAX)
		worker_flush_calls(w);
	w->dirty[w->dirty_count++] = pair;
}

void worker_call_later(struct worker *w, struct queue_pair *pair)
{
	struct ring *ring = &pair->from_guest;

	if (!pair->owed_since_ns)
		pair->owed_since_ns = w->round_start_ns;
	if (ring_owes_call(ring) < ring->size / CALL_OWED_SHARE && w->round_start_ns - pair->owed_since_ns < CALL_OWED_NS)
		return;
	pair->owed_since_ns = 0;
	ring_call(ring);
}

uint64_t worker_call_in_ns(const struct worker *w, struct queue_pair *pair)
{
	uint64_t waited;

	if (!ring_owes_call(&pair->from_guest) || ring_call_unwanted(&pair->from_guest)) {
		pair->owed_since_ns = 0;
		return UINT64_MAX;
	}
	waited = w->round_start_ns - pair->owed_since_ns;
	return waited < CALL_OWED_NS ? CALL_OWED_NS - waited : 1;
}
