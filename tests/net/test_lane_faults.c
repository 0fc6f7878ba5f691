/* SPDX-License-Identifier: BSD-2-Clause */
/* What goes wrong around lanes: links down and gone, sockets of the dead, what the device or the limits do not allow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cap-ng.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/util.h"
#include "lane_bench.h"
#include "../lib/entries.h"

/* The other end or the device itself goes down under traffic: calls stay bounded, frames are kept or counted, traffic comes back. */
static void device_down(const char *down, const char *up, bool refused)
{
	struct bench *b = bench_open(1, 2, 1500, false);
	uint8_t frame[RIG_FRAME_MAX];
	uint64_t kicks, offered[2] = {0};
	unsigned worker;
	uint32_t sequence, length;

	for (unsigned round = 0; round < 200; round++) {
		if (round == 20)
			rig_command(down);
		for (worker = 0; worker < 2; worker++) {
			kicks = b->ports[worker]->kicks;
			offered[worker] += 64;
			bench_send_frames(b, worker, round, 64, 256);
			lane_flush(b->ports[worker]);
			lane_settle(b->ports[worker]);
			assert_true(b->ports[worker]->kicks - kicks <= (refused && round > 20 ? 3 : 3 * LANE_RING_SIZE / 32));
		}
	}
	for (worker = 0; worker < 2; worker++) {
		struct lane_port *port = b->ports[worker];

		assert_int_equal(port->sent_frames + port->dropped_ring_full + port->dropped_no_frame, offered[worker]);
		assert_int_equal(port->dropped_no_frame, 0);
		if (refused)
			assert_true(port->kicks_refused > 0 && port->dropped_ring_full > 0);
		else
			assert_true(port->lost_in_kernel > 0);
	}
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);

	rig_command(up);
	for (uint64_t deadline = now_ns() + PATIENCE_MS * 1000000ull;;) { /* the carrier takes a moment */
		assert_true(now_ns() < deadline);
		bench_send_frames(b, 0, 7777, 1, 60);
		lane_flush(b->ports[0]);
		length = rig_receive(&b->rig, frame, 10);
		if (length && rig_check(frame, length, &worker, &sequence) && sequence == 7777)
			break;
	}
	rig_build(frame, 200, 1, 1);
	assert_true(rig_send(&b->rig, frame, 200));
	bench_receive_count(b, 1, 1);
	lane_settle(b->ports[0]);
	lane_settle(b->ports[1]);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	bench_close(b);
}

static void test_peer_down(void **state)
{
	device_down("ip link set " RIG_PEER " down", "ip link set " RIG_PEER " up", false);
}

static void test_device_down(void **state)
{
	device_down("ip link set " RIG_DEVICE " down", "ip link set " RIG_DEVICE " up", true);
}

static void test_device_removed(void **state)
{
	struct bench *b = bench_open(1, 1, 1500, false);

	rig_command("ip link del " RIG_DEVICE);
	for (unsigned i = 0; i < 50; i++) {
		bench_send_frames(b, 0, i, 64, 60);
		lane_flush(b->ports[0]);
		bench_receive_all(b, 0);
		lane_settle(b->ports[0]);
	}
	assert_true(b->ports[0]->kicks_refused > 0);
	rig_assert_census(b->device, b->ports, COPY_KERNEL_MAX);
	rig_command("ip link add " RIG_DEVICE " type veth peer name " RIG_PEER); /* for rig_close() to remove */
	bench_close(b);
}

static void test_close_and_reopen(void **state)
{
	const unsigned before = open_descriptors();
	struct bench *b = bench_open(2, 2, 1500, false);
	struct lane_device_setup setup = rig_setup(&b->rig);
	uint8_t frame[100];

	for (unsigned i = 0; i < 10; i++) {
		pid_t child;
		int fds[2], status;
		char byte;

		bench_close_device(b);
		bench_open_device(b, &setup);
		rig_build(frame, sizeof(frame), 1, i);
		assert_true(rig_send(&b->rig, frame, sizeof(frame)));
		bench_receive_count(b, 1, 1);

		/* And after a SIGKILL. */
		bench_close_device(b);
		assert_int_equal(pipe(fds), 0);
		child = fork();
		if (!child) {
			if (lane_device_open(&setup, NULL) && write(fds[1], "", 1) == 1)
				pause();
			_exit(1);
		}
		close(fds[1]);
		assert_int_equal(read(fds[0], &byte, 1), 1);
		close(fds[0]);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		bench_open_device(b, &setup);
	}
	bench_close(b);
	assert_int_equal(open_descriptors(), before);
}

static void expect_refusal(const struct lane_device_setup *setup, int code, const char *const *words)
{
	struct error error = {0};

	assert_null(lane_device_open(setup, &error));
	assert_int_equal(error.code, code);
	for (; *words; words++)
		if (!strstr(error.text, *words))
			fail_msg("'%s' is not in: %s", *words, error.text);
}

static void test_refusals(void **state)
{
	struct bench *b = bench_open(2, 1, 1500, false);
	struct lane_device_setup setup = rig_setup(&b->rig);

	expect_refusal(&setup, -EBUSY, (const char *const[]){RIG_DEVICE, "queue 0 (0 of 2 queues bound)", "ss --xdp", NULL});
	bench_close_device(b);

	setup.mode = LANE_MODE_ZERO_COPY;
	expect_refusal(&setup, -EOPNOTSUPP, (const char *const[]){RIG_DEVICE, "mode zero-copy", "set its mode to auto or copy", NULL});
	setup.mode = LANE_MODE_AUTO;
	setup.queues = 3;
	expect_refusal(&setup, -EINVAL, (const char *const[]){"queue 2 (2 of 3 queues bound)", "ethtool -l", NULL});
	setup.queues = 0;
	expect_refusal(&setup, -EINVAL, (const char *const[]){"0 queues", NULL});
	setup.queues = 2;
	setup.workers = 65;
	expect_refusal(&setup, -EINVAL, (const char *const[]){"65 workers", NULL});
	setup.workers = 1;
	setup.frame_size = 1000;
	expect_refusal(&setup, -EINVAL, (const char *const[]){"2048 or 4096", NULL});
	setup.frame_size = 2048;
	setup.ifindex = 99999;
	expect_refusal(&setup, -ENODEV, (const char *const[]){"interface is gone", NULL});

	/* After all of them the device is free. */
	setup = rig_setup(&b->rig);
	bench_open_device(b, &setup);
	bench_close(b);
}

static void test_memlock_is_named(void **state)
{
	struct rig rig;
	struct lane_device_setup setup;
	int status;
	pid_t child;

	rig_open(&rig, 1, 1, 1500, false);
	setup = rig_setup(&rig);
	child = fork();
	if (!child) {
		struct rlimit little = {65536, 65536};
		struct error error = {0};

		capng_clear(CAPNG_SELECT_BOTH);
		capng_updatev(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED, CAP_NET_RAW, CAP_NET_ADMIN, -1);
		if (setrlimit(RLIMIT_MEMLOCK, &little) || capng_apply(CAPNG_SELECT_CAPS) || lane_device_open(&setup, &error))
			_exit(1);
		fprintf(stderr, "%s\n", error.text);
		_exit(!(strstr(error.text, "memlock limit 64 KiB") && strstr(error.text, "LimitMEMLOCK")));
	}
	waitpid(child, &status, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_peer_down),
		cmocka_unit_test(test_device_down),
		cmocka_unit_test(test_device_removed),
		cmocka_unit_test(test_close_and_reopen),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_memlock_is_named),
	};

	if (!rig_enter_namespace()) {
		printf("skipped: lane_faults: no network namespace of its own (%s); run as root\n", strerror(errno));
		return 0;
	}
	return cmocka_run_group_tests_name("lane_faults", tests, NULL, NULL);
}
