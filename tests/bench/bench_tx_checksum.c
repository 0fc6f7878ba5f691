/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What it costs who completes an open checksum, from a guest's frame to the end of the kernel's part: cut if it is large, copied into
 * UMEM, sent by AF_XDP in copy mode over a veth, taken by the peer's stack, all on one CPU in one thread. In turns within one run:
 *   engine   summed while copied            again    the same, for an A/A control
 *   device   left open, the veth takes it   kernel   left open, and the kernel completes it (the veth's offload is off)
 * The peer is either nobody (the frame ends where its address is compared) or TCP, which verifies what is not open and drops it then.
 *
 *   bench_tx_checksum [ROUNDS]        as root; makes its veth in a network namespace of its own
 */
#include <errno.h>
#include <linux/if_ether.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/util.h"
#include "datapath/lane.h"
#include "datapath/segment.h"
#include "measure.h"
#include "../unit/offload_packet.h"

#define DEVICE "vltsum0"
#define PEER "vltsum1"
#define MSS 1448
#define SOURCES 32 /* guest frames used in turn */

enum way { ENGINE, AGAIN, DEVICE_OPEN, KERNEL, WAYS };
static const char *const way_names[WAYS] = {"engine", "again", "device", "kernel"};

struct bench {
	struct lane_device *device;
	struct lane_port *port;
	struct segmenter segmenter;
	struct segment_burst burst;
	uint8_t *memory[SOURCES];
	struct frame_segment payload[SOURCES];
	struct frame frames[SOURCES];
};

static void command(const char *text)
{
	if (system(text)) {
		fprintf(stderr, "bench_tx_checksum: failed: %s\n", text);
		exit(1);
	}
}

static uint64_t tcp_counter(const char *name)
{
	char names[2048], values[2048], *n, *v, *rest_n, *rest_v;
	FILE *file = fopen("/proc/net/snmp", "r");
	uint64_t value = UINT64_MAX;

	while (file && fgets(names, sizeof(names), file) && fgets(values, sizeof(values), file)) {
		if (strncmp(names, "Tcp:", 4))
			continue;
		for (n = strtok_r(names, " \n", &rest_n), v = strtok_r(values, " \n", &rest_v); n && v;
		     n = strtok_r(NULL, " \n", &rest_n), v = strtok_r(NULL, " \n", &rest_v))
			if (!strcmp(n, name))
				value = strtoull(v, NULL, 10);
	}
	if (file)
		fclose(file);
	return value;
}

static void send_round(struct bench *b)
{
	for (unsigned i = 0; i < SOURCES; i++) {
		struct frame *one = &b->frames[i];

		if (one->offload.gso == FRAME_GSO_NONE) {
			lane_send(b->port, &one, 1);
			continue;
		}
		if (segment_start(&b->segmenter, one) != SEGMENT_GOOD)
			abort();
		while (segment_next(&b->segmenter, &b->burst))
			lane_send(b->port, b->burst.list, b->burst.count);
		lane_flush(b->port); /* some 50 frames at a time, as a worker's bursts */
	}
	lane_flush(b->port);
}

static void take_way(struct bench *b, enum way way)
{
	static int on = -1;
	const int wanted = way != KERNEL;

	lane_device_leave_checksum(b->device, way == DEVICE_OPEN || way == KERNEL);
	if (on != wanted)
		command(wanted ? "ethtool -K " DEVICE " tx on >/dev/null" : "ethtool -K " DEVICE " tx off >/dev/null");
	on = wanted;
}

/* Each frame has @payload bytes. @takes: the peer's TCP does. */
static void run(struct bench *b, uint32_t payload, bool takes, unsigned rounds)
{
	const unsigned segments = (payload + MSS - 1) / MSS * SOURCES;
	double *spent[WAYS], *ratio[WAYS];
	const uint64_t heard = tcp_counter("InSegs"), wrong = tcp_counter("InErrs");
	struct packet p = packet_tcp4;

	p.payload = payload;
	p.flags = RST | ACK; /* to no socket's port: verified, dropped, not answered */
	p.source_port = 33000;
	for (unsigned i = 0; i < SOURCES; i++) {
		const uint32_t length = packet_make(&p, b->memory[i], true);

		if (!takes)
			b->memory[i][5] ^= 0x40;
		b->payload[i] = (struct frame_segment){b->memory[i] + FRAME_HEAD_MAX, length - FRAME_HEAD_MAX};
		b->frames[i] = (struct frame){.head = b->memory[i], .head_length = FRAME_HEAD_MAX, .length = length, .segments = &b->payload[i],
					      .segment_count = 1, .vnet = packet_header(&p, payload > MSS ? MSS : 0)};
		if (vnet_judge(&b->frames[i], EVERY_SENDER_FEATURE) != VNET_GOOD)
			abort();
	}
	for (unsigned w = 0; w < WAYS; w++) {
		spent[w] = calloc(rounds, sizeof(double));
		ratio[w] = calloc(rounds, sizeof(double));
	}
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned turn = 0; turn < WAYS; turn++) {
			const enum way way = r % 2 ? WAYS - 1 - turn : turn;
			uint64_t start;

			take_way(b, way);
			send_round(b); /* warms */
			start = now_ns();
			for (unsigned k = 0; k < 8; k++)
				send_round(b);
			spent[way][r] = (double)(now_ns() - start) / 8 / segments;
			lane_settle(b->port);
		}
		for (unsigned w = 0; w < WAYS; w++)
			ratio[w][r] = spent[w][r] / spent[ENGINE][r];
	}
	/* Nothing was lost on the way, and nobody found fault with it. */
	if (takes && (tcp_counter("InSegs") - heard < (uint64_t)segments * 9 * WAYS * rounds || tcp_counter("InErrs") != wrong)) {
		fprintf(stderr, "bench_tx_checksum: TCP took %llu of %llu segments, %llu wrong\n", (unsigned long long)(tcp_counter("InSegs") - heard),
			(unsigned long long)segments * 9 * WAYS * rounds, (unsigned long long)(tcp_counter("InErrs") - wrong));
		exit(1);
	}
	printf("%5u B, peer %-6s", payload, takes ? "TCP" : "nobody");
	for (unsigned w = 0; w < WAYS; w++) {
		printf("  %s %5.0f ns (%.2f)", way_names[w], median(spent[w], rounds), median(ratio[w], rounds));
		free(spent[w]);
		free(ratio[w]);
	}
	printf("\n");
}

static void open_device(struct bench *b)
{
	struct lane_device_setup setup = {.ifname = DEVICE, .queues = 1, .workers = 1, .mode = LANE_MODE_COPY, .node = -1, .frame_size = 2048, .mtu = 1500};
	struct error error = {0};

	if (unshare(CLONE_NEWNET)) {
		fprintf(stderr, "bench_tx_checksum: no network namespace of its own: %s; run as root\n", strerror(errno));
		exit(2);
	}
	command("ip link add " DEVICE " type veth peer name " PEER " address 52:54:00:00:00:01; ip addr add 10.0.1.2/16 dev " PEER
		"; for i in " DEVICE " " PEER "; do echo 1 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; ip link set $i up; done; ip link set lo up");
	setup.ifindex = if_nametoindex(DEVICE);
	b->device = lane_device_open(&setup, &error);
	if (b->device)
		b->port = lane_port_create(b->device, 0, &error);
	if (!b->port) {
		fprintf(stderr, "bench_tx_checksum: %s\n", error.text);
		exit(1);
	}
	lane_device_leave_checksum(b->device, true);
	if (!lane_device_leaves_checksum(b->device)) {
		fprintf(stderr, "bench_tx_checksum: this kernel takes no transmit metadata; use Linux 6.11 or newer\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	const unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 400;
	struct bench *b = zalloc_aligned(sizeof(*b));

	if (!b || rounds < 2) {
		fprintf(stderr, "bench_tx_checksum: ROUNDS must be 2 or more\n");
		return 2;
	}
	for (unsigned i = 0; i < SOURCES; i++)
		b->memory[i] = aligned_alloc(4096, 1 << 17);
	open_device(b);
	pin_to_cpu(sched_getcpu());
	printf("nanoseconds a segment on the wire, and the ratio to engine within each round (medians of %u rounds)\n", rounds);
	for (unsigned takes = 0; takes < 2; takes++) {
		run(b, MSS, takes, rounds);
		run(b, 45 * MSS, takes, rounds / 4 + 1);
	}
	lane_port_destroy(b->port);
	lane_device_close(b->device);
	return 0;
}
