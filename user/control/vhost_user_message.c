/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/vhost_user_message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/util.h"

#define SCM_FDS_MAX 253 /* Linux: SCM_MAX_FD */

static const char *const request_names[] = {
	"no request",
#define VHOST_USER_REQUEST_NAME(name) #name,
	VHOST_USER_REQUESTS(VHOST_USER_REQUEST_NAME)
#undef VHOST_USER_REQUEST_NAME
};
_Static_assert(ARRAY_SIZE(request_names) == VHOST_USER_REQUEST_COUNT, "one name a request");

const char *vhost_user_request_name(uint32_t request)
{
	return request < VHOST_USER_REQUEST_COUNT ? request_names[request] : "unknown request";
}

/* A descriptor of whatever kind: close() asks its file system, which may never answer. */
static void close_foreign(const struct vhost_user_message *message, int fd)
{
	if (fd >= 0 && fd_is_eventfd(fd))
		close(fd);
	else
		reaper_close(message->reaper, fd);
}

void vhost_user_message_close(struct vhost_user_message *message)
{
	for (unsigned i = 0; i < message->fd_count; i++) {
		close_foreign(message, message->fds[i]);
		message->fds[i] = -1;
	}
	message->fd_count = 0;
}

int vhost_user_take_fd(struct vhost_user_message *message, unsigned which)
{
	int fd = message->fds[which];

	message->fds[which] = -1;
	return fd;
}

void vhost_user_reader_init(struct vhost_user_reader *reader)
{
	vhost_user_message_close(&reader->message);
	reader->have = 0;
}

/* Takes what came beside the bytes. Every descriptor that the kernel installed is either kept in @message or closed. */
static void collect_fds(struct msghdr *header, struct vhost_user_message *message, bool *surplus)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (message->fd_count < VHOST_USER_FDS_MAX) {
				message->fds[message->fd_count++] = fd;
			} else {
				close_foreign(message, fd);
				*surplus = true;
			}
		}
	}
}

/* Return: bytes read, 0 = nothing there, negative = the stream ends here. */
static ssize_t receive_piece(int fd, void *to, size_t size, struct vhost_user_message *message, struct error *error)
{
	/* Room for all descriptors that the kernel lets through: what it had to cut off, it would close in this thread. */
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * SCM_FDS_MAX)];
	} control;
	struct iovec piece = { .iov_base = to, .iov_len = size };
	struct msghdr header = {
		.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	bool surplus = false;
	ssize_t got;

	do {
		got = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0) {
		if (errno == EAGAIN || errno == EWOULDBLOCK)
			return 0;
		if (errno == ECONNRESET || errno == EPIPE)
			return -ECONNRESET;
		return error_set(error, -errno, "cannot receive: %s", strerror(errno));
	}
	if (got == 0)
		return -ECONNRESET;
	collect_fds(&header, message, &surplus);
	if (surplus)
		return error_set(error, -EPROTO, "more than %d descriptors came with one message", VHOST_USER_FDS_MAX);
	if (header.msg_flags & MSG_CTRUNC)
		return error_set(error, -EMFILE,
				 "descriptors of a message were lost: this process reached its limit of open files; raise it "
				 "(LimitNOFILE= of the unit, ulimit -n)");
	return got;
}

static int check_header(const struct vhost_user_header *h, struct error *error)
{
	if ((h->flags & VHOST_USER_VERSION_MASK) != VHOST_USER_VERSION)
		return error_set(error, -EPROTO, "message %u (%s) has protocol version %u, not %u", h->request,
				 vhost_user_request_name(h->request), h->flags & VHOST_USER_VERSION_MASK, VHOST_USER_VERSION);
	if (h->flags & VHOST_USER_FLAG_REPLY)
		return error_set(error, -EPROTO, "message %u (%s) is marked as a reply, but nothing was asked", h->request,
				 vhost_user_request_name(h->request));
	if (h->size > VHOST_USER_PAYLOAD_MAX)
		return error_set(error, -EPROTO, "message %u (%s) announces %u bytes of payload, more than %u", h->request,
				 vhost_user_request_name(h->request), h->size, VHOST_USER_PAYLOAD_MAX);
	return 0;
}

int vhost_user_receive(int fd, struct vhost_user_reader *reader, struct error *error)
{
	struct vhost_user_message *message = &reader->message;
	const size_t header_size = sizeof(message->header);

	for (;;) {
		size_t total;
		ssize_t got;
		int code;

		if (reader->have < header_size) {
			got = receive_piece(fd, (char *)&message->header + reader->have, header_size - reader->have, message, error);
			if (got <= 0)
				return (int)got;
			reader->have += (size_t)got;
			if (reader->have < header_size)
				continue;
			code = check_header(&message->header, error);
			if (code)
				return code;
			memset(&message->payload, 0, sizeof(message->payload));
		}
		total = header_size + message->header.size;
		if (reader->have < total) {
			got = receive_piece(fd, message->payload.bytes + (reader->have - header_size), total - reader->have, message,
					    error);
			if (got <= 0)
				return (int)got;
			reader->have += (size_t)got;
			if (reader->have < total)
				continue;
		}
		reader->have = 0;
		return 1;
	}
}

int vhost_user_send(int fd, const struct vhost_user_message *message)
{
	struct iovec pieces[] = {
		{ .iov_base = (void *)&message->header, .iov_len = sizeof(message->header) },
		{ .iov_base = (void *)message->payload.bytes, .iov_len = message->header.size },
	};
	struct msghdr header = { .msg_iov = pieces, .msg_iovlen = ARRAY_SIZE(pieces) };
	ssize_t sent;

	do {
		sent = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;
	/* A stream socket takes messages of this size whole or not at all, unless its buffer is about full. */
	return (size_t)sent == sizeof(message->header) + message->header.size ? 0 : -EAGAIN;
}
