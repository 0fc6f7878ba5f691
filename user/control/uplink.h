/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One uplink with everything vhostlane puts on it, opened in order and undone in reverse: device checks, promiscuous mode and
 * features, BPF set, lanes, host links. Control thread.
 */
#ifndef VHOSTLANE_CONTROL_UPLINK_H
#define VHOSTLANE_CONTROL_UPLINK_H

#include "common/error.h"
#include "control/bpf_loader.h"
#include "control/config.h"
#include "control/host_link.h"
#include "control/netdev.h"
#include "control/tx_checksum.h"
#include "datapath/lane.h"

struct uplink;

struct uplink_setup {
	struct config_uplink config;
	unsigned workers;     /* worker slots: lanes per queue */
	unsigned cpus;	      /* that serve them: queues of a host link, at most HOST_LINK_QUEUES_MAX; 0 = as many as workers */
	uint64_t nodes;	      /* NUMA nodes in use: one host link each (bit per node); at least one */
};

struct uplink *uplink_open(const struct uplink_setup *setup, struct error *error);
void uplink_close(struct uplink *uplink); /* NULL is fine; afterwards the host is as before */

/* READY flag of all settings: XDP steers from now on / passes everything again. */
void uplink_start(struct uplink *uplink);
void uplink_stop(struct uplink *uplink);

/*
 * The device's name, MTU, address or checksum offload may have changed (a link event): takes them over, host links follow. -EMSGSIZE: larger
 * than the lanes' frames hold; the error says so and names the remedy, host links stay at the largest that fits, larger frames are dropped by
 * the kernel and counted there. Pins and lock file keep the name of the beginning.
 * -ENODEV: the device is gone.
 */
int uplink_device_changed(struct uplink *uplink, struct error *error);

const struct netdev_info *uplink_info(const struct uplink *uplink); /* as of opening; name, MTU and address as of uplink_device_changed() */
struct lane_device *uplink_device(struct uplink *uplink);
enum tx_checksum uplink_tx_checksum(const struct uplink *uplink); /* who completes checksums now */
struct host_link *uplink_host_link(struct uplink *uplink, unsigned node); /* NULL = none on that node */
struct bpf_set *uplink_bpf(struct uplink *uplink);

/* What was noticed of the device: one line per warning (checksum offload of a veth peer, missing carrier, ...), "" = none. */
const char *uplink_warnings(const struct uplink *uplink);

#endif
