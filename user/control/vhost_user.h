/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vhost-user sessions (QEMU: docs/interop/vhost-user.rst): one per port, server or client role, with reconnect. Control thread only.
 *
 * A port's life (the only place where it is written down):
 *
 *   CLOSED --open--> WAITING --accept/connect--> CONNECTED --SET_OWNER/features--> NEGOTIATED
 *   NEGOTIATED --memory + a ring started and enabled--> SERVING --last such ring gone--> NEGOTIATED
 *   any --disconnect, fault of the session--> WAITING      any --close--> CLOSED
 *
 * Server role: listens on the path; one frontend at a time, a second one is closed at once (logged). Client role: connects, retries
 * every VHOST_USER_RETRY_MS. A ring is handed to the workers when it is started (addresses, base and size known, and
 * kick descriptor received, or no-descriptor bit) and enabled; started + enabled in any legal order of messages.
 *
 * A from_guest ring that is started but not enabled stands still. The specification wants it processed and discarded; but frontends
 * start a ring before they enable it, also when they come back with a ring that holds frames not sent yet (DPDK's virtio-user, our
 * tests' too), and those frames would be lost. Nothing is lost by standing still: guests put no frames into queues that they disabled.
 *
 * A frontend whose memory is not the one that the guest writes is told from one that is idle (vhost_user_memory.c): its rings do not start,
 * the port stays NEGOTIATED, and the last fault says why. Frontends that come and go in a storm are let in with a growing delay.
 * So are those of a port whose call descriptor blocked a worker: a full counter behind O_NONBLOCK taken off is no accident, and costs the
 * worker's other guests some milliseconds each time; such a session ends.
 *
 * The session changes rings, memory and descriptors only between ops->withdraw() and ops->publish().
 */
#ifndef VHOSTLANE_CONTROL_VHOST_USER_H
#define VHOSTLANE_CONTROL_VHOST_USER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/error.h"
#include "control/config.h"
#include "control/event_loop.h"
#include "datapath/plan.h"

#define VHOST_USER_RETRY_MS 500

enum vhost_user_state {
	VHOST_USER_CLOSED,
	VHOST_USER_WAITING,
	VHOST_USER_CONNECTED,
	VHOST_USER_NEGOTIATED,
	VHOST_USER_SERVING,
	VHOST_USER_STATE_COUNT
};
extern const char *const vhost_user_state_names[VHOST_USER_STATE_COUNT]; /* "closed", "waiting", ... */

struct vhost_user_ops {
	/* Workers let go of one ring of the port (2 x pair: to_guest; 2 x pair + 1: from_guest), or of all (-1). Returns after the grace period.
	 * Calls may nest with others before one publish. */
	void (*withdraw)(void *context, int ring);
	/* Workers may use every ring for which vhost_user_ring_active() is true. */
	void (*publish)(void *context);
	/* A grace period: nothing that was unlinked before the call is in use after it. */
	void (*synchronize)(void *context);
	/* The guest with this address now lives here (SEND_RARP, after a migration): tell the network. May be NULL. */
	void (*announce)(void *context, const uint8_t mac[6]);
};

struct vhost_user_session;

/* @mtu, @offloads: see the setters below; in the client role the first connection may stand when this returns.
 * @port: its pairs' rings and kick descriptors are the session's to fill. Return: NULL with *error (path too long, directory missing,
 * socket in use by a living process, ...). A stale socket file is taken over. */
struct vhost_user_session *vhost_user_open(struct event_loop *loop, const struct config_port *config, unsigned mtu, uint64_t offloads,
					   struct port *port, const struct vhost_user_ops *ops, void *context, struct error *error);
/* The group that may connect to the port's socket (config: group). Return: 0, or -ENOENT with *error; -1 in *gid: none is given. */
int vhost_user_find_group(const struct config_port *config, gid_t *gid, struct error *error);
/* Withdraws, closes, unlinks. NULL is fine. */
void vhost_user_close(struct vhost_user_session *session);

/* Virtio features on offer beside the fixed ones (offload bits), from the next connection on. 0 = none. */
void vhost_user_set_offloads(struct vhost_user_session *session, uint64_t features);

/*
 * The largest MTU that the port carries; 0 = not known. Bytes. Known, VIRTIO_NET_F_MTU is on offer from the next connection on. The
 * backend cannot tell a guest its MTU: the frontend has the configuration space (QEMU: host_mtu=) and asks whether it is right
 * (NET_SET_MTU); more than this is refused.
 */
void vhost_user_set_mtu(struct vhost_user_session *session, unsigned mtu);

/* Is the ring started and enabled and without fault? */
bool vhost_user_ring_active(const struct vhost_user_session *session, unsigned ring);

/* A worker reported trouble (ring fault, short memory): log once; ends the session where it must (memory). Other rings go on. */
void vhost_user_check_faults(struct vhost_user_session *session);

/* For display. */
enum vhost_user_state vhost_user_state_of(const struct vhost_user_session *session);
uint64_t vhost_user_features(const struct vhost_user_session *session);		  /* negotiated virtio features */
uint64_t vhost_user_protocol_features(const struct vhost_user_session *session);
pid_t vhost_user_peer_pid(const struct vhost_user_session *session);		  /* SO_PEERCRED; 0 = none */
uint64_t vhost_user_sessions_served(const struct vhost_user_session *session);
/* Of the last session that had one; a healthy one after it changes nothing. "" = none. */
const char *vhost_user_last_fault(const struct vhost_user_session *session);
uint64_t vhost_user_last_fault_ns(const struct vhost_user_session *session);	  /* when, as now_ns(); 0 = none */
bool vhost_user_ring_started(const struct vhost_user_session *session, unsigned ring);
bool vhost_user_ring_enabled(const struct vhost_user_session *session, unsigned ring);
unsigned vhost_user_guest_mtu(const struct vhost_user_session *session);	  /* NET_SET_MTU; 0 = not told */
const struct guest_memory *vhost_user_memory(const struct vhost_user_session *session);

#endif
