# SPDX-License-Identifier: BSD-2-Clause
"""What frontends send and leave is released without holding up anybody: descriptors whose close() never returns, memory, calls."""
import os
import struct

import pytest

from one_port import negotiated
from rig import wait_for
from stalling_files import NoFuse, StallingFiles
from vhost_frontend import NEED_REPLY, VERSION, Region, Request, eventfd_read, u64, wait_readable


@pytest.fixture
def stalling():
    try:
        files = StallingFiles()
    except NoFuse as error:
        pytest.skip(f"no FUSE for this test: {error}")
    yield files
    files.end()


@pytest.fixture
def two(switch):
    s = switch(ports=2, queues=2)
    s.idle = (s.descriptors(), s.mappings())
    return s


def message(request, payload=b"", flags=0):
    return struct.pack("@III", request, VERSION | flags, len(payload)) + payload


def reapers(s):
    """Threads that release something."""
    names = []
    for task in os.listdir(f"/proc/{s.pid}/task"):
        with open(f"/proc/{s.pid}/task/{task}/comm") as file:
            names.append(file.read().strip())
    return names.count("vhostlane-reap")


def others_well(s):
    f = negotiated(s, 1)
    assert f.ask_u64(Request.GET_QUEUE_NUM) == 2
    f.close()
    s.wait_state(1, "waiting")


@pytest.mark.parametrize("request_", (Request.GET_FEATURES, Request.SET_MEM_TABLE, Request.SET_VRING_CALL, Request.SET_LOG_FD, 99))
def test_close_that_never_returns(two, stalling, request_):
    f = negotiated(two, acks=False)
    stalling.send(f, message(request_, b"" if request_ == Request.GET_FEATURES else u64(1)))
    if request_ == Request.SET_LOG_FD:
        f.get_features()  # passed over
        f.close()
    assert f.socket.fileno() < 0 or f.ended()
    wait_for(lambda: reapers(two), "somebody closes it", pause=0.01)
    two.wait_state(0, "waiting")
    others_well(two)
    # The port itself goes on, too.
    f = negotiated(two)
    assert f.ask_u64(Request.GET_QUEUE_NUM) == 2
    f.close()
    wait_for(lambda: reapers(two) == 1, "all but that one are done", pause=0.05)
    stalling.end()
    two.wait_counts(*two.idle)


def test_memory_on_a_stalling_file(two, stalling):
    """Neither its size nor its file system's kind is asked for: it is refused."""
    f = negotiated(two)
    region = Region(1 << 20, 1 << 30, 1 << 40)
    for request, payload in ((Request.SET_MEM_TABLE, struct.pack("@II", 1, 0) + region.pack()), (Request.ADD_MEM_REG, u64(0) + region.pack())):
        stalling.send(f, message(request, payload, NEED_REPLY))
        assert struct.unpack("@Q", f.reply(request)) != (0,)
    assert "/dev/shm" in two.daemon.log()
    f.add_region(region)
    f.close()
    region.close()
    others_well(two)
    stalling.end()
    two.wait_counts(*two.idle)


def test_more_than_can_be_closed(two, stalling):
    """A frontend that goes on sending such descriptors is read no further and then dropped, and so is the next one; nobody else."""
    f = negotiated(two)
    for _ in range(30):
        stalling.send(f, message(Request.GET_FEATURES, flags=NEED_REPLY), 8)
    assert f.ended()
    assert two.descriptors() < two.idle[0] + 150
    assert "cannot be closed" in two.show(0)["last_fault"]
    late = two.frontend(0)
    late.send(Request.GET_FEATURES)
    others_well(two)
    assert not wait_readable(late.socket.fileno(), 0.5)
    assert two.state(0) == "waiting"
    stalling.end()
    late.reply(Request.GET_FEATURES)
    late.close()
    f.close()
    two.wait_counts(*two.idle)


def test_memory_goes_behind_everybodys_back(two, stalling):
    """The memory of a guest that left is unmapped where nobody waits for it: here behind a descriptor that stands in the way."""
    guest = two.guest(0)
    stalling.send(guest.frontend, message(Request.GET_FEATURES, flags=NEED_REPLY))
    assert struct.unpack("@Q", guest.frontend.reply(Request.GET_FEATURES)) != (0,)
    wait_for(lambda: reapers(two), "somebody closes it", pause=0.01)
    guest.close()
    two.wait_state(0, "waiting")
    others_well(two)
    assert two.mappings() == two.idle[1] + 1
    stalling.end()
    two.wait_counts(*two.idle)


def test_call_descriptors_again_and_again(two):
    """Each gets its call at once, by one asynchronous context for all: making one takes tens of milliseconds."""
    guest = two.guest(0)
    for _ in range(300):
        fd = guest.call_fds[1]
        eventfd_read(fd)
        guest.frontend.set_vring_fd(Request.SET_VRING_CALL, 1, fd)
        assert eventfd_read(fd) == 1
    with open(f"/proc/{two.pid}/maps") as file:
        assert sum("[aio]" in line for line in file) == 1
