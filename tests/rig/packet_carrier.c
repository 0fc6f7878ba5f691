/* SPDX-License-Identifier: BSD-2-Clause */
/* Frames on an interface of this machine: the far end of the wire, or the host's own stack (what is sent passes tc egress). */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "carrier.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

static size_t packet_receive(struct carrier *carrier, unsigned pair, uint8_t *frame)
{
	const ssize_t n = recv(carrier->fds[0], frame, CARRIER_FRAME_MAX, MSG_DONTWAIT);

	(void)pair;
	if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
		die("packet socket: %s", strerror(errno));
	return n > 0 ? (size_t)n : 0;
}

static bool packet_send(struct carrier *carrier, unsigned pair, const uint8_t *frame, size_t length)
{
	(void)pair;
	if (send(carrier->fds[0], frame, length, MSG_DONTWAIT) == (ssize_t)length)
		return true;
	if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
		die("packet socket: %s", strerror(errno));
	return false;
}

static void packet_flush(struct carrier *carrier)
{
	(void)carrier;
}

static void packet_close(struct carrier *carrier)
{
	close(carrier->fds[0]);
	free(carrier);
}

struct carrier *packet_open(const char *ifname, uint8_t mac[6])
{
	struct carrier *carrier = calloc(1, sizeof(*carrier));
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	struct ifreq request = { 0 };
	int on = 1, buffer = 8 << 20, fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);

	if (!carrier || fd < 0)
		die("packet socket: %s", strerror(errno));
	address.sll_ifindex = (int)if_nametoindex(ifname);
	if (!address.sll_ifindex)
		die("%s: %s", ifname, strerror(errno));
	if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)))
		die("packet socket: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer));
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		die("%s: %s", ifname, strerror(errno));
	strncpy(request.ifr_name, ifname, IFNAMSIZ - 1);
	if (ioctl(fd, SIOCGIFHWADDR, &request))
		die("%s: %s", ifname, strerror(errno));
	memcpy(mac, request.ifr_hwaddr.sa_data, 6);
	*carrier = (struct carrier){
		.pairs = 1,
		.fd_count = 1,
		.fds = { fd },
		.receive = packet_receive,
		.send = packet_send,
		.flush = packet_flush,
		.close = packet_close,
	};
	return carrier;
}
