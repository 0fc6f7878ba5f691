# SPDX-License-Identifier: BSD-2-Clause
"""What one worker does with several guests: how it shares itself, when it polls and sleeps, and that its counters say so."""
import os
import time

import pytest

from rig import wait_for
from virtio_driver import BROADCAST, ethernet, mac, number_of

A, B, C = mac(1), mac(2), mac(3)
FRAME_BURST = 64  # user/datapath/frame.h


def one_worker(switch, **options):
    cpu = min(os.sched_getaffinity(0))
    return switch(arguments=("--cpus", str(cpu)), **options)


def worker(s):
    return s.daemon.json("worker", "list")[0]


def queue(s, port):
    return next(pair for pair in s.daemon.json("queue", "list") if pair["port"] == s.names[port])


# --- sharing

@pytest.mark.parametrize("first", (0, 1), ids=("flooder first", "flooder last"))
def test_a_full_ring_keeps_nobody_waiting(switch, first):
    """A thousand frames of one guest are there before one of another, all at one wake-up: a burst goes before it at most."""
    s = one_worker(switch, ports=3, options={port: ",busy-poll-us=0" for port in range(3)})
    flooder, other = s.guest(first, size=1024), s.guest(1 - first, size=1024)
    taker = s.guest(2, size=2048)
    s.learn(taker, C, flooder, other)
    s.learn(flooder, A, taker, other)
    s.learn(other, B, taker, flooder)
    wait_for(lambda: worker(s)["state"] == "asleep", "the worker sleeps")
    flood = 1000 // 4 * 4
    for number in range(flood):
        data = bytes(flooder.header) + ethernet(C, A, number=number)
        at = flooder.memory.allocate(len(data), 64)
        flooder.memory.write(at, data)
        flooder.rings[1].offer(flooder.rings[1].make([(at, len(data), False)]))
    other.send(ethernet(C, B, number=0xB0B), publish=False)
    # Visible before anybody is told: the worker finds all of it in its first round.
    assert other.rings[1].publish() and flooder.rings[1].publish()
    other.kick(1)
    flooder.kick(1)
    numbers = [number_of(frame) for frame in taker.expect(flood + 1)]
    assert numbers.index(0xB0B) <= FRAME_BURST, f"{numbers.index(0xB0B)} frames went before it"
    numbers.remove(0xB0B)
    assert numbers == list(range(flood))


def test_more_pairs_than_workers(switch):
    """Sixteen guests with two pairs each on one worker: everybody is served, on every pair."""
    s = one_worker(switch, ports=16, queues=2)
    guests = [s.guest(port, pairs=2, size=64, memory=4 << 20) for port in range(16)]
    wait_for(lambda: worker(s)["pairs"] == 32, "all pairs have their place")
    for port, guest in enumerate(guests):
        for pair in range(2):
            guest.send(ethernet(BROADCAST, mac(10 + port), number=port * 2 + pair), pair=pair)
    for port, guest in enumerate(guests):
        numbers = sorted(number_of(frame) for frame in guest.expect(30))
        assert numbers == [n for n in range(32) if n // 2 != port]


# --- polling and sleeping

def ping_pong(a, b, count, pause=0.0):
    for i in range(count):
        a.send(ethernet(B, A, number=i))
        assert number_of(b.expect()[0]) == i
        time.sleep(pause)


def grown(s, before):
    now = worker(s)
    return {key: now[key] - before[key] for key in now if isinstance(now[key], int)}


def test_never_polls(switch):
    """busy-poll-us=0: each frame of a quiet guest is a kick, a wake-up and a sleep."""
    s = one_worker(switch, options={0: ",busy-poll-us=0", 1: ",busy-poll-us=0"})
    a, b = s.pair_of_guests()
    wait_for(lambda: worker(s)["state"] == "asleep", "the worker sleeps")
    before, kicks = worker(s), a.rings[1].kicks
    ping_pong(a, b, 50, pause=0.005)
    kicked = a.rings[1].kicks - kicks
    wait_for(lambda: grown(s, before)["kicks_received"] >= 45, "kicks are counted")
    change = grown(s, before)
    assert 45 <= kicked <= 50
    assert change["kicks_received"] <= kicked + b.rings[0].kicks  # receive buffers given back may be kicked for, too
    assert change["sleeps"] >= 45 and change["hits"] >= 50 and change["frames_from_rings"] == 50
    # Each frame costs a few rounds, and no time is spent polling but for the last look before each sleep.
    assert change["rounds"] < 50 * 20
    assert change["ns_polling"] < change["ns_asleep"] / 10


def test_always_polls_until_told_otherwise(switch):
    """`always` does not sleep while nobody else wants its CPU; set to 0 at run time it sleeps at once; and what is set can be read back."""
    s = one_worker(switch, options={0: ",busy-poll-us=always", 1: ",busy-poll-us=0"})
    a, b = s.pair_of_guests()

    def polled_through():
        """A while in which this machine left the worker its CPU: on one that others want, it gives way (patience_percent)."""
        before = worker(s)
        ping_pong(a, b, 20, pause=0.01)
        change = grown(s, before)
        return change if change["sleeps"] == 0 and worker(s)["state"] == "running" else None
    change = wait_for(polled_through, "the worker polls without a pause")
    assert change["ns_asleep"] == 0 and change["kicks_received"] == 0, change
    assert change["polls"] > change["hits"] > 0 and change["ns_polling"] > 0
    assert queue(s, 0)["busy-poll-us"] == "always"
    assert s.daemon.json("queue", "set", "p0/0", "busy-poll-us=0")["busy-poll-us"] == 0
    wait_for(lambda: worker(s)["state"] == "asleep", "the worker sleeps")
    # An idle worker does nothing at all.
    before = worker(s)
    time.sleep(1)
    assert grown(s, before)["rounds"] < 20
    s.daemon.cli("queue", "set", "p0/0", "busy-poll-us=adaptive")
    assert queue(s, 0)["busy-poll-us"] == "adaptive"
    ping_pong(a, b, 5)


def test_time_is_accounted_for(switch):
    """Busy, polling and asleep together are the time that went by."""
    s = one_worker(switch)
    a, b = s.pair_of_guests()
    for pause in (0.0, 0.02):
        wait_for(lambda: worker(s)["state"] == "asleep", "the worker sleeps")  # its last sleep is noted at its end: begin and end alike
        ping_pong(a, b, 1)
        begin, before = time.monotonic_ns(), worker(s)
        ping_pong(a, b, 100, pause)
        after, end = worker(s), time.monotonic_ns()
        spent = {key: after[key] - before[key] for key in ("ns_busy", "ns_polling", "ns_asleep")}
        assert all(value >= 0 for value in spent.values()) and spent["ns_busy"] > 0
        # Two readings of a running clock: what lies between a reading and the worker's own last note may be missing.
        assert sum(spent.values()) <= (end - begin) * 1.05 + 30e6, (spent, end - begin)
        assert sum(spent.values()) >= (end - begin) * 0.5 - 30e6, (spent, end - begin)


def test_calls_are_counted(switch):
    """Sent when the guest wants them, suppressed when it does not."""
    s = one_worker(switch)
    a, b = s.pair_of_guests()
    b.rings[0].want_call(True)
    sent, suppressed = queue(s, 1)["calls_sent"], queue(s, 1)["calls_suppressed"]
    for number in range(10):
        a.send(ethernet(B, A, number=number))
        assert number_of(b.expect()[0]) == number
    now = queue(s, 1)
    assert now["calls_sent"] - sent >= 1
    b.rings[0].want_call(False)
    sent, suppressed = now["calls_sent"], queue(s, 1)["calls_suppressed"]
    got = b.rings[0].used16[1]
    for number in range(10):
        a.send(ethernet(B, A, number=number))
        wait_for(lambda n=number: (b.rings[0].used16[1] - got) & 0xFFFF > n, "the frame is there without a call", pause=0.001)
    now = queue(s, 1)
    assert now["calls_sent"] == sent and now["calls_suppressed"] >= suppressed + 10


# --- work that nobody serves

def test_age_of_what_waits(switch):
    """A guest that offers and neither kicks nor is polled: its work waits, its age is told, and it is fetched all the same."""
    s = one_worker(switch, options={0: ",busy-poll-us=0", 1: ",busy-poll-us=0"})
    a, b = s.pair_of_guests()
    wait_for(lambda: worker(s)["state"] == "asleep", "the worker sleeps")
    assert queue(s, 0)["waiting_us"] == 0
    waits_us = []

    def waited():
        """Whether it did: something else may have woken the worker in time."""
        a.send(ethernet(B, A, number=7), publish=False)
        a.rings[1].publish()  # a kick is wanted as long as the worker sleeps, and owed
        begin = time.monotonic()
        assert number_of(b.expect()[0]) == 7
        waits_us.append((time.monotonic() - begin) * 1e6)
        return queue(s, 0)["longest_wait_us"] > 0
    wait_for(waited, "the wait is told of")
    told = queue(s, 0)
    assert 50_000 <= told["longest_wait_us"] <= max(waits_us) + 50_000 and told["waiting_us"] == 0, (told, waits_us)
    assert "stalled" not in s.daemon.log()
    # The same with a kick: nothing new is told.
    a.send(ethernet(B, A, number=8))
    assert number_of(b.expect()[0]) == 8
    assert queue(s, 0)["longest_wait_us"] == told["longest_wait_us"]
