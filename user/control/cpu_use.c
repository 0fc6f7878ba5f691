/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/cpu_use.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/util.h"

#define STAT_LINE 512 /* of a CPU: ten numbers */

/* "cpu3 user nice system idle iowait irq softirq steal ...": guest times are in user and nice already. False if no such line. */
static bool parse_line(const char *line, struct cpu_use *use)
{
	uint64_t user, nice, system, idle, iowait, irq, softirq, steal;
	unsigned cpu;

	if (sscanf(line, "cpu%u %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &cpu, &user, &nice,
		   &system, &idle, &iowait, &irq, &softirq, &steal) != 9 ||
	    cpu >= CPUS_MAX)
		return false;
	use->spare[cpu] = idle + iowait + nice;
	use->total[cpu] = user + nice + system + idle + iowait + irq + softirq + steal;
	return true;
}

void cpu_use_parse(const char *text, struct cpu_use *use)
{
	memset(use, 0, sizeof(*use));
	for (const char *line = text; line && !strncmp(line, "cpu", 3); line = strchr(line, '\n'), line += line != NULL)
		parse_line(line, use);
}

/* CPUs' lines come first; what follows is long on large machines and not read. */
int cpu_use_read(struct cpu_use *use)
{
	FILE *file = fopen("/proc/stat", "re");
	char line[STAT_LINE];

	memset(use, 0, sizeof(*use));
	if (!file)
		return -errno;
	while (fgets(line, sizeof(line), file) && !strncmp(line, "cpu", 3))
		parse_line(line, use);
	fclose(file);
	return 0;
}

uint32_t cpu_use_taken_permille(const struct cpu_use *before, const struct cpu_use *now, int cpu)
{
	uint64_t total, spare;

	if (cpu < 0 || cpu >= CPUS_MAX || now->total[cpu] <= before->total[cpu] || now->spare[cpu] < before->spare[cpu])
		return 0;
	total = now->total[cpu] - before->total[cpu];
	spare = now->spare[cpu] - before->spare[cpu];
	return spare >= total ? 0 : (uint32_t)((total - spare) * 1000 / total);
}

bool cpu_use_of_thread(int tid, uint64_t *run_ns, uint64_t *wait_ns)
{
	char path[64], text[96];

	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tid);
	/* A kernel that keeps no such account shows zeros; a thread that was started has run. */
	return read_text(path, text, sizeof(text)) > 0 && sscanf(text, "%" SCNu64 " %" SCNu64, run_ns, wait_ns) == 2 && *run_ns;
}
