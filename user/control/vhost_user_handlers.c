/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The requests of the specification, one row each: what may come with it, what must stand still, who answers, how it is
 * judged and what it does. Checks change nothing; actions cannot fail (design section 7: the table says it all).
 */
#include <errno.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
#include <string.h>

#include "control/vhost_user_session.h"

#define GUEST_MTU_MIN 68    /* virtio 1.2, 5.1.4.1 */
#define GUEST_MTU_MAX 65521 /* as of the key mtu: what fits the longest frame with header and tags */

#define BIT(n) (1ull << (n))
#define VIRTIO_F_RING_RESET_BIT 40 /* younger than the kernel headers of some distributions */

/* The virtio features on offer; the one place to add more. VIRTIO_NET_F_MTU only where an MTU is known. */
static const uint8_t virtio_features[] = {
	VIRTIO_NET_F_MRG_RXBUF,	   VIRTIO_NET_F_CTRL_VQ,    VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_MQ,
	VIRTIO_F_ANY_LAYOUT,	   VIRTIO_RING_F_INDIRECT_DESC, VIRTIO_RING_F_EVENT_IDX, VHOST_USER_F_PROTOCOL_FEATURES,
	VIRTIO_F_VERSION_1,	   VIRTIO_F_RING_RESET_BIT,
};

static const uint8_t protocol_features[] = {
	VHOST_USER_PROTOCOL_F_MQ,	    VHOST_USER_PROTOCOL_F_RARP,
	VHOST_USER_PROTOCOL_F_REPLY_ACK,    VHOST_USER_PROTOCOL_F_NET_MTU,
	VHOST_USER_PROTOCOL_F_RESET_DEVICE, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
	VHOST_USER_PROTOCOL_F_STATUS,
};

static uint64_t mask_of(const uint8_t *bits, size_t count)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < count; i++)
		mask |= BIT(bits[i]);
	return mask;
}

uint64_t features_on_offer(const struct vhost_user_session *s)
{
	return mask_of(virtio_features, ARRAY_SIZE(virtio_features)) | (s->mtu ? BIT(VIRTIO_NET_F_MTU) : 0) | s->offloads;
}

/* --- answers --------------------------------------------------------------------------------------------------------- */

static void answer_u64(struct vhost_user_message *m, uint64_t value)
{
	m->header.size = sizeof(m->payload.u64);
	m->payload.u64 = value;
}

/* --- features -------------------------------------------------------------------------------------------------------- */

static void get_features(struct vhost_user_session *s, struct vhost_user_message *m)
{
	answer_u64(m, s->offered);
}

static int check_features(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	uint64_t surplus = m->payload.u64 & ~s->offered;

	if (surplus)
		return error_set(error, -EINVAL,
				 "features 0x%llx are not offered; a frontend that was connected to another backend before must let the "
				 "guest negotiate anew (reboot it)", (unsigned long long)surplus);
	return s->has_features && s->features == m->payload.u64 ? CHECK_NOTHING_TO_DO : 0;
}

static void set_features(struct vhost_user_session *s, struct vhost_user_message *m)
{
	s->features = m->payload.u64;
	s->has_features = true;
	s->told_pairs_ns = 0;
	session_log(LOG_LEVEL_DEBUG, s, "guest features 0x%llx", (unsigned long long)s->features);
}

static void get_protocol_features(struct vhost_user_session *s, struct vhost_user_message *m)
{
	answer_u64(m, mask_of(protocol_features, ARRAY_SIZE(protocol_features)));
}

static int check_protocol_features(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	uint64_t surplus = m->payload.u64 & ~mask_of(protocol_features, ARRAY_SIZE(protocol_features));

	if (surplus)
		return error_set(error, -EINVAL, "protocol features 0x%llx are not offered", (unsigned long long)surplus);
	return 0;
}

static void set_protocol_features(struct vhost_user_session *s, struct vhost_user_message *m)
{
	s->protocol_features = m->payload.u64;
}

/* --- the device ------------------------------------------------------------------------------------------------------ */

static void get_queue_num(struct vhost_user_session *s, struct vhost_user_message *m)
{
	answer_u64(m, s->port->queue_pairs); /* frontends count queue pairs here, not rings */
	if (!s->has_features)
		s->told_pairs_ns = now_ns();
}

static void set_owner(struct vhost_user_session *s, struct vhost_user_message *m)
{
}

/* Memory and protocol features stay: frontends do not send them again after a reset. */
static void reset_device(struct vhost_user_session *s, bool descriptors)
{
	rings_reset(s, descriptors);
	s->has_features = false;
	s->features = 0;
	s->status = 0;
	s->guest_mtu = 0;
}

/* Deprecated; what is left of its meaning is that all rings stand still. */
static void reset_owner(struct vhost_user_session *s, struct vhost_user_message *m)
{
	rings_reset(s, false);
}

static void reset_device_request(struct vhost_user_session *s, struct vhost_user_message *m)
{
	reset_device(s, true);
}

static int check_status(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	if (m->payload.u64 > UINT8_MAX)
		return error_set(error, -EINVAL, "device status 0x%llx is wider than eight bits", (unsigned long long)m->payload.u64);
	return 0;
}

static void set_status(struct vhost_user_session *s, struct vhost_user_message *m)
{
	if (m->payload.u64) {
		s->status = (uint8_t)m->payload.u64;
		return;
	}
	/* The driver reset its device (virtio 1.2, 2.4.2). */
	rings_quiesce(s, -1);
	reset_device(s, false);
}

static void get_status(struct vhost_user_session *s, struct vhost_user_message *m)
{
	answer_u64(m, s->status);
}

static int check_mtu(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	uint64_t mtu = m->payload.u64;

	if (mtu < GUEST_MTU_MIN || mtu > GUEST_MTU_MAX)
		return error_set(error, -EINVAL, "MTU %llu is not between %d and %d; set host_mtu= of the guest's network device",
				 (unsigned long long)mtu, GUEST_MTU_MIN, GUEST_MTU_MAX);
	/* Vhost-user: non-zero if it is not valid. QEMU does not start the device then, and says so. */
	if (s->mtu && mtu > s->mtu)
		return error_set(error, -EINVAL, "MTU %llu of the guest is more than the %u that the port carries; lower host_mtu= of QEMU's device, "
				 "or raise mtu= of the port or the MTU of its uplink", (unsigned long long)mtu, s->mtu);
	return 0;
}

static void set_mtu(struct vhost_user_session *s, struct vhost_user_message *m)
{
	s->guest_mtu = (uint16_t)m->payload.u64;
	if (s->mtu && s->guest_mtu != s->mtu)
		session_log_limited(LOG_LEVEL_INFO, s, TALK_MESSAGE, "the guest is told an MTU of %u (host_mtu= of QEMU), the port carries %u",
				    s->guest_mtu, s->mtu);
}

static void send_rarp(struct vhost_user_session *s, struct vhost_user_message *m)
{
	uint8_t mac[6];

	memcpy(mac, m->payload.bytes, sizeof(mac));
	if (s->ops->announce)
		s->ops->announce(s->context, mac);
}

/* --- memory ---------------------------------------------------------------------------------------------------------- */

static struct guest_region_setup region_setup(const struct vhost_user_session *s, const struct vhost_user_region *r)
{
	return (struct guest_region_setup){
		.guest_address = r->guest_address,
		.size = r->size,
		.user_address = r->user_address,
		.file_offset = r->mmap_offset,
		.reaper = s->reaper,
	};
}

/* The new memory is made before anything is touched, so that a table that is no good changes nothing. */
static int check_mem_table(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	const struct vhost_user_memory *table = &m->payload.memory;
	struct guest_region_setup setup[VHOST_USER_FDS_MAX];

	if (table->count > VHOST_USER_FDS_MAX)
		return error_set(error, -EINVAL, "%u regions, at most %d fit this message", table->count, VHOST_USER_FDS_MAX);
	if (m->header.size != offsetof(struct vhost_user_memory, regions) + table->count * sizeof(table->regions[0]))
		return error_set(error, -EPROTO, "%u bytes of payload do not hold %u regions", m->header.size, table->count);
	if (m->fd_count != table->count)
		return error_set(error, -EPROTO, "%u descriptors for %u regions", m->fd_count, table->count);
	if (!table->count)
		return error_set(error, -EINVAL, "no region; " REMEDY_SHARE);
	for (unsigned i = 0; i < table->count; i++)
		setup[i] = region_setup(s, &table->regions[i]);
	s->memory_next = guest_memory_create(setup, m->fds, table->count, error);
	if (!s->memory_next)
		return error->code;
	memory_judge(s, setup, m->fds, table->count, true);
	return 0;
}

static int check_add_region(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	struct guest_region_setup setup = region_setup(s, &m->payload.single.region);

	s->memory_next = guest_memory_with(s->memory, &setup, m->fds[0], error);
	if (!s->memory_next)
		return error->code;
	memory_judge(s, &setup, m->fds, 1, false);
	return 0;
}

static bool was_removed(const struct vhost_user_session *s, const struct guest_region_setup *setup)
{
	for (unsigned i = 0; i < s->removed_count && i < GUEST_REGIONS_MAX; i++)
		if (s->removed[i].guest_address == setup->guest_address && s->removed[i].user_address == setup->user_address &&
		    s->removed[i].size == setup->size)
			return true;
	return false;
}

static int check_remove_region(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	struct guest_region_setup setup = region_setup(s, &m->payload.single.region);

	if (!s->memory)
		return error_set(error, -ENOENT, "no region was added before");
	s->memory_next = guest_memory_without(s->memory, &setup, error);
	if (!s->memory_next)
		return was_removed(s, &setup) ? CHECK_NOTHING_TO_DO : error->code;
	s->removed[s->removed_count++ % GUEST_REGIONS_MAX] = setup;
	memory_judge_without(s, &setup);
	return 0;
}

/* Rings stand still; their addresses are translated anew when they start again. */
static void replace_memory(struct vhost_user_session *s, struct vhost_user_message *m)
{
	guest_memory_free(s->memory);
	s->memory = s->memory_next;
	s->memory_next = NULL;
	memory_judged(s);
}

static void get_max_mem_slots(struct vhost_user_session *s, struct vhost_user_message *m)
{
	answer_u64(m, GUEST_REGIONS_MAX);
}

/* --- rings ----------------------------------------------------------------------------------------------------------- */

static int check_index(const struct vhost_user_session *s, uint32_t index, struct error *error)
{
	if (index < s->ring_count)
		return 0;
	return error_set(error, -EINVAL, "ring %u does not exist, the port has %u queue pairs; raise queues= of the port, or give the guest fewer",
			 index, s->port->queue_pairs);
}

static int check_vring_num(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	const struct vhost_user_vring_state *state = &m->payload.state;
	int code = check_index(s, state->index, error);

	if (code)
		return code;
	if (!is_power_of_two(state->num) || state->num > RING_SIZE_MAX)
		return error_set(error, -EINVAL, "ring size %u is no power of two from 1 to %d", state->num, RING_SIZE_MAX);
	return s->rings[state->index].size == state->num ? CHECK_NOTHING_TO_DO : 0;
}

static void set_vring_num(struct vhost_user_session *s, struct vhost_user_message *m)
{
	s->rings[m->payload.state.index].size = m->payload.state.num;
}

static int check_vring_addr(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	const struct vhost_user_vring_addr *a = &m->payload.addr;
	const struct session_ring *r;
	int code = check_index(s, a->index, error);

	if (code)
		return code;
	if (a->desc % VRING_DESC_ALIGN_SIZE || a->avail % VRING_AVAIL_ALIGN_SIZE || a->used % VRING_USED_ALIGN_SIZE)
		return error_set(error, -EINVAL, "addresses 0x%llx, 0x%llx, 0x%llx of descriptors, available and used ring are not aligned to %d, %d, %d bytes",
				 (unsigned long long)a->desc, (unsigned long long)a->avail, (unsigned long long)a->used, VRING_DESC_ALIGN_SIZE,
				 VRING_AVAIL_ALIGN_SIZE, VRING_USED_ALIGN_SIZE);
	/* Sent again for a running ring when only logging changes. */
	r = &s->rings[a->index];
	return r->has_addresses && r->desc == a->desc && r->avail == a->avail && r->used == a->used ? CHECK_NOTHING_TO_DO : 0;
}

static void set_vring_addr(struct vhost_user_session *s, struct vhost_user_message *m)
{
	const struct vhost_user_vring_addr *a = &m->payload.addr;
	struct session_ring *r = &s->rings[a->index];

	r->desc = a->desc;
	r->avail = a->avail;
	r->used = a->used;
	r->has_addresses = true;
	r->misplaced = false;
}

static int check_vring_base(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	int code = check_index(s, m->payload.state.index, error);

	if (code)
		return code;
	if (m->payload.state.num > UINT16_MAX)
		return error_set(error, -EINVAL, "base %u of a split ring is wider than 16 bits", m->payload.state.num);
	return 0;
}

static void set_vring_base(struct vhost_user_session *s, struct vhost_user_message *m)
{
	struct session_ring *r = &s->rings[m->payload.state.index];

	r->base = (uint16_t)m->payload.state.num;
	r->has_base = true;
}

/* This one always has its own answer, so a ring that does not exist gets the base of one that never ran. */
static int check_get_vring_base(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	if (!check_index(s, m->payload.state.index, error))
		return 0;
	session_log_limited(LOG_LEVEL_WARNING, s, TALK_MESSAGE, "message %u (GET_VRING_BASE): %s", m->header.request, error->text);
	m->payload.state.num = 0;
	return CHECK_NOTHING_TO_DO;
}

static void get_vring_base(struct vhost_user_session *s, struct vhost_user_message *m)
{
	m->payload.state.num = ring_take_base(s, m->payload.state.index);
}

static int check_vring_enable(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	const struct vhost_user_vring_state *state = &m->payload.state;
	int code = check_index(s, state->index, error);

	if (code)
		return code;
	if (state->num > 1)
		return error_set(error, -EINVAL, "enable = %u is neither 0 nor 1", state->num);
	return s->rings[state->index].enable == (state->num ? RING_ENABLE_ON : RING_ENABLE_OFF) ? CHECK_NOTHING_TO_DO : 0;
}

static void set_vring_enable(struct vhost_user_session *s, struct vhost_user_message *m)
{
	const struct vhost_user_vring_state *state = &m->payload.state;

	if (!state->num)
		rings_withdraw(s, (int)state->index);
	s->rings[state->index].enable = state->num ? RING_ENABLE_ON : RING_ENABLE_OFF;
}

static int check_vring_fd(struct vhost_user_session *s, struct vhost_user_message *m, struct error *error)
{
	const bool no_fd = m->payload.u64 & VHOST_USER_VRING_NO_FD;
	int code = check_index(s, m->payload.u64 & VHOST_USER_VRING_INDEX_MASK, error);

	if (code)
		return code;
	if (m->payload.u64 & ~(uint64_t)(VHOST_USER_VRING_INDEX_MASK | VHOST_USER_VRING_NO_FD))
		return error_set(error, -EINVAL, "payload 0x%llx has unknown bits", (unsigned long long)m->payload.u64);
	if (m->fd_count != (no_fd ? 0 : 1))
		return error_set(error, -EPROTO, "%u descriptors, but the no-descriptor bit is %s", m->fd_count, no_fd ? "set" : "clear");
	return no_fd ? 0 : check_eventfd(m->fds[0], error);
}

static unsigned fd_ring(const struct vhost_user_message *m)
{
	return m->payload.u64 & VHOST_USER_VRING_INDEX_MASK;
}

static int take_vring_fd(struct vhost_user_message *m)
{
	return m->fd_count ? vhost_user_take_fd(m, 0) : -1;
}

static void set_vring_kick(struct vhost_user_session *s, struct vhost_user_message *m)
{
	ring_set_kick(s, fd_ring(m), take_vring_fd(m));
}

static void set_vring_call(struct vhost_user_session *s, struct vhost_user_message *m)
{
	ring_set_call(s, fd_ring(m), take_vring_fd(m));
}

static void set_vring_err(struct vhost_user_session *s, struct vhost_user_message *m)
{
	ring_set_err(s, fd_ring(m), take_vring_fd(m));
}

/* --- the table ------------------------------------------------------------------------------------------------------- */

#define PAYLOAD_NONE .payload_min = 0, .payload_max = 0
#define PAYLOAD_U64 .payload_min = 8, .payload_max = 8
#define PAYLOAD_STATE .payload_min = sizeof(struct vhost_user_vring_state), .payload_max = sizeof(struct vhost_user_vring_state)
#define PAYLOAD_ADDR .payload_min = sizeof(struct vhost_user_vring_addr), .payload_max = sizeof(struct vhost_user_vring_addr)
#define PAYLOAD_MEMORY .payload_min = offsetof(struct vhost_user_memory, regions), .payload_max = sizeof(struct vhost_user_memory)
#define PAYLOAD_REGION .payload_min = sizeof(struct vhost_user_single_region), .payload_max = sizeof(struct vhost_user_single_region)
#define FDS(least, most) .fds_min = least, .fds_max = most
#define UNSUPPORTED .payload_max = VHOST_USER_PAYLOAD_MAX, FDS(0, VHOST_USER_FDS_MAX)

static const struct request_row rows[] = {
	[VHOST_USER_GET_FEATURES] = { PAYLOAD_NONE, .reply = REPLY_OWN, .act = get_features },
	[VHOST_USER_SET_FEATURES] = { PAYLOAD_U64, .quiesce = QUIESCE_ALL, .check = check_features, .act = set_features },
	[VHOST_USER_SET_OWNER] = { PAYLOAD_NONE, .act = set_owner },
	[VHOST_USER_RESET_OWNER] = { PAYLOAD_NONE, .quiesce = QUIESCE_ALL, .act = reset_owner },
	[VHOST_USER_SET_MEM_TABLE] = { PAYLOAD_MEMORY, FDS(0, VHOST_USER_FDS_MAX), .quiesce = QUIESCE_ALL, .check = check_mem_table,
				       .act = replace_memory },
	[VHOST_USER_SET_LOG_BASE] = { UNSUPPORTED },
	[VHOST_USER_SET_LOG_FD] = { UNSUPPORTED },
	[VHOST_USER_SET_VRING_NUM] = { PAYLOAD_STATE, .quiesce = QUIESCE_RING, .check = check_vring_num, .act = set_vring_num },
	[VHOST_USER_SET_VRING_ADDR] = { PAYLOAD_ADDR, .quiesce = QUIESCE_RING, .check = check_vring_addr, .act = set_vring_addr },
	[VHOST_USER_SET_VRING_BASE] = { PAYLOAD_STATE, .quiesce = QUIESCE_RING, .check = check_vring_base, .act = set_vring_base },
	[VHOST_USER_GET_VRING_BASE] = { PAYLOAD_STATE, .quiesce = QUIESCE_RING, .reply = REPLY_OWN, .check = check_get_vring_base,
					.act = get_vring_base },
	[VHOST_USER_SET_VRING_KICK] = { PAYLOAD_U64, FDS(0, 1), .quiesce = QUIESCE_RING, .check = check_vring_fd, .act = set_vring_kick },
	[VHOST_USER_SET_VRING_CALL] = { PAYLOAD_U64, FDS(0, 1), .check = check_vring_fd, .act = set_vring_call },
	[VHOST_USER_SET_VRING_ERR] = { PAYLOAD_U64, FDS(0, 1), .check = check_vring_fd, .act = set_vring_err },
	[VHOST_USER_GET_PROTOCOL_FEATURES] = { PAYLOAD_NONE, .reply = REPLY_OWN, .act = get_protocol_features },
	[VHOST_USER_SET_PROTOCOL_FEATURES] = { PAYLOAD_U64, .check = check_protocol_features, .act = set_protocol_features },
	[VHOST_USER_GET_QUEUE_NUM] = { PAYLOAD_NONE, .reply = REPLY_OWN, .act = get_queue_num },
	[VHOST_USER_SET_VRING_ENABLE] = { PAYLOAD_STATE, .check = check_vring_enable, .act = set_vring_enable },
	[VHOST_USER_SEND_RARP] = { PAYLOAD_U64, .act = send_rarp },
	[VHOST_USER_NET_SET_MTU] = { PAYLOAD_U64, .check = check_mtu, .act = set_mtu },
	[VHOST_USER_SET_BACKEND_REQ_FD] = { UNSUPPORTED },
	[VHOST_USER_IOTLB_MSG] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_SET_VRING_ENDIAN] = { UNSUPPORTED },
	[VHOST_USER_GET_CONFIG] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_SET_CONFIG] = { UNSUPPORTED },
	[VHOST_USER_CREATE_CRYPTO_SESSION] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_CLOSE_CRYPTO_SESSION] = { UNSUPPORTED },
	[VHOST_USER_POSTCOPY_ADVISE] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_POSTCOPY_LISTEN] = { UNSUPPORTED },
	[VHOST_USER_POSTCOPY_END] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_GET_INFLIGHT_FD] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_SET_INFLIGHT_FD] = { UNSUPPORTED },
	[VHOST_USER_GPU_SET_SOCKET] = { UNSUPPORTED },
	[VHOST_USER_RESET_DEVICE] = { PAYLOAD_NONE, .quiesce = QUIESCE_ALL, .act = reset_device_request },
	[VHOST_USER_VRING_KICK] = { UNSUPPORTED },
	[VHOST_USER_GET_MAX_MEM_SLOTS] = { PAYLOAD_NONE, .reply = REPLY_OWN, .act = get_max_mem_slots },
	[VHOST_USER_ADD_MEM_REG] = { PAYLOAD_REGION, FDS(1, 1), .quiesce = QUIESCE_ALL, .check = check_add_region, .act = replace_memory },
	/* Some frontends send the region's descriptor along; it is closed unused. */
	[VHOST_USER_REM_MEM_REG] = { PAYLOAD_REGION, FDS(0, 1), .quiesce = QUIESCE_ALL, .check = check_remove_region,
				     .act = replace_memory },
	[VHOST_USER_SET_STATUS] = { PAYLOAD_U64, .check = check_status, .act = set_status },
	[VHOST_USER_GET_STATUS] = { PAYLOAD_NONE, .reply = REPLY_OWN, .act = get_status },
	[VHOST_USER_GET_SHARED_OBJECT] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_SET_DEVICE_STATE_FD] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_CHECK_DEVICE_STATE] = { UNSUPPORTED, .reply = REPLY_OWN },
	[VHOST_USER_GET_SHMEM_CONFIG] = { UNSUPPORTED, .reply = REPLY_OWN },
};
_Static_assert(ARRAY_SIZE(rows) == VHOST_USER_REQUEST_COUNT, "one row a request");

const struct request_row *request_row(uint32_t request)
{
	return request > VHOST_USER_REQUEST_NONE && request < VHOST_USER_REQUEST_COUNT ? &rows[request] : NULL;
}
