#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Guest to guest at 64 B through one worker, against dpdk-testpmd net_vhost in io mode on the same CPU.

Two frontends: our light one (tests/bench/flood.c) and testpmd's own virtio-user. Turns go forth and back between the backends, the
others being stopped meanwhile. The A/A control is a second vhostlane that has its turns like the others.
"""
import os
import re
import signal
import statistics

import bench
from bench import RigError
from rig import HugePages, Rig, wait_for
from testpmd import PAGES, Testpmd

MACS = ["02:56:4c:00:00:00", "02:56:4c:00:00:01"]
BACKEND_CPU, FRONTEND_CPU = 1, 0
NAMES = ("vhostlane", "DPDK", "vhostlane again")


class Backend:
    def __init__(self, name, pid, sockets):
        self.name, self.pid, self.sockets = name, pid, sockets
        self.rates = []

    def spec(self):
        return f"{self.name}={self.pid},{self.sockets[0]},{self.sockets[1]}"


def start_vhostlane(rig, name):
    sockets = [rig.path(f"{name.replace(' ', '-')}-{i}.sock") for i in range(2)]
    arguments = ["--cpus", str(BACKEND_CPU)]
    for i, path in enumerate(sockets):
        arguments += ["--port", f"vm{i}={path},mac={MACS[i]}"]
    return Backend(name, rig.daemon(*arguments).process.pid, sockets)


def start_dpdk(rig, ring):
    sockets = [rig.path(f"dpdk-{i}.sock") for i in range(2)]
    testpmd = Testpmd(rig, [], [], ring=ring, cores=f"{FRONTEND_CPU},{BACKEND_CPU}", main_core=FRONTEND_CPU, tx_first=False,
                      ports=[f"net_vhost{i},iface={path},queues=1" for i, path in enumerate(sockets)])
    testpmd.command[testpmd.command.index("--stats-period") + 1] = "3600"  # its own printing would be measured too
    testpmd.start()
    wait_for(lambda: all(map(os.path.exists, sockets)) and "Port 1:" in testpmd.log(), "testpmd listens")
    return Backend("DPDK", testpmd.process.pid, sockets)


def light_frontend(backends, ring, turns, turn_ms):
    result = bench.run_json([bench.tool("bench_flood"), "--turns", str(turns), "--turn-ms", str(turn_ms), "--ring", str(ring),
                             "--cpu", str(FRONTEND_CPU), "--length", "64"] + [b.spec() for b in backends])
    return {b["name"]: b["rates"] for b in result["backends"]}


class Guest:
    """testpmd as a pair of guests. It sends round what --tx-first gave it: what counts is how often."""

    def __init__(self, rig, backend, ring):
        self.backend = backend
        self.testpmd = Testpmd(rig, backend.sockets, MACS, ring=ring, cores=f"{FRONTEND_CPU},{BACKEND_CPU}", main_core=BACKEND_CPU)
        self.testpmd.start()
        self.testpmd.wait_received(1000)

    def signal(self, number):
        for pid in (self.testpmd.process.pid, self.backend.pid):
            os.kill(pid, number)

    def turn(self, seconds):
        """Frames per second that both ports together received, as testpmd's own statistics tell."""
        self.signal(signal.SIGCONT)
        # The first statistics still speak of the time in which everything stood still, and the ones after that may be cut.
        start = len(self.testpmd.log())
        wanted = 2 + seconds

        def rates():
            found = re.findall(r"Rx-pps:\s+(\d+)", self.testpmd.log()[start:])
            return found if len(found) >= 2 * wanted else None
        found = wait_for(rates, "testpmd's statistics", timeout=60 + 10 * seconds, pause=0.05)
        self.signal(signal.SIGSTOP)
        periods = [int(found[2 * i]) + int(found[2 * i + 1]) for i in range(2, wanted)]
        return statistics.mean(periods)


def foreign_frontend(rig, backends, ring, turns, seconds):
    guests = []
    try:
        for backend in backends:
            os.kill(backend.pid, signal.SIGCONT)
            guests.append(Guest(rig, backend, ring))
            guests[-1].signal(signal.SIGSTOP)
        rates = {b.name: [] for b in backends}
        for turn in range(turns):
            for guest in guests if turn % 2 == 0 else reversed(guests):
                rates[guest.backend.name].append(guest.turn(seconds))
        return rates
    finally:
        for guest in guests:
            guest.signal(signal.SIGCONT)
            guest.testpmd.kill()
        for backend in backends:
            os.kill(backend.pid, signal.SIGCONT)


def summary(frontend, ring, rates):
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ours, theirs, again = (medians[name] for name in NAMES)
    both = statistics.median(rates[NAMES[0]] + rates[NAMES[2]])
    return [frontend, ring, f"{both / 1e6:.2f}", f"{theirs / 1e6:.2f}", f"{both / theirs:.2f}", f"{again / ours:.2f}",
            f"{min(rates['DPDK']) / 1e6:.1f} to {max(rates['DPDK']) / 1e6:.1f}",
            bench.verdict(both >= theirs)]


def measure(rig, ring, options):
    backends = [start_vhostlane(rig, NAMES[0]), start_dpdk(rig, ring), start_vhostlane(rig, NAMES[2])]
    rows = []
    try:
        rates = light_frontend(backends, ring, options.turns, options.turn_ms)
        rows.append(summary("light", ring, rates))
        rates = foreign_frontend(rig, backends, ring, options.foreign_turns, options.foreign_seconds)
        rows.append(summary("testpmd virtio-user", ring, rates))
    finally:
        for backend in backends:
            try:
                os.kill(backend.pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
    return rows


def main():
    parser = bench.arguments("Guest to guest at 64 B, one worker, against dpdk-testpmd net_vhost.")
    parser.add_argument("--rings", default="256,1024", help="ring sizes (default 256,1024)")
    options = parser.parse_args()
    options.turns, options.turn_ms = (6, 300) if options.quick else (24, 500)
    options.foreign_turns, options.foreign_seconds = (2, 1) if options.quick else (6, 2)
    if os.cpu_count() < 2:
        raise RigError("needs two CPUs: one for the backend, one for the guests")
    rows, surroundings = [], bench.Surroundings()
    for ring in map(int, options.rings.split(",")):
        with Rig() as rig:
            pages = HugePages(rig, 4 * PAGES + 64)
            if not pages.enough:
                raise RigError(f"{pages.free} free huge pages of 2 MB, {4 * PAGES + 64} needed; free some memory")
            rows += measure(rig, ring, options)
    text = ("## Guest to guest, 64 B, one worker\n\nFrames per second of both directions together, in millions, medians of "
            f"interleaved turns ({options.turns} of {options.turn_ms} ms and {options.foreign_turns} of {options.foreign_seconds} s). "
            "Backend on one CPU, guests on the other. Ratio: vhostlane to `dpdk-testpmd` net_vhost io; at least 1.00 is required. "
            "A/A: a second vhostlane to the first.\n\n" +
            bench.table(["frontend", "ring", "vhostlane", "DPDK", "ratio", "A/A", "DPDK's range", ">= 1.00"], rows))
    bench.publish(options, text, surroundings)


if __name__ == "__main__":
    bench.run(main)
