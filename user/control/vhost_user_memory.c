/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is the memory that the frontend shared the memory that its guest writes?
 *
 * Theory of operation: nothing in the protocol says so. A frontend may hand over a memory file that it has itself mapped privately
 * (QEMU without share=on): what the guest writes then goes to copies of the pages, the file stays as it was, and every ring looks
 * empty for ever. Or it shares nothing at all (QEMU without a memory backend) and sets its rings up all the same. Three looks:
 *   - as regions come, the mappings of the process at the other end: a file that it has mapped, but never shared, is exact.
 *     Rings in such memory do not start. No verdict where the process is not visible (another PID namespace, another user's), is not
 *     the one that has the memory (a proxy), or has too many mappings to read;
 *   - rings that have a kick descriptor, and after WATCH_NS still no memory;
 *   - rings that the guest has kicked, and whose descriptors are still all zero. No proof, so it is said and changes nothing.
 * Each session is told once. Looking ends with the first sign of life in a ring.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/util.h"
#include "control/vhost_user_session.h"

#define WATCH_NS 3000000000ull
#define MAPS_BYTES_MAX (1024 * 1024) /* of /proc/PID/maps; some 10,000 mappings */
#define DESCRIPTORS_LOOKED_AT 64u
/* QEMU makes eventfds with one kick in them (virtio_bus_set_host_notifier), so one says nothing of the guest. */
#define KICKS_OF_A_GUEST 2

/* --- the frontend's mappings ----------------------------------------------------------------------------------------- */

enum verdict { MAPPED_UNKNOWN, MAPPED_SHARED, MAPPED_PRIVATELY };

/* proc(5): "start-end perms offset major:minor inode path". */
static enum verdict judge_line(const char *line, const struct stat *file)
{
	unsigned major_number, minor_number;
	unsigned long long inode;
	char perms[5];

	if (sscanf(line, "%*x-%*x %4s %*x %x:%x %llu", perms, &major_number, &minor_number, &inode) != 4 || strlen(perms) != 4)
		return MAPPED_UNKNOWN;
	if (inode != file->st_ino || makedev(major_number, minor_number) != file->st_dev)
		return MAPPED_UNKNOWN;
	return perms[3] == 's' ? MAPPED_SHARED : MAPPED_PRIVATELY;
}

/* One shared mapping is enough to be content. */
static enum verdict judge_mappings(int maps_fd, const struct stat *file)
{
	enum verdict verdict = MAPPED_UNKNOWN;
	char buffer[8192];
	size_t have = 0;

	for (size_t total = 0; total < MAPS_BYTES_MAX;) {
		ssize_t got = read(maps_fd, buffer + have, sizeof(buffer) - 1 - have);
		char *line = buffer, *end;

		if (got == 0)
			return verdict;
		if (got < 0)
			return MAPPED_UNKNOWN;
		total += (size_t)got;
		have += (size_t)got;
		buffer[have] = '\0';
		while ((end = strchr(line, '\n'))) {
			enum verdict one;

			*end = '\0';
			one = judge_line(line, file);
			if (one == MAPPED_SHARED)
				return one;
			if (one == MAPPED_PRIVATELY)
				verdict = one;
			line = end + 1;
		}
		have = strlen(line);
		/* No path is as long as the buffer; what is, can be cut. */
		if (have == sizeof(buffer) - 1)
			have = 0;
		memmove(buffer, line, have);
	}
	return MAPPED_UNKNOWN;
}

static bool file_is_unshared(struct vhost_user_session *s, int fd)
{
	enum verdict verdict = MAPPED_UNKNOWN;
	struct stat file;
	char path[32];
	int maps_fd;

	if (s->peer_pid <= 0 || fstat(fd, &file) < 0)
		return false;
	for (unsigned i = 0; i < min_u32(s->judged_count, ARRAY_SIZE(s->judged)); i++)
		if (s->judged[i].inode == file.st_ino && s->judged[i].device == file.st_dev)
			return s->judged[i].unshared;
	snprintf(path, sizeof(path), "/proc/%d/maps", s->peer_pid);
	maps_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (maps_fd >= 0) {
		verdict = judge_mappings(maps_fd, &file);
		close(maps_fd);
	}
	if (verdict == MAPPED_UNKNOWN)
		return false;
	s->judged[s->judged_count++ % ARRAY_SIZE(s->judged)] = (struct judged_file){
		.device = file.st_dev, .inode = file.st_ino, .unshared = verdict == MAPPED_PRIVATELY
	};
	return verdict == MAPPED_PRIVATELY;
}

/* --- regions --------------------------------------------------------------------------------------------------------- */

static void drop(struct unshared_memory *unshared, const struct guest_region_setup *setup)
{
	for (unsigned i = 0; i < unshared->count; i++)
		if (unshared->regions[i].user_address == setup->user_address && unshared->regions[i].size == setup->size)
			unshared->regions[i--] = unshared->regions[--unshared->count];
}

void memory_judge(struct vhost_user_session *s, const struct guest_region_setup *setup, const int *fds, unsigned count, bool replace)
{
	struct unshared_memory *next = &s->unshared_next;

	*next = s->unshared;
	if (replace)
		next->count = 0;
	for (unsigned i = 0; i < count; i++) {
		drop(next, &setup[i]);
		if (file_is_unshared(s, fds[i]) && next->count < ARRAY_SIZE(next->regions))
			next->regions[next->count++] = setup[i];
	}
}

void memory_judge_without(struct vhost_user_session *s, const struct guest_region_setup *setup)
{
	s->unshared_next = s->unshared;
	drop(&s->unshared_next, setup);
}

void memory_judged(struct vhost_user_session *s)
{
	s->unshared = s->unshared_next;
	if (!s->unshared.count || s->memory_told)
		return;
	s->memory_told = true;
	session_note_fault(s, "the frontend maps its memory privately: nothing that the guest writes arrives here; " REMEDY_SHARE);
}

bool memory_is_unshared(const struct vhost_user_session *s, uint64_t user_address)
{
	for (unsigned i = 0; i < s->unshared.count; i++)
		if (user_address - s->unshared.regions[i].user_address < s->unshared.regions[i].size)
			return true;
	return false;
}

/* --- signs of life --------------------------------------------------------------------------------------------------- */

static bool ring_shows_life(const struct ring *ring)
{
	const size_t words = min_u32(ring->size, DESCRIPTORS_LOOKED_AT) * sizeof(*ring->desc) / sizeof(uint64_t);
	const uint64_t *desc = (const uint64_t *)ring->desc;

	if (__atomic_load_n(&ring->avail->idx, __ATOMIC_RELAXED))
		return true;
	for (size_t i = 0; i < words; i++)
		if (__atomic_load_n(&desc[i], __ATOMIC_RELAXED))
			return true;
	return false;
}

/* Kicks in an eventfd that nobody has read. Reading them here could block: the frontend has the same open file. */
static unsigned long long kicks_waiting(int fd)
{
	char path[40], text[512];
	const char *count;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	if (fd < 0 || read_text(path, text, sizeof(text)) < 0)
		return 0;
	count = strstr(text, "eventfd-count:");
	return count ? strtoull(count + strlen("eventfd-count:"), NULL, 16) : 0;
}

static void stop_watch(struct vhost_user_session *s)
{
	event_source_remove(s->memory_watch);
	s->memory_watch = NULL;
}

void memory_look_at_ring(struct vhost_user_session *s, unsigned index)
{
	if (s->memory_proven || !ring_shows_life(ring_of(s, index)))
		return;
	s->memory_proven = true;
	stop_watch(s);
}

static bool any_kick_known(const struct vhost_user_session *s)
{
	for (unsigned i = 0; i < s->ring_count; i++)
		if (s->rings[i].kick_known)
			return true;
	return false;
}

/* Workers do not read the kicks of to_guest rings: every one since the ring was set up is still there. */
static bool guest_kicks_in_vain(const struct vhost_user_session *s)
{
	for (unsigned pair = 0; pair < s->port->queue_pairs; pair++)
		if (s->rings[2 * pair].started && kicks_waiting(s->port->pairs[pair]->to_guest_kick_fd) >= KICKS_OF_A_GUEST)
			return true;
	return false;
}

static void on_watch(void *context)
{
	struct vhost_user_session *s = context;

	if (!any_kick_known(s)) {
		stop_watch(s);
		return;
	}
	if (!s->memory) {
		s->memory_told = true;
		session_note_fault(s, "the frontend set its rings up, but shares no memory; " REMEDY_SHARE);
		stop_watch(s);
		return;
	}
	for (unsigned i = 0; i < s->ring_count && !s->memory_proven; i++)
		if (s->rings[i].started)
			memory_look_at_ring(s, i);
	if (s->memory_proven || !guest_kicks_in_vain(s))
		return;
	s->memory_told = true;
	session_note_fault(s, "the guest kicks, but nothing that it writes arrives here; probably the frontend maps its memory privately: " REMEDY_SHARE);
	stop_watch(s);
}

void memory_watch(struct vhost_user_session *s)
{
	struct error error;

	if (s->memory_watch || s->memory_proven || s->memory_told || !any_kick_known(s))
		return;
	s->memory_watch = event_loop_timer(s->loop, WATCH_NS, 1, on_watch, s, &error);
	if (!s->memory_watch)
		session_log_limited(LOG_LEVEL_WARNING, s, TALK_MESSAGE, "%s", error.text);
}

void memory_forget(struct vhost_user_session *s)
{
	stop_watch(s);
	s->unshared.count = s->unshared_next.count = 0;
	s->judged_count = 0;
	s->memory_proven = s->memory_told = false;
}
