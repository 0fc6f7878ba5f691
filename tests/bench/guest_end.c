/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "ends.h"

static struct frontend_pair *pair_of(struct end *end)
{
	return container_of(end, struct guest_end, end)->pair;
}

static unsigned guest_receive(struct end *end, struct packet *packets, unsigned max)
{
	struct frontend_ring *r = &pair_of(end)->to_guest;
	const unsigned count = min_u32(frontend_ready(r), max);

	for (unsigned i = 0; i < count; i++) {
		const uint16_t id = frontend_take(r, &packets[i].length);

		packets[i].data = frontend_received(r, id, &packets[i].length);
	}
	return count;
}

/* All that was taken is offered again. */
static void guest_release(struct end *end)
{
	struct frontend_ring *r = &pair_of(end)->to_guest;

	r->avail_next = (uint16_t)(r->used_seen + r->size);
	frontend_publish(r);
}

static uint8_t *guest_reserve(struct end *end)
{
	struct frontend_ring *r = &pair_of(end)->from_guest;

	if (!frontend_room(r))
		frontend_reap(r);
	return frontend_room(r) ? frontend_frame_ahead(r, 0) : NULL;
}

static void guest_offer(struct end *end, uint32_t length)
{
	frontend_offer(&pair_of(end)->from_guest, length);
}

static void guest_flush(struct end *end)
{
	frontend_publish(&pair_of(end)->from_guest);
}

static void guest_wait(struct end *end, bool for_room)
{
	const struct guest_end *guest = container_of(end, struct guest_end, end);
	struct frontend_pair *pair = guest->pair;
	struct pollfd call = {.fd = end->wake_fd, .events = POLLIN};
	uint64_t calls;

	if (guest->poll) {
		cpu_pause();
		return;
	}
	if (frontend_arm(&pair->to_guest, 1))
		return;
	/* As Linux' driver does: not for the first buffer that comes back, but when most have. */
	if (for_room) {
		const uint16_t under_way = (uint16_t)(pair->from_guest.avail_next - pair->from_guest.used_seen);

		if (frontend_arm(&pair->from_guest, (uint16_t)(under_way - under_way / 4)))
			return;
	}
	/* The backend may have made the eventfd non-blocking for itself, and with it for us: read() alone might not wait. */
	poll(&call, 1, -1);
	if (read(end->wake_fd, &calls, sizeof(calls)) < 0 && errno != EAGAIN && errno != EINTR)
		abort();
	frontend_disarm(&pair->to_guest);
	frontend_disarm(&pair->from_guest);
}

void guest_end_init(struct guest_end *end, struct frontend_pair *pair, bool poll)
{
	static const struct end_ops ops = {
		.receive = guest_receive,
		.release = guest_release,
		.reserve = guest_reserve,
		.offer = guest_offer,
		.flush = guest_flush,
		.wait = guest_wait,
	};

	end->end.ops = &ops;
	end->pair = pair;
	end->poll = poll;
}
