// SPDX-License-Identifier: BSD-2-Clause
/*
 * xdp_steer on a device. Theory of operation:
 *
 * A device has one place for an XDP program. libxdp's dispatcher, a small XDP program that calls others in turn, lets
 * several share it; each is loaded as a kind of its own (freplace), which not every kernel permits. So:
 *   - ours is there already (it uses our `ports` map): taken as found;
 *   - a dispatcher is there: ours is loaded once more, for the dispatcher, on the same maps, and chained;
 *   - any other program is there: refused. Nothing is ever replaced;
 *   - nothing is there: through the dispatcher, so that others can join later; where the kernel cannot, libxdp attaches the
 *     program alone without saying so. That one is exchanged for the pinned one, so that pins tell the truth.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xdp/libxdp.h>

#include "common/log.h"
#include "control/bpf_set.h"
#include "xdp_steer.skel.h"

#define LIBXDP_DIRECTORY      "/sys/fs/bpf/xdp"
#define LIBXDP_DIRECTORY_MODE (S_IRWXU | S_ISVTX)

int program_identify(uint32_t id, struct program_identity *identity)
{
	struct bpf_prog_info info = { 0 };
	uint32_t size = sizeof(info);
	int fd = bpf_prog_get_fd_by_id(id), r;

	*identity = (struct program_identity){ .id = id };
	if (fd < 0)
		return fd;
	r = bpf_obj_get_info_by_fd(fd, &info, &size);
	close(fd);
	memcpy(identity->name, info.name, sizeof(identity->name) - 1);
	return r;
}

uint32_t program_id_of(int program_fd)
{
	struct bpf_prog_info info = { 0 };
	uint32_t size = sizeof(info);

	return bpf_obj_get_info_by_fd(program_fd, &info, &size) ? 0 : info.id;
}

bool programs_are_same(int a_fd, int b_fd)
{
	struct bpf_prog_info a = { 0 }, b = { 0 };
	uint32_t size = sizeof(a);

	if (bpf_obj_get_info_by_fd(a_fd, &a, &size))
		return false;
	size = sizeof(b);
	return !bpf_obj_get_info_by_fd(b_fd, &b, &size) && a.type == b.type && !memcmp(a.tag, b.tag, sizeof(a.tag));
}

bool program_uses_map(int program_fd, int map_fd)
{
	struct bpf_map_info map = { 0 };
	struct bpf_prog_info info = { 0 };
	uint32_t ids[64], size = sizeof(map);

	if (program_fd < 0 || bpf_obj_get_info_by_fd(map_fd, &map, &size))
		return false;
	size = sizeof(info);
	info.map_ids = (uintptr_t)ids;
	info.nr_map_ids = 64;
	if (bpf_obj_get_info_by_fd(program_fd, &info, &size))
		return false;
	for (uint32_t i = 0; i < info.nr_map_ids && i < 64; i++)
		if (ids[i] == map.id)
			return true;
	return false;
}

static const char *mode_text(uint32_t flags)
{
	return flags == XDP_FLAGS_SKB_MODE ? "generic" : "native";
}

static int attach_error(const char *what, uint32_t flags, int code, struct error *error)
{
	const char *remedy = "see `ip -d link show` and the kernel log";

	switch (-code) {
	case EOPNOTSUPP:
	case EINVAL:
		remedy = flags == XDP_FLAGS_SKB_MODE ? "this device cannot run XDP; name another"
						     : "the driver may have no native XDP: use mode generic";
		break;
	case ERANGE:
		remedy = "its MTU is too large for XDP: lower it or use mode generic";
		break;
	case ENOSPC:
	case ENOMEM:
		remedy =
			"it needs more receive queues (veth: at least as many as the other end has transmit queues): `ethtool -L` or mode generic";
		break;
	case EPERM:
		remedy = "run as root or with CAP_NET_ADMIN and CAP_BPF";
		break;
	case EBUSY:
	case EEXIST:
		remedy = "another XDP program came first: see `bpftool net`";
		break;
	}
	return error_set(error, code, "%s: cannot attach XDP in %s mode: %s; %s", what, mode_text(flags),
			 strerror(-code), remedy);
}

int xdp_hook_attach_own(struct xdp_hook *hook, const char *what, unsigned ifindex, int program_fd, struct error *error)
{
	int r = bpf_xdp_attach((int)ifindex, program_fd, XDP_FLAGS_DRV_MODE | XDP_FLAGS_UPDATE_IF_NOEXIST, NULL);

	if (r)
		return attach_error(what, XDP_FLAGS_DRV_MODE, r, error);
	*hook = (struct xdp_hook){ .kind = XDP_HOOK_PLAIN,
				   .ifindex = ifindex,
				   .flags = XDP_FLAGS_DRV_MODE,
				   .program_id = program_id_of(program_fd) };
	return 0;
}

/* Our program behind the device's dispatcher, if there is one. Return: 1 dispatcher with ours, 0 dispatcher, -ENOENT none. */
static int look_into_dispatcher(struct bpf_set *set, struct xdp_hook *hook)
{
	struct xdp_multiprog *multiprog = xdp_multiprog__get_from_ifindex((int)set->ifindex);
	struct xdp_program *program = NULL;
	int r = 0;

	if (libxdp_get_error(multiprog))
		return -ENOENT;
	if (xdp_multiprog__is_legacy(multiprog)) {
		r = -ENOENT;
	} else {
		while (!r && (program = xdp_multiprog__next_prog(program, multiprog))) {
			if (program_uses_map(xdp_program__fd(program), set->maps[SET_MAP_PORTS])) {
				hook->kind = XDP_HOOK_DISPATCHER;
				hook->program_id = xdp_program__id(program);
				r = 1;
			}
		}
	}
	xdp_multiprog__close(multiprog);
	return r;
}

/* libxdp makes its directory once a process, never again, and leaves it behind. So it is made here each time; the sticky bit,
 * without meaning for a directory of root's, tells even after a crash that it was not there before us. */
static void make_libxdp_directory(void)
{
	if (mkdir(LIBXDP_DIRECTORY, LIBXDP_DIRECTORY_MODE) && errno != EEXIST)
		log_debug("%s: %s", LIBXDP_DIRECTORY, strerror(errno));
}

/* rmdir() leaves it while other programs are pinned in it. */
static void remove_libxdp_directory(void)
{
	struct stat there;

	if (lstat(LIBXDP_DIRECTORY, &there) == 0 && S_ISDIR(there.st_mode) && (there.st_mode & S_ISVTX))
		rmdir(LIBXDP_DIRECTORY);
}

/* Loads xdp_steer once more on the set's maps, as libxdp wants it, and has it attached.
 * Return: 0 with hook->kind telling whether behind a dispatcher or alone. */
static int attach_by_libxdp(struct bpf_set *set, struct xdp_hook *hook, struct error *error)
{
	enum xdp_attach_mode mode = hook->flags == XDP_FLAGS_SKB_MODE ? XDP_MODE_SKB : XDP_MODE_NATIVE;
	struct xdp_steer *skeleton = xdp_steer__open();
	struct xdp_program *program = NULL;
	int r = skeleton ? 0 : -errno;

	make_libxdp_directory();
	for (int i = 0; i < SET_MAP_COUNT && !r; i++)
		r = bpf_map__reuse_fd(bpf_object__find_map_by_name(skeleton->obj, set_map_names[i]), set->maps[i]);
	if (!r) {
		program = xdp_program__from_bpf_obj(skeleton->obj, "xdp.frags");
		r = (int)libxdp_get_error(program);
		if (r)
			program = NULL;
	}
	if (!r)
		r = xdp_program__set_xdp_frags_support(program,
						       true); /* it does not see that in an object that is only open */
	if (!r)
		r = xdp_program__attach(program, (int)set->ifindex, mode, 0);
	if (!r && look_into_dispatcher(set, hook) != 1) {
		hook->kind = XDP_HOOK_PLAIN;
		hook->program_id = xdp_program__id(program);
	}
	xdp_program__close(program);
	xdp_steer__destroy(skeleton);
	if (r)
		return attach_error(set->uplink, hook->flags, r, error);
	return 0;
}

/* The pinned program in the place of the one that libxdp attached alone. */
static int exchange_for_pinned(struct bpf_set *set, struct xdp_hook *hook, struct error *error)
{
	int old = bpf_prog_get_fd_by_id(hook->program_id), r;
	DECLARE_LIBBPF_OPTS(bpf_xdp_attach_opts, opts, .old_prog_fd = old);

	r = old < 0 ? old
		    : bpf_xdp_attach((int)set->ifindex, set->programs[SET_XDP_STEER], hook->flags | XDP_FLAGS_REPLACE,
				     &opts);
	if (old >= 0)
		close(old);
	if (r)
		return attach_error(set->uplink, hook->flags, r, error);
	hook->program_id = program_id_of(set->programs[SET_XDP_STEER]);
	return 0;
}

static int attach_to_empty(struct bpf_set *set, struct xdp_hook *hook, struct error *error)
{
	int r;

	if (!set->adopted) {
		r = attach_by_libxdp(set, hook, NULL);
		if (!r && hook->kind == XDP_HOOK_DISPATCHER)
			return 0;
		remove_libxdp_directory();
		if (!r) {
			r = exchange_for_pinned(set, hook, error);
			if (r)
				xdp_hook_detach(hook);
			return r;
		}
		log_debug("%s: libxdp could not attach (%s); attaching plainly", set->uplink, strerror(-r));
	}
	r = bpf_xdp_attach((int)set->ifindex, set->programs[SET_XDP_STEER], hook->flags | XDP_FLAGS_UPDATE_IF_NOEXIST,
			   NULL);
	if (r)
		return attach_error(set->uplink, hook->flags, r, error);
	hook->kind = XDP_HOOK_PLAIN;
	hook->program_id = program_id_of(set->programs[SET_XDP_STEER]);
	return 0;
}

static int refuse_foreign(struct bpf_set *set, uint32_t id, uint8_t attach_mode, struct error *error)
{
	struct program_identity identity;
	const char *off = attach_mode == XDP_ATTACHED_SKB  ? "xdpgeneric off"
			  : attach_mode == XDP_ATTACHED_HW ? "xdpoffload off"
							   : "xdp off";

	/* It may be our own, of a crashed daemon: no advice to take off what nobody can look at. */
	if (program_identify(id, &identity))
		return error_set(
			error, -EBUSY,
			"uplink %s: an XDP program (id %u) is attached that this process may not look at; run as root or with CAP_SYS_ADMIN",
			set->uplink, id);
	return error_set(
		error, -EBUSY,
		"uplink %s: XDP program '%s' (id %u) is attached and is not replaced; remove it with `ip link set dev %s %s`",
		set->uplink, identity.name, id, set->uplink, off);
}

/* Return: 1 ours is there (in @hook), 0 a dispatcher without it, -ENOENT neither. */
static int look_at_device(struct bpf_set *set, struct xdp_hook *hook, const struct bpf_xdp_query_opts *there)
{
	uint32_t id = there->prog_id ? there->prog_id : there->drv_prog_id ? there->drv_prog_id : there->skb_prog_id;
	int fd = bpf_prog_get_fd_by_id(id), r = 1;

	hook->ifindex = set->ifindex;
	hook->flags = there->attach_mode == XDP_ATTACHED_SKB ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
	if (program_uses_map(fd, set->maps[SET_MAP_PORTS])) {
		hook->kind = XDP_HOOK_PLAIN;
		hook->program_id = id;
	} else {
		r = look_into_dispatcher(set, hook);
	}
	if (fd >= 0)
		close(fd);
	hook->found = r == 1;
	return r;
}

bool xdp_hook_find(struct bpf_set *set)
{
	DECLARE_LIBBPF_OPTS(bpf_xdp_query_opts, there);

	return bpf_xdp_query((int)set->ifindex, 0, &there) == 0 && there.attach_mode != XDP_ATTACHED_NONE &&
	       look_at_device(set, &set->xdp, &there) == 1;
}

int xdp_hook_attach_uplink(struct bpf_set *set, enum lane_mode mode, struct error *error)
{
	DECLARE_LIBBPF_OPTS(bpf_xdp_query_opts, there);
	struct xdp_hook *hook = &set->xdp;
	uint32_t wanted = mode == LANE_MODE_GENERIC ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
	int r = bpf_xdp_query((int)set->ifindex, 0, &there);

	if (r)
		return error_set(error, r,
				 "uplink %s: cannot ask for its XDP programs: %s; see that the interface exists",
				 set->uplink, strerror(-r));
	*hook = (struct xdp_hook){ .ifindex = set->ifindex, .flags = wanted };
	if (there.attach_mode == XDP_ATTACHED_NONE)
		return attach_to_empty(set, hook, error);

	r = look_at_device(set, hook, &there);
	if (r == 1) {
		if (hook->flags == wanted)
			return 0;
		if (!set->ours) {
			log_warning("uplink %s: XDP is attached in %s mode, by an operator, and stays so", set->uplink,
				    mode_text(hook->flags));
			return 0;
		}
		xdp_hook_detach(hook); /* left by a crash, in the other mode */
		*hook = (struct xdp_hook){ .ifindex = set->ifindex, .flags = wanted };
		return attach_to_empty(set, hook, error);
	}
	if (r == 0)
		return attach_by_libxdp(set, hook, error);
	return refuse_foreign(set,
			      there.prog_id	  ? there.prog_id
			      : there.drv_prog_id ? there.drv_prog_id
						  : there.skb_prog_id,
			      there.attach_mode, error);
}

bool xdp_hook_is_there(struct bpf_set *set)
{
	DECLARE_LIBBPF_OPTS(bpf_xdp_query_opts, there);
	struct xdp_hook probe = set->xdp;

	if (set->xdp.kind == XDP_HOOK_NONE || bpf_xdp_query((int)set->ifindex, 0, &there))
		return true;
	if (set->xdp.kind == XDP_HOOK_DISPATCHER)
		return there.attach_mode != XDP_ATTACHED_NONE && look_into_dispatcher(set, &probe) == 1;
	return set->xdp.program_id == there.prog_id || set->xdp.program_id == there.drv_prog_id ||
	       set->xdp.program_id == there.skb_prog_id;
}

static int detach_from_dispatcher(struct xdp_hook *hook)
{
	struct xdp_program *program = xdp_program__from_id(hook->program_id);
	int r = (int)libxdp_get_error(program);

	if (r)
		return r;
	r = xdp_program__detach(program, (int)hook->ifindex,
				hook->flags == XDP_FLAGS_SKB_MODE ? XDP_MODE_SKB : XDP_MODE_NATIVE, 0);
	xdp_program__close(program);
	return r;
}

static int detach_plain(struct xdp_hook *hook)
{
	int fd = bpf_prog_get_fd_by_id(hook->program_id), r;
	DECLARE_LIBBPF_OPTS(bpf_xdp_attach_opts, opts, .old_prog_fd = fd);

	if (fd < 0)
		return fd;
	r = bpf_xdp_detach((int)hook->ifindex, hook->flags | XDP_FLAGS_REPLACE, &opts);
	close(fd);
	return r;
}

void xdp_hook_detach(struct xdp_hook *hook)
{
	int r = 0;

	if (hook->kind == XDP_HOOK_DISPATCHER)
		r = detach_from_dispatcher(hook);
	else if (hook->kind == XDP_HOOK_PLAIN)
		r = detach_plain(hook);
	/* ENODEV: the device went; ENOENT, EEXIST: the program did, or another sits there. */
	if (r && r != -ENODEV && r != -ENOENT && r != -EEXIST)
		log_warning("interface %u: cannot detach XDP program %u: %s; see `bpftool net`", hook->ifindex,
			    hook->program_id, error_why(r));
	hook->kind = XDP_HOOK_NONE;
	remove_libxdp_directory();
}
