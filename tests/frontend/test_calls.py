# SPDX-License-Identifier: BSD-2-Clause
"""Call descriptors that hold up whoever writes them: whose loss that is."""
import math
import os
import struct
import time

import pytest

from rig import wait_for
from vhost_frontend import Request, eventfd, eventfd_read
from virtio_driver import BROADCAST, NetGuest, ethernet, mac, number_of, numbered

A, B, C = mac(1), mac(2), mac(3)


def blocking_call(frontend):
    """A call descriptor of ring 0 that is full and blocks; the daemon has made it non-blocking before."""
    call = eventfd(flags=os.O_CLOEXEC)
    frontend.set_vring_fd(Request.SET_VRING_CALL, 0, call)
    os.set_blocking(call, False)
    eventfd_read(call)
    os.write(call, struct.pack("@Q", 0xFFFFFFFFFFFFFFFE))
    os.set_blocking(call, True)
    frontend.fds.append(call)


def test_full_call_counter_blocks_nobody(switch):
    """A call descriptor that is full and blocks: its session ends, everything else goes on."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    c = s.guest(2)
    s.learn(c, C, a, b)
    blocking_call(b.frontend)
    b.rings[0].want_call()
    a.send_all(numbered(10, B, A))
    for i in range(20):
        a.send(ethernet(C, A, number=i))
        assert number_of(c.expect()[0]) == i
    assert b.frontend.ended()
    assert s.state(2) == s.state(0) == "serving"
    assert "held up the worker" in s.show(1)["last_fault"]
    # The next one is let in, if later.
    b.reconnect()
    s.learn(b, B, a, c)


@pytest.mark.parametrize("leave", (False, True), ids=("found out", "gone before"))
def test_repeated_blocking_costs_ever_less(switch, leave):
    """Whoever blocks workers again and again is let in after pauses that double, also if it never waits to be found out."""
    s = switch(ports=3)
    a, c = s.guest(0), s.guest(2)
    s.learn(c, C, a)
    s.learn(a, A, c)
    began, times = time.monotonic(), 0
    while time.monotonic() < began + 8:
        with NetGuest(s.paths[1], size=8, memory=4 << 20) as b:
            times += 1
            blocking_call(b.frontend)
            a.send(ethernet(BROADCAST, A, number=times))
            assert number_of(c.expect()[0]) == times
            wait_for(lambda: b.rings[0].pending(), "the frame is in the ring of the one who blocks", pause=0.001)  # noqa: B023
            assert leave or b.frontend.ended()
    # At 0, 1, 3, 7 ... seconds at the earliest.
    assert 2 <= times <= 1 + math.log2(time.monotonic() - began + 1)
    a.send_all(numbered(20, C, A))
    assert c.expect(20) == numbered(20, C, A)
