/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A vhost-user stream of any bytes, in any pieces, with any descriptors, through a real socket. What is received must be what
 * was sent, message by message, refused at the first header that the specification does not allow; every descriptor that
 * came is either in the message with whose bytes it came or closed.
 *
 * Input: how the stream is cut and what comes with each piece, and the stream's lawful skeleton, patched.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/vhost_user_message.h"
#include "fuzz.h"

#define STREAM_MAX 8192
#define SENT_FDS_MAX 12 /* some more than one message may bring */
#define GATHER_MAX 32	/* pieces in the socket at once: each takes a buffer of its send buffer's */

static uint8_t stream[STREAM_MAX];
static size_t length, consumed;
static struct vhost_user_reader reader;

/* Messages whose headers are mostly in order. */
static void compose(struct input *in)
{
	length = 0;
	for (unsigned i = 1 + input_byte(in) % 6; i; i--) {
		struct vhost_user_header header = {input_byte(in) % 48, VHOST_USER_VERSION | (input_byte(in) & VHOST_USER_FLAG_NEED_REPLY), 0};
		const uint8_t wrong = input_byte(in);

		header.size = input_word(in) % (VHOST_USER_PAYLOAD_MAX + 8);
		if (wrong > 200)
			((uint8_t *)&header)[wrong % sizeof(header)] = input_byte(in);
		memcpy(stream + length, &header, sizeof(header));
		length += sizeof(header);
		for (uint32_t k = 0; k < header.size && k < VHOST_USER_PAYLOAD_MAX; k++)
			stream[length++] = k < 16 ? input_byte(in) : (uint8_t)(k * 7 + i);
	}
}

static void send_piece(int fd, const uint8_t *from, size_t size, unsigned fd_count, int passed)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * SENT_FDS_MAX)];
	} control = {0};
	struct iovec piece = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};
	struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};

	if (fd_count) {
		struct cmsghdr *c;

		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		for (unsigned i = 0; i < fd_count; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &passed, sizeof(passed));
	}
	MUST(sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size);
}

static bool lawful(const struct vhost_user_header *h)
{
	return (h->flags & VHOST_USER_VERSION_MASK) == VHOST_USER_VERSION && !(h->flags & VHOST_USER_FLAG_REPLY) && h->size <= VHOST_USER_PAYLOAD_MAX;
}

static void check_message(void)
{
	const struct vhost_user_message *message = &reader.message;

	MUST(lawful(&message->header));
	MUST(consumed + sizeof(message->header) + message->header.size <= length);
	MUST(!memcmp(&message->header, stream + consumed, sizeof(message->header)));
	MUST(!memcmp(message->payload.bytes, stream + consumed + sizeof(message->header), message->header.size));
	/* A shorter payload than a handler's struct reads as zeros, never as the message before. */
	for (uint32_t i = message->header.size; i < VHOST_USER_PAYLOAD_MAX; i++)
		MUST(!message->payload.bytes[i]);
	MUST(vhost_user_request_name(message->header.request));
	MUST(message->fd_count <= VHOST_USER_FDS_MAX);
	for (unsigned i = 0; i < message->fd_count; i++)
		MUST(fcntl(message->fds[i], F_GETFD) == FD_CLOEXEC);
	consumed += sizeof(message->header) + message->header.size;
}

/* Why a stream may end before its end: too many descriptors with one message, or a header that is not lawful. */
static void check_refusal(int code, const struct error *error, bool many)
{
	struct vhost_user_header header;

	MUST(error->code == code && *error->text);
	if (many && reader.message.fd_count == VHOST_USER_FDS_MAX)
		return;
	MUST(code == -EPROTO && consumed + sizeof(header) <= length);
	memcpy(&header, stream + consumed, sizeof(header));
	MUST(!lawful(&header));
}

/* All that is there. Return: 0 = waits for more, else how the stream ended. */
static int receive(struct input *in, int fd, bool many)
{
	for (;;) {
		struct error error = {0};
		const int code = vhost_user_receive(fd, &reader, &error);

		if (code < 0 && code != -ECONNRESET)
			check_refusal(code, &error, many);
		if (code <= 0)
			return code;
		check_message();
		if (reader.message.fd_count && input_byte(in) & 1) {
			const unsigned which = input_byte(in) % reader.message.fd_count;

			MUST(!close(vhost_user_take_fd(&reader.message, which)));
			MUST(reader.message.fds[which] == -1); /* or it would be closed twice */
		}
		vhost_user_message_close(&reader.message);
	}
}

/* Of the lowest numbers, which the kernel gives first. */
static unsigned open_descriptors(void)
{
	unsigned count = 0;

	for (int fd = 0; fd < 128; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	const unsigned open_before = open_descriptors();
	unsigned sent_fds = 0, gathered = 0;
	int ends[2], code = 0, passed;
	size_t at = 0;

	MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
	passed = dup(ends[0]);
	compose(&in);
	consumed = 0;
	vhost_user_reader_init(&reader);
	while (at < length && !code) {
		const size_t left = length - at, wish = 1 + (input_byte(&in) & 1 ? input_byte(&in) : (size_t)input_word(&in) % STREAM_MAX);
		const size_t piece = wish < left ? wish : left;
		const uint8_t beside = input_byte(&in);
		const unsigned fd_count = beside > 192 ? beside % (SENT_FDS_MAX + 1) : 0;

		send_piece(ends[1], stream + at, piece, fd_count, passed);
		sent_fds += fd_count;
		at += piece;
		if (!(input_byte(&in) & 3) && ++gathered < GATHER_MAX)
			continue; /* several pieces gather first */
		code = receive(&in, ends[0], sent_fds > VHOST_USER_FDS_MAX);
		gathered = 0;
	}
	if (!code)
		code = receive(&in, ends[0], sent_fds > VHOST_USER_FDS_MAX);
	MUST(code != -ECONNRESET);
	if (!code)
		MUST(consumed + reader.have == length);
	close(ends[1]);
	if (!code)
		MUST(receive(&in, ends[0], false) == -ECONNRESET);
	vhost_user_reader_init(&reader);
	close(passed);
	close(ends[0]);
	MUST(open_descriptors() == open_before);
	return 0;
}
