/* SPDX-License-Identifier: BSD-2-Clause */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "datapath/lane.h"
#include "ends.h"

#define WIRE_QUEUES_MAX 16
#define STAGED_MAX FRAME_BURST
#define STAGED_BYTES 2048

struct wire_end {
	struct end end;
	bool poll;
	unsigned ifindex, queues, next_queue;
	struct lane_device *device;
	struct lane_port *ports[WIRE_QUEUES_MAX]; /* one sends on each queue; the first receives from all */
	struct lane *lane; /* of the burst in hand */
	struct frame_burst burst;
	int map_fd, program_fd;
	uint64_t lost;
	/* Frames to send, until flush(). */
	unsigned staged_count;
	struct frame staged[STAGED_MAX];
	uint8_t bytes[STAGED_MAX][FRAME_HEADROOM + STAGED_BYTES] CACHE_ALIGNED;
};

static struct wire_end *wire_of(struct end *end)
{
	return container_of(end, struct wire_end, end);
}

/* A burst of the next queue that has something. */
static unsigned wire_receive(struct end *end, struct packet *packets, unsigned max)
{
	struct wire_end *w = wire_of(end);

	for (unsigned i = 0; i < w->queues; i++) {
		struct lane *lane = lane_of(w->device, w->next_queue, 0);
		const unsigned count = lane_pending(lane) ? lane_receive(w->ports[0], lane, &w->burst, max) : 0;

		w->next_queue = (w->next_queue + 1) % w->queues;
		for (unsigned f = 0; f < count; f++)
			packets[f] = (struct packet){w->burst.frames[f].head, w->burst.frames[f].length};
		w->lane = lane;
		if (count)
			return count;
	}
	return 0;
}

static void wire_release(struct end *end)
{
	lane_release(wire_of(end)->ports[0], wire_of(end)->lane, &wire_of(end)->burst);
}

/* As a host that spreads its flows over its device's queues, and with them over the queues of the other end. */
static unsigned queue_of(const struct wire_end *w, const struct frame *frame)
{
	return (unsigned)(frame->head[35] + frame->head[37]) % w->queues; /* low bytes of both UDP ports */
}

static void wire_send(struct wire_end *w)
{
	for (unsigned q = 0; q < w->queues && w->staged_count; q++) {
		struct frame *frames[STAGED_MAX];
		unsigned count = 0;

		for (unsigned i = 0; i < w->staged_count; i++)
			if (queue_of(w, &w->staged[i]) == q)
				frames[count++] = &w->staged[i];
		if (!count)
			continue;
		w->lost += count - lane_send(w->ports[q], frames, count);
		lane_flush(w->ports[q]);
	}
	w->staged_count = 0;
}

static uint8_t *wire_reserve(struct end *end)
{
	struct wire_end *w = wire_of(end);

	if (w->staged_count == STAGED_MAX)
		wire_send(w);
	return w->bytes[w->staged_count] + FRAME_HEADROOM;
}

static void wire_offer(struct end *end, uint32_t length)
{
	struct wire_end *w = wire_of(end);
	struct frame *frame = &w->staged[w->staged_count];

	*frame = (struct frame){.head = w->bytes[w->staged_count++] + FRAME_HEADROOM, .length = length, .head_length = (uint16_t)length};
}

static void wire_flush(struct end *end)
{
	wire_send(wire_of(end));
}

static void wire_wait(struct end *end, bool for_room)
{
	struct wire_end *w = wire_of(end);
	struct pollfd fds[WIRE_QUEUES_MAX + 1];
	bool pending = false;
	uint64_t calls;

	if (w->poll) {
		cpu_pause();
		return;
	}
	for (unsigned q = 0; q < w->queues; q++) {
		lane_flush(w->ports[q]);
		lane_settle(w->ports[q]);
		pending |= w->ports[q]->tx_pending;
		fds[q] = (struct pollfd){.fd = lane_fd(lane_of(w->device, q, 0)), .events = POLLIN};
	}
	fds[w->queues] = (struct pollfd){.fd = end->wake_fd, .events = POLLIN};
	if (poll(fds, w->queues + 1, pending ? 1 : -1) > 0 && fds[w->queues].revents)
		if (read(end->wake_fd, &calls, sizeof(calls)) < 0 && errno != EINTR)
			abort();
}

/* --- life ------------------------------------------------------------------------------------------------------------- */

static struct bpf_insn insn(int code, int to, int from, int offset, int32_t immediate)
{
	return (struct bpf_insn){
		.code = (uint8_t)code,
		.dst_reg = (uint8_t)(to & 15),
		.src_reg = (uint8_t)(from & 15),
		.off = (int16_t)offset,
		.imm = immediate,
	};
}

/* return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS); */
static int load_program(int map_fd)
{
	const struct bpf_insn program[] = {
		insn(BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, rx_queue_index), 0),
		insn(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map_fd),
		insn(0, 0, 0, 0, 0),
		insn(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS),
		insn(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map),
		insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
	};

	return bpf_prog_load(BPF_PROG_TYPE_XDP, "bench_wire", "GPL", program, ARRAY_SIZE(program), NULL);
}

static int attach(struct wire_end *w, struct error *error)
{
	int result;

	w->map_fd = bpf_map_create(BPF_MAP_TYPE_XSKMAP, "bench_wire", 4, 4, w->queues, NULL);
	if (w->map_fd < 0)
		return error_set(error, w->map_fd, "wire: no map: %s", strerror(-w->map_fd));
	for (uint32_t q = 0; q < w->queues; q++) {
		const int fd = lane_fd(lane_of(w->device, q, 0));

		if (bpf_map_update_elem(w->map_fd, &q, &fd, BPF_ANY))
			return error_set(error, -errno, "wire: socket of queue %u not in the map: %s", q, strerror(errno));
	}
	w->program_fd = load_program(w->map_fd);
	if (w->program_fd < 0)
		return error_set(error, w->program_fd, "wire: program not loaded: %s", strerror(-w->program_fd));
	result = bpf_xdp_attach((int)w->ifindex, w->program_fd, XDP_FLAGS_DRV_MODE, NULL);
	if (result)
		return error_set(error, result, "wire: program not attached: %s", strerror(-result));
	return 0;
}

static int enter(const char *namespace, struct error *error)
{
	const int fd = open(namespace, O_RDONLY | O_CLOEXEC);
	int result = 0;

	if (fd < 0 || setns(fd, CLONE_NEWNET))
		result = error_set(error, -errno, "namespace %s: %s", namespace, strerror(errno));
	if (fd >= 0)
		close(fd);
	return result;
}

struct wire_end *wire_end_open(const char *namespace, const char *ifname, unsigned queues, bool poll, struct error *error)
{
	static const struct end_ops ops = {
		.receive = wire_receive,
		.release = wire_release,
		.reserve = wire_reserve,
		.offer = wire_offer,
		.flush = wire_flush,
		.wait = wire_wait,
	};
	struct lane_device_setup setup = {.queues = queues, .workers = queues, .mode = LANE_MODE_COPY, .node = -1, .frame_size = 2048};
	struct wire_end *w = zalloc_aligned(sizeof(*w));

	if (!w || queues < 1 || queues > WIRE_QUEUES_MAX || !copy_string(setup.ifname, sizeof(setup.ifname), ifname)) {
		error_set(error, -EINVAL, "wire: %s with %u queues: not possible", ifname, queues);
		goto fail;
	}
	if (enter(namespace, error))
		goto fail;
	setup.ifindex = w->ifindex = if_nametoindex(ifname);
	w->queues = queues;
	w->map_fd = w->program_fd = -1;
	w->poll = poll;
	w->end.ops = &ops;
	w->device = lane_device_open(&setup, error);
	if (!w->device)
		goto fail;
	for (unsigned q = 0; q < queues; q++)
		if (!(w->ports[q] = lane_port_create(w->device, q, error)))
			goto close;
	if (attach(w, error))
		goto close;
	return w;
close:
	wire_end_close(w);
	return NULL;
fail:
	free(w);
	return NULL;
}

void wire_end_close(struct wire_end *w)
{
	bpf_xdp_detach((int)w->ifindex, XDP_FLAGS_DRV_MODE, NULL);
	if (w->program_fd >= 0)
		close(w->program_fd);
	if (w->map_fd >= 0)
		close(w->map_fd);
	for (unsigned q = 0; q < w->queues; q++)
		lane_port_destroy(w->ports[q]);
	lane_device_close(w->device);
	free(w);
}

struct end *wire_end_of(struct wire_end *w)
{
	return &w->end;
}

uint64_t wire_end_lost(const struct wire_end *w)
{
	return w->lost;
}
