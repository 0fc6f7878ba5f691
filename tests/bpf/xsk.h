/* SPDX-License-Identifier: BSD-2-Clause */
/* An AF_XDP socket of no device: enough for an XSKMAP. Newer kernels take only such as have a receive ring. */
#ifndef TESTS_BPF_XSK_H
#define TESTS_BPF_XSK_H

#include <linux/if_xdp.h>
#include <sys/socket.h>

static inline int xsk_of_no_device(void)
{
	int size = 64, fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_XDP, XDP_RX_RING, &size, sizeof(size)), 0);
	return fd;
}

#endif
