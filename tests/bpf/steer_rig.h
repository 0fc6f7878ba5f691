/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * xdp_steer by the kernel's program test, one packet at a time. Which lane it chose is seen by filling that one only:
 * bpf_redirect_map() says XDP_REDIRECT where a socket is, and the fallback action where none is.
 */
#ifndef TESTS_BPF_STEER_RIG_H
#define TESTS_BPF_STEER_RIG_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <bpf/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "packet.h"
#include "xsk.h"
#include "vhostlane/bpf_abi.h"
#include "vhostlane/flow_hash.h"
#include "xdp_steer.skel.h"

#define WORKERS 4
#define QUEUES	4
#define PORT	17

static const uint8_t guest[6] = { 0x52, 0x54, 0, 0, 0, 1 }, trunk[6] = { 0x52, 0x54, 0, 0, 0, 2 },
		     down[6] = { 0x52, 0x54, 0, 0, 0, 3 }, stranger[6] = { 0x52, 0x54, 0, 0, 0, 9 },
		     peer[6] = { 0x52, 0x54, 0, 0, 1, 1 }, broadcast[6] = { 255, 255, 255, 255, 255, 255 },
		     multicast[6] = { 1, 0, 0x5e, 0, 0, 1 };

struct fixture {
	struct xdp_steer *skeleton;
	int program, lanes;
	int socket;
	struct vl_settings settings;
};

static inline void put(int map, const void *key, const void *value)
{
	assert_int_equal(bpf_map_update_elem(map, key, value, BPF_ANY), 0);
}

static inline void put_settings(struct fixture *f)
{
	uint32_t zero = 0;

	put(bpf_map__fd(f->skeleton->maps.settings), &zero, &f->settings);
}

static inline void put_port(struct fixture *f, const uint8_t *mac, uint16_t vlan, uint32_t port, uint32_t flags,
		     uint32_t queue_pairs)
{
	struct vl_port_key key = { .vlan = vlan };
	struct vl_port_value value = { .port = port, .flags = flags, .queue_pairs = queue_pairs };

	memcpy(key.mac, mac, 6);
	put(bpf_map__fd(f->skeleton->maps.ports), &key, &value);
}

static inline void put_affinity(struct fixture *f, uint32_t port, uint32_t pair, uint32_t worker)
{
	struct vl_queue_key key = { .port = port, .queue_pair = pair };
	struct vl_queue_value value = { .cpu = worker, .worker = worker };

	put(bpf_map__fd(f->skeleton->maps.queue_affinity), &key, &value);
}

static inline void fill_lane(struct fixture *f, uint32_t queue, uint32_t worker)
{
	uint32_t index = vl_lane_index(queue, WORKERS, worker);

	put(f->lanes, &index, &f->socket);
}

static inline void empty_lanes(struct fixture *f)
{
	for (uint32_t i = 0; i < VL_DEVICE_QUEUES_MAX * VL_WORKERS_MAX; i++)
		bpf_map_delete_elem(f->lanes, &i);
}

static inline void only_lane(struct fixture *f, uint32_t queue, uint32_t worker)
{
	empty_lanes(f);
	fill_lane(f, queue, worker);
}

static inline uint64_t counter(struct fixture *f, uint32_t reason)
{
	int cpus = libbpf_num_possible_cpus();
	uint64_t values[1024], sum = 0;

	assert_in_range(cpus, 1, 1024);
	assert_int_equal(bpf_map_lookup_elem(bpf_map__fd(f->skeleton->maps.counters), &reason, values), 0);
	for (int i = 0; i < cpus; i++)
		sum += values[i];
	return sum;
}

static inline int run_on(struct fixture *f, const struct packet *p, uint32_t ifindex, uint32_t queue)
{
	struct xdp_md context = { .data_end = p->length, .ingress_ifindex = ifindex, .rx_queue_index = queue };
	uint8_t out[PACKET_MAX];
	DECLARE_LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = p->data, .data_size_in = p->length, .data_out = out,
			    .data_size_out = sizeof(out), .ctx_in = ifindex ? &context : NULL,
			    .ctx_size_in = ifindex ? sizeof(context) : 0, .repeat = 1);

	assert_int_equal(bpf_prog_test_run_opts(f->program, &opts), 0);
	assert_int_equal(opts.data_size_out, p->length);
	assert_memory_equal(out, p->data, p->length);
	return (int)opts.retval;
}

static inline int run(struct fixture *f, const struct packet *p)
{
	return run_on(f, p, 0, 0);
}

/* The verdict, and that exactly the counter of @reason, and no other, went up by one. */
static inline void expect(struct fixture *f, const struct packet *p, int verdict, uint32_t reason)
{
	uint64_t before[VL_REASON_COUNT];

	for (uint32_t i = 0; i < VL_REASON_COUNT; i++)
		before[i] = counter(f, i);
	assert_int_equal(run(f, p), verdict);
	for (uint32_t i = 0; i < VL_REASON_COUNT; i++)
		assert_int_equal(counter(f, i), before[i] + (i == reason));
}

static inline int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->skeleton = xdp_steer__open_and_load();
	assert_non_null(f->skeleton);
	f->program = bpf_program__fd(f->skeleton->progs.xdp_steer);
	f->lanes = bpf_map__fd(f->skeleton->maps.lanes);
	f->socket = xsk_of_no_device();
	f->settings = (struct vl_settings){ .abi = VL_ABI_VERSION,
					    .flags = VL_SETTINGS_READY,
					    .workers = WORKERS,
					    .device_queues = QUEUES,
					    .flood_worker = 3 };
	put_settings(f);
	put_port(f, guest, VL_VLAN_NONE, PORT, 0, 1);
	put_affinity(f, PORT, 0, 2);
	only_lane(f, 0, 2);
	*state = f;
	return 0;
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	close(f->socket);
	xdp_steer__destroy(f->skeleton);
	free(f);
	return 0;
}

static inline void udp(struct packet *p, const uint8_t *to)
{
	packet_start(p, to, peer);
	packet_ipv4(p, 0x0a000001, 0x0a000002, 17, 0, 0);
	packet_ports(p, 1000, 2000);
}

static inline void tagged(struct packet *p, const uint8_t *to, uint16_t protocol, uint16_t tci, bool inner)
{
	packet_start(p, to, peer);
	packet_tag(p, protocol, tci);
	if (inner)
		packet_tag(p, 0x8100, 77);
	packet_ipv4(p, 0x0a000001, 0x0a000002, 17, 0, 0);
	packet_ports(p, 1000, 2000);
}

#endif
