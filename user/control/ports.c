/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "control/publisher.h"
#include "control/rebalance.h"

#define ANNOUNCE_INTERVAL_NS 50000000ull /* QEMU announces a few times, tens of milliseconds apart */

/* --- addresses ----------------------------------------------------------------------------------------------------- */

static const struct managed_port *owner_of(const struct engine *engine, unsigned domain, const uint8_t *mac, uint16_t vlan)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		const struct managed_port *mp = engine->ports[id];

		for (unsigned a = 0; mp && mp->port->domain == domain && a < mp->address_count; a++)
			if (!memcmp(mp->addresses[a].mac, mac, 6) && mp->addresses[a].vlan == vlan)
				return mp;
	}
	return NULL;
}

/* Of any interface of this host: bridges, macvlans and the like have addresses of their own. */
static bool is_host_address(const uint8_t *mac)
{
	struct ifaddrs *all;
	bool found = false;

	if (getifaddrs(&all))
		return false;
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

/* The wire sends from an address that a port had learned: it is not the guest's, or not any more (it moved to another host). */
static bool give_up_address(struct engine *engine, unsigned domain, const struct vl_port_key *key)
{
	struct refused_address *refused = &engine->refused[engine->refused_next++ % REFUSED_ADDRESSES];
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
			*refused = (struct refused_address){.vlan = key->vlan, .domain = (uint16_t)domain, .until_ns = now_ns() + REFUSED_NS};
			memcpy(refused->mac, key->mac, 6);
			return true;
		}
	}
	return false;
}

void ports_read_claims(struct engine *engine)
{
	struct vl_port_key key;
	bool changed = false;

	for (unsigned d = 0; d < engine->uplink_count; d++)
		for (unsigned i = 0; i < VL_CLAIMS_MAX && bpf_set_take_claim(uplink_bpf(engine->uplinks[d]), &key); i++)
			changed |= give_up_address(engine, d, &key);
	if (changed)
		publisher_publish(engine);
}

static void add_address(struct managed_port *mp, const uint8_t *mac, uint16_t vlan, bool learned)
{
	struct address *address = &mp->addresses[mp->address_count++];

	*address = (struct address){.vlan = vlan, .learned = learned};
	memcpy(address->mac, mac, 6);
}

/* Return: true if the port has a new address. */
static bool learn(struct engine *engine, unsigned worker, const struct learn_request *request)
{
	struct managed_port *mp = request->port < VL_PORTS_MAX ? engine->ports[request->port] : NULL;
	struct port_counters *counters;
	char text[MAC_TEXT];

	if (!mp || !mp->port->learns || vhost_user_state_of(mp->session) != VHOST_USER_SERVING)
		return false;
	counters = &mp->port->counters[VL_WORKERS_MAX]; /* control's own row */
	if (owner_of(engine, mp->port->domain, request->mac, request->vlan) ||
	    is_refused(engine, mp->port->domain, request->mac, request->vlan) || is_host_address(request->mac)) {
		counter_add(counters, PORT_LEARN_REFUSED, 1);
		return false;
	}
	if (mp->address_count == ADDRESSES_PER_PORT) {
		log_limited(LOG_LEVEL_WARNING, "port %s: more than %d addresses; %s and others are not learned; split the guest's networks over ports",
			    mp->config.name, ADDRESSES_PER_PORT, mac_format(request->mac, text));
		counter_add(counters, PORT_LEARN_REFUSED, 1);
		return false;
	}
	add_address(mp, request->mac, request->vlan, true);
	counter_add(counters, PORT_LEARNED, 1);
	log_debug("port %s: learned %s on worker %u", mp->config.name, mac_format(request->mac, text), worker);
	return true;
}

static void forget_learned(struct managed_port *mp)
{
	unsigned kept = 0;

	for (unsigned a = 0; a < mp->address_count; a++)
		if (!mp->addresses[a].learned)
			mp->addresses[kept++] = mp->addresses[a];
	mp->address_count = kept;
}

/* A configured address may have been learned elsewhere before: the configuration wins. */
static void take_address_from_others(struct engine *engine, struct managed_port *keeper)
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

void ports_handle_worker_news(struct engine *engine)
{
	struct learn_request request;
	bool learned = false;

	for (unsigned w = 0; w < engine->worker_count; w++)
		while (worker_take_learn(engine->workers[w], &request))
			learned |= learn(engine, w, &request);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			vhost_user_check_faults(engine->ports[id]->session);
	if (learned)
		publisher_publish(engine);
	rebalance_standing(engine);
}

/* --- what the sessions ask ----------------------------------------------------------------------------------------- */

static void session_withdraw(void *context, int ring)
{
	struct managed_port *mp = context;

	if (ring < 0)
		memset(mp->withdrawn, 0xff, sizeof(mp->withdrawn));
	else
		mp->withdrawn[ring / 64] |= 1ull << (ring % 64);
	publisher_publish(mp->engine);
}

static void session_publish(void *context)
{
	struct managed_port *mp = context;

	memset(mp->withdrawn, 0, sizeof(mp->withdrawn));
	if (vhost_user_state_of(mp->session) != VHOST_USER_SERVING)
		forget_learned(mp);
	publisher_publish(mp->engine);
}

static void session_synchronize(void *context)
{
	publisher_synchronize(((struct managed_port *)context)->engine);
}

/* The port's own address, or one that it may learn. */
static bool may_announce(const struct engine *engine, const struct managed_port *mp, const uint8_t *mac)
{
	const struct managed_port *owner = owner_of(engine, mp->port->domain, mac, mp->port->key_vlan);

	if (owner || !atomic_load(&mp->port->learns))
		return owner == mp;
	return !mac_is_multicast(mac) && !is_refused(engine, mp->port->domain, mac, mp->port->key_vlan) && !is_host_address(mac);
}

/* RARP request for the guest's own address (RFC 903), sent out of the uplink: tells the LAN where the guest is now. */
static void session_announce(void *context, const uint8_t mac[6])
{
	struct managed_port *mp = context;
	struct engine *engine = mp->engine;
	struct uplink *uplink = uplink_of(engine, mp);
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_halen = 6};
	uint8_t frame[64] = {0}, *type = frame + 12;

	if (!uplink || now_ns() - mp->announced_ns < ANNOUNCE_INTERVAL_NS || !may_announce(engine, mp, mac))
		return;
	mp->announced_ns = now_ns();
	if (engine->announce_fd < 0)
		engine->announce_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	to.sll_ifindex = (int)uplink_info(uplink)->ifindex;
	memset(to.sll_addr, 0xff, 6);
	memset(frame, 0xff, 6);
	memcpy(frame + 6, mac, 6);
	if (mp->port->pvid) {
		const uint8_t tag[4] = {0x81, 0x00, (uint8_t)(mp->port->pvid >> 8), (uint8_t)mp->port->pvid};

		memcpy(type, tag, sizeof(tag));
		type += sizeof(tag);
	}
	memcpy(type, "\x80\x35\x00\x01\x08\x00\x06\x04\x00\x03", 10);
	memcpy(type + 10, mac, 6);
	memcpy(type + 20, mac, 6);
	if (engine->announce_fd < 0 || sendto(engine->announce_fd, frame, sizeof(frame), 0, (struct sockaddr *)&to, sizeof(to)) < 0)
		log_warning("port %s: cannot announce the guest on %s: %s; the network learns its place with its first frame", mp->config.name,
			    uplink_info(uplink)->ifname, strerror(errno));
}

static const struct vhost_user_ops session_ops = {
	.withdraw = session_withdraw,
	.publish = session_publish,
	.synchronize = session_synchronize,
	.announce = session_announce,
};

/* --- making and removing ------------------------------------------------------------------------------------------- */

static void free_port(struct managed_port *mp)
{
	for (unsigned i = 0; mp->pairs && i < mp->config.queues; i++)
		free(mp->pairs[i].pair);
	if (mp->port) {
		free(mp->port->counters);
		free(mp->port->pairs);
		free(mp->port);
	}
	free(mp->private_steering);
	free(mp->pairs);
	free(mp);
}

static int make_pairs(struct managed_port *mp)
{
	struct port *port = mp->port;

	mp->pairs = calloc(mp->config.queues, sizeof(*mp->pairs));
	port->pairs = calloc(mp->config.queues, sizeof(*port->pairs));
	if (!mp->pairs || !port->pairs)
		return -ENOMEM;
	for (unsigned i = 0; i < mp->config.queues; i++) {
		struct queue_pair *pair = zalloc_aligned(sizeof(*pair));

		if (!pair)
			return -ENOMEM;
		pair->port = port;
		pair->index = (uint16_t)i;
		pair->from_guest_kick_fd = pair->to_guest_kick_fd = -1;
		atomic_store(&pair->busy_poll_us, mp->config.busy_poll_us);
		atomic_store(&pair->worker, -1);
		ck_spinlock_init(&pair->to_guest_lock);
		ring_init(&pair->to_guest);
		ring_init(&pair->from_guest);
		port->pairs[i] = pair;
		mp->pairs[i] = (struct managed_pair){.pair = pair, .worker = -1, .worker_wanted = -1, .watched_by = -1, .watched_fd = -1,
						   .ring_node = -1, .kick_cpu = -1};
	}
	return 0;
}

static int make_steering(struct engine *engine, struct managed_port *mp)
{
	struct uplink *uplink = uplink_of(engine, mp);

	memset(mp->flow_idle, FLOW_IDLE_AGINGS, sizeof(mp->flow_idle)); /* nothing was sent yet */
	if (uplink) {
		mp->port->flow_steering = bpf_set_flow_steering(uplink_bpf(uplink), mp->port->id);
		memset(mp->port->flow_steering, 0, VL_FLOW_BUCKETS * sizeof(uint32_t));
		return 0;
	}
	mp->private_steering = calloc(VL_FLOW_BUCKETS, sizeof(uint32_t));
	mp->port->flow_steering = mp->private_steering;
	return mp->private_steering ? 0 : -ENOMEM;
}

static void set_vlans(struct port *port, const struct config_vlan *vlan)
{
	port->pvid = vlan->id;
	port->key_vlan = config_vlan_key(vlan);
	port->takes_tags = vlan->mode != CONFIG_VLAN_ACCESS;
	port->any_vlan = vlan->mode == CONFIG_VLAN_NONE;
	port->vlans = vlan->listed;
	if (vlan->id)
		port->vlans.allowed[vlan->id / 64] |= 1ull << (vlan->id % 64);
}

static struct managed_port *make_port(struct engine *engine, const struct config_port *config, unsigned id, unsigned domain)
{
	struct managed_port *mp = calloc(1, sizeof(*mp));

	if (!mp)
		return NULL;
	mp->engine = engine;
	mp->config = *config;
	mp->port = calloc(1, sizeof(*mp->port));
	if (!mp->port)
		goto fail;
	mp->port->id = (uint16_t)id;
	mp->port->domain = (uint16_t)domain;
	set_vlans(mp->port, &config->vlan);
	mp->port->queue_pairs = (uint16_t)config->queues;
	atomic_init(&mp->port->learns, !config->has_mac);
	copy_string(mp->port->name, sizeof(mp->port->name), config->name);
	/* One row a worker and one for control. */
	mp->port->counters = zalloc_aligned((VL_WORKERS_MAX + 1) * sizeof(struct port_counters));
	if (!mp->port->counters || make_pairs(mp) || make_steering(engine, mp))
		goto fail;
	return mp;
fail:
	free_port(mp);
	return NULL;
}

static int domain_of(const struct engine *engine, const struct config_port *config, struct error *error)
{
	if (!config->uplink[0])
		return 0;
	for (unsigned d = 0; d < engine->uplink_count; d++)
		if (!strcmp(uplink_info(engine->uplinks[d])->ifname, config->uplink))
			return (int)d;
	return error_set(error, -ENODEV, "port %s: uplink=%s: not an uplink of this daemon; start it with --uplink %s", config->name, config->uplink,
			 config->uplink);
}

static int check_mac_clash(const struct engine *engine, const struct config_port *config, int domain, struct error *error)
{
	const struct managed_port *owner;
	char text[MAC_TEXT];

	if (!config->has_mac)
		return 0;
	mac_format(config->mac, text);
	owner = owner_of(engine, (unsigned)domain, config->mac, config_vlan_key(&config->vlan));
	if (owner && owner->config.has_mac)
		return error_set(error, -EEXIST, "port %s: mac=%s belongs to port %s; choose another address", config->name, text, owner->config.name);
	if ((unsigned)domain < engine->uplink_count && !memcmp(uplink_info(engine->uplinks[domain])->mac, config->mac, 6))
		return error_set(error, -EEXIST, "port %s: mac=%s is the address of uplink %s; choose another address", config->name, text,
				 uplink_info(engine->uplinks[domain])->ifname);
	return 0;
}

static int check_node(const struct engine *engine, const struct config_port *config, struct error *error)
{
	char nodes[128];

	if (config->node < 0 || topology_has_node(&engine->topology, config->node))
		return 0;
	return error_set(error, -ENXIO, "port %s, node '%d': no such NUMA node here; choose among %s, or auto", config->name, config->node,
			 topology_format_nodes(&engine->topology, nodes, sizeof(nodes)));
}

static int check_clash(const struct engine *engine, const struct config_port *config, int domain, struct error *error)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++) {
		const struct managed_port *mp = engine->ports[id];

		if (mp && !strcmp(mp->config.name, config->name))
			return error_set(error, -EEXIST, "port %s: a port of that name exists; choose another name, or `vhostlane port del %s` first",
					 config->name, config->name);
		if (mp && !strcmp(mp->config.socket, config->socket))
			return error_set(error, -EEXIST, "port %s: socket %s belongs to port %s; choose another path", config->name, config->socket,
					 mp->config.name);
	}
	return check_mac_clash(engine, config, domain, error);
}

int ports_add(struct engine *engine, const struct config_port *config, struct error *error)
{
	const int domain = domain_of(engine, config, error);
	struct managed_port *mp;
	unsigned id = 0, mtu;

	if (domain < 0)
		return domain;
	if (check_clash(engine, config, domain, error) || check_node(engine, config, error))
		return error->code;
	while (id < VL_PORTS_MAX && engine->ports[id])
		id++;
	if (id == VL_PORTS_MAX)
		return error_set(error, -ENOSPC, "port %s: %d ports exist already, the most one daemon serves; delete one or run a second daemon",
				 config->name, VL_PORTS_MAX);
	mp = make_port(engine, config, id, (unsigned)domain);
	if (!mp)
		return error_set(error, -ENOMEM, "port %s: out of memory; free some memory or give it fewer queues", config->name);
	mtu = config->mtu ? config->mtu : uplink_of(engine, mp) ? uplink_info(uplink_of(engine, mp))->mtu : 0;
	engine->ports[id] = mp;
	mp->session = vhost_user_open(engine->loop, config, mtu, mp->port, &session_ops, mp, error);
	if (!mp->session) {
		engine->ports[id] = NULL;
		free_port(mp);
		return error->code;
	}
	vhost_user_set_offloads(mp->session, config_offload_features(config->offloads));
	if (config->has_mac) {
		take_address_from_others(engine, mp);
		add_address(mp, config->mac, mp->port->key_vlan, false);
	}
	publisher_publish(engine);
	log_info("port %s: %s %s, %u queue pairs", config->name, config->role == PORT_ROLE_SERVER ? "listens on" : "connects to", config->socket,
		 config->queues);
	return 0;
}

void ports_remove(struct engine *engine, struct managed_port *mp)
{
	/* Steering away first, so that nothing new comes for it while its session ends. */
	mp->address_count = 0;
	memset(mp->withdrawn, 0xff, sizeof(mp->withdrawn));
	publisher_publish(engine);
	vhost_user_close(mp->session);
	mp->session = NULL;
	memset(mp->withdrawn, 0xff, sizeof(mp->withdrawn));
	publisher_forget(engine, mp);
	engine->ports[mp->port->id] = NULL;
	publisher_publish(engine);
	log_info("port %s: removed", mp->config.name);
	free_port(mp);
}

void ports_remove_all(struct engine *engine)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			ports_remove(engine, engine->ports[id]);
}

struct managed_port *ports_find(struct engine *engine, const char *name, struct error *error)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id] && !strcmp(engine->ports[id]->config.name, name))
			return engine->ports[id];
	error_set(error, -ENOENT, "port %s: there is none of that name; see `vhostlane port list`", name);
	return NULL;
}

static void set_mac(struct engine *engine, struct managed_port *mp, const struct config_port *wanted)
{
	mp->config = *wanted;
	atomic_store(&mp->port->learns, !wanted->has_mac);
	mp->address_count = 0; /* `auto`: the guest's next frame brings it back */
	if (wanted->has_mac) {
		take_address_from_others(engine, mp);
		add_address(mp, wanted->mac, mp->port->key_vlan, false);
	}
	publisher_publish(engine);
}

int ports_check_set(struct engine *engine, const struct managed_port *mp, struct config_port *wanted, const char *key, const char *value,
		    struct error *error)
{
	int result = config_port_check_settable(mp->config.name, key, error);

	if (!result)
		result = config_port_set(wanted, key, value, error);
	if (!result)
		result = config_check_port(wanted, error);
	if (!result)
		result = check_node(engine, wanted, error);
	/* Its present address is no clash. */
	if (!result && wanted->has_mac && (!mp->config.has_mac || memcmp(wanted->mac, mp->config.mac, 6)))
		result = check_mac_clash(engine, wanted, mp->port->domain, error);
	return result;
}

static unsigned mtu_of(const struct managed_port *mp)
{
	const struct uplink *uplink = uplink_of(mp->engine, mp);

	return mp->config.mtu ? mp->config.mtu : uplink ? uplink_info(uplink)->mtu : 0;
}

void ports_uplink_changed(struct engine *engine, unsigned domain)
{
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id] && engine->ports[id]->port->domain == domain)
			vhost_user_set_mtu(engine->ports[id]->session, mtu_of(engine->ports[id]));
	publisher_publish(engine);
}

int ports_set(struct engine *engine, struct managed_port *mp, const char *key, const char *value, struct error *error)
{
	struct config_port wanted = mp->config;

	if (ports_check_set(engine, mp, &wanted, key, value, error))
		return error->code;
	if (!strcmp(key, "busy-poll-us")) {
		mp->config.busy_poll_us = wanted.busy_poll_us;
		for (unsigned i = 0; i < mp->config.queues; i++)
			atomic_store(&mp->pairs[i].pair->busy_poll_us, wanted.busy_poll_us);
		publisher_publish(engine); /* sleepers take the new window */
		return 0;
	}
	if (!strcmp(key, "mac")) {
		set_mac(engine, mp, &wanted);
		return 0;
	}
	if (!strcmp(key, "node")) {
		mp->config.node = wanted.node;
		publisher_rebalance(engine, UINT32_MAX);
		return 0;
	}
	if (!strcmp(key, "offloads")) {
		mp->config.offloads = wanted.offloads;
		vhost_user_set_offloads(mp->session, config_offload_features(wanted.offloads));
		publisher_publish(engine); /* coalescing at once, features at the next negotiation */
		return 0;
	}
	if (!strcmp(key, "mtu")) {
		mp->config.mtu = wanted.mtu;
		vhost_user_set_mtu(mp->session, mtu_of(mp));
		return 0;
	}
	return -EINVAL; /* not reached: those are the settable keys */
}

uint64_t port_counter_sum(const struct managed_port *mp, enum port_counter which)
{
	uint64_t sum = 0;

	for (unsigned row = 0; row <= VL_WORKERS_MAX; row++)
		sum += __atomic_load_n(&mp->port->counters[row].value[which], __ATOMIC_RELAXED);
	return sum;
}
