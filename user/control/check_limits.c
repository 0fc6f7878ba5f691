// SPDX-License-Identifier: BSD-2-Clause
/* What the process may do and have: capabilities, limits, huge pages. */
#include <cap-ng.h>
#include <errno.h>
#include <mntent.h>
#include <string.h>
#include <sys/resource.h>

#include "common/util.h"
#include "control/check_report.h"
#include "control/descriptors.h"

static bool has(unsigned capability)
{
	return capng_have_capability(CAPNG_EFFECTIVE, capability);
}

static void check_capabilities(struct check *check)
{
	const struct {
		unsigned capability, instead; /* @instead: also enough */
		enum check_status missing;
		const char *name, *use;
	} wanted[] = {
		{ CAP_NET_ADMIN, CAP_NET_ADMIN, check->uplinks_need, "CAP_NET_ADMIN", "attaches programs, makes host links" },
		{ CAP_NET_RAW, CAP_NET_RAW, check->uplinks_need, "CAP_NET_RAW", "opens AF_XDP sockets" },
		{ CAP_BPF, CAP_SYS_ADMIN, check->uplinks_need, "CAP_BPF", "loads programs and maps" },
		{ CAP_PERFMON, CAP_SYS_ADMIN, CHECK_WARN, "CAP_PERFMON", "lets programs handle packet pointers freely" },
		{ CAP_SYS_ADMIN, CAP_SYS_ADMIN, CHECK_WARN, "CAP_SYS_ADMIN", "mounts bpffs, names foreign XDP programs" },
		{ CAP_SYS_NICE, CAP_SYS_NICE, CHECK_WARN, "CAP_SYS_NICE", "asks on which node guests' memory lies" },
		{ CAP_SYS_PTRACE, CAP_SYS_PTRACE, CHECK_WARN, "CAP_SYS_PTRACE", "asks where guests of other users run" },
	};

	if (capng_get_caps_process() != 0) {
		check_found(check, CHECK_WARN, "capabilities", "run as root", "cannot be read");
		return;
	}
	for (unsigned i = 0; i < ARRAY_SIZE(wanted); i++) {
		if (has(wanted[i].capability) || has(wanted[i].instead))
			check_found(check, CHECK_OK, wanted[i].name, NULL, "held");
		else
			check_found(check, wanted[i].missing, wanted[i].name, "run as root, or give it by AmbientCapabilities= of the unit",
				    "not held: %s", wanted[i].use);
	}
}

#define MEMLOCK_ENOUGH (1ull << 30)

static void check_memlock(struct check *check)
{
	struct rlimit limit;

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (has(CAP_IPC_LOCK))
		check_found(check, CHECK_OK, "locked memory", NULL, "unlimited by CAP_IPC_LOCK");
	else if (has(CAP_SYS_RESOURCE))
		check_found(check, CHECK_OK, "locked memory", NULL, "`run` raises the limit by CAP_SYS_RESOURCE");
	else if (limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= MEMLOCK_ENOUGH)
		check_found(check, CHECK_OK, "locked memory", NULL, "limit high enough");
	else
		check_found(check, check->uplinks_need, "locked memory", "set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited",
			    "limit of %llu KiB: frame pools are charged to it", (unsigned long long)limit.rlim_max / 1024);
}

static void check_descriptors(struct check *check)
{
	unsigned long need = descriptors_needed(check->config);
	struct rlimit limit;
	char remedy[96];

	/* The hard limit counts: `run` raises the soft one to it. */
	getrlimit(RLIMIT_NOFILE, &limit);
	snprintf(remedy, sizeof(remedy), "set LimitNOFILE=%lu in the unit, or ulimit -n %lu", need, need);
	if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < need)
		check_found(check, CHECK_FAIL, "open files", remedy, "limit of %llu: this configuration takes about %lu",
			    (unsigned long long)limit.rlim_max, need);
	else
		check_found(check, CHECK_OK, "open files", NULL, "limit high enough for about %lu", need);
}

/* --- huge pages ---------------------------------------------------------------------------------------------------- */

#define HUGE_PAGE_DIRECTORY "hugepages/hugepages-2048kB/free_hugepages"

static void check_huge_pages(struct check *check)
{
	char path[128], text[32], nodes[256] = "";
	unsigned long total = 0;
	uint64_t pages;

	for (unsigned node = 0; node < VL_NODES_MAX; node++) {
		size_t length = strlen(nodes);

		snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/" HUGE_PAGE_DIRECTORY, node);
		if (read_text(path, text, sizeof(text)) < 0 || !number_parse(text, 0, UINT32_MAX, &pages))
			continue;
		total += pages;
		snprintf(nodes + length, sizeof(nodes) - length, "%snode %u: %llu", length ? ", " : "", node, (unsigned long long)pages);
	}
	if (!nodes[0] && read_text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", text, sizeof(text)) > 0 &&
	    number_parse(text, 0, UINT32_MAX, &pages)) {
		total = pages;
		snprintf(nodes, sizeof(nodes), "%llu", (unsigned long long)pages);
	}
	if (total)
		check_found(check, CHECK_OK, "huge pages", NULL, "free of 2 MiB: %s", nodes);
	else
		check_found(check, CHECK_WARN, "huge pages", "sysctl vm.nr_hugepages=256 (0.5 GiB) makes some",
			    "none of 2 MiB free: frame pools lie on small pages, which costs some speed");
}

static void check_hugetlb_mount(struct check *check)
{
	FILE *mounts = setmntent("/proc/self/mounts", "r");
	struct mntent *mount;

	while (mounts && (mount = getmntent(mounts))) {
		if (strcmp(mount->mnt_type, "hugetlbfs") != 0)
			continue;
		check_found(check, CHECK_OK, "hugetlbfs", NULL, "mounted on %s", mount->mnt_dir);
		endmntent(mounts);
		return;
	}
	if (mounts)
		endmntent(mounts);
	check_found(check, CHECK_WARN, "hugetlbfs", "mount -t hugetlbfs none /dev/hugepages",
		    "not mounted: guests that take their memory from a huge page file find none (memory-backend-memfd needs no mount)");
}

void check_limits(struct check *check)
{
	check_capabilities(check);
	check_memlock(check);
	check_descriptors(check);
	check_huge_pages(check);
	check_hugetlb_mount(check);
}
