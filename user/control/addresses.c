/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/addresses.h"

#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/socket.h>

#include "common/log.h"
#include "control/publisher.h"

const struct managed_port *addresses_owner(const struct engine *engine, unsigned domain, const uint8_t *mac, uint16_t vlan)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		const struct managed_port *mp = engine->ports[id];

		for (unsigned a = 0; mp && mp->port->domain == domain && a < mp->address_count; a++)
			if (!memcmp(mp->addresses[a].mac, mac, 6) && mp->addresses[a].vlan == vlan)
				return mp;
	}
	return NULL;
}

/* Of any interface of this host: bridges, macvlans and the like have addresses of their own. What cannot be ruled out is taken for one. */
static bool is_host_address(const uint8_t *mac)
{
	struct ifaddrs *all;
	bool found = false;

	if (getifaddrs(&all))
		return true;
	for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET) {
			const struct sockaddr_ll *link = (const struct sockaddr_ll *)i->ifa_addr;

			found = link->sll_halen == 6 && !memcmp(link->sll_addr, mac, 6);
		}
	freeifaddrs(all);
	return found;
}

static bool is_refused(const struct engine *engine, unsigned domain, const uint8_t *mac, uint16_t vlan)
{
	const uint64_t now = now_ns();

	for (unsigned i = 0; i < REFUSED_ADDRESSES; i++) {
		const struct refused_address *r = &engine->refused[i];

		if (r->until_ns > now && r->domain == domain && r->vlan == vlan && !memcmp(r->mac, mac, 6))
			return true;
	}
	return false;
}

bool address_is_free(const struct engine *engine, unsigned domain, const uint8_t *mac, uint16_t vlan)
{
	return !addresses_owner(engine, domain, mac, vlan) && !is_refused(engine, domain, mac, vlan) && !is_host_address(mac);
}

/* For a while; twice as long each time that it is claimed again soon after. */
static void refuse_address(struct engine *engine, unsigned domain, const struct vl_port_key *key)
{
	struct refused_address *refused = NULL;
	const uint64_t now = now_ns();

	for (unsigned i = 0; i < REFUSED_ADDRESSES && !refused; i++) {
		struct refused_address *r = &engine->refused[i];

		if (r->until_ns && r->domain == domain && r->vlan == key->vlan && !memcmp(r->mac, key->mac, 6))
			refused = r;
	}
	if (!refused) {
		refused = &engine->refused[engine->refused_next++ % REFUSED_ADDRESSES];
		*refused = (struct refused_address){.vlan = key->vlan, .domain = (uint16_t)domain};
		memcpy(refused->mac, key->mac, 6);
	}
	refused->for_ns = now > refused->until_ns + refused->for_ns ? REFUSED_NS : min_u64(2 * refused->for_ns, REFUSED_MAX_NS);
	refused->until_ns = now + refused->for_ns;
}

/* The wire sends from an address that a port had learned: it is not the guest's, or not any more (it moved to another host). */
static bool give_up_address(struct engine *engine, unsigned domain, const struct vl_port_key *key)
{
	char text[MAC_TEXT];

	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned a = 0; mp && mp->port->domain == domain && a < mp->address_count; a++) {
			if (!mp->addresses[a].learned || mp->addresses[a].vlan != key->vlan || memcmp(mp->addresses[a].mac, key->mac, 6))
				continue;
			log_limited(LOG_LEVEL_WARNING, "port %s: address %s, which the guest had used, is in use on %s: no longer the port's", mp->config.name,
				    mac_format(key->mac, text), uplink_info(engine->uplinks[domain])->ifname);
			mp->addresses[a] = mp->addresses[--mp->address_count];
			counter_add(&mp->port->counters[VL_WORKERS_MAX], PORT_LEARN_REFUSED, 1);
			refuse_address(engine, domain, key);
			return true;
		}
	}
	return false;
}

void addresses_read_claims(struct engine *engine)
{
	struct vl_port_key key;
	bool changed = false;

	for (unsigned d = 0; d < engine->uplink_count; d++)
		for (unsigned i = 0; i < VL_CLAIMS_MAX && bpf_set_take_claim(uplink_bpf(engine->uplinks[d]), &key); i++)
			changed |= give_up_address(engine, d, &key);
	if (changed)
		publisher_publish(engine);
}

void addresses_add(struct managed_port *mp, const uint8_t *mac, uint16_t vlan, bool learned)
{
	struct address *address = &mp->addresses[mp->address_count++];

	*address = (struct address){.vlan = vlan, .learned = learned};
	memcpy(address->mac, mac, 6);
}

bool addresses_learn(struct engine *engine, unsigned worker, const struct learn_request *request)
{
	struct managed_port *mp = request->port < VL_PORTS_MAX ? engine->ports[request->port] : NULL;
	struct port_counters *counters;
	char text[MAC_TEXT];

	if (!mp || !mp->port->learns || vhost_user_state_of(mp->session) != VHOST_USER_SERVING)
		return false;
	counters = &mp->port->counters[VL_WORKERS_MAX]; /* control's own row */
	if (!address_is_free(engine, mp->port->domain, request->mac, request->vlan)) {
		counter_add(counters, PORT_LEARN_REFUSED, 1);
		return false;
	}
	if (mp->address_count == ADDRESSES_PER_PORT) {
		log_limited(LOG_LEVEL_WARNING, "port %s: more than %d addresses; %s and others are not learned; split the guest's networks over ports",
			    mp->config.name, ADDRESSES_PER_PORT, mac_format(request->mac, text));
		counter_add(counters, PORT_LEARN_REFUSED, 1);
		return false;
	}
	addresses_add(mp, request->mac, request->vlan, true);
	counter_add(counters, PORT_LEARNED, 1);
	log_debug("port %s: learned %s on worker %u", mp->config.name, mac_format(request->mac, text), worker);
	return true;
}

/*
 * Is the guest's address the gateway's, or another station's that the host knows? Asked once the address is in the map `ports`, for then
 * the answer of its owner is a claim of the wire.
 */
static void challenge_owner(struct engine *engine, const struct managed_port *mp, const struct address *address)
{
	struct uplink *uplink = uplink_of(engine, mp);
	const uint16_t vlan = address->vlan ? address->vlan : mp->port->pvid;
	char text[MAC_TEXT];
	struct error error;
	int asked;

	/* Generic XDP sees the guests' own frames, too: there no frame is a claim. */
	if (!uplink || lane_device_mode(uplink_device(uplink)) == LANE_MODE_GENERIC)
		return;
	asked = wire_talk_challenge(&engine->talk, uplink_info(uplink), address->mac, vlan, &error);
	if (asked < 0)
		log_limited(LOG_LEVEL_WARNING, "port %s: address %s: %s", mp->config.name, mac_format(address->mac, text), error.text);
	else if (asked)
		log_debug("port %s: address %s is in the host's neighbour table: its owner on %s was asked %d times to show itself", mp->config.name,
			  mac_format(address->mac, text), uplink_info(uplink)->ifname, asked);
}

void addresses_challenge_owners(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		for (unsigned a = 0; mp && a < mp->address_count; a++) {
			if (mp->addresses[a].learned && !mp->addresses[a].challenged)
				challenge_owner(engine, mp, &mp->addresses[a]);
			mp->addresses[a].challenged = true;
		}
	}
}

void addresses_forget_learned(struct managed_port *mp)
{
	unsigned kept = 0;

	for (unsigned a = 0; a < mp->address_count; a++)
		if (!mp->addresses[a].learned)
			mp->addresses[kept++] = mp->addresses[a];
	mp->address_count = kept;
}

void addresses_take_from_others(struct engine *engine, struct managed_port *keeper)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		struct managed_port *mp = engine->ports[id];

		if (!mp || mp == keeper || mp->port->domain != keeper->port->domain)
			continue;
		for (unsigned a = 0; a < mp->address_count; a++)
			if (!memcmp(mp->addresses[a].mac, keeper->config.mac, 6) && mp->addresses[a].vlan == keeper->port->key_vlan)
				mp->addresses[a--] = mp->addresses[--mp->address_count];
	}
}
