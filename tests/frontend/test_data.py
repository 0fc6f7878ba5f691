# SPDX-License-Identifier: BSD-2-Clause
"""Frames between two guests: every byte, in order, over the shapes that rings and headers come in."""
import itertools

import pytest

from vhost_frontend import Request, eventfd_read, wait_readable
from virtio_driver import BROADCAST, ethernet, mac, number_of, numbered

A, B, C = mac(1), mac(2), mac(3)
SHAPES = list(itertools.product((256, 1024), (False, True), (False, True), (False, True)))


@pytest.mark.parametrize("size,mergeable,indirect,event_idx", SHAPES)
def test_unicast_and_broadcast(switch, size, mergeable, indirect, event_idx):
    s = switch(ports=3)
    a, b = s.pair_of_guests(size=size, mergeable=mergeable, indirect=indirect, event_idx=event_idx)
    c = s.guest(2, size=256, mergeable=not mergeable)
    # More than the ring holds, so that both indices wrap around it; posted in bursts below the receiver's ring.
    frames = numbered(3 * size // 2, B, A)
    for i in range(0, len(frames), size // 2):
        a.send_all(frames[i:i + size // 2])
        assert b.expect(len(frames[i:i + size // 2])) == frames[i:i + size // 2]
    frames = numbered(20, BROADCAST, B, 7)
    b.send_all(frames)
    assert a.expect(20) == frames
    assert c.expect(20) == frames
    # What goes to one guest is seen by that one only: c gets nothing in between.
    a.send(ethernet(B, A, number=1))
    a.send(ethernet(BROADCAST, A, number=2))
    assert [number_of(f) for f in b.expect(2)] == [1, 2]
    assert [number_of(f) for f in c.expect(1)] == [2]
    a.drain()
    b.drain()


@pytest.mark.parametrize("event_idx", (False, True))
@pytest.mark.parametrize("base", (65500, 40000))
def test_index_wraps(switch, base, event_idx):
    """The 16-bit indices pass 65535 in both rings."""
    s = switch()
    a, b = s.pair_of_guests(base=base, event_idx=event_idx, indirect=True)
    for i in range(0, 200 if base == 65500 else 30000, 100):
        frames = numbered(100, B, A, i)
        a.send_all(frames)
        assert b.expect(100) == frames


@pytest.mark.parametrize("event_idx", (False, True))
def test_slow_ping_pong(switch, event_idx):
    """One frame at a time with a sleeping daemon on one side and sleeping guests on the other: no wake-up is lost."""
    s = switch(options={0: ",busy-poll-us=0", 1: ",busy-poll-us=0"})
    a, b = s.pair_of_guests(event_idx=event_idx)
    for i in range(300):
        a.send(ethernet(B, A, number=i))
        assert number_of(b.expect()[0]) == i
        b.send(ethernet(A, B, number=i))
        assert number_of(a.expect()[0]) == i
    ring = s.ring(1, 0)
    assert ring["calls_sent"] > 0


def test_legacy_header(switch):
    """Neither VERSION_1 nor mergeable buffers: a header of ten bytes."""
    s = switch()
    a, b = s.pair_of_guests(modern=False, mergeable=False)
    frames = numbered(50, B, A)
    a.send_all(frames)
    assert b.expect(50) == frames


@pytest.mark.parametrize("kicks,calls", ((False, True), (True, False), (False, False)))
def test_no_descriptor_bit(switch, kicks, calls):
    """KICK or CALL without a descriptor: the daemon polls the ring, the guest polls the used index."""
    s = switch(options={0: ",busy-poll-us=0", 1: ",busy-poll-us=0"})
    a, b = s.pair_of_guests(kicks=kicks, calls=calls)
    for i in range(20):
        a.send(ethernet(B, A, number=i))
        assert number_of(b.expect()[0]) == i


def test_kick_before_enable(switch):
    """What was offered and kicked before a ring is enabled is found when it is."""
    s = switch()
    b = s.guest(1)
    s.learn(b, B)
    a = s.guest(0, start=False)
    a.start(enable=[0])
    a.send_all(numbered(10, B, A))
    assert not s.ring(0, 1)["enabled"]
    assert b.receive() is None
    a.frontend.enable(1)
    assert b.expect(10) == numbered(10, B, A)


def test_flood_before_enable(switch):
    """Frames for a ring that is not enabled are dropped and counted; nothing waits, nobody else is slowed."""
    s = switch(ports=3)
    a, c = s.guest(0), s.guest(2)
    b = s.guest(1, start=False)
    b.start(enable=[1])
    s.learn(a, A, c)
    b.send(ethernet(BROADCAST, B, number=1))
    assert number_of(a.expect()[0]) == 1
    assert number_of(c.expect()[0]) == 1
    for i in range(0, 500, 100):
        a.send_all(numbered(100, BROADCAST, A, i))
        assert c.expect(100) == numbered(100, BROADCAST, A, i)
    a.drain()
    assert b.rings[0].pending() == 0
    b.frontend.enable(0)
    a.send(ethernet(BROADCAST, A, number=9))
    assert number_of(b.expect()[0]) == 9


def test_no_receive_buffers(switch):
    """No buffers posted: drop and count, no spin, no other port slowed; buffers posted later are used."""
    s = switch(ports=3)
    a, c = s.guest(0), s.guest(2)
    b = s.guest(1, posted=0)
    s.learn(a, A, c)
    s.learn(b, B, a, c)
    a.send_all(numbered(200, B, A))
    a.drain()
    dropped = s.counters(1)["to_guest_no_buffers"]
    assert dropped == 201  # one is a's broadcast
    before = s.cpu_seconds()
    a.send(ethernet(C, A, number=5))
    assert number_of(c.expect()[0]) == 5
    wait_readable(a.call_fds[0], 1.0)  # a second in which nothing happens
    eventfd_read(a.call_fds[0])
    assert s.cpu_seconds() - before < 0.5
    b.post(0, 16)
    frames = numbered(16, B, A, 50)
    a.send_all(frames)
    assert b.expect(16, recycle=False) == frames


@pytest.mark.parametrize("cuts", ((5,), (12,), (4, 8), (3, 12, 26), (13,), (20, 40, 60), tuple(range(1, 60))))
@pytest.mark.parametrize("indirect", (False, True))
def test_header_over_descriptors(switch, cuts, indirect):
    """The virtio header and the Ethernet header cut at any place."""
    s = switch()
    a, b = s.pair_of_guests(indirect=indirect)
    frames = numbered(5, B, A, 3)
    for frame in frames:
        a.send(frame, cuts=cuts)
    assert b.expect(5) == frames


def test_short_frames(switch):
    """Shorter than an Ethernet header: dropped and counted. Short but whole: padded to 60 toward guests."""
    s = switch()
    a, b = s.pair_of_guests()
    for length in (0, 1, 13):
        a.send((B + A + b"\x88\xb5")[:length])
    a.rings[1].offer(a.rings[1].make([(a.send_slots[0][0], 1, False)]))
    a.rings[1].offer(a.rings[1].make([(a.send_slots[0][0], 11, False)]))
    a.publish(1)
    whole = [ethernet(B, A, length=n) for n in range(14, 60)]
    a.send_all(whole)
    for sent, got in zip(whole, b.expect(len(whole))):
        assert got == sent + bytes(60 - len(sent))
    a.drain()
    counters = s.counters(0)
    assert counters["from_guest_frame_short"] + counters["from_guest_header_short"] == 5
    assert s.ring(0, 1)["fault"] == "none"


def test_jumbo_into_mergeable(switch):
    """A frame of 9000 bytes spread over as many buffers as it needs; num_buffers and lengths are checked by receive()."""
    s = switch()
    a, b = s.pair_of_guests(buffer=1536)
    frames = [ethernet(B, A, length=n, number=n) for n in (1524, 1525, 3060, 3061, 9000, 9216)]
    a.send_all(frames)
    assert b.expect(len(frames)) == frames


def test_jumbo_without_mergeable(switch):
    """A frame that does not fit the one buffer is dropped whole and counted; the buffer serves the next."""
    s = switch()
    a, b = s.pair_of_guests(mergeable=False, buffer=1536)
    a.send(ethernet(B, A, length=1525, number=1))
    a.send(ethernet(B, A, length=9000, number=2))
    a.send(ethernet(B, A, length=1524, number=3))
    assert [number_of(f) for f in b.expect()] == [3]
    assert s.counters(1)["to_guest_too_large"] == 2


def test_few_buffers_for_a_large_frame(switch):
    """A frame that needs more buffers than there are takes none."""
    s = switch()
    a, b = s.guest(0), s.guest(1, posted=4, buffer=1536)
    s.learn(b, B, a)
    a.send(ethernet(B, A, length=9000, number=1))
    a.drain()
    a.send(ethernet(B, A, length=4 * 1536 - 12, number=2))
    frame = b.expect(recycle=False)[0]
    assert len(frame) == 4 * 1536 - 12 and number_of(frame) == 2


@pytest.mark.parametrize("pairs", (2, 4))
def test_multiqueue(switch, pairs):
    """Frames come in on every pair, and rings that are not enabled are not used."""
    s = switch(queues=pairs)
    b = s.guest(1, pairs=pairs)
    a = s.guest(0, start=False, pairs=pairs)
    a.start(enable=[0, 1])
    s.learn(a, A, b)
    for pair in range(pairs):
        b.send(ethernet(BROADCAST, B, number=pair), pair=pair)
        assert number_of(a.expect()[0]) == pair
    for index in range(2, 2 * pairs):
        a.frontend.enable(index)
    for pair in range(pairs):
        a.send(ethernet(B, A, number=pair), pair=pair)
        assert number_of(b.expect()[0]) == pair
    # One pair only, under traffic: answers no longer come on the others.
    for index in range(2, 2 * pairs):
        a.frontend.enable(index, False)
    seen = [ring.used16[1] for ring in a.rings]
    b.send_all(numbered(64, A, B), pair=1)
    assert a.expect(64) == numbered(64, A, B)
    assert all(ring.used16[1] == before for ring, before in list(zip(a.rings, seen))[2:])


def test_call_descriptor_changed_under_traffic(switch):
    """A new call descriptor gets the calls, and one at once, so that none is lost in the change."""
    s = switch()
    a, b = s.pair_of_guests()
    for i in range(50):
        a.send(ethernet(B, A, number=i))
        old = b.call_fds[0]
        b.call_fds[0] = b.frontend.new_eventfd()
        b.frontend.set_vring_fd(Request.SET_VRING_CALL, 0, b.call_fds[0])
        assert number_of(b.expect()[0]) == i
        eventfd_read(old)
        a.send(ethernet(B, A, number=1000 + i))
        assert number_of(b.expect()[0]) == 1000 + i
        assert eventfd_read(old) == 0
