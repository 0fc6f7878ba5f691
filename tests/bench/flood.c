/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How many frames a backend moves between two guests, both ways at once. One thread plays both, polls, and never waits, so that the backend
 * is what is measured. Several backends run side by side: all but one are stopped (SIGSTOP), and the turns go forth and back
 * (A B B A ...), so that what else the machine does meets all of them alike.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "frontend.h"
#include "measure.h"

#define BACKENDS_MAX 6
#define TURNS_MAX 512
#define BURST 32
#define HEAD 56		 /* Ethernet, IPv4, UDP, sequence number, rounded */
#define SEQUENCE_AT 42
#define DRAIN_NS 200000000ull
#define QUIET_NS 2000000ull

struct side {
	struct frontend frontend;
	uint8_t head[HEAD];
	uint64_t sequence; /* of the next frame sent */
	uint64_t expected; /* of the next frame received */
	uint64_t received, lost, reordered;
};

struct backend {
	char name[32];
	pid_t pid;
	struct side sides[2];
	double rates[TURNS_MAX], cpu[TURNS_MAX]; /* frames and CPU seconds per second */
	unsigned turns;
};

struct options {
	unsigned turns, turn_ms, length, ring;
	int cpu;
	bool event_index, mergeable, huge;
};

static const char usage[] =
	"Usage: bench_flood [OPTIONS] NAME=PID,SOCKET,SOCKET...\n"
	"Guests on the two sockets of each backend send to one another as fast as they can. One JSON object on standard output.\n"
	"The frames go from 02:56:4c:00:00:00 to 02:56:4c:00:00:01 and back.\n\n"
	"  --turns N        turns of each backend (default 10)\n"
	"  --turn-ms N      length of a turn, of which a fifth is warm-up (default 500)\n"
	"  --length N       bytes of a frame, 60 to 1514 (default 64)\n"
	"  --ring N         descriptors of a ring (default 256)\n"
	"  --cpu N          run on this CPU\n"
	"  --no-event-index, --no-mergeable, --no-huge\n";

/* Stopped backends must not outlive us stopped: whoever ends them waits for them. The one thing that has to be reached at exit. */
static pid_t stopped[BACKENDS_MAX];

static void wake_all(void)
{
	for (unsigned i = 0; i < BACKENDS_MAX; i++)
		if (stopped[i])
			kill(stopped[i], SIGCONT);
}

static void on_signal(int signal)
{
	wake_all();
	_exit(128 + signal);
}

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
	fprintf(stderr, "bench_flood: %s: %s\n", what, why);
	exit(1);
}

/* UDP from guest @from to guest 1 - @from. */
static void make_head(uint8_t *head, unsigned from, unsigned length)
{
	const uint16_t ip_length = (uint16_t)(length - 14), udp_length = (uint16_t)(length - 34);
	uint32_t sum = 0;

	memset(head, 0, HEAD);
	memcpy(head, "\x02\x56\x4c\0\0", 5);
	head[5] = (uint8_t)(1 - from);
	memcpy(head + 6, "\x02\x56\x4c\0\0", 5);
	head[11] = (uint8_t)from;
	memcpy(head + 12, "\x08\0\x45", 3);
	head[16] = (uint8_t)(ip_length >> 8);
	head[17] = (uint8_t)ip_length;
	memcpy(head + 22, "\x40\x11", 2);
	memcpy(head + 26, "\xc6\x12\0\0\xc6\x12\0\0", 8); /* 198.18.0.0/15 is there for benches (RFC 2544) */
	head[29] = (uint8_t)(from + 1);
	head[33] = (uint8_t)(2 - from);
	memcpy(head + 34, "\x10\0\x10\0", 4);
	head[38] = (uint8_t)(udp_length >> 8);
	head[39] = (uint8_t)udp_length;
	for (unsigned i = 14; i < 34; i += 2)
		sum += (uint32_t)head[i] << 8 | head[i + 1];
	sum = ~((sum & 0xffff) + (sum >> 16));
	head[24] = (uint8_t)(sum >> 8);
	head[25] = (uint8_t)sum;
}

static void send_burst(struct side *side, unsigned length)
{
	struct frontend_ring *r = &side->frontend.pair[0].from_guest;
	uint8_t head[HEAD];
	unsigned count;

	frontend_reap(r);
	count = min_u32(frontend_room(r), BURST);
	memcpy(head, side->head, HEAD);
	for (unsigned i = 0; i < count; i++) {
		uint8_t *frame = frontend_frame_ahead(r, 0);

		memcpy(head + SEQUENCE_AT, &side->sequence, sizeof(side->sequence));
		side->sequence++;
		memcpy(frame, head, HEAD);
		frontend_offer(r, length);
	}
	frontend_publish(r);
}

static unsigned receive_burst(struct side *side, unsigned length_sent)
{
	struct frontend_ring *r = &side->frontend.pair[0].to_guest;
	const unsigned count = min_u32(frontend_ready(r), 2 * BURST);

	for (unsigned i = 0; i < count; i++) {
		uint32_t length;
		const uint16_t id = frontend_take(r, &length);
		const uint8_t *frame = frontend_received(r, id, &length);
		uint64_t sequence;

		memcpy(&sequence, frame + SEQUENCE_AT, sizeof(sequence));
		if (unlikely(length != length_sent || frame[11] == side->head[11]))
			die("a frame arrived", "that nobody sent");
		if (unlikely(sequence < side->expected)) {
			side->reordered++;
			continue;
		}
		side->lost += sequence - side->expected;
		side->expected = sequence + 1;
	}
	side->received += count;
	r->avail_next += count;
	frontend_publish(r);
	return count;
}

static void drive(struct backend *b, unsigned length, uint64_t until)
{
	while (now_ns() < until)
		for (unsigned turns = 0; turns < 16; turns++)
			for (unsigned i = 0; i < 2; i++) {
				send_burst(&b->sides[i], length);
				receive_burst(&b->sides[i], length);
			}
}

/* So that the next turn does not begin with what this one left. */
static void drain(struct backend *b, unsigned length)
{
	const uint64_t start = now_ns();
	uint64_t quiet_since = start, now;

	while ((now = now_ns()) - quiet_since < QUIET_NS && now - start < DRAIN_NS)
		for (unsigned i = 0; i < 2; i++)
			if (receive_burst(&b->sides[i], length))
				quiet_since = now;
}

static void take_turn(struct backend *b, const struct options *o)
{
	const uint64_t turn_ns = (uint64_t)o->turn_ms * 1000000;
	uint64_t start, elapsed, received, cpu;

	kill(b->pid, SIGCONT);
	drive(b, o->length, now_ns() + turn_ns / 5);
	cpu = process_cpu_ns(b->pid);
	received = b->sides[0].received + b->sides[1].received;
	start = now_ns();
	drive(b, o->length, start + turn_ns - turn_ns / 5);
	elapsed = now_ns() - start;
	b->rates[b->turns] = (double)(b->sides[0].received + b->sides[1].received - received) * 1e9 / (double)elapsed;
	b->cpu[b->turns++] = (double)(process_cpu_ns(b->pid) - cpu) / (double)elapsed;
	drain(b, o->length);
	kill(b->pid, SIGSTOP);
}

static void open_backend(struct backend *b, char *text, const struct options *o)
{
	char *pid = strchr(text, '='), *sockets[2];
	struct error error;

	if (!pid || !(sockets[0] = strchr(pid, ',')) || !(sockets[1] = strchr(sockets[0] + 1, ',')))
		die(text, "not NAME=PID,SOCKET,SOCKET");
	*pid++ = *sockets[0]++ = *sockets[1]++ = '\0';
	copy_string(b->name, sizeof(b->name), text);
	b->pid = atoi(pid);
	for (unsigned i = 0; i < 2; i++) {
		const struct frontend_setup setup = {
			.socket = sockets[i],
			.pairs = 1,
			.ring_size = o->ring,
			.event_index = o->event_index,
			.mergeable = o->mergeable,
			.huge = o->huge,
		};

		if (frontend_open(&b->sides[i].frontend, &setup, &error))
			die(b->name, error.text);
		make_head(b->sides[i].head, i, o->length);
	}
}

static void report(struct backend *backends, unsigned count, const struct options *o)
{
	printf("{\"length\": %u, \"ring\": %u, \"huge\": %s, \"backends\": [", o->length, o->ring,
	       backends[0].sides[0].frontend.huge ? "true" : "false");
	for (unsigned i = 0; i < count; i++) {
		struct backend *b = &backends[i];
		const struct side *s = b->sides;

		printf("%s{\"name\": \"%s\", \"received\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"reordered\": %" PRIu64 ", \"rates\": [", i ? ", " : "",
		       b->name, s[0].received + s[1].received, s[0].lost + s[1].lost, s[0].reordered + s[1].reordered);
		for (unsigned turn = 0; turn < b->turns; turn++)
			printf("%s%.0f", turn ? ", " : "", b->rates[turn]);
		printf("], \"frames_per_second\": %.0f", median(b->rates, b->turns));
		printf(", \"cpu\": %.3f}", median(b->cpu, b->turns));
	}
	printf("]}\n");
}

static unsigned number(const char *option, const char *text, uint64_t minimum, uint64_t maximum)
{
	uint64_t value;

	if (!number_parse(text, minimum, maximum, &value))
		die(option, "out of range; see --help");
	return (unsigned)value;
}

static void parse(int argc, char **argv, struct options *o)
{
	enum { TURNS = 256, TURN_MS, LENGTH, RING, CPU, NO_EVENT_INDEX, NO_MERGEABLE, NO_HUGE, HELP };
	static const struct option options[] = {
		{"turns", required_argument, NULL, TURNS},     {"turn-ms", required_argument, NULL, TURN_MS},
		{"length", required_argument, NULL, LENGTH},   {"ring", required_argument, NULL, RING},
		{"cpu", required_argument, NULL, CPU},	       {"no-event-index", no_argument, NULL, NO_EVENT_INDEX},
		{"no-mergeable", no_argument, NULL, NO_MERGEABLE}, {"no-huge", no_argument, NULL, NO_HUGE},
		{"help", no_argument, NULL, HELP},	       {0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (option) {
		case TURNS: o->turns = number("--turns", optarg, 1, TURNS_MAX); break;
		case TURN_MS: o->turn_ms = number("--turn-ms", optarg, 10, 60000); break;
		case LENGTH: o->length = number("--length", optarg, 60, 1514); break;
		case RING: o->ring = number("--ring", optarg, 2, FRONTEND_RING_MAX); break;
		case CPU: o->cpu = (int)number("--cpu", optarg, 0, 1023); break;
		case NO_EVENT_INDEX: o->event_index = false; break;
		case NO_MERGEABLE: o->mergeable = false; break;
		case NO_HUGE: o->huge = false; break;
		case HELP: fputs(usage, stdout); exit(0);
		default: fputs(usage, stderr); exit(2);
		}
	}
	if (optind == argc || argc - optind > BACKENDS_MAX) {
		fputs(usage, stderr);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	static struct backend backends[BACKENDS_MAX];
	struct options o = {.turns = 10, .turn_ms = 500, .length = 64, .ring = 256, .cpu = -1, .event_index = true, .mergeable = true, .huge = true};
	unsigned count;

	parse(argc, argv, &o);
	count = (unsigned)(argc - optind);
	atexit(wake_all);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	if (o.cpu >= 0 && !pin_to_cpu(o.cpu))
		die("--cpu", strerror(errno));
	for (unsigned i = 0; i < count; i++) {
		open_backend(&backends[i], argv[optind + (int)i], &o);
		stopped[i] = backends[i].pid;
		kill(backends[i].pid, SIGSTOP);
	}
	for (unsigned turn = 0; turn < o.turns; turn++)
		for (unsigned i = 0; i < count; i++)
			take_turn(&backends[turn % 2 ? count - 1 - i : i], &o);
	wake_all();
	report(backends, count, &o);
	for (unsigned i = 0; i < count; i++)
		for (unsigned s = 0; s < 2; s++)
			frontend_close(&backends[i].sides[s].frontend);
	return 0;
}
