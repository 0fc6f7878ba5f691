/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One message at a time: judged by its row, rings quiesced as the row says, carried out, shown to the workers, answered.
 *
 * A message that is refused gets a non-zero answer if the frontend asked for one (REPLY_ACK) and the session goes on; a
 * frontend that did not ask has no other way to learn of it than the end of the connection. Requests that are known but not
 * supported, and need no answer, are passed over.
 */
#include <errno.h>
#include <string.h>

#include "control/vhost_user_session.h"

static bool ack_negotiated(const struct vhost_user_session *s)
{
	return s->protocol_features >> VHOST_USER_PROTOCOL_F_REPLY_ACK & 1;
}

static int judge(struct vhost_user_session *s, const struct request_row *row, struct vhost_user_message *m, struct error *error)
{
	if (!row)
		return error_set(error, -EOPNOTSUPP, "a request of this number does not exist");
	if (!row->act)
		return error_set(error, -EOPNOTSUPP, "not supported, and not offered");
	if (m->header.size < row->payload_min || m->header.size > row->payload_max)
		return error_set(error, -EPROTO, "%u bytes of payload, %u to %u are right", m->header.size, row->payload_min, row->payload_max);
	if (m->fd_count < row->fds_min || m->fd_count > row->fds_max)
		return error_set(error, -EPROTO, "%u descriptors, %u to %u are right", m->fd_count, row->fds_min, row->fds_max);
	return row->check ? row->check(s, m, error) : 0;
}

static int quiesced_ring(const struct vhost_user_message *m)
{
	/* All payloads that name a ring do so in their first 32 bits, some with flags above the number. */
	return (int)(m->payload.state.index & VHOST_USER_VRING_INDEX_MASK);
}

static void carry_out(struct vhost_user_session *s, const struct request_row *row, struct vhost_user_message *m)
{
	if (row->quiesce == QUIESCE_RING)
		rings_quiesce(s, quiesced_ring(m));
	else if (row->quiesce == QUIESCE_ALL)
		rings_quiesce(s, -1);
	row->act(s, m);
	rings_start(s);
	memory_watch(s);
}

static bool answer(struct vhost_user_session *s, struct vhost_user_message *m)
{
	int code;

	/* Whoever hears the answer may rely on what it asked for being in force. */
	rings_publish(s);
	m->header.flags = VHOST_USER_VERSION | VHOST_USER_FLAG_REPLY;
	code = vhost_user_send(s->fd, m);
	if (code == -EAGAIN)
		session_end(s, true, "the frontend does not read its answers; the socket's buffer is full");
	else if (code)
		session_end(s, false, "cannot answer %s: %s", vhost_user_request_name(m->header.request), strerror(-code));
	return !code;
}

static bool answer_ack(struct vhost_user_session *s, struct vhost_user_message *m, uint64_t result)
{
	m->header.size = sizeof(m->payload.u64);
	m->payload.u64 = result;
	return answer(s, m);
}

/* Return: false if it ended the session. */
static bool refuse(struct vhost_user_session *s, const struct request_row *row, struct vhost_user_message *m, bool wants_ack,
		   const struct error *error)
{
	const uint32_t request = m->header.request;
	const char *name = vhost_user_request_name(request);

	if (wants_ack) {
		session_note_fault(s, "message %u (%s) refused: %s", request, name, error->text);
		return answer_ack(s, m, 1);
	}
	if (row && !row->act && row->reply == REPLY_IF_WANTED) {
		session_log_limited(LOG_LEVEL_WARNING, s, TALK_MESSAGE, "message %u (%s) passed over: %s", request, name, error->text);
		return true;
	}
	session_end(s, true, "message %u (%s): %s", request, name, error->text);
	return false;
}

bool dispatch_message(struct vhost_user_session *s, struct vhost_user_message *m)
{
	const struct request_row *row = request_row(m->header.request);
	const bool asks = m->header.flags & VHOST_USER_FLAG_NEED_REPLY;
	const bool ack_before = ack_negotiated(s);
	struct error error = { 0 };
	bool alive = true;
	int code;

	code = judge(s, row, m, &error);
	if (code < 0) {
		alive = refuse(s, row, m, asks && ack_before, &error);
	} else {
		if (code != CHECK_NOTHING_TO_DO)
			carry_out(s, row, m);
		if (row->reply == REPLY_OWN)
			alive = answer(s, m);
		else if (asks && (ack_before || ack_negotiated(s)))
			alive = answer_ack(s, m, 0);
	}
	vhost_user_message_close(m);
	return alive;
}
