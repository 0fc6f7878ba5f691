/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A session between a real socket and recording operations, and the frontend that talks to it. A worker's part is played: it holds
 * what was published and active until that is withdrawn, and nothing that it may hold may be touched before.
 */
#ifndef TESTS_UNIT_SESSION_RIG_H
#define TESTS_UNIT_SESSION_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <linux/virtio_config.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log.h"
#include "control/vhost_user.h"
#include "control/vhost_user_message.h"
#include "descriptor_traffic.h"

#define PAIRS 2
#define RINGS (2 * PAIRS)
#define MEMORY_SIZE (1 << 20)
#define USER_BASE 0x7f0000000000ull
#define GUEST_BASE 0x100000ull
#define RING_SPACE 0x8000
#define SIZE 64
#define PF (1ull << VHOST_USER_F_PROTOCOL_FEATURES)
#define V1 (1ull << VIRTIO_F_VERSION_1)

struct fixture {
	char directory[64], path[96];
	struct event_loop *loop;
	struct vhost_user_session *session;
	struct config_port config;
	struct port port;
	struct queue_pair pairs[PAIRS], *pair_list[PAIRS];

	/* The workers' side, as the operations tell it. */
	bool held[RINGS];	/* a worker may be using it */
	unsigned withdrawals, publishes, synchronizes, announces;
	unsigned publish_us; /* what one takes */
	unsigned publishes_seen, publishes_between;
	uint8_t announced[6];

	int peer; /* the frontend's end */
	int memory_fd, descriptors;
	uint8_t *memory;
};

static inline struct ring *ring_at(struct fixture *f, unsigned index)
{
	return index & 1 ? &f->pairs[index / 2].from_guest : &f->pairs[index / 2].to_guest;
}

/* --- operations: a worker holds what was published and active until it is withdrawn ---------------------------------- */

static inline void check_held(struct fixture *f)
{
	for (unsigned i = 0; i < RINGS; i++)
		if (f->held[i])
			assert_true(ring_at(f, i)->running);
}

static inline void show(struct fixture *f)
{
	for (unsigned i = 0; i < RINGS; i++)
		f->held[i] |= vhost_user_ring_active(f->session, i);
}

static inline void op_withdraw(void *context, int ring)
{
	struct fixture *f = context;

	f->withdrawals++;
	check_held(f);
	/* As in the daemon: taking one back publishes the rest. */
	show(f);
	for (int i = 0; i < RINGS; i++)
		if (ring < 0 || ring == i)
			f->held[i] = false;
}

static inline void op_publish(void *context)
{
	struct fixture *f = context;

	f->publishes++;
	usleep(f->publish_us);
	check_held(f);
	show(f);
}

static inline void op_synchronize(void *context)
{
	struct fixture *f = context;

	f->synchronizes++;
	check_held(f);
}

static inline void op_announce(void *context, const uint8_t mac[6])
{
	struct fixture *f = context;

	f->announces++;
	memcpy(f->announced, mac, 6);
}

static const struct vhost_user_ops ops = {
	.withdraw = op_withdraw, .publish = op_publish, .synchronize = op_synchronize, .announce = op_announce
};

/* --- the loop, for a moment ------------------------------------------------------------------------------------------ */

static inline void stop(void *context)
{
	event_loop_stop(context);
}

static inline void turn(struct fixture *f)
{
	struct event_source *timer = event_loop_timer(f->loop, 2000000, 0, stop, f->loop, NULL);

	assert_non_null(timer);
	assert_int_equal(event_loop_run(f->loop), 0);
	event_source_remove(timer);
	check_held(f);
}

static inline bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

#define turn_until(f, condition)                                    \
	do {                                                        \
		for (int i_ = 0; i_ < 5000 && !(condition); i_++)   \
			turn(f);                                    \
		assert_true(condition);                             \
	} while (0)

/* --- the frontend ---------------------------------------------------------------------------------------------------- */

static inline void send_request(struct fixture *f, uint32_t request, uint32_t flags, const void *payload, uint32_t size, const int *fds, unsigned fd_count)
{
	uint8_t bytes[2048];
	struct vhost_user_header h = { request, VHOST_USER_VERSION | flags, size };

	memcpy(bytes, &h, sizeof(h));
	if (size)
		memcpy(bytes + sizeof(h), payload, size);
	send_raw(f->peer, bytes, sizeof(h) + size, fds, fd_count);
}

/* Sends with NEED_REPLY or for its own answer; returns the answer's first 64 bits. */
static inline uint64_t ask(struct fixture *f, uint32_t request, const void *payload, uint32_t size, int fd)
{
	struct {
		struct vhost_user_header header;
		uint64_t u64;
	} __attribute__((packed)) reply;

	send_request(f, request, VHOST_USER_FLAG_NEED_REPLY, payload, size, &fd, fd >= 0);
	turn_until(f, readable(f->peer));
	assert_int_equal(recv(f->peer, &reply, sizeof(reply), MSG_DONTWAIT), 20);
	assert_int_equal(reply.header.request, request);
	assert_int_equal(reply.header.flags, VHOST_USER_VERSION | VHOST_USER_FLAG_REPLY);
	assert_int_equal(reply.header.size, 8);
	assert_false(readable(f->peer));
	return reply.u64;
}

static inline uint64_t ask_u64(struct fixture *f, uint32_t request, uint64_t value, int fd)
{
	return ask(f, request, &value, sizeof(value), fd);
}

static inline uint64_t ask_state(struct fixture *f, uint32_t request, uint32_t index, uint32_t num)
{
	struct vhost_user_vring_state state = { index, num };

	return ask(f, request, &state, sizeof(state), -1);
}

static inline void connect_peer(struct fixture *f)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strcpy(address.sun_path, f->path);
	f->peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(f->peer, (struct sockaddr *)&address, sizeof(address)), 0);
	turn_until(f, vhost_user_state_of(f->session) != VHOST_USER_WAITING);
}

static inline void negotiate(struct fixture *f)
{
	uint64_t offered;

	send_request(f, VHOST_USER_SET_PROTOCOL_FEATURES, 0, &(uint64_t){ 1 << VHOST_USER_PROTOCOL_F_REPLY_ACK | 1 }, 8, NULL, 0);
	offered = ask(f, VHOST_USER_GET_FEATURES, NULL, 0, -1);
	assert_int_equal(offered & (PF | V1), PF | V1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, PF | V1, -1), 0);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_NEGOTIATED);
}

static inline uint64_t send_memory(struct fixture *f, uint64_t user_base)
{
	struct vhost_user_memory table = { .count = 1, .regions = { { GUEST_BASE, MEMORY_SIZE, user_base, 0 } } };

	return ask(f, VHOST_USER_SET_MEM_TABLE, &table, 40, f->memory_fd);
}

static inline uint64_t send_addresses(struct fixture *f, unsigned ring, uint64_t user_base)
{
	struct vhost_user_vring_addr a = {
		.index = ring,
		.desc = user_base + ring * RING_SPACE,
		.avail = user_base + ring * RING_SPACE + 0x2000,
		.used = user_base + ring * RING_SPACE + 0x4000,
	};

	return ask(f, VHOST_USER_SET_VRING_ADDR, &a, sizeof(a), -1);
}

static inline uint64_t send_eventfd(struct fixture *f, uint32_t request, unsigned ring)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	uint64_t result = ask_u64(f, request, ring, fd);

	close(fd);
	return result;
}

enum step { STEP_MEMORY, STEP_NUM, STEP_ADDR, STEP_BASE, STEP_KICK, STEP_CALL, STEP_ENABLE, STEPS };

static inline void do_step(struct fixture *f, unsigned step, unsigned ring)
{
	switch (step) {
	case STEP_MEMORY:
		assert_int_equal(send_memory(f, USER_BASE), 0);
		break;
	case STEP_NUM:
		assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_NUM, ring, SIZE), 0);
		break;
	case STEP_ADDR:
		assert_int_equal(send_addresses(f, ring, USER_BASE), 0);
		break;
	case STEP_BASE:
		assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_BASE, ring, 7), 0);
		break;
	case STEP_KICK:
		assert_int_equal(send_eventfd(f, VHOST_USER_SET_VRING_KICK, ring), 0);
		break;
	case STEP_CALL:
		assert_int_equal(send_eventfd(f, VHOST_USER_SET_VRING_CALL, ring), 0);
		break;
	case STEP_ENABLE:
		assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_ENABLE, ring, 1), 0);
		break;
	}
}

static inline void bring_up(struct fixture *f, unsigned ring)
{
	for (unsigned step = f->held[0] ? STEP_NUM : STEP_MEMORY; step < STEPS; step++)
		do_step(f, step, ring);
	assert_true(f->held[ring]);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_SERVING);
}

static inline void hang_up(struct fixture *f)
{
	close(f->peer);
	f->peer = -1;
	turn_until(f, vhost_user_state_of(f->session) == VHOST_USER_WAITING);
	for (unsigned i = 0; i < RINGS; i++)
		assert_false(f->held[i]);
	assert_null(vhost_user_memory(f->session));
}

/* --- setup ----------------------------------------------------------------------------------------------------------- */

static inline void open_session(struct fixture *f, enum port_role role)
{
	struct error error = { 0 };

	f->config.role = role;
	f->session = vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error);
	if (!f->session)
		fail_msg("%s", error.text);
}

static inline int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	log_set_level(LOG_LEVEL_ERROR);
	strcpy(f->directory, "/tmp/vhostlane-unit.XXXXXX");
	assert_non_null(mkdtemp(f->directory));
	snprintf(f->path, sizeof(f->path), "%s/p.sock", f->directory);
	f->loop = event_loop_create(NULL);
	strcpy(f->config.name, "p");
	strcpy(f->config.socket, f->path);
	strcpy(f->port.name, "p");
	f->port.queue_pairs = PAIRS;
	f->port.pairs = f->pair_list;
	for (unsigned i = 0; i < PAIRS; i++)
		f->pair_list[i] = &f->pairs[i];
	f->memory_fd = memfd_create("guest", MFD_CLOEXEC);
	assert_int_equal(ftruncate(f->memory_fd, MEMORY_SIZE), 0);
	f->memory = mmap(NULL, MEMORY_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, f->memory_fd, 0);
	f->peer = -1;
	f->descriptors = count_fds();
	*state = f;
	return 0;
}

static inline int setup_connected(void **state)
{
	setup(state);
	open_session(*state, PORT_ROLE_SERVER);
	connect_peer(*state);
	negotiate(*state);
	return 0;
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	vhost_user_close(f->session);
	if (f->peer >= 0)
		close(f->peer);
	/* The reaper closes some. */
	for (int i = 0; i < 60000 && count_fds() != f->descriptors; i++)
		usleep(1000);
	assert_int_equal(count_fds(), f->descriptors);
	for (unsigned i = 0; i < RINGS; i++)
		assert_false(f->held[i]);
	event_loop_free(f->loop);
	munmap(f->memory, MEMORY_SIZE);
	close(f->memory_fd);
	unlink(f->path);
	assert_int_equal(rmdir(f->directory), 0);
	free(f);
	return 0;
}

#endif
