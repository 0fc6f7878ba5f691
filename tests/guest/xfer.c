/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Moves pseudo-random bytes over TCP and proves that every one arrived; counts what UDP lost or reordered. Linked
 * statically, because it runs in test guests that hold nothing but busybox.
 *
 *   xfer serve PORT                              answers push and pull, for ever, one child per connection
 *   xfer push ADDRESS PORT BYTES                 sends, and waits for the server's verdict
 *   xfer pull ADDRESS PORT BYTES                 receives and verifies
 *   xfer udp-recv PORT SECONDS                   receives until SECONDS without a datagram; prints what arrived
 *   xfer udp-send ADDRESS PORT COUNT RATE SIZE   RATE datagrams a second (0 = as fast as possible)
 *
 * -t SECONDS before the verb bounds each wait (default 60). Exit 0: every byte right; 1: not; 2: wrong use.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHUNK (64 * 1024)
#define MAGIC 0x76686c5846455231ull
#define VERDICT_RIGHT 'R'

enum direction { PUSH = 1, PULL = 2 };

/* First bytes of a connection; both ends are little endian. */
struct request {
	uint64_t magic;
	uint64_t bytes;
	uint64_t seed;
	uint64_t direction;
};

struct datagram {
	uint64_t magic;
	uint64_t sequence;
};

struct stream {
	uint64_t state;
	uint64_t offset;
};

static int timeout_s = 60;

static int fail(const char *what)
{
	fprintf(stderr, "xfer: %s: %s\n", what, strerror(errno));
	return 1;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* splitmix64: eight bytes a step, any seed will do. */
static void stream_fill(struct stream *s, uint64_t *words, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t z = s->state += 0x9e3779b97f4a7c15ull;

		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
		words[i] = z ^ (z >> 31);
	}
}

static int write_exact(int fd, const void *data, size_t length)
{
	const char *p = data;

	while (length) {
		ssize_t n = send(fd, p, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		p += n;
		length -= (size_t)n;
	}
	return 0;
}

/* Returns bytes read: fewer than @length only at the end of the stream; -1 on an error. */
static ssize_t read_exact(int fd, void *data, size_t length)
{
	size_t done = 0;

	while (done < length) {
		ssize_t n = recv(fd, (char *)data + done, length - done, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static int send_stream(int fd, uint64_t bytes, uint64_t seed)
{
	static uint64_t words[CHUNK / 8];
	struct stream s = { .state = seed };

	while (bytes) {
		size_t n = bytes < CHUNK ? (size_t)bytes : CHUNK;

		stream_fill(&s, words, CHUNK / 8);
		if (write_exact(fd, words, n))
			return fail("send");
		bytes -= n;
	}
	return 0;
}

static int verify_stream(int fd, uint64_t bytes, uint64_t seed)
{
	static uint64_t words[CHUNK / 8], got[CHUNK / 8];
	struct stream s = { .state = seed };

	while (s.offset < bytes) {
		size_t want = bytes - s.offset < CHUNK ? (size_t)(bytes - s.offset) : CHUNK;
		ssize_t n = read_exact(fd, got, want);

		if (n < 0)
			return fail("receive");
		stream_fill(&s, words, CHUNK / 8);
		if (memcmp(words, got, (size_t)n)) {
			size_t at = 0;

			while (((char *)words)[at] == ((char *)got)[at])
				at++;
			fprintf(stderr, "xfer: wrong byte at %llu of %llu\n", (unsigned long long)(s.offset + at),
				(unsigned long long)bytes);
			return 1;
		}
		s.offset += (uint64_t)n;
		if ((size_t)n < want) {
			fprintf(stderr, "xfer: stream ended at %llu of %llu\n", (unsigned long long)s.offset,
				(unsigned long long)bytes);
			return 1;
		}
	}
	return 0;
}

static socklen_t parse_address(const char *text, const char *port, struct sockaddr_storage *address)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;

	memset(address, 0, sizeof(*address));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)atoi(port));
		return sizeof(*v4);
	}
	if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)atoi(port));
		return sizeof(*v6);
	}
	fprintf(stderr, "xfer: address '%s': neither IPv4 nor IPv6\n", text);
	exit(2);
}

static void bound_waits(int fd)
{
	struct timeval t = { .tv_sec = timeout_s };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

static int listen_socket(int type, const char *port)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port)) };
	int one = 1, zero = 0, fd = socket(AF_INET6, type | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
	if (bind(fd, (struct sockaddr *)&any, sizeof(any)) || (type == SOCK_STREAM && listen(fd, 16))) {
		close(fd);
		return -1;
	}
	return fd;
}

static int serve_one(int fd)
{
	struct request r;
	char verdict = 'W';
	int result;

	if (read_exact(fd, &r, sizeof(r)) != sizeof(r) || r.magic != MAGIC)
		return 1;
	if (r.direction == PULL)
		return send_stream(fd, r.bytes, r.seed);
	result = verify_stream(fd, r.bytes, r.seed);
	if (!result)
		verdict = VERDICT_RIGHT;
	return write_exact(fd, &verdict, 1) ? 1 : result;
}

static int serve(const char *port)
{
	int fd = listen_socket(SOCK_STREAM, port);

	if (fd < 0)
		return fail("listen");
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

		if (c < 0)
			continue;
		if (fork() == 0) {
			bound_waits(c);
			_exit(serve_one(c));
		}
		close(c);
	}
}

static int transfer(enum direction direction, const char *address, const char *port, const char *bytes)
{
	struct sockaddr_storage to;
	socklen_t length = parse_address(address, port, &to);
	struct request r = { .magic = MAGIC, .bytes = strtoull(bytes, NULL, 0), .direction = direction };
	double start = seconds();
	char verdict = 0;
	int fd, result;

	r.seed = (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
	fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail("socket");
	bound_waits(fd);
	if (connect(fd, (struct sockaddr *)&to, length))
		return fail("connect");
	if (write_exact(fd, &r, sizeof(r)))
		return fail("send");
	if (direction == PULL) {
		result = verify_stream(fd, r.bytes, r.seed);
	} else {
		result = send_stream(fd, r.bytes, r.seed);
		if (!result && (read_exact(fd, &verdict, 1) != 1 || verdict != VERDICT_RIGHT)) {
			fprintf(stderr, "xfer: the receiver found wrong bytes, or went away\n");
			result = 1;
		}
	}
	if (!result)
		printf("%llu bytes right, %.1f MB/s\n", (unsigned long long)r.bytes,
		       (double)r.bytes / 1e6 / (seconds() - start));
	return result;
}

static int udp_send(const char *address, const char *port, uint64_t count, double rate, size_t size)
{
	struct sockaddr_storage to;
	socklen_t length = parse_address(address, port, &to);
	int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	static char buffer[65536];
	double start = seconds();
	int one = 1;

	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &one, sizeof(one));
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, length))
		return fail("connect");
	if (size < sizeof(struct datagram))
		size = sizeof(struct datagram);
	if (size > sizeof(buffer))
		size = sizeof(buffer);
	for (uint64_t i = 0; i < count; i++) {
		struct datagram d = { .magic = MAGIC, .sequence = i };

		if (rate > 0) {
			double wait = start + (double)i / rate - seconds();

			if (wait > 0.0002)
				usleep((useconds_t)(wait * 1e6));
		}
		memcpy(buffer, &d, sizeof(d));
		/* ECONNREFUSED is the echo of an earlier datagram, no reason to stop. */
		while (send(fd, buffer, size, 0) < 0 && (errno == ECONNREFUSED || errno == ENOBUFS || errno == EAGAIN))
			usleep(100);
	}
	printf("sent=%llu\n", (unsigned long long)count);
	return 0;
}

static int udp_recv(const char *port, int idle_s)
{
	uint64_t received = 0, reordered = 0, next = 0, highest = 0;
	int size = 32 << 20, fd = listen_socket(SOCK_DGRAM, port);
	struct timeval t = { .tv_sec = idle_s };
	static char buffer[65536];

	if (fd < 0)
		return fail("listen");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
	for (;;) {
		ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
		struct datagram d;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			break;
		memcpy(&d, buffer, sizeof(d));
		if (n < (ssize_t)sizeof(d) || d.magic != MAGIC)
			continue;
		received++;
		if (d.sequence < next)
			reordered++;
		else
			next = d.sequence + 1;
		if (d.sequence > highest)
			highest = d.sequence;
	}
	printf("received=%llu highest=%llu reordered=%llu\n", (unsigned long long)received, (unsigned long long)highest,
	       (unsigned long long)reordered);
	return received ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "-t")) {
		timeout_s = atoi(argv[2]);
		argc -= 2;
		argv += 2;
	}
	if (argc == 3 && !strcmp(argv[1], "serve"))
		return serve(argv[2]);
	if (argc == 5 && !strcmp(argv[1], "push"))
		return transfer(PUSH, argv[2], argv[3], argv[4]);
	if (argc == 5 && !strcmp(argv[1], "pull"))
		return transfer(PULL, argv[2], argv[3], argv[4]);
	if (argc == 4 && !strcmp(argv[1], "udp-recv"))
		return udp_recv(argv[2], atoi(argv[3]));
	if (argc == 7 && !strcmp(argv[1], "udp-send"))
		return udp_send(argv[2], argv[3], strtoull(argv[4], NULL, 0), atof(argv[5]), (size_t)atol(argv[6]));
	fprintf(stderr, "xfer: wrong use; xfer [-t SECONDS] serve|push|pull|udp-recv|udp-send ... (see xfer.c)\n");
	return 2;
}
