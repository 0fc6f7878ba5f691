// SPDX-License-Identifier: BSD-2-Clause
/* A host link's side of a bpf_set: an xdp_steer of its own on the engine's end, a tc program on the host's. Pinned beside the uplink's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/bpf_set.h"

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

void bpf_set_detach_host_link(struct bpf_set *set, unsigned node)
{
	struct set_host_link *link = node < VL_NODES_MAX ? set->host_links[node] : NULL;

	if (!link)
		return;
	if (link->settings)
		link->settings->flags &= ~(uint32_t)VL_SETTINGS_READY;
	set->settings->host_link_ifindex[node] = 0;
	set->settings->host_link_queues[node] = 0;
	tc_hook_detach(&link->ingress);
	xdp_hook_detach(&link->xdp);
	set_unpin_host_link(set, node);
	if (link->settings)
		munmap(link->settings, sizeof(*link->settings));
	close_if_open(link->lanes_fd);
	close_if_open(link->settings_fd);
	close_if_open(link->program_fd);
	free(link);
	set->host_links[node] = NULL;
}

/* All but `lanes` and `settings` are the uplink's maps. */
static int load_host_link(struct bpf_set *set, unsigned node, struct set_host_link *link, struct error *error)
{
	char path[SET_PATH_MAX];
	int r = set_load_steer(set, link, error);

	if (r)
		return r;
	link->settings = set_map_memory(link->settings_fd, sizeof(*link->settings));
	if (!link->settings)
		return error_set(error, -errno, "host link of node %u: cannot map its settings: %s; free some memory", node, strerror(errno));
	*link->settings = (struct vl_settings){
		.abi = VL_ABI_VERSION,
		.flags = VL_SETTINGS_HOST_LINK | VL_SETTINGS_ENGINE_LOADED,
		.uplink_ifindex = set->ifindex,
		.host_link_node = node,
	};
	r = set_pin(set, link->lanes_fd, set_map_path(set, SET_MAP_LANES, (int)node, path), error);
	if (!r)
		r = set_pin(set, link->settings_fd, set_map_path(set, SET_MAP_SETTINGS, (int)node, path), error);
	if (!r)
		r = set_pin(set, link->program_fd, set_program_path(set, SET_XDP_STEER, (int)node, path), error);
	return r;
}

int bpf_set_attach_host_link(struct bpf_set *set, unsigned node, unsigned host_ifindex, unsigned engine_ifindex,
			     unsigned queues, struct error *error)
{
	char host[IF_NAMESIZE] = "?", engine[IF_NAMESIZE] = "?";
	struct set_host_link *link;
	int r;

	if (node >= VL_NODES_MAX)
		return error_set(error, -EINVAL, "host link of node %u: beyond node %d; use a lower one", node,
				 VL_NODES_MAX - 1);
	bpf_set_detach_host_link(set, node);
	link = calloc(1, sizeof(*link));
	if (!link)
		return error_set(error, -ENOMEM, "host link of node %u: out of memory; free some", node);
	link->lanes_fd = link->settings_fd = link->program_fd = -1;
	set->host_links[node] = link;
	if_indextoname(host_ifindex, host);
	if_indextoname(engine_ifindex, engine);

	r = load_host_link(set, node, link, error);
	if (!r)
		r = xdp_hook_attach_own(&link->xdp, engine, engine_ifindex, link->program_fd, error);
	if (!r)
		r = tc_clsact_make(host, host_ifindex, error); /* goes with the device */
	if (r >= 0)
		r = tc_hook_attach(&link->ingress, host, host_ifindex, BPF_TC_INGRESS,
				   set->programs[SET_TC_HOST_LINK_INGRESS], error);
	if (r) {
		bpf_set_detach_host_link(set, node);
		return r;
	}
	set->settings->host_link_queues[node] = queues;
	set->settings->host_link_ifindex[node] = host_ifindex;
	return 0;
}
