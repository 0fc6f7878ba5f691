/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rings between what a frontend says and what workers use.
 *
 * Theory of operation: a message changes the configuration of a ring only while the ring is quiesced (withdrawn from
 * workers and stopped, its base kept). After each message rings_start() starts every ring that has all it needs, in
 * whatever order the messages came, and rings_publish() shows the change. So a ring that was running when its
 * configuration or the memory changed goes on where it stood.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control/vhost_user_session.h"

static struct queue_pair *pair_of(const struct vhost_user_session *s, unsigned index)
{
	return s->port->pairs[index / 2];
}

static bool is_to_guest(unsigned index)
{
	return index % 2 == 0; /* virtio 1.2, 5.1.2: receiveq1, transmitq1, receiveq2, ... */
}

static const char *direction(unsigned index)
{
	return is_to_guest(index) ? "to_guest" : "from_guest";
}

struct ring *ring_of(const struct vhost_user_session *s, unsigned index)
{
	struct queue_pair *pair = pair_of(s, index);

	return is_to_guest(index) ? &pair->to_guest : &pair->from_guest;
}

static int *kick_fd_of(const struct vhost_user_session *s, unsigned index)
{
	struct queue_pair *pair = pair_of(s, index);

	return is_to_guest(index) ? &pair->to_guest_kick_fd : &pair->from_guest_kick_fd;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* --- descriptors of guests ------------------------------------------------------------------------------------------- */

int check_eventfd(int fd, struct error *error)
{
	if (!fd_is_eventfd(fd))
		return error_set(error, -EINVAL, "the descriptor is no eventfd");
	return 0;
}

/*
 * Making and ending a context waits for all CPUs, tens of milliseconds; so there is one for the process, made when it is
 * first needed and ended with it: the one mutable global here.
 */
static long submit(struct iocb *request)
{
	static aio_context_t aio;
	struct timespec no_wait = { 0 };
	struct io_event event;
	long submitted;

	if (!aio && syscall(SYS_io_setup, 1, &aio))
		return -1;
	submitted = syscall(SYS_io_submit, aio, 1, &request);
	/* It is done already; its slot becomes free. */
	syscall(SYS_io_getevents, aio, 0, 1, &event, &no_wait);
	return submitted;
}

/*
 * Adds 1 to an eventfd of the peer and never blocks. A write could: the peer shares the open file, so it can fill the
 * counter and clear O_NONBLOCK at any moment. Completion of an asynchronous request signals from inside the kernel, which
 * has no such wait; the request polls the descriptor itself, which is always readable or writable.
 */
static void signal_eventfd(struct vhost_user_session *s, int fd)
{
	static const uint64_t one = 1;
	struct iocb request = {
		.aio_lio_opcode = IOCB_CMD_POLL,
		.aio_fildes = (uint32_t)fd,
		.aio_buf = POLLIN | POLLOUT,
		.aio_flags = IOCB_FLAG_RESFD,
		.aio_resfd = (uint32_t)fd,
	};
	struct pollfd writable = { .fd = fd, .events = POLLOUT };

	if (fd < 0 || submit(&request) == 1)
		return;
	/* A kernel or a sandbox without asynchronous requests: as good as it gets. */
	if (poll(&writable, 1, 0) == 1 && !fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) && write(fd, &one, sizeof(one)) < 0)
		session_log_limited(LOG_LEVEL_WARNING, s, TALK_MESSAGE, "cannot signal an eventfd of the frontend: %s", strerror(errno));
}

static void forget_first_kick(struct session_ring *r)
{
	event_source_remove(r->first_kick);
	r->first_kick = NULL;
}

void ring_set_kick(struct vhost_user_session *s, unsigned index, int fd)
{
	struct session_ring *r = &s->rings[index];
	int *kick_fd = kick_fd_of(s, index);

	forget_first_kick(r);
	close_fd(*kick_fd);
	*kick_fd = fd;
	r->kick_known = true;
	r->broken = false;
}

void ring_set_call(struct vhost_user_session *s, unsigned index, int fd)
{
	struct session_ring *r = &s->rings[index];
	int old;

	/* A full counter must not stop a worker. The frontend can undo it: then the watchdog of workers steps in. */
	if (fd >= 0)
		fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
	old = atomic_exchange(&ring_of(s, index)->call_fd, fd);
	if (old >= 0) {
		if (r->offered)
			s->ops->synchronize(s->context);
		close(old);
	}
	/* What was published between the frontend's change and ours called the old descriptor, where nobody looks. */
	if (r->started)
		signal_eventfd(s, fd);
}

void ring_set_err(struct vhost_user_session *s, unsigned index, int fd)
{
	close_fd(s->rings[index].err_fd);
	s->rings[index].err_fd = fd;
}

/* --- stop ------------------------------------------------------------------------------------------------------------ */

static void stop_ring(struct vhost_user_session *s, unsigned index)
{
	struct session_ring *r = &s->rings[index];

	forget_first_kick(r);
	if (!r->started)
		return;
	/* Told to the frontend or not: a frontend that stops the ring at once is no better. */
	s->blocked |= atomic_load(&ring_of(s, index)->fault) == RING_FAULT_CALL_BLOCKED;
	r->base = ring_stop(ring_of(s, index));
	r->has_base = true;
	r->started = false;
}

static unsigned range_end(const struct vhost_user_session *s, int index)
{
	return index < 0 ? s->ring_count : (unsigned)index + 1;
}

void rings_withdraw(struct vhost_user_session *s, int index)
{
	bool offered = false;

	for (unsigned i = index < 0 ? 0 : (unsigned)index; i < range_end(s, index); i++) {
		offered |= s->rings[i].offered;
		s->rings[i].offered = false;
	}
	if (!offered)
		return;
	s->ops->withdraw(s->context, index);
	s->changed = true;
	/* No worker is left to make the calls that were put off. */
	for (unsigned i = index < 0 ? 0 : (unsigned)index; i < range_end(s, index); i++)
		if (s->rings[i].started && ring_owes_call(ring_of(s, i)))
			signal_eventfd(s, atomic_load(&ring_of(s, i)->call_fd));
}

void rings_quiesce(struct vhost_user_session *s, int index)
{
	rings_withdraw(s, index);
	for (unsigned i = index < 0 ? 0 : (unsigned)index; i < range_end(s, index); i++)
		stop_ring(s, i);
}

uint16_t ring_take_base(struct vhost_user_session *s, unsigned index)
{
	struct session_ring *r = &s->rings[index];
	int *kick_fd = kick_fd_of(s, index);

	/* It starts again with the next SET_VRING_KICK. The call descriptor stays: frontends may leave it in place. */
	close_fd(*kick_fd);
	*kick_fd = -1;
	r->kick_known = false;
	r->broken = false;
	r->has_base = true;
	return r->base;
}

static void init_ring(struct vhost_user_session *s, unsigned index, int err_fd)
{
	struct session_ring *r = &s->rings[index];

	*r = (struct session_ring){ .err_fd = err_fd, .session = s };
	*kick_fd_of(s, index) = -1;
}

void rings_init(struct vhost_user_session *s)
{
	s->ring_count = 2u * s->port->queue_pairs;
	for (unsigned i = 0; i < s->ring_count; i++) {
		ring_init(ring_of(s, i));
		init_ring(s, i, -1);
	}
}

void rings_reset(struct vhost_user_session *s, bool descriptors)
{
	for (unsigned i = 0; i < s->ring_count; i++) {
		ring_take_base(s, i);
		if (descriptors) {
			ring_set_err(s, i, -1);
			ring_set_call(s, i, -1);
		}
		init_ring(s, i, s->rings[i].err_fd);
	}
}

/* --- start ----------------------------------------------------------------------------------------------------------- */

bool ring_enabled(const struct vhost_user_session *s, unsigned index)
{
	enum ring_enable enable = s->rings[index].enable;

	if (enable == RING_ENABLE_DEFAULT)
		return s->has_features && !(s->features >> VHOST_USER_F_PROTOCOL_FEATURES & 1);
	return enable == RING_ENABLE_ON;
}

static void on_first_kick(void *context, int fd, uint32_t events)
{
	struct session_ring *r = context;
	struct vhost_user_session *s = r->session;

	forget_first_kick(r);
	r->base = 0;
	r->has_base = true;
	rings_start(s);
	rings_publish(s);
}

/*
 * A base may be left out (it is 0 then), or come after all else; nothing in the messages tells which. By the specification
 * a ring starts with the first kick, and by then everything has been said.
 */
static bool wait_for_first_kick(struct vhost_user_session *s, unsigned index)
{
	struct session_ring *r = &s->rings[index];
	int kick_fd = *kick_fd_of(s, index);
	struct error error;

	if (kick_fd < 0)
		return false;
	if (!r->first_kick)
		r->first_kick = event_loop_add(s->loop, kick_fd, EPOLLIN, on_first_kick, r, &error);
	return r->first_kick;
}

static void start_ring(struct vhost_user_session *s, unsigned index)
{
	struct session_ring *r = &s->rings[index];
	const struct ring_setup setup = {
		.memory = s->memory,
		.desc_user_address = r->desc,
		.avail_user_address = r->avail,
		.used_user_address = r->used,
		.features = s->features,
		.size = r->size,
		.base = r->base,
	};
	struct error error = { 0 };
	int code;

	if (!r->has_base && wait_for_first_kick(s, index))
		return;
	forget_first_kick(r);
	if (memory_is_unshared(s, r->desc) || memory_is_unshared(s, r->avail) || memory_is_unshared(s, r->used)) {
		/* Said when it was found out. */
		if (!r->misplaced)
			signal_eventfd(s, r->err_fd);
		r->misplaced = true;
		return;
	}
	code = ring_start(ring_of(s, index), &setup, &error);
	if (!code) {
		r->started = true;
		r->misplaced = false;
		/*
		 * An earlier daemon may have died between moving the used index and calling, or have called a descriptor that went with its
		 * session; the guest would wait for ever for what it has got already. One call too many costs nothing.
		 */
		signal_eventfd(s, atomic_load(&ring_of(s, index)->call_fd));
		memory_look_at_ring(s, index);
		session_log(LOG_LEVEL_DEBUG, s, "ring %u (%s) starts at %u, %u entries", index, direction(index), r->base, r->size);
		return;
	}
	/* Not (yet) in guest memory: the region may still come. Anything else stays wrong. */
	if (code != -EFAULT)
		r->broken = true;
	if (!r->misplaced) {
		r->misplaced = true;
		session_note_fault(s, "ring %u (%s) cannot start: %s", index, direction(index), error.text);
		signal_eventfd(s, r->err_fd);
	}
}

void rings_start(struct vhost_user_session *s)
{
	if (!s->memory || !s->has_features)
		return;
	for (unsigned i = 0; i < s->ring_count; i++) {
		struct session_ring *r = &s->rings[i];

		if (!r->started && !r->broken && r->kick_known && r->has_addresses && r->size)
			start_ring(s, i);
		if (r->offered || !vhost_user_ring_active(s, i))
			continue;
		r->offered = s->changed = true;
		if (!s->was_serving)
			socket_calm(s);
		s->was_serving = true;
	}
}

void rings_publish(struct vhost_user_session *s)
{
	if (!s->changed)
		return;
	s->changed = false;
	s->ops->publish(s->context);
}

/* --- faults ---------------------------------------------------------------------------------------------------------- */

bool rings_blocked(const struct vhost_user_session *s)
{
	bool blocked = s->blocked;

	for (unsigned i = 0; i < s->ring_count; i++)
		blocked |= s->rings[i].started && atomic_load(&ring_of(s, i)->fault) == RING_FAULT_CALL_BLOCKED;
	return blocked;
}

void rings_check_faults(struct vhost_user_session *s)
{
	for (unsigned i = 0; i < s->ring_count; i++) {
		struct session_ring *r = &s->rings[i];
		int fault = r->started ? atomic_load(&ring_of(s, i)->fault) : RING_FAULT_NONE;

		if (fault <= RING_FAULT_NONE || fault >= RING_FAULT_COUNT)
			continue;
		rings_quiesce(s, (int)i);
		r->broken = true;
		session_note_fault(s, "ring %u (%s) faulted: %s; it stands still until the guest resets its device", i, direction(i),
				   ring_fault_names[fault]);
		signal_eventfd(s, r->err_fd);
	}
	rings_publish(s);
}
