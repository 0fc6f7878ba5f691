/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Frames that vhostlane itself sends on an uplink, none of which it waits for an answer to. Control thread only.
 */
#ifndef VHOSTLANE_CONTROL_WIRE_TALK_H
#define VHOSTLANE_CONTROL_WIRE_TALK_H

#include <stdint.h>

#include "common/error.h"
#include "control/netdev.h"

/* Packet sockets, made when they are first needed. */
struct wire_talk {
	int fd;	    /* through the uplink's tc programs, as the host's own frames; -1 = none yet */
	int wire_fd; /* past them, to the wire alone; -1 = none yet */
};

void wire_talk_init(struct wire_talk *talk);
void wire_talk_close(struct wire_talk *talk);

/* A guest's address is here now: a RARP request for itself (RFC 903), tagged unless @vlan is 0. Heard by other guests, too. */
int wire_talk_announce(struct wire_talk *talk, const struct netdev_info *uplink, const uint8_t mac[6], uint16_t vlan, struct error *error);

/*
 * A guest uses @mac as its own. If the host's neighbour table knows it, whoever has it on the wire is asked to show itself: an ARP
 * probe (RFC 5227) or neighbour solicitation (RFC 4862, 5.4.2) for each of its first addresses, to that station alone, from nobody,
 * so that no table changes. Its answer is a frame from @mac on the wire, which xdp_steer reports (wire_claims); of a guest's own
 * address the wire knows nothing. Return: how many were asked for, or a negative errno value with *error.
 */
int wire_talk_challenge(struct wire_talk *talk, const struct netdev_info *uplink, const uint8_t mac[6], uint16_t vlan, struct error *error);

#endif
