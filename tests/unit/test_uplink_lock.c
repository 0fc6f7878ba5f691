// SPDX-License-Identifier: BSD-2-Clause
/* One daemon per uplink, and a crashed one's changes put back. Needs root. */
#include "uplink_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/util.h"
#include "control/netdev.h"
#include "control/uplink_lock.h"

#define FILE_PATH UPLINK_LOCK_DIRECTORY "/" UPLINK ".lock"

static unsigned uplink_index(void)
{
	return if_nametoindex(UPLINK);
}

/* Takes the lock in a process of its own, tells, and waits to be killed. */
static pid_t holder(void (*with)(struct uplink_lock *lock))
{
	int told[2];
	char byte;
	pid_t child;

	assert_int_equal(pipe(told), 0);
	child = fork();
	if (child == 0) {
		struct uplink_lock *lock = uplink_lock_take(UPLINK, uplink_index(), NULL);

		if (!lock)
			_exit(1);
		if (with)
			with(lock);
		if (write(told[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	close(told[1]);
	assert_int_equal(read(told[0], &byte, 1), 1);
	close(told[0]);
	return child;
}

static void end(pid_t child)
{
	int status;

	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
}

static void test_leaves_nothing(void **state)
{
	struct error error = { 0 };
	struct uplink_lock *lock = uplink_lock_take(UPLINK, uplink_index(), &error);

	assert_non_null(lock);
	assert_int_equal(access(FILE_PATH, F_OK), 0);
	uplink_lock_release(lock);
	assert_int_equal(access(UPLINK_LOCK_DIRECTORY, F_OK), -1);

	/* A directory that was there stays. */
	assert_int_equal(mkdir(UPLINK_LOCK_DIRECTORY, 0755), 0);
	lock = uplink_lock_take(UPLINK, uplink_index(), &error);
	assert_non_null(lock);
	uplink_lock_release(lock);
	assert_int_equal(rmdir(UPLINK_LOCK_DIRECTORY), 0);
}

static void test_second_daemon_is_refused(void **state)
{
	struct error error = { 0 };
	struct uplink_lock *lock;
	pid_t child = holder(NULL);
	char pid[16];

	assert_null(uplink_lock_take(UPLINK, uplink_index(), &error));
	assert_int_equal(error.code, -EBUSY);
	snprintf(pid, sizeof(pid), "%d", (int)child);
	assert_non_null(strstr(error.text, pid));
	assert_non_null(strstr(error.text, UPLINK));
	/* Another uplink is another lock. */
	lock = uplink_lock_take(WIRE, if_nametoindex(WIRE), &error);
	assert_non_null(lock);
	uplink_lock_release(lock);
	/* The refused one did not harm the holder's. */
	assert_null(uplink_lock_take(UPLINK, uplink_index(), &error));
	end(child);
	lock = uplink_lock_take(UPLINK, uplink_index(), &error);
	assert_non_null(lock);
	uplink_lock_release(lock);
	assert_int_equal(rmdir(UPLINK_LOCK_DIRECTORY), 0); /* made by the one that was killed */
}

/* A look takes nothing, makes nothing, and does not keep a daemon that starts meanwhile from its lock. */
static void test_probe(void **state)
{
	struct error error = { 0 };
	struct uplink_lock *lock;
	int status, stop[2];
	char pid[16];
	pid_t child;

	assert_int_equal(uplink_lock_probe(UPLINK, &error), 0);
	assert_int_equal(access(UPLINK_LOCK_DIRECTORY, F_OK), -1);
	child = holder(NULL);
	assert_int_equal(uplink_lock_probe(UPLINK, &error), -EBUSY);
	snprintf(pid, sizeof(pid), "%d", (int)child);
	assert_non_null(strstr(error.text, pid));
	assert_int_equal(uplink_lock_probe(WIRE, &error), 0);
	end(child);
	assert_int_equal(uplink_lock_probe(UPLINK, &error), 0);

	assert_int_equal(pipe2(stop, O_NONBLOCK), 0);
	child = fork();
	if (child == 0) {
		char byte;

		close(stop[1]);
		while (read(stop[0], &byte, 1) < 0) {
			uplink_lock_probe(UPLINK, NULL);
			usleep(500);
		}
		_exit(0);
	}
	for (unsigned i = 0; i < 200; i++) {
		lock = uplink_lock_take(UPLINK, uplink_index(), &error);
		if (!lock)
			fail_msg("%s", error.text);
		uplink_lock_release(lock);
	}
	close(stop[1]);
	assert_int_equal(waitpid(child, &status, 0), child);
	close(stop[0]);
	rmdir(UPLINK_LOCK_DIRECTORY);
}

static void change(struct uplink_lock *lock)
{
	struct netdev_undo_log log;

	netdev_undo_init(&log, UPLINK);
	if (netdev_set_feature(&log, "rx-vlan-hw-parse", false, NULL) < 0 || netdev_set_promiscuous(&log, NULL) < 0 ||
	    netdev_set_napi(&log, "gro_flush_timeout", 4711, NULL) < 0)
		_exit(1);
	uplink_lock_record(lock, &log);
}

static void test_crash_is_put_back(void **state)
{
	struct error error = { 0 };
	struct netdev_undo_log look;
	struct uplink_lock *lock;

	assert_true(netdev_get_feature(UPLINK, "rx-vlan-hw-parse"));
	end(holder(change));
	assert_false(netdev_get_feature(UPLINK, "rx-vlan-hw-parse"));

	lock = uplink_lock_take(UPLINK, uplink_index(), &error);
	assert_non_null(lock);
	assert_true(netdev_get_feature(UPLINK, "rx-vlan-hw-parse"));
	netdev_undo_init(&look, UPLINK);
	assert_int_equal(netdev_set_napi(&look, "gro_flush_timeout", 0, &error), 0);
	assert_int_equal(look.count, 0);
	uplink_lock_release(lock);
	rmdir(UPLINK_LOCK_DIRECTORY);
}

/* Same name, another device: what is noted there is not its business. */
static void test_other_device_is_left_alone(void **state)
{
	struct uplink_lock *lock;

	end(holder(change));
	lock = uplink_lock_take(UPLINK, uplink_index() + 1000, NULL);
	assert_non_null(lock);
	assert_false(netdev_get_feature(UPLINK, "rx-vlan-hw-parse"));
	uplink_lock_release(lock);
	rmdir(UPLINK_LOCK_DIRECTORY);
}

static void test_rubbish_in_the_file(void **state)
{
	static const char *const rubbish[] = {
		"", "\n\n\n", "ifindex\n", "feature", "pid 1\nifindex %u\nfeature x\nnapi ../../../../tmp/x 1\nfeature nonsense 7\nfeature a b\n",
	};
	char text[256];

	for (size_t i = 0; i < ARRAY_SIZE(rubbish); i++) {
		struct uplink_lock *lock;
		FILE *file;

		mkdir(UPLINK_LOCK_DIRECTORY, 0755);
		file = fopen(FILE_PATH, "w");
		assert_non_null(file);
		snprintf(text, sizeof(text), rubbish[i], uplink_index());
		fputs(text, file);
		fclose(file);
		lock = uplink_lock_take(UPLINK, uplink_index(), NULL);
		assert_non_null(lock);
		uplink_lock_release(lock);
		assert_int_equal(access(FILE_PATH, F_OK), -1);
	}
	rmdir(UPLINK_LOCK_DIRECTORY);
}

static void test_symbolic_link_is_not_followed(void **state)
{
	struct error error = { 0 };

	assert_int_equal(mkdir(UPLINK_LOCK_DIRECTORY, 0755), 0);
	assert_int_equal(symlink("/run/elsewhere", FILE_PATH), 0);
	assert_null(uplink_lock_take(UPLINK, uplink_index(), &error));
	assert_int_equal(error.code, -ELOOP);
	assert_int_equal(access("/run/elsewhere", F_OK), -1);
	unlink(FILE_PATH);
	rmdir(UPLINK_LOCK_DIRECTORY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_leaves_nothing, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_second_daemon_is_refused, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_probe, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_crash_is_put_back, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_other_device_is_left_alone, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_rubbish_in_the_file, rig_wire_setup, rig_wire_teardown),
		cmocka_unit_test_setup_teardown(test_symbolic_link_is_not_followed, rig_wire_setup, rig_wire_teardown),
	};
	int code = rig_enter();

	return code ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
