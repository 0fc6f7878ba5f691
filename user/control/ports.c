/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/ports.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "control/addresses.h"
#include "control/pair_memory.h"
#include "control/publisher.h"
#include "control/rebalance.h"

#define ANNOUNCE_INTERVAL_NS 50000000ull /* QEMU announces a few times, tens of milliseconds apart */

void ports_handle_worker_news(struct engine *engine)
{
	struct learn_request request;
	bool learned = false;

	for (unsigned w = 0; w < engine->worker_count; w++)
		while (worker_take_learn(engine->workers[w], &request))
			learned |= addresses_learn(engine, w, &request);
	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			vhost_user_check_faults(engine->ports[id]->session);
	if (learned) {
		publisher_publish(engine);
		addresses_challenge_owners(engine);
	}
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
		addresses_forget_learned(mp);
	publisher_publish(mp->engine);
}

static void session_synchronize(void *context)
{
	publisher_synchronize(((struct managed_port *)context)->engine);
}

/* The port's own address, or one that it may learn. */
static bool may_announce(const struct engine *engine, const struct managed_port *mp, const uint8_t *mac)
{
	const struct managed_port *owner = addresses_owner(engine, mp->port->domain, mac, mp->port->key_vlan);

	if (owner || !atomic_load(&mp->port->learns))
		return owner == mp;
	return !mac_is_multicast(mac) && address_is_free(engine, mp->port->domain, mac, mp->port->key_vlan);
}

static void session_announce(void *context, const uint8_t mac[6])
{
	struct managed_port *mp = context;
	struct engine *engine = mp->engine;
	struct uplink *uplink = uplink_of(engine, mp);
	struct error error;

	if (!uplink || now_ns() - mp->announced_ns < ANNOUNCE_INTERVAL_NS || !may_announce(engine, mp, mac))
		return;
	mp->announced_ns = now_ns();
	if (wire_talk_announce(&engine->talk, uplink_info(uplink), mac, mp->port->pvid, &error))
		log_limited(LOG_LEVEL_WARNING, "port %s: %s", mp->config.name, error.text);
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
		pair_memory_free(mp->pairs[i].pair);
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
		struct queue_pair *pair = pair_memory_create(port->id * 5u + i);

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
						   .ring_node = -1, .buffer_node = -1, .state_node = -1,
						   .kick = EVIDENCE_KICK_NONE};
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
	owner = addresses_owner(engine, (unsigned)domain, config->mac, config_vlan_key(&config->vlan));
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
	if (!strcmp(config->socket, engine->config->control))
		return error_set(error, -EEXIST, "port %s: socket %s is the control socket; choose another path", config->name, config->socket);
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

static unsigned mtu_of(const struct managed_port *mp)
{
	const struct uplink *uplink = uplink_of(mp->engine, mp);

	return mp->config.mtu ? mp->config.mtu : uplink ? uplink_info(uplink)->mtu : 0;
}

int ports_add(struct engine *engine, const struct config_port *config, struct error *error)
{
	const int domain = domain_of(engine, config, error);
	struct managed_port *mp;
	unsigned id = 0;

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
	engine->ports[id] = mp;
	mp->session = vhost_user_open(engine->loop, config, mtu_of(mp), config_offload_features(config->offloads), mp->port, &session_ops, mp, error);
	if (!mp->session) {
		engine->ports[id] = NULL;
		free_port(mp);
		return error->code;
	}
	if (config->has_mac) {
		addresses_take_from_others(engine, mp);
		addresses_add(mp, config->mac, mp->port->key_vlan, false);
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
	error_set(error, -ENOENT, "port %.64s: there is none of that name; see `vhostlane port list`", name);
	return NULL;
}

static void set_mac(struct engine *engine, struct managed_port *mp, const struct config_port *wanted)
{
	mp->config = *wanted;
	atomic_store(&mp->port->learns, !wanted->has_mac);
	mp->address_count = 0; /* `auto`: the guest's next frame brings it back */
	if (wanted->has_mac) {
		addresses_take_from_others(engine, mp);
		addresses_add(mp, wanted->mac, mp->port->key_vlan, false);
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
