/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The test guest's agent: runs shell commands that arrive on a serial port and sends their output and exit code back.
 * It is the way into a guest that needs no network, which is what is under test.
 *
 *   to the guest    @RUN ID TIMEOUT_SECONDS LENGTH\n<LENGTH bytes of shell>      @PING ID\n
 *   from the guest  @DONE ID STATUS LENGTH\n<LENGTH bytes of output>             @PONG ID BOOT_ID\n
 *
 * Lines that start otherwise are skipped, so that a peer that connects in the middle finds its way in. Output goes
 * through a file: a command that leaves a child in the background holds nobody up.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define COMMAND_MAX (64 * 1024)
#define OUTPUT_MAX (1024 * 1024)
#define OUTPUT_FILE "/tmp/agent.output"
#define STATUS_TIMEOUT 124 /* as timeout(1) */

static int read_exact(int fd, char *buffer, size_t length)
{
	while (length) {
		ssize_t n = read(fd, buffer, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		buffer += n;
		length -= (size_t)n;
	}
	return 0;
}

static int write_exact(int fd, const char *buffer, size_t length)
{
	while (length) {
		ssize_t n = write(fd, buffer, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		buffer += n;
		length -= (size_t)n;
	}
	return 0;
}

/* One line without its newline; an overlong one is cut. */
static int read_line(int fd, char *line, size_t size)
{
	size_t n = 0;
	char c;

	for (;;) {
		if (read_exact(fd, &c, 1))
			return -1;
		if (c == '\n')
			break;
		if (n + 1 < size)
			line[n++] = c;
	}
	line[n] = '\0';
	return 0;
}

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static int run_shell(const char *command, long timeout_s)
{
	struct timespec start, now;
	int status;
	pid_t pid = fork();

	if (pid < 0)
		return 127;
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY);
		int out = open(OUTPUT_FILE, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

		setsid();
		dup2(null, 0);
		dup2(out, 1);
		dup2(out, 2);
		closefrom(3);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		pid_t done = waitpid(pid, &status, WNOHANG);

		if (done == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - start.tv_sec > timeout_s) {
			kill(-pid, SIGKILL);
			waitpid(pid, &status, 0);
			return STATUS_TIMEOUT;
		}
		pause_ms(10);
	}
}

static int answer(int port, unsigned long id, int status)
{
	static char output[OUTPUT_MAX];
	char header[96];
	size_t length = 0;
	int fd = open(OUTPUT_FILE, O_RDONLY);

	if (fd >= 0) {
		ssize_t n;

		while (length < sizeof(output) && (n = read(fd, output + length, sizeof(output) - length)) > 0)
			length += (size_t)n;
		close(fd);
		unlink(OUTPUT_FILE);
	}
	snprintf(header, sizeof(header), "\n@DONE %lu %d %zu\n", id, status, length);
	if (write_exact(port, header, strlen(header)))
		return -1;
	return write_exact(port, output, length);
}

static int pong(int port, unsigned long id)
{
	char text[128], boot_id[64] = "?";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY);

	if (fd >= 0) {
		ssize_t n = read(fd, boot_id, sizeof(boot_id) - 1);

		boot_id[n > 0 ? n : 0] = '\0';
		boot_id[strcspn(boot_id, "\n")] = '\0';
		close(fd);
	}
	snprintf(text, sizeof(text), "\n@PONG %lu %s\n", id, boot_id);
	return write_exact(port, text, strlen(text));
}

static int serve(int port)
{
	static char command[COMMAND_MAX + 1];
	char line[256];
	unsigned long id;
	size_t length;
	long timeout_s;

	for (;;) {
		if (read_line(port, line, sizeof(line)))
			return -1;
		if (sscanf(line, "@PING %lu", &id) == 1) {
			if (pong(port, id))
				return -1;
		} else if (sscanf(line, "@RUN %lu %ld %zu", &id, &timeout_s, &length) == 3 && length <= COMMAND_MAX) {
			if (read_exact(port, command, length))
				return -1;
			command[length] = '\0';
			if (answer(port, id, run_shell(command, timeout_s)))
				return -1;
		}
	}
}

int main(int argc, char **argv)
{
	struct termios mode;
	int port;

	if (argc != 2) {
		fprintf(stderr, "agent: wrong use; agent SERIAL-PORT\n");
		return 2;
	}
	port = open(argv[1], O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (port < 0) {
		fprintf(stderr, "agent: %s: %s; name a serial port\n", argv[1], strerror(errno));
		return 1;
	}
	if (!tcgetattr(port, &mode)) {
		cfmakeraw(&mode);
		cfsetspeed(&mode, B115200);
		mode.c_cflag |= CLOCAL;
		tcsetattr(port, TCSANOW, &mode);
	}
	while (!serve(port))
		;
	fprintf(stderr, "agent: %s: %s; the port went away\n", argv[1], strerror(errno));
	return 1;
}
