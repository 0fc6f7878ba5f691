// SPDX-License-Identifier: BSD-2-Clause
/* Typed access to the maps of a bpf_set. */
#include <assert.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "control/bpf_set.h"

#define ENTRIES_AT_ONCE 256

const char *const vl_reason_names[VL_REASON_COUNT] = {
#define VL_REASON_NAME(name, text) [VL_##name] = text,
	VL_REASONS(VL_REASON_NAME)
#undef VL_REASON_NAME
};
#define VL_REASON_ONE(name, text) +1
static_assert(0 VL_REASONS(VL_REASON_ONE) == VL_REASON_COUNT, "every reason has its name");
#undef VL_REASON_ONE

static_assert(sizeof(struct vl_port_key) == 8 && sizeof(struct vl_queue_key) == 8, "hash keys have no padding");

void *set_map_memory(int map_fd, size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* Takes all keys out of a hash. An operator may add some meanwhile; those stay. */
static void clear_hash(int fd)
{
	uint64_t key;

	static_assert(sizeof(struct vl_port_key) == sizeof(key) && sizeof(struct vl_queue_key) == sizeof(key),
		      "one size of keys");
	for (unsigned i = 0; i < VL_PORTS_MAX * VL_QUEUE_PAIRS_MAX; i++) {
		if (bpf_map_get_next_key(fd, NULL, &key))
			return;
		bpf_map_delete_elem(fd, &key);
	}
}

void set_maps_clear(struct bpf_set *set)
{
	clear_hash(set->maps[SET_MAP_PORTS]);
	clear_hash(set->maps[SET_MAP_QUEUE_AFFINITY]);
	clear_hash(set->maps[SET_MAP_WIRE_CLAIMS]);
	for (uint32_t i = 0; i < VL_DEVICE_QUEUES_MAX * VL_WORKERS_MAX; i++)
		bpf_map_delete_elem(set->maps[SET_MAP_LANES], &i);
	if (set->flow_steering)
		memset(set->flow_steering, 0, sizeof(uint32_t) * VL_PORTS_MAX * VL_FLOW_BUCKETS);
}

struct vl_settings *bpf_set_settings(struct bpf_set *set, int node)
{
	if (node < 0)
		return set->settings;
	return node < VL_NODES_MAX && set->host_links[node] ? set->host_links[node]->settings : NULL;
}

uint32_t *bpf_set_flow_steering(struct bpf_set *set, unsigned port)
{
	return port < VL_PORTS_MAX ? set->flow_steering + port * VL_FLOW_BUCKETS : NULL;
}

int bpf_set_vlans_put(struct bpf_set *set, unsigned port, const struct vl_vlan_row *row)
{
	const uint32_t id = port;

	return bpf_map_update_elem(set->maps[SET_MAP_PORT_VLANS], &id, row, BPF_ANY);
}

bool bpf_set_take_claim(struct bpf_set *set, struct vl_port_key *key)
{
	return !bpf_map_get_next_key(set->maps[SET_MAP_WIRE_CLAIMS], NULL, key) && !bpf_map_delete_elem(set->maps[SET_MAP_WIRE_CLAIMS], key);
}

int bpf_set_port_put(struct bpf_set *set, const struct vl_port_key *key, const struct vl_port_value *value)
{
	return bpf_map_update_elem(set->maps[SET_MAP_PORTS], key, value, BPF_ANY);
}

int bpf_set_port_delete(struct bpf_set *set, const struct vl_port_key *key)
{
	return bpf_map_delete_elem(set->maps[SET_MAP_PORTS], key);
}

int bpf_set_affinity_put(struct bpf_set *set, const struct vl_queue_key *key, const struct vl_queue_value *value)
{
	return bpf_map_update_elem(set->maps[SET_MAP_QUEUE_AFFINITY], key, value, BPF_ANY);
}

int bpf_set_affinity_get(struct bpf_set *set, const struct vl_queue_key *key, struct vl_queue_value *value)
{
	return bpf_map_lookup_elem(set->maps[SET_MAP_QUEUE_AFFINITY], key, value);
}

int bpf_set_affinity_delete(struct bpf_set *set, const struct vl_queue_key *key)
{
	return bpf_map_delete_elem(set->maps[SET_MAP_QUEUE_AFFINITY], key);
}

int bpf_set_affinity_next(struct bpf_set *set, const struct vl_queue_key *key, struct vl_queue_key *next)
{
	return bpf_map_get_next_key(set->maps[SET_MAP_QUEUE_AFFINITY], key, next);
}

int bpf_set_affinity_each(struct bpf_set *set, void (*entry)(void *context, const struct vl_queue_key *key, const struct vl_queue_value *value),
			  void *context)
{
	struct vl_queue_key keys[ENTRIES_AT_ONCE];
	struct vl_queue_value values[ENTRIES_AT_ONCE];
	uint32_t at, next, count;
	uint32_t *from = NULL; /* from the start */
	int r;

	do {
		count = ENTRIES_AT_ONCE;
		r = bpf_map_lookup_batch(set->maps[SET_MAP_QUEUE_AFFINITY], from, &next, keys, values, &count, NULL);
		if (r && r != -ENOENT) /* which says that these are the last */
			return r;
		for (uint32_t i = 0; i < count; i++)
			entry(context, &keys[i], &values[i]);
		at = next;
		from = &at;
	} while (!r);
	return 0;
}

int bpf_set_counters(struct bpf_set *set, uint64_t *values)
{
	int cpus = libbpf_num_possible_cpus(), r = 0;
	uint64_t *per_cpu;

	memset(values, 0, sizeof(*values) * VL_REASON_COUNT);
	if (cpus < 0)
		return cpus;
	per_cpu = calloc((size_t)cpus, sizeof(*per_cpu));
	if (!per_cpu)
		return -ENOMEM;
	for (uint32_t reason = 0; reason < VL_REASON_COUNT && !r; reason++) {
		r = bpf_map_lookup_elem(set->maps[SET_MAP_COUNTERS], &reason, per_cpu);
		for (int cpu = 0; cpu < cpus && !r; cpu++)
			values[reason] += per_cpu[cpu];
	}
	free(per_cpu);
	return r;
}
