/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * numbered: frames with numbers, sent, sent back and checked, so that a test sees each one that is lost or overtaken.
 *
 *   numbered echo CARRIER [OPTION...]                   sends back what is addressed to it, on the pair by which it came
 *   numbered send CARRIER --to MAC [--to MAC...] [...]  keeps a few frames of each flow under way until SIGTERM
 *   numbered flood CARRIER --to MAC [...]               sends as fast as the carrier takes them, whatever becomes of the frames
 *
 *   CARRIER: --vhost SOCKET --mac MAC [--node N] [--pairs N]    a guest with its memory on NUMA node N
 *            --packet IFNAME                                    a packet socket
 *   --id N        0 .. 15: tells senders apart
 *   --flows N     flows to each destination (default 8), UDP ports apart; on pair flow % pairs
 *   --window N    frames of a flow under way at most (default 4): nothing has to be dropped for want of room
 *   --length N    bytes of a frame (default 128)
 *   --patience N  seconds without any frame after which those under way are lost (default 20)
 *   --pause N     microseconds between rounds (default 0): less load
 *   --move-to N   an echo's memory goes to that node at SIGUSR1; then it prints "moved"
 *   --other-flow  what an echo sends back has another source port: a device that steers a flow by what it was last sent by
 *                 (tun, Flow Director) goes on as it was when the flow changes its queue
 *   --count N     ends by itself after so many frames (default: SIGTERM only)
 *
 * `echo` prints "serving" when its rings are on. Both print one JSON object at their end. A sender ends with 1 if a frame was lost or out of order, an
 * echo if one was out of order.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "carrier.h"

#define MAGIC 0x6e756d62u
#define IDS 16
#define FLOWS 64 /* of one sender, over all destinations */
#define TARGETS 8
#define HEADERS (14 + 20 + 8)

enum kind { REQUEST = 1, REPLY = 2 };

/* Behind the headers of Ethernet, IPv4 and UDP. */
struct number {
	uint32_t magic;
	uint8_t kind, id, flow, pair; /* pair: by which the request left */
	uint64_t sequence;
};

struct flow {
	uint8_t to[6];
	uint64_t sent, returned;
};

struct options {
	bool echo, flood, other_flow;
	const char *vhost, *packet;
	uint8_t mac[6];
	int node, move_to;
	unsigned pairs, id, flows, window, length, patience, pause, target_count;
	uint8_t targets[TARGETS][6];
	uint64_t count;
};

static volatile sig_atomic_t ended, move_wanted;

void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fprintf(stderr, "numbered: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	exit(2);
}

static void on_end(int signal)
{
	(void)signal;
	ended = 1;
}

static void on_move(int signal)
{
	(void)signal;
	move_wanted = 1;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* --- frames ------------------------------------------------------------------------------------------------------------ */

static uint16_t ip_checksum(const uint8_t *header)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i < 20; i += 2)
		sum += (uint32_t)(header[i] << 8 | header[i + 1]);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static void put16(uint8_t *at, unsigned value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static void make_frame(uint8_t *frame, const struct options *o, const struct flow *flow, unsigned index, unsigned pair)
{
	const struct number number = { .magic = MAGIC, .kind = REQUEST, .id = (uint8_t)o->id, .flow = (uint8_t)index, .pair = (uint8_t)pair,
				       .sequence = flow->sent };
	uint8_t *ip = frame + 14, *udp = ip + 20;

	memset(frame, 0, o->length);
	memcpy(frame, flow->to, 6);
	memcpy(frame + 6, o->mac, 6);
	put16(frame + 12, 0x0800);
	ip[0] = 0x45;
	put16(ip + 2, o->length - 14);
	ip[8] = 64;
	ip[9] = 17;
	memcpy(ip + 12, (uint8_t[]){ 198, 51, 100, (uint8_t)(1 + o->id) }, 4);
	memcpy(ip + 16, (uint8_t[]){ 198, 51, 100, (uint8_t)(100 + flow->to[5]) }, 4);
	put16(ip + 10, ip_checksum(ip));
	put16(udp, 10000 + index);
	put16(udp + 2, 20000 + index);
	put16(udp + 4, o->length - 34);
	memcpy(frame + HEADERS, &number, sizeof(number));
	for (unsigned i = HEADERS + sizeof(number); i < o->length; i++)
		frame[i] = (uint8_t)(flow->sent + i);
}

/* One of ours, whole, with the content that its number says. */
static bool read_frame(const uint8_t *frame, size_t length, struct number *number)
{
	if (length < HEADERS + sizeof(*number))
		return false;
	memcpy(number, frame + HEADERS, sizeof(*number));
	if (number->magic != MAGIC || number->id >= IDS || number->flow >= FLOWS)
		return false;
	for (size_t i = HEADERS + sizeof(*number); i < length; i++)
		if (frame[i] != (uint8_t)(number->sequence + i))
			die("frame %llu of flow %u: byte %zu is wrong", (unsigned long long)number->sequence, number->flow, i);
	return true;
}

static void swap_bytes(uint8_t *a, uint8_t *b, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		const uint8_t t = a[i];

		a[i] = b[i];
		b[i] = t;
	}
}

static void turn_round(uint8_t *frame, struct number *number, bool other_flow)
{
	swap_bytes(frame, frame + 6, 6);
	swap_bytes(frame + 26, frame + 30, 4);
	swap_bytes(frame + 34, frame + 36, 2);
	if (other_flow)
		put16(frame + 34, 30000u + number->flow);
	number->kind = REPLY;
	memcpy(frame + HEADERS, number, sizeof(*number));
}

static void wait_for_frames(const struct carrier *carrier, int timeout_ms)
{
	struct pollfd fds[CARRIER_PAIRS_MAX];

	for (unsigned i = 0; i < carrier->fd_count; i++)
		fds[i] = (struct pollfd){ .fd = carrier->fds[i], .events = POLLIN };
	poll(fds, carrier->fd_count, timeout_ms);
}

/* --- echo -------------------------------------------------------------------------------------------------------------- */

static int echo(struct carrier *carrier, const struct options *o)
{
	static uint64_t next[IDS][FLOWS];
	uint64_t frames = 0, reordered = 0, gaps = 0, by_pair[CARRIER_PAIRS_MAX] = { 0 };
	uint8_t frame[CARRIER_FRAME_MAX];
	struct number number;

	puts("serving");
	fflush(stdout);
	while (!ended) {
		unsigned found = 0;

		if (move_wanted) {
			move_wanted = 0;
			vhost_move(carrier, o->move_to);
			puts("moved");
			fflush(stdout);
		}
		for (unsigned pair = 0; pair < carrier->pairs; pair++) {
			size_t length;

			for (unsigned burst = 0; burst < 64 && (length = carrier->receive(carrier, pair, frame)) > 0; burst++) {
				found++;
				if (memcmp(frame, o->mac, 6) != 0 || !read_frame(frame, length, &number) || number.kind != REQUEST)
					continue;
				if (number.sequence < next[number.id][number.flow])
					reordered++;
				else if (number.sequence > next[number.id][number.flow] && next[number.id][number.flow])
					gaps++;
				next[number.id][number.flow] = number.sequence + 1;
				frames++;
				by_pair[pair]++;
				turn_round(frame, &number, o->other_flow);
				while (!carrier->send(carrier, pair, frame, length) && !ended)
					carrier->flush(carrier);
			}
		}
		carrier->flush(carrier);
		if (!found)
			wait_for_frames(carrier, 1000);
	}
	printf("{\"frames\": %llu, \"reordered\": %llu, \"gaps\": %llu, \"by_pair\": [", (unsigned long long)frames,
	       (unsigned long long)reordered, (unsigned long long)gaps);
	for (unsigned pair = 0; pair < carrier->pairs; pair++)
		printf("%s%llu", pair ? ", " : "", (unsigned long long)by_pair[pair]);
	puts("]}");
	return reordered != 0;
}

/* --- send -------------------------------------------------------------------------------------------------------------- */

struct sender {
	struct flow flows[FLOWS];
	unsigned flow_count;
	uint64_t sent, returned, reordered, other_pair;
};

static void send_more(struct carrier *carrier, const struct options *o, struct sender *s)
{
	uint8_t frame[CARRIER_FRAME_MAX];

	for (unsigned i = 0; i < s->flow_count; i++) {
		struct flow *flow = &s->flows[i];
		const unsigned pair = i % carrier->pairs;

		while (flow->sent - flow->returned < o->window && (!o->count || s->sent < o->count)) {
			make_frame(frame, o, flow, i, pair);
			if (!carrier->send(carrier, pair, frame, o->length))
				break;
			flow->sent++;
			s->sent++;
		}
	}
	carrier->flush(carrier);
}

static unsigned take_back(struct carrier *carrier, const struct options *o, struct sender *s)
{
	uint8_t frame[CARRIER_FRAME_MAX];
	struct number number;
	unsigned found = 0;

	for (unsigned pair = 0; pair < carrier->pairs; pair++) {
		size_t length;

		while ((length = carrier->receive(carrier, pair, frame)) > 0) {
			if (memcmp(frame, o->mac, 6) != 0 || !read_frame(frame, length, &number) || number.kind != REPLY || number.id != o->id ||
			    number.flow >= s->flow_count)
				continue;
			found++;
			s->returned++;
			s->other_pair += number.pair != pair;
			/* Each frame before this one has come back already. */
			if (number.sequence != s->flows[number.flow].returned)
				s->reordered++;
			s->flows[number.flow].returned++;
		}
	}
	carrier->flush(carrier);
	return found;
}

static int send_frames(struct carrier *carrier, const struct options *o)
{
	static struct sender s;
	double last = seconds();
	bool lost = false;

	for (unsigned i = 0; i < o->target_count * o->flows; i++)
		memcpy(s.flows[s.flow_count++].to, o->targets[i / o->flows], 6);
	while (!lost) {
		const bool done = ended || (o->count && s.sent >= o->count);

		if (done && s.returned >= s.sent)
			break;
		if (!done)
			send_more(carrier, o, &s);
		if (take_back(carrier, o, &s))
			last = seconds();
		else
			wait_for_frames(carrier, 100);
		lost = seconds() - last > o->patience;
		if (o->pause)
			usleep(o->pause);
	}
	printf("{\"sent\": %llu, \"returned\": %llu, \"lost\": %lld, \"reordered\": %llu, \"other_pair\": %llu}\n", (unsigned long long)s.sent,
	       (unsigned long long)s.returned, (long long)(s.sent - s.returned), (unsigned long long)s.reordered,
	       (unsigned long long)s.other_pair);
	return s.sent != s.returned || s.reordered;
}

/* --- flood ------------------------------------------------------------------------------------------------------------- */

static int flood(struct carrier *carrier, const struct options *o)
{
	static struct sender s;
	uint8_t frame[CARRIER_FRAME_MAX];

	for (unsigned i = 0; i < o->target_count * o->flows; i++)
		memcpy(s.flows[s.flow_count++].to, o->targets[i / o->flows], 6);
	for (unsigned i = 0; !ended && (!o->count || s.sent < o->count); i = (i + 1) % s.flow_count) {
		const unsigned pair = i % carrier->pairs;

		make_frame(frame, o, &s.flows[i], i, pair);
		while (!carrier->send(carrier, pair, frame, o->length) && !ended) {
			carrier->flush(carrier);
			sched_yield();
		}
		s.flows[i].sent++;
		s.sent++;
		if (s.sent % 32 == 0) {
			carrier->flush(carrier);
			for (unsigned p = 0; p < carrier->pairs; p++)
				while (carrier->receive(carrier, p, frame))
					;
		}
	}
	carrier->flush(carrier);
	printf("{\"sent\": %llu}\n", (unsigned long long)s.sent);
	return 0;
}

/* --- options ----------------------------------------------------------------------------------------------------------- */

static void parse_mac(const char *text, uint8_t mac[6])
{
	if (sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) != 6)
		die("%s: no MAC address", text);
}

static unsigned parse_number(const char *what, const char *text, unsigned least, unsigned most)
{
	char *end;
	const unsigned long value = strtoul(text, &end, 10);

	if (!*text || *end || value < least || value > most)
		die("--%s %s: not %u to %u", what, text, least, most);
	return (unsigned)value;
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option table[] = {
		{ "vhost", 1, NULL, 'v' },  { "packet", 1, NULL, 'p' },	  { "mac", 1, NULL, 'm' },	{ "node", 1, NULL, 'n' },
		{ "pairs", 1, NULL, 'q' },  { "id", 1, NULL, 'i' },	  { "flows", 1, NULL, 'f' },	{ "window", 1, NULL, 'w' },
		{ "length", 1, NULL, 'l' }, { "patience", 1, NULL, 'a' }, { "pause", 1, NULL, 'u' },	{ "to", 1, NULL, 't' },
		{ "count", 1, NULL, 'c' },  { "move-to", 1, NULL, 'o' }, { "other-flow", 0, NULL, 'x' }, { 0 },
	};
	int option;

	*o = (struct options){ .node = -1, .pairs = 1, .flows = 8, .window = 4, .length = 128, .patience = 20 };
	while ((option = getopt_long(argc, argv, "", table, NULL)) != -1)
		switch (option) {
		case 'v': o->vhost = optarg; break;
		case 'p': o->packet = optarg; break;
		case 'm': parse_mac(optarg, o->mac); break;
		case 'n': o->node = (int)parse_number("node", optarg, 0, 63); break;
		case 'o': o->move_to = (int)parse_number("move-to", optarg, 0, 63); break;
		case 'x': o->other_flow = true; break;
		case 'q': o->pairs = parse_number("pairs", optarg, 1, CARRIER_PAIRS_MAX); break;
		case 'i': o->id = parse_number("id", optarg, 0, IDS - 1); break;
		case 'f': o->flows = parse_number("flows", optarg, 1, FLOWS); break;
		case 'w': o->window = parse_number("window", optarg, 1, 64); break;
		case 'l': o->length = parse_number("length", optarg, HEADERS + sizeof(struct number), CARRIER_FRAME_MAX); break;
		case 'a': o->patience = parse_number("patience", optarg, 1, 3600); break;
		case 'u': o->pause = parse_number("pause", optarg, 0, 1000000); break;
		case 'c': o->count = parse_number("count", optarg, 1, 1000000000); break;
		case 't':
			if (o->target_count == TARGETS)
				die("--to: more than %d", TARGETS);
			parse_mac(optarg, o->targets[o->target_count++]);
			break;
		default: exit(2);
		}
	if (optind + 1 != argc || !strchr("esf", argv[optind][0]) || !o->vhost == !o->packet)
		die("wrong use; see the head of numbered.c");
	o->echo = argv[optind][0] == 'e';
	o->flood = argv[optind][0] == 'f';
	if (!o->echo && (!o->target_count || o->target_count * o->flows > FLOWS))
		die("--to, --flows: 1 to %d flows together", FLOWS);
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_end };
	struct carrier *carrier;
	struct options options;
	int code;

	parse(argc, argv, &options);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	if (options.vhost && options.echo)
		sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = on_move }, NULL);
	carrier = options.vhost ? vhost_open(options.vhost, options.node, options.pairs) : packet_open(options.packet, options.mac);
	code = options.echo ? echo(carrier, &options) : options.flood ? flood(carrier, &options) : send_frames(carrier, &options);
	carrier->close(carrier);
	return code;
}
