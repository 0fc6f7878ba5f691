/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a session comes by its connection: listening (server role) or connecting again and again (client role).
 *
 * A listening socket file that nobody answers on is left over from a process that died, and is taken over.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/util.h"
#include "control/vhost_user_session.h"

#define LISTEN_BACKLOG 16
#define STORM_SESSIONS 10 /* more of them in a second, none of them served, are a storm */
#define STORM_WINDOW_NS 1000000000ull
#define STORM_DELAY_FIRST_MS 10
#define STORM_DELAY_MAX_MS 1000
#define STORM_QUIET_NS 10000000000ull /* nobody came for so long: it is over; longer than frontends wait between tries */
#define NO_DESCRIPTOR_PAUSE_US 1000
#define BLOCKED_DELAY_FIRST_MS 1000
#define BLOCKED_DELAY_MAX_MS 64000
#define BLOCKED_FORGOTTEN_NS 600000000000ull
#define SOCKET_MODE 0660 /* frontends run under a user of their own: its group may connect */

static int unix_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static int fill_address(const char *path, struct sockaddr_un *address, struct error *error)
{
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (copy_string(address->sun_path, sizeof(address->sun_path), path))
		return 0;
	return error_set(error, -ENAMETOOLONG, "socket %s: the path has %zu bytes, a Unix socket allows %zu; choose a shorter one", path,
			 strlen(path), sizeof(address->sun_path) - 1);
}

int vhost_user_find_group(const struct config_port *config, gid_t *gid, struct error *error)
{
	const struct group *group = config->group[0] ? getgrnam(config->group) : NULL;

	*gid = group ? group->gr_gid : (gid_t)-1;
	if (!config->group[0] || group)
		return 0;
	return error_set(error, -ENOENT, "port %s, group '%s': there is none of that name; name one that `getent group` shows, or create it (groupadd %s)",
			 config->name, config->group, config->group);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* --- server role: the socket file ------------------------------------------------------------------------------------ */

/* Return: 0 = nobody answers there, the file may go; else negative errno value with *error. */
static int judge_existing(const char *path, const struct sockaddr_un *address, struct error *error)
{
	struct stat st;
	int fd, code;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : error_set(error, -errno, "socket %s: %s; choose another path", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return error_set(error, -EEXIST, "socket %s: something that is no socket lies there; remove it or choose another path", path);
	fd = unix_socket();
	if (fd < 0)
		return error_set(error, -errno, "socket %s: %s; raise the limit of open files (LimitNOFILE=, ulimit -n)", path, strerror(errno));
	code = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? errno : 0;
	close(fd);
	if (code == ECONNREFUSED || code == ENOENT)
		return 0;
	if (code == EACCES || code == EPERM)
		return error_set(error, -code, "socket %s: no permission to ask whether somebody listens on it; run as its owner or as root, or choose another path",
				 path);
	return error_set(error, -EADDRINUSE, "socket %s: a living process listens on it; stop that one or choose another path", path);
}

static int explain_bind(const char *path, int code, struct error *error)
{
	char copy[CONFIG_SOCKET_PATH_MAX + 1];
	const char *directory;

	copy_string(copy, sizeof(copy), path);
	directory = dirname(copy);
	/* In procfs and its like no file can be made, which they say in these ways. */
	if ((code == ENOENT || code == EPERM) && access(directory, F_OK) == 0)
		return error_set(error, -code, "socket %s: directory %s is there and takes no sockets; choose another path", path, directory);
	switch (code) {
	case ENOENT:
		return error_set(error, -code, "socket %s: directory %s does not exist; create it (mkdir -p %s) or choose another path", path,
				 directory, directory);
	case ENOTDIR:
		return error_set(error, -code, "socket %s: %s is no directory; choose another path", path, directory);
	case EACCES:
		return error_set(error, -code, "socket %s: no permission to create a file in %s; run as a user who may write there, or change its owner",
				 path, directory);
	case EROFS:
		return error_set(error, -code, "socket %s: %s is on a read-only file system; choose another path", path, directory);
	default:
		return error_set(error, -code, "socket %s: %s; choose another path", path, strerror(code));
	}
}

static int bind_path(struct vhost_user_session *s, const struct sockaddr_un *address, struct error *error)
{
	const char *path = s->socket_path;
	int code;

	/* The kernel gives the file the socket's mode less the umask: never wider than meant, not even for a moment. */
	fchmod(s->listen_fd, SOCKET_MODE);
	if (bind(s->listen_fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
		return 0;
	if (errno != EADDRINUSE)
		return explain_bind(path, errno, error);
	code = judge_existing(path, address, error);
	if (code)
		return code;
	if (unlink(path) < 0 && errno != ENOENT)
		return error_set(error, -errno, "socket %s: cannot remove the one left over from before: %s; remove it", path, strerror(errno));
	if (bind(s->listen_fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
		return explain_bind(path, errno, error);
	session_log(LOG_LEVEL_INFO, s, "took over socket %s, on which nobody answered", path);
	return 0;
}

/* --- server role: storms --------------------------------------------------------------------------------------------- */

static void retry_later(struct vhost_user_session *s);

/*
 * A frontend that goes and comes back as fast as it can (QEMU does, when it wants more queues than there are) would keep this
 * thread busy, which serves the others, too. It waits at the door then, each time longer, in the backlog of the socket.
 */
static void open_door(void *context)
{
	struct vhost_user_session *s = context;

	event_source_remove(s->door);
	s->door = NULL;
	s->door_opened_ns = now_ns();
	if (s->role == PORT_ROLE_CLIENT)
		retry_later(s);
	else if (!s->hold)
		event_source_modify(s->listening, EPOLLIN);
}

static void close_door(struct vhost_user_session *s, unsigned delay_ms)
{
	struct error error;

	if (s->door)
		return;
	s->door = event_loop_timer(s->loop, delay_ms * 1000000ull, 0, open_door, s, &error);
	if (!s->door)
		session_log_limited(LOG_LEVEL_WARNING, s, TALK_DOOR, "%s", error.text);
	else if (s->listening)
		event_source_modify(s->listening, 0);
}

void socket_note_blocked(struct vhost_user_session *s)
{
	const uint64_t now = now_ns();

	s->blocked_delay_ms = s->blocked_delay_ms && now - s->blocked_ns < BLOCKED_FORGOTTEN_NS
				      ? min_u32(2 * s->blocked_delay_ms, BLOCKED_DELAY_MAX_MS)
				      : BLOCKED_DELAY_FIRST_MS;
	s->blocked_ns = now;
	close_door(s, s->blocked_delay_ms);
}

void socket_note_futile(struct vhost_user_session *s)
{
	const uint64_t now = now_ns();

	if (s->role != PORT_ROLE_SERVER)
		return;
	if (s->storm_delay_ms) {
		s->storm_delay_ms = min_u32(2 * s->storm_delay_ms, STORM_DELAY_MAX_MS);
		close_door(s, s->storm_delay_ms);
		return;
	}
	if (now - s->storm_start_ns >= STORM_WINDOW_NS) {
		s->storm_start_ns = now;
		s->storm_count = 0;
	}
	if (++s->storm_count <= STORM_SESSIONS)
		return;
	session_log_limited(LOG_LEVEL_WARNING, s, TALK_STORM,
			    "%u frontends came within a second and none was served; from now on they wait up to %d ms, and their coming and "
			    "going is not logged", s->storm_count, STORM_DELAY_MAX_MS);
	s->storm_delay_ms = STORM_DELAY_FIRST_MS;
	close_door(s, s->storm_delay_ms);
}

void socket_calm(struct vhost_user_session *s)
{
	if (s->storm_delay_ms)
		session_log_limited(LOG_LEVEL_INFO, s, TALK_STORM, "the storm of frontends is over");
	s->storm_delay_ms = s->storm_count = 0;
}

/* --- server role: frontends ------------------------------------------------------------------------------------------ */

static bool frontend_gone(const struct vhost_user_session *s)
{
	struct pollfd p = { .fd = s->fd };

	return poll(&p, 1, 0) == 1 && p.revents & (POLLHUP | POLLERR | POLLNVAL);
}

static bool reserve_descriptor(struct vhost_user_session *s)
{
	if (s->spare_fd < 0)
		s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return s->spare_fd >= 0;
}

/* Out of descriptors: the spare one makes room to accept and close, else the loop would spin on the waiting frontend. */
static void turn_away(struct vhost_user_session *s)
{
	int fd;

	session_log_limited(LOG_LEVEL_WARNING, s, TALK_DOOR,
			    "a frontend is turned away, because this process reached its limit of open files; raise it (LimitNOFILE= of the "
			    "unit, ulimit -n)");
	close_fd(&s->spare_fd);
	fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	session_hang_up(s, fd);
	/* Fails until the reaper has closed that one; tried again before the next is looked at. */
	reserve_descriptor(s);
}

static void on_listen(void *context, int listen_fd, uint32_t events)
{
	struct vhost_user_session *s = context;
	int fd;

	/* The door may have been closed since the loop looked. */
	if (s->door || session_must_wait(s))
		return;
	if (!reserve_descriptor(s)) {
		/* A timer would need a descriptor, too. */
		usleep(NO_DESCRIPTOR_PAUSE_US);
		return;
	}
	fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			turn_away(s);
		else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			session_log_limited(LOG_LEVEL_WARNING, s, TALK_DOOR, "cannot accept on %s: %s", s->socket_path, strerror(errno));
		return;
	}
	/* Nobody stood at the door. */
	if (s->storm_delay_ms && now_ns() - s->door_opened_ns > STORM_QUIET_NS)
		socket_calm(s);
	/* The next one can be here before the loop told of the last one's end. */
	if (s->fd >= 0 && frontend_gone(s))
		session_end(s, false, "the frontend disconnected");
	if (s->fd >= 0) {
		session_log_limited(LOG_LEVEL_WARNING, s, TALK_DOOR,
				    "a second frontend on %s was turned away; a port serves one guest, give the other its own", s->socket_path);
		session_hang_up(s, fd);
		socket_note_futile(s);
		return;
	}
	session_begin(s, fd);
}

static int open_server(struct vhost_user_session *s, struct error *error)
{
	struct sockaddr_un address;
	struct stat st;
	int code = fill_address(s->socket_path, &address, error);

	if (code)
		return code;
	s->listen_fd = unix_socket();
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (s->listen_fd < 0 || s->spare_fd < 0) {
		code = error_set(error, -errno, "socket %s: %s; raise the limit of open files (LimitNOFILE=, ulimit -n)", s->socket_path,
				 strerror(errno));
		goto fail;
	}
	code = bind_path(s, &address, error);
	if (code)
		goto fail;
	if (s->group != (gid_t)-1 && lchown(s->socket_path, (uid_t)-1, s->group) < 0) {
		code = error_set(error, -errno, "socket %s: cannot be given to the port's group: %s; run as root or as a member of that group",
				 s->socket_path, strerror(errno));
		goto fail_bound;
	}
	if (chmod(s->socket_path, SOCKET_MODE) < 0 || lstat(s->socket_path, &st) < 0 || listen(s->listen_fd, LISTEN_BACKLOG) < 0) {
		code = error_set(error, -errno, "socket %s: cannot listen: %s; choose another path", s->socket_path, strerror(errno));
		goto fail_bound;
	}
	s->listen_device = st.st_dev;
	s->listen_inode = st.st_ino;
	s->listening = event_loop_add(s->loop, s->listen_fd, EPOLLIN, on_listen, s, error);
	if (!s->listening) {
		code = error ? error->code : -ENOMEM;
		goto fail_bound;
	}
	return 0;

fail_bound:
	unlink(s->socket_path);
fail:
	close_fd(&s->spare_fd);
	close_fd(&s->listen_fd);
	return code;
}

static void close_server(struct vhost_user_session *s)
{
	struct stat st;

	event_source_remove(s->door);
	event_source_remove(s->listening);
	s->door = s->listening = NULL;
	/* Not the file of another process that took the path over. */
	if (s->listen_fd >= 0 && !lstat(s->socket_path, &st) && st.st_dev == s->listen_device && st.st_ino == s->listen_inode)
		unlink(s->socket_path);
	close_fd(&s->listen_fd);
	close_fd(&s->spare_fd);
}

/* --- client role ----------------------------------------------------------------------------------------------------- */

static void try_connect(void *context);

static void stop_retry(struct vhost_user_session *s)
{
	event_source_remove(s->retry);
	s->retry = NULL;
}

static void retry_later(struct vhost_user_session *s)
{
	struct error error;

	if (s->retry)
		return;
	s->retry = event_loop_timer(s->loop, VHOST_USER_RETRY_MS * 1000000ull, 1, try_connect, s, &error);
	if (!s->retry)
		session_log(LOG_LEVEL_ERROR, s, "cannot connect to %s again: %s", s->socket_path, error.text);
}

static void try_connect(void *context)
{
	struct vhost_user_session *s = context;
	struct sockaddr_un address;
	struct error error;
	int fd, code = 0;

	if (fill_address(s->socket_path, &address, &error))
		return;
	if (s->retry && session_must_wait(s))
		return;
	fd = unix_socket();
	/* On a Unix socket a connection stands at once or not at all: EAGAIN says that the peer's backlog is full. */
	if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		code = errno;
	if (!code) {
		stop_retry(s);
		s->retry_logged = false;
		session_begin(s, fd);
		return;
	}
	close_fd(&fd);
	if (!s->retry_logged)
		session_log(LOG_LEVEL_WARNING, s, "cannot connect to %s: %s; trying every %d ms until a frontend listens there (role: client)",
			    s->socket_path, error_why(-code), VHOST_USER_RETRY_MS);
	s->retry_logged = true;
	retry_later(s);
}

/* --- both ------------------------------------------------------------------------------------------------------------ */

int socket_open(struct vhost_user_session *s, struct error *error)
{
	struct sockaddr_un address;
	int code;

	if (s->role == PORT_ROLE_SERVER)
		return open_server(s, error);
	code = fill_address(s->socket_path, &address, error);
	if (!code)
		try_connect(s);
	return code;
}

void socket_close(struct vhost_user_session *s)
{
	stop_retry(s);
	close_server(s);
}

void socket_wait(struct vhost_user_session *s)
{
	/* Not at once: a peer that accepts and closes again would keep the loop busy. */
	if (s->role == PORT_ROLE_CLIENT && !s->door)
		retry_later(s);
}
