/* SPDX-License-Identifier: BSD-2-Clause */
#include "frontend.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/vhost_user_message.h"

#define BIT(n) (1ull << (n))
#define GUEST_AT 0x100000000ull /* guest address of the one region */
#define HUGE_PAGE (2ull << 20)
#define WANTED_PROTOCOL (BIT(VHOST_USER_PROTOCOL_F_MQ) | BIT(VHOST_USER_PROTOCOL_F_REPLY_ACK))

/* A ring's part of memory: descriptors, available and used ring, a page each that they may need, then the buffers. */
#define RING_DESC_BYTES (FRONTEND_RING_MAX * 16u)
#define RING_AVAIL_BYTES 4096u
#define RING_USED_BYTES 12288u
_Static_assert(RING_AVAIL_BYTES >= 6 + 2 * FRONTEND_RING_MAX, "available ring with its event fits");
_Static_assert(RING_USED_BYTES >= 6 + 8 * FRONTEND_RING_MAX, "used ring with its event fits");

static uint64_t ring_bytes(unsigned size)
{
	return RING_DESC_BYTES + RING_AVAIL_BYTES + RING_USED_BYTES + (uint64_t)size * FRONTEND_BUFFER;
}

/* --- messages -------------------------------------------------------------------------------------------------------- */

static int exchange_failed(struct error *error, unsigned request, const char *what)
{
	return error_set(error, errno ? -errno : -EPROTO, "%s: %s: %s", vhost_user_request_name(request), what,
			 errno ? strerror(errno) : "the backend closed the connection");
}

static int receive_all(int fd, void *to, size_t size)
{
	size_t have = 0;

	while (have < size) {
		const ssize_t got = recv(fd, (char *)to + have, size - have, 0);

		errno = got ? errno : 0;
		if (got <= 0)
			return -1;
		have += (size_t)got;
	}
	return 0;
}

static int receive_reply(struct frontend *f, struct vhost_user_message *m, struct error *error)
{
	const uint32_t request = m->header.request;

	if (receive_all(f->fd, &m->header, sizeof(m->header)))
		return exchange_failed(error, request, "no reply");
	errno = EPROTO;
	if (m->header.request != request || m->header.size != sizeof(m->payload.u64))
		return exchange_failed(error, request, "an odd reply");
	return receive_all(f->fd, &m->payload, sizeof(m->payload.u64)) ? exchange_failed(error, request, "half a reply") : 0;
}

static int send_message(struct frontend *f, struct vhost_user_message *m, int fd, struct error *error)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct iovec parts[2] = {{&m->header, sizeof(m->header)}, {&m->payload, m->header.size}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = m->header.size ? 2 : 1};

	m->header.flags |= VHOST_USER_VERSION;
	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	}
	if (sendmsg(f->fd, &message, MSG_NOSIGNAL) != (ssize_t)(sizeof(m->header) + m->header.size))
		return exchange_failed(error, m->header.request, "not sent");
	return 0;
}

/* Sends, and where the backend acknowledges, waits for its verdict. */
static int tell(struct frontend *f, struct vhost_user_message *m, int fd, struct error *error)
{
	const uint32_t request = m->header.request;

	m->header.flags = f->acknowledges ? VHOST_USER_FLAG_NEED_REPLY : 0;
	if (send_message(f, m, fd, error))
		return error->code;
	if (!f->acknowledges)
		return 0;
	if (receive_reply(f, m, error))
		return error->code;
	return m->payload.u64 ? error_set(error, -EREMOTEIO, "%s: refused by the backend; its log says why", vhost_user_request_name(request)) : 0;
}

static int tell_u64(struct frontend *f, unsigned request, uint64_t value, int fd, struct error *error)
{
	struct vhost_user_message m = {.header = {.request = request, .size = sizeof(value)}};

	m.payload.u64 = value;
	return tell(f, &m, fd, error);
}

static int tell_state(struct frontend *f, unsigned request, unsigned index, unsigned num, struct error *error)
{
	struct vhost_user_message m = {.header = {.request = request, .size = sizeof(m.payload.state)}};

	m.payload.state = (struct vhost_user_vring_state){.index = index, .num = num};
	return tell(f, &m, -1, error);
}

static int ask_u64(struct frontend *f, unsigned request, uint64_t *value, struct error *error)
{
	struct vhost_user_message m = {.header.request = request};

	if (send_message(f, &m, -1, error) || receive_reply(f, &m, error))
		return error->code;
	*value = m.payload.u64;
	return 0;
}

/* --- negotiation ------------------------------------------------------------------------------------------------------ */

static int connect_to(struct frontend *f, const char *path, struct error *error)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (!copy_string(address.sun_path, sizeof(address.sun_path), path))
		return error_set(error, -ENAMETOOLONG, "socket %s: longer than %zu bytes", path, sizeof(address.sun_path) - 1);
	f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (f->fd < 0 || connect(f->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return error_set(error, -errno, "socket %s: %s; is a backend listening?", path, strerror(errno));
	return 0;
}

static int negotiate(struct frontend *f, const struct frontend_setup *setup, struct error *error)
{
	struct vhost_user_message owner = {.header.request = VHOST_USER_SET_OWNER};
	uint64_t offered = 0, protocol = 0, pairs = 1;
	uint64_t wanted = BIT(VIRTIO_F_VERSION_1) | (setup->event_index ? BIT(VIRTIO_RING_F_EVENT_IDX) : 0) |
			  (setup->mergeable ? BIT(VIRTIO_NET_F_MRG_RXBUF) : 0);

	if (ask_u64(f, VHOST_USER_GET_FEATURES, &offered, error) || send_message(f, &owner, -1, error))
		return error->code;
	if (wanted & ~offered)
		return error_set(error, -ENOTSUP, "features 0x%llx: the backend does not offer them", (unsigned long long)(wanted & ~offered));
	if (offered & BIT(VHOST_USER_F_PROTOCOL_FEATURES)) {
		wanted |= BIT(VHOST_USER_F_PROTOCOL_FEATURES);
		if (ask_u64(f, VHOST_USER_GET_PROTOCOL_FEATURES, &protocol, error))
			return error->code;
		protocol &= WANTED_PROTOCOL;
		if (tell_u64(f, VHOST_USER_SET_PROTOCOL_FEATURES, protocol, -1, error))
			return error->code;
		f->acknowledges = protocol & BIT(VHOST_USER_PROTOCOL_F_REPLY_ACK);
		if (protocol & BIT(VHOST_USER_PROTOCOL_F_MQ) && ask_u64(f, VHOST_USER_GET_QUEUE_NUM, &pairs, error))
			return error->code;
	}
	if (setup->pairs > pairs)
		return error_set(error, -ENOTSUP, "%u queue pairs: the backend offers %llu", setup->pairs, (unsigned long long)pairs);
	if (pairs > 1)
		wanted |= offered & BIT(VIRTIO_NET_F_MQ);
	f->features = wanted;
	return tell_u64(f, VHOST_USER_SET_FEATURES, wanted, -1, error);
}

static int share_memory(struct frontend *f, struct error *error)
{
	struct vhost_user_message m = {.header.request = VHOST_USER_SET_MEM_TABLE};

	m.header.size = offsetof(struct vhost_user_memory, regions) + sizeof(m.payload.memory.regions[0]);
	m.payload.memory.count = 1;
	m.payload.memory.regions[0] = (struct vhost_user_region){
		.guest_address = GUEST_AT,
		.size = f->memory_size,
		.user_address = (uintptr_t)f->memory,
	};
	return tell(f, &m, f->memory_fd, error);
}

/* --- rings ------------------------------------------------------------------------------------------------------------ */

static struct frontend_ring *ring_of(struct frontend *f, unsigned index)
{
	return index & 1 ? &f->pair[index / 2].from_guest : &f->pair[index / 2].to_guest;
}

static int map_memory(struct frontend *f, bool huge)
{
	const uint64_t page = huge ? HUGE_PAGE : 4096;

	f->memory_size = (2 * f->pairs * ring_bytes(f->ring_size) + page - 1) / page * page;
	f->memory_fd = memfd_create("bench-guest", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0));
	if (f->memory_fd < 0)
		return -errno;
	/* Pages are there from the start, so that no fault is measured; of huge ones there may be too few. */
	if (!ftruncate(f->memory_fd, (off_t)f->memory_size) && !fallocate(f->memory_fd, 0, 0, (off_t)f->memory_size)) {
		f->memory = mmap(NULL, f->memory_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, f->memory_fd, 0);
		if (f->memory != MAP_FAILED)
			return 0;
	}
	f->memory = NULL;
	close(f->memory_fd);
	f->memory_fd = -1;
	return -errno;
}

static int make_memory(struct frontend *f, bool huge, struct error *error)
{
	f->huge = huge && map_memory(f, true) == 0;
	if (!f->huge && map_memory(f, false))
		return error_set(error, -errno, "guest memory of %llu bytes: %s", (unsigned long long)f->memory_size, strerror(errno));
	return 0;
}

static int init_ring(struct frontend *f, unsigned index, int call_fd, struct error *error)
{
	struct frontend_ring *r = ring_of(f, index);
	uint8_t *at = f->memory + index * ring_bytes(f->ring_size);

	r->desc = (void *)at;
	r->avail = (void *)(at + RING_DESC_BYTES);
	r->used = (void *)(at + RING_DESC_BYTES + RING_AVAIL_BYTES);
	r->buffers = at + RING_DESC_BYTES + RING_AVAIL_BYTES + RING_USED_BYTES;
	r->size = (uint16_t)f->ring_size;
	r->mask = (uint16_t)(f->ring_size - 1);
	r->event_index = f->features & BIT(VIRTIO_RING_F_EVENT_IDX);
	for (unsigned i = 0; i < r->size; i++) {
		r->desc[i] = (struct vring_desc){
			.addr = GUEST_AT + (uint64_t)(r->buffers - f->memory) + (uint64_t)i * FRONTEND_BUFFER,
			.len = FRONTEND_BUFFER,
			.flags = index & 1 ? 0 : VRING_DESC_F_WRITE,
		};
		r->avail->ring[i] = (uint16_t)i;
	}
	if (r->event_index)
		*frontend_used_event(r) = UINT16_MAX / 2;
	frontend_disarm(r);
	if (!(index & 1))
		r->avail->idx = r->avail_next = r->avail_published = r->size;
	r->call_fd = call_fd;
	r->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	return r->kick_fd < 0 ? error_set(error, -errno, "eventfd: %s; raise the limit of open files (ulimit -n)", strerror(errno)) : 0;
}

static int start_ring(struct frontend *f, unsigned index, struct error *error)
{
	const struct frontend_ring *r = ring_of(f, index);
	struct vhost_user_message m = {.header = {.request = VHOST_USER_SET_VRING_ADDR, .size = sizeof(m.payload.addr)}};

	m.payload.addr = (struct vhost_user_vring_addr){
		.index = index,
		.desc = (uintptr_t)r->desc,
		.avail = (uintptr_t)r->avail,
		.used = (uintptr_t)r->used,
	};
	if (tell_state(f, VHOST_USER_SET_VRING_NUM, index, r->size, error) || tell_state(f, VHOST_USER_SET_VRING_BASE, index, 0, error) ||
	    tell(f, &m, -1, error) || tell_u64(f, VHOST_USER_SET_VRING_CALL, index, r->call_fd, error) ||
	    tell_u64(f, VHOST_USER_SET_VRING_KICK, index, r->kick_fd, error))
		return error->code;
	if (f->features & BIT(VHOST_USER_F_PROTOCOL_FEATURES))
		return tell_state(f, VHOST_USER_SET_VRING_ENABLE, index, 1, error);
	return 0;
}

static int make_rings(struct frontend *f, const struct frontend_setup *setup, struct error *error)
{
	f->own_call_fds = !setup->call_fds;
	for (unsigned i = 0; i < 2 * f->pairs; i++) {
		int call_fd = f->own_call_fds ? -1 : setup->call_fds[i / 2];

		if (f->own_call_fds && i & 1)
			call_fd = f->pair[i / 2].to_guest.call_fd;
		else if (f->own_call_fds)
			call_fd = eventfd(0, EFD_CLOEXEC);
		if (call_fd < 0)
			return error_set(error, -errno, "eventfd: %s; raise the limit of open files (ulimit -n)", strerror(errno));
		if (init_ring(f, i, call_fd, error))
			return error->code;
	}
	return 0;
}

void frontend_kick(struct frontend_ring *r)
{
	const uint64_t one = 1;

	r->kicks++;
	while (write(r->kick_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

/* --- life ------------------------------------------------------------------------------------------------------------- */

static void release(struct frontend *f)
{
	for (unsigned i = 0; i < 2 * f->pairs; i++) {
		struct frontend_ring *r = ring_of(f, i);

		if (r->kick_fd > 0)
			close(r->kick_fd);
		if (f->own_call_fds && !(i & 1) && r->call_fd > 0)
			close(r->call_fd);
	}
	if (f->fd >= 0)
		close(f->fd);
	if (f->memory)
		munmap(f->memory, f->memory_size);
	if (f->memory_fd >= 0)
		close(f->memory_fd);
	f->fd = f->memory_fd = -1;
	f->memory = NULL;
}

int frontend_open(struct frontend *f, const struct frontend_setup *setup, struct error *error)
{
	memset(f, 0, sizeof(*f));
	f->fd = f->memory_fd = -1;
	if (!setup->pairs || setup->pairs > FRONTEND_PAIRS_MAX)
		return error_set(error, -EINVAL, "%u queue pairs: give 1 to %d", setup->pairs, FRONTEND_PAIRS_MAX);
	if (!is_power_of_two(setup->ring_size) || setup->ring_size > FRONTEND_RING_MAX)
		return error_set(error, -EINVAL, "ring of %u: give a power of two up to %d", setup->ring_size, FRONTEND_RING_MAX);
	f->pairs = setup->pairs;
	f->ring_size = setup->ring_size;
	if (connect_to(f, setup->socket, error) || negotiate(f, setup, error) || make_memory(f, setup->huge, error) ||
	    make_rings(f, setup, error) || share_memory(f, error))
		goto fail;
	for (unsigned i = 0; i < 2 * f->pairs; i++)
		if (start_ring(f, i, error))
			goto fail;
	return 0;
fail:
	release(f);
	return error->code;
}

void frontend_close(struct frontend *f)
{
	struct vhost_user_message m;
	struct error ignored;

	/* The backend answers when it no longer touches the ring. */
	for (unsigned i = 0; i < 2 * f->pairs; i++) {
		m = (struct vhost_user_message){.header = {.request = VHOST_USER_GET_VRING_BASE, .size = sizeof(m.payload.state)}};
		m.payload.state.index = i;
		if (send_message(f, &m, -1, &ignored) || receive_reply(f, &m, &ignored))
			break;
	}
	release(f);
}
