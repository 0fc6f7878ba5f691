/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation
 *
 * The kernel does not tell which interrupt belongs to which queue. What it tells: the interrupts of a device (msi_irqs in its sysfs directory, or
 * in that of the bus device above, as virtio has it), and the name that the driver gave to each (/proc/interrupts). A name
 * is judged by its end: a word for "receive" and the queue's number behind it, or before it in Xen's way. Names without
 * such a word count if they are the interface's own and a number. A device with one interrupt for everything has it serve
 * all queues.
 */
#include "control/irq.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/cpulist.h"
#include "common/util.h"
#include "vhostlane/bpf_abi.h"

#define IRQS_MAX 4096 /* of one device; beyond, the rest is not looked at */

struct irq_set {
	unsigned count;
	unsigned irq[IRQS_MAX];
};

/* How well a name fits: the better one wins. */
enum fit { FIT_NOT, FIT_SHARED, FIT_NUMBER, FIT_RECEIVE, FIT_RECEIVE_OWN };

/* --- the device's interrupts ---------------------------------------------------------------------------------------- */

static void add_irq(struct irq_set *set, const char *text)
{
	uint64_t irq;

	if (set->count < IRQS_MAX && number_parse(text, 1, UINT32_MAX, &irq))
		set->irq[set->count++] = (unsigned)irq;
}

static void add_msi(struct irq_set *set, const char *device)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *directory;

	if (snprintf(path, sizeof(path), "%s/msi_irqs", device) >= (int)sizeof(path))
		return;
	directory = opendir(path);
	while (directory && (entry = readdir(directory)))
		add_irq(set, entry->d_name);
	if (directory)
		closedir(directory);
}

/* Its one line; 0 is none. Return: false if it is on a bus that knows no interrupts, as virtio's. */
static bool add_line(struct irq_set *set, const char *device)
{
	char path[PATH_MAX], text[32];

	if (snprintf(path, sizeof(path), "%s/irq", device) >= (int)sizeof(path) || read_text(path, text, sizeof(text)) <= 0)
		return false;
	if (!set->count)
		add_irq(set, text);
	return true;
}

/*
 * Interrupts of the nearest of device and ancestors on a bus that knows them, and no further: a bridge above has some of its own, for
 * hotplug. Return: false if @ifname is no device of hardware.
 */
static bool find_irqs(const char *sysfs, const char *ifname, struct irq_set *set)
{
	char path[PATH_MAX], root[PATH_MAX], device[PATH_MAX];
	size_t root_length;

	set->count = 0;
	if (!*ifname || strlen(ifname) >= IF_NAMESIZE || strchr(ifname, '/') || ifname[0] == '.')
		return false;
	snprintf(path, sizeof(path), "%s/devices", sysfs);
	if (!realpath(path, root))
		return false;
	snprintf(path, sizeof(path), "%s/class/net/%s/device", sysfs, ifname);
	if (!realpath(path, device)) /* veth, tap and other devices of software */
		return false;
	root_length = strlen(root);
	while (!set->count && strncmp(device, root, root_length) == 0 && device[root_length] == '/') {
		add_msi(set, device);
		if (add_line(set, device))
			break;
		*strrchr(device, '/') = '\0';
	}
	return true;
}

static bool has_irq(const struct irq_set *set, unsigned irq)
{
	for (unsigned i = 0; i < set->count; i++)
		if (set->irq[i] == irq)
			return true;
	return false;
}

/* --- names ---------------------------------------------------------------------------------------------------------- */

/* The number that @text begins with after separators, if it is the last of the name (but for what the driver says of the bus). */
static bool number_at_end(const char *text, unsigned *number)
{
	char *end;

	text += strspn(text, "-._:");
	if (!isdigit((unsigned char)*text))
		return false;
	*number = (unsigned)strtoul(text, &end, 10);
	return *end == '\0' || *end == '@';
}

/* "q3-rx": the number before the word. */
static bool number_before(const char *name, const char *word, unsigned *number)
{
	const char *p = word;

	if (p == name || p[-1] != '-')
		return false;
	for (p--; p > name && isdigit((unsigned char)p[-1]); p--)
		;
	if (p[0] == '-' || p == name || p[-1] != 'q')
		return false;
	*number = (unsigned)strtoul(p, NULL, 10);
	return true;
}

static const char *last_word(const char *name, const char *word)
{
	const char *found = NULL;

	for (const char *p = name; *p; p++)
		if (!strncasecmp(p, word, strlen(word)))
			found = p;
	return found;
}

static bool receive_number(const char *name, unsigned *number)
{
	/* In "TxRx" and "Tx-Rx" the last word counts; "rxtx" has its own. fp: fast path; comp: completions. */
	static const char *const words[] = { "rxtx", "rx", "input", "comp", "fp" };

	for (unsigned i = 0; i < ARRAY_SIZE(words); i++) {
		const char *word = last_word(name, words[i]), *behind = word ? word + strlen(words[i]) : NULL;

		if (word && (number_at_end(behind, number) || (!*behind && number_before(name, word, number))))
			return true;
	}
	return false;
}

/* What comes behind @ifname, if that is a word of its own in @name; else NULL. */
static const char *behind_interface(const char *name, const char *ifname)
{
	const size_t length = strlen(ifname);

	for (const char *p = strstr(name, ifname); p; p = strstr(p + 1, ifname))
		if ((p == name || !isalnum((unsigned char)p[-1])) && !isalnum((unsigned char)p[length]))
			return p + length;
	return NULL;
}

/* *queue: for which; FIT_SHARED: for each. */
static enum fit fit_of(const char *name, const char *ifname, unsigned *queue)
{
	/* An interface may be called rx0: its own name says nothing of queues. */
	const char *behind = behind_interface(name, ifname);

	if (receive_number(behind ? behind : name, queue))
		return behind ? FIT_RECEIVE_OWN : FIT_RECEIVE;
	if (behind && number_at_end(behind, queue))
		return FIT_NUMBER;
	if (strstr(name, "virtqueues")) /* two vectors: configuration and all the rest */
		return FIT_SHARED;
	return FIT_NOT;
}

/* --- /proc/interrupts ----------------------------------------------------------------------------------------------- */

struct search {
	const char *ifname;
	const struct irq_set *irqs; /* the device's; none = it does not tell */
	unsigned count;
	struct {
		enum fit best;
		unsigned irq; /* of the best */
	} queues[VL_DEVICE_QUEUES_MAX];
};

static void offer(struct search *s, unsigned queue, enum fit fit, unsigned irq)
{
	if (fit <= s->queues[queue].best)
		return;
	s->queues[queue].best = fit;
	s->queues[queue].irq = irq;
}

static void judge_name(struct search *s, unsigned irq, const char *name)
{
	const bool known = s->irqs->count;
	unsigned queue = 0;
	const enum fit fit = fit_of(name, s->ifname, &queue);

	/* Of a device that shows no interrupts only a name with its own name in it is believed. */
	if (!known && fit != FIT_RECEIVE_OWN && fit != FIT_NUMBER)
		return;
	if (fit > FIT_SHARED && queue < s->count)
		offer(s, queue, fit, irq);
	for (unsigned q = 0; q < s->count && (fit == FIT_SHARED || (known && s->irqs->count == 1)); q++)
		offer(s, q, FIT_SHARED, irq);
}

/*
 * "  38:   0   2462  PCI-MSIX-0000:00:03.0   1-edge   virtio2-input.0" or, on a shared line, names with commas between. All words but the
 * counts are judged: the controller's name looks like no queue.
 */
static void judge_line(struct search *s, char *line)
{
	char *end, *word, *rest = NULL;
	unsigned irq;

	line += strspn(line, " ");
	irq = (unsigned)strtoul(line, &end, 10);
	if (end == line || *end != ':' || (s->irqs->count && !has_irq(s->irqs, irq)))
		return;
	for (word = strtok_r(end + 1, " ,\t\n", &rest); word; word = strtok_r(NULL, " ,\t\n", &rest))
		if (word[strspn(word, "0123456789")] != '\0')
			judge_name(s, irq, word);
}

static void read_interrupts(const char *procfs, struct search *s)
{
	char path[PATH_MAX], *line = NULL;
	size_t room = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/interrupts", procfs);
	file = fopen(path, "re");
	if (!file)
		return;
	while (getline(&line, &room, file) > 0)
		judge_line(s, line);
	free(line);
	fclose(file);
}

/* --- the CPU -------------------------------------------------------------------------------------------------------- */

static bool read_cpus(const char *procfs, unsigned irq, const char *name, struct cpulist *cpus)
{
	char path[PATH_MAX], text[4096];

	snprintf(path, sizeof(path), "%s/irq/%u/%s", procfs, irq, name);
	memset(cpus, 0, sizeof(*cpus));
	return read_text(path, text, sizeof(text)) > 0 && cpulist_parse(text, cpus, NULL) && cpulist_count(cpus);
}

static int cpu_of_irq(const char *procfs, unsigned irq)
{
	struct cpulist cpus;

	if (read_cpus(procfs, irq, "effective_affinity_list", &cpus))
		return cpulist_next(&cpus, 0);
	/* What is permitted tells where it is only if it leaves no choice. */
	if (read_cpus(procfs, irq, "smp_affinity_list", &cpus) && cpulist_count(&cpus) == 1)
		return cpulist_next(&cpus, 0);
	return -1;
}

void irq_cpus_of_queues_from(const char *sysfs, const char *procfs, const char *ifname, int *cpus, unsigned count)
{
	struct irq_set irqs;
	struct search search = { .ifname = ifname, .irqs = &irqs, .count = min_u32(count, VL_DEVICE_QUEUES_MAX) };

	if (find_irqs(sysfs, ifname, &irqs))
		read_interrupts(procfs, &search);
	for (unsigned q = 0; q < count; q++)
		cpus[q] = q < search.count && search.queues[q].best != FIT_NOT ? cpu_of_irq(procfs, search.queues[q].irq) : -1;
}

void irq_cpus_of_queues(const char *ifname, int *cpus, unsigned count)
{
	irq_cpus_of_queues_from("/sys", "/proc", ifname, cpus, count);
}
