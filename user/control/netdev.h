/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Settings of host network devices that vhostlane changes or asks for: libnl-route for links, ethtool ioctls for features and
 * channels, sysfs for NAPI. Every change remembers what was before, and netdev_undo() puts it back. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_NETDEV_H
#define VHOSTLANE_CONTROL_NETDEV_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"

struct netdev_info {
	char ifname[IF_NAMESIZE];
	unsigned ifindex;
	unsigned mtu;
	uint8_t mac[6];
	bool up;
	bool running;	      /* carrier */
	char kind[16];	      /* "veth", "tun", "bridge", ... or "" for hardware */
	char driver[32];
	unsigned rx_queues;   /* real receive queues: combined + rx of ETHTOOL_GCHANNELS, else of sysfs */
	unsigned tx_queues;
	int node;	      /* NUMA node, -1 = none */
	unsigned peer_ifindex;/* veth: the other end if in this namespace, else 0 */
	bool peer_elsewhere;  /* veth: the other end lies in another network namespace */
	unsigned master_ifindex; /* bridge, bond, ... that it is a member of, 0 = none */
	unsigned link_type;   /* ARPHRD_ETHER, ARPHRD_LOOPBACK, ... */
};

int netdev_get(const char *ifname, struct netdev_info *info, struct error *error); /* -ENODEV names the interface */

/* Other devices below it: members of a bond or bridge, what a VLAN or macvlan was made on. */
bool netdev_lies_on_others(const char *ifname);

/* A tap whose process writes frames with a virtio header: longer than the MTU, checksums open (QEMU does). */
bool netdev_has_virtio_header(const char *ifname);

/* A name that the kernel could take: 1 to 15 characters, no `/`, `:` or white space, not `.` or `..`. Any command may ask. */
int netdev_check_name(const char *ifname, struct error *error);

/* Is this the name of a host link's end (either one; host_link.h)? Such interfaces are vhostlane's own. */
bool netdev_is_host_link(const char *ifname);

/* What was changed on one device, newest first. Zero-initialised = nothing. */
#define NETDEV_CHANGES_MAX 16
enum netdev_change_kind { NETDEV_CHANGE_PROMISCUOUS, NETDEV_CHANGE_FEATURE, NETDEV_CHANGE_NAPI };
struct netdev_change {
	enum netdev_change_kind kind;
	char name[64];
	uint64_t before;
};
struct netdev_undo_log {
	char ifname[IF_NAMESIZE];
	unsigned ifindex; /* the device may get another name meanwhile, and another one its own */
	unsigned count;
	struct netdev_change changes[NETDEV_CHANGES_MAX];
	int promiscuous_fd; /* packet socket that holds PACKET_MR_PROMISC: the kernel undoes it even after a crash; -1 = none */
};

void netdev_undo_init(struct netdev_undo_log *log, const char *ifname);
int netdev_set_promiscuous(struct netdev_undo_log *log, struct error *error);
/* ethtool feature by its kernel name, e.g. "tx-checksum-ip-generic", "rx-vlan-hw-parse". -EOPNOTSUPP if fixed. */
int netdev_set_feature(struct netdev_undo_log *log, const char *feature, bool on, struct error *error);
bool netdev_get_feature(const char *ifname, const char *feature); /* false also if the device has no such feature */
int netdev_set_napi(struct netdev_undo_log *log, const char *attribute, uint64_t value, struct error *error);
void netdev_undo(struct netdev_undo_log *log);

/*
 * Makes a veth pair (numrxqueues = numtxqueues = @queues on both ends), sets MTU, brings both up. Both ends are silent: no IPv6 address, no
 * ARP; nothing of the host's stack is heard on them.
 */
int netdev_make_veth(const char *host_end, const char *engine_end, unsigned queues, unsigned mtu, struct error *error);
int netdev_delete(const char *ifname, struct error *error); /* -ENODEV if there is none */
int netdev_set_mtu(const char *ifname, unsigned mtu, struct error *error);
int netdev_set_up(const char *ifname, bool up, struct error *error);

#endif
