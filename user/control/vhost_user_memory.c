/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is the memory that the frontend shared the memory that its guest writes?
 *
 * Theory of operation: nothing in the protocol says so. A frontend may hand over a memory file that it has itself mapped privately
 * (QEMU without share=on): what the guest writes then goes to copies of the pages, the file stays as it was, and every ring looks
 * empty for ever. Or it shares nothing at all (QEMU without a memory backend) and sets its rings up all the same. Three looks:
 *   - as regions come, the mappings of the process at the other end: a file that it has mapped, but never shared, is exact.
 *     Rings in such memory do not start, or are stopped, as the answer may come late. No verdict where the process is not visible (another
 *     PID namespace, another user's), is not the one that has the memory (a proxy), or has too many mappings to read;
 *   - rings that have a kick descriptor, and after WATCH_NS still no memory;
 *   - rings that the guest has kicked, and whose descriptors are still all zero. No proof, so it is said and changes nothing.
 * Each session is told once. Looking ends with the first sign of life in a ring.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/util.h"
#include "control/vhost_user_session.h"

#define WATCH_NS 3000000000ull
#define DESCRIPTORS_LOOKED_AT 64u
/* QEMU makes eventfds with one kick in them (virtio_bus_set_host_notifier), so one says nothing of the guest. */
#define KICKS_OF_A_GUEST 2

/* --- regions --------------------------------------------------------------------------------------------------------- */

static void say_unshared(struct vhost_user_session *s)
{
	bool any = false;

	for (unsigned i = 0; i < s->files.count; i++)
		any |= s->files.regions[i].unshared;
	if (!any || s->memory_told)
		return;
	s->memory_told = true;
	session_note_fault(s, "the frontend maps its memory privately: nothing that the guest writes arrives here; " REMEDY_SHARE);
}

static bool lies_unshared(const struct vhost_user_session *s, const struct session_ring *r)
{
	return memory_is_unshared(s, r->desc) || memory_is_unshared(s, r->avail) || memory_is_unshared(s, r->used);
}

static void on_answers(void *context, int fd, uint32_t events)
{
	struct vhost_user_session *s = context;
	struct peer_maps_answer answer;

	while (peer_maps_take(s->peer_maps, &answer)) {
		for (unsigned i = 0; i < min_u32(s->judged_count, ARRAY_SIZE(s->judged)); i++)
			if (s->judged[i].inode == answer.inode && s->judged[i].device == answer.device)
				s->judged[i].unshared = answer.unshared;
		for (unsigned i = 0; i < s->files.count; i++)
			if (s->files.regions[i].inode == answer.inode && s->files.regions[i].device == answer.device)
				s->files.regions[i].unshared = answer.unshared;
	}
	say_unshared(s);
	/* They were started before it was known. */
	for (unsigned i = 0; i < s->ring_count; i++)
		if (s->rings[i].started && lies_unshared(s, &s->rings[i]))
			rings_quiesce(s, (int)i);
	rings_start(s);
	rings_publish(s);
}

/* Return: false if questions cannot be asked. */
static bool may_ask(struct vhost_user_session *s)
{
	struct error error;

	if (s->peer_answers)
		return true;
	if (s->peer_pid <= 0)
		return false;
	s->peer_maps = peer_maps_open(s->peer_pid, s->reaper);
	if (s->peer_maps)
		s->peer_answers = event_loop_add(s->loop, peer_maps_fd(s->peer_maps), EPOLLIN, on_answers, s, &error);
	if (s->peer_answers)
		return true;
	peer_maps_close(s->peer_maps);
	s->peer_maps = NULL;
	return false;
}

/* What is known so far; asks if nothing is. */
static bool file_is_unshared(struct vhost_user_session *s, const struct stat *file)
{
	for (unsigned i = 0; i < min_u32(s->judged_count, ARRAY_SIZE(s->judged)); i++)
		if (s->judged[i].inode == file->st_ino && s->judged[i].device == file->st_dev)
			return s->judged[i].unshared;
	if (!may_ask(s))
		return false;
	s->judged[s->judged_count++ % ARRAY_SIZE(s->judged)] = (struct peer_maps_answer){ .device = file->st_dev, .inode = file->st_ino };
	peer_maps_ask(s->peer_maps, file->st_dev, file->st_ino);
	return false;
}

static void drop(struct region_files *files, const struct guest_region_setup *setup)
{
	for (unsigned i = 0; i < files->count; i++)
		if (files->regions[i].user_address == setup->user_address && files->regions[i].size == setup->size)
			files->regions[i--] = files->regions[--files->count];
}

void memory_judge(struct vhost_user_session *s, const struct guest_region_setup *setup, const int *fds, unsigned count, bool replace)
{
	struct region_files *next = &s->files_next;

	*next = s->files;
	if (replace)
		next->count = 0;
	for (unsigned i = 0; i < count; i++) {
		struct stat file;

		drop(next, &setup[i]);
		/* It was mapped, so its file system is one that answers. */
		if (fstat(fds[i], &file) < 0 || next->count == ARRAY_SIZE(next->regions))
			continue;
		next->regions[next->count++] = (struct region_file){
			.user_address = setup[i].user_address,
			.size = setup[i].size,
			.device = file.st_dev,
			.inode = file.st_ino,
			.unshared = file_is_unshared(s, &file),
		};
	}
}

void memory_judge_without(struct vhost_user_session *s, const struct guest_region_setup *setup)
{
	s->files_next = s->files;
	drop(&s->files_next, setup);
}

void memory_judged(struct vhost_user_session *s)
{
	s->files = s->files_next;
	say_unshared(s);
}

bool memory_is_unshared(const struct vhost_user_session *s, uint64_t user_address)
{
	for (unsigned i = 0; i < s->files.count; i++)
		if (user_address - s->files.regions[i].user_address < s->files.regions[i].size)
			return s->files.regions[i].unshared;
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
	event_source_remove(s->peer_answers);
	s->peer_answers = NULL;
	peer_maps_close(s->peer_maps);
	s->peer_maps = NULL;
	s->files.count = s->files_next.count = 0;
	s->judged_count = 0;
	s->memory_proven = s->memory_told = false;
}
