/* SPDX-License-Identifier: BSD-2-Clause */
#include "control/softnet.h"

#include <stdio.h>
#include <stdlib.h>

#define SOFTNET_STAT "/proc/net/softnet_stat"

/* A line a CPU that is online (net/core/net-procfs.c). Return: true, and the CPU, if frames wait there. */
static bool is_waiting(const char *line, unsigned *cpu)
{
	unsigned backlog;

	return sscanf(line, "%*x %*x %*x %*x %*x %*x %*x %*x %*x %*x %*x %x %x", &backlog, cpu) == 2 && backlog && *cpu < CPUS_MAX;
}

void softnet_remove_idle_from(const char *path, struct cpulist *cpus)
{
	struct cpulist waiting = { 0 };
	FILE *file = fopen(path, "re");
	size_t size = 0;
	char *line = NULL;
	unsigned cpu;

	while (file && getline(&line, &size, file) > 0)
		if (is_waiting(line, &cpu))
			cpulist_add(&waiting, cpu);
	free(line);
	if (file)
		fclose(file);
	for (unsigned i = 0; i < sizeof(cpus->bits) / sizeof(cpus->bits[0]); i++)
		cpus->bits[i] &= waiting.bits[i];
}

void softnet_remove_idle(struct cpulist *cpus)
{
	softnet_remove_idle_from(SOFTNET_STAT, cpus);
}
