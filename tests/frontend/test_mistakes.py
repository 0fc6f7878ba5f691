# SPDX-License-Identifier: BSD-2-Clause
"""What people get wrong when they start a guest: each is named once, with its remedy, where they look."""
import mmap
import os
import socket
import time

import pytest

from rig import wait_for
from vhost_frontend import F_PROTOCOL, F_VERSION_1, Frontend, Memory, Request, eventfd_read, wait_readable
from virtio_driver import NetGuest, ethernet, mac, number_of
from test_data import numbered

A, B = mac(1), mac(2)
PRIVATE, SHARE, NO_MEMORY = "maps its memory privately", "share=on", "shares no memory"
LOOKS = 3 * 3.0  # seconds in which the daemon looks three times


def last_fault(s, port=0):
    return s.show(port)["last_fault"]


def wait_fault(s, text, port=0):
    wait_for(lambda: text in last_fault(s, port), f"last_fault: {text}")


def told(s, text):
    return s.daemon.log().count(text)


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regions", (1, 4))
@pytest.mark.parametrize("slots", (False, True))
def test_private_memory(switch, regions, slots):
    """Memory files that the frontend itself maps privately: rings in them do not start, the port does not say that it serves."""
    s = switch(queues=2)
    guest = s.guest(0, start=False, pairs=2, regions=regions, private=True)
    guest.negotiate()
    f = guest.frontend
    for region in guest.memory.regions if slots else ():
        f.add_region(region)
    if not slots:
        f.set_mem_table(guest.memory)
    if regions == 1:  # else what is asked of the system and the rings come in any order
        wait_fault(s, PRIVATE)
    errors = [f.new_eventfd() for _ in range(4)]
    for index in range(4):
        f.set_vring_fd(Request.SET_VRING_ERR, index, errors[index])
        guest.setup_ring(index)
        f.enable(index)
    # The frontend hears of it, too.
    for error in errors:
        assert wait_readable(error) and eventfd_read(error) == 1
    s.wait_state(0, "negotiated")
    assert not any(ring["started"] for ring in s.show(0)["rings"])
    assert PRIVATE in last_fault(s) and SHARE in last_fault(s) and "access mode='shared'" in last_fault(s)
    assert told(s, PRIVATE) == 1

    # Shared memory in its place, and the same connection serves.
    memory = Memory(64 << 20, regions)
    for region in guest.memory.regions if slots else ():
        f.remove_region(region)
    guest.memory.close()
    guest.memory = memory
    guest.rings = [type(ring)(memory, ring.size) for ring in guest.rings]
    guest.send_slots = [[memory.allocate(guest.SEND_SLOT, 64) for _ in range(8)] for _ in range(2)]
    for region in memory.regions if slots else ():
        f.add_region(region)
    if not slots:
        f.set_mem_table(memory)
    for index in range(4):
        f.get_vring_base(index)
        guest.setup_ring(index)
    assert s.state(0) == "serving"
    b = s.guest(1)
    guest.send(ethernet(b"\xff" * 6, A, number=7), pair=1)
    assert number_of(b.expect()[0]) == 7
    assert told(s, PRIVATE) == 1


def test_private_memory_once_a_session(switch):
    """Region by region, and the same ones again for each queue pair, as QEMU does: one line. The next session gets its own, unless it
    comes too soon to be news."""
    s = switch(ports=1)
    for _ in range(2):
        guest = s.guest(0, start=False, regions=3, private=True)
        guest.negotiate()
        for region in guest.memory.regions * 5:
            guest.frontend.add_region(region)
        wait_fault(s, PRIVATE)
        guest.close()
        s.wait_state(0, "waiting")
    assert told(s, PRIVATE) == 1


def test_private_memory_beside_shared(switch):
    """A private region beside the one with the rings, like the image of a disk: said, and the guest is served."""
    s = switch()
    a, b = s.pair_of_guests()
    image = Memory(1 << 20, 1, guest=1 << 44, user=1 << 45, private=True)
    a.frontend.add_region(image.regions[0])
    wait_fault(s, PRIVATE)
    assert s.state(0) == "serving"
    a.send_all(numbered(20, B, A, 0))
    assert b.expect(20) == numbered(20, B, A, 0)
    image.close()


def test_shared_memory_is_not_complained_of(switch):
    """Also in many regions, and in one that is mapped privately as well as shared."""
    s = switch()
    a, b = s.guest(0, regions=8), s.guest(1)
    extra = Memory(1 << 20, 1, guest=1 << 44, user=1 << 45)
    second = mmap.mmap(extra.regions[0].fd, 1 << 20, mmap.MAP_PRIVATE)
    a.frontend.add_region(extra.regions[0])
    time.sleep(LOOKS)
    assert last_fault(s) == last_fault(s, 1) == ""
    second.close()
    extra.close()
    s.learn(a, A, b)


def test_no_memory(switch):
    """Rings without memory, as QEMU without a memory backend sets them up: said after some seconds, once. Memory may still come."""
    s = switch()
    guest = s.guest(0, start=False)
    guest.negotiate()
    guest.post(kick=False)
    for index in (0, 1):
        guest.setup_ring(index)
        guest.frontend.enable(index)
    wait_fault(s, NO_MEMORY)
    assert SHARE in last_fault(s) and s.state(0) == "negotiated"
    time.sleep(LOOKS)
    assert told(s, NO_MEMORY) == 1
    guest.frontend.set_mem_table(guest.memory)
    assert s.state(0) == "serving"
    s.learn(guest, A, s.guest(1))


def test_empty_memory_table(switch):
    s = switch(ports=1)
    f = s.frontend(0)
    f.negotiate_protocol()
    f.set_features(F_PROTOCOL | F_VERSION_1)
    assert f.try_tell(Request.SET_MEM_TABLE, bytes(8)) != 0
    assert "no region" in last_fault(s) and SHARE in last_fault(s)
    f.close()


def connection_of_another(path):
    """A connection whose other end seems to be a process that is gone: what a proxy or another PID namespace looks like."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            one = socket.socket(socket.AF_UNIX)
            one.connect(path)
            socket.send_fds(there, [b"x"], [one.fileno()])
        finally:
            os._exit(0)
    _, fds, _, _ = socket.recv_fds(here, 1, 1)
    os.waitpid(pid, 0)
    here.close()
    there.close()
    return socket.socket(fileno=fds[0])


def test_private_memory_of_an_unknown_process(switch):
    """Nothing can be proved, but a guest that kicks and whose rings stay empty has a likely reason."""
    s = switch(ports=2)
    a = s.guest(0, private=True, connection=connection_of_another(s.paths[0]))
    b = s.guest(1, posted=0, connection=connection_of_another(s.paths[1]))
    assert s.state(0) == "serving"
    assert s.show(0)["peer_pid"] != os.getpid()
    for index in (0, 0, 1):
        a.kick(index)
    b.kick(0)  # one kick proves nothing: QEMU's descriptors come with one
    wait_fault(s, "privately")
    assert SHARE in last_fault(s)
    time.sleep(LOOKS)
    assert told(s, "the guest kicks") == 1
    assert last_fault(s, 1) == ""
    # A sign of life in time, and nobody asks any more.
    b.post(0, 8)
    time.sleep(LOOKS)
    for _ in range(3):
        b.kick(0)
    assert last_fault(s, 1) == ""


# --- queues ----------------------------------------------------------------------------------------------------------


def ask_and_leave(path):
    """What QEMU does when it wants more queue pairs than there are (7.2: net_vhost_user_event)."""
    f = Frontend(path)
    f.get_features()
    f.negotiate_protocol()
    pairs = f.ask_u64(Request.GET_QUEUE_NUM)
    f.tell(Request.SET_OWNER)
    f.get_features()
    for index in (0, 1):
        f.set_vring_fd(Request.SET_VRING_CALL, index, f.new_eventfd())
    f.close()
    return pairs


@pytest.mark.parametrize("queues", (1, 2))
def test_too_few_queues(switch, queues):
    s = switch(ports=1, queues=queues)
    assert ask_and_leave(s.paths[0]) == queues
    wait_fault(s, "probably wants more")
    assert f"told of {queues} queue pair" in last_fault(s) and "raise queues= of the port" in last_fault(s)
    assert told(s, "probably wants more") == 1


def test_enough_queues(switch):
    """One that asks and goes on, or that asks and stays for a while, wanted nothing else."""
    s = switch(ports=1)
    f = s.frontend(0)
    f.negotiate_protocol()
    f.ask_u64(Request.GET_QUEUE_NUM)
    f.set_features(F_PROTOCOL | F_VERSION_1)
    f.close()
    s.wait_state(0, "waiting")
    f = s.frontend(0)
    f.negotiate_protocol()
    f.ask_u64(Request.GET_QUEUE_NUM)
    time.sleep(1.5)
    f.close()
    s.wait_state(0, "waiting")
    assert last_fault(s) == ""


# --- storms ----------------------------------------------------------------------------------------------------------


def storm(path, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ask_and_leave(path)


def test_storm(switch):
    """QEMU with reconnect=1 and too many queues came back 3,000 times a second, with two lines each."""
    s = switch()
    started = time.monotonic()
    storm(s.paths[0], 6)
    sessions, seconds = s.show(0)["sessions"], time.monotonic() - started
    # Eleven at once, seven with a delay that doubles, then one a second.
    assert 11 <= sessions <= 11 + 7 + seconds + 1
    log = s.daemon.log()
    assert log.count("port p0:") <= 5 * 4 + 4, log  # five of each kind in ten seconds
    assert log.count("probably wants more") == 1 and log.count("frontends came within a second") == 1
    # The other port's lines are not among what is held back.
    for _ in range(3):
        f = s.frontend(1)
        f.get_features()
        f.close()
    s.wait_state(1, "waiting")
    log = s.daemon.log()
    assert log.count("port p1: frontend connected") == log.count("port p1: session ended") == 3
    # Somebody who gets it right is let in, and all is forgotten.
    a, b = s.guest(0), s.guest(1)
    assert "storm of frontends is over" in s.daemon.log()
    s.learn(a, A, b)
    s.learn(b, B, a)
    for i in range(30):
        a.reconnect()
        s.learn(a, A, b)
    assert "wants more" in last_fault(s)  # it stays, to be read later


def test_storm_beside_a_guest(switch):
    """A second frontend that cannot take no for an answer; the first notices nothing."""
    s = switch()
    a, b = s.pair_of_guests()
    end = time.monotonic() + 3
    count = 0
    while time.monotonic() < end:
        f = s.frontend(0)
        a.send_all(numbered(4, B, A, 4 * count))
        assert f.ended()
        f.close()
        assert b.expect(4) == numbered(4, B, A, 4 * count)
        count += 1
    assert count <= 11 + 7 + 4 + (time.monotonic() - end)
    assert s.daemon.log().count("port p0:") <= 15
    a.reconnect()
    s.learn(a, A, b)


def test_storm_is_forgotten(switch):
    """Ten quick ones are nothing to make a fuss of."""
    s = switch(ports=1)
    for _ in range(3):
        for _ in range(10):
            f = s.frontend(0)
            f.get_features()
            f.close()
        s.wait_state(0, "waiting")
        time.sleep(1.2)
    assert "within a second" not in s.daemon.log()
    with NetGuest(s.paths[0]):
        assert s.state(0) == "serving"
