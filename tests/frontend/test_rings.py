# SPDX-License-Identifier: BSD-2-Clause
"""Rings that a guest wrote wrongly: the ring stops, is counted and named, and nobody else notices."""
import struct
import time

import pytest

from conftest import Switch
from rig import Rig, wait_for
from vhost_frontend import Request, eventfd_read, wait_readable
from virtio_driver import INDIRECT, NEXT, WRITE, ethernet, mac, number_of

A, B, C = mac(1), mac(2), mac(3)


PORTS = 40


class House:
    """One daemon for many tests, with two good guests that live on; each test takes a port that nobody had before."""

    def __init__(self, rig):
        self.rig, self.switch = rig, None

    def open(self):
        self.switch = Switch(self.rig, ports=PORTS, queues=2)
        self.good, self.other = self.switch.guest(0), self.switch.guest(1)
        self.switch.learn(self.good, B, self.other)
        self.switch.learn(self.other, C, self.good)
        self.next_port = 2

    def close(self):
        """It must end well after all of it."""
        switch, self.switch = self.switch, None
        if switch:
            for guest in switch.guests:
                guest.close()
            switch.daemon.stop()

    def take_port(self):
        if self.switch and self.next_port == PORTS:
            self.close()
        if not self.switch:
            self.open()
        # What is still under way to the good ones is of the test before.
        for source, target, address, own in ((self.good, self.other, C, B), (self.other, self.good, B, C)):
            source.send(ethernet(address, own, number=0x5E771E))
            while number_of(target.expect()[0]) != 0x5E771E:
                pass
        self.next_port += 1
        return self.next_port - 1


@pytest.fixture(scope="module")
def house():
    with Rig() as rig:
        house = House(rig)
        yield house
        house.close()


@pytest.fixture
def hostile(house, request):
    made = []

    def make(**options):
        made.append(Hostile(house, **options))
        return made[-1]
    yield make
    if getattr(request.node, "failed", False):
        house.close()  # the next test shall have another one
        return
    for one in made:
        one.guest.close()
        one.switch.guests.remove(one.guest)
        one.switch.wait_state(one.port, "waiting")


class Hostile:
    """A guest whose rings are about to go wrong, and two good ones beside it."""

    def __init__(self, house, **options):
        self.port, self.switch = house.take_port(), house.switch
        self.good, self.other = house.good, house.other
        self.guest = self.switch.guest(self.port, start=False, pairs=2, **options)
        self.guest.start()
        self.switch.learn(self.guest, A, self.good, self.other)
        self.errors = []
        for index in range(4):
            self.errors.append(self.guest.frontend.new_eventfd())
            self.guest.frontend.set_vring_fd(Request.SET_VRING_ERR, index, self.errors[index])

    def offer(self, ring, head, jump=1):
        """A head that Vring would not offer."""
        ring.avail[2 + ring.next % ring.size] = head
        ring.next = (ring.next + jump) & 0xFFFF
        ring.publish()
        self.guest.kick(self.guest.rings.index(ring))

    def provoke(self, index):
        """For a to_guest ring a frame must come along to find the fault."""
        if index % 2 == 0:
            # All flows that there are, so that every pair has to take some.
            for n in range(64):
                self.good.send(ethernet(b"\xff" * 6, b"\x52\x54\0\0\1" + bytes([n]), number=n))

    def expect_fault(self, index, *names):
        assert wait_readable(self.errors[index]), "the error descriptor was not signalled"
        eventfd_read(self.errors[index])
        ring = self.switch.ring(self.port, index)
        assert not ring["started"]
        fault = self.switch.show(self.port)["last_fault"]
        assert f"ring {index} " in fault and any(name in fault for name in names), fault
        # Stopped means that nothing runs.
        before = self.switch.cpu_seconds()
        time.sleep(0.5)
        assert self.switch.cpu_seconds() - before < 0.4

    def expect_others_well(self, broken):
        while self.other.receive() or self.good.receive():
            pass
        for i in range(5):
            self.good.send(ethernet(C, B, number=0xC0DE + i))
            frame = self.other.expect()[0]
            while number_of(frame) != 0xC0DE + i:
                frame = self.other.expect()[0]
        # The guest's own other rings, too.
        for pair in (0, 1):
            if 2 * pair + 1 != broken:
                self.guest.send(ethernet(B, A, number=0xFACE), pair=pair)
                frame = self.good.expect()[0]
                while number_of(frame) != 0xFACE:
                    frame = self.good.expect()[0]

    def revive(self, index):
        """The guest resets its device."""
        guest = self.guest
        guest.frontend.get_vring_base(index)
        guest.rings[index] = type(guest.rings[index])(guest.memory, guest.size, guest.event_idx)
        if index % 2 == 0:
            guest.post(index // 2, 64, kick=False)
        else:
            guest.send_slots[index // 2] = [guest.memory.allocate(guest.SEND_SLOT, 64) for _ in range(16)]
        guest.setup_ring(index, base=0)
        pair = index // 2
        # A flow that the guest sends on this pair is answered on it.
        guest.send(ethernet(B, A, number=0xB0B), pair=pair)
        assert number_of(self.good.expect()[0]) == 0xB0B
        if index % 2 == 0:
            self.good.send(ethernet(A, B, number=0xB0C))
            assert number_of(guest.expect(pair=pair)[0]) == 0xB0C


def buffer_of(guest, data=None):
    at = guest.memory.allocate(4096, 64)
    guest.memory.write(at, data or bytes(12) + ethernet(B, A, length=1000))
    return at


def flags_of(index):
    return WRITE if index % 2 == 0 else 0


LOOPS = {
    "itself": lambda r, at, w: r.write_desc(0, at, 64, w | NEXT, 0),
    "itself, length 0": lambda r, at, w: r.write_desc(0, at, 0, w | NEXT, 0),
    "two": lambda r, at, w: (r.write_desc(0, at, 64, w | NEXT, 1), r.write_desc(1, at, 64, w | NEXT, 0)),
    "two, length 0": lambda r, at, w: (r.write_desc(0, at, 0, w | NEXT, 1), r.write_desc(1, at, 0, w | NEXT, 0)),
    "all": lambda r, at, w: [r.write_desc(i, at, 0, w | NEXT, (i + 1) % r.size) for i in range(r.size)],
}


@pytest.mark.parametrize("index", (0, 1, 2, 3))
@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_loops(hostile, loop, index):
    h = hostile(posted=0)
    ring = h.guest.rings[index]
    LOOPS[loop](ring, buffer_of(h.guest), flags_of(index))
    for _ in range(3 if index % 2 == 0 else 1):
        h.offer(ring, 0)
    h.provoke(index)
    if loop in ("itself", "two") and index % 2 == 0:
        # Frames fit before the chain comes round: lawful as far as anybody looks, or a loop. Nobody spins either way.
        h.expect_others_well(index)
        return
    h.expect_fault(index, "a loop", "descriptor", "longer")
    h.expect_others_well(index)
    h.revive(index)


FAULTS = {
    "head": (lambda h, r, at, w: h.offer(r, r.size), ("head",)),
    "head far": (lambda h, r, at, w: h.offer(r, 0xFFFF), ("head",)),
    "jump": (lambda h, r, at, w: h.offer(r, 0, jump=r.size + 1), ("available index ran",)),
    "jump back": (lambda h, r, at, w: h.offer(r, 0, jump=-1), ("available index ran",)),
    "next": (lambda h, r, at, w: (r.write_desc(0, at, 4, w | NEXT, r.size), h.offer(r, 0)), ("next",)),
    "nowhere": (lambda h, r, at, w: (r.write_desc(0, 0x1000, 4096, w), h.offer(r, 0)), ("address",)),
    "beyond the end": (lambda h, r, at, w: (r.write_desc(0, h.guest.memory.regions[0].guest + h.guest.memory.regions[0].size - 8, 4096, w),
                                            h.offer(r, 0)), ("address",)),
    "wraps": (lambda h, r, at, w: (r.write_desc(0, (1 << 64) - 8, 4096, w), h.offer(r, 0)), ("address",)),
    "4 GiB": (lambda h, r, at, w: (r.write_desc(0, at, 0xFFFFFFFF, w), h.offer(r, 0)), ("address", "frame")),
    "direction": (lambda h, r, at, w: (r.write_desc(0, at, 1500, w ^ WRITE), h.offer(r, 0)), ("direction",)),
    "indirect not negotiated": (lambda h, r, at, w: (r.write_desc(0, at, 16, INDIRECT), h.offer(r, 0)), ("indirect",)),
}


# A receive buffer may be announced longer than what is written of it.
@pytest.mark.parametrize("fault,index", [(fault, index) for fault in sorted(FAULTS) for index in (0, 1) if (fault, index) != ("4 GiB", 0)])
def test_faults(hostile, fault, index):
    h = hostile(posted=0)
    act, names = FAULTS[fault]
    act(h, h.guest.rings[index], buffer_of(h.guest), flags_of(index))
    h.provoke(index)
    if fault == "4 GiB":
        wait_for(lambda: not h.switch.ring(h.port, index)["started"] or h.switch.counters(h.port)["from_guest_frame_long"], "refused", pause=0.01)
    else:
        h.expect_fault(index, *names)
    h.expect_others_well(index)
    h.revive(index)


def table(*descriptors):
    return b"".join(struct.pack("@QIHH", *d) for d in descriptors)


INDIRECTS = {
    "empty": lambda at, w: (b"", 0, INDIRECT),
    "odd length": lambda at, w: (table((at, 100, w, 0)), 17, INDIRECT),
    "too long": lambda at, w: (table((at, 100, w, 0)), 16 * 70000, INDIRECT),
    "with next": lambda at, w: (table((at, 100, w, 0)), 16, INDIRECT | NEXT),
    "nested": lambda at, w: (table((at, 16, INDIRECT, 0)), 16, INDIRECT),
    "next beyond": lambda at, w: (table((at, 4, w | NEXT, 5)), 16, INDIRECT),
    "loop": lambda at, w: (table((at, 0, w | NEXT, 1), (at, 0, w | NEXT, 0)), 32, INDIRECT),
}


@pytest.mark.parametrize("index", (0, 1))
@pytest.mark.parametrize("what", sorted(INDIRECTS))
def test_indirect_tables(hostile, what, index):
    h = hostile(posted=0, indirect=True)
    ring = h.guest.rings[index]
    data, length, flags = INDIRECTS[what](buffer_of(h.guest), flags_of(index))
    at = h.guest.memory.allocate(4096, 64)
    h.guest.memory.write(at, data)
    ring.write_desc(0, at, length, flags)
    h.offer(ring, 0)
    h.provoke(index)
    h.expect_fault(index, "indirect", "loop", "next", "address")
    h.expect_others_well(index)
    h.revive(index)


@pytest.mark.parametrize("event_idx", (False, True))
def test_hostile_indices_of_the_device(hostile, event_idx):
    """A guest that overwrites what the device writes harms only its own view."""
    h = hostile(event_idx=event_idx)
    for value in (0, 1, 0x7FFF, 0xFFFF):
        for ring in h.guest.rings:
            ring.used16[1] = value
            ring.used16[0] = value
            ring.used16[2 + 4 * ring.size] = value
            ring.avail[2 + ring.size] = value
        for pair in (0, 1):
            ring = h.guest.rings[2 * pair + 1]
            at = buffer_of(h.guest)
            h.offer(ring, ring.make([(at, 72, False)]))
        h.provoke(0)
        h.good.expect(2)
        while h.other.receive():
            pass
    assert h.switch.state(h.port) == "serving"


def test_addresses_outside_memory(switch):
    """A ring that is not in guest memory never starts; it starts when it is told a place that is."""
    s = switch()
    b = s.guest(1)
    a = s.guest(0, start=False)
    a.negotiate()
    a.frontend.set_mem_table(a.memory)
    a.post(count=8, kick=False)
    for index in (0, 1):
        a.setup_ring(index)
    user = a.memory.regions[0].user
    for where in (0, user - 4096, user + a.memory.regions[0].size - 16, (1 << 64) - 4096):
        a.frontend.set_vring_addr(1, where, where, where)
        a.frontend.enable(1)
        assert not s.ring(0, 1)["started"]
    assert "no region of guest memory" in s.show(0)["last_fault"]
    for bad in (1, 2, 8):
        payload = struct.pack("@IIQQQQ", 1, 0, user + bad, user + 8192, user + 4096, 0)
        assert a.frontend.try_tell(Request.SET_VRING_ADDR, payload) != 0
    ring = a.rings[1]
    a.frontend.set_vring_addr(1, *(a.memory.user(x) for x in (ring.desc_at, ring.avail_at, ring.used_at)))
    a.send(ethernet(b"\xff" * 6, A, number=1))
    assert number_of(b.expect()[0]) == 1
