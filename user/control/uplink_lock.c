// SPDX-License-Identifier: BSD-2-Clause
/*
 * The file's lines: "pid N", "ifindex N", then one "feature NAME BEFORE" or "napi NAME BEFORE" per change, oldest first. Promiscuous mode
 * needs no line, the kernel undoes it. A line that does not parse is skipped.
 */
#include "control/uplink_lock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/util.h"

#define RECORD_MAX 4096 /* bytes of the file */
#define BUSY_TRIES 10	/* a look of uplink_lock_probe() is over before that */
#define BUSY_RETRY_US 5000

struct uplink_lock {
	int fd;
	unsigned ifindex;
	bool made_directory;
	char path[sizeof(UPLINK_LOCK_DIRECTORY) + IF_NAMESIZE + 8];
};

static int read_record(int fd, char *text, size_t size)
{
	ssize_t n = pread(fd, text, size - 1, 0);

	if (n < 0)
		n = 0;
	text[n] = '\0';
	return (int)n;
}

/*
 * Opens and locks the file that the path names. A file that was unlinked by its holder between our open() and our lock is nobody's lock any
 * more: then once more with the new one.
 */
static int open_locked(const char *path)
{
	unsigned busy = 0;

	for (unsigned turn = 0; turn < 100; turn++) {
		struct stat ours, named;
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);

		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			int code = -errno;

			close(fd);
			if (code == -EWOULDBLOCK && ++busy < BUSY_TRIES && usleep(BUSY_RETRY_US) == 0)
				continue;
			return code;
		}
		if (fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino && ours.st_dev == named.st_dev)
			return fd;
		close(fd);
	}
	return -EAGAIN;
}

static int refuse(const char *ifname, const char *path, int code, struct error *error)
{
	char text[RECORD_MAX];
	unsigned pid = 0;
	int fd;

	if (code != -EWOULDBLOCK)
		return error_set(error, code, "uplink %s: cannot lock %s: %s; run as root and make %s writable", ifname, path, strerror(-code),
				 UPLINK_LOCK_DIRECTORY);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd >= 0) {
		read_record(fd, text, sizeof(text));
		close(fd);
		if (sscanf(text, "pid %u", &pid) != 1)
			pid = 0;
	}
	if (pid)
		return error_set(error, -EBUSY, "uplink %s: taken by another vhostlane, process %u; stop that one, or name another uplink",
				 ifname, pid);
	return error_set(error, -EBUSY, "uplink %s: taken by another vhostlane (%s is locked); stop that one, or name another uplink", ifname,
			 path);
}

static void parse_change(struct netdev_undo_log *log, const char *line)
{
	struct netdev_change *change = &log->changes[log->count];
	char what[16], name[sizeof(change->name)];
	uint64_t before;

	if (log->count == NETDEV_CHANGES_MAX || sscanf(line, "%15s %63s %" SCNu64, what, name, &before) != 3)
		return;
	if (!strcmp(what, "feature"))
		change->kind = NETDEV_CHANGE_FEATURE;
	else if (!strcmp(what, "napi") && !strchr(name, '/'))
		change->kind = NETDEV_CHANGE_NAPI;
	else
		return;
	copy_string(change->name, sizeof(change->name), name);
	change->before = before;
	log->count++;
}

/* What a daemon that did not end properly had changed; only if it is still the same device. */
static void restore(const char *ifname, unsigned ifindex, char *record)
{
	struct netdev_undo_log log;
	unsigned recorded = 0;
	char *rest = record, *line;

	netdev_undo_init(&log, ifname);
	while ((line = strsep(&rest, "\n"))) {
		if (sscanf(line, "ifindex %u", &recorded) == 1)
			continue;
		parse_change(&log, line);
	}
	if (recorded != ifindex || !log.count)
		return;
	log_info("uplink %s: putting back %u settings that an earlier vhostlane left", ifname, log.count);
	netdev_undo(&log);
}

int uplink_lock_probe(const char *ifname, struct error *error)
{
	char path[sizeof(((struct uplink_lock *)NULL)->path)];
	int fd, result = 0;

	snprintf(path, sizeof(path), "%s/%s.lock", UPLINK_LOCK_DIRECTORY, ifname);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return 0;
	/* Shared, so that two who look do not see each other. */
	if (flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		result = refuse(ifname, path, -EWOULDBLOCK, error);
	close(fd);
	return result;
}

struct uplink_lock *uplink_lock_take(const char *ifname, unsigned ifindex, struct error *error)
{
	struct uplink_lock *lock = calloc(1, sizeof(*lock));
	struct netdev_undo_log nothing;
	char record[RECORD_MAX];

	if (!lock) {
		error_set(error, -ENOMEM, "uplink %s: out of memory; give the service more", ifname);
		return NULL;
	}
	lock->ifindex = ifindex;
	lock->made_directory = mkdir(UPLINK_LOCK_DIRECTORY, 0755) == 0;
	snprintf(lock->path, sizeof(lock->path), "%s/%s.lock", UPLINK_LOCK_DIRECTORY, ifname);
	lock->fd = open_locked(lock->path);
	if (lock->fd < 0) {
		refuse(ifname, lock->path, lock->fd, error);
		if (lock->made_directory)
			rmdir(UPLINK_LOCK_DIRECTORY);
		free(lock);
		return NULL;
	}
	if (read_record(lock->fd, record, sizeof(record)) > 0)
		restore(ifname, ifindex, record);
	netdev_undo_init(&nothing, ifname);
	uplink_lock_record(lock, &nothing);
	return lock;
}

void uplink_lock_record(struct uplink_lock *lock, const struct netdev_undo_log *log)
{
	char text[RECORD_MAX];
	int used = snprintf(text, sizeof(text), "pid %d\nifindex %u\n", (int)getpid(), lock->ifindex);

	static_assert(NETDEV_CHANGES_MAX * (sizeof(log->changes[0].name) + 40) + 64 < RECORD_MAX, "all changes fit into one record");
	for (unsigned i = 0; i < log->count; i++) {
		const struct netdev_change *change = &log->changes[i];

		if (change->kind == NETDEV_CHANGE_PROMISCUOUS)
			continue;
		used += snprintf(text + used, sizeof(text) - (size_t)used, "%s %s %" PRIu64 "\n",
				 change->kind == NETDEV_CHANGE_FEATURE ? "feature" : "napi", change->name, change->before);
	}
	if (ftruncate(lock->fd, 0) < 0 || pwrite(lock->fd, text, (size_t)used, 0) != used)
		log_warning("%s: cannot write it: %s; after a crash the device's settings would not be put back", lock->path, strerror(errno));
}

void uplink_lock_release(struct uplink_lock *lock)
{
	if (!lock)
		return;
	/* Unlinked while it is still locked: who waits sees that the file is gone. */
	unlink(lock->path);
	close(lock->fd);
	/* Fails, as it should, while somebody else has a file in it. */
	if (lock->made_directory)
		rmdir(UPLINK_LOCK_DIRECTORY);
	free(lock);
}
