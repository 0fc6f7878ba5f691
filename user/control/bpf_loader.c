// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation. An uplink's set is eight maps and four programs, all pinned before anything is attached, so that
 * whoever comes after a crash finds either the whole or nothing attached. Whoever loads first makes the maps; whatever is
 * missing then is loaded on those maps. Settings say who loaded (VL_SETTINGS_ENGINE_LOADED): what an operator loaded outlives
 * us, and is used as it is. Programs that a crashed daemon left are compared with ours, instruction by instruction: it may have been
 * of another build, and its faults are not to be inherited. A lock on the pin directory keeps two daemons apart.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xdp/libxdp.h>

#include "common/log.h"
#include "common/util.h"
#include "control/bpf_set.h"
#include "tc_host.skel.h"
#include "xdp_steer.skel.h"

/* --- the libraries' own lines go to the debug log ------------------------------------------------------------------ */

__attribute__((format(printf, 2, 0))) static void library_line(const char *library, const char *format,
							       va_list arguments)
{
	char text[512];

	vsnprintf(text, sizeof(text), format, arguments);
	text[strcspn(text, "\n")] = '\0';
	if (text[0])
		log_debug("%s: %s", library, text);
}

__attribute__((format(printf, 2, 0))) static int libbpf_line(enum libbpf_print_level level, const char *format,
							     va_list arguments)
{
	if (level != LIBBPF_DEBUG)
		library_line("libbpf", format, arguments);
	return 0;
}

__attribute__((format(printf, 2, 0))) static int libxdp_line(enum libxdp_print_level level, const char *format,
							     va_list arguments)
{
	library_line("libxdp", format, arguments);
	return 0;
}

/* --- maps ---------------------------------------------------------------------------------------------------------- */

static int explain_mismatch(const struct bpf_set *set, const char *what, struct error *error)
{
	return error_set(
		error, -EEXIST,
		"uplink %s: %s under %s do not fit this version; remove them with `load-with-bpftool.sh --unload %s`",
		set->uplink, what, BPF_PIN_ROOT, set->uplink);
}

/* A pinned map must be what the object at hand declares. */
static int check_map(const struct bpf_set *set, const struct bpf_map *map, int fd, struct error *error)
{
	struct bpf_map_info info = { 0 };
	uint32_t size = sizeof(info);
	char what[160];
	int r = bpf_obj_get_info_by_fd(fd, &info, &size);

	if (r)
		return error_set(error, r, "uplink %s: cannot look at pinned map %s: %s; run as root", set->uplink,
				 bpf_map__name(map), strerror(-r));
	if (info.type == (uint32_t)bpf_map__type(map) && info.key_size == bpf_map__key_size(map) &&
	    info.value_size == bpf_map__value_size(map) && info.max_entries == bpf_map__max_entries(map) &&
	    info.map_flags == bpf_map__map_flags(map))
		return 0;
	snprintf(what, sizeof(what),
		 "pinned map %s (type %u, key %u, value %u, %u entries; wanted type %u, key %u, value %u, %u entries)",
		 bpf_map__name(map), info.type, info.key_size, info.value_size, info.max_entries, bpf_map__type(map),
		 bpf_map__key_size(map), bpf_map__value_size(map), bpf_map__max_entries(map));
	return explain_mismatch(set, what, error);
}

/* Opens the pinned maps. Return: how many there are, or a negative errno value. */
static int find_maps(struct bpf_set *set, const struct bpf_object *object, struct error *error)
{
	int found = 0, r;

	for (int i = 0; i < SET_MAP_COUNT; i++) {
		char path[SET_PATH_MAX];

		set->maps[i] = bpf_obj_get(set_map_path(set, i, -1, path));
		if (set->maps[i] == -ENOENT)
			continue;
		if (set->maps[i] < 0)
			return error_set(error, set->maps[i], "%s: cannot open the pinned map: %s; run as root", path,
					 strerror(-set->maps[i]));
		r = check_map(set, bpf_object__find_map_by_name(object, set_map_names[i]), set->maps[i], error);
		if (r)
			return r;
		found++;
	}
	return found;
}

static void close_all(int *fds, int count)
{
	for (int i = 0; i < count; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* Gives @object the set's maps instead of maps of its own. */
static int reuse_maps(const struct bpf_set *set, const struct bpf_object *object, int count)
{
	int r = 0;

	for (int i = 0; i < count && !r; i++) {
		struct bpf_map *map = bpf_object__find_map_by_name(object, set_map_names[i]);

		if (map && set->maps[i] >= 0)
			r = bpf_map__reuse_fd(map, set->maps[i]);
	}
	return r;
}

static int map_memory(struct bpf_set *set, struct error *error)
{
	set->settings = set_map_memory(set->maps[SET_MAP_SETTINGS], sizeof(*set->settings));
	if (set->settings)
		set->flow_steering = set_map_memory(set->maps[SET_MAP_FLOW_STEERING],
						    sizeof(uint32_t) * VL_PORTS_MAX * VL_FLOW_BUCKETS);
	if (!set->flow_steering)
		return error_set(error, -errno,
				 "uplink %s: cannot map the BPF arrays: %s; the kernel needs version 5.5 or newer",
				 set->uplink, strerror(errno));
	return 0;
}

/* --- programs ------------------------------------------------------------------------------------------------------ */

static int load_error(const struct bpf_set *set, const char *object, int code, struct error *error)
{
	return error_set(
		error, code, "uplink %s: the kernel does not load %s: %s; %s", set->uplink, object, strerror(-code),
		code == -EPERM ? "run as root or with CAP_BPF and CAP_NET_ADMIN"
			       : "it needs version 6.1 or newer with BTF; the debug log has the verifier's words");
}

/* Pinned programs must work on the pinned maps. Return: how many there are. */
static int find_programs(struct bpf_set *set, struct error *error)
{
	int found = 0;

	for (int i = 0; i < SET_PROGRAM_COUNT; i++) {
		char path[SET_PATH_MAX];

		set->programs[i] = bpf_obj_get(set_program_path(set, i, -1, path));
		if (set->programs[i] == -ENOENT)
			continue;
		if (set->programs[i] < 0)
			return error_set(error, set->programs[i], "%s: cannot open the pinned program: %s; run as root",
					 path, strerror(-set->programs[i]));
		if (!program_uses_map(set->programs[i], set->maps[SET_MAP_SETTINGS])) {
			char what[96];

			snprintf(what, sizeof(what), "pinned program %s (it uses other maps)", set_program_names[i]);
			return explain_mismatch(set, what, error);
		}
		found++;
	}
	return found;
}

static int pin_program(struct bpf_set *set, enum set_program which, const struct bpf_object *object,
		       struct error *error)
{
	char path[SET_PATH_MAX];

	if (set->programs[which] >= 0)
		return 0;
	set->programs[which] = dup(bpf_program__fd(bpf_object__find_program_by_name(object, set_program_names[which])));
	if (set->programs[which] < 0)
		return error_set(error, -errno, "uplink %s: %s; raise `ulimit -n`", set->uplink, strerror(errno));
	return set_pin(set, set->programs[which], set_program_path(set, which, -1, path), error);
}

/* Loads whatever of xdp_steer is not there yet: program, maps or both. @skeleton is open, not loaded. */
static int load_xdp(struct bpf_set *set, struct xdp_steer *skeleton, struct error *error)
{
	int r = reuse_maps(set, skeleton->obj, SET_MAP_COUNT);

	if (!r)
		r = xdp_steer__load(skeleton);
	if (r)
		return load_error(set, "xdp_steer", r, error);
	for (int i = 0; i < SET_MAP_COUNT; i++) {
		if (set->maps[i] >= 0)
			continue;
		set->maps[i] = dup(bpf_map__fd(bpf_object__find_map_by_name(skeleton->obj, set_map_names[i])));
		if (set->maps[i] < 0)
			return error_set(error, -errno, "uplink %s: %s; raise `ulimit -n`", set->uplink,
					 strerror(errno));
	}
	return 0;
}

/* The hook in which a program of the uplink sits, but for XDP's. */
static struct tc_hook *hook_of(struct bpf_set *set, enum set_program which)
{
	return which == SET_TC_HOST ? &set->egress : which == SET_TC_UPLINK_INGRESS ? &set->ingress : NULL;
}

/* One of a crashed daemon that was of another build: off the device, and its pin with it. What takes its place is pinned next. */
static void drop_if_other(struct bpf_set *set, enum set_program which, const struct bpf_object *object)
{
	const int fresh = bpf_program__fd(bpf_object__find_program_by_name(object, set_program_names[which]));

	if (!set->ours || set->programs[which] < 0 || programs_are_same(set->programs[which], fresh))
		return;
	log_info("uplink %s: program %s is of another build: replaced", set->uplink, set_program_names[which]);
	if (which == SET_XDP_STEER)
		xdp_hook_detach(&set->xdp);
	else if (hook_of(set, which))
		tc_hook_detach(hook_of(set, which));
	set_unpin_program(set, which);
	close(set->programs[which]);
	set->programs[which] = -1;
}

static int take_program(struct bpf_set *set, enum set_program which, const struct bpf_object *object, struct error *error)
{
	drop_if_other(set, which, object);
	return pin_program(set, which, object, error);
}

static int load_tc(struct bpf_set *set, struct error *error)
{
	struct tc_host *skeleton = tc_host__open();
	int r = skeleton ? reuse_maps(set, skeleton->obj, SET_MAP_LANES) : -errno;

	if (!r)
		r = tc_host__load(skeleton);
	if (r)
		r = load_error(set, "tc_host", r, error);
	for (int i = SET_TC_HOST; i < SET_PROGRAM_COUNT && !r; i++)
		r = take_program(set, i, skeleton->obj, error);
	tc_host__destroy(skeleton);
	return r;
}

int set_load_steer(const struct bpf_set *set, struct set_host_link *link, struct error *error)
{
	struct xdp_steer *skeleton = xdp_steer__open();
	int r = skeleton ? reuse_maps(set, skeleton->obj, SET_MAP_SHARED_COUNT) : -errno;

	if (!r)
		r = xdp_steer__load(skeleton);
	if (r) {
		r = load_error(set, "xdp_steer", r, error);
	} else {
		link->lanes_fd = dup(bpf_map__fd(skeleton->maps.lanes));
		link->settings_fd = dup(bpf_map__fd(skeleton->maps.settings));
		link->program_fd = dup(bpf_program__fd(skeleton->progs.xdp_steer));
		if (link->lanes_fd < 0 || link->settings_fd < 0 || link->program_fd < 0)
			r = error_set(error, -errno, "uplink %s: %s; raise `ulimit -n`", set->uplink, strerror(errno));
	}
	xdp_steer__destroy(skeleton);
	return r;
}

/* --- open and close ------------------------------------------------------------------------------------------------ */

/* Maps are pinned with the settings first: a set without all of them is a load that was cut off, and nothing is attached. */
static int pin_maps(struct bpf_set *set, struct error *error)
{
	char path[SET_PATH_MAX];
	int r = set_pin(set, set->maps[SET_MAP_SETTINGS], set_map_path(set, SET_MAP_SETTINGS, -1, path), error);

	for (int i = 0; i < SET_MAP_COUNT && !r; i++)
		if (i != SET_MAP_SETTINGS)
			r = set_pin(set, set->maps[i], set_map_path(set, i, -1, path), error);
	return r;
}

static int make_set(struct bpf_set *set, struct xdp_steer *skeleton, struct error *error)
{
	int r = load_xdp(set, skeleton, error);

	if (!r)
		r = map_memory(set, error);
	if (r)
		return r;
	set->ours = true;
	*set->settings = (struct vl_settings){ .abi = VL_ABI_VERSION,
					       .flags = VL_SETTINGS_ENGINE_LOADED,
					       .uplink_ifindex = set->ifindex };
	r = pin_maps(set, error);
	if (!r)
		r = pin_program(set, SET_XDP_STEER, skeleton->obj, error);
	return r ? r : load_tc(set, error);
}

static int adopt_set(struct bpf_set *set, struct xdp_steer *skeleton, struct error *error)
{
	uint32_t kept;
	int r = map_memory(set, error);

	if (r)
		return r;
	if (set->settings->abi != VL_ABI_VERSION && set->settings->abi != 0) {
		char what[64];

		snprintf(what, sizeof(what), "pinned maps of ABI version %u (this is %d)", set->settings->abi,
			 VL_ABI_VERSION);
		return explain_mismatch(set, what, error);
	}
	set->adopted = true;
	kept = set->settings->flags & VL_SETTINGS_ENGINE_LOADED;
	set->ours = kept;
	set->made_clsact = set->ours && set_clsact_marked(set);
	*set->settings = (struct vl_settings){ .abi = VL_ABI_VERSION, .flags = kept, .uplink_ifindex = set->ifindex };
	set_maps_clear(set); /* what a crashed daemon said is no longer true */
	xdp_hook_find(set);
	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		set_unpin_host_link(set, node);
	r = find_programs(set, error);
	if (r < 0)
		return r;
	log_info("uplink %s: adopted maps and %d programs that %s", set->uplink, r,
		 set->ours ? "a daemon left behind" : "were pinned by an operator");
	/* With the programs as they are found, so that they come off, whatever fails from here on. */
	tc_hook_find(&set->egress, set->ifindex, BPF_TC_EGRESS, set->programs[SET_TC_HOST]);
	tc_hook_find(&set->ingress, set->ifindex, BPF_TC_INGRESS, set->programs[SET_TC_UPLINK_INGRESS]);
	if (set->ours || set->programs[SET_XDP_STEER] < 0) {
		r = load_xdp(set, skeleton, error);
		if (!r)
			r = take_program(set, SET_XDP_STEER, skeleton->obj, error);
		if (r)
			return r;
	}
	for (int i = SET_TC_HOST; i < SET_PROGRAM_COUNT; i++)
		if (set->ours || set->programs[i] < 0)
			return load_tc(set, error);
	return 0;
}

static int open_set(struct bpf_set *set, struct error *error)
{
	struct xdp_steer *skeleton;
	int r = bpffs_mount(error);

	if (!r)
		r = set_directory_open(set, error);
	if (r)
		return r;
	skeleton = xdp_steer__open();
	if (!skeleton)
		return load_error(set, "xdp_steer", -errno, error);
	r = find_maps(set, skeleton->obj, error);
	if (r == SET_MAP_COUNT) {
		r = adopt_set(set, skeleton, error);
	} else if (r >= 0) {
		if (r > 0)
			log_warning("uplink %s: only %d of %d maps are pinned, a load that was cut off: loading anew",
				    set->uplink, r, SET_MAP_COUNT);
		close_all(set->maps, SET_MAP_COUNT);
		set_unpin_all(set);
		r = make_set(set, skeleton, error);
	}
	xdp_steer__destroy(skeleton);
	return r;
}

struct bpf_set *bpf_set_open(const char *uplink, unsigned uplink_ifindex, struct error *error)
{
	struct bpf_set *set = calloc(1, sizeof(*set));

	if (!set) {
		error_set(error, -ENOMEM, "uplink %s: out of memory; free some", uplink);
		return NULL;
	}
	libbpf_set_print(libbpf_line);
	libxdp_set_print(libxdp_line);
	set->directory_fd = -1;
	set->ifindex = uplink_ifindex;
	memset(set->maps, -1, sizeof(set->maps));
	memset(set->programs, -1, sizeof(set->programs));
	if (!copy_string(set->uplink, sizeof(set->uplink), uplink)) {
		error_set(error, -EINVAL, "uplink %s: longer than %d characters; name an interface", uplink,
			  IF_NAMESIZE - 1);
		free(set);
		return NULL;
	}
	if (open_set(set, error)) {
		bpf_set_close(set);
		return NULL;
	}
	return set;
}

static void detach_uplink(struct bpf_set *set)
{
	if (set->ours || !set->ingress.found)
		tc_hook_detach(&set->ingress);
	if (set->ours || !set->egress.found)
		tc_hook_detach(&set->egress);
	if (set->made_clsact) {
		tc_clsact_remove(set->ifindex);
		set_unmark_clsact(set);
		set->made_clsact = false;
	}
	if (set->ours || !set->xdp.found)
		xdp_hook_detach(&set->xdp);
}

void bpf_set_close(struct bpf_set *set)
{
	if (!set)
		return;
	if (set->settings && (set->ours || set->adopted))
		set->settings->flags &= ~(uint32_t)VL_SETTINGS_READY;
	for (unsigned node = 0; node < VL_NODES_MAX; node++)
		bpf_set_detach_host_link(set, node);
	detach_uplink(set);
	if (set->ours) {
		set_unpin_all(set);
	} else if (set->adopted) {
		set_maps_clear(set);
		*set->settings = (struct vl_settings){ .abi = VL_ABI_VERSION };
	}
	set_directory_close(set);
	if (set->settings)
		munmap(set->settings, sizeof(*set->settings));
	if (set->flow_steering)
		munmap(set->flow_steering, sizeof(uint32_t) * VL_PORTS_MAX * VL_FLOW_BUCKETS);
	close_all(set->programs, SET_PROGRAM_COUNT);
	close_all(set->maps, SET_MAP_COUNT);
	free(set);
}

bool bpf_set_adopted(const struct bpf_set *set)
{
	return set->adopted;
}

bool bpf_set_dispatcher(const struct bpf_set *set)
{
	return set->xdp.kind == XDP_HOOK_DISPATCHER;
}

/* --- attach -------------------------------------------------------------------------------------------------------- */

int bpf_set_attach_uplink(struct bpf_set *set, enum lane_mode mode, struct error *error)
{
	int r = xdp_hook_attach_uplink(set, mode, error);

	if (r)
		return r;
	r = tc_clsact_make(set->uplink, set->ifindex, error);
	if (r == 1)
		set->made_clsact = true;
	if (r == 1 && set_mark_clsact(set)) {
		r = error_set(error, -EIO, "uplink %s: cannot write under %s; see that it is a BPF file system",
			      set->uplink, BPF_PIN_ROOT);
	}
	if (r >= 0)
		r = tc_hook_attach(&set->egress, set->uplink, set->ifindex, BPF_TC_EGRESS, set->programs[SET_TC_HOST],
				   error);
	if (!r)
		r = tc_hook_attach(&set->ingress, set->uplink, set->ifindex, BPF_TC_INGRESS,
				   set->programs[SET_TC_UPLINK_INGRESS], error);
	if (r < 0)
		detach_uplink(set);
	return r;
}

const char *bpf_set_missing(struct bpf_set *set)
{
	if (!xdp_hook_is_there(set))
		return "XDP";
	return tc_hook_is_there(&set->egress) && tc_hook_is_there(&set->ingress) ? NULL : "tc";
}
