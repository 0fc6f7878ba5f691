// SPDX-License-Identifier: BSD-2-Clause
/*
 * Our tc filters: fixed handle and priority, so that a restart finds them and other people's filters are never touched.
 * The clsact qdisc is shared with everybody: made if missing, removed only if we made it and nobody uses it.
 */
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/pkt_sched.h>
#include <netlink/cache.h>
#include <netlink/netlink.h>
#include <netlink/route/classifier.h>
#include <string.h>

#include "common/log.h"
#include "control/bpf_set.h"

static const char *point_name(enum bpf_tc_attach_point point)
{
	return point == BPF_TC_EGRESS ? "egress" : "ingress";
}

int tc_clsact_make(const char *what, unsigned ifindex, struct error *error)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)ifindex, .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	int r = bpf_tc_hook_create(&hook);

	if (r == 0)
		return 1;
	if (r == -EEXIST)
		return 0;
	return error_set(
		error, r,
		"%s: cannot add the clsact qdisc: %s; the kernel needs CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF",
		what, strerror(-r));
}

/* Return: true also if the kernel does not say. */
static bool has_filters(unsigned ifindex)
{
	static const uint32_t minors[] = { TC_H_MIN_INGRESS, TC_H_MIN_EGRESS };
	struct nl_sock *socket = nl_socket_alloc();
	bool some = true;

	if (!socket)
		return true;
	if (nl_connect(socket, NETLINK_ROUTE) == 0) {
		some = false;
		for (unsigned i = 0; i < 2 && !some; i++) {
			struct nl_cache *cache;

			if (rtnl_cls_alloc_cache(socket, (int)ifindex, TC_H_MAKE(TC_H_CLSACT, minors[i]), &cache) < 0) {
				some = true;
			} else {
				some = nl_cache_nitems(cache) > 0;
				nl_cache_free(cache);
			}
		}
	}
	nl_socket_free(socket);
	return some;
}

void tc_clsact_remove(unsigned ifindex)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = (int)ifindex, .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	int r;

	if (has_filters(ifindex)) {
		log_debug("interface %u: clsact qdisc is in use, left", ifindex);
		return;
	}
	r = bpf_tc_hook_destroy(&hook);
	if (r && r != -ENODEV && r != -ENOENT && r != -EINVAL)
		log_warning(
			"interface %u: cannot remove the clsact qdisc: %s; remove it with `tc qdisc del dev NAME clsact`",
			ifindex, strerror(-r));
}

/* A filter of an older load of ours, left by a crash. The kernel keeps 15 characters of a program's name. */
static bool is_our_name(const struct program_identity *identity)
{
	for (int i = SET_TC_HOST; i < SET_PROGRAM_COUNT; i++)
		if (strncmp(identity->name, set_program_names[i], BPF_OBJ_NAME_LEN - 1) == 0)
			return true;
	return false;
}

bool tc_hook_find(struct tc_hook *hook, unsigned ifindex, enum bpf_tc_attach_point point, int program_fd)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, there, .handle = TC_HOOK_HANDLE, .priority = TC_HOOK_PRIORITY);

	*hook = (struct tc_hook){ .ifindex = ifindex, .point = point };
	if (program_fd < 0 || bpf_tc_query(&at, &there))
		return false;
	hook->program_id = program_id_of(program_fd);
	hook->attached = hook->found = there.prog_id == hook->program_id;
	return hook->found;
}

int tc_hook_attach(struct tc_hook *hook, const char *what, unsigned ifindex, enum bpf_tc_attach_point point,
		   int program_fd, struct error *error)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, there, .handle = TC_HOOK_HANDLE, .priority = TC_HOOK_PRIORITY);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, ours, .handle = TC_HOOK_HANDLE, .priority = TC_HOOK_PRIORITY,
			    .prog_fd = program_fd);
	struct program_identity identity = { 0 };
	int r;

	if (tc_hook_find(hook, ifindex, point, program_fd))
		return 0;
	hook->program_id = program_id_of(program_fd);
	if (bpf_tc_query(&at, &there) == 0) {
		program_identify(there.prog_id, &identity);
		if (!is_our_name(&identity))
			return error_set(
				error, -EBUSY,
				"%s: tc %s filter with priority %d and handle %d is taken by program '%s' (id %u); remove it with "
				"`tc filter del dev %s %s pref %d`",
				what, point_name(point), TC_HOOK_PRIORITY, TC_HOOK_HANDLE, identity.name, there.prog_id,
				what, point_name(point), TC_HOOK_PRIORITY);
		ours.flags = BPF_TC_F_REPLACE;
	}
	r = bpf_tc_attach(&at, &ours);
	if (r)
		return error_set(
			error, r,
			"%s: cannot attach the tc %s program: %s; the device needs a clsact qdisc, not `ingress` (see `tc qdisc show dev %s`), and "
			"the kernel CONFIG_NET_CLS_BPF",
			what, point_name(point), strerror(-r), what);
	hook->attached = true;
	return 0;
}

bool tc_hook_is_there(const struct tc_hook *hook)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)hook->ifindex, .attach_point = hook->point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, there, .handle = TC_HOOK_HANDLE, .priority = TC_HOOK_PRIORITY);
	char name[IF_NAMESIZE];

	if (!hook->attached || !if_indextoname(hook->ifindex, name))
		return true;
	return bpf_tc_query(&at, &there) == 0 && there.prog_id == hook->program_id;
}

void tc_hook_detach(struct tc_hook *hook)
{
	DECLARE_LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)hook->ifindex, .attach_point = hook->point);
	DECLARE_LIBBPF_OPTS(bpf_tc_opts, opts, .handle = TC_HOOK_HANDLE, .priority = TC_HOOK_PRIORITY);
	int r;

	if (!hook->attached)
		return;
	hook->attached = false;
	if (bpf_tc_query(&at, &opts) || opts.prog_id != hook->program_id)
		return; /* the device is gone, or somebody else sits there now */
	opts.prog_id = 0;
	opts.prog_fd = 0;
	opts.flags = 0;
	r = bpf_tc_detach(&at, &opts);
	if (r)
		log_warning(
			"interface %u: cannot detach the tc %s program: %s; remove it with `tc filter del dev NAME %s pref %d`",
			hook->ifindex, point_name(hook->point), strerror(-r), point_name(hook->point),
			TC_HOOK_PRIORITY);
}
