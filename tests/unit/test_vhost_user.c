// SPDX-License-Identifier: BSD-2-Clause
/*
 * A session between a real socket and recording operations: what only the inside can see, above all that nothing a
 * worker may hold is touched before it was withdrawn. What a frontend can see is in tests/frontend.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_config.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/log.h"
#include "control/vhost_user.h"
#include "control/vhost_user_message.h"

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

static struct ring *ring_at(struct fixture *f, unsigned index)
{
	return index & 1 ? &f->pairs[index / 2].from_guest : &f->pairs[index / 2].to_guest;
}

/* --- operations: a worker holds what was published and active until it is withdrawn ---------------------------------- */

static void check_held(struct fixture *f)
{
	for (unsigned i = 0; i < RINGS; i++)
		if (f->held[i])
			assert_true(ring_at(f, i)->running);
}

static void show(struct fixture *f)
{
	for (unsigned i = 0; i < RINGS; i++)
		f->held[i] |= vhost_user_ring_active(f->session, i);
}

static void op_withdraw(void *context, int ring)
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

static void op_publish(void *context)
{
	struct fixture *f = context;

	f->publishes++;
	usleep(f->publish_us);
	check_held(f);
	show(f);
}

static void op_synchronize(void *context)
{
	struct fixture *f = context;

	f->synchronizes++;
	check_held(f);
}

static void op_announce(void *context, const uint8_t mac[6])
{
	struct fixture *f = context;

	f->announces++;
	memcpy(f->announced, mac, 6);
}

static const struct vhost_user_ops ops = {
	.withdraw = op_withdraw, .publish = op_publish, .synchronize = op_synchronize, .announce = op_announce
};

/* --- the loop, for a moment ------------------------------------------------------------------------------------------ */

static void stop(void *context)
{
	event_loop_stop(context);
}

static void turn(struct fixture *f)
{
	struct event_source *timer = event_loop_timer(f->loop, 2000000, 0, stop, f->loop, NULL);

	assert_non_null(timer);
	assert_int_equal(event_loop_run(f->loop), 0);
	event_source_remove(timer);
	check_held(f);
}

static bool readable(int fd)
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

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* --- the frontend ---------------------------------------------------------------------------------------------------- */

static void send_raw(int fd, const void *bytes, size_t size, const int *fds, unsigned fd_count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * 64)];
	} control;
	struct iovec piece = { .iov_base = (void *)bytes, .iov_len = size };
	struct msghdr h = { .msg_iov = &piece, .msg_iovlen = 1 };

	if (fd_count) {
		struct cmsghdr *c;

		h.msg_control = control.bytes;
		h.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
		c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * fd_count);
	}
	assert_int_equal(sendmsg(fd, &h, MSG_NOSIGNAL), size);
}

static void send_request(struct fixture *f, uint32_t request, uint32_t flags, const void *payload, uint32_t size, const int *fds, unsigned fd_count)
{
	uint8_t bytes[2048];
	struct vhost_user_header h = { request, VHOST_USER_VERSION | flags, size };

	memcpy(bytes, &h, sizeof(h));
	if (size)
		memcpy(bytes + sizeof(h), payload, size);
	send_raw(f->peer, bytes, sizeof(h) + size, fds, fd_count);
}

/* Sends with NEED_REPLY or for its own answer; returns the answer's first 64 bits. */
static uint64_t ask(struct fixture *f, uint32_t request, const void *payload, uint32_t size, int fd)
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

static uint64_t ask_u64(struct fixture *f, uint32_t request, uint64_t value, int fd)
{
	return ask(f, request, &value, sizeof(value), fd);
}

static uint64_t ask_state(struct fixture *f, uint32_t request, uint32_t index, uint32_t num)
{
	struct vhost_user_vring_state state = { index, num };

	return ask(f, request, &state, sizeof(state), -1);
}

static void connect_peer(struct fixture *f)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	strcpy(address.sun_path, f->path);
	f->peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(f->peer, (struct sockaddr *)&address, sizeof(address)), 0);
	turn_until(f, vhost_user_state_of(f->session) != VHOST_USER_WAITING);
}

static void negotiate(struct fixture *f)
{
	uint64_t offered;

	send_request(f, VHOST_USER_SET_PROTOCOL_FEATURES, 0, &(uint64_t){ 1 << VHOST_USER_PROTOCOL_F_REPLY_ACK | 1 }, 8, NULL, 0);
	offered = ask(f, VHOST_USER_GET_FEATURES, NULL, 0, -1);
	assert_int_equal(offered & (PF | V1), PF | V1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, PF | V1, -1), 0);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_NEGOTIATED);
}

static uint64_t send_memory(struct fixture *f, uint64_t user_base)
{
	struct vhost_user_memory table = { .count = 1, .regions = { { GUEST_BASE, MEMORY_SIZE, user_base, 0 } } };

	return ask(f, VHOST_USER_SET_MEM_TABLE, &table, 40, f->memory_fd);
}

static uint64_t send_addresses(struct fixture *f, unsigned ring, uint64_t user_base)
{
	struct vhost_user_vring_addr a = {
		.index = ring,
		.desc = user_base + ring * RING_SPACE,
		.avail = user_base + ring * RING_SPACE + 0x2000,
		.used = user_base + ring * RING_SPACE + 0x4000,
	};

	return ask(f, VHOST_USER_SET_VRING_ADDR, &a, sizeof(a), -1);
}

static uint64_t send_eventfd(struct fixture *f, uint32_t request, unsigned ring)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	uint64_t result = ask_u64(f, request, ring, fd);

	close(fd);
	return result;
}

enum step { STEP_MEMORY, STEP_NUM, STEP_ADDR, STEP_BASE, STEP_KICK, STEP_CALL, STEP_ENABLE, STEPS };

static void do_step(struct fixture *f, unsigned step, unsigned ring)
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

static void bring_up(struct fixture *f, unsigned ring)
{
	for (unsigned step = f->held[0] ? STEP_NUM : STEP_MEMORY; step < STEPS; step++)
		do_step(f, step, ring);
	assert_true(f->held[ring]);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_SERVING);
}

static void hang_up(struct fixture *f)
{
	close(f->peer);
	f->peer = -1;
	turn_until(f, vhost_user_state_of(f->session) == VHOST_USER_WAITING);
	for (unsigned i = 0; i < RINGS; i++)
		assert_false(f->held[i]);
	assert_null(vhost_user_memory(f->session));
}

/* --- setup ----------------------------------------------------------------------------------------------------------- */

static void open_session(struct fixture *f, enum port_role role)
{
	struct error error = { 0 };

	f->config.role = role;
	f->session = vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error);
	if (!f->session)
		fail_msg("%s", error.text);
}

static int setup(void **state)
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

static int setup_connected(void **state)
{
	setup(state);
	open_session(*state, PORT_ROLE_SERVER);
	connect_peer(*state);
	negotiate(*state);
	return 0;
}

static int teardown(void **state)
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

/* --- messages -------------------------------------------------------------------------------------------------------- */

static void message_in_pieces(void **state)
{
	int s[2], event = eventfd(0, 0);
	struct vhost_user_reader reader = { 0 };
	struct {
		struct vhost_user_header header;
		uint64_t u64;
	} __attribute__((packed)) m = { { VHOST_USER_SET_VRING_KICK, VHOST_USER_VERSION, 8 }, 3 }, next = m;
	struct error error;

	next.u64 = 4;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	for (size_t i = 0; i < sizeof(m); i++) {
		assert_int_equal(vhost_user_receive(s[1], &reader, &error), 0);
		send_raw(s[0], (uint8_t *)&m + i, 1, &event, i == 0);
		/* What follows must not leak into this message: neither bytes nor descriptors. */
		if (i == sizeof(m) - 1)
			send_raw(s[0], &next, sizeof(next), &event, 1);
	}
	for (uint64_t ring = 3; ring <= 4; ring++) {
		assert_int_equal(vhost_user_receive(s[1], &reader, &error), 1);
		assert_int_equal(reader.message.payload.u64, ring);
		assert_int_equal(reader.message.fd_count, 1);
		vhost_user_message_close(&reader.message);
	}
	close(s[0]);
	assert_int_equal(vhost_user_receive(s[1], &reader, &error), -ECONNRESET);
	close(s[1]);
	close(event);
}

static int receive_one(const void *bytes, size_t size, unsigned fd_count)
{
	int s[2], fds[64], before = count_fds(), code;
	struct vhost_user_reader reader = { 0 };
	struct error error = { 0 };

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	for (unsigned i = 0; i < fd_count; i++)
		fds[i] = s[0];
	send_raw(s[0], bytes, size, fds, fd_count);
	code = vhost_user_receive(s[1], &reader, &error);
	assert_true(code >= 0 || error.text[0]);
	vhost_user_reader_init(&reader);
	close(s[0]);
	close(s[1]);
	assert_int_equal(count_fds(), before);
	return code;
}

static void message_refused(void **state)
{
	struct vhost_user_header h = { VHOST_USER_GET_FEATURES, VHOST_USER_VERSION, 0 };

	assert_int_equal(receive_one(&h, sizeof(h), 8), 1);
	assert_int_equal(receive_one(&h, sizeof(h), 9), -EPROTO);
	assert_int_equal(receive_one(&h, sizeof(h), 64), -EPROTO);
	h.size = VHOST_USER_PAYLOAD_MAX;
	assert_int_equal(receive_one(&h, sizeof(h), 1), 0);
	h.size = VHOST_USER_PAYLOAD_MAX + 1;
	assert_int_equal(receive_one(&h, sizeof(h), 1), -EPROTO);
	h.size = 0xffffffff;
	assert_int_equal(receive_one(&h, sizeof(h), 0), -EPROTO);
	h = (struct vhost_user_header){ VHOST_USER_GET_FEATURES, 0, 0 };
	assert_int_equal(receive_one(&h, sizeof(h), 0), -EPROTO);
	h.flags = VHOST_USER_VERSION | VHOST_USER_FLAG_REPLY;
	assert_int_equal(receive_one(&h, sizeof(h), 0), -EPROTO);
}

static void message_without_descriptors_left(void **state)
{
	struct vhost_user_header h = { VHOST_USER_GET_FEATURES, VHOST_USER_VERSION, 0 };
	struct rlimit old, tight;
	int fds[4], s[2];
	struct vhost_user_reader reader = { 0 };
	struct error error = { 0 };

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	for (unsigned i = 0; i < 4; i++)
		fds[i] = s[0];
	send_raw(s[0], &h, sizeof(h), fds, 4);
	getrlimit(RLIMIT_NOFILE, &old);
	tight = (struct rlimit){ (rlim_t)dup(0), old.rlim_max };
	close((int)tight.rlim_cur);
	tight.rlim_cur++; /* one is free */
	setrlimit(RLIMIT_NOFILE, &tight);
	assert_int_equal(vhost_user_receive(s[1], &reader, &error), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &old);
	assert_non_null(strstr(error.text, "LimitNOFILE"));
	assert_int_equal(reader.message.fd_count, 1);
	vhost_user_reader_init(&reader);
	close(s[0]);
	close(s[1]);
}

/* --- rings ----------------------------------------------------------------------------------------------------------- */

static void every_order_of_messages(void **state)
{
	struct fixture *f = *state;
	unsigned order[STEPS] = { 0 };

	/* Heap's algorithm would do; counting through all base-STEPS numbers and skipping what is no permutation is plainer. */
	for (unsigned n = 0, done = 0; done < 5040; n++) {
		unsigned seen = 0, rest = n;

		for (unsigned i = 0; i < STEPS; i++, rest /= STEPS)
			seen |= 1u << (order[i] = rest % STEPS);
		if (seen != (1u << STEPS) - 1)
			continue;
		/* All of them take a while; every 29th meets each step at each place. */
		if (done++ % 29)
			continue;
		for (unsigned i = 0, missing = STEPS - 1; i < STEPS; i++) {
			do_step(f, order[i], 1);
			/* A call descriptor is not needed; the answer to the last step that is comes when workers have the ring. */
			missing -= order[i] != STEP_CALL;
			assert_int_equal(f->held[1], missing == 0);
		}
		assert_int_equal(f->pairs[0].from_guest.last_avail, 7);
		assert_true(f->pairs[0].from_guest_kick_fd >= 0 && atomic_load(&f->pairs[0].from_guest.call_fd) >= 0);
		hang_up(f);
		connect_peer(f);
		negotiate(f);
	}
}

static void base_left_out(void **state)
{
	struct fixture *f = *state;
	int kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

	for (unsigned step = STEP_MEMORY; step < STEPS; step++)
		if (step != STEP_BASE && step != STEP_KICK)
			do_step(f, step, 1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_KICK, 1, kick), 0);
	assert_false(vhost_user_ring_started(f->session, 1));
	assert_int_equal(eventfd_write(kick, 1), 0);
	turn_until(f, f->held[1]);
	assert_int_equal(f->pairs[0].from_guest.last_avail, 0);
	close(kick);
}

static void enabled_without_protocol_features(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, V1, -1), 0);
	for (unsigned step = STEP_MEMORY; step < STEP_ENABLE; step++)
		do_step(f, step, 0);
	assert_true(f->held[0]);
}

static void base_after_frames(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 0);
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0) >> 32, 0);
	bring_up(f, 1);
	f->pairs[0].from_guest.last_avail = 65534;
	f->withdrawals = 0;
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0), 65534ull << 32 | 1);
	assert_int_equal(f->withdrawals, 1);
	assert_false(f->held[1]);
	assert_true(f->held[0]);
	assert_false(vhost_user_ring_started(f->session, 1));
	assert_int_equal(f->pairs[0].from_guest_kick_fd, -1);
	/* Asked again, the answer is the same; a kick is all it takes to go on. */
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0), 65534ull << 32 | 1);
	assert_int_equal(send_eventfd(f, VHOST_USER_SET_VRING_KICK, 1), 0);
	assert_true(f->held[1]);
	assert_int_equal(f->pairs[0].from_guest.last_avail, 65534);
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 99, 5), 99);
}

static void memory_again_while_running(void **state)
{
	struct fixture *f = *state;
	const struct guest_memory *old;

	bring_up(f, 0);
	bring_up(f, 1);
	f->pairs[0].from_guest.last_avail = 12;
	old = vhost_user_memory(f->session);
	f->withdrawals = 0;
	assert_int_equal(send_memory(f, USER_BASE), 0);
	assert_int_equal(f->withdrawals, 1);
	assert_true(f->held[0] && f->held[1]);
	assert_ptr_not_equal(vhost_user_memory(f->session), old);
	assert_ptr_equal(f->pairs[0].from_guest.memory, vhost_user_memory(f->session));
	assert_int_equal(f->pairs[0].from_guest.last_avail, 12);

	/* A table that is no good changes nothing, not even for a moment. */
	old = vhost_user_memory(f->session);
	f->withdrawals = 0;
	assert_int_not_equal(send_memory(f, UINT64_MAX - 4096), 0);
	assert_int_equal(f->withdrawals, 0);
	assert_ptr_equal(vhost_user_memory(f->session), old);
	assert_true(f->held[1]);

	/* Rings are elsewhere now: they wait for their addresses. */
	assert_int_equal(send_memory(f, USER_BASE + (1ull << 40)), 0);
	assert_false(f->held[0] || f->held[1]);
	assert_true(*vhost_user_last_fault(f->session));
	assert_int_equal(send_addresses(f, 1, USER_BASE + (1ull << 40)), 0);
	assert_true(f->held[1]);
	assert_int_equal(f->pairs[0].from_guest.last_avail, 12);
}

static void same_again_disturbs_nothing(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 1);
	f->withdrawals = 0;
	do_step(f, STEP_NUM, 1);
	do_step(f, STEP_ADDR, 1);
	do_step(f, STEP_ENABLE, 1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, PF | V1, -1), 0);
	assert_int_equal(f->withdrawals, 0);
}

static void disable_and_reset(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 0);
	bring_up(f, 1);
	assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_ENABLE, 1, 0), 0);
	assert_false(f->held[1]);
	assert_true(f->held[0]);
	assert_true(vhost_user_ring_started(f->session, 1));
	do_step(f, STEP_ENABLE, 1);
	assert_true(f->held[1]);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_STATUS, 0, -1), 0);
	for (unsigned i = 0; i < RINGS; i++)
		assert_false(f->held[i] || vhost_user_ring_started(f->session, i) || vhost_user_ring_enabled(f->session, i));
	/* Frontends do not send memory again that they think we have. */
	assert_non_null(vhost_user_memory(f->session));
	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, PF | V1, -1), 0);
	for (unsigned step = STEP_NUM; step < STEPS; step++)
		do_step(f, step, 1);
	assert_true(f->held[1]);
	assert_int_equal(ask(f, VHOST_USER_RESET_DEVICE, NULL, 0, -1), 0);
	assert_false(f->held[1]);
	assert_int_equal(atomic_load(&f->pairs[0].from_guest.call_fd), -1);
	assert_int_equal(ask(f, VHOST_USER_RESET_OWNER, NULL, 0, -1), 0);
}

static void call_descriptor_replaced(void **state)
{
	struct fixture *f = *state;
	int call = eventfd(0, EFD_CLOEXEC);
	eventfd_t value;

	bring_up(f, 1);
	/* A full counter on a descriptor that blocks: control must come through, and the frontend is not cheated of its call. */
	assert_int_equal(eventfd_write(call, UINT64_MAX - 1), 0);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1, call), 0);
	assert_int_equal(f->synchronizes, 1);
	assert_int_equal(fcntl(call, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	assert_int_equal(fcntl(call, F_SETFL, O_RDWR), 0);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1, call), 0);
	assert_int_equal(eventfd_read(call, &value), 0);
	/* A new descriptor gets a call at once: what the old one was told may have come too late. */
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1, call), 0);
	assert_int_equal(eventfd_read(call, &value), 0);
	assert_int_equal(value, 1);
	/* None: the guest polls. */
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1 | VHOST_USER_VRING_NO_FD, -1), 0);
	assert_int_equal(atomic_load(&f->pairs[0].from_guest.call_fd), -1);
	close(call);
}

static void wrong_descriptors(void **state)
{
	struct fixture *f = *state;
	int file = memfd_create("not an eventfd", MFD_CLOEXEC), pipes[2];

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	for (uint32_t r = VHOST_USER_SET_VRING_KICK; r <= VHOST_USER_SET_VRING_ERR; r++) {
		assert_int_not_equal(ask_u64(f, r, 0, file), 0);
		assert_int_not_equal(ask_u64(f, r, 0, pipes[1]), 0);
		assert_int_not_equal(ask_u64(f, r, 0, -1), 0);
		assert_int_not_equal(ask_u64(f, r, VHOST_USER_VRING_NO_FD, file), 0);
		assert_int_not_equal(ask_u64(f, r, RINGS, file), 0);
		assert_int_equal(ask_u64(f, r, VHOST_USER_VRING_NO_FD, -1), 0);
	}
	close(file);
	close(pipes[0]);
	close(pipes[1]);
}

static void fault_stops_one_ring(void **state)
{
	struct fixture *f = *state;
	int err = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	eventfd_t value;

	bring_up(f, 0);
	bring_up(f, 1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_ERR, 1, err), 0);
	vhost_user_check_faults(f->session);
	assert_int_equal(eventfd_read(err, &value), -1);
	atomic_store(&f->pairs[0].from_guest.fault, RING_FAULT_CHAIN_LOOP);
	vhost_user_check_faults(f->session);
	assert_int_equal(eventfd_read(err, &value), 0);
	assert_false(f->held[1]);
	assert_true(f->held[0]);
	assert_non_null(strstr(vhost_user_last_fault(f->session), ring_fault_names[RING_FAULT_CHAIN_LOOP]));
	vhost_user_check_faults(f->session);
	assert_int_equal(eventfd_read(err, &value), -1);
	/* It does not come back by itself, but it does when the guest resets its device. */
	assert_int_equal(send_memory(f, USER_BASE), 0);
	assert_false(f->held[1]);
	ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0);
	do_step(f, STEP_KICK, 1);
	assert_true(f->held[1]);
	close(err);
}

/* As workers tell it: once, until control has looked. The look comes after, so that no later fault of the pair is lost. */
static void second_fault_of_a_pair(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 0);
	bring_up(f, 1);
	for (unsigned i = 0; i < 2; i++) {
		atomic_store(&ring_at(f, i)->fault, RING_FAULT_CHAIN_LOOP);
		assert_false(atomic_exchange(&f->pairs[0].fault_reported, true));
		vhost_user_check_faults(f->session);
		assert_false(f->held[i]);
	}
	/* Also when it is the session that ends. */
	bring_up(f, 2);
	assert_false(atomic_exchange(&f->pairs[1].fault_reported, true));
	assert_int_equal(guest_memory_guard_install(-1), 0);
	assert_int_equal(ftruncate(f->memory_fd, 0), 0);
	*(volatile uint8_t *)guest_memory_at(vhost_user_memory(f->session), GUEST_BASE, 1) = 1;
	vhost_user_check_faults(f->session);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	assert_false(atomic_load(&f->pairs[1].fault_reported));
}

static void fault_found_by_a_message_first(void **state)
{
	struct fixture *f = *state;

	/* The ring is no longer active, but workers have it: nothing may be freed under them. check_held() looks. */
	bring_up(f, 1);
	atomic_store(&f->pairs[0].from_guest.fault, RING_FAULT_HEAD_RANGE);
	do_step(f, STEP_NUM, 0);
	assert_true(f->held[1]);
	assert_int_equal(send_memory(f, USER_BASE), 0);
}

static void rarp_and_mtu(void **state)
{
	struct fixture *f = *state;
	static const uint8_t mac[8] = { 0x52, 0x54, 0, 1, 2, 3 };
	uint64_t payload;

	memcpy(&payload, mac, 8);
	assert_int_equal(ask_u64(f, VHOST_USER_SEND_RARP, payload, -1), 0);
	assert_int_equal(f->announces, 1);
	assert_memory_equal(f->announced, mac, 6);
	assert_int_not_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 67, -1), 0);
	assert_int_not_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 65536, -1), 0);
	assert_int_not_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 1ull << 32 | 1500, -1), 0);
	assert_int_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 9000, -1), 0);
	assert_int_equal(vhost_user_guest_mtu(f->session), 9000);
}

/* --- sockets --------------------------------------------------------------------------------------------------------- */

static void stale_socket_is_taken_over(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct error error = { 0 };
	struct stat st;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(address.sun_path, f->path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_null(vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error));
	assert_int_equal(error.code, -EADDRINUSE);
	assert_non_null(strstr(error.text, "living process"));
	close(fd);
	open_session(f, PORT_ROLE_SERVER);
	assert_int_equal(stat(f->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	connect_peer(f);
	vhost_user_close(f->session);
	f->session = NULL;
	assert_int_equal(stat(f->path, &st), -1);
}

static void socket_refused(void **state)
{
	struct fixture *f = *state;
	struct error error = { 0 };
	int fd = open(f->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	close(fd);
	assert_null(vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error));
	assert_non_null(strstr(error.text, "no socket"));
	assert_int_equal(access(f->path, F_OK), 0);
	snprintf(f->config.socket, sizeof(f->config.socket), "%s/nowhere/p.sock", f->directory);
	assert_null(vhost_user_open(f->loop, &f->config, 0, 0, &f->port, &ops, f, &error));
	assert_int_equal(error.code, -ENOENT);
	assert_non_null(strstr(error.text, "/nowhere does not exist; create it"));
}

static void one_frontend_at_a_time(void **state)
{
	struct fixture *f = *state;
	int first = f->peer;
	char byte;

	connect_peer(f);
	turn_until(f, readable(f->peer));
	assert_int_equal(read(f->peer, &byte, 1), 0);
	close(f->peer);
	f->peer = first;
	bring_up(f, 1);
	/* But the next one is welcome the moment that the first has hung up. */
	for (unsigned i = 0; i < 20; i++) {
		close(f->peer);
		connect_peer(f);
		turn(f);
		negotiate(f);
	}
	/* Also if the loop hears of the new one before it hears of the end. */
	for (unsigned i = 0; i < 20; i++) {
		struct sockaddr_un address = { .sun_family = AF_UNIX };
		int next = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		strcpy(address.sun_path, f->path);
		assert_int_equal(connect(next, (struct sockaddr *)&address, sizeof(address)), 0);
		close(f->peer);
		f->peer = next;
		turn(f);
		negotiate(f);
	}
	assert_int_equal(vhost_user_sessions_served(f->session), 41);
}

static void client_role_connects_again(void **state)
{
	struct fixture *f = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	open_session(f, PORT_ROLE_CLIENT);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	strcpy(address.sun_path, f->path);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	for (unsigned i = 1; i <= 2; i++) {
		turn_until(f, vhost_user_sessions_served(f->session) == i);
		f->peer = accept(listener, NULL, NULL);
		assert_true(f->peer >= 0);
		negotiate(f);
		memset(f->held, 0, sizeof(f->held));
		bring_up(f, 1);
		assert_int_equal(vhost_user_peer_pid(f->session), getpid());
		hang_up(f);
	}
	close(listener);
}

/* No descriptor left: the frontend is turned away, the loop comes to rest, and the next one is served. */
static void no_descriptors_left(void **state)
{
	struct fixture *f = *state;
	struct rlimit old, tight;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct event_source *timer;
	int peer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char byte;

	open_session(f, PORT_ROLE_SERVER);
	strcpy(address.sun_path, f->path);
	assert_int_equal(connect(peer, (struct sockaddr *)&address, sizeof(address)), 0);
	timer = event_loop_timer(f->loop, 20000000, 0, stop, f->loop, NULL);
	getrlimit(RLIMIT_NOFILE, &old);
	tight = (struct rlimit){ (rlim_t)dup(0), old.rlim_max };
	close((int)tight.rlim_cur);
	setrlimit(RLIMIT_NOFILE, &tight);
	event_loop_run(f->loop);
	setrlimit(RLIMIT_NOFILE, &old);
	event_source_remove(timer);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	assert_int_equal(recv(peer, &byte, 1, MSG_DONTWAIT), 0);
	close(peer);
	connect_peer(f);
	negotiate(f);
}

static void on_other(void *context, int fd, uint32_t events)
{
	struct fixture *f = context;
	unsigned since = f->publishes - f->publishes_seen;

	f->publishes_seen = f->publishes;
	if (f->publishes_between < since)
		f->publishes_between = since;
}

/* A turn lasts as long as it may, however much a message costs: whoever else is on the loop gets his turn between. */
static void costly_messages_share_the_loop(void **state)
{
	struct fixture *f = *state;
	struct event_source *other;
	int always = eventfd(1, EFD_CLOEXEC);
	unsigned before;

	bring_up(f, 1);
	other = event_loop_add(f->loop, always, EPOLLIN, on_other, f, NULL);
	assert_non_null(other);
	turn(f);
	f->publishes_between = 0;
	before = f->publishes;
	f->publish_us = 5000;
	for (unsigned i = 0; i < 40; i++)
		send_request(f, VHOST_USER_SET_VRING_ENABLE, VHOST_USER_FLAG_NEED_REPLY, &(struct vhost_user_vring_state){ 1, i % 2 }, 8, NULL, 0);
	turn_until(f, f->publishes - before >= 40);
	/* A message is at most a publish of what it withdrew and one of what it left. */
	assert_in_range(f->publishes_between, 1, 2);
	event_source_remove(other);
	close(always);
}

/* A frontend that sends without ever reading is dropped, and nothing piles up here. */
static void answers_not_read(void **state)
{
	struct fixture *f = *state;
	struct vhost_user_header h = { VHOST_USER_GET_FEATURES, VHOST_USER_VERSION, 0 };

	for (unsigned i = 0; i < 100000 && vhost_user_state_of(f->session) != VHOST_USER_WAITING; i++)
		if (send(f->peer, &h, sizeof(h), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			turn(f);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	assert_non_null(strstr(vhost_user_last_fault(f->session), "does not read"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(message_in_pieces),
		cmocka_unit_test(message_refused),
		cmocka_unit_test(message_without_descriptors_left),
		cmocka_unit_test_setup_teardown(every_order_of_messages, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(base_left_out, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(enabled_without_protocol_features, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(base_after_frames, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(memory_again_while_running, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(same_again_disturbs_nothing, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(disable_and_reset, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(call_descriptor_replaced, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(wrong_descriptors, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(fault_stops_one_ring, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(second_fault_of_a_pair, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(fault_found_by_a_message_first, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(rarp_and_mtu, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(stale_socket_is_taken_over, setup, teardown),
		cmocka_unit_test_setup_teardown(socket_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(one_frontend_at_a_time, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(client_role_connects_again, setup, teardown),
		cmocka_unit_test_setup_teardown(no_descriptors_left, setup, teardown),
		cmocka_unit_test_setup_teardown(costly_messages_share_the_loop, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(answers_not_read, setup_connected, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
