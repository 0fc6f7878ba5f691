# SPDX-License-Identifier: BSD-2-Clause
"""Tables of guests' memory: told again and again, region by region, too many, no good, and a file that shrinks."""
import os
import struct

import pytest

from one_port import finish, negotiated
from rig import wait_for
from vhost_frontend import Region, Request, u64
from virtio_driver import ethernet, mac, number_of, numbered

A, B, C = mac(1), mac(2), mac(3)


def test_memory_again_under_traffic(switch):
    """The same table and others, again and again, without new ring addresses; rings go on where they stand."""
    s = switch()
    a, b = s.guest(0, regions=4), s.guest(1, regions=4)
    s.learn(a, A, b)
    s.learn(b, B, a)
    descriptors, mappings = s.descriptors(), s.mappings()
    for i in range(100):
        a.send_all(numbered(20, B, A, 20 * i))
        one = (a, b)[i % 2]
        if i % 3 == 2:
            extra = Region(1 << 20, 1 << 44, 1 << 45)
            one.frontend.set_mem_table(one.memory, one.memory.regions + [extra])
            extra.close()
        else:
            one.frontend.set_mem_table(one.memory)
        a.send(ethernet(B, A, number=0xE4D))
        if one is a:
            # What the guest had offered waits and is sent.
            assert b.expect(20) == numbered(20, B, A, 20 * i)
            assert number_of(b.expect()[0]) == 0xE4D
        else:
            # What came for it while its rings stood still is lost; what is there is in order, whole, and not twice.
            frames = [b.expect()[0]]
            while number_of(frames[-1]) != 0xE4D:
                frames.append(b.expect()[0])
            got = [number_of(f) - 20 * i for f in frames[:-1]]
            assert got == sorted(set(got)) and frames[:-1] == [numbered(20, B, A, 20 * i)[n] for n in got]
        a.drain()
    for guest in (a, b):
        guest.frontend.set_mem_table(guest.memory)
    s.wait_counts(descriptors, mappings)


def test_many_regions(switch):
    """Nine DIMMs and more: by slots as many as are offered, one message holds eight and says so."""
    s = switch()
    a, b = s.pair_of_guests()
    f = a.frontend
    slots = f.ask_u64(Request.GET_MAX_MEM_SLOTS)
    extra = [Region(4096, (1 << 44) + i * 8192, (1 << 45) + i * 8192) for i in range(slots - 1)]
    for region in extra:
        f.add_region(region)
    one_more = Region(4096, 1 << 46, 1 << 46)
    assert f.try_tell(Request.ADD_MEM_REG, u64(0) + one_more.pack(), [one_more.fd]) != 0
    a.send(ethernet(B, A, number=1))
    assert number_of(b.expect()[0]) == 1
    for region in extra:
        f.remove_region(region)
    # QEMU 7 says it once for each queue pair; but what never was cannot go.
    assert f.try_tell(Request.REM_MEM_REG, u64(0) + extra[0].pack()) == 0
    assert f.try_tell(Request.REM_MEM_REG, u64(0) + one_more.pack()) != 0
    payload, fds = a.memory.table(a.memory.regions + extra[:8])
    f.acks = False
    f.send(Request.SET_MEM_TABLE, payload, fds)
    assert f.ended()
    for region in [*extra, one_more]:
        region.close()


def test_region_by_region(switch):
    """Memory that comes by ADD_MEM_REG, after the rings' addresses; frames in buffers of every region; then one goes."""
    s = switch()
    b = s.guest(1)
    s.learn(b, B)
    a = s.guest(0, start=False, regions=3, memory=24 << 20)
    a.negotiate()
    a.post(kick=False)
    for index in (0, 1):
        a.setup_ring(index)
        a.frontend.enable(index)
    assert s.state(0) == "negotiated"
    for region in a.memory.regions[::-1]:
        a.frontend.add_region(region)
    assert s.state(0) == "serving"
    ring = a.rings[1]
    for region in a.memory.regions:
        at = a.memory.allocate(2048, 64, region)
        data = bytes(12) + ethernet(B, A, length=700)
        a.memory.write(at, data)
        ring.offer(ring.make([(at, len(data), False)]))
    a.publish(1)
    assert b.expect(3) == [ethernet(B, A, length=700)] * 3
    a.frontend.remove_region(a.memory.regions[2])
    a.send(ethernet(B, A, number=4))
    assert number_of(b.expect()[0]) == 4


@pytest.mark.parametrize("what", ("pipe", "null", "read-only", "too small", "zero", "wraps", "overlap"))
def test_memory_that_is_no_good(lone, what):
    f = negotiated(lone)
    region = Region(1 << 20, 1 << 30, 1 << 40)
    other = Region(1 << 20, 1 << 31, 1 << 41)
    fds = [region.fd, other.fd]
    extra = -1
    if what == "pipe":
        fds[1], extra = os.pipe()
    elif what == "null":
        fds[1] = extra = os.open("/dev/null", os.O_RDWR)
    elif what == "read-only":
        fds[1] = extra = os.open(f"/proc/self/fd/{other.fd}", os.O_RDONLY)
    elif what == "too small":
        other.offset = 4096
    elif what == "zero":
        other.size = 0
    elif what == "wraps":
        other.guest = (1 << 64) - 4096
    elif what == "overlap":
        other.guest = region.guest + (1 << 19)
    table = struct.pack("@II", 2, 0) + region.pack() + other.pack()
    assert f.try_tell(Request.SET_MEM_TABLE, table, fds) != 0
    assert f.try_tell(Request.ADD_MEM_REG, u64(0) + region.pack(), fds[:1]) == 0
    assert f.try_tell(Request.ADD_MEM_REG, u64(0) + other.pack(), fds[1:]) != 0
    wait_for(lambda: lone.mappings() == lone.idle[1] + 1, "nothing mapped of what was refused", pause=0.01)
    for fd in {extra, fds[1]} - {-1, other.fd}:
        os.close(fd)
    other.size = 1 << 20
    other.close()
    region.close()
    finish(lone, f)


def test_memory_file_that_shrinks(switch):
    """Truncated under traffic: that guest's session ends and says why, the others do not notice."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    c = s.guest(2)
    s.learn(c, C, a, b)
    os.ftruncate(c.memory.regions[0].fd, 0)
    a.send_all(numbered(50, C, A))
    s.wait_state(2, "waiting")
    assert "became shorter" in s.show(2)["last_fault"]
    a.drain()
    while b.receive():
        pass  # c's address is nobody's now: its frames were flooded
    a.send(ethernet(B, A, number=1))
    assert number_of(b.expect()[0]) == 1
