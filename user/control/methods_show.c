/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/methods_show.h"

#include <stdatomic.h>
#include <string.h>

#include "control/link_monitor.h"
#include "control/irq.h"
#include "control/ports.h"
#include "control/unserved.h"
#include "control/workforce.h"

struct bit_name {
	unsigned bit;
	const char *name;
};

/* virtio 1.2, 5.1.3 and 6. */
static const struct bit_name feature_names[] = {
	{0, "CSUM"},		  {1, "GUEST_CSUM"},	   {3, "MTU"},	       {7, "GUEST_TSO4"},  {8, "GUEST_TSO6"},
	{9, "GUEST_ECN"},	  {11, "HOST_TSO4"},	   {12, "HOST_TSO6"},  {13, "HOST_ECN"},   {15, "MRG_RXBUF"},
	{16, "STATUS"},		  {17, "CTRL_VQ"},	   {18, "CTRL_RX"},    {19, "CTRL_VLAN"},  {21, "GUEST_ANNOUNCE"},
	{22, "MQ"},		  {23, "CTRL_MAC_ADDR"},   {26, "LOG_ALL"},    {27, "ANY_LAYOUT"}, {28, "INDIRECT_DESC"},
	{29, "EVENT_IDX"},	  {30, "PROTOCOL_FEATURES"},{32, "VERSION_1"}, {33, "ACCESS_PLATFORM"}, {34, "RING_PACKED"},
	{35, "IN_ORDER"},	  {40, "RING_RESET"},	   {54, "GUEST_USO4"}, {55, "GUEST_USO6"}, {56, "HOST_USO"},
};

/* QEMU: docs/interop/vhost-user.rst, protocol features. */
static const struct bit_name protocol_feature_names[] = {
	{0, "MQ"},		  {1, "LOG_SHMFD"},	{2, "RARP"},	     {3, "REPLY_ACK"},	     {4, "MTU"},
	{9, "CONFIG"},		  {12, "INFLIGHT_SHMFD"},{13, "RESET_DEVICE"},{15, "CONFIGURE_MEM_SLOTS"}, {16, "STATUS"},
};

static json_t *show_bits(uint64_t bits, const struct bit_name *names, unsigned count)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < count; i++)
		if (bits >> names[i].bit & 1)
			json_array_append_new(list, json_string(names[i].name));
	return list;
}

static json_t *show_busy_poll(uint32_t busy_poll_us)
{
	char text[CONFIG_BUSY_POLL_TEXT];

	return busy_poll_us >= BUSY_POLL_ADAPTIVE ? json_string(config_format_busy_poll(busy_poll_us, text)) : json_integer(busy_poll_us);
}

static json_t *show_mac(const uint8_t *mac)
{
	char text[MAC_TEXT];

	return json_string(mac_format(mac, text));
}

static unsigned served_pairs(const struct managed_port *mp)
{
	unsigned count = 0;

	for (unsigned i = 0; i < mp->config.queues; i++)
		count += vhost_user_ring_active(mp->session, 2 * i) || vhost_user_ring_active(mp->session, 2 * i + 1);
	return count;
}

json_t *show_port(const struct managed_port *mp)
{
	const struct uplink *uplink = uplink_of(mp->engine, mp);
	char vlan[CONFIG_VLAN_TEXT], offloads[CONFIG_OFFLOADS_TEXT];

	return json_pack("{ss si ss ss ss so so si so si si ss si sI ss ss}", "name", mp->config.name, "id", mp->port->id, "socket", mp->config.socket,
			 "role", port_role_names[mp->config.role], "state", vhost_user_state_names[vhost_user_state_of(mp->session)], "mac",
			 mp->config.has_mac ? show_mac(mp->config.mac) : json_null(), "vlan",
			 mp->config.vlan.mode == CONFIG_VLAN_TRUNK ? json_string(config_format_vlan(&mp->config.vlan, vlan)) : json_integer(mp->config.vlan.id), "queues", (int)mp->config.queues,
			 "busy-poll-us", show_busy_poll(mp->config.busy_poll_us), "node", mp->config.node, "mtu", (int)mp->config.mtu, "uplink",
			 uplink ? uplink_info(uplink)->ifname : "", "served_queue_pairs", (int)served_pairs(mp), "sessions",
			 (json_int_t)vhost_user_sessions_served(mp->session), "offloads",
			 config_format_offloads(mp->config.offloads, offloads), "group", mp->config.group);
}

static uint64_t load(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

static json_t *show_ring(const struct managed_port *mp, unsigned index)
{
	const struct queue_pair *pair = mp->pairs[index / 2].pair;
	const struct ring *ring = index & 1 ? &pair->from_guest : &pair->to_guest;
	const struct ring_counters *c = &ring->counters;
	const int fault = atomic_load(&ring->fault);

	return json_pack("{si si ss sb sb si ss sI sI sI sI sI sI sI sI sI sI sI}", "ring", (int)index, "pair", (int)index / 2, "direction",
			 index & 1 ? "from_guest" : "to_guest", "started", vhost_user_ring_started(mp->session, index), "enabled",
			 vhost_user_ring_enabled(mp->session, index), "size", ring->size, "fault", ring_fault_names[fault], "frames",
			 (json_int_t)load(&c->frames), "bytes", (json_int_t)load(&c->bytes), "kicks_armed", (json_int_t)load(&c->kicks_armed),
			 "calls_sent", (json_int_t)load(&c->calls_sent), "calls_suppressed", (json_int_t)load(&c->calls_suppressed), "no_buffers",
			 (json_int_t)load(&c->no_buffers), "buffers_too_small", (json_int_t)load(&c->buffers_too_small), "frames_short",
			 (json_int_t)load(&c->frames_short), "frames_long", (json_int_t)load(&c->frames_long), "segments_exhausted",
			 (json_int_t)load(&c->segments_exhausted), "header_bad", (json_int_t)load(&c->header_bad));
}

/* Drops that the port's rings counted themselves, by the names under which `counters` shows them. */
static void add_ring_drops(json_t *object, const struct managed_port *mp)
{
	uint64_t frames_short = 0, frames_long = 0, segments = 0, header = 0;

	for (unsigned i = 0; i < mp->config.queues; i++) {
		const struct ring_counters *c = &mp->pairs[i].pair->from_guest.counters;

		frames_short += load(&c->frames_short);
		frames_long += load(&c->frames_long);
		segments += load(&c->segments_exhausted);
		header += load(&c->header_bad);
	}
	json_object_set_new(object, "from_guest_frame_short", json_integer((json_int_t)frames_short));
	json_object_set_new(object, "from_guest_frame_long", json_integer((json_int_t)frames_long));
	json_object_set_new(object, "from_guest_too_many_segments", json_integer((json_int_t)segments));
	json_object_set_new(object, "from_guest_header_short", json_integer((json_int_t)header));
}

static json_t *show_port_counters(const struct managed_port *mp, bool only_drops)
{
	json_t *object = json_object();

	for (unsigned c = 0; c < PORT_COUNTER_COUNT; c++)
		if (!only_drops || port_counter_is_drop[c])
			json_object_set_new(object, port_counter_names[c], json_integer((json_int_t)port_counter_sum(mp, c)));
	add_ring_drops(object, mp);
	return object;
}

json_t *show_port_in_full(const struct managed_port *mp)
{
	json_t *object = show_port(mp), *addresses = json_array(), *rings = json_array();
	const uint64_t fault_ns = vhost_user_last_fault_ns(mp->session);
	const unsigned guest_mtu = vhost_user_guest_mtu(mp->session);

	for (unsigned a = 0; a < mp->address_count; a++)
		json_array_append_new(addresses, json_pack("{so si ss}", "mac", show_mac(mp->addresses[a].mac), "vlan", mp->addresses[a].vlan, "how",
							   mp->addresses[a].learned ? "learned" : "configured"));
	for (unsigned r = 0; r < 2 * mp->config.queues; r++)
		json_array_append_new(rings, show_ring(mp, r));
	json_object_set_new(object, "features", show_bits(vhost_user_features(mp->session), feature_names, ARRAY_SIZE(feature_names)));
	json_object_set_new(object, "protocol_features", show_bits(vhost_user_protocol_features(mp->session), protocol_feature_names,
								   ARRAY_SIZE(protocol_feature_names)));
	json_object_set_new(object, "peer_pid", json_integer(vhost_user_peer_pid(mp->session)));
	json_object_set_new(object, "guest_mtu", guest_mtu ? json_integer(guest_mtu) : json_null());
	json_object_set_new(object, "last_fault", json_string(vhost_user_last_fault(mp->session)));
	json_object_set_new(object, "last_fault_ago_s", fault_ns ? json_real((double)(now_ns() - fault_ns) / 1e9) : json_null());
	json_object_set_new(object, "addresses", addresses);
	json_object_set_new(object, "rings", rings);
	json_object_set_new(object, "counters", show_port_counters(mp, false));
	return object;
}

/* Text: port's name, reason, vcpus. The rest: 21 keys of at most 20 characters, and numbers. */
_Static_assert((CONFIG_PORT_NAME_MAX + 64 + 256 + 21 * (20 + 4) + 21 * 20) * VL_PORTS_MAX * VL_QUEUE_PAIRS_MAX < CONTROL_RESPONSE_MAX,
	       "queue.list fits into one response");

json_t *show_pair(const struct engine *engine, const struct managed_port *mp, unsigned index)
{
	const struct managed_pair *managed = &mp->pairs[index];
	const int w = atomic_load(&managed->pair->worker);
	const struct worker *worker = w >= 0 ? engine->workers[w] : NULL;

	struct evidence_peer peer;
	char vcpus[256];

	evidence_history_get(&mp->history, &peer);
	return json_pack("{ss si so so so so ss sI sI sI si si si ss si si sf sI sI sI sI}", "port", mp->config.name, "pair", (int)index, "worker", worker ? json_integer(w) : json_null(),
			 "cpu", worker ? json_integer(worker_cpu(worker)) : json_null(), "node",
			 worker ? json_integer(worker_node(worker)) : json_null(), "busy-poll-us",
			 show_busy_poll(atomic_load(&managed->pair->busy_poll_us)), "reason", placement_reason_names[managed->reason], "generation",
			 (json_int_t)managed->generation, "frames_to_guest", (json_int_t)load(&managed->pair->to_guest.counters.frames),
			 "frames_from_guest", (json_int_t)load(&managed->pair->from_guest.counters.frames), "ring_node", managed->ring_node,
			 "buffer_node", managed->buffer_node, "vcpu_node", peer.node, "vcpus", cpulist_format(&peer.vcpus, vcpus, sizeof(vcpus)), "kick_cpu", managed->kick.cpu,
			 "state_node", worker ? evidence_ring_node(managed->pair) : -1,
			 "busy_percent", managed->load_permille / 10.0, "calls_sent",
			 (json_int_t)(load(&managed->pair->to_guest.counters.calls_sent) + load(&managed->pair->from_guest.counters.calls_sent)),
			 "calls_suppressed",
			 (json_int_t)(load(&managed->pair->to_guest.counters.calls_suppressed) +
				      load(&managed->pair->from_guest.counters.calls_suppressed)),
			 "waiting_us", (json_int_t)unserved_age_us(managed), "longest_wait_us", (json_int_t)managed->longest_wait_us);
}

static void add_worker_counters(json_t *object, const struct worker *worker, bool only_drops)
{
	for (unsigned c = 0; c < WORKER_COUNTER_COUNT; c++)
		if (!only_drops || worker_counter_is_drop[c])
			json_object_set_new(object, worker_counter_names[c], json_integer((json_int_t)worker_counter(worker, c)));
}

/* Drops at the ends that this worker sends on. */
static void add_send_drops(json_t *object, const struct engine *engine, const struct worker *worker)
{
	uint64_t no_frame = 0, ring_full = 0, too_long = 0;

	for (unsigned d = 0; d < engine->device_count; d++) {
		const struct lane_port *port = worker_lane_port(worker, d);

		no_frame += load(&port->dropped_no_frame);
		ring_full += load(&port->dropped_ring_full);
		too_long += load(&port->dropped_too_long);
	}
	json_object_set_new(object, "send_no_frame", json_integer((json_int_t)no_frame));
	json_object_set_new(object, "send_ring_full", json_integer((json_int_t)ring_full));
	json_object_set_new(object, "send_too_long", json_integer((json_int_t)too_long));
}

/* "eth1/0,eth1/2": the uplinks' receive queues whose interrupts come to a CPU. */
struct irq_cpus {
	int of_queue[DOMAINS_MAX][VL_DEVICE_QUEUES_MAX];
};

static void read_irq_cpus(const struct engine *engine, struct irq_cpus *irqs)
{
	for (unsigned u = 0; u < engine->uplink_count; u++)
		irq_cpus_of_queues(uplink_info(engine->uplinks[u])->ifname, irqs->of_queue[u], lane_device_queues(uplink_device(engine->uplinks[u])));
}

static json_t *show_irqs_of_cpu(const struct engine *engine, const struct irq_cpus *irqs, int cpu)
{
	json_t *list = json_array();

	for (unsigned u = 0; cpu >= 0 && u < engine->uplink_count; u++)
		for (unsigned q = 0; q < lane_device_queues(uplink_device(engine->uplinks[u])); q++)
			if (irqs->of_queue[u][q] == cpu)
				json_array_append_new(list, json_sprintf("%s/%u", uplink_info(engine->uplinks[u])->ifname, q));
	return list;
}

static const char *state_of_worker(const struct engine *engine, unsigned index)
{
	if (engine->served[index].stalled)
		return "stalled";
	return worker_asleep(engine->workers[index]) ? "asleep" : "running";
}

static json_t *show_worker(const struct engine *engine, unsigned index, const struct irq_cpus *irqs)
{
	const struct worker *worker = engine->workers[index];
	const struct plan *plan = atomic_load(&engine->plan);
	json_t *object = json_pack("{si si si si si ss sf sf sb sf so}", "worker", (int)index, "cpu", worker_cpu(worker), "node", worker_node(worker), "tid",
				   worker_tid(worker), "pairs", (int)plan->shares[index].pair_count, "state",
				   state_of_worker(engine, index), "busy_percent", engine->looked[index].busy_permille / 10.0, "others_percent",
				   engine->looked[index].others_permille / 10.0, "in_use", workforce_uses(engine, index), "patience_percent", 100.0 * worker_patience(worker) / WORKER_PATIENCE_FULL,
				   "irqs", show_irqs_of_cpu(engine, irqs, worker_cpu(worker)));

	add_worker_counters(object, worker, false);
	add_send_drops(object, engine, worker);
	return object;
}

json_t *show_workers(const struct engine *engine)
{
	json_t *list = json_array();
	struct irq_cpus irqs;

	read_irq_cpus(engine, &irqs);
	for (unsigned w = 0; w < engine->worker_count; w++)
		json_array_append_new(list, show_worker(engine, w, &irqs));
	return list;
}

static json_t *show_census(const struct engine *engine, struct lane_device *device)
{
	struct lane_port *ports[VL_WORKERS_MAX];
	struct lane_census c;

	for (unsigned d = 0; d < engine->device_count; d++)
		for (unsigned w = 0; engine->devices[d].device == device && w < engine->worker_count; w++)
			ports[w] = worker_lane_port(engine->workers[w], d);
	lane_device_census(device, ports, &c);
	return json_pack("{si si si si si si si si sI}", "total", (int)c.total, "stock", (int)c.stock, "cached", (int)c.cached, "held", (int)c.held, "fill",
			 (int)c.fill, "rx", (int)c.rx, "tx", (int)c.tx, "completion", (int)c.completion, "kernel", (json_int_t)c.kernel);
}

static json_t *show_kernel_drops(struct lane_device *device)
{
	struct lane_kernel_drops d;

	lane_device_kernel_drops(device, &d);
	return json_pack("{sI sI sI sI sI sI}", "rx_dropped", (json_int_t)d.rx_dropped, "rx_invalid", (json_int_t)d.rx_invalid, "tx_invalid",
			 (json_int_t)d.tx_invalid, "rx_ring_full", (json_int_t)d.rx_ring_full, "fill_ring_empty", (json_int_t)d.fill_ring_empty,
			 "tx_ring_empty", (json_int_t)d.tx_ring_empty);
}

static json_t *show_memory(struct lane_device *device)
{
	const struct frame_pool *pool = lane_device_pool(device);

	return json_pack("{sI si si sb}", "bytes", (json_int_t)frame_pool_bytes(pool), "node", frame_pool_node(pool), "node_found",
			 frame_pool_node_found(pool), "huge_pages", frame_pool_huge(pool));
}

static json_t *show_host_links(const struct engine *engine, struct uplink *uplink)
{
	json_t *list = json_array();

	for (unsigned node = 0; node < VL_NODES_MAX; node++) {
		struct host_link *link = uplink_host_link(uplink, node);

		if (!link)
			continue;
		json_array_append_new(list, json_pack("{ss si si ss so so so}", "ifname", host_link_host_end(link)->ifname, "node", (int)node, "queues",
						      (int)lane_device_queues(host_link_device(link)), "tx_checksum",
						      tx_checksum_names[host_link_tx_checksum(link)], "umem", show_memory(host_link_device(link)),
						      "frames", show_census(engine, host_link_device(link)), "kernel_drops",
						      show_kernel_drops(host_link_device(link))));
	}
	return list;
}

/* "2,3,-": CPU of each receive queue's interrupt; "" for a device without interrupts of its own. */
static json_t *show_irq_cpus(const struct netdev_info *info, unsigned queues)
{
	char text[8 * VL_DEVICE_QUEUES_MAX] = "";
	int cpus[VL_DEVICE_QUEUES_MAX];
	bool known = false;
	size_t used = 0;

	irq_cpus_of_queues(info->ifname, cpus, queues);
	for (unsigned q = 0; q < queues && used < sizeof(text); q++) {
		used += (size_t)snprintf(text + used, sizeof(text) - used, cpus[q] < 0 ? "%s-" : "%s%d", q ? "," : "", cpus[q]);
		known |= cpus[q] >= 0;
	}
	return json_string(known ? text : "");
}

json_t *show_uplink(struct engine *engine, unsigned index)
{
	struct uplink *uplink = engine->uplinks[index];
	const struct netdev_info *info = uplink_info(uplink);
	struct lane_device *device = uplink_device(uplink);

	return json_pack("{ss ss so ss si si si ss sb sb so so so so ss so}", "ifname", info->ifname, "state", link_monitor_state(engine, index), "mac", show_mac(info->mac), "mode",
			 lane_mode_names[lane_device_mode(device)], "queues", (int)lane_device_queues(device), "node", info->node, "mtu", (int)info->mtu,
			 "tx_checksum", tx_checksum_names[uplink_tx_checksum(uplink)],
			 "dispatcher", bpf_set_dispatcher(uplink_bpf(uplink)), "adopted", bpf_set_adopted(uplink_bpf(uplink)), "umem",
			 show_memory(device), "frames", show_census(engine, device), "kernel_drops", show_kernel_drops(device), "host_links",
			 show_host_links(engine, uplink), "warnings", uplink_warnings(uplink),
			 "irq_cpus", show_irq_cpus(info, lane_device_queues(device)));
}

json_t *show_trouble(struct engine *engine)
{
	json_t *list = json_array();

	for (unsigned u = 0; u < engine->uplink_count; u++) {
		const char *state = link_monitor_state(engine, u);

		if (strcmp(state, "up"))
			json_array_append_new(list, json_sprintf("uplink %s: %s", uplink_info(engine->uplinks[u])->ifname, state));
	}
	return list;
}

/* Frames that all workers sent there with their checksum left to it. */
static uint64_t left_checksums(const struct engine *engine, const struct lane_device *device)
{
	uint64_t count = 0;

	for (unsigned d = 0; d < engine->device_count; d++)
		for (unsigned w = 0; engine->devices[d].device == device && w < engine->worker_count; w++)
			count += load(&worker_lane_port(engine->workers[w], d)->left_checksums);
	return count;
}

static void add_left_checksums(json_t *object, const struct engine *engine, struct uplink *uplink)
{
	uint64_t host = 0;

	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		if (uplink_host_link(uplink, node))
			host += left_checksums(engine, host_link_device(uplink_host_link(uplink, node)));
	json_object_set_new(object, "checksums_left_to_wire", json_integer((json_int_t)left_checksums(engine, uplink_device(uplink))));
	json_object_set_new(object, "checksums_left_to_host", json_integer((json_int_t)host));
}

static json_t *show_uplink_counters(const struct engine *engine, struct uplink *uplink, bool only_drops)
{
	uint64_t values[VL_REASON_COUNT] = {0};
	json_t *object = json_object(), *kernel = show_kernel_drops(uplink_device(uplink)), *value;
	const char *name;

	bpf_set_counters(uplink_bpf(uplink), values);
	for (unsigned r = 0; r < VL_REASON_COUNT; r++)
		if (!only_drops || r < VL_REASON_FIRST_PASS)
			json_object_set_new(object, vl_reason_names[r], json_integer((json_int_t)values[r]));
	json_object_foreach(kernel, name, value) {
		char text[64];

		if (only_drops && !strcmp(name, "tx_ring_empty"))
			continue; /* no drop: the kernel looked for frames to send and found none */
		snprintf(text, sizeof(text), "socket_%s", name);
		json_object_set(object, text, value);
	}
	json_decref(kernel);
	if (!only_drops)
		add_left_checksums(object, engine, uplink);
	return object;
}

json_t *show_counters(const struct engine *engine, bool only_drops)
{
	json_t *ports = json_object(), *workers = json_object(), *uplinks = json_object();

	for (unsigned id = 0; id < VL_PORTS_MAX; id++)
		if (engine->ports[id])
			json_object_set_new(ports, engine->ports[id]->config.name, show_port_counters(engine->ports[id], only_drops));
	for (unsigned w = 0; w < engine->worker_count; w++) {
		json_t *object = json_object();
		char name[16];

		snprintf(name, sizeof(name), "%u", w);
		add_worker_counters(object, engine->workers[w], only_drops);
		add_send_drops(object, engine, engine->workers[w]);
		json_object_set_new(workers, name, object);
	}
	for (unsigned u = 0; u < engine->uplink_count; u++)
		json_object_set_new(uplinks, uplink_info(engine->uplinks[u])->ifname, show_uplink_counters(engine, engine->uplinks[u], only_drops));
	return json_pack("{so so so}", "ports", ports, "workers", workers, "uplinks", uplinks);
}
