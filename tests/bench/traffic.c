/* SPDX-License-Identifier: BSD-2-Clause */
#include "traffic.h"

#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ACKNOWLEDGEMENT_LENGTH 60
#define SEND_BURST 32
#define STALL_LOOKS 4 /* looks without progress after which a flow starts again */

/* --- frames ---------------------------------------------------------------------------------------------------------- */

static void put16(uint8_t *to, unsigned value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
}

/* UDP over IPv4, one address per guest: hashes to a flow as any other, and every stack would take it. */
static void make_head(uint8_t *head, const uint8_t *from, const uint8_t *to, unsigned length, unsigned source, unsigned destination)
{
	uint32_t sum = 0;

	memset(head, 0, HEAD_LENGTH);
	memcpy(head, to, 6);
	memcpy(head + 6, from, 6);
	put16(head + 12, 0x0800);
	head[14] = 0x45;
	put16(head + 16, length - 14);
	memcpy(head + 22, "\x40\x11", 2); /* time to live, UDP */
	memcpy(head + 26, "\xc6\x12", 2); /* 198.18.0.0/15 is there for benches (RFC 2544) */
	memcpy(head + 28, from + 4, 2);
	memcpy(head + 30, "\xc6\x12", 2);
	memcpy(head + 32, to + 4, 2);
	put16(head + 34, source);
	put16(head + 36, destination);
	put16(head + 38, length - 34);
	for (unsigned i = 14; i < 34; i += 2)
		sum += (uint32_t)head[i] << 8 | head[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	put16(head + 24, ~(sum + (sum >> 16)));
}

void traffic_add_flow(struct traffic *t, uint16_t from, const uint8_t from_mac[6], const uint8_t to_mac[6])
{
	struct flow *flow = &t->flows[t->flow_count];
	const unsigned port = 10000 + t->flow_count++;
	const bool stream = t->work.kind == WORK_STREAM;

	memset(flow, 0, sizeof(*flow));
	make_head(flow->forth, from_mac, to_mac, t->work.length, port, 20000);
	make_head(flow->back, to_mac, from_mac, stream ? ACKNOWLEDGEMENT_LENGTH : t->work.length, 20000, port);
	flow->from = from;
	flow->answered_on = -1;
}

/* Does a flow stay on one queue pair, and with it on one worker? Asked only of guests that have several. */
static void note_pair(struct end *end, struct end_counters *counters, bool known, bool same)
{
	if (end->shared && known)
		*(same ? &counters->home : &counters->astray) += 1;
}

/* --- sending ---------------------------------------------------------------------------------------------------------- */

static void lock(struct end *end)
{
	if (!end->shared)
		return;
	while (atomic_exchange_explicit(&end->locked, true, memory_order_acquire))
		sched_yield();
}

static void unlock(struct end *end)
{
	if (end->shared)
		atomic_store_explicit(&end->locked, false, memory_order_release);
}

/* Return: false if there is no room. */
static bool send_frame(struct end *end, const uint8_t *head, const struct stamp *stamp, uint32_t length)
{
	uint8_t *to = end->ops->reserve(end);

	if (!to)
		return false;
	memcpy(to, head, HEAD_LENGTH);
	memcpy(to + STAMP_AT, stamp, sizeof(*stamp));
	end->ops->offer(end, length);
	return true;
}

static bool send_next(struct end *end, unsigned number, enum packet_kind kind, uint64_t time_ns)
{
	const struct traffic *t = end->traffic;
	struct flow *flow = &end->traffic->flows[number];
	const struct stamp stamp = {
		.flow = (uint16_t)number,
		.kind = (uint8_t)kind,
		.epoch = t->epoch,
		.sequence = flow->next,
		.time_ns = time_ns,
	};

	if (!send_frame(end, flow->forth, &stamp, t->work.length))
		return false;
	flow->next++;
	return true;
}

static void flush(struct end *end)
{
	lock(end);
	end->ops->flush(end);
	unlock(end);
}

/* --- request-response ------------------------------------------------------------------------------------------------- */

static void begin_requests(struct end *end, unsigned number)
{
	struct flow *flow = &end->traffic->flows[number];

	lock(end);
	flow->base = flow->next;
	for (uint32_t i = 0; i < end->traffic->work.in_flight; i++)
		send_next(end, number, PACKET_REQUEST, now_ns());
	end->ops->flush(end);
	unlock(end);
}

/* An answer came; the next request leaves by the end on which the flow was begun, whichever got the answer. */
static void on_response(struct end *end, struct end_counters *counters, const struct stamp *stamp)
{
	struct flow *flow = &end->traffic->flows[stamp->flow];
	struct end *from = end->siblings[flow->from - end->sibling_first];
	const uint64_t now = now_ns();

	note_pair(end, counters, true, from == end);
	lock(from);
	if ((int32_t)(stamp->sequence - flow->base) >= 0) {
		atomic_fetch_add_explicit(&flow->progress, 1, memory_order_relaxed);
		if (!send_next(from, stamp->flow, PACKET_REQUEST, now))
			counters->no_room++;
		if (from != end)
			from->ops->flush(from);
		counters->transactions++;
		if (atomic_load_explicit(&end->traffic->measuring, memory_order_relaxed))
			histogram_add(&counters->latency, now - stamp->time_ns);
	}
	unlock(from);
}

static void on_request(struct end *end, struct end_counters *counters, const struct stamp *stamp)
{
	struct flow *flow = &end->traffic->flows[stamp->flow];
	const int before = atomic_exchange_explicit(&flow->answered_on, (int)end->number, memory_order_relaxed);
	struct stamp answer = *stamp;

	note_pair(end, counters, before >= 0, before == (int)end->number);
	answer.kind = PACKET_RESPONSE;
	lock(end);
	if (!send_frame(end, flow->back, &answer, end->traffic->work.length))
		counters->no_room++;
	unlock(end);
}

/* --- streams ---------------------------------------------------------------------------------------------------------- */

/* Return: frames sent; *for_room if only the lack of room keeps it from sending more. */
static unsigned send_streams(struct end *end, bool *for_room)
{
	const uint32_t window = end->traffic->work.in_flight;
	unsigned sent = 0;

	*for_room = false;
	for (uint32_t i = 0; i < end->flow_count; i++) {
		struct flow *flow = &end->traffic->flows[end->flows[i]];
		const uint32_t open = window - min_u32(flow->next - flow->base, window);

		for (uint32_t n = min_u32(open, SEND_BURST); n; n--) {
			if (!send_next(end, end->flows[i], PACKET_DATA, 0)) {
				*for_room = true;
				return sent;
			}
			sent++;
		}
	}
	return sent;
}

static bool acknowledge(struct end *end, unsigned number)
{
	struct flow *flow = &end->traffic->flows[number];
	const struct stamp stamp = {
		.flow = (uint16_t)number,
		.kind = PACKET_ACKNOWLEDGEMENT,
		.epoch = end->traffic->epoch,
		.sequence = flow->expected,
	};

	if (!send_frame(end, flow->back, &stamp, ACKNOWLEDGEMENT_LENGTH))
		return false;
	flow->unacknowledged = 0;
	flow->answered_on = (int)end->number;
	return true;
}

static void on_data(struct end *end, struct end_counters *counters, const struct stamp *stamp, uint32_t length)
{
	struct flow *flow = &end->traffic->flows[stamp->flow];
	const int32_t ahead = (int32_t)(stamp->sequence - flow->expected);

	counters->frames++;
	counters->bytes += length;
	note_pair(end, counters, flow->answered_on >= 0, flow->answered_on == (int)end->number);
	if (ahead < 0) {
		counters->reordered++;
		return;
	}
	counters->lost += (uint32_t)ahead;
	flow->expected = stamp->sequence + 1;
	if (!flow->unacknowledged++ && end->owed_count < FLOWS_MAX)
		end->owed[end->owed_count++] = stamp->flow;
	if (flow->unacknowledged >= max_u32(end->traffic->work.in_flight / 4, 1))
		acknowledge(end, stamp->flow);
}

/* Before going to sleep nothing may be owed: the sender could be waiting for it. Return: how many were sent. */
static unsigned settle_debts(struct end *end)
{
	unsigned sent = 0;

	for (uint32_t i = 0; i < end->owed_count; i++)
		if (end->traffic->flows[end->owed[i]].unacknowledged)
			sent += acknowledge(end, end->owed[i]);
	end->owed_count = 0;
	return sent;
}

static void on_acknowledgement(struct end *end, struct end_counters *counters, const struct stamp *stamp)
{
	struct flow *flow = &end->traffic->flows[stamp->flow];

	note_pair(end, counters, true, flow->from == end->number);
	if ((int32_t)(stamp->sequence - flow->base) <= 0)
		return;
	flow->base = stamp->sequence;
	atomic_store_explicit(&flow->progress, stamp->sequence, memory_order_relaxed);
	/* The sender sleeps on its own eventfd. */
	if (flow->from != end->number)
		eventfd_write(end->siblings[flow->from - end->sibling_first]->wake_fd, 1);
}

/* --- an end's thread -------------------------------------------------------------------------------------------------- */

static void handle(struct end *end, struct end_counters *counters, const struct packet *packet)
{
	const struct traffic *t = end->traffic;
	struct stamp stamp;

	if (packet->length < HEAD_LENGTH)
		return;
	memcpy(&stamp, packet->data + STAMP_AT, sizeof(stamp));
	if (stamp.epoch != t->epoch || stamp.flow >= t->flow_count)
		return;
	switch ((enum packet_kind)stamp.kind) {
	case PACKET_REQUEST: on_request(end, counters, &stamp); break;
	case PACKET_RESPONSE: on_response(end, counters, &stamp); break;
	case PACKET_DATA: on_data(end, counters, &stamp, packet->length); break;
	case PACKET_ACKNOWLEDGEMENT: on_acknowledgement(end, counters, &stamp); break;
	}
}

static unsigned receive(struct end *end, struct end_counters *counters)
{
	struct packet packets[PACKETS_MAX];
	const unsigned count = end->ops->receive(end, packets, PACKETS_MAX);

	for (unsigned i = 0; i < count; i++)
		handle(end, counters, &packets[i]);
	if (count)
		end->ops->release(end);
	return count;
}

static void restart_stalled(struct end *end, struct end_counters *counters)
{
	for (uint32_t i = 0; i < end->flow_count; i++) {
		struct flow *flow = &end->traffic->flows[end->flows[i]];

		if (!atomic_load_explicit(&flow->stalled, memory_order_relaxed))
			continue;
		atomic_store(&flow->stalled, false);
		counters->restarts++;
		if (end->traffic->work.kind == WORK_REQUEST_RESPONSE)
			begin_requests(end, end->flows[i]);
		else
			flow->base = flow->next;
	}
}

static void run(struct end *end)
{
	struct traffic *t = end->traffic;
	struct end_counters *counters = &t->counters[end->number];
	const bool stream = t->work.kind == WORK_STREAM;
	bool for_room = false;

	for (uint32_t i = 0; i < end->flow_count && !stream; i++)
		begin_requests(end, end->flows[i]);
	while (!atomic_load_explicit(&t->stop, memory_order_relaxed)) {
		unsigned done = stream ? send_streams(end, &for_room) : 0;

		done += receive(end, counters);
		if (!done && stream)
			done = settle_debts(end);
		if (done) {
			flush(end);
			continue;
		}
		end->ops->wait(end, for_room);
		counters->sleeps++;
		restart_stalled(end, counters);
	}
	flush(end);
}

void traffic_serve(struct end *end)
{
	struct traffic *t = end->traffic;

	for (;;) {
		pthread_barrier_wait(&t->barrier);
		if (t->work.kind == WORK_END)
			return;
		end->flow_count = end->owed_count = 0;
		for (uint32_t i = 0; i < t->flow_count; i++)
			if (t->flows[i].from == end->number)
				end->flows[end->flow_count++] = (uint16_t)i;
		run(end);
		pthread_barrier_wait(&t->barrier);
	}
}

void traffic_look_after(struct traffic *t, const int *wake_fds)
{
	for (uint32_t i = 0; i < t->flow_count; i++) {
		struct flow *flow = &t->flows[i];
		const uint32_t progress = atomic_load_explicit(&flow->progress, memory_order_relaxed);

		flow->stall_looks = progress == flow->progress_seen ? flow->stall_looks + 1 : 0;
		flow->progress_seen = progress;
		if (flow->stall_looks < STALL_LOOKS)
			continue;
		flow->stall_looks = 0;
		atomic_store(&flow->stalled, true);
		eventfd_write(wake_fds[flow->from], 1);
	}
}
