/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files bpf_*.c share: the inside of a bpf_set, its pins (bpf_pins.c), and its XDP (bpf_xdp.c) and tc (bpf_tc.c)
 * attachments; a host link's part of it (bpf_host_link.c). bpf_loader.c puts them together; nobody else includes this. Control thread only.
 */
#ifndef VHOSTLANE_CONTROL_BPF_SET_H
#define VHOSTLANE_CONTROL_BPF_SET_H

#include <bpf/libbpf.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "control/bpf_loader.h"
#include "vhostlane/bpf_abi.h"

/* The maps as they are declared and pinned; all but SET_MAP_LANES, which must be the last, are in both objects. */
enum set_map {
	SET_MAP_PORTS,
	SET_MAP_QUEUE_AFFINITY,
	SET_MAP_FLOW_STEERING,
	SET_MAP_PORT_VLANS,
	SET_MAP_WIRE_CLAIMS,
	SET_MAP_COUNTERS,
	SET_MAP_SETTINGS,
	SET_MAP_LANES,
	SET_MAP_COUNT
};
#define SET_MAP_SHARED_COUNT (SET_MAP_COUNTERS + 1) /* what a host link's xdp_steer takes over from the uplink's */
extern const char *const set_map_names[SET_MAP_COUNT];

enum set_program { SET_XDP_STEER, SET_TC_HOST, SET_TC_UPLINK_INGRESS, SET_TC_HOST_LINK_INGRESS, SET_PROGRAM_COUNT };
extern const char *const set_program_names[SET_PROGRAM_COUNT];

/* An XDP program of ours on a device. */
enum xdp_hook_kind { XDP_HOOK_NONE, XDP_HOOK_PLAIN, XDP_HOOK_DISPATCHER };
struct xdp_hook {
	enum xdp_hook_kind kind;
	bool found; /* was there before us: an operator's, or left by a crash */
	unsigned ifindex;
	uint32_t flags;	     /* XDP_FLAGS_DRV_MODE or XDP_FLAGS_SKB_MODE */
	uint32_t program_id; /* of our program, also behind a dispatcher */
};

/* A tc filter of ours. */
struct tc_hook {
	bool attached;
	bool found;
	unsigned ifindex;
	enum bpf_tc_attach_point point;
	uint32_t program_id;
};

/* A host link's own instance of xdp_steer. */
struct set_host_link {
	int lanes_fd, settings_fd, program_fd;
	struct vl_settings *settings;
	struct xdp_hook xdp;
	struct tc_hook ingress;
};

struct bpf_set {
	char uplink[IF_NAMESIZE];
	unsigned ifindex;
	int directory_fd; /* holds flock(): one daemon an uplink */
	bool adopted;	  /* found pinned */
	bool ours;	  /* loaded by this daemon or by one that crashed: goes when we go */
	bool made_clsact; /* the uplink had no such qdisc before us */
	int maps[SET_MAP_COUNT];
	int programs[SET_PROGRAM_COUNT];
	struct vl_settings *settings;
	uint32_t *flow_steering;
	struct xdp_hook xdp;
	struct tc_hook egress, ingress;
	struct set_host_link *host_links[VL_NODES_MAX];
};

/* --- bpf_loader.c ------------------------------------------------------------------------------------------------- */

/* Loads another xdp_steer for @link, with `lanes` and `settings` of its own; its descriptors are the caller's, also after an error. */
int set_load_steer(const struct bpf_set *set, struct set_host_link *link, struct error *error);

/* --- bpf_pins.c --------------------------------------------------------------------------------------------------- */

#define SET_PATH_MAX 160

/* Mounts bpffs on /sys/fs/bpf if it is not there. */
int bpffs_mount(struct error *error);

/* Makes and locks /sys/fs/bpf/vhostlane/UPLINK with progs/. -EBUSY: another daemon has it. */
int set_directory_open(struct bpf_set *set, struct error *error);
/* Removes what is empty, unlocks. */
void set_directory_close(struct bpf_set *set);

/* Path of a pin: @node -1 = the uplink's own. */
const char *set_map_path(const struct bpf_set *set, enum set_map map, int node, char path[SET_PATH_MAX]);
const char *set_program_path(const struct bpf_set *set, enum set_program program, int node, char path[SET_PATH_MAX]);

int set_pin(const struct bpf_set *set, int fd, const char *path, struct error *error);
void set_unpin_all(const struct bpf_set *set); /* maps and programs, host links' too */
void set_unpin_host_link(const struct bpf_set *set, unsigned node);
void set_unpin_program(const struct bpf_set *set, enum set_program program); /* the uplink's own */

/* Remembers, beyond a crash, that the uplink had no clsact qdisc before us. */
int set_mark_clsact(const struct bpf_set *set);
bool set_clsact_marked(const struct bpf_set *set);
void set_unmark_clsact(const struct bpf_set *set);

/* --- bpf_xdp.c ---------------------------------------------------------------------------------------------------- */

/* What a program is known by to a user. */
struct program_identity {
	uint32_t id;
	char name[BPF_OBJ_NAME_LEN];
};
int program_identify(uint32_t id, struct program_identity *identity);
bool program_uses_map(int program_fd, int map_fd);
uint32_t program_id_of(int program_fd);
bool programs_are_same(int a_fd, int b_fd); /* instruction by instruction, whatever maps they use */

/* Fills the uplink's hook if our program is on it, left by a crash or put there by an operator. Return: whether. */
bool xdp_hook_find(struct bpf_set *set);

/**
 * xdp_hook_attach_uplink() - xdp_steer onto the uplink, beside whatever is there
 * Our program already there: taken as found (from a crash and in the wrong mode: attached anew). A dispatcher: chained.
 * Nothing: by libxdp's dispatcher where the kernel can (not with an adopted program, which is loaded already), else plain.
 */
int xdp_hook_attach_uplink(struct bpf_set *set, enum lane_mode mode, struct error *error);

/* Plain and native, onto a device of our own. */
int xdp_hook_attach_own(struct xdp_hook *hook, const char *what, unsigned ifindex, int program_fd, struct error *error);

/* Is our program still there? Also true if the kernel does not say (the device is gone), or nothing was attached. */
bool xdp_hook_is_there(struct bpf_set *set);

/* Only if our program is still there. */
void xdp_hook_detach(struct xdp_hook *hook);

/* --- bpf_tc.c ----------------------------------------------------------------------------------------------------- */

/* Where our filters sit. Also in scripts/load-with-bpftool.sh. */
#define TC_HOOK_PRIORITY 30312
#define TC_HOOK_HANDLE	 1

/* Return: 1 = made it, 0 = was there. */
int tc_clsact_make(const char *what, unsigned ifindex, struct error *error);
/* Only if no filter is left in it. */
void tc_clsact_remove(unsigned ifindex);

/* Fills @hook if our filter is there with this very program. Return: whether. */
bool tc_hook_find(struct tc_hook *hook, unsigned ifindex, enum bpf_tc_attach_point point, int program_fd);
/* Our filter of this very program: found. An older one of ours (a crash): replaced. Anything else there: -EBUSY. */
int tc_hook_attach(struct tc_hook *hook, const char *what, unsigned ifindex, enum bpf_tc_attach_point point,
		   int program_fd, struct error *error);
bool tc_hook_is_there(const struct tc_hook *hook); /* also true if the device is gone, or nothing was attached */
void tc_hook_detach(struct tc_hook *hook);

/* --- bpf_maps.c --------------------------------------------------------------------------------------------------- */

void *set_map_memory(int map_fd, size_t size); /* mmap(); NULL with errno */
void set_maps_clear(struct bpf_set *set); /* takes the engine's entries out of the shared maps and the uplink's lanes */

#endif
