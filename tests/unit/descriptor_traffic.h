/* SPDX-License-Identifier: BSD-2-Clause */
/* Descriptors: sent beside bytes on a UNIX socket, and counted in this process. */
#ifndef TESTS_UNIT_DESCRIPTOR_TRAFFIC_H
#define TESTS_UNIT_DESCRIPTOR_TRAFFIC_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static inline void send_raw(int fd, const void *bytes, size_t size, const int *fds, unsigned fd_count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 64)];
	} control;
	struct iovec piece = { .iov_base = (void *)bytes, .iov_len = size };
	struct msghdr h = { .msg_iov = &piece, .msg_iovlen = 1 };

	if (fd_count) {
		struct cmsghdr *c;

		h.msg_control = control.bytes;
		h.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
	}
	assert_int_equal(sendmsg(fd, &h, MSG_NOSIGNAL), size);
}

#endif
