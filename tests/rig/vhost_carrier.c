/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A guest reduced to what NUMA placement sees of it: memory on one node, split rings in it, kicks and calls. Descriptor i has buffer
 * i for ever. Every message asks for its acknowledgement, so a refusal shows where it happens.
 */
#include <errno.h>
#include <linux/mempolicy.h>
#include <linux/virtio_ring.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "carrier.h"

#define RING_SIZE 256
#define BUFFER 2048
#define HEADER 12 /* virtio_net_hdr_v1 */
#define RING_BYTES (16 * RING_SIZE + 4096 + 4096) /* descriptors, available ring, used ring: each on pages of its own */
#define RING_SPAN (RING_BYTES + RING_SIZE * BUFFER)
#define GUEST_BASE 0x40000000ull
#define CONNECT_TRIES 3000 /* of 10 ms */

_Static_assert(HEADER + CARRIER_FRAME_MAX == BUFFER, "a frame and its header fill a buffer");
_Static_assert(16 * RING_SIZE % 4096 == 0 && RING_SPAN % 4096 == 0, "each part begins a page");

enum request {
	GET_FEATURES = 1, SET_FEATURES = 2, SET_OWNER = 3, SET_MEM_TABLE = 5, SET_VRING_NUM = 8, SET_VRING_ADDR = 9, SET_VRING_BASE = 10,
	SET_VRING_KICK = 12, SET_VRING_CALL = 13, GET_PROTOCOL_FEATURES = 15, SET_PROTOCOL_FEATURES = 16, SET_VRING_ENABLE = 18,
};

#define VERSION 1u
#define REPLY 4u
#define NEED_REPLY 8u
#define F_PROTOCOL (1ull << 30)
#define F_VERSION_1 (1ull << 32)
#define P_MQ (1ull << 0)
#define P_REPLY_ACK (1ull << 3)

struct message {
	uint32_t request, flags, size;
	union {
		uint64_t u64;
		struct { uint32_t index, number; } state;
		struct { uint32_t index, flags; uint64_t desc, used, avail, log; } address;
		struct { uint32_t count, padding; uint64_t guest, size, user, offset; } memory;
	} payload;
} __attribute__((packed));

#define MESSAGE_HEADER offsetof(struct message, payload)

struct vring_side {
	struct vring_desc *desc;
	struct vring_avail *avail;
	struct vring_used *used;
	uint8_t *buffers;
	uint16_t avail_next, used_seen;
	int kick_fd, call_fd;
	uint16_t free_count, free[RING_SIZE]; /* from_guest only */
};

struct vhost {
	struct carrier carrier;
	int socket, memory_fd;
	uint8_t *memory;
	size_t memory_size;
	struct vring_side rings[2 * CARRIER_PAIRS_MAX]; /* 2 x pair: to_guest; 2 x pair + 1: from_guest */
};

/* --- messages ---------------------------------------------------------------------------------------------------------- */

static void tell(struct vhost *v, struct message *message, int fd)
{
	struct iovec iov = { message, MESSAGE_HEADER + message->size };
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fd >= 0) {
		header.msg_control = &control;
		header.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	}
	if (sendmsg(v->socket, &header, MSG_NOSIGNAL) != (ssize_t)iov.iov_len)
		die("vhost-user request %u: %s", message->request, strerror(errno));
}

static uint64_t answer(struct vhost *v, uint32_t request)
{
	struct message reply;

	if (recv(v->socket, &reply, MESSAGE_HEADER + 8, MSG_WAITALL) != (ssize_t)MESSAGE_HEADER + 8)
		die("vhost-user request %u: the backend hung up", request);
	if (reply.request != request || reply.flags != (VERSION | REPLY) || reply.size != 8)
		die("vhost-user request %u: answer %u, flags %x, %u bytes", request, reply.request, reply.flags, reply.size);
	return reply.payload.u64;
}

static uint64_t ask(struct vhost *v, uint32_t request)
{
	struct message message = { .request = request, .flags = VERSION };

	tell(v, &message, -1);
	return answer(v, request);
}

static void tell_acknowledged(struct vhost *v, struct message *message, int fd)
{
	uint64_t code;

	message->flags = VERSION | NEED_REPLY;
	tell(v, message, fd);
	code = answer(v, message->request);
	if (code)
		die("vhost-user request %u: refused (%llu)", message->request, (unsigned long long)code);
}

static void tell_u64(struct vhost *v, uint32_t request, uint64_t value, int fd)
{
	struct message message = { .request = request, .size = 8, .payload.u64 = value };

	tell_acknowledged(v, &message, fd);
}

static void tell_state(struct vhost *v, uint32_t request, uint32_t index, uint32_t number)
{
	struct message message = { .request = request, .size = 8, .payload.state = { index, number } };

	tell_acknowledged(v, &message, -1);
}

/* --- memory ------------------------------------------------------------------------------------------------------------ */

/* Bound, not preferred: a guest that got memory elsewhere would prove nothing. */
static void bind_memory(struct vhost *v, int node, unsigned flags)
{
	unsigned long mask[2] = { 1ul << node };

	if (syscall(SYS_mbind, v->memory, v->memory_size, MPOL_BIND, mask, 64, flags))
		die("guest memory on node %d: %s", node, strerror(errno));
}

void vhost_move(struct carrier *carrier, int node)
{
	/* All: the backend has these pages mapped too. Strict: what stays behind is an error. */
	bind_memory((struct vhost *)carrier, node, MPOL_MF_MOVE_ALL | MPOL_MF_STRICT);
}

static void make_memory(struct vhost *v, int node)
{
	v->memory_size = (size_t)2 * v->carrier.pairs * RING_SPAN;
	v->memory_fd = memfd_create("rig-guest", MFD_CLOEXEC);
	if (v->memory_fd < 0 || ftruncate(v->memory_fd, (off_t)v->memory_size))
		die("guest memory: %s", strerror(errno));
	v->memory = mmap(NULL, v->memory_size, PROT_READ | PROT_WRITE, MAP_SHARED, v->memory_fd, 0);
	if (v->memory == MAP_FAILED)
		die("guest memory: %s", strerror(errno));
	if (node >= 0)
		bind_memory(v, node, 0);
	memset(v->memory, 0, v->memory_size);
}

static uint64_t address_of(const struct vhost *v, const void *pointer)
{
	return GUEST_BASE + (uint64_t)((const uint8_t *)pointer - v->memory);
}

static void make_ring(struct vhost *v, unsigned index)
{
	struct vring_side *ring = &v->rings[index];
	const bool to_guest = !(index & 1);
	uint8_t *at = v->memory + (size_t)index * RING_SPAN;

	ring->desc = (void *)at;
	ring->avail = (void *)(at + 16 * RING_SIZE);
	ring->used = (void *)(at + 16 * RING_SIZE + 4096);
	ring->buffers = at + RING_BYTES;
	for (uint16_t i = 0; i < RING_SIZE; i++) {
		ring->desc[i] = (struct vring_desc){
			.addr = address_of(v, ring->buffers + (size_t)i * BUFFER),
			.len = BUFFER,
			.flags = to_guest ? VRING_DESC_F_WRITE : 0,
		};
		if (to_guest)
			ring->avail->ring[ring->avail_next++ % RING_SIZE] = i;
		else
			ring->free[ring->free_count++] = i;
	}
	ring->avail->idx = ring->avail_next;
	ring->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ring->call_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->kick_fd < 0 || ring->call_fd < 0)
		die("eventfd: %s", strerror(errno));
}

static void announce_ring(struct vhost *v, unsigned index)
{
	struct vring_side *ring = &v->rings[index];
	struct message address = { .request = SET_VRING_ADDR, .size = sizeof(address.payload.address) };

	/* User addresses are this process's own. */
	address.payload.address.index = index;
	address.payload.address.desc = (uintptr_t)ring->desc;
	address.payload.address.avail = (uintptr_t)ring->avail;
	address.payload.address.used = (uintptr_t)ring->used;
	tell_state(v, SET_VRING_NUM, index, RING_SIZE);
	tell_state(v, SET_VRING_BASE, index, 0);
	tell_acknowledged(v, &address, -1);
	tell_u64(v, SET_VRING_CALL, index, ring->call_fd);
	tell_u64(v, SET_VRING_KICK, index, ring->kick_fd);
}

static void connect_to(struct vhost *v, const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	if (strlen(path) >= sizeof(address.sun_path))
		die("%s: too long for a socket's path", path);
	strcpy(address.sun_path, path);
	v->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	for (unsigned tries = 0; connect(v->socket, (struct sockaddr *)&address, sizeof(address)); tries++) {
		if (tries == CONNECT_TRIES)
			die("%s: %s", path, strerror(errno));
		usleep(10000);
	}
}

static void negotiate(struct vhost *v)
{
	const uint64_t wanted = F_PROTOCOL | F_VERSION_1, protocol_wanted = P_MQ | P_REPLY_ACK;
	struct message protocol = { .request = SET_PROTOCOL_FEATURES, .flags = VERSION, .size = 8, .payload.u64 = protocol_wanted };
	struct message owner = { .request = SET_OWNER };
	struct message memory = { .request = SET_MEM_TABLE, .size = sizeof(memory.payload.memory) };

	if ((ask(v, GET_FEATURES) & wanted) != wanted || (ask(v, GET_PROTOCOL_FEATURES) & protocol_wanted) != protocol_wanted)
		die("the backend lacks features");
	tell(v, &protocol, -1);
	tell_acknowledged(v, &owner, -1);
	tell_u64(v, SET_FEATURES, wanted, -1);
	memory.payload.memory.count = 1;
	memory.payload.memory.guest = GUEST_BASE;
	memory.payload.memory.size = v->memory_size;
	memory.payload.memory.user = (uintptr_t)v->memory;
	tell_acknowledged(v, &memory, v->memory_fd);
}

/* --- frames ------------------------------------------------------------------------------------------------------------ */

static uint16_t used_index(const struct vring_side *ring)
{
	return __atomic_load_n(&ring->used->idx, __ATOMIC_ACQUIRE);
}

static void offer(struct vring_side *ring, uint16_t descriptor)
{
	ring->avail->ring[ring->avail_next++ % RING_SIZE] = descriptor;
}

static void publish(struct vring_side *ring)
{
	const uint64_t one = 1;

	if (ring->avail->idx == ring->avail_next)
		return;
	__atomic_store_n(&ring->avail->idx, ring->avail_next, __ATOMIC_RELEASE);
	atomic_thread_fence(memory_order_seq_cst);
	if (!(__atomic_load_n(&ring->used->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY))
		if (write(ring->kick_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
			die("kick: %s", strerror(errno));
}

static uint16_t take_used(struct vring_side *ring, uint32_t *length)
{
	const struct vring_used_elem *element = &ring->used->ring[ring->used_seen++ % RING_SIZE];

	if (element->id >= RING_SIZE)
		die("used descriptor %u", element->id);
	*length = element->len;
	return (uint16_t)element->id;
}

static size_t vhost_receive(struct carrier *carrier, unsigned pair, uint8_t *frame)
{
	struct vring_side *ring = &((struct vhost *)carrier)->rings[2 * pair];
	uint64_t calls;
	uint32_t length;
	uint16_t id;

	/* The call is taken before the look: what comes after the look calls again. */
	if (used_index(ring) == ring->used_seen && (read(ring->call_fd, &calls, sizeof(calls)) < 0 || used_index(ring) == ring->used_seen))
		return 0;
	id = take_used(ring, &length);
	if (length < HEADER || length > BUFFER)
		die("used length %u", length);
	memcpy(frame, ring->buffers + (size_t)id * BUFFER + HEADER, length - HEADER);
	offer(ring, id);
	return length - HEADER;
}

static bool vhost_send(struct carrier *carrier, unsigned pair, const uint8_t *frame, size_t length)
{
	struct vring_side *ring = &((struct vhost *)carrier)->rings[2 * pair + 1];
	uint32_t unused;
	uint16_t id;

	while (used_index(ring) != ring->used_seen) {
		id = take_used(ring, &unused);
		ring->free[ring->free_count++] = id;
	}
	if (!ring->free_count)
		return false;
	id = ring->free[--ring->free_count];
	memset(ring->buffers + (size_t)id * BUFFER, 0, HEADER);
	memcpy(ring->buffers + (size_t)id * BUFFER + HEADER, frame, length);
	ring->desc[id].len = HEADER + (uint32_t)length;
	offer(ring, id);
	return true;
}

static void vhost_flush(struct carrier *carrier)
{
	struct vhost *v = (struct vhost *)carrier;

	for (unsigned i = 0; i < 2 * carrier->pairs; i++)
		publish(&v->rings[i]);
}

static void vhost_close(struct carrier *carrier)
{
	close(((struct vhost *)carrier)->socket);
	free(carrier);
}

struct carrier *vhost_open(const char *socket, int node, unsigned pairs)
{
	struct vhost *v = calloc(1, sizeof(*v));

	if (!v)
		die("out of memory");
	v->carrier = (struct carrier){
		.pairs = pairs,
		.fd_count = pairs,
		.receive = vhost_receive,
		.send = vhost_send,
		.flush = vhost_flush,
		.close = vhost_close,
	};
	make_memory(v, node);
	connect_to(v, socket);
	negotiate(v);
	for (unsigned i = 0; i < 2 * pairs; i++) {
		make_ring(v, i);
		announce_ring(v, i);
		if (!(i & 1))
			v->carrier.fds[i / 2] = v->rings[i].call_fd;
	}
	for (unsigned i = 0; i < 2 * pairs; i++)
		tell_state(v, SET_VRING_ENABLE, i, 1);
	return &v->carrier;
}
