/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/wire_talk.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/neighbour.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip6.h>
#include <netlink/netlink.h>
#include <netlink/route/neighbour.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASKED_MAX 8 /* protocol addresses of one station */
#define ARP_HEAD_ETHERNET "\x00\x01\x08\x00\x06\x04" /* hardware and protocol type, their addresses' lengths */

/* A frame under construction; ends with padding to the least that Ethernet carries. */
struct frame {
	uint8_t bytes[128];
	size_t length;
};

struct protocol_address {
	int family;
	uint8_t bytes[16];
};

struct neighbour_search {
	const uint8_t *mac;
	unsigned count;
	struct protocol_address found[ASKED_MAX];
};

static const uint8_t nobody[6] = {0}, everybody[6] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void append(struct frame *frame, const void *bytes, size_t length)
{
	memcpy(frame->bytes + frame->length, bytes, length);
	frame->length += length;
}

static void append_u16(struct frame *frame, uint16_t value)
{
	const uint16_t big = htons(value);

	append(frame, &big, sizeof(big));
}

static void begin(struct frame *frame, const uint8_t to[6], const uint8_t from[6], uint16_t vlan, uint16_t type)
{
	memset(frame, 0, sizeof(*frame));
	append(frame, to, 6);
	append(frame, from, 6);
	if (vlan) {
		append_u16(frame, ETH_P_8021Q);
		append_u16(frame, vlan);
	}
	append_u16(frame, type);
}

static void append_arp(struct frame *frame, uint16_t operation, const uint8_t sender[6], const uint8_t target[6], const void *target_ip)
{
	append(frame, ARP_HEAD_ETHERNET, 6);
	append_u16(frame, operation);
	append(frame, sender, 6);
	append(frame, nobody, 4);
	append(frame, target, 6);
	append(frame, target_ip, 4);
}

/* RFC 1071, over what stands in network order. */
static uint32_t sum_of(uint32_t sum, const void *bytes, size_t length)
{
	const uint8_t *at = bytes;

	for (size_t i = 0; i + 1 < length; i += 2)
		sum += (uint32_t)at[i] << 8 | at[i + 1];
	return sum;
}

static uint16_t folded(uint32_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static void append_solicitation(struct frame *frame, const uint8_t target[16])
{
	struct ip6_hdr ip = {.ip6_plen = htons(sizeof(struct nd_neighbor_solicit)), .ip6_nxt = IPPROTO_ICMPV6, .ip6_hlim = 255};
	struct nd_neighbor_solicit ask = {.nd_ns_type = ND_NEIGHBOR_SOLICIT};
	uint8_t *group = ip.ip6_dst.s6_addr;
	uint32_t sum = sizeof(ask) + IPPROTO_ICMPV6; /* of the pseudo header, RFC 8200, 8.1 */

	ip.ip6_vfc = 6 << 4;
	memcpy(group, "\xff\x02\0\0\0\0\0\0\0\0\0\x01\xff", 13);
	memcpy(group + 13, target + 13, 3);
	memcpy(&ask.nd_ns_target, target, 16);
	sum = sum_of(sum, &ip.ip6_dst, 16);
	ask.nd_ns_cksum = htons(folded(sum_of(sum, &ask, sizeof(ask))));
	append(frame, &ip, sizeof(ip));
	append(frame, &ask, sizeof(ask));
}
_Static_assert(sizeof(struct nd_neighbor_solicit) == 24 && sizeof(struct ip6_hdr) == 40, "as they are sent");

/* --- sending ------------------------------------------------------------------------------------------------------ */

void wire_talk_init(struct wire_talk *talk)
{
	*talk = (struct wire_talk){.fd = -1, .wire_fd = -1};
}

void wire_talk_close(struct wire_talk *talk)
{
	if (talk->fd >= 0)
		close(talk->fd);
	if (talk->wire_fd >= 0)
		close(talk->wire_fd);
	wire_talk_init(talk);
}

static int packet_socket(bool past_tc)
{
	const int on = 1;
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd >= 0 && past_tc && setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof(on)) < 0) {
		const int code = errno;

		close(fd);
		errno = code;
		return -1;
	}
	return fd;
}

/* Return: 0 or a negative errno value. */
static int send_frame(int *fd, bool past_tc, const struct netdev_info *uplink, const struct frame *frame)
{
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_halen = 6, .sll_ifindex = (int)uplink->ifindex};
	const size_t length = frame->length < ETH_ZLEN ? ETH_ZLEN : frame->length;

	memcpy(to.sll_addr, frame->bytes, 6);
	if (*fd < 0)
		*fd = packet_socket(past_tc);
	return *fd >= 0 && sendto(*fd, frame->bytes, length, 0, (struct sockaddr *)&to, sizeof(to)) >= 0 ? 0 : -errno;
}

int wire_talk_announce(struct wire_talk *talk, const struct netdev_info *uplink, const uint8_t mac[6], uint16_t vlan, struct error *error)
{
	struct frame frame;
	int code;

	begin(&frame, everybody, mac, vlan, ETH_P_RARP);
	append_arp(&frame, 3 /* request reverse */, mac, mac, nobody);
	code = send_frame(&talk->fd, false, uplink, &frame);
	if (code)
		error_fill(error, code, "cannot announce the guest on %s: %s; the network learns its place with its first frame", uplink->ifname,
			   strerror(-code));
	return code;
}

/* --- challenges --------------------------------------------------------------------------------------------------- */

/* Of any interface: the uplink's, and those of bridges, VLANs and the like on it. */
static void look_at_neighbour(struct nl_object *object, void *argument)
{
	struct neighbour_search *search = argument;
	struct rtnl_neigh *neighbour = (struct rtnl_neigh *)object;
	struct nl_addr *mac = rtnl_neigh_get_lladdr(neighbour), *address = rtnl_neigh_get_dst(neighbour);
	struct protocol_address *found = &search->found[search->count];

	if (!mac || !address || nl_addr_get_len(mac) != 6 || memcmp(nl_addr_get_binary_addr(mac), search->mac, 6) || search->count == ASKED_MAX)
		return;
	found->family = nl_addr_get_family(address);
	if (found->family != AF_INET && found->family != AF_INET6)
		return;
	memcpy(found->bytes, nl_addr_get_binary_addr(address), found->family == AF_INET ? 4 : 16);
	search->count++;
}

static int find_neighbours(struct neighbour_search *search)
{
	struct nl_sock *socket = nl_socket_alloc();
	struct nl_cache *all = NULL;
	int result;

	if (!socket)
		return -ENOMEM;
	errno = 0;
	result = nl_connect(socket, NETLINK_ROUTE);
	if (!result)
		result = rtnl_neigh_alloc_cache(socket, &all);
	if (!result)
		nl_cache_foreach(all, look_at_neighbour, search);
	nl_cache_free(all);
	nl_socket_free(socket);
	/* libnl has no number for some. */
	return !result ? 0 : errno ? -errno : -EIO;
}

int wire_talk_challenge(struct wire_talk *talk, const struct netdev_info *uplink, const uint8_t mac[6], uint16_t vlan, struct error *error)
{
	struct neighbour_search search = {.mac = mac};
	int code = find_neighbours(&search);

	if (code)
		return error_set(error, code, "neighbour table: %s; allow netlink sockets", strerror(-code));
	for (unsigned i = 0; !code && i < search.count; i++) {
		struct frame frame;

		begin(&frame, mac, uplink->mac, vlan, search.found[i].family == AF_INET ? ETH_P_ARP : ETH_P_IPV6);
		if (search.found[i].family == AF_INET)
			append_arp(&frame, 1 /* request */, uplink->mac, nobody, search.found[i].bytes);
		else
			append_solicitation(&frame, search.found[i].bytes);
		code = send_frame(&talk->wire_fd, true, uplink, &frame);
	}
	if (code)
		return error_set(error, code, "uplink %s: cannot ask who has an address: %s; give ports their `mac`", uplink->ifname, strerror(-code));
	return (int)search.count;
}
