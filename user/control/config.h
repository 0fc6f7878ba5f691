/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The configuration: one struct, filled by the YAML file (libcyaml schema) and by the command line, checked in one
 * place. Once the daemon runs, only `worker set` changes it (workforce.h); ports have copies of their own (engine.h). Control thread.
 */
#ifndef VHOSTLANE_CONTROL_CONFIG_H
#define VHOSTLANE_CONTROL_CONFIG_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/cpulist.h"
#include "common/error.h"
#include "control/placement.h"
#include "datapath/lane.h"
#include "vhostlane/bpf_abi.h"

#define CONFIG_FILE_DEFAULT "/etc/vhostlane/vhostlane.yaml"
#define CONFIG_CONTROL_DEFAULT "/run/vhostlane/control.sock"
#define CONFIG_BUSY_POLL_DEFAULT_US 50
#define CONFIG_SOCKET_PATH_MAX 107 /* sun_path without its NUL */
#define CONFIG_PORT_NAME_MAX 31
#define CONFIG_UPLINKS_MAX 8

enum port_role { PORT_ROLE_SERVER, PORT_ROLE_CLIENT, PORT_ROLE_COUNT };
extern const char *const port_role_names[PORT_ROLE_COUNT]; /* "server", "client" */

/* Keys of a port: the one list behind the YAML schema, the --port tail, `port add` and `port set`. */
#define CONFIG_PORT_KEYS(X)               \
	X(NAME, "name")                   \
	X(SOCKET, "socket")               \
	X(GROUP, "group")                 \
	X(ROLE, "role")                   \
	X(MAC, "mac")                     \
	X(VLAN, "vlan")                   \
	X(QUEUES, "queues")               \
	X(BUSY_POLL, "busy-poll-us")      \
	X(NODE, "node")                   \
	X(MTU, "mtu")                     \
	X(UPLINK, "uplink")               \
	X(OFFLOADS, "offloads")

enum config_port_key {
#define CONFIG_PORT_KEY_ENUM(name, text) CONFIG_PORT_KEY_##name,
	CONFIG_PORT_KEYS(CONFIG_PORT_KEY_ENUM)
#undef CONFIG_PORT_KEY_ENUM
	CONFIG_PORT_KEY_COUNT
};
extern const char *const config_port_key_names[CONFIG_PORT_KEY_COUNT];

struct config_uplink {
	char ifname[IF_NAMESIZE];
	enum lane_mode mode;
	unsigned queues; /* 0 = all of the device's */
};

/* What a guest is offered, and whether frames from a device are coalesced for it: "all", "none" or names joined by "+". */
#define PORT_OFFLOADS(X) \
	X(CSUM, "csum")  \
	X(TSO4, "tso4")  \
	X(TSO6, "tso6")  \
	X(ECN, "ecn")    \
	X(USO, "uso")    \
	X(COALESCE, "coalesce")

enum port_offload {
#define PORT_OFFLOAD_ENUM(name, text) PORT_OFFLOAD_##name,
	PORT_OFFLOADS(PORT_OFFLOAD_ENUM)
#undef PORT_OFFLOAD_ENUM
	PORT_OFFLOAD_COUNT
};
#define PORT_OFFLOADS_ALL ((1u << PORT_OFFLOAD_COUNT) - 1)
extern const char *const port_offload_names[PORT_OFFLOAD_COUNT];
#define CONFIG_OFFLOADS_TEXT 64
const char *config_format_offloads(unsigned offloads, char text[CONFIG_OFFLOADS_TEXT]);
/* Virtio feature bits that they stand for, those without what they need left out (all need csum). */
uint64_t config_offload_features(unsigned offloads);

/* VLANs of a port: "0", "N" (access) or "trunk:A+B-C[/native:N]". */
enum config_vlan_mode {
	CONFIG_VLAN_NONE,   /* frames as they are, with any tag or none */
	CONFIG_VLAN_ACCESS, /* one VLAN; the guest sees no tag */
	CONFIG_VLAN_TRUNK,  /* those listed, tagged; untagged frames are of the native VLAN, or refused */
};
struct config_vlan {
	enum config_vlan_mode mode;
	uint16_t id;		   /* access: the VLAN; trunk: the native one, 0 = none */
	struct vl_vlan_row listed; /* trunk */
};
/* The VLAN under which the port's addresses are known: an access port's own; others have theirs in all of theirs. */
static inline uint16_t config_vlan_key(const struct config_vlan *vlan)
{
	return vlan->mode == CONFIG_VLAN_ACCESS ? vlan->id : 0;
}
#define CONFIG_VLAN_TEXT 14336 /* all that can be listed: at worst two of three VLANs, "1000-1001+" */
const char *config_format_vlan(const struct config_vlan *vlan, char text[CONFIG_VLAN_TEXT]);

#define CONFIG_ORIGIN_TEXT 192
#define CONFIG_GROUP_MAX 32 /* characters of a group's name, as of groupadd(8) */

struct config_port {
	char name[CONFIG_PORT_NAME_MAX + 1]; /* [A-Za-z0-9][A-Za-z0-9._-]* */
	char socket[CONFIG_SOCKET_PATH_MAX + 1]; /* absolute */
	char group[CONFIG_GROUP_MAX + 1]; /* may connect to the socket (server role); "" = root's, or that of whoever runs the daemon */
	enum port_role role;
	bool has_mac;
	uint8_t mac[6];
	struct config_vlan vlan;
	unsigned queues;	/* queue pairs, 1 .. VL_QUEUE_PAIRS_MAX; default 1 */
	uint32_t busy_poll_us;	/* default CONFIG_BUSY_POLL_DEFAULT_US; UINT32_MAX = always; 0 = never */
	int node;		/* NUMA node wanted, -1 = follow the guest */
	unsigned offloads;	/* bits of enum port_offload; default all */
	unsigned mtu;		/* largest that the port carries, bytes; 0 = the uplink's */
	char uplink[IF_NAMESIZE]; /* "" = the first */
	char origin[CONFIG_ORIGIN_TEXT]; /* FILE:LINE that it stands on; "" = not from a file */
};

struct config {
	bool cpus_given;
	struct cpulist cpus; /* workers' CPUs; not given: the process's allowed CPUs */
	enum placement_policy policy;
	unsigned workers_per_port; /* multi-worker; default 2 */
	unsigned threads;	   /* worker slots; 0 = one a CPU, more where the policy ties workers to ports */
	bool pin;		   /* default true */
	unsigned uplink_count;
	struct config_uplink uplinks[CONFIG_UPLINKS_MAX];
	unsigned port_count;
	struct config_port *ports; /* malloc()ed */
	char control[CONFIG_SOCKET_PATH_MAX + 1];
};

/* Defaults, as documented in vhostlane.yaml(5). */
void config_init(struct config *config);
void config_port_init(struct config_port *port);
void config_free(struct config *config);

/* Adds what the file says to @config (on failure a part of it). Unknown key, wrong type, value out of range: error with file, line, key, value, remedy. */
int config_load_file(struct config *config, const char *path, struct error *error);

/* "NAME=SOCKET[,key=value]..." with the keys above. */
int config_parse_port(const char *text, struct config_port *port, struct error *error);
/* "IFNAME[,mode=auto|zero-copy|copy|generic][,queues=N]" */
int config_parse_uplink(const char *text, struct config_uplink *uplink, struct error *error);
int config_uplink_set(struct config_uplink *uplink, const char *key, const char *value, struct error *error);

/* One key of a port as text, as `port set`, `port add` and the option's tail use it; the same table serves all. */
int config_port_set(struct config_port *port, const char *key, const char *value, struct error *error);

/* Is it a key that `port set` can change on a port in service? -EINVAL with *error that names those. */
int config_port_check_settable(const char *port, const char *key, struct error *error);
/* "mac, busy-poll-us, ..." for help texts. */
#define CONFIG_PORT_SETTABLE "mac, busy-poll-us, node, mtu, offloads"

/* "N", "0", "always" <-> microseconds. */
#define CONFIG_BUSY_POLL_ALWAYS UINT32_MAX
#define CONFIG_BUSY_POLL_ADAPTIVE (UINT32_MAX - 1)
#define CONFIG_BUSY_POLL_MAX_US 1000000
#define CONFIG_BUSY_POLL_TEXT 16
int config_parse_busy_poll(const char *text, uint32_t *busy_poll_us, struct error *error);
const char *config_format_busy_poll(uint32_t busy_poll_us, char text[CONFIG_BUSY_POLL_TEXT]);

/* One key of `workers` ("cpus", "policy", "pin", "per-port", "threads") or "control" as text. */
int config_set(struct config *config, const char *key, const char *value, struct error *error);

int config_add_port(struct config *config, const struct config_port *port, struct error *error);   /* refuses duplicates */
int config_add_uplink(struct config *config, const struct config_uplink *uplink, struct error *error);

/* Everything that can be judged without touching the system: names, paths (length, absolute, no `..`), duplicates. */
int config_check_port(const struct config_port *port, struct error *error);
int config_check(const struct config *config, struct error *error);

/**
 * config_resolve_cpus() - the CPUs that workers shall use; asks the system
 * @out: those given, which must all be online and allowed (the error names the first that is not, and the allowed ones); or, if
 *       none were given, all that are both, at most VL_WORKERS_MAX of them
 */
int config_resolve_cpus(const struct config *config, struct cpulist *out, struct error *error);

#endif
