/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vhost-user messages on the wire (QEMU: docs/interop/vhost-user.rst): their layout, and how one is received with its
 * descriptors and sent. Knows no session and no meaning. Control thread only (no state of its own).
 */
#ifndef VHOSTLANE_CONTROL_VHOST_USER_MESSAGE_H
#define VHOSTLANE_CONTROL_VHOST_USER_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/reaper.h"

/* Every request of the specification, in the order of their numbers, from 1. */
#define VHOST_USER_REQUESTS(X)      \
	X(GET_FEATURES)             \
	X(SET_FEATURES)             \
	X(SET_OWNER)                \
	X(RESET_OWNER)              \
	X(SET_MEM_TABLE)            \
	X(SET_LOG_BASE)             \
	X(SET_LOG_FD)               \
	X(SET_VRING_NUM)            \
	X(SET_VRING_ADDR)           \
	X(SET_VRING_BASE)           \
	X(GET_VRING_BASE)           \
	X(SET_VRING_KICK)           \
	X(SET_VRING_CALL)           \
	X(SET_VRING_ERR)            \
	X(GET_PROTOCOL_FEATURES)    \
	X(SET_PROTOCOL_FEATURES)    \
	X(GET_QUEUE_NUM)            \
	X(SET_VRING_ENABLE)         \
	X(SEND_RARP)                \
	X(NET_SET_MTU)              \
	X(SET_BACKEND_REQ_FD)       \
	X(IOTLB_MSG)                \
	X(SET_VRING_ENDIAN)         \
	X(GET_CONFIG)               \
	X(SET_CONFIG)               \
	X(CREATE_CRYPTO_SESSION)    \
	X(CLOSE_CRYPTO_SESSION)     \
	X(POSTCOPY_ADVISE)          \
	X(POSTCOPY_LISTEN)          \
	X(POSTCOPY_END)             \
	X(GET_INFLIGHT_FD)          \
	X(SET_INFLIGHT_FD)          \
	X(GPU_SET_SOCKET)           \
	X(RESET_DEVICE)             \
	X(VRING_KICK)               \
	X(GET_MAX_MEM_SLOTS)        \
	X(ADD_MEM_REG)              \
	X(REM_MEM_REG)              \
	X(SET_STATUS)               \
	X(GET_STATUS)               \
	X(GET_SHARED_OBJECT)        \
	X(SET_DEVICE_STATE_FD)      \
	X(CHECK_DEVICE_STATE)       \
	X(GET_SHMEM_CONFIG)

enum vhost_user_request {
	VHOST_USER_REQUEST_NONE,
#define VHOST_USER_REQUEST_ENUM(name) VHOST_USER_##name,
	VHOST_USER_REQUESTS(VHOST_USER_REQUEST_ENUM)
#undef VHOST_USER_REQUEST_ENUM
	VHOST_USER_REQUEST_COUNT
};
_Static_assert(VHOST_USER_SET_VRING_ENABLE == 18 && VHOST_USER_RESET_DEVICE == 34 && VHOST_USER_GET_SHMEM_CONFIG == 44,
	       "the list follows the numbers of the specification");

/* "SET_MEM_TABLE"; "unknown request" for a number beyond the list. */
const char *vhost_user_request_name(uint32_t request);

/* Header flags. */
#define VHOST_USER_VERSION 1u
#define VHOST_USER_VERSION_MASK 3u
#define VHOST_USER_FLAG_REPLY (1u << 2)
#define VHOST_USER_FLAG_NEED_REPLY (1u << 3)

/* Feature bit by which the protocol features are announced (among the virtio features). */
#define VHOST_USER_F_PROTOCOL_FEATURES 30

/* Protocol feature bits. */
enum vhost_user_protocol_feature {
	VHOST_USER_PROTOCOL_F_MQ = 0,
	VHOST_USER_PROTOCOL_F_LOG_SHMFD = 1,
	VHOST_USER_PROTOCOL_F_RARP = 2,
	VHOST_USER_PROTOCOL_F_REPLY_ACK = 3,
	VHOST_USER_PROTOCOL_F_NET_MTU = 4,
	VHOST_USER_PROTOCOL_F_RESET_DEVICE = 13,
	VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS = 15,
	VHOST_USER_PROTOCOL_F_STATUS = 16,
};

#define VHOST_USER_FDS_MAX 8	    /* descriptors of one message; also regions of one SET_MEM_TABLE */
#define VHOST_USER_PAYLOAD_MAX 1024 /* bytes; the largest that the specification knows are the crypto and config ones */
#define VHOST_USER_VRING_INDEX_MASK 0xffu
#define VHOST_USER_VRING_NO_FD (1u << 8)

struct vhost_user_header {
	uint32_t request, flags, size;
};
_Static_assert(sizeof(struct vhost_user_header) == 12, "header of the specification");

struct vhost_user_vring_state {
	uint32_t index, num;
};

struct vhost_user_vring_addr {
	uint32_t index, flags;
	uint64_t desc, used, avail, log;
};
_Static_assert(sizeof(struct vhost_user_vring_addr) == 40, "vring address description");

struct vhost_user_region {
	uint64_t guest_address, size, user_address, mmap_offset;
};

struct vhost_user_memory {
	uint32_t count, padding;
	struct vhost_user_region regions[VHOST_USER_FDS_MAX];
};
_Static_assert(sizeof(struct vhost_user_memory) == 8 + 32 * VHOST_USER_FDS_MAX, "memory regions description");

struct vhost_user_single_region {
	uint64_t padding;
	struct vhost_user_region region;
};

struct vhost_user_message {
	struct vhost_user_header header;
	union {
		uint64_t u64;
		struct vhost_user_vring_state state;
		struct vhost_user_vring_addr addr;
		struct vhost_user_memory memory;
		struct vhost_user_single_region single;
		uint8_t bytes[VHOST_USER_PAYLOAD_MAX];
	} payload;
	int fds[VHOST_USER_FDS_MAX]; /* -1 where taken */
	unsigned fd_count;	     /* as received */
	struct reaper *reaper;	     /* closes what nobody took: it may be of any kind. NULL = closed at once */
};
_Static_assert(offsetof(struct vhost_user_message, payload) == 16, "header is received apart from the payload");

/* One message on its way in: a frontend may send it in pieces and pause between them. */
struct vhost_user_reader {
	struct vhost_user_message message;
	size_t have; /* bytes of header and payload so far */
};

void vhost_user_reader_init(struct vhost_user_reader *reader);

/**
 * vhost_user_receive() - go on with the message in @reader; never blocks, whatever the socket's mode
 *
 * Reads never cross into the next message, so descriptors that come with a read belong to this one.
 * Return: 1 = message complete (next call starts another; its descriptors are the caller's), 0 = the rest is not there yet,
 * -ECONNRESET = the peer closed, other negative errno value with *error: the stream is of no further use. Descriptors
 * received are closed by vhost_user_reader_init().
 */
int vhost_user_receive(int fd, struct vhost_user_reader *reader, struct error *error);

/* Sends header and payload, never blocks. Return: 0 or negative errno value (-EAGAIN: the peer does not read its replies). */
int vhost_user_send(int fd, const struct vhost_user_message *message);

/* The caller takes descriptor @which and must close it. */
int vhost_user_take_fd(struct vhost_user_message *message, unsigned which);

/* Closes descriptors that nobody took. */
void vhost_user_message_close(struct vhost_user_message *message);

#endif
