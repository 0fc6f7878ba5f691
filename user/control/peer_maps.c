/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Questions go to the reaper one by one and come back on a list under a mutex. The reaper may be stuck with one when the asker has
 * gone; therefore asker and questions each hold a reference, and the last one frees.
 */
#include "control/peer_maps.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/util.h"

#define MAPS_BYTES_MAX (1024 * 1024) /* of /proc/PID/maps; some 10,000 mappings */

struct question {
	struct question *next;
	struct peer_maps *maps;
	struct peer_maps_answer answer;
};

struct peer_maps {
	pid_t pid;
	struct reaper *reaper; /* the asker's */
	int event_fd;
	pthread_mutex_t lock;
	unsigned references;
	struct question *answered;
};

/* --- the reaper's thread --------------------------------------------------------------------------------------------- */

enum verdict { NOT_MAPPED, MAPPED_SHARED, MAPPED_PRIVATELY };

/* proc(5): "start-end perms offset major:minor inode path". */
static enum verdict judge_line(const char *line, const struct peer_maps_answer *file)
{
	unsigned major_number, minor_number;
	unsigned long long inode;
	char perms[5];

	if (sscanf(line, "%*x-%*x %4s %*x %x:%x %llu", perms, &major_number, &minor_number, &inode) != 4 || strlen(perms) != 4)
		return NOT_MAPPED;
	if (inode != file->inode || makedev(major_number, minor_number) != file->device)
		return NOT_MAPPED;
	return perms[3] == 's' ? MAPPED_SHARED : MAPPED_PRIVATELY;
}

/* One shared mapping is enough to be content. So is not having seen them all. */
static bool mapped_privately(int maps_fd, const struct peer_maps_answer *file)
{
	char buffer[8192];
	size_t have = 0;
	bool found = false;

	for (size_t total = 0; total < MAPS_BYTES_MAX;) {
		ssize_t got = read(maps_fd, buffer + have, sizeof(buffer) - 1 - have);
		char *line = buffer, *end;

		if (got <= 0)
			return got == 0 && found;
		total += (size_t)got;
		have += (size_t)got;
		buffer[have] = '\0';
		for (; (end = strchr(line, '\n')); line = end + 1) {
			enum verdict verdict;

			*end = '\0';
			verdict = judge_line(line, file);
			if (verdict == MAPPED_SHARED)
				return false;
			found |= verdict == MAPPED_PRIVATELY;
		}
		have = strlen(line);
		/* No path is as long as the buffer. */
		if (have == sizeof(buffer) - 1)
			return false;
		memmove(buffer, line, have);
	}
	return false;
}

static void let_go(struct peer_maps *maps)
{
	bool last;

	pthread_mutex_lock(&maps->lock);
	last = --maps->references == 0;
	pthread_mutex_unlock(&maps->lock);
	if (!last)
		return;
	while (maps->answered) {
		struct question *question = maps->answered;

		maps->answered = question->next;
		free(question);
	}
	pthread_mutex_destroy(&maps->lock);
	close(maps->event_fd);
	free(maps);
}

static void look(void *argument)
{
	struct question *question = argument;
	struct peer_maps *maps = question->maps;
	static const uint64_t one = 1;
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", maps->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		question->answer.unshared = mapped_privately(fd, &question->answer);
		close(fd);
	}
	pthread_mutex_lock(&maps->lock);
	question->next = maps->answered;
	maps->answered = question;
	pthread_mutex_unlock(&maps->lock);
	/* A full counter is as loud. */
	if (write(maps->event_fd, &one, sizeof(one)) < 0)
		(void)0;
	let_go(maps);
}

/* --- the asker ------------------------------------------------------------------------------------------------------- */

struct peer_maps *peer_maps_open(pid_t pid, struct reaper *reaper)
{
	struct peer_maps *maps = calloc(1, sizeof(*maps));

	if (!maps)
		return NULL;
	maps->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (maps->event_fd < 0) {
		free(maps);
		return NULL;
	}
	maps->pid = pid;
	maps->reaper = reaper;
	maps->references = 1;
	pthread_mutex_init(&maps->lock, NULL);
	return maps;
}

void peer_maps_close(struct peer_maps *maps)
{
	if (maps)
		let_go(maps);
}

void peer_maps_ask(struct peer_maps *maps, dev_t device, ino_t inode)
{
	struct question *question = calloc(1, sizeof(*question));

	if (!question)
		return;
	question->maps = maps;
	question->answer = (struct peer_maps_answer){ .device = device, .inode = inode };
	pthread_mutex_lock(&maps->lock);
	maps->references++;
	pthread_mutex_unlock(&maps->lock);
	reaper_do(maps->reaper, look, question);
}

int peer_maps_fd(const struct peer_maps *maps)
{
	return maps->event_fd;
}

bool peer_maps_take(struct peer_maps *maps, struct peer_maps_answer *answer)
{
	struct question *question;
	uint64_t count;

	/* Quiet first: what is answered after the look at the list makes it loud again. */
	if (read(maps->event_fd, &count, sizeof(count)) < 0)
		count = 0;
	pthread_mutex_lock(&maps->lock);
	question = maps->answered;
	if (question)
		maps->answered = question->next;
	pthread_mutex_unlock(&maps->lock);
	if (!question)
		return false;
	*answer = question->answer;
	free(question);
	return true;
}
