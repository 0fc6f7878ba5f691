/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Plays guests, and the remote host behind the wire, against a running backend: one process a guest, one thread ("vcpuN") a queue pair,
 * all blocking as guests do. Runs the works given one after the other over the same connections, and tells for each what came
 * through, how long answers took, and what CPU time the backend spent on it. See traffic.h.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cpulist.h"
#include "ends.h"

#define WORKS_MAX 512
#define PAIRS_MAX 8
#define WIRE_MAC_LAST 0xfe

struct options {
	const char *sockets; /* with a %u for the guest's number */
	unsigned guests, pairs, ring;
	bool event_index, mergeable, poll, huge;
	struct cpulist cpus;
	int wire_cpu;
	char wire_namespace[128], wire_ifname[16];
	unsigned wire_queues;
	double seconds, warm_up;
	pid_t daemon;
	struct work works[WORKS_MAX];
	char *work_texts[WORKS_MAX];
	unsigned work_count;
};

struct generator {
	struct options options;
	struct traffic *traffic;
	pid_t children[GUESTS_MAX + 1];
	unsigned child_count, end_count;
	int wake_fds[ENDS_MAX];
};

static const char usage[] =
	"Usage: bench_generator --sockets PATTERN [OPTIONS] WORK...\n"
	"Guest K connects to PATTERN with %u replaced by K; its MAC address is 02:56:4c:00:00:K (hexadecimal). One JSON object a work.\n\n"
	"WORK: rr|stream,guest|to-guest|from-guest,LENGTH,IN-FLIGHT[,FLOWS]\n"
	"  rr,guest,64,1          guests ask one another in pairs, 1 request in flight, 64-byte frames\n"
	"  rr,to-guest,64,16      the wire asks guests        (from-guest: guests ask the wire)\n"
	"  stream,guest,1500,64   guests send to one another in pairs, both ways, at most 64 frames unacknowledged\n"
	"  idle                   nobody says anything\n"
	"  FLOWS of each queue pair, or to each guest's (default 1)\n\n"
	"  --guests N             (default 2)\n"
	"  --pairs N              queue pairs of each, a thread to each (default 1)\n"
	"  --ring N               descriptors of a ring (default 256)\n"
	"  --cpus LIST            vCPU k of all runs on the k-th of these only, round about (default: anywhere)\n"
	"  --wire NETNS,IFNAME,QUEUES   the remote host's device; its name, namespace file, and queues of both kinds\n"
	"  --wire-cpu N\n"
	"  --seconds S, --warm-up S     of each work (default 1 and 0.2)\n"
	"  --daemon PID           whose CPU time is measured\n"
	"  --poll                 never block\n"
	"  --no-event-index, --no-mergeable, --huge\n";

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench_generator: %s: %s\n", what, why);
	exit(1);
}

/* --- options ---------------------------------------------------------------------------------------------------------- */

static unsigned number(const char *option, const char *text, uint64_t minimum, uint64_t maximum)
{
	uint64_t value;

	if (!text || !number_parse(text, minimum, maximum, &value))
		die(option, "out of range; see --help");
	return (unsigned)value;
}

static double real(const char *option, const char *text)
{
	char *end;
	const double value = strtod(text, &end);

	if (*end || value < 0 || value > 3600)
		die(option, "out of range; see --help");
	return value;
}

static struct work parse_work(const char *text)
{
	static const char *const kinds[] = {[WORK_REQUEST_RESPONSE] = "rr", [WORK_STREAM] = "stream"};
	static const char *const paths[] = {
		[PATH_GUEST_TO_GUEST] = "guest", [PATH_WIRE_TO_GUEST] = "to-guest", [PATH_GUEST_TO_WIRE] = "from-guest"};
	char copy[128], *rest = copy, *field;
	struct work work = {.flows = 1};
	int path = -1;

	if (!strcmp(text, "idle"))
		return (struct work){.kind = WORK_STREAM, .length = HEAD_LENGTH, .in_flight = 1};
	copy_string(copy, sizeof(copy), text);
	field = strsep(&rest, ",");
	for (unsigned i = WORK_REQUEST_RESPONSE; i < ARRAY_SIZE(kinds); i++)
		if (!strcmp(field, kinds[i]))
			work.kind = i;
	field = strsep(&rest, ",");
	for (unsigned i = 0; field && i < ARRAY_SIZE(paths); i++)
		if (!strcmp(field, paths[i]))
			path = (int)i;
	if (work.kind == WORK_END || path < 0)
		die(text, "neither rr nor stream, or on no path; see --help");
	work.path = (enum work_path)path;
	work.length = number(text, strsep(&rest, ","), HEAD_LENGTH, FRAME_LENGTH_LARGEST);
	work.in_flight = number(text, strsep(&rest, ","), 1, 1024);
	if (rest)
		work.flows = number(text, strsep(&rest, ","), 1, 64);
	return work;
}

static void parse_wire(struct options *o, char *text)
{
	char *namespace = strsep(&text, ","), *ifname = strsep(&text, ",");

	if (!ifname || !copy_string(o->wire_namespace, sizeof(o->wire_namespace), namespace) ||
	    !copy_string(o->wire_ifname, sizeof(o->wire_ifname), ifname))
		die("--wire", "not NETNS,IFNAME,QUEUES");
	o->wire_queues = number("--wire", text, 1, 16);
}

static void parse(int argc, char **argv, struct options *o)
{
	enum { SOCKETS = 256, GUESTS, PAIRS, RING, CPUS, WIRE, WIRE_CPU, SECONDS, WARM_UP, DAEMON, POLL, NO_EVENT_INDEX, NO_MERGEABLE, HUGE_PAGES, HELP };
	static const struct option options[] = {
		{"sockets", required_argument, NULL, SOCKETS}, {"guests", required_argument, NULL, GUESTS},
		{"pairs", required_argument, NULL, PAIRS},     {"ring", required_argument, NULL, RING},
		{"cpus", required_argument, NULL, CPUS},       {"wire", required_argument, NULL, WIRE},
		{"wire-cpu", required_argument, NULL, WIRE_CPU}, {"seconds", required_argument, NULL, SECONDS},
		{"warm-up", required_argument, NULL, WARM_UP}, {"daemon", required_argument, NULL, DAEMON},
		{"poll", no_argument, NULL, POLL},	       {"no-event-index", no_argument, NULL, NO_EVENT_INDEX},
		{"no-mergeable", no_argument, NULL, NO_MERGEABLE}, {"huge", no_argument, NULL, HUGE_PAGES},
		{"help", no_argument, NULL, HELP},	       {0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case SOCKETS: o->sockets = optarg; break;
		case GUESTS: o->guests = number("--guests", optarg, 1, GUESTS_MAX); break;
		case PAIRS: o->pairs = number("--pairs", optarg, 1, PAIRS_MAX); break;
		case RING: o->ring = number("--ring", optarg, 2, FRONTEND_RING_MAX); break;
		case CPUS:
			if (!cpulist_parse(optarg, &o->cpus, NULL))
				die("--cpus", "not a list of CPUs like 0-3,8");
			break;
		case WIRE: parse_wire(o, optarg); break;
		case WIRE_CPU: o->wire_cpu = (int)number("--wire-cpu", optarg, 0, CPUS_MAX - 1); break;
		case SECONDS: o->seconds = real("--seconds", optarg); break;
		case WARM_UP: o->warm_up = real("--warm-up", optarg); break;
		case DAEMON: o->daemon = (pid_t)number("--daemon", optarg, 1, 1 << 22); break;
		case POLL: o->poll = true; break;
		case NO_EVENT_INDEX: o->event_index = false; break;
		case NO_MERGEABLE: o->mergeable = false; break;
		case HUGE_PAGES: o->huge = true; break;
		case HELP: fputs(usage, stdout); exit(0);
		default: fputs(usage, stderr); exit(2);
		}
	}
	o->work_count = (unsigned)(argc - optind);
	if (!o->sockets || !o->work_count || o->work_count > WORKS_MAX) {
		fputs(usage, stderr);
		exit(2);
	}
	for (unsigned i = 0; i < o->work_count; i++) {
		o->work_texts[i] = argv[optind + (int)i];
		o->works[i] = parse_work(o->work_texts[i]);
		if (o->works[i].path != PATH_GUEST_TO_GUEST && !o->wire_queues)
			die(o->work_texts[i], "needs a wire; give --wire");
		if (o->works[i].path == PATH_GUEST_TO_GUEST && o->works[i].flows && o->guests < 2)
			die(o->work_texts[i], "needs two guests; give --guests");
	}
}

/* "%u" in the pattern becomes the guest's number. */
static void socket_of(const struct options *o, unsigned guest, char path[256])
{
	const char *at = strstr(o->sockets, "%u");

	if (!at)
		die("--sockets", "no %u in it");
	snprintf(path, 256, "%.*s%u%s", (int)(at - o->sockets), o->sockets, guest, at + 2);
}

/* --- children --------------------------------------------------------------------------------------------------------- */

static int cpu_of_vcpu(const struct options *o, unsigned number_of_all)
{
	unsigned left = cpulist_count(&o->cpus) ? number_of_all % cpulist_count(&o->cpus) : 0;
	int cpu = cpulist_next(&o->cpus, 0);

	while (left-- && cpu >= 0)
		cpu = cpulist_next(&o->cpus, (unsigned)cpu + 1);
	return cpu;
}

static void init_end(struct generator *g, struct end *end, unsigned end_number, struct end *const *siblings, unsigned sibling_first)
{
	end->traffic = g->traffic;
	end->number = end_number;
	end->wake_fd = g->wake_fds[end_number];
	end->siblings = siblings;
	end->sibling_first = sibling_first;
}

static void *vcpu_main(void *argument)
{
	traffic_serve(argument);
	return NULL;
}

/* The backend tells a guest's vCPUs by the names of their threads, as hypervisors give them. */
static void start_vcpu(const struct options *o, pthread_t *thread, struct end *end, unsigned index)
{
	char name[16];
	pthread_attr_t attributes;
	const int cpu = cpu_of_vcpu(o, end->number);

	pthread_attr_init(&attributes);
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
	}
	errno = pthread_create(thread, &attributes, vcpu_main, end);
	if (errno)
		die("vCPU", strerror(errno));
	snprintf(name, sizeof(name), "vcpu%u", index);
	pthread_setname_np(*thread, name);
	pthread_attr_destroy(&attributes);
}

static void play_guest(struct generator *g, unsigned guest)
{
	const struct options *o = &g->options;
	static struct frontend frontend;
	static struct guest_end ends[PAIRS_MAX];
	static struct end *siblings[PAIRS_MAX];
	pthread_t threads[PAIRS_MAX];
	char path[256];
	const struct frontend_setup setup = {
		.socket = path,
		.pairs = o->pairs,
		.ring_size = o->ring,
		.event_index = o->event_index,
		.mergeable = o->mergeable,
		.huge = o->huge,
		.call_fds = &g->wake_fds[guest * o->pairs],
	};
	struct error error;

	socket_of(o, guest, path);
	if (frontend_open(&frontend, &setup, &error))
		die(path, error.text);
	for (unsigned p = 0; p < o->pairs; p++) {
		siblings[p] = &ends[p].end;
		init_end(g, siblings[p], guest * o->pairs + p, siblings, guest * o->pairs);
		siblings[p]->shared = o->pairs > 1;
		guest_end_init(&ends[p], &frontend.pair[p], o->poll);
	}
	for (unsigned p = 0; p < o->pairs; p++)
		start_vcpu(o, &threads[p], &ends[p].end, p);
	for (unsigned p = 0; p < o->pairs; p++)
		pthread_join(threads[p], NULL);
	frontend_close(&frontend);
}

static void play_wire(struct generator *g)
{
	const struct options *o = &g->options;
	const unsigned number_of_wire = g->end_count - 1;
	struct error error;
	struct wire_end *wire;
	struct end *end;

	prctl(PR_SET_NAME, "wire");
	if (o->wire_cpu >= 0 && !pin_to_cpu(o->wire_cpu))
		die("--wire-cpu", strerror(errno));
	wire = wire_end_open(o->wire_namespace, o->wire_ifname, o->wire_queues, o->poll, &error);
	if (!wire)
		die("--wire", error.text);
	end = wire_end_of(wire);
	init_end(g, end, number_of_wire, &end, number_of_wire);
	traffic_serve(end);
	wire_end_close(wire);
}

static void start_child(struct generator *g, bool is_wire)
{
	const unsigned number_of_child = g->child_count;
	const pid_t parent = getpid(), child = fork();

	if (child < 0)
		die("fork", strerror(errno));
	if (child) {
		g->children[g->child_count++] = child;
		return;
	}
	signal(SIGCHLD, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	if (is_wire)
		play_wire(g);
	else
		play_guest(g, number_of_child);
	_exit(0);
}

/* --- parent ----------------------------------------------------------------------------------------------------------- */

/* All others wait at the barrier for ever if one is gone; they end with us. */
static void on_child_gone(int signal)
{
	static const char text[] = "bench_generator: a guest or the wire ended early\n";

	_exit(write(STDERR_FILENO, text, sizeof(text) - 1) < 0 ? 2 : 1);
}

static void mac_of_guest(unsigned guest, uint8_t mac[6])
{
	memcpy(mac, "\x02\x56\x4c\0\0", 5);
	mac[5] = (uint8_t)guest;
}

/* The flows of a work: of every queue pair, or to every guest. */
static void add_flows(struct generator *g, const struct work *work)
{
	const struct options *o = &g->options;
	const uint8_t wire_mac[6] = {0x02, 0x56, 0x4c, 0, 1, WIRE_MAC_LAST};
	const uint16_t wire = (uint16_t)(g->end_count - 1);

	g->traffic->flow_count = 0;
	for (unsigned guest = 0; guest < o->guests; guest++) {
		const bool paired = (guest ^ 1) < o->guests, asks = work->kind == WORK_STREAM || !(guest & 1);
		uint8_t mac[6], peer_mac[6];

		mac_of_guest(guest, mac);
		mac_of_guest(guest ^ 1, peer_mac);
		for (unsigned f = 0; f < work->flows * o->pairs; f++) {
			const uint16_t end = (uint16_t)(guest * o->pairs + f % o->pairs);

			if (g->traffic->flow_count == FLOWS_MAX)
				die("flows", "too many; ask for fewer");
			if (work->path == PATH_WIRE_TO_GUEST)
				traffic_add_flow(g->traffic, wire, wire_mac, mac);
			else if (work->path == PATH_GUEST_TO_WIRE)
				traffic_add_flow(g->traffic, end, mac, wire_mac);
			else if (paired && asks)
				traffic_add_flow(g->traffic, end, mac, peer_mac);
		}
	}
}

struct sums {
	uint64_t transactions, frames, bytes, lost, reordered, no_room, home, astray, sleeps, restarts;
	uint64_t daemon_ns, generator_ns, at_ns;
	struct machine_cpu machine;
};

static struct sums sum_up(const struct generator *g)
{
	struct sums s = {0};

	for (unsigned e = 0; e < g->end_count; e++) {
		const volatile struct end_counters *c = &g->traffic->counters[e];

		s.transactions += c->transactions;
		s.frames += c->frames;
		s.bytes += c->bytes;
		s.lost += c->lost;
		s.reordered += c->reordered;
		s.no_room += c->no_room;
		s.home += c->home;
		s.astray += c->astray;
		s.sleeps += c->sleeps;
		s.restarts += c->restarts;
	}
	for (unsigned i = 0; i < g->child_count; i++)
		s.generator_ns += process_cpu_ns(g->children[i]);
	if (g->options.daemon)
		s.daemon_ns = process_cpu_ns(g->options.daemon);
	machine_cpu_read(&s.machine);
	s.at_ns = now_ns();
	return s;
}

static void report(const struct generator *g, const char *text, const struct work *work, const struct sums *a, const struct sums *b)
{
	static struct histogram latency;
	const double seconds = (double)(b->at_ns - a->at_ns) / 1e9, per_cent = 100 / seconds / 1e9;
	const bool stream = work->kind == WORK_STREAM;
	const double frames = (double)(stream ? b->frames - a->frames : 2 * (b->transactions - a->transactions));
	const double bytes = stream ? (double)(b->bytes - a->bytes) : frames * work->length;
	const double score = stream ? frames / seconds : frames / 2 / seconds;
	const double daemon_ns = (double)(b->daemon_ns - a->daemon_ns);

	memset(&latency, 0, sizeof(latency));
	for (unsigned e = 0; e < g->end_count; e++)
		histogram_merge(&latency, &g->traffic->counters[e].latency);
	printf("{\"work\": \"%s\", \"guests\": %u, \"pairs\": %u, \"flows\": %u, \"seconds\": %.3f, \"score\": %.1f, \"bytes_per_second\": %.0f", text,
	       g->options.guests, g->options.pairs, g->traffic->flow_count, seconds, score, bytes / seconds);
	printf(", \"p50_us\": %.2f, \"p99_us\": %.2f, \"p999_us\": %.2f", histogram_quantile(&latency, 0.5) / 1e3,
	       histogram_quantile(&latency, 0.99) / 1e3, histogram_quantile(&latency, 0.999) / 1e3);
	printf(", \"daemon_cpu\": %.3f, \"generator_cpu\": %.3f, \"machine_cpu\": %.2f, \"stolen_cpu\": %.2f", daemon_ns * per_cent,
	       (double)(b->generator_ns - a->generator_ns) * per_cent, (double)(b->machine.busy - a->machine.busy) * per_cent,
	       (double)(b->machine.stolen - a->machine.stolen) * per_cent);
	printf(", \"ns_per_frame\": %.2f, \"ns_per_byte\": %.5f", frames ? daemon_ns / frames : 0, bytes ? daemon_ns / bytes : 0);
	printf(", \"lost\": %" PRIu64 ", \"reordered\": %" PRIu64 ", \"no_room\": %" PRIu64 ", \"restarts\": %" PRIu64 ", \"sleeps\": %" PRIu64
	       ", \"home\": %" PRIu64 ", \"astray\": %" PRIu64 "}\n",
	       b->lost - a->lost, b->reordered - a->reordered, b->no_room - a->no_room, b->restarts - a->restarts, b->sleeps - a->sleeps,
	       b->home - a->home, b->astray - a->astray);
	fflush(stdout);
}

static void let_run(struct generator *g, double seconds)
{
	const uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
	uint64_t now;

	while ((now = now_ns()) < end) {
		const uint64_t left_us = (end - now) / 1000 + 1;

		usleep(left_us < LOOK_MS * 1000 ? (useconds_t)left_us : LOOK_MS * 1000);
		if (left_us >= LOOK_MS * 1000)
			traffic_look_after(g->traffic, g->wake_fds);
	}
}

static void run_work(struct generator *g, const char *text, const struct work *work)
{
	struct traffic *t = g->traffic;
	struct sums before, after;

	t->work = *work;
	t->epoch++;
	add_flows(g, work);
	memset(t->counters, 0, sizeof(t->counters));
	atomic_store(&t->stop, false);
	pthread_barrier_wait(&t->barrier);
	let_run(g, g->options.warm_up);
	atomic_store(&t->measuring, true);
	before = sum_up(g);
	let_run(g, g->options.seconds);
	after = sum_up(g);
	atomic_store(&t->measuring, false);
	atomic_store(&t->stop, true);
	for (unsigned e = 0; e < g->end_count; e++)
		eventfd_write(g->wake_fds[e], 1);
	pthread_barrier_wait(&t->barrier);
	report(g, text, work, &before, &after);
}

static void prepare(struct generator *g)
{
	const struct options *o = &g->options;
	pthread_barrierattr_t attributes;

	g->end_count = o->guests * o->pairs + (o->wire_queues ? 1 : 0);
	if (g->end_count > ENDS_MAX)
		die("--guests and --pairs", "too many queue pairs");
	g->traffic = mmap(NULL, sizeof(*g->traffic), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (g->traffic == MAP_FAILED)
		die("shared memory", strerror(errno));
	pthread_barrierattr_init(&attributes);
	pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&g->traffic->barrier, &attributes, g->end_count + 1);
	for (unsigned e = 0; e < g->end_count; e++) {
		g->wake_fds[e] = eventfd(0, 0);
		if (g->wake_fds[e] < 0)
			die("eventfd", strerror(errno));
	}
}

int main(int argc, char **argv)
{
	static struct generator g = {.options = {.guests = 2, .pairs = 1, .ring = 256, .event_index = true, .mergeable = true, .wire_cpu = -1,
						 .seconds = 1, .warm_up = 0.2}};

	parse(argc, argv, &g.options);
	prepare(&g);
	signal(SIGCHLD, on_child_gone);
	for (unsigned guest = 0; guest < g.options.guests; guest++)
		start_child(&g, false);
	if (g.options.wire_queues)
		start_child(&g, true);
	for (unsigned i = 0; i < g.options.work_count; i++)
		run_work(&g, g.options.work_texts[i], &g.options.works[i]);
	signal(SIGCHLD, SIG_DFL);
	g.traffic->work.kind = WORK_END;
	pthread_barrier_wait(&g.traffic->barrier);
	while (wait(NULL) > 0)
		;
	return 0;
}
