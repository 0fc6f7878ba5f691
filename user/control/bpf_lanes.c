// SPDX-License-Identifier: BSD-2-Clause
/* The one place where AF_XDP sockets and BPF maps meet: lanes into their XSKMAP. */
#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "control/bpf_set.h"
#include "datapath/lane.h"

int bpf_set_fill_lanes(struct bpf_set *set, int node, struct lane_device *device, struct error *error)
{
	struct vl_settings *settings = bpf_set_settings(set, node);
	unsigned queues = lane_device_queues(device), workers = lane_device_workers(device);
	int map = node < 0 ? set->maps[SET_MAP_LANES] : settings ? set->host_links[node]->lanes_fd : -1;

	if (!settings || queues > VL_DEVICE_QUEUES_MAX || workers > VL_WORKERS_MAX)
		return error_set(error, -EINVAL,
				 "%s: %u queues with %u workers do not fit map `lanes` (%d, %d); use fewer",
				 lane_device_name(device), queues, workers, VL_DEVICE_QUEUES_MAX, VL_WORKERS_MAX);
	for (unsigned queue = 0; queue < queues; queue++) {
		for (unsigned worker = 0; worker < workers; worker++) {
			uint32_t index = vl_lane_index(queue, workers, worker);
			int fd = lane_fd(lane_of(device, queue, worker));
			int r = bpf_map_update_elem(map, &index, &fd, BPF_ANY);

			if (r)
				return error_set(
					error, r,
					"%s: queue %u, worker %u: cannot put the AF_XDP socket into map `lanes`: %s; the kernel needs CONFIG_XDP_SOCKETS",
					lane_device_name(device), queue, worker, strerror(-r));
		}
	}
	settings->workers = workers;
	settings->device_queues = queues;
	return 0;
}
