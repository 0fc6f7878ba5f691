# SPDX-License-Identifier: BSD-2-Clause
"""Random wrongness from fixed seeds: messages and ring contents. The daemon lives, its other guests notice nothing, nothing leaks."""
import itertools
import os
import random
import struct

import pytest

from vhost_frontend import F_PROTOCOL, F_VERSION_1, NO_FD, Disconnected, Request, eventfd
from virtio_driver import ethernet, mac, numbered

A, B = mac(1), mac(2)
NUMBERS = (0, 1, 2, 3, 7, 8, 15, 16, 31, 63, 64, 255, 256, 257, 1024, 4095, 4096, 32767, 32768, 32769, 65535, 65536, 0x7FFFFFFF, 0x80000000,
           0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1)


def still_well(s, a, b, start):
    a.send_all(numbered(10, B, A, start))
    assert b.expect(10) == numbered(10, B, A, start)
    assert s.daemon.alive()


def some_payload(dice, guest):
    """Random bytes, or numbers at the edges, or something that is nearly right."""
    kind = dice.randrange(4)
    region = guest.memory.regions[0]
    if kind == 0:
        return dice.randbytes(dice.choice((0, 4, 8, 8, 8, 16, 20, 40, 40, 72, 264)))
    if kind == 1:
        return struct.pack("@II", dice.randrange(6), dice.choice(NUMBERS) & 0xFFFFFFFF)
    if kind == 2:
        return struct.pack("@Q", dice.choice((dice.choice(NUMBERS), dice.randrange(4) | NO_FD, dice.randrange(4), F_PROTOCOL | F_VERSION_1)))
    edge = [dice.choice((region.guest, region.user, region.size, 0, dice.choice(NUMBERS))) for _ in range(4)]
    if dice.randrange(2):
        return struct.pack("@II", dice.choice((1, 1, 2, 9)), 0) + struct.pack("@QQQQ", *edge)
    return struct.pack("@IIQQQQ", dice.randrange(5), 0, *(region.user + dice.randrange(0, region.size, 4096) if dice.randrange(3) else e for e in edge))


@pytest.mark.parametrize("seed", range(6))
def test_messages(switch, seed):
    s = switch(ports=3, queues=2)
    a, b = s.pair_of_guests()
    victim = s.guest(2, start=False, memory=8 << 20)
    victim.close()
    s.wait_state(2, "waiting")
    counts = s.descriptors(), s.mappings()
    dice = random.Random(seed)
    events = [eventfd() for _ in range(4)]
    memfd = victim.memory.regions[0].fd
    sent = 0
    for attempt in itertools.count():
        if sent >= 1500:
            break
        if attempt % 8 == 0:
            s.calm(2)
        f = s.frontend(2)
        f.socket.settimeout(0.0 if seed % 2 else 0.05)
        try:
            if dice.randrange(3):
                f.socket.settimeout(60)
                f.negotiate_protocol()
                f.set_features(F_PROTOCOL | F_VERSION_1)
                f.set_mem_table(victim.memory)
                f.socket.settimeout(0.05)
            for _ in range(dice.randrange(1, 60)):
                sent += 1
                request = dice.choice(list(Request) + [0, 41, 44, 45, 1 << 31])
                fds = [dice.choice(events + [memfd, 0]) for _ in range(dice.choice((0, 0, 0, 1, 1, 2, 8, 9)))]
                payload = some_payload(dice, victim)
                size = dice.choice((None,) * 12 + (0, 8, 0xFFFFFFFF))
                f.send(request, payload, fds, flags=dice.choice((0, 0, 8)), size=size, version=dice.choice((1,) * 20 + (0, 2)))
        except (Disconnected, BlockingIOError, TimeoutError, AssertionError):
            pass
        f.close()
        if dice.randrange(8) == 0:
            still_well(s, a, b, sent)
    still_well(s, a, b, 0)
    s.wait_state(2, "waiting")
    s.wait_counts(*counts)
    for fd in events:
        os.close(fd)


@pytest.mark.parametrize("indirect", (False, True))
@pytest.mark.parametrize("seed", range(3))
def test_ring_contents(switch, seed, indirect):
    """Descriptors, heads and indices at random, while a good guest sends to the bad one."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    dice = random.Random(seed)
    victim = s.guest(2, indirect=indirect, event_idx=bool(seed % 2), memory=32 << 20)
    s.learn(victim, mac(3), a, b)
    region = victim.memory.regions[0]
    f = victim.frontend
    for attempt in range(120):
        for index, ring in enumerate(victim.rings):
            for _ in range(dice.choice((1, 4, 40))):
                address = dice.choice((region.guest + dice.randrange(region.size), dice.choice(NUMBERS), region.guest + region.size - 3))
                length = dice.choice((dice.randrange(2000), dice.choice(NUMBERS) & 0xFFFFFFFF))
                ring.write_desc(dice.randrange(ring.size), address, length, dice.choice((0, 1, 2, 3, 4, 5, 6, 7, 0xFFFF)),
                                dice.choice((dice.randrange(ring.size), dice.randrange(65536))))
            for _ in range(8):
                ring.avail[2 + dice.randrange(ring.size)] = dice.choice((dice.randrange(ring.size), dice.randrange(65536)))
            ring.next = (ring.next + dice.choice((1, 1, 2, 8, 8, 300, 0x8000))) & 0xFFFF
            ring.publish()
            victim.kick(index)
        a.send_all([ethernet(b"\xff" * 6, A, length=dice.randrange(60, 1500)) for _ in range(8)])
        while b.receive():
            pass
        if attempt % 10 == 0:
            # Resets its device with rings as they are now, whatever that is.
            for index, ring in enumerate(victim.rings):
                base = f.get_vring_base(index)
                ring.avail[1] = ring.next = base
                victim.setup_ring(index, base=base)
    a.drain()
    while b.receive():
        pass
    # b may have got what the bad guest sent meanwhile; look for what a sends now.
    a.send(ethernet(B, A, number=0xE4D))
    while b.expect()[0][14:18] != struct.pack(">I", 0xE4D):
        pass
    assert s.daemon.alive() and s.state(2) == "serving" or s.state(2) == "negotiated"
