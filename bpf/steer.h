/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The stages that XDP and tc share: settings, counters, and the way port -> flow -> queue pair -> worker. */
#ifndef VHOSTLANE_STEER_H
#define VHOSTLANE_STEER_H

#include "maps.h"
#include "parse.h"

static __always_inline const struct vl_settings *settings_get(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&settings, &key);
}

static __always_inline void count(__u32 reason)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &reason);

	if (value)
		*value += 1;
}

/* Does the port carry frames of this VLAN? */
static __always_inline bool carries_vlan(const struct vl_port_value *port, __u16 vlan)
{
	const __u32 id = port->port;
	const struct vl_vlan_row *row;

	if (!(port->flags & VL_PORT_VLANS))
		return true;
	row = bpf_map_lookup_elem(&port_vlans, &id);
	return row && vl_vlan_allowed(row, vlan);
}

/* The port of an address. A trunk port also takes tagged frames that no entry of their own VLAN claims. */
static __always_inline const struct vl_port_value *find_port(const struct vl_port_key *key)
{
	const struct vl_port_value *port = bpf_map_lookup_elem(&ports, key);
	struct vl_port_key untagged = *key;

	if (!port && key->vlan != VL_VLAN_NONE) {
		untagged.vlan = VL_VLAN_NONE;
		port = bpf_map_lookup_elem(&ports, &untagged);
		if (port && !(port->flags & VL_PORT_TRUNK))
			return NULL;
	}
	return port && carries_vlan(port, key->vlan) ? port : NULL;
}

/* A guest cannot take an address that is in use on the wire: learned ones are reported when the wire sends from them. */
static __always_inline void note_source(const struct destination *from)
{
	struct vl_port_key key = { .vlan = from->key.vlan };
	const struct vl_port_value *port;
	__u64 *frames, first = 1;

	__builtin_memcpy(key.mac, from->source, sizeof(key.mac));
	port = bpf_map_lookup_elem(&ports, &key);
	if (!port && key.vlan != VL_VLAN_NONE) {
		key.vlan = VL_VLAN_NONE;
		port = bpf_map_lookup_elem(&ports, &key);
		if (port && !(port->flags & VL_PORT_TRUNK))
			return;
	}
	/* On a VLAN that the port does not carry it is another station's, or the same one's way round: no matter of the port. */
	if (!port || !(port->flags & VL_PORT_LEARNED) || !carries_vlan(port, from->key.vlan))
		return;
	frames = bpf_map_lookup_elem(&wire_claims, &key);
	if (frames)
		*frames += 1;
	else
		bpf_map_update_elem(&wire_claims, &key, &first, 0 /* BPF_ANY */);
}

/* The queue pair on which the guest last sent this flow (virtio 1.2, 5.1.6.5.6). */
static __always_inline __u32 choose_queue_pair(const struct vl_port_value *port, const void *data, const void *end)
{
	__u32 queue_pairs = port->queue_pairs, pair;
	const struct vl_flow_row *row;

	if (queue_pairs <= 1)
		return 0;
	row = bpf_map_lookup_elem(&flow_steering, &port->port);
	if (!row)
		return 0;
	pair = row->queue_pair[vl_flow_bucket(vl_flow_hash_frame(data, end))];
	/* The guest may have switched queue pairs off since the engine noted this one. */
	return pair < queue_pairs ? pair : pair % queue_pairs;
}

/* The worker that serves a queue pair. Any worker may fill any ring, so where nobody is named (or, by an operator's edit
 * that the engine has not judged yet, nobody real) the flood worker does it, and no frame is lost. */
static __always_inline __u32 choose_worker(const struct vl_settings *set, __u32 port, __u32 queue_pair)
{
	struct vl_queue_key key = { .port = port, .queue_pair = queue_pair };
	const struct vl_queue_value *value = bpf_map_lookup_elem(&queue_affinity, &key);

	return value && value->worker < set->workers ? value->worker : set->flood_worker;
}

#endif
