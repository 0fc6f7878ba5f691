/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A vhost-user session's life. See vhost_user.h for the states and vhost_user_session.h for who does what.
 */
#include "control/vhost_user.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/util.h"
#include "control/vhost_user_session.h"

#define TURN_NS 2000000u /* then the loop looks after others, too; a message may take a publish or two */
#define FAULT_REPEAT_NS 60000000000ull
#define AT_ONCE_NS 1000000000ull

const char *const vhost_user_state_names[] = {
	[VHOST_USER_CLOSED] = "closed",		[VHOST_USER_WAITING] = "waiting", [VHOST_USER_CONNECTED] = "connected",
	[VHOST_USER_NEGOTIATED] = "negotiated", [VHOST_USER_SERVING] = "serving",
};
_Static_assert(ARRAY_SIZE(vhost_user_state_names) == VHOST_USER_STATE_COUNT, "one name a state");

/* --- a connection ---------------------------------------------------------------------------------------------------- */

static void on_message(void *context, int fd, uint32_t events)
{
	struct vhost_user_session *s = context;

	const uint64_t end = now_ns() + TURN_NS;

	do {
		struct error error = { 0 };
		int code;

		if (session_must_wait(s))
			break;
		code = vhost_user_receive(s->fd, &s->reader, &error);
		if (code == 0)
			break;
		if (code == -ECONNRESET) {
			session_end(s, false, "the frontend disconnected");
			return;
		}
		if (code < 0) {
			session_end(s, true, "%s", error.text);
			return;
		}
		if (!dispatch_message(s, &s->reader.message))
			return;
	} while (now_ns() < end);
	rings_publish(s);
}

static pid_t peer_pid(int fd)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 ? 0 : peer.pid;
}

/* That a storm is on was said when it began. */
static enum log_level life_level(const struct vhost_user_session *s)
{
	return s->storm_delay_ms ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO;
}

int session_listen(struct vhost_user_session *s, struct error *error)
{
	s->connection = event_loop_add(s->loop, s->fd, EPOLLIN, on_message, s, error);
	return s->connection ? 0 : error->code;
}

void session_begin(struct vhost_user_session *s, int fd)
{
	struct error error;

	s->fd = fd;
	s->begun_ns = now_ns();
	s->was_serving = false;
	s->told_pairs_ns = 0;
	s->offered = features_on_offer(s);
	if (session_listen(s, &error)) {
		session_end(s, true, "%s", error.text);
		return;
	}
	s->peer_pid = peer_pid(fd);
	s->served++;
	session_log_limited(life_level(s), s, TALK_BEGIN, "frontend connected (process %d)", s->peer_pid);
}

void session_note_fault(struct vhost_user_session *s, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(s->last_fault, sizeof(s->last_fault), format, arguments);
	va_end(arguments);
	s->last_fault_ns = now_ns();
	if (!strcmp(s->last_fault, s->logged_fault) && s->last_fault_ns - s->logged_fault_ns < FAULT_REPEAT_NS) {
		s->faults_held_back++;
		return;
	}
	if (!log_limit_pass(&s->limits[TALK_FAULT]))
		return;
	if (s->faults_held_back)
		session_log(LOG_LEVEL_INFO, s, "%u times again: %s", s->faults_held_back, s->logged_fault);
	session_log(LOG_LEVEL_WARNING, s, "%s", s->last_fault);
	memcpy(s->logged_fault, s->last_fault, sizeof(s->logged_fault));
	s->logged_fault_ns = s->last_fault_ns;
	s->faults_held_back = 0;
}

/* Everything that came by the connection goes, in the order in which it is used: workers, rings, descriptors, memory. */
static void release(struct vhost_user_session *s)
{
	rings_quiesce(s, -1);
	rings_reset(s, true);
	memory_forget(s);
	guest_memory_free(s->memory_next);
	guest_memory_free(s->memory);
	s->memory_next = s->memory = NULL;
	s->removed_count = 0;
	vhost_user_reader_init(&s->reader);
	event_source_remove(s->connection);
	s->connection = NULL;
	session_hang_up(s, s->fd);
	s->fd = -1;
	s->peer_pid = 0;
	s->has_features = false;
	s->features = s->protocol_features = 0;
	s->status = 0;
	s->guest_mtu = 0;
}

void session_end(struct vhost_user_session *s, bool fault, const char *format, ...)
{
	char reason[sizeof(s->last_fault)];
	va_list arguments;
	bool futile;

	va_start(arguments, format);
	vsnprintf(reason, sizeof(reason), format, arguments);
	va_end(arguments);
	if (fault)
		session_note_fault(s, "session ended: %s", reason);
	else
		session_log_limited(life_level(s), s, TALK_END, "session ended: %s", reason);
	/* QEMU asks how many there are, finds them too few, and says so only where its own errors go. */
	if (!fault && s->told_pairs_ns && now_ns() - s->told_pairs_ns < AT_ONCE_NS)
		session_note_fault(s, "the frontend left after being told of %u queue pair%s; it probably wants more: raise queues= of the port, "
				   "or lower queues= of QEMU's -netdev", s->port->queue_pairs, s->port->queue_pairs == 1 ? "" : "s");
	futile = !s->was_serving && now_ns() - s->begun_ns < AT_ONCE_NS;
	release(s);
	rings_publish(s);
	if (s->blocked)
		socket_note_blocked(s);
	s->blocked = false;
	if (futile)
		socket_note_futile(s);
	socket_wait(s);
}

/* --- open, close ----------------------------------------------------------------------------------------------------- */

struct vhost_user_session *vhost_user_open(struct event_loop *loop, const struct config_port *config, unsigned mtu, uint64_t offloads,
					   struct port *port, const struct vhost_user_ops *ops, void *context, struct error *error)
{
	struct vhost_user_session *s = calloc(1, sizeof(*s));

	if (!s) {
		error_set(error, -ENOMEM, "port %s: out of memory; free some memory", config->name);
		return NULL;
	}
	s->loop = loop;
	s->ops = ops;
	s->context = context;
	s->port = port;
	s->role = config->role;
	s->mtu = mtu;
	s->offloads = offloads;
	s->listen_fd = s->spare_fd = s->fd = -1;
	copy_string(s->socket_path, sizeof(s->socket_path), config->socket);
	s->reaper = reaper_create();
	if (!s->reaper) {
		error_set(error, -ENOMEM, "port %s: out of memory; free some memory", config->name);
		free(s);
		return NULL;
	}
	s->reader.message.reaper = s->reaper;
	rings_init(s);
	if (vhost_user_find_group(config, &s->group, error) || socket_open(s, error)) {
		reaper_free(s->reaper);
		free(s);
		return NULL;
	}
	return s;
}

void vhost_user_close(struct vhost_user_session *s)
{
	if (!s)
		return;
	socket_close(s);
	session_hold_end(s);
	if (s->fd >= 0) {
		session_log(LOG_LEVEL_INFO, s, "session ended: the port is closed");
		release(s);
		rings_publish(s);
	}
	reaper_free(s->reaper);
	free(s);
}

void vhost_user_set_offloads(struct vhost_user_session *s, uint64_t features)
{
	s->offloads = features;
}

void vhost_user_set_mtu(struct vhost_user_session *s, unsigned mtu)
{
	s->mtu = mtu;
}

/* --- faults ---------------------------------------------------------------------------------------------------------- */

void vhost_user_check_faults(struct vhost_user_session *s)
{
	/* First, so that a fault of the same pair that comes after our look is told again. */
	for (unsigned i = 0; i < s->port->queue_pairs; i++)
		atomic_exchange(&s->port->pairs[i]->fault_reported, false);
	if (s->memory && guest_memory_faulted(s->memory)) {
		session_end(s, true, "guest memory file became shorter; whoever owns it must not truncate it while the guest runs");
		return;
	}
	if (s->fd >= 0 && rings_blocked(s)) {
		session_end(s, true, "a call descriptor was full and its O_NONBLOCK taken off, so that it held up the worker that called; no guest needs "
				     "that: end the process that does it");
		return;
	}
	rings_check_faults(s);
}

/* --- for display ----------------------------------------------------------------------------------------------------- */

bool vhost_user_ring_started(const struct vhost_user_session *s, unsigned ring)
{
	return s && ring < s->ring_count && s->rings[ring].started;
}

bool vhost_user_ring_enabled(const struct vhost_user_session *s, unsigned ring)
{
	return s && ring < s->ring_count && ring_enabled(s, ring);
}

bool vhost_user_ring_active(const struct vhost_user_session *s, unsigned ring)
{
	return vhost_user_ring_started(s, ring) && ring_enabled(s, ring) && atomic_load(&ring_of(s, ring)->fault) == RING_FAULT_NONE;
}

enum vhost_user_state vhost_user_state_of(const struct vhost_user_session *s)
{
	if (!s)
		return VHOST_USER_CLOSED;
	if (s->fd < 0)
		return VHOST_USER_WAITING;
	if (!s->has_features)
		return VHOST_USER_CONNECTED;
	for (unsigned i = 0; i < s->ring_count; i++)
		if (vhost_user_ring_active(s, i))
			return VHOST_USER_SERVING;
	return VHOST_USER_NEGOTIATED;
}

uint64_t vhost_user_features(const struct vhost_user_session *s)
{
	return s->features;
}

uint64_t vhost_user_protocol_features(const struct vhost_user_session *s)
{
	return s->protocol_features;
}

pid_t vhost_user_peer_pid(const struct vhost_user_session *s)
{
	return s->peer_pid;
}

uint64_t vhost_user_sessions_served(const struct vhost_user_session *s)
{
	return s->served;
}

const char *vhost_user_last_fault(const struct vhost_user_session *s)
{
	return s->last_fault;
}

uint64_t vhost_user_last_fault_ns(const struct vhost_user_session *s)
{
	return s->last_fault_ns;
}

unsigned vhost_user_guest_mtu(const struct vhost_user_session *s)
{
	return s->guest_mtu;
}

const struct guest_memory *vhost_user_memory(const struct vhost_user_session *s)
{
	return s->memory;
}
