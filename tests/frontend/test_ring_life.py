# SPDX-License-Identifier: BSD-2-Clause
"""A ring's life: in whatever order a frontend tells of it, where it begins, where it stopped, and resets."""
import random

import pytest

from one_port import finish
from rig import wait_for
from vhost_frontend import F_MRG_RXBUF, F_VERSION_1, Request, u64
from virtio_driver import ethernet, mac, number_of, numbered

A, B = mac(1), mac(2)


# --- bases -----------------------------------------------------------------------------------------------------------


def test_base_of_rings_that_never_ran(lone):
    f = lone.frontend(0)
    for index in range(4):
        assert f.get_vring_base(index) == 0
    f.negotiate_protocol()
    for index in range(4):
        assert f.get_vring_base(index) == 0
    assert f.quiet()
    finish(lone, f)


@pytest.mark.parametrize("base", (0, 65530))
def test_base_after_frames(switch, base):
    s = switch()
    a, b = s.pair_of_guests(base=base)
    a.send_all(numbered(20, B, A))
    b.expect(20)
    assert a.frontend.get_vring_base(1) == (base + 21) & 0xFFFF
    # Stopped: what is sent now stays where it is.
    a.send(ethernet(B, A, number=99))
    assert a.frontend.get_vring_base(1) == (base + 21) & 0xFFFF
    assert not s.ring(0, 1)["started"]
    b.send(ethernet(A, B, number=5))  # the other ring runs on
    assert number_of(a.expect()[0]) == 5
    assert b.receive() is None
    a.setup_ring(1, base=(base + 21) & 0xFFFF)
    assert number_of(b.expect()[0]) == 99
    # All buffers that were offered beyond what came: base = frames received.
    assert b.frontend.get_vring_base(0) == (base + 22) & 0xFFFF


# --- order -----------------------------------------------------------------------------------------------------------


def test_unusual_orders(switch):
    """Everything a ring needs, in forty orders; a frame goes through after each."""
    s = switch()
    b = s.guest(1)
    dice = random.Random(2)
    for attempt in range(40):
        a = s.guest(0, start=False, base=attempt * 100, memory=8 << 20)
        f = a.frontend
        f.negotiate_protocol()
        a.post(count=8, kick=False)
        steps = [lambda: f.set_features(a.features), lambda: f.set_mem_table(a.memory), lambda: f.tell(Request.SET_OWNER)]
        for index, ring in enumerate(a.rings):
            user = a.memory.user
            a.kick_fds[index], a.call_fds[index] = f.new_eventfd(), f.new_eventfd()
            steps += [
                lambda i=index: f.state(Request.SET_VRING_NUM, i, a.size), lambda i=index: f.state(Request.SET_VRING_BASE, i, a.base),
                lambda i=index, r=ring: f.set_vring_addr(i, user(r.desc_at), user(r.avail_at), user(r.used_at)),
                lambda i=index: f.set_vring_fd(Request.SET_VRING_KICK, i, a.kick_fds[i]),
                lambda i=index: f.set_vring_fd(Request.SET_VRING_CALL, i, a.call_fds[i]), lambda i=index: f.enable(i)]
        dice.shuffle(steps)
        for step in steps:
            step()
        assert s.state(0) == "serving"
        a.send(ethernet(b"\xff" * 6, A, number=attempt))
        assert number_of(b.expect()[0]) == attempt
        b.send(ethernet(b"\xff" * 6, B, number=attempt))
        assert number_of(a.expect()[0]) == attempt
        a.close()
        a.memory.close()


def test_base_left_out(switch):
    """No SET_VRING_BASE at all: rings begin at 0 with the first kick."""
    s = switch()
    b = s.guest(1)
    a = s.guest(0, start=False)
    f = a.frontend
    a.negotiate()
    f.set_mem_table(a.memory)
    a.post(count=8, kick=False)
    for index, ring in enumerate(a.rings):
        f.state(Request.SET_VRING_NUM, index, a.size)
        f.set_vring_addr(index, *(a.memory.user(at) for at in (ring.desc_at, ring.avail_at, ring.used_at)))
        a.kick_fds[index], a.call_fds[index] = f.new_eventfd(), f.new_eventfd()
        f.set_vring_fd(Request.SET_VRING_CALL, index, a.call_fds[index])
        f.set_vring_fd(Request.SET_VRING_KICK, index, a.kick_fds[index])
        f.enable(index)
        a.kick(index)
    a.send(ethernet(b"\xff" * 6, A, number=1))
    assert number_of(b.expect()[0]) == 1
    wait_for(lambda: s.ring(0, 0)["started"], "ring 0 started", pause=0.01)
    b.send(ethernet(b"\xff" * 6, B, number=2))
    assert number_of(a.expect()[0]) == 2


def test_without_protocol_features(switch):
    """An old frontend: no SET_VRING_ENABLE, rings run when they are set up."""
    s = switch()
    b = s.guest(1)
    a = s.guest(0, start=False)
    f = a.frontend
    f.set_features(F_VERSION_1 | F_MRG_RXBUF)
    f.set_mem_table(a.memory)
    a.post(kick=False)
    for index in (0, 1):
        a.setup_ring(index)
    a.send(ethernet(b"\xff" * 6, A, number=1))
    assert number_of(b.expect()[0]) == 1
    b.send(ethernet(b"\xff" * 6, B, number=2))
    assert number_of(a.expect()[0]) == 2


@pytest.mark.parametrize("how", ("status", "reset device", "reset owner", "stop"))
def test_guest_reset(switch, how):
    """The driver is unbound and bound again fifty times under traffic: old buffers stay untouched, traffic resumes."""
    s = switch()
    a, b = s.pair_of_guests(memory=256 << 20)
    f = b.frontend
    for i in range(50):
        a.send_all(numbered(20, B, A, 20 * i))
        b.expect(10)
        if how == "stop":
            for index in (0, 1):
                f.get_vring_base(index)
        else:
            request = {"status": Request.SET_STATUS, "reset device": Request.RESET_DEVICE, "reset owner": Request.RESET_OWNER}[how]
            f.tell(request, u64(0) if how == "status" else b"")
        assert not s.ring(1, 0)["started"] and not s.ring(1, 1)["started"]
        old = b.rings[0]
        before = (old.used16[1], bytes(old.used_elements.cast("B")))
        pages = [(token, b.memory.read(token, 64)) for token, _ in list(old.tokens.values())[-20:]]
        a.send_all(numbered(10, B, A))
        a.drain()
        assert (old.used16[1], bytes(old.used_elements.cast("B"))) == before
        assert all(b.memory.read(at, 64) == data for at, data in pages)
        # The driver starts again with rings of its own.
        b.rings = [type(old)(b.memory, b.size, b.event_idx) for _ in b.rings]
        b.partial = [[]]
        b.send_slots = [[b.memory.allocate(b.SEND_SLOT, 64) for _ in range(16)]]
        b.base = 0
        b.post(count=64, kick=False)
        f.set_features(b.features)
        for index in (0, 1):
            b.setup_ring(index)
            f.enable(index)
        a.send(ethernet(b"\xff" * 6, A, number=7))
        assert number_of(b.expect()[-1]) == 7
        s.learn(b, B, a)
