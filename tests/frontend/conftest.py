# SPDX-License-Identifier: BSD-2-Clause
"""The real daemon as a switch between scripted guests; no uplink, so no privileges are needed.

The program under test: VHOSTLANE in the environment, else vhostlane of the build tree (build/, or what VHOSTLANE_BUILD names).
"""
import os
import re
import sys
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in (HERE, os.path.join(HERE, "..", "lib")):
    if directory not in sys.path:
        sys.path.insert(0, directory)

import rig as rig_module  # noqa: E402 pylint: disable=wrong-import-position
from rig import Rig, wait_for  # noqa: E402 pylint: disable=wrong-import-position
from vhost_frontend import Frontend, Region  # noqa: E402 pylint: disable=wrong-import-position
from virtio_driver import BROADCAST, NetGuest, ethernet, mac, number_of  # noqa: E402 pylint: disable=wrong-import-position

BINARY = os.path.abspath(os.environ.get("VHOSTLANE") or rig_module.BINARY)


def pytest_sessionstart(session):
    if not os.access(BINARY, os.X_OK):
        pytest.exit(f"no {BINARY}: run make first, or set VHOSTLANE", 3)


class Switch:
    """One daemon with ports p0, p1, ...; ends by SIGTERM and must exit with 0."""

    def __init__(self, rig, ports=2, queues=1, options=None, arguments=(), **start):
        self.rig = rig
        self.names = [f"p{i}" for i in range(ports)]
        self.paths = [rig.path(f"{name}.sock") for name in self.names]
        words = []
        for i, name in enumerate(self.names):
            extra = (options or {}).get(i, "")
            words += ["--port", f"{name}={self.paths[i]},queues={queues}{extra}"]
        # Memory that AddressSanitizer keeps back would hide what the daemon itself keeps.
        quarantine = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=8")))
        self.daemon = rig.daemon(*words, *arguments, binary=BINARY, environment={"ASAN_OPTIONS": quarantine}, direct=True, **start)
        self.guests = []

    @property
    def pid(self):
        return self.daemon.process.pid

    def guest(self, port, **options):
        guest = NetGuest(self.paths[port], **options)
        self.guests.append(guest)
        return guest

    def frontend(self, port):
        return Frontend(self.paths[port])

    def calm(self, port):
        """A guest is served for a moment. Frontends that come one after the other and are not served are let in with a growing delay;
        a test of many of them would do little but wait."""
        with NetGuest(self.paths[port], size=8, memory=4 << 20):
            pass
        self.wait_state(port, "waiting")

    def pair_of_guests(self, **options):
        """Guests on p0 and p1 that know each other's address."""
        a, b = self.guest(0, **options), self.guest(1, **options)
        self.learn(a, mac(1), b)
        self.learn(b, mac(2), a)
        return a, b

    def learn(self, guest, address, *others):
        """Makes the daemon know that this address is this guest's; everybody else hears of it."""
        port = self.paths.index(guest.path)
        guest.send(ethernet(BROADCAST, address, number=0xA11CE))
        for other in others:
            assert number_of(other.expect()[0]) == 0xA11CE
        wait_for(lambda: any(a["mac"] == ":".join(f"{b:02x}" for b in address) for a in self.show(port)["addresses"]), "address learned",
                 pause=0.01)

    def show(self, port):
        return self.daemon.json("port", "show", self.names[port])

    def ring(self, port, index):
        return self.show(port)["rings"][index]

    def counters(self, port):
        return self.show(port)["counters"]

    def state(self, port):
        return self.show(port)["state"]

    def wait_state(self, port, *states):
        wait_for(lambda: self.state(port) in states, f"{self.names[port]} {' or '.join(states)}", pause=0.01)

    def probes_told(self):
        """How often the daemon said whether kicks can be traced: after the first guest, once."""
        return sum(self.daemon.log().count(words) for words in ("kicks: their CPUs are traced by", "the CPU that kicks: "))

    # --- what a leak would change

    def descriptors(self):
        """Once it has come to rest: some are closed by another thread, some are open for moments only."""
        counts = []
        while len(counts) < 200 and (len(counts) < 6 or len(set(counts[-6:])) > 1):
            counts.append(sum(not self.is_of_the_probe(name) for name in os.listdir(f"/proc/{self.pid}/fd")))
            time.sleep(0.01)
        return counts[-1]

    def is_of_the_probe(self, number):
        """Without an uplink all BPF is the kick probe's, which comes some time after the first guest, where the kernel allows it."""
        try:
            return re.match(r"anon_inode:.*(bpf|btf|perf_event)", os.readlink(f"/proc/{self.pid}/fd/{number}")) is not None
        except FileNotFoundError:
            return True  # closed just now

    def free_descriptors(self, count):
        """The lowest numbers that it does not use, but maybe for moments: limits that leave it none, one and so on."""
        used = None
        for _ in range(50):
            now = {int(name) for name in os.listdir(f"/proc/{self.pid}/fd")}
            used = now if used is None else used & now
            time.sleep(0.02)
        return [number for number in range(max(used) + 1 + count) if number not in used][:count]

    def mappings(self):
        """Mappings of guests' memory."""
        with open(f"/proc/{self.pid}/maps") as file:
            return sum(Region.NAME in line for line in file)

    def resident_kib(self):
        with open(f"/proc/{self.pid}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    def grown_since(self, resident_kib, most=4096):
        """Has more memory than that become resident? Sanitizers keep a few bytes for each of ours."""
        with open(f"/proc/{self.pid}/maps") as file:
            text = file.read()
        if "libasan" in text or "libtsan" in text:
            most = 16 * most
        return self.resident_kib() - resident_kib > most

    def cpu_seconds(self):
        """Of all threads that serve; the one that opens the kick probe reads megabytes, once."""
        ticks = 0
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/stat") as file:
                    name, fields = file.read().split("(", 1)[1].rsplit(")", 1)
            except FileNotFoundError:  # it ended just now
                continue
            if name != "vhostlane-kick":
                ticks += int(fields.split()[11]) + int(fields.split()[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def wait_counts(self, descriptors, mappings):
        wait_for(lambda: (self.descriptors(), self.mappings()) == (descriptors, mappings),
                 f"{descriptors} descriptors and {mappings} mappings, not {self.descriptors()} and {self.mappings()}", pause=0.02)


@pytest.fixture
def rig():
    with Rig() as new:
        yield new


@pytest.fixture
def switch(rig):
    """Makes daemons: switch(ports=2, queues=1, options={0: ",role=client"}, arguments=[...])."""
    made = []

    def make(**options):
        made.append(Switch(rig, **options))
        return made[-1]
    yield make
    for one in made:
        for guest in one.guests:
            guest.close()


@pytest.fixture
def lone(switch):
    """A daemon with one port and its counts while nobody is connected."""
    s = switch(ports=1, queues=2)
    s.idle = (s.descriptors(), s.mappings())
    return s


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure brings along what every daemon of the test has logged."""
    report = (yield).get_result()
    if not report.failed:
        return
    item.failed = True
    owner = item.funcargs.get("rig") or getattr(item.funcargs.get("house"), "rig", None)
    for daemon in getattr(owner, "daemons", []):
        if os.path.exists(daemon.log_path):
            report.sections.append((f"log of {daemon.log_path}", daemon.log()[-6000:]))
