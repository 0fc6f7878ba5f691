/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The BPF side of one uplink and its host links: load or adopt, pin, attach, detach; and typed access to the maps
 * (vhostlane/bpf_abi.h). Control thread only, but for the two mmap()ed arrays, whose users are named there.
 *
 * Pins under /sys/fs/bpf/vhostlane/UPLINK/: the maps by name; `lanes_nN` and `settings_nN` of the host link of node N (all
 * other maps are shared with the uplink's programs); programs under progs/. bpffs is mounted if it is not, and left mounted.
 * A dot in the interface's name becomes a colon there, as bpffs knows no dots. The objects are embedded in the binary.
 * The directory is locked (flock) while a daemon serves the uplink.
 */
#ifndef VHOSTLANE_CONTROL_BPF_LOADER_H
#define VHOSTLANE_CONTROL_BPF_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "datapath/lane.h"
#include "vhostlane/bpf_abi.h"

#define BPF_PIN_ROOT "/sys/fs/bpf/vhostlane"

struct bpf_set; /* all objects of one uplink */

/**
 * bpf_set_open() - load the uplink's programs and maps, or adopt those found pinned
 * Adopts pins of a bpftool load or of a crashed daemon when the ABI version and map sizes match (programs of a crashed daemon of another
 * build are replaced); else says what does not match and how to remove it.
 */
struct bpf_set *bpf_set_open(const char *uplink, unsigned uplink_ifindex, struct error *error);

/* Detaches, unpins and frees all that this daemon (or a crashed one) loaded; what an operator loaded stays attached and pinned, with
 * settings.flags READY cleared and the engine's entries removed. NULL is fine. */
void bpf_set_close(struct bpf_set *set);

/* Attaches xdp_steer (mode generic: SKB mode; else native) and the tc programs to the uplink. A foreign XDP program:
 * chained through libxdp's dispatcher where it is one; else -EBUSY with its name and id. Already attached by adoption: nothing to do. */
int bpf_set_attach_uplink(struct bpf_set *set, enum lane_mode mode, struct error *error);

/* Second instance of xdp_steer for a host link (own lanes and settings) on @engine_ifindex, and the tc program on @host_ifindex. */
int bpf_set_attach_host_link(struct bpf_set *set, unsigned node, unsigned host_ifindex, unsigned engine_ifindex, unsigned queues,
			     struct error *error);

/* Before the veth pair goes or is made anew; bpf_set_close() does it for all. Not attached: nothing. */
void bpf_set_detach_host_link(struct bpf_set *set, unsigned node);

bool bpf_set_adopted(const struct bpf_set *set);
bool bpf_set_dispatcher(const struct bpf_set *set); /* attached through libxdp's dispatcher */

/* What of the uplink's programs is not attached any more, because somebody took it off: "XDP", "tc"; NULL = all is there. Asks the kernel. */
const char *bpf_set_missing(struct bpf_set *set);

/* mmap()ed `settings`. node -1 = the uplink's own. Plain stores. */
struct vl_settings *bpf_set_settings(struct bpf_set *set, int node);
/* mmap()ed `flow_steering`: VL_FLOW_BUCKETS entries of @port. Workers store, XDP reads. */
uint32_t *bpf_set_flow_steering(struct bpf_set *set, unsigned port);

/* Puts all lanes of a device into its XSKMAP and notes queues and workers in its settings. node -1 = uplink. */
int bpf_set_fill_lanes(struct bpf_set *set, int node, struct lane_device *device, struct error *error);

int bpf_set_port_put(struct bpf_set *set, const struct vl_port_key *key, const struct vl_port_value *value);
int bpf_set_port_delete(struct bpf_set *set, const struct vl_port_key *key);

/* VLANs that a port with VL_PORT_VLANS carries. */
int bpf_set_vlans_put(struct bpf_set *set, unsigned port, const struct vl_vlan_row *row);

/* Takes one learned address that the wire was seen sending from. Return: false if there is none. */
bool bpf_set_take_claim(struct bpf_set *set, struct vl_port_key *key);

int bpf_set_affinity_put(struct bpf_set *set, const struct vl_queue_key *key, const struct vl_queue_value *value);
int bpf_set_affinity_get(struct bpf_set *set, const struct vl_queue_key *key, struct vl_queue_value *value);
int bpf_set_affinity_delete(struct bpf_set *set, const struct vl_queue_key *key);
/**
 * bpf_set_affinity_each() - all entries, many by one system call
 * @entry: called for each; changes nothing in the map
 * Return: 0, or a negative errno value if the kernel did not give all
 */
int bpf_set_affinity_each(struct bpf_set *set, void (*entry)(void *context, const struct vl_queue_key *key, const struct vl_queue_value *value),
			  void *context);
/* The key after @key, the first for NULL. -ENOENT: no more. */
int bpf_set_affinity_next(struct bpf_set *set, const struct vl_queue_key *key, struct vl_queue_key *next);

/* Sums over CPUs. @values: VL_REASON_COUNT. */
int bpf_set_counters(struct bpf_set *set, uint64_t *values);
extern const char *const vl_reason_names[VL_REASON_COUNT];

#endif
