/* SPDX-License-Identifier: BSD-2-Clause */
#include "datapath/forwarding.h"

#include <stdlib.h>

/* Key 0 (no address, no VLAN) marks an empty slot: the all-zero address is never entered. */
struct forwarding_slot {
	uint64_t key;
	int32_t port;
	uint32_t trunk;
};

struct forwarding {
	uint32_t mask;
	struct forwarding_slot slots[];
};

static uint32_t key_hash(uint64_t key)
{
	key *= 0x9e3779b97f4a7c15ull;
	return (uint32_t)(key >> 32);
}

static const struct forwarding_slot *find(const struct forwarding *table, uint64_t key)
{
	uint32_t i = key_hash(key) & table->mask;

	while (table->slots[i].key && table->slots[i].key != key)
		i = (i + 1) & table->mask;
	return &table->slots[i];
}

struct forwarding *forwarding_create(const struct forwarding_entry *entries, uint32_t count)
{
	uint32_t slots = 8;
	struct forwarding *table;

	while (slots < count * 2 + 1)
		slots *= 2;
	table = calloc(1, sizeof(*table) + slots * sizeof(table->slots[0]));
	if (!table)
		return NULL;
	table->mask = slots - 1;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t key = forwarding_key(entries[i].mac, entries[i].vlan);
		struct forwarding_slot *slot = (struct forwarding_slot *)find(table, key);

		if (!key || slot->key)
			continue;
		*slot = (struct forwarding_slot){.key = key, .port = entries[i].port, .trunk = entries[i].trunk};
	}
	return table;
}

void forwarding_free(struct forwarding *table)
{
	free(table);
}

int32_t forwarding_lookup(const struct forwarding *table, uint64_t key)
{
	const uint64_t address = key & 0xffffffffffffull;
	const struct forwarding_slot *slot;

	if (!key)
		return FORWARDING_NONE;
	slot = find(table, key);
	if (slot->key)
		return slot->port;
	if (key == address || !address)
		return FORWARDING_NONE;
	slot = find(table, address);
	return slot->key && slot->trunk ? slot->port : FORWARDING_NONE;
}
