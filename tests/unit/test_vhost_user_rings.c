// SPDX-License-Identifier: BSD-2-Clause
/*
 * What messages do to rings: what only the inside can see, above all that nothing a worker may hold is touched before it was
 * withdrawn. What a frontend can see is in tests/frontend.
 */
#include <fcntl.h>

#include "session_rig.h"

static void every_order_of_messages(void **state)
{
	struct fixture *f = *state;
	unsigned order[STEPS] = { 0 };

	/* Heap's algorithm would do; counting through all base-STEPS numbers and skipping what is no permutation is plainer. */
	for (unsigned n = 0, done = 0; done < 5040; n++) {
		unsigned seen = 0, rest = n;

		for (unsigned i = 0; i < STEPS; i++, rest /= STEPS)
			seen |= 1u << (order[i] = rest % STEPS);
		if (seen != (1u << STEPS) - 1)
			continue;
		/* All of them take a while; every 29th meets each step at each place. */
		if (done++ % 29)
			continue;
		for (unsigned i = 0, missing = STEPS - 1; i < STEPS; i++) {
			do_step(f, order[i], 1);
			/* A call descriptor is not needed; the answer to the last step that is comes when workers have the ring. */
			missing -= order[i] != STEP_CALL;
			assert_int_equal(f->held[1], missing == 0);
		}
		assert_int_equal(f->pairs[0].from_guest.last_avail, 7);
		assert_true(f->pairs[0].from_guest_kick_fd >= 0 && atomic_load(&f->pairs[0].from_guest.call_fd) >= 0);
		hang_up(f);
		connect_peer(f);
		negotiate(f);
	}
}

static void base_left_out(void **state)
{
	struct fixture *f = *state;
	int kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

	for (unsigned step = STEP_MEMORY; step < STEPS; step++)
		if (step != STEP_BASE && step != STEP_KICK)
			do_step(f, step, 1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_KICK, 1, kick), 0);
	assert_false(vhost_user_ring_started(f->session, 1));
	assert_int_equal(eventfd_write(kick, 1), 0);
	turn_until(f, f->held[1]);
	assert_int_equal(f->pairs[0].from_guest.last_avail, 0);
	close(kick);
}

static void enabled_without_protocol_features(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, V1, -1), 0);
	for (unsigned step = STEP_MEMORY; step < STEP_ENABLE; step++)
		do_step(f, step, 0);
	assert_true(f->held[0]);
}

static void base_after_frames(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 0);
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0) >> 32, 0);
	bring_up(f, 1);
	f->pairs[0].from_guest.last_avail = 65534;
	f->withdrawals = 0;
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0), 65534ull << 32 | 1);
	assert_int_equal(f->withdrawals, 1);
	assert_false(f->held[1]);
	assert_true(f->held[0]);
	assert_false(vhost_user_ring_started(f->session, 1));
	assert_int_equal(f->pairs[0].from_guest_kick_fd, -1);
	/* Asked again, the answer is the same; a kick is all it takes to go on. */
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0), 65534ull << 32 | 1);
	assert_int_equal(send_eventfd(f, VHOST_USER_SET_VRING_KICK, 1), 0);
	assert_true(f->held[1]);
	assert_int_equal(f->pairs[0].from_guest.last_avail, 65534);
	assert_int_equal(ask_state(f, VHOST_USER_GET_VRING_BASE, 99, 5), 99);
}

static void memory_again_while_running(void **state)
{
	struct fixture *f = *state;
	const struct guest_memory *old;

	bring_up(f, 0);
	bring_up(f, 1);
	f->pairs[0].from_guest.last_avail = 12;
	old = vhost_user_memory(f->session);
	f->withdrawals = 0;
	assert_int_equal(send_memory(f, USER_BASE), 0);
	assert_int_equal(f->withdrawals, 1);
	assert_true(f->held[0] && f->held[1]);
	assert_ptr_not_equal(vhost_user_memory(f->session), old);
	assert_ptr_equal(f->pairs[0].from_guest.memory, vhost_user_memory(f->session));
	assert_int_equal(f->pairs[0].from_guest.last_avail, 12);

	/* A table that is no good changes nothing, not even for a moment. */
	old = vhost_user_memory(f->session);
	f->withdrawals = 0;
	assert_int_not_equal(send_memory(f, UINT64_MAX - 4096), 0);
	assert_int_equal(f->withdrawals, 0);
	assert_ptr_equal(vhost_user_memory(f->session), old);
	assert_true(f->held[1]);

	/* Rings are elsewhere now: they wait for their addresses. */
	assert_int_equal(send_memory(f, USER_BASE + (1ull << 40)), 0);
	assert_false(f->held[0] || f->held[1]);
	assert_true(*vhost_user_last_fault(f->session));
	assert_int_equal(send_addresses(f, 1, USER_BASE + (1ull << 40)), 0);
	assert_true(f->held[1]);
	assert_int_equal(f->pairs[0].from_guest.last_avail, 12);
}

static void same_again_disturbs_nothing(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 1);
	f->withdrawals = 0;
	do_step(f, STEP_NUM, 1);
	do_step(f, STEP_ADDR, 1);
	do_step(f, STEP_ENABLE, 1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, PF | V1, -1), 0);
	assert_int_equal(f->withdrawals, 0);
}

static void disable_and_reset(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 0);
	bring_up(f, 1);
	assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_ENABLE, 1, 0), 0);
	assert_false(f->held[1]);
	assert_true(f->held[0]);
	assert_true(vhost_user_ring_started(f->session, 1));
	do_step(f, STEP_ENABLE, 1);
	assert_true(f->held[1]);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_STATUS, 0, -1), 0);
	for (unsigned i = 0; i < RINGS; i++)
		assert_false(f->held[i] || vhost_user_ring_started(f->session, i) || vhost_user_ring_enabled(f->session, i));
	/* Frontends do not send memory again that they think we have. */
	assert_non_null(vhost_user_memory(f->session));
	assert_int_equal(ask_u64(f, VHOST_USER_SET_FEATURES, PF | V1, -1), 0);
	for (unsigned step = STEP_NUM; step < STEPS; step++)
		do_step(f, step, 1);
	assert_true(f->held[1]);
	assert_int_equal(ask(f, VHOST_USER_RESET_DEVICE, NULL, 0, -1), 0);
	assert_false(f->held[1]);
	assert_int_equal(atomic_load(&f->pairs[0].from_guest.call_fd), -1);
	assert_int_equal(ask(f, VHOST_USER_RESET_OWNER, NULL, 0, -1), 0);
}

static void call_descriptor_replaced(void **state)
{
	struct fixture *f = *state;
	int call = eventfd(0, EFD_CLOEXEC);
	eventfd_t value;

	bring_up(f, 1);
	/* A full counter on a descriptor that blocks: control must come through, and the frontend is not cheated of its call. */
	assert_int_equal(eventfd_write(call, UINT64_MAX - 1), 0);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1, call), 0);
	assert_int_equal(f->synchronizes, 1);
	assert_int_equal(fcntl(call, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	assert_int_equal(fcntl(call, F_SETFL, O_RDWR), 0);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1, call), 0);
	assert_int_equal(eventfd_read(call, &value), 0);
	/* A new descriptor gets a call at once: what the old one was told may have come too late. */
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1, call), 0);
	assert_int_equal(eventfd_read(call, &value), 0);
	assert_int_equal(value, 1);
	/* None: the guest polls. */
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, 1 | VHOST_USER_VRING_NO_FD, -1), 0);
	assert_int_equal(atomic_load(&f->pairs[0].from_guest.call_fd), -1);
	close(call);
}

/* Whether the frontend was called; forgotten by asking. */
static bool was_called(int fd)
{
	eventfd_t value;

	return !eventfd_read(fd, &value);
}

/* Calls that a worker put off are made when no worker is left to make them. */
static void owed_calls_are_paid(void **state)
{
	struct fixture *f = *state;
	int calls[2] = { eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };

	for (unsigned ring = 0; ring < 2; ring++) {
		bring_up(f, ring);
		assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_CALL, ring, calls[ring]), 0);
		assert_true(was_called(calls[ring]));
	}
	for (unsigned ring = 0; ring < 2; ring++) {
		assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_ENABLE, ring, 0), 0);
		assert_false(was_called(calls[0]) || was_called(calls[1]));
		do_step(f, STEP_ENABLE, ring);
		ring_at(f, ring)->used_published++;
		assert_int_equal(ask_state(f, VHOST_USER_SET_VRING_ENABLE, ring, 0), 0);
		assert_true(was_called(calls[ring]));
		assert_false(was_called(calls[1 - ring]));
		ring_at(f, ring)->used_signalled = ring_at(f, ring)->used_published;
		do_step(f, STEP_ENABLE, ring);
	}
	close(calls[0]);
	close(calls[1]);
}

static void wrong_descriptors(void **state)
{
	struct fixture *f = *state;
	int file = memfd_create("not an eventfd", MFD_CLOEXEC), pipes[2];

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	for (uint32_t r = VHOST_USER_SET_VRING_KICK; r <= VHOST_USER_SET_VRING_ERR; r++) {
		assert_int_not_equal(ask_u64(f, r, 0, file), 0);
		assert_int_not_equal(ask_u64(f, r, 0, pipes[1]), 0);
		assert_int_not_equal(ask_u64(f, r, 0, -1), 0);
		assert_int_not_equal(ask_u64(f, r, VHOST_USER_VRING_NO_FD, file), 0);
		assert_int_not_equal(ask_u64(f, r, RINGS, file), 0);
		assert_int_equal(ask_u64(f, r, VHOST_USER_VRING_NO_FD, -1), 0);
	}
	close(file);
	close(pipes[0]);
	close(pipes[1]);
}

static void fault_stops_one_ring(void **state)
{
	struct fixture *f = *state;
	int err = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	eventfd_t value;

	bring_up(f, 0);
	bring_up(f, 1);
	assert_int_equal(ask_u64(f, VHOST_USER_SET_VRING_ERR, 1, err), 0);
	vhost_user_check_faults(f->session);
	assert_int_equal(eventfd_read(err, &value), -1);
	atomic_store(&f->pairs[0].from_guest.fault, RING_FAULT_CHAIN_LOOP);
	vhost_user_check_faults(f->session);
	assert_int_equal(eventfd_read(err, &value), 0);
	assert_false(f->held[1]);
	assert_true(f->held[0]);
	assert_non_null(strstr(vhost_user_last_fault(f->session), ring_fault_names[RING_FAULT_CHAIN_LOOP]));
	vhost_user_check_faults(f->session);
	assert_int_equal(eventfd_read(err, &value), -1);
	/* It does not come back by itself, but it does when the guest resets its device. */
	assert_int_equal(send_memory(f, USER_BASE), 0);
	assert_false(f->held[1]);
	ask_state(f, VHOST_USER_GET_VRING_BASE, 1, 0);
	do_step(f, STEP_KICK, 1);
	assert_true(f->held[1]);
	close(err);
}

/* As workers tell it: once, until control has looked. The look comes after, so that no later fault of the pair is lost. */
static void second_fault_of_a_pair(void **state)
{
	struct fixture *f = *state;

	bring_up(f, 0);
	bring_up(f, 1);
	for (unsigned i = 0; i < 2; i++) {
		atomic_store(&ring_at(f, i)->fault, RING_FAULT_CHAIN_LOOP);
		assert_false(atomic_exchange(&f->pairs[0].fault_reported, true));
		vhost_user_check_faults(f->session);
		assert_false(f->held[i]);
	}
	/* Also when it is the session that ends. */
	bring_up(f, 2);
	assert_false(atomic_exchange(&f->pairs[1].fault_reported, true));
	assert_int_equal(guest_memory_guard_install(-1), 0);
	assert_int_equal(ftruncate(f->memory_fd, 0), 0);
	*(volatile uint8_t *)guest_memory_at(vhost_user_memory(f->session), GUEST_BASE, 1) = 1;
	vhost_user_check_faults(f->session);
	assert_int_equal(vhost_user_state_of(f->session), VHOST_USER_WAITING);
	assert_false(atomic_load(&f->pairs[1].fault_reported));
}

static void fault_found_by_a_message_first(void **state)
{
	struct fixture *f = *state;

	/* The ring is no longer active, but workers have it: nothing may be freed under them. check_held() looks. */
	bring_up(f, 1);
	atomic_store(&f->pairs[0].from_guest.fault, RING_FAULT_HEAD_RANGE);
	do_step(f, STEP_NUM, 0);
	assert_true(f->held[1]);
	assert_int_equal(send_memory(f, USER_BASE), 0);
}

static void rarp_and_mtu(void **state)
{
	struct fixture *f = *state;
	static const uint8_t mac[8] = { 0x52, 0x54, 0, 1, 2, 3 };
	uint64_t payload;

	memcpy(&payload, mac, 8);
	assert_int_equal(ask_u64(f, VHOST_USER_SEND_RARP, payload, -1), 0);
	assert_int_equal(f->announces, 1);
	assert_memory_equal(f->announced, mac, 6);
	assert_int_not_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 67, -1), 0);
	assert_int_not_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 65536, -1), 0);
	assert_int_not_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 1ull << 32 | 1500, -1), 0);
	assert_int_equal(ask_u64(f, VHOST_USER_NET_SET_MTU, 9000, -1), 0);
	assert_int_equal(vhost_user_guest_mtu(f->session), 9000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_order_of_messages, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(base_left_out, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(enabled_without_protocol_features, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(base_after_frames, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(memory_again_while_running, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(same_again_disturbs_nothing, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(disable_and_reset, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(call_descriptor_replaced, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(owed_calls_are_paid, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(wrong_descriptors, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(fault_stops_one_ring, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(second_fault_of_a_pair, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(fault_found_by_a_message_first, setup_connected, teardown),
		cmocka_unit_test_setup_teardown(rarp_and_mtu, setup_connected, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
