// SPDX-License-Identifier: BSD-2-Clause
/* Messages as they come off a socket: in pieces, with descriptors, too long, and when there is no descriptor left for them. */
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "control/vhost_user_message.h"
#include "descriptor_traffic.h"

static void message_in_pieces(void **state)
{
	int s[2], event = eventfd(0, 0);
	struct vhost_user_reader reader = { 0 };
	struct {
		struct vhost_user_header header;
		uint64_t u64;
	} __attribute__((packed)) m = { { VHOST_USER_SET_VRING_KICK, VHOST_USER_VERSION, 8 }, 3 }, next = m;
	struct error error;

	next.u64 = 4;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	for (size_t i = 0; i < sizeof(m); i++) {
		assert_int_equal(vhost_user_receive(s[1], &reader, &error), 0);
		send_raw(s[0], (uint8_t *)&m + i, 1, &event, i == 0);
		/* What follows must not leak into this message: neither bytes nor descriptors. */
		if (i == sizeof(m) - 1)
			send_raw(s[0], &next, sizeof(next), &event, 1);
	}
	for (uint64_t ring = 3; ring <= 4; ring++) {
		assert_int_equal(vhost_user_receive(s[1], &reader, &error), 1);
		assert_int_equal(reader.message.payload.u64, ring);
		assert_int_equal(reader.message.fd_count, 1);
		vhost_user_message_close(&reader.message);
	}
	close(s[0]);
	assert_int_equal(vhost_user_receive(s[1], &reader, &error), -ECONNRESET);
	close(s[1]);
	close(event);
}

static int receive_one(const void *bytes, size_t size, unsigned fd_count)
{
	int s[2], fds[64], before = count_fds(), code;
	struct vhost_user_reader reader = { 0 };
	struct error error = { 0 };

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	for (unsigned i = 0; i < fd_count; i++)
		fds[i] = s[0];
	send_raw(s[0], bytes, size, fds, fd_count);
	code = vhost_user_receive(s[1], &reader, &error);
	assert_true(code >= 0 || error.text[0]);
	vhost_user_reader_init(&reader);
	close(s[0]);
	close(s[1]);
	assert_int_equal(count_fds(), before);
	return code;
}

static void message_refused(void **state)
{
	struct vhost_user_header h = { VHOST_USER_GET_FEATURES, VHOST_USER_VERSION, 0 };

	assert_int_equal(receive_one(&h, sizeof(h), 8), 1);
	assert_int_equal(receive_one(&h, sizeof(h), 9), -EPROTO);
	assert_int_equal(receive_one(&h, sizeof(h), 64), -EPROTO);
	h.size = VHOST_USER_PAYLOAD_MAX;
	assert_int_equal(receive_one(&h, sizeof(h), 1), 0);
	h.size = VHOST_USER_PAYLOAD_MAX + 1;
	assert_int_equal(receive_one(&h, sizeof(h), 1), -EPROTO);
	h.size = 0xffffffff;
	assert_int_equal(receive_one(&h, sizeof(h), 0), -EPROTO);
	h = (struct vhost_user_header){ VHOST_USER_GET_FEATURES, 0, 0 };
	assert_int_equal(receive_one(&h, sizeof(h), 0), -EPROTO);
	h.flags = VHOST_USER_VERSION | VHOST_USER_FLAG_REPLY;
	assert_int_equal(receive_one(&h, sizeof(h), 0), -EPROTO);
}

static void message_without_descriptors_left(void **state)
{
	struct vhost_user_header h = { VHOST_USER_GET_FEATURES, VHOST_USER_VERSION, 0 };
	struct rlimit old, tight;
	int fds[4], s[2];
	struct vhost_user_reader reader = { 0 };
	struct error error = { 0 };

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	for (unsigned i = 0; i < 4; i++)
		fds[i] = s[0];
	send_raw(s[0], &h, sizeof(h), fds, 4);
	getrlimit(RLIMIT_NOFILE, &old);
	tight = (struct rlimit){ (rlim_t)dup(0), old.rlim_max };
	close((int)tight.rlim_cur);
	tight.rlim_cur++; /* one is free */
	setrlimit(RLIMIT_NOFILE, &tight);
	assert_int_equal(vhost_user_receive(s[1], &reader, &error), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &old);
	assert_non_null(strstr(error.text, "LimitNOFILE"));
	assert_int_equal(reader.message.fd_count, 1);
	vhost_user_reader_init(&reader);
	close(s[0]);
	close(s[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(message_in_pieces),
		cmocka_unit_test(message_refused),
		cmocka_unit_test(message_without_descriptors_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
