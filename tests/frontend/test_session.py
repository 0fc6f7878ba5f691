# SPDX-License-Identifier: BSD-2-Clause
"""Connections: who may, who must wait, what remains when somebody goes, in both socket roles."""
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import time

import pytest

from conftest import BINARY
from rig import wait_for
from vhost_frontend import TIMEOUT, Frontend, Request, listen, wait_readable
from virtio_driver import BROADCAST, ethernet, mac, number_of, numbered

A, B, C = mac(1), mac(2), mac(3)


def exchange(a, b, start=0, count=20):
    """Both know each other."""
    a.send_all(numbered(count, B, A, start))
    assert b.expect(count) == numbered(count, B, A, start)
    b.send_all(numbered(count, A, B, start))
    assert a.expect(count) == numbered(count, A, B, start)


def test_thousand_connects_of_another(switch):
    """B comes and goes a thousand times, in all stages of its setup, while A and C exchange frames: they lose none."""
    s = switch(ports=3)
    a, c = s.guest(0), s.guest(2)
    s.learn(a, A, c)
    s.learn(c, B, a)
    guest = s.guest(1)
    guest.close()
    s.wait_state(1, "waiting")
    counts = s.descriptors(), s.mappings()
    resident = None
    dice = random.Random(3)
    for i in range(1000):
        stage = dice.randrange(5)
        guest.frontend = f = Frontend(s.paths[1])
        if stage > 0:
            guest.negotiate()
        if stage > 1:
            f.set_mem_table(guest.memory)
        if stage > 2:
            for index in (0, 1):
                guest.setup_ring(index, base=guest.rings[index].used16[1])
        if stage > 3:
            for index in (0, 1):
                f.enable(index)
        a.send_all(numbered(4, B, A, 4 * i))
        f.close()
        assert c.expect(4) == numbered(4, B, A, 4 * i)
        if i % 10 == 0:
            exchange(a, c, i)
        if i == 100:
            resident = s.resident_kib()
    s.wait_state(1, "waiting")
    s.wait_counts(*counts)
    assert s.show(1)["sessions"] == 1001
    assert not s.grown_since(resident)
    assert s.show(0)["sessions"] == s.show(2)["sessions"] == 1
    assert s.counters(2)["to_guest_no_buffers"] == s.counters(0)["to_guest_no_buffers"] == 0


def test_second_frontend_is_turned_away(switch):
    s = switch()
    a, b = s.pair_of_guests()
    late = s.frontend(0)
    assert late.ended()
    late.close()
    assert "second frontend" in s.daemon.log()
    exchange(a, b)


def test_reconnect_at_once(switch):
    """A frontend that hangs up and comes back in the same moment is never taken for a second one."""
    s = switch(ports=1)
    for i in range(300):
        if i % 8 == 0:
            s.calm(0)
        f = s.frontend(0)
        assert f.get_features()
        f.close()
    assert "second frontend" not in s.daemon.log()


def test_frontend_comes_back(switch):
    """The same guest on a new connection (its frontend restarted): rings go on where the used index stands."""
    s = switch()
    a, b = s.pair_of_guests()
    for i in range(10):
        exchange(a, b, i)
        b.reconnect()
        s.learn(b, B, a)


def test_forgotten_when_gone(switch):
    """A port that goes down loses its learned addresses at once; its frames go to nobody else but are flooded."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    c = s.guest(2)
    b.close()
    s.wait_state(1, "waiting")
    assert s.show(1)["addresses"] == []
    a.send(ethernet(B, A, number=1))
    assert number_of(c.expect()[0]) == 1


def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def test_frontend_killed_under_traffic(switch):
    """SIGKILL in the middle of a stream; others are unaffected, the port is good for the next."""
    s = switch(ports=3)
    a, c = s.guest(0), s.guest(2)
    s.learn(a, A, c)
    s.learn(c, B, a)
    counts = None
    for i in range(5):
        def flood():
            guest = s.guest(1)
            guest.send(ethernet(BROADCAST, C, number=0x5E4D))
            while True:
                guest.send_all(numbered(64, mac(99), C))
                while guest.receive():
                    pass
        pid = child(flood)
        wait_for(lambda: s.state(1) == "serving" and s.counters(1)["from_guest_frames"] > 100, "traffic", pause=0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        s.wait_state(1, "waiting")
        while a.receive() or c.receive():
            pass
        exchange(a, c, i)
        counts = counts or (s.descriptors(), s.mappings())
        s.wait_counts(*counts)


# --- the daemon goes and comes ---------------------------------------------------------------------------------------


def restart(s):
    s.daemon.kill()
    s.daemon.start()


def test_daemon_killed_server_role(switch):
    """SIGKILL of the daemon: its sockets are taken over by the next one, guests come back with rings half used."""
    s = switch()
    a, b = s.pair_of_guests()
    for i in range(3):
        exchange(a, b, i)
        s.daemon.kill()
        a.send_all(numbered(5, BROADCAST, A, 40))  # offered while nobody serves
        s.daemon.start()
        assert "took over socket" in s.daemon.log()
        b.reconnect()
        a.reconnect()
        assert b.expect(5) == numbered(5, BROADCAST, A, 40)
        s.learn(a, A, b)
        s.learn(b, B, a)


@pytest.mark.parametrize("event_idx", (False, True))
@pytest.mark.parametrize("call_first", (True, False))
def test_call_that_a_killed_daemon_never_made(switch, call_first, event_idx):
    """The daemon dies between moving the used index and calling: the next one calls, or the guest would wait for ever for what it has."""
    s = switch()
    a, b = s.guest(0), s.guest(1, event_idx=event_idx)
    a.send(ethernet(BROADCAST, A, number=7))
    b.send(ethernet(BROADCAST, B, number=8))
    assert number_of(a.expect()[0]) == 8
    wait_for(lambda: all(ring.pending() for ring in b.rings), "both of its rings moved", pause=0.01)
    s.daemon.kill()
    # As if the call had not been made: on fresh descriptors, with nothing to do for the new daemon.
    s.daemon.start()
    b.frontend = Frontend(b.path)
    b.negotiate()
    b.frontend.set_mem_table(b.memory)
    for index, ring in enumerate(b.rings):
        calls = b.frontend.new_eventfd()
        f, user = b.frontend, b.memory.user
        f.state(Request.SET_VRING_NUM, index, ring.size)
        f.state(Request.SET_VRING_BASE, index, ring.used16[1])
        f.set_vring_addr(index, user(ring.desc_at), user(ring.avail_at), user(ring.used_at))
        if call_first:
            f.set_vring_fd(Request.SET_VRING_CALL, index, calls)
        f.set_vring_fd(Request.SET_VRING_KICK, index, f.new_eventfd())
        if not call_first:
            f.set_vring_fd(Request.SET_VRING_CALL, index, calls)
        f.enable(index)
        assert wait_readable(calls), f"ring {index}: no call for what an earlier daemon left used"
    assert number_of(b.expect()[0]) == 7


def test_first_connection_of_client_role_has_it_all(rig, switch):
    """A frontend that listens before the port is made is offered what every later one is."""
    listener = listen(rig.path("p0.sock"))
    s = switch(ports=1, options={0: ",role=client,mtu=9000"})
    offered = []
    for _ in range(2):
        frontend = Frontend(listener=listener)
        offered.append(frontend.get_features())
        frontend.close()
        s.wait_state(0, "waiting", "connected")
    assert offered[0] == offered[1]
    assert offered[0] >> 0 & 1 and offered[0] >> 3 & 1 and offered[0] >> 11 & 1  # CSUM, MTU, HOST_TSO4
    listener.close()


def test_daemon_killed_client_role(rig, switch):
    """The daemon connects to frontends that listen: it finds them whenever they come, and again after either end died."""
    s = switch(options={0: ",role=client", 1: ",role=client"})
    assert s.daemon.log().count("cannot connect") == 2
    listeners = [listen(path) for path in s.paths]
    guests = [s.guest(i, listener=listeners[i]) for i in (0, 1)]
    a, b = guests
    s.learn(a, A, b)
    s.learn(b, B, a)
    exchange(a, b)
    for i in range(3):
        if i == 1:
            restart(s)
        for port, guest in enumerate(guests):
            guest.reconnect(listener=listeners[port])
        s.learn(a, A, b)
        s.learn(b, B, a)
        exchange(a, b, i)
    # Said once for each time of waiting, not for each try.
    time.sleep(2)
    assert s.daemon.log().count("cannot connect") <= 2
    for listener in listeners:
        listener.close()


# --- sockets -----------------------------------------------------------------------------------------------------------


def run_and_fail(rig, *arguments):
    """The daemon must refuse to start; returns what it says."""
    result = subprocess.run([BINARY, "run", "--control", rig.path("c.sock"), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    assert result.returncode in (1, 2), result.stderr
    assert "ready" not in result.stdout
    return result.stderr


def test_socket_in_use(rig, switch):
    s = switch(ports=1)
    text = run_and_fail(rig, "--port", f"x={s.paths[0]}")
    assert "a living process listens on it" in text and s.paths[0] in text
    assert s.frontend(0).get_features()


def test_socket_paths(rig):
    missing = rig.path("nowhere/x.sock")
    text = run_and_fail(rig, "--port", f"x={missing}")
    assert "does not exist; create it" in text and os.path.dirname(missing) in text
    long = rig.path("a" * 108)
    text = run_and_fail(rig, "--port", f"x={long}")
    assert "107" in text or "108" in text
    file = rig.path("file")
    with open(file, "w") as f:
        f.write("precious")
    text = run_and_fail(rig, "--port", f"x={file}")
    assert "no socket" in text
    with open(file) as f:
        assert f.read() == "precious"


def test_socket_file(switch):
    s = switch(ports=1)
    mode = os.stat(s.paths[0]).st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
    s.daemon.stop()
    assert not os.path.exists(s.paths[0])


def test_few_descriptors(switch):
    """The limit of open files is reached: frontends are turned away with a line that names the remedy; no spin, no end."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    wait_for(s.probes_told, "no more descriptors are taken for the CPU that kicks")
    soft, hard = resource.prlimit(s.pid, resource.RLIMIT_NOFILE)
    none, one = s.free_descriptors(2)
    resource.prlimit(s.pid, resource.RLIMIT_NOFILE, (none, hard))
    # Of the looks at the machine, one a second, the first that fails is told.
    wait_for(lambda: "changes of the machine go unnoticed" in s.daemon.log(), "the next look")
    time.sleep(2.5)
    assert s.daemon.log().count("changes of the machine go unnoticed") == 1
    # While each spare descriptor is in its place: of a frontend that was turned away it is missing until the next comes.
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT)
        client.connect(s.daemon.control)
        assert client.recv(1) == b""
    for _ in range(5):
        f = s.frontend(2)
        assert f.ended()
        f.close()
    before = s.cpu_seconds()
    time.sleep(1)
    assert s.cpu_seconds() - before < 0.5
    # Room for the connection, none for the descriptors that come with its messages.
    resource.prlimit(s.pid, resource.RLIMIT_NOFILE, (one, hard))
    f = s.frontend(2)
    f.set_features(f.get_features())
    f.send(Request.SET_VRING_CALL, bytes(8), [0])
    assert f.ended()
    f.close()
    log = s.daemon.log()
    assert "frontend is turned away" in log and "a client is turned away" in log
    # Whatever failed for want of descriptors says so, and names the one thing that helps.
    short = [line for line in log.splitlines() if "oo many open files" in line or "limit of open files" in line]
    assert len(short) >= 4 and all("LimitNOFILE=" in line and "mount" not in line for line in short), log
    resource.prlimit(s.pid, resource.RLIMIT_NOFILE, (soft, hard))
    wait_for(lambda: "the machine can be looked at again" in s.daemon.log(), "the next look")
    exchange(a, b)
    c = s.guest(2)
    s.learn(c, C, a, b)


def test_sixteen_connections_at_once(switch):
    """A crowd on one socket: one is served, the others are turned away, and the next one after all that is welcome."""
    s = switch(ports=1)
    crowd = [socket.socket(socket.AF_UNIX) for _ in range(16)]
    for one in crowd:
        one.connect(s.paths[0])
    wait_for(lambda: s.daemon.log().count("second frontend") >= 1, "turned away", pause=0.01)
    for one in crowd:
        one.close()
    s.wait_state(0, "waiting")
    assert s.frontend(0).get_features()


@pytest.mark.parametrize("pairs", (128,))
def test_all_queue_pairs(switch, pairs):
    """The most pairs that there are, each with traffic."""
    s = switch(queues=pairs)
    b = s.guest(1, size=32, memory=128 << 20)
    a = s.guest(0, pairs=pairs, size=32, buffer=1536, memory=256 << 20)
    assert a.frontend.ask_u64(Request.GET_QUEUE_NUM) == pairs
    for pair in range(pairs):
        a.send(ethernet(BROADCAST, A, number=pair), pair=pair)
        assert number_of(b.expect()[0]) == pair
