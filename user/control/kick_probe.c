/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * Two functions of the kernel are traced: the one by which the kernel itself signals an eventfd (KVM's ioeventfd) and the one behind
 * write(). The first has two names: eventfd_signal() up to Linux 6.7, which calls eventfd_signal_mask() where that exists, so that a probe on
 * both would count twice; from 6.8 on it is inlined into its callers and only eventfd_signal_mask() is left. The kernel's BTF
 * tells which are there. Trampolines are tried first, as they cost a tenth of a kprobe; some kernels refuse them.
 */
#include "control/kick_probe.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/util.h"
#include "kick_cpu.skel.h"
#include "vhostlane/kick_abi.h"

enum way { BY_TRAMPOLINE, BY_KPROBE, WAY_COUNT };
static const char *const way_names[] = { [BY_TRAMPOLINE] = "trampoline", [BY_KPROBE] = "kprobe" };
_Static_assert(ARRAY_SIZE(way_names) == WAY_COUNT, "one name a way");

#define LINKS_MAX 2

struct kick_probe {
	struct kick_cpu *skeleton;
	enum way way;
	struct bpf_link *links[LINKS_MAX];
	unsigned link_count;
};

/* The functions to trace; NULL = not in this kernel. */
struct targets {
	const char *signal, *write;
};

static bool has_function(const struct btf *btf, const char *name)
{
	return btf__find_by_name_kind(btf, name, BTF_KIND_FUNC) > 0;
}

/* Not the kernel's fault, though it refuses then, too. */
static int out_of_descriptors(int code, struct error *error)
{
	return error_set(error, code, "the CPU that kicks: %s", strerror(-code));
}

/* libbpf, which looks in many places, says that it found none, whatever was in its way. */
static int no_types(struct error *error)
{
	const int fd = open("/sys/kernel/btf/vmlinux", O_RDONLY | O_CLOEXEC), why = fd < 0 ? errno : ENOTSUP;

	if (fd >= 0)
		close(fd);
	if (why == EMFILE || why == ENFILE)
		return out_of_descriptors(-why, error);
	return error_set(error, -EOPNOTSUPP, "the CPU that kicks: the kernel has no BTF (%s); use a kernel with CONFIG_DEBUG_INFO_BTF",
			 strerror(why));
}

static int find_targets(struct targets *targets, struct error *error)
{
	struct btf *btf = btf__load_vmlinux_btf();

	if (!btf)
		return no_types(error);
	targets->signal = has_function(btf, "eventfd_signal")	   ? "eventfd_signal"
			  : has_function(btf, "eventfd_signal_mask") ? "eventfd_signal_mask"
								     : NULL;
	targets->write = has_function(btf, "eventfd_write") ? "eventfd_write" : NULL;
	btf__free(btf);
	if (targets->signal || targets->write)
		return 0;
	return error_set(error, -EOPNOTSUPP, "the CPU that kicks: the kernel shows no function that signals an eventfd; nothing to be done");
}

/* --- one way -------------------------------------------------------------------------------------------------------- */

static struct bpf_program *program_of(const struct kick_probe *probe, bool is_write)
{
	const struct kick_cpu *s = probe->skeleton;

	if (probe->way == BY_TRAMPOLINE)
		return is_write ? s->progs.write_by_trampoline : s->progs.signal_by_trampoline;
	return is_write ? s->progs.write_by_kprobe : s->progs.signal_by_kprobe;
}

static int choose(struct kick_probe *probe, bool is_write, const char *function)
{
	struct bpf_program *program = program_of(probe, is_write);
	int result = 0;

	if (function && probe->way == BY_TRAMPOLINE)
		result = bpf_program__set_attach_target(program, 0, function);
	return result ? result : bpf_program__set_autoload(program, function != NULL);
}

static int attach(struct kick_probe *probe, bool is_write, const char *function)
{
	struct bpf_program *program = program_of(probe, is_write);
	struct bpf_link *link;

	if (!function)
		return 0;
	link = probe->way == BY_TRAMPOLINE ? bpf_program__attach_trace(program) : bpf_program__attach_kprobe(program, false, function);
	if (!link)
		return -errno;
	probe->links[probe->link_count++] = link;
	return 0;
}

static void undo(struct kick_probe *probe)
{
	while (probe->link_count)
		bpf_link__destroy(probe->links[--probe->link_count]);
	kick_cpu__destroy(probe->skeleton);
	probe->skeleton = NULL;
}

/* Each try makes libbpf read the kernel's types, which takes long: not for what cannot be. */
static bool has_kprobes(void)
{
	static const char *const signs[] = {
		"/sys/bus/event_source/devices/kprobe/type",
		"/sys/kernel/tracing/kprobe_events",
		"/sys/kernel/debug/tracing/kprobe_events",
	};

	for (unsigned i = 0; i < ARRAY_SIZE(signs); i++)
		if (!access(signs[i], F_OK))
			return true;
	return false;
}

static int try_way(struct kick_probe *probe, enum way way, const struct targets *targets)
{
	int result;

	if (way == BY_KPROBE && !has_kprobes())
		return -ENOENT;
	probe->way = way;
	probe->skeleton = kick_cpu__open();
	if (!probe->skeleton)
		return -errno;
	result = choose(probe, false, targets->signal);
	if (!result)
		result = choose(probe, true, targets->write);
	if (!result)
		result = kick_cpu__load(probe->skeleton);
	if (!result)
		result = attach(probe, false, targets->signal);
	if (!result)
		result = attach(probe, true, targets->write);
	if (result)
		undo(probe);
	return result;
}

/* --- open, close ---------------------------------------------------------------------------------------------------- */

static int try_ways(struct kick_probe *probe, struct error *error)
{
	struct targets targets;
	int results[WAY_COUNT], result = find_targets(&targets, error);

	for (enum way way = 0; !result && way < WAY_COUNT; way++) {
		results[way] = try_way(probe, way, &targets);
		if (!results[way])
			return 0;
		if (results[way] == -EMFILE || results[way] == -ENFILE)
			return out_of_descriptors(results[way], error);
	}
	if (result)
		return result;
	/* One of them for another reason: not for want of privileges. */
	if (results[BY_TRAMPOLINE] == -EPERM && results[BY_KPROBE] == -EPERM)
		return error_set(error, -EPERM, "the CPU that kicks: tracing programs are not permitted; run as root or with CAP_BPF and CAP_PERFMON, on a kernel that is not locked down");
	return error_set(error, -EOPNOTSUPP,
			 "the CPU that kicks: the kernel refuses to trace eventfd signals (trampoline: %s, kprobe: %s); use a kernel with "
			 "CONFIG_FUNCTION_TRACER, and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS or CONFIG_KPROBE_EVENTS",
			 strerror(-results[BY_TRAMPOLINE]), strerror(-results[BY_KPROBE]));
}

struct kick_probe *kick_probe_open(struct error *error)
{
	struct kick_probe *probe = calloc(1, sizeof(*probe));
	libbpf_print_fn_t print;
	int result;

	if (!probe) {
		error_set(error, -ENOMEM, "the CPU that kicks: out of memory; free some");
		return NULL;
	}
	/* What libbpf says of a way that is refused is no news: the next one may do. */
	print = libbpf_set_print(NULL);
	result = try_ways(probe, error);
	libbpf_set_print(print);
	if (!result)
		return probe;
	free(probe);
	return NULL;
}

void kick_probe_close(struct kick_probe *probe)
{
	if (!probe)
		return;
	undo(probe);
	free(probe);
}

const char *kick_probe_way(const struct kick_probe *probe)
{
	return probe ? way_names[probe->way] : "none";
}

/* --- eventfds ------------------------------------------------------------------------------------------------------- */

/* Return: false if @fd is no eventfd, or one that got no id (the kernel has 2^31 of them). */
static bool eventfd_id(int fd, uint32_t *id)
{
	static const char label[] = "eventfd-id:";
	char path[64], text[512];
	const char *line;
	uint64_t value;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	if (fd < 0 || read_text(path, text, sizeof(text)) < 0)
		return false;
	line = strstr(text, label);
	if (!line)
		return false;
	line += sizeof(label) - 1;
	line += strspn(line, " \t");
	text[line - text + (ptrdiff_t)strcspn(line, "\n")] = '\0';
	if (!number_parse(line, 0, INT32_MAX, &value))
		return false;
	*id = (uint32_t)value;
	return true;
}

static int kicks_map(const struct kick_probe *probe)
{
	return bpf_map__fd(probe->skeleton->maps.kicks);
}

int kick_probe_watch(struct kick_probe *probe, int fd)
{
	const struct vl_kick none = { 0 };
	uint32_t id;

	if (!probe)
		return -EOPNOTSUPP;
	if (!eventfd_id(fd, &id))
		return -EINVAL;
	return bpf_map_update_elem(kicks_map(probe), &id, &none, BPF_ANY);
}

void kick_probe_unwatch(struct kick_probe *probe, int fd)
{
	uint32_t id;

	if (probe && eventfd_id(fd, &id))
		bpf_map_delete_elem(kicks_map(probe), &id);
}

static bool look_up(const struct kick_probe *probe, int fd, struct vl_kick *kick)
{
	uint32_t id;

	return probe && eventfd_id(fd, &id) && bpf_map_lookup_elem(kicks_map(probe), &id, kick) == 0;
}

int kick_probe_cpu(const struct kick_probe *probe, int fd)
{
	struct vl_kick kick;

	return look_up(probe, fd, &kick) && kick.count ? (int)kick.cpu : -1;
}

uint64_t kick_probe_count(const struct kick_probe *probe, int fd)
{
	struct vl_kick kick;

	return look_up(probe, fd, &kick) ? kick.count : 0;
}
