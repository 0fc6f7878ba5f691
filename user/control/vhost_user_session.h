/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The inside of a vhost-user session, shared by the vhost_user*.c files and nobody else. Control thread only.
 *
 *   vhost_user.c          a session's life: open, begin, end, faults, what is shown of it
 *   vhost_user_socket.c   listening, connecting, accepting
 *   vhost_user_hold.c     nothing more is taken in from a frontend whose descriptors cannot be closed
 *   vhost_user_dispatch.c one message: judged by its table row, quiesced, carried out, answered
 *   vhost_user_handlers.c the rows' checks and actions
 *   vhost_user_rings.c    rings between configuration and workers; descriptors of guests
 *   vhost_user_memory.c   is the memory that was shared the one that the guest writes?
 */
#ifndef VHOSTLANE_CONTROL_VHOST_USER_SESSION_H
#define VHOSTLANE_CONTROL_VHOST_USER_SESSION_H

#include "common/log.h"
#include "control/peer_maps.h"
#include "control/vhost_user.h"
#include "control/vhost_user_message.h"

#define FAULT_TEXT_MAX 512
#define VHOST_USER_RINGS_MAX (2 * VL_QUEUE_PAIRS_MAX)
_Static_assert(VHOST_USER_RINGS_MAX <= VHOST_USER_VRING_INDEX_MASK + 1, "KICK, CALL and ERR name a ring in eight bits");

/* Until told otherwise a ring is enabled only if the frontend does not know SET_VRING_ENABLE (specification: ring states). */
enum ring_enable { RING_ENABLE_DEFAULT, RING_ENABLE_OFF, RING_ENABLE_ON };

/*
 * Lines that a frontend can cause again and again, limited for each port: one port's storm silences no other port, and of
 * its own only those of the same kind.
 */
enum session_talk { TALK_BEGIN, TALK_END, TALK_FAULT, TALK_MESSAGE, TALK_DOOR, TALK_STORM, TALK_COUNT };

/* What the frontend said of one ring, and what became of it. */
struct session_ring {
	uint32_t size; /* 0 = not told */
	uint64_t desc, avail, used;
	bool has_addresses;
	uint16_t base;
	bool has_base;
	bool kick_known; /* SET_VRING_KICK came, with or without a descriptor */
	enum ring_enable enable;

	bool started;	/* ring_start() was done; workers may see it if `offered` too */
	/* Workers may have it: it has been active since the last withdraw(), and any publish, for another port too, shows what is active. */
	bool offered;
	bool broken;	/* faulted: stays stopped until the frontend configures it again */
	bool misplaced; /* its addresses lie outside the memory known so far; said once */
	int err_fd;
	struct event_source *first_kick; /* waits for a kick because no base was told */
	struct vhost_user_session *session;
};

/* Where the regions lie for the frontend, and on which files. */
struct region_files {
	unsigned count;
	struct region_file {
		uint64_t user_address, size;
		dev_t device;
		ino_t inode;
		bool unshared; /* the frontend has it mapped privately */
	} regions[GUEST_REGIONS_MAX];
};

struct vhost_user_session {
	struct event_loop *loop;
	const struct vhost_user_ops *ops;
	void *context;
	struct port *port;
	char socket_path[CONFIG_SOCKET_PATH_MAX + 1];
	gid_t group; /* of the socket file; -1 = as it comes */
	enum port_role role;
	uint64_t offloads; /* offered beside the fixed features */
	unsigned mtu; /* the largest that the port carries; 0 = unknown: not offered */

	/* Socket. */
	int listen_fd;
	dev_t listen_device; /* the socket file is ours as long as it is this inode */
	ino_t listen_inode;
	int spare_fd; /* given up for a moment to turn a frontend away when no descriptor is left */
	struct event_source *listening;
	struct event_source *retry;	 /* client: next tries */
	bool retry_logged;

	/* Closed until this timer (vhost_user_socket.c); client: no tries before. */
	struct event_source *door;
	/* Server: frontends that come and go in a storm, none of them served, wait at it. */
	unsigned storm_delay_ms;   /* 0 = no storm */
	unsigned storm_count;
	uint64_t storm_start_ns, door_opened_ns;
	/* A call descriptor blocked a worker. */
	bool blocked;	     /* in this connection */
	unsigned blocked_delay_ms; /* how long the next one had to wait after the last time, 0 = never */
	uint64_t blocked_ns; /* when that was */

	/* The connection; -1 = none. */
	int fd;
	struct event_source *connection;
	struct reaper *reaper; /* of descriptors and memory that frontends sent */
	struct event_source *hold; /* nothing is taken in until the reaper has caught up (vhost_user_hold.c) */
	pid_t peer_pid;
	struct vhost_user_reader reader;
	uint64_t served;
	uint64_t begun_ns;
	bool was_serving;	/* workers had a ring of it */
	uint64_t told_pairs_ns; /* GET_QUEUE_NUM was answered, and SET_FEATURES has not come since; 0 = else */

	/* What was negotiated in it. */
	uint64_t offered; /* the same all the time: frontends remember it */
	bool has_features;
	uint64_t features;
	uint64_t protocol_features;
	uint8_t status;
	uint16_t guest_mtu; /* NET_SET_MTU; 0 = not told */
	struct guest_memory *memory;
	/* The last regions removed: QEMU 7 removes each region once a queue pair, and only the first finds it. */
	struct guest_region_setup removed[GUEST_REGIONS_MAX];
	unsigned removed_count;
	struct guest_memory *memory_next; /* made and checked, takes the place of the old one once workers let go of it */

	/* Is it the memory that the guest writes? (vhost_user_memory.c) */
	struct region_files files, files_next;
	struct peer_maps *peer_maps;
	struct event_source *peer_answers;
	struct peer_maps_answer judged[GUEST_REGIONS_MAX]; /* asked of, and answered; frontends send one file again and again */
	unsigned judged_count;
	bool memory_proven; /* something of the guest was seen in a ring */
	bool memory_told;   /* that it is not; once a session */
	struct event_source *memory_watch;

	struct log_limit limits[TALK_COUNT];
	bool changed; /* what workers may use differs from what publish() showed */
	char last_fault[FAULT_TEXT_MAX];
	uint64_t last_fault_ns;
	/* Said again only if it differs, or after a while. */
	char logged_fault[FAULT_TEXT_MAX];
	uint64_t logged_fault_ns;
	unsigned faults_held_back;
	unsigned ring_count;
	struct session_ring rings[VHOST_USER_RINGS_MAX];
};

/* "port NAME: " in front of every line. */
#define session_log(level, session, format, ...) log_line(level, "port %s: " format, (session)->port->name, ##__VA_ARGS__)

#define session_log_limited(level, session, talk, format, ...)                       \
	do {                                                                         \
		if (log_limit_pass(&(session)->limits[talk]))                        \
			session_log(level, session, format, ##__VA_ARGS__);          \
	} while (0)

/* --- vhost_user.c ---------------------------------------------------------------------------------------------------- */

/* Takes over a connected descriptor. */
void session_begin(struct vhost_user_session *session, int fd);
/* Reads from the connection. Return: 0 or negative errno value with *error. */
int session_listen(struct vhost_user_session *session, struct error *error);
/* Ends the connection and all that came by it; waits for or looks for the next. @fault: it is worth showing. */
void session_end(struct vhost_user_session *session, bool fault, const char *format, ...) __attribute__((format(printf, 3, 4)));
void session_note_fault(struct vhost_user_session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- vhost_user_socket.c --------------------------------------------------------------------------------------------- */

int socket_open(struct vhost_user_session *session, struct error *error);
void socket_close(struct vhost_user_session *session);
/* After the end of a connection: the server role goes on listening, the client role tries again. */
void socket_wait(struct vhost_user_session *session);
/* A frontend went that was never served. */
void socket_note_futile(struct vhost_user_session *session);
/* A frontend went whose call descriptor had blocked a worker: the next one of the port waits, longer each time. */
void socket_note_blocked(struct vhost_user_session *session);
/* One is served: no storm, whatever was before. */
void socket_calm(struct vhost_user_session *session);

#define REMEDY_SHARE                                                                                                \
	"start QEMU with -object memory-backend-memfd,id=m,size=...,share=on and -numa node,memdev=m (libvirt: <memoryBacking> with " \
	"<source type='memfd'/> and <access mode='shared'/>)"

/* --- vhost_user_memory.c --------------------------------------------------------------------------------------------- */

/* Regions came, all that there are (@replace) or more: asks how the frontend itself has them mapped. Fills files_next. */
void memory_judge(struct vhost_user_session *session, const struct guest_region_setup *setup, const int *fds, unsigned count, bool replace);
/* A region goes. Fills files_next. */
void memory_judge_without(struct vhost_user_session *session, const struct guest_region_setup *setup);
/* files_next is in force; says it if nothing can arrive. */
void memory_judged(struct vhost_user_session *session);
/* Lies what the frontend has at this address of its own in memory that it does not share? */
bool memory_is_unshared(const struct vhost_user_session *session, uint64_t user_address);
/* A ring has started: is there anything of the guest in it? */
void memory_look_at_ring(struct vhost_user_session *session, unsigned index);
/* After each message: looks later whether rings that the guest kicks have memory, and show anything. */
void memory_watch(struct vhost_user_session *session);
/* The connection ends. */
void memory_forget(struct vhost_user_session *session);

/* --- vhost_user_hold.c ---------------------------------------------------------------------------------------------- */

/* True if frontends of this port sent more than could be released so far: take nothing in; the session is held until it is. */
bool session_must_wait(struct vhost_user_session *session);
/* The port is closed. */
void session_hold_end(struct vhost_user_session *session);
/* Closes a connection. What lies in it unread goes with it, descriptors of whatever kind too. */
void session_hang_up(struct vhost_user_session *session, int fd);

/* --- vhost_user_dispatch.c ------------------------------------------------------------------------------------------- */

/* Which rings a message needs stopped before it acts. The ring is the one that the message names. */
enum quiesce { QUIESCE_NONE, QUIESCE_RING, QUIESCE_ALL };

/* Who answers: nobody (but REPLY_ACK, if the frontend wants it), or the action, which turns the message into its answer. */
enum reply { REPLY_IF_WANTED, REPLY_OWN };

struct request_row {
	uint16_t payload_min, payload_max; /* bytes */
	uint8_t fds_min, fds_max;
	enum quiesce quiesce;
	enum reply reply;
	/* Judges without changing anything. Return: 0 = go on, CHECK_NOTHING_TO_DO, or negative errno value with *error. May be NULL. */
	int (*check)(struct vhost_user_session *session, struct vhost_user_message *message, struct error *error);
	/* Carries it out; cannot fail. NULL: a request that is known and not supported. */
	void (*act)(struct vhost_user_session *session, struct vhost_user_message *message);
};
#define CHECK_NOTHING_TO_DO 1

/* Carries out one message and answers it. Return: false if it ended the session. */
bool dispatch_message(struct vhost_user_session *session, struct vhost_user_message *message);

/* --- vhost_user_handlers.c ------------------------------------------------------------------------------------------- */

/* Virtio features that a new connection is offered. */
uint64_t features_on_offer(const struct vhost_user_session *session);
/* NULL for a number beyond the specification. */
const struct request_row *request_row(uint32_t request);

/* --- vhost_user_rings.c ---------------------------------------------------------------------------------------------- */

void rings_init(struct vhost_user_session *session);
struct ring *ring_of(const struct vhost_user_session *session, unsigned index);
bool ring_enabled(const struct vhost_user_session *session, unsigned index);

/* Workers let go of ring @index, or of all (-1). */
void rings_withdraw(struct vhost_user_session *session, int index);
/* And what ran stops; the next available index becomes its base. */
void rings_quiesce(struct vhost_user_session *session, int index);
/* Starts whatever has all it needs. */
void rings_start(struct vhost_user_session *session);
/* Shows workers what they may use now, if that changed. */
void rings_publish(struct vhost_user_session *session);
/* After a quiesce of all: every ring as after rings_init(); call and error descriptors too if @descriptors. */
void rings_reset(struct vhost_user_session *session, bool descriptors);

/* Takes ownership of @fd (-1 = none). The ring is quiesced. */
void ring_set_kick(struct vhost_user_session *session, unsigned index, int fd);
/* The ring may run. */
void ring_set_call(struct vhost_user_session *session, unsigned index, int fd);
void ring_set_err(struct vhost_user_session *session, unsigned index, int fd);
/* GET_VRING_BASE; the ring is quiesced. */
uint16_t ring_take_base(struct vhost_user_session *session, unsigned index);

/* Refuses what is no eventfd: a call written to a file or a pipe could block or do harm. */
int check_eventfd(int fd, struct error *error);

/* Has a call descriptor blocked a worker, in a ring that runs or in one that was stopped since? */
bool rings_blocked(const struct vhost_user_session *session);
/* Looks for faults of rings: stops them and tells the frontend. */
void rings_check_faults(struct vhost_user_session *session);

#endif
