// SPDX-License-Identifier: BSD-2-Clause
/* Pins of a bpf_set: the directory on bpffs, its lock, its names. */
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/log.h"
#include "control/bpf_set.h"

#define BPFFS_PATH  "/sys/fs/bpf"
#define CLSACT_MARK "made_clsact" /* a directory: the only thing besides pins that bpffs can hold */

const char *const set_map_names[SET_MAP_COUNT] = {
	[SET_MAP_PORTS] = "ports",
	[SET_MAP_QUEUE_AFFINITY] = "queue_affinity",
	[SET_MAP_FLOW_STEERING] = "flow_steering",
	[SET_MAP_PORT_VLANS] = "port_vlans",
	[SET_MAP_WIRE_CLAIMS] = "wire_claims",
	[SET_MAP_COUNTERS] = "counters",
	[SET_MAP_SETTINGS] = "settings",
	[SET_MAP_LANES] = "lanes",
};

const char *const set_program_names[SET_PROGRAM_COUNT] = {
	[SET_XDP_STEER] = "xdp_steer",
	[SET_TC_HOST] = "tc_host",
	[SET_TC_UPLINK_INGRESS] = "tc_uplink_ingress",
	[SET_TC_HOST_LINK_INGRESS] = "tc_host_link_ingress",
};

int bpffs_mount(struct error *error)
{
	struct statfs fs;

	if (statfs(BPFFS_PATH, &fs) == 0 && fs.f_type == BPF_FS_MAGIC)
		return 0;
	if (mount("bpf", BPFFS_PATH, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=700") == 0) {
		log_info("%s: BPF file system mounted", BPFFS_PATH);
		return 0;
	}
	return error_set(error, -errno,
			 "%s: cannot mount the BPF file system: %s; mount it with `mount -t bpf bpf %s`, as root",
			 BPFFS_PATH, strerror(errno), BPFFS_PATH);
}

/* bpffs takes no dots in names, and interface names have no colons. */
static const char *directory_path(const struct bpf_set *set, const char *below, char path[SET_PATH_MAX])
{
	char *name = path + snprintf(path, SET_PATH_MAX, "%s/", BPF_PIN_ROOT);

	snprintf(name, SET_PATH_MAX - (size_t)(name - path), "%s%s", set->uplink, below);
	for (; *name && *name != '/'; name++)
		if (*name == '.')
			*name = ':';
	return path;
}

/* @folder ends with a slash. Pins of a host link carry its node, those of the uplink none (-1). */
static const char *pin_path(const struct bpf_set *set, const char *folder, const char *name, int node, char path[SET_PATH_MAX])
{
	char below[64];

	if (node < 0)
		snprintf(below, sizeof(below), "%s%s", folder, name);
	else
		snprintf(below, sizeof(below), "%s%s_n%d", folder, name, node);
	return directory_path(set, below, path);
}

const char *set_map_path(const struct bpf_set *set, enum set_map map, int node, char path[SET_PATH_MAX])
{
	return pin_path(set, "/", set_map_names[map], node, path);
}

const char *set_program_path(const struct bpf_set *set, enum set_program program, int node, char path[SET_PATH_MAX])
{
	return pin_path(set, "/progs/", set_program_names[program], node, path);
}

static int make_directory(const char *path, struct error *error)
{
	if (mkdir(path, 0700) == 0 || errno == EEXIST)
		return 0;
	return error_set(error, -errno,
			 "%s: cannot make the directory for pins: %s; run as root and see that %s is a BPF file system",
			 path, strerror(errno), BPFFS_PATH);
}

int set_directory_open(struct bpf_set *set, struct error *error)
{
	char path[SET_PATH_MAX], programs[SET_PATH_MAX];
	int r;

	directory_path(set, "", path);
	directory_path(set, "/progs", programs);
	r = make_directory(BPF_PIN_ROOT, error);
	if (!r)
		r = make_directory(path, error);
	if (r)
		return r;
	set->directory_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (set->directory_fd < 0)
		return error_set(error, -errno, "%s: %s; look at what holds it", path, strerror(errno));
	if (flock(set->directory_fd, LOCK_EX | LOCK_NB) < 0) {
		r = error_set(
			error, -EBUSY,
			"uplink %s: another vhostlane serves it (%s is locked); stop that one or name another uplink",
			set->uplink, path);
		close(set->directory_fd);
		set->directory_fd = -1;
		return r;
	}
	return make_directory(programs, error);
}

/* rmdir() leaves alone whatever still holds something. */
void set_directory_close(struct bpf_set *set)
{
	char path[SET_PATH_MAX];

	if (set->directory_fd < 0)
		return;
	rmdir(directory_path(set, "/progs", path));
	rmdir(directory_path(set, "", path));
	rmdir(BPF_PIN_ROOT);
	close(set->directory_fd);
	set->directory_fd = -1;
}

int set_pin(const struct bpf_set *set, int fd, const char *path, struct error *error)
{
	int r = bpf_obj_pin(fd, path);

	if (r)
		return error_set(error, r, "uplink %s: cannot pin %s: %s; remove what is in the way with `rm %s`",
				 set->uplink, path, strerror(-r), path);
	return 0;
}

static void unpin(const char *path)
{
	if (unlink(path) && errno != ENOENT)
		log_warning("%s: cannot unpin: %s; remove it with `rm %s`", path, strerror(errno), path);
}

void set_unpin_host_link(const struct bpf_set *set, unsigned node)
{
	char path[SET_PATH_MAX];

	unpin(set_program_path(set, SET_XDP_STEER, (int)node, path));
	unpin(set_map_path(set, SET_MAP_LANES, (int)node, path));
	unpin(set_map_path(set, SET_MAP_SETTINGS, (int)node, path));
}

void set_unpin_program(const struct bpf_set *set, enum set_program program)
{
	char path[SET_PATH_MAX];

	unpin(set_program_path(set, program, -1, path));
}

void set_unpin_all(const struct bpf_set *set)
{
	char path[SET_PATH_MAX];

	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		set_unpin_host_link(set, node);
	for (int i = 0; i < SET_PROGRAM_COUNT; i++)
		set_unpin_program(set, i);
	for (int i = 0; i < SET_MAP_COUNT; i++)
		unpin(set_map_path(set, i, -1, path));
}

int set_mark_clsact(const struct bpf_set *set)
{
	char path[SET_PATH_MAX];

	return mkdir(directory_path(set, "/" CLSACT_MARK, path), 0700) == 0 || errno == EEXIST ? 0 : -errno;
}

bool set_clsact_marked(const struct bpf_set *set)
{
	char path[SET_PATH_MAX];

	return access(directory_path(set, "/" CLSACT_MARK, path), F_OK) == 0;
}

void set_unmark_clsact(const struct bpf_set *set)
{
	char path[SET_PATH_MAX];

	rmdir(directory_path(set, "/" CLSACT_MARK, path));
}
