/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which port an address belongs to: MAC + VLAN -> port, one table per domain (an uplink and its ports, or all ports
 * when there is no uplink). A table is immutable; control builds a new one and publishes it. Any thread may read.
 */
#ifndef VHOSTLANE_DATAPATH_FORWARDING_H
#define VHOSTLANE_DATAPATH_FORWARDING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define FORWARDING_NONE (-1)
#define FORWARDING_HOST (-2) /* an address of the host itself */

struct forwarding_entry {
	uint8_t mac[6];
	uint16_t vlan; /* 0 = untagged */
	bool trunk;    /* with vlan 0: takes frames of any VLAN */
	int32_t port;  /* port id or FORWARDING_HOST */
};

struct forwarding; /* open addressing, at most half full */

/* Return: NULL when out of memory. Of two entries for one key the first wins. */
struct forwarding *forwarding_create(const struct forwarding_entry *entries, uint32_t count);
void forwarding_free(struct forwarding *table);

/* Key of the MAC address that lies at @mac. */
static inline uint64_t forwarding_key(const uint8_t *mac, uint16_t vlan)
{
	uint64_t key = 0;

	memcpy(&key, mac, 6);
	return key | (uint64_t)vlan << 48;
}

/* Return: port id, FORWARDING_HOST or FORWARDING_NONE. */
int32_t forwarding_lookup(const struct forwarding *table, uint64_t key);

/* 01:80:c2:00:00:00 to :0f: for the next device on the link only (PAUSE, spanning tree, LLDP); a bridge forwards none (IEEE 802.1Q 8.6.3). */
static inline bool mac_is_link_local(const uint8_t *mac)
{
	static const uint8_t prefix[5] = {0x01, 0x80, 0xc2, 0x00, 0x00};

	return !memcmp(mac, prefix, sizeof(prefix)) && mac[5] < 0x10;
}

static inline bool mac_is_multicast(const uint8_t *mac)
{
	return mac[0] & 1;
}

#endif
