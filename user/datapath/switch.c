/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * A burst is sorted by destination before anything is delivered, so that a ring's lock is taken and its index published once a
 * group. Groups keep the order of the burst, so frames of one flow, which all have one destination, are never reordered. There
 * are GROUPS_MAX groups; a burst with more destinations delivers what it has and goes on.
 *
 * Frames travel in the form in which the wire carries them: what an access port's guest sends gets its tag first, and the tag
 * comes off as a frame enters an access port. Both happen in the private head, by moving two addresses four bytes.
 */
#include "datapath/switch.h"

#include "datapath/bytes.h"
#include "datapath/flow.h"

#define GROUPS_MAX 8

enum destination_kind { TO_PORT, TO_UPLINK, TO_HOST, TO_ALL };

struct group {
	uint64_t key; /* kind and pair, to find it again */
	enum destination_kind kind;
	const struct port_view *view;
	struct queue_pair *pair;
	uint32_t count;
	struct frame *frames[FRAME_BURST];
};

struct sorting {
	const struct plan *plan;
	unsigned domain;
	unsigned worker;
	struct port *sender; /* NULL = the frames come from a device */
	const struct switch_output *output;
	uint32_t group_count;
	struct group groups[GROUPS_MAX];
};

static struct port_counters *counters_of(const struct sorting *s, const struct port *port)
{
	return &port->counters[s->worker];
}

/* Does the port carry frames of this VLAN (0 = untagged), as the wire has them? */
static bool port_carries(const struct port *port, uint16_t vlan)
{
	return port->any_vlan || vl_vlan_allowed(&port->vlans, vlan);
}

/* As it lies in a frame: 802.1Q, priority 0. */
static uint32_t tag_of(uint16_t vlan)
{
	const uint8_t tag[VLAN_TAG_LENGTH] = {0x81, 0x00, (uint8_t)(vlan >> 8), (uint8_t)vlan};

	return load_32(tag);
}

static void tag_push(struct frame *frame, uint32_t tag)
{
	uint8_t *head = frame->head - VLAN_TAG_LENGTH;

	memmove(head, frame->head, ETHERNET_TYPE_OFFSET);
	memcpy(head + ETHERNET_TYPE_OFFSET, &tag, VLAN_TAG_LENGTH);
	frame->head = head;
	frame->head_length += VLAN_TAG_LENGTH;
	frame->length += VLAN_TAG_LENGTH;
	frame_offload_shift(frame, VLAN_TAG_LENGTH);
}

/* Return: the tag. */
static uint32_t tag_pop(struct frame *frame)
{
	uint8_t *head = frame->head + VLAN_TAG_LENGTH;
	const uint32_t tag = load_32(frame->head + ETHERNET_TYPE_OFFSET);

	memmove(head, frame->head, ETHERNET_TYPE_OFFSET);
	frame->head = head;
	frame->head_length -= VLAN_TAG_LENGTH;
	frame->length -= VLAN_TAG_LENGTH;
	frame_offload_shift(frame, -VLAN_TAG_LENGTH);
	return tag;
}

/* The pair of a receiving port on which the frame's flow rides. */
static struct queue_pair *pair_of_flow(const struct port_view *view, const struct frame *frame)
{
	uint32_t slot;

	if (view->port->queue_pairs == 1)
		return view->slots[0];
	slot = __atomic_load_n(&view->port->flow_steering[vl_flow_index(0, flow_hash_frame(frame->head, frame->head_length))],
			       __ATOMIC_RELAXED);
	return view->slots[slot % view->port->queue_pairs];
}

/* Frames of the port's own VLAN without their tag; put back afterwards with its priority, for others that get the same frame. */
static void deliver_untagged(struct sorting *s, const struct port_view *view, struct queue_pair *pair, struct frame **frames, uint32_t count)
{
	const uint16_t pvid = view->port->pvid;
	uint32_t tags[FRAME_BURST];
	uint64_t popped = 0;

	_Static_assert(FRAME_BURST <= 64, "a bit a frame");
	for (uint32_t i = 0; i < count; i++)
		if (frame_vlan(frames[i]->head, frames[i]->head_length) == pvid) {
			tags[i] = tag_pop(frames[i]);
			popped |= 1ull << i;
		}
	s->output->to_guest(s->output->context, view, pair, frames, count);
	for (uint32_t i = 0; i < count; i++)
		if (popped >> i & 1)
			tag_push(frames[i], tags[i]);
}

static void deliver_to_pair(struct sorting *s, const struct port_view *view, struct queue_pair *pair, struct frame **frames,
			    uint32_t count)
{
	if (view->port->pvid)
		deliver_untagged(s, view, pair, frames, count);
	else
		s->output->to_guest(s->output->context, view, pair, frames, count);
}

/* One frame to every port of the domain that carries its VLAN, except its sender. Return: ports reached. */
static uint32_t flood_to_ports(struct sorting *s, struct frame *frame)
{
	const struct plan_domain *domain = &s->plan->domains[s->domain];
	const uint16_t vlan = frame_vlan(frame->head, frame->head_length);
	uint32_t reached = 0;

	for (uint32_t i = 0; i < domain->flood_count; i++) {
		const struct port_view *view = &s->plan->ports[domain->flood_ports[i]];

		if (view->port == s->sender || !port_carries(view->port, vlan))
			continue;
		deliver_to_pair(s, view, pair_of_flow(view, frame), &frame, 1);
		reached++;
	}
	return reached;
}

static void count_to_device(struct sorting *s, enum port_counter sent, enum port_counter full, uint32_t offered, uint32_t accepted,
			    const struct too_long *too_long)
{
	if (!s->sender)
		return;
	counter_add(counters_of(s, s->sender), sent, accepted);
	if (likely(accepted == offered))
		return;
	counter_add(counters_of(s, s->sender), full, offered - accepted - too_long->count);
	counter_add(counters_of(s, s->sender), PORT_DROP_FROM_GUEST_TOO_LONG, too_long->count);
	if (too_long->count)
		log_limited_by(&s->sender->large_limit, LOG_LEVEL_WARNING,
			       "port %s: a frame of %u bytes is longer than the uplink's MTU allows; lower the guest's MTU or raise the uplink's",
			       s->sender->name, too_long->length);
}

static void send_to_uplink(struct sorting *s, struct frame **frames, uint32_t count)
{
	struct too_long too_long = {0};
	const uint32_t accepted = s->output->to_uplink(s->output->context, s->domain, frames, count, &too_long);

	count_to_device(s, PORT_TO_UPLINK_FRAMES, PORT_DROP_FROM_GUEST_UPLINK_FULL, count, accepted, &too_long);
}

static void send_to_host(struct sorting *s, struct frame **frames, uint32_t count)
{
	struct too_long too_long = {0};
	const uint32_t accepted = s->output->to_host(s->output->context, s->domain, frames, count, &too_long);

	count_to_device(s, PORT_TO_HOST_FRAMES, PORT_DROP_FROM_GUEST_HOST_FULL, count, accepted, &too_long);
}

/* Two guests back to back, no wire: one destination, so that a whole group can go in one piece. NULL = not so. */
static const struct port_view *only_other_port(const struct sorting *s)
{
	const struct plan_domain *domain = &s->plan->domains[s->domain];
	const struct port_view *only = NULL;

	if (domain->flood_count > 2)
		return NULL;
	for (uint32_t i = 0; i < domain->flood_count; i++) {
		const struct port_view *view = &s->plan->ports[domain->flood_ports[i]];

		if (view->port == s->sender)
			continue;
		if (only || !view->port->any_vlan || view->port->pvid || view->port->queue_pairs > 1)
			return NULL;
		only = view;
	}
	return only;
}

/* From a guest: other guests, the wire, the host. From a device (host link only): guests; wire and host have it already. */
static void flood(struct sorting *s, struct group *g)
{
	const struct port_view *only;

	if (s->plan->domains[s->domain].has_uplink) {
		for (uint32_t i = 0; i < g->count; i++)
			flood_to_ports(s, g->frames[i]);
		if (s->sender) {
			send_to_uplink(s, g->frames, g->count);
			send_to_host(s, g->frames, g->count);
		}
		return;
	}
	only = only_other_port(s);
	if (only) {
		s->output->to_guest(s->output->context, only, only->slots[0], g->frames, g->count);
		return;
	}
	for (uint32_t i = 0; i < g->count; i++)
		if (!flood_to_ports(s, g->frames[i]) && s->sender)
			counter_add(counters_of(s, s->sender), PORT_DROP_FROM_GUEST_NO_UPLINK, 1);
}

static void deliver_groups(struct sorting *s)
{
	for (uint32_t i = 0; i < s->group_count; i++) {
		struct group *g = &s->groups[i];

		switch (g->kind) {
		case TO_PORT:
			deliver_to_pair(s, g->view, g->pair, g->frames, g->count);
			break;
		case TO_UPLINK:
			send_to_uplink(s, g->frames, g->count);
			break;
		case TO_HOST:
			send_to_host(s, g->frames, g->count);
			break;
		case TO_ALL:
			flood(s, g);
			break;
		}
	}
	s->group_count = 0;
}

static void add_to_group(struct sorting *s, enum destination_kind kind, const struct port_view *view, struct queue_pair *pair,
			 struct frame *frame)
{
	const uint64_t key = (uintptr_t)pair | kind; /* pairs are cache-line aligned: the low bits are free */
	struct group *g;

	for (uint32_t i = 0; i < s->group_count; i++) {
		g = &s->groups[i];
		if (g->key == key) {
			g->frames[g->count++] = frame;
			return;
		}
	}
	if (s->group_count == GROUPS_MAX)
		deliver_groups(s);
	g = &s->groups[s->group_count++];
	g->key = key;
	g->kind = kind;
	g->view = view;
	g->pair = pair;
	g->count = 1;
	g->frames[0] = frame;
}

static void route_to_port(struct sorting *s, int32_t port, struct frame *frame)
{
	const struct port_view *view = &s->plan->ports[port];

	if (unlikely(!view->receiving)) {
		if (view->port)
			counter_add(counters_of(s, view->port), PORT_DROP_TO_GUEST_DOWN, 1);
		return;
	}
	add_to_group(s, TO_PORT, view, pair_of_flow(view, frame), frame);
}

/* The port of a destination address, if it carries the VLAN. */
static int32_t look_up(const struct sorting *s, const uint8_t *mac, uint16_t vlan)
{
	const int32_t to = forwarding_lookup(s->plan->domains[s->domain].forwarding, forwarding_key(mac, vlan));

	return to >= 0 && unlikely(!port_carries(s->plan->ports[to].port, vlan)) ? FORWARDING_NONE : to;
}

/* Is the source address this port's? Tells control of new ones. Return: false if the frame must be dropped. */
static bool check_source(struct sorting *s, struct queue_pair *pair, const struct frame *frame)
{
	struct port *port = pair->port;
	const uint8_t *mac = frame->head + 6;
	const uint64_t key = forwarding_key(mac, port->key_vlan);
	int32_t owner;

	if (likely(key == pair->last_source && pair->last_source_generation == s->plan->generation))
		return true;
	if (unlikely(mac_is_multicast(mac) || !(key & 0xffffffffffffull))) {
		counter_add(counters_of(s, port), PORT_DROP_FROM_GUEST_SOURCE, 1);
		return false;
	}
	owner = forwarding_lookup(s->plan->domains[s->domain].forwarding, key);
	if (owner == FORWARDING_NONE && port->learns) {
		s->output->learn(s->output->context, port, mac, port->key_vlan);
		return true;
	}
	if (owner != port->id)
		counter_add(counters_of(s, port), PORT_LEARN_REFUSED, 1);
	pair->last_source = key;
	pair->last_source_generation = s->plan->generation;
	return true;
}

/* Remembers on which pair the guest sends a flow, so that its answers come back there (virtio 1.2, 5.1.6.5.6). */
static void steer_answers(struct queue_pair *pair, const struct frame *frame)
{
	const uint32_t bucket = vl_flow_index(0, flow_hash_frame(frame->head, frame->head_length));
	uint32_t *entry = &pair->port->flow_steering[bucket];
	uint8_t *used = &pair->port->flow_used[bucket];

	if (!__atomic_load_n(used, __ATOMIC_RELAXED))
		__atomic_store_n(used, 1, __ATOMIC_RELAXED);
	if (__atomic_load_n(entry, __ATOMIC_RELAXED) != pair->index)
		__atomic_store_n(entry, pair->index, __ATOMIC_RELAXED);
}

/* Puts the tag of the port's own VLAN on what came untagged. Return: false if the frame's VLAN is not the port's. */
static bool enter_vlan(const struct port *port, struct frame *frame, uint16_t *vlan)
{
	if (*vlan && !port->takes_tags)
		return false;
	if (!*vlan && port->pvid) {
		*vlan = port->pvid;
		/* A priority tag (VLAN 0) becomes the VLAN's own, its priority kept. */
		if (frame_is_tagged(frame->head, frame->head_length)) {
			frame->head[14] = (uint8_t)((frame->head[14] & 0xf0) | *vlan >> 8);
			frame->head[15] = (uint8_t)*vlan;
		} else {
			tag_push(frame, tag_of(*vlan));
		}
	}
	return port_carries(port, *vlan);
}

/* Return: false if the guest asks for what cannot be done; counted by reason. */
static bool judge_header(struct sorting *s, const struct port *port, struct frame *frame)
{
	const enum vnet_verdict verdict = vnet_judge(frame, s->plan->ports[port->id].features);

	_Static_assert(PORT_DROP_HEADER_GSO_PROTOCOL - PORT_DROP_HEADER_NOT_NEGOTIATED == VNET_GSO_PROTOCOL - VNET_NOT_NEGOTIATED,
		       "counters stand in the order of verdicts");
	if (likely(verdict == VNET_GOOD))
		return true;
	counter_add(counters_of(s, port), PORT_DROP_HEADER_NOT_NEGOTIATED + (verdict - VNET_NOT_NEGOTIATED), 1);
	return false;
}

static void route_from_guest(struct sorting *s, struct queue_pair *pair, struct frame *frame)
{
	struct port *port = pair->port;
	struct port_counters *counters = counters_of(s, port);
	const struct plan_domain *domain = &s->plan->domains[s->domain];
	uint16_t vlan = frame_vlan(frame->head, frame->head_length);
	int32_t to;

	if (unlikely(!vnet_header_plain(&frame->vnet)) && !judge_header(s, port, frame))
		return;
	if (unlikely(!enter_vlan(port, frame, &vlan))) {
		counter_add(counters, PORT_DROP_VLAN, 1);
		return;
	}
	if (unlikely(!check_source(s, pair, frame)))
		return;
	if (port->queue_pairs > 1)
		steer_answers(pair, frame);
	if (mac_is_multicast(frame->head)) {
		if (unlikely(mac_is_link_local(frame->head)))
			counter_add(counters, PORT_DROP_FROM_GUEST_LINK_LOCAL, 1);
		else
			add_to_group(s, TO_ALL, NULL, NULL, frame);
		return;
	}
	to = look_up(s, frame->head, vlan);
	if (to >= 0 && to != port->id)
		route_to_port(s, to, frame);
	else if (to == FORWARDING_HOST)
		add_to_group(s, TO_HOST, NULL, NULL, frame);
	else if (to == FORWARDING_NONE)
		add_to_group(s, domain->has_uplink ? TO_UPLINK : TO_ALL, NULL, NULL, frame);
	else
		counter_add(counters, PORT_DROP_FROM_GUEST_TO_SELF, 1);
}

void switch_from_guest(const struct plan *plan, struct queue_pair *pair, unsigned worker, struct frame_burst *burst,
		       const struct switch_output *output)
{
	struct sorting s;
	uint64_t bytes = 0;

	s.plan = plan;
	s.domain = pair->port->domain;
	s.worker = worker;
	s.sender = pair->port;
	s.output = output;
	s.group_count = 0;
	for (uint32_t i = 0; i < burst->count; i++) {
		bytes += burst->frames[i].length;
		route_from_guest(&s, pair, &burst->frames[i]);
	}
	deliver_groups(&s);
	counter_add(counters_of(&s, pair->port), PORT_FROM_GUEST_FRAMES, burst->count);
	counter_add(counters_of(&s, pair->port), PORT_FROM_GUEST_BYTES, bytes);
}

static void route_from_device(struct sorting *s, struct frame *frame, uint64_t *counters)
{
	int32_t to;

	if (unlikely(frame->length < FRAME_LENGTH_MIN)) {
		worker_counter_add(counters, WORKER_DROP_LANE_SHORT, 1);
		return;
	}
	if (mac_is_multicast(frame->head)) {
		if (unlikely(mac_is_link_local(frame->head)))
			worker_counter_add(counters, WORKER_DROP_LANE_LINK_LOCAL, 1);
		else
			add_to_group(s, TO_ALL, NULL, NULL, frame);
		return;
	}
	to = look_up(s, frame->head, frame_vlan(frame->head, frame->head_length));
	if (likely(to >= 0))
		route_to_port(s, to, frame);
	else
		worker_counter_add(counters, WORKER_DROP_LANE_UNKNOWN, 1);
}

void switch_from_device(const struct plan *plan, unsigned domain, unsigned worker, struct frame_burst *burst,
			const struct switch_output *output, uint64_t *worker_counters)
{
	struct sorting s;

	s.plan = plan;
	s.domain = domain;
	s.worker = worker;
	s.sender = NULL;
	s.output = output;
	s.group_count = 0;
	for (uint32_t i = 0; i < burst->count; i++)
		route_from_device(&s, &burst->frames[i], worker_counters);
	deliver_groups(&s);
}
