#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""TCP of whole Linux guests under TCG, by iperf3: with offloads against without, and against QEMU's own virtio backend on a tap.

All guests run the same image with one CPU and one queue pair, all at once; turns go round among them, forth and back, so that
whatever else the machine does meets all alike. The wire is a namespace behind a veth pair, one pair for vhostlane's uplink and one
for the bridge that the tap is in; on both, frames are what a wire carries: cut to the MTU, with checksums. Beside them, for who
compares with a bench on a bare veth, the tap's guest on a wire that carries large frames uncut and unchecked, which no wire does.

Then what the segmentation and coalescing of a burst cost, by bench_segment and bench_coalesce.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import time

import bench
from bench import RigError
from rig import Rig, sh, subnet, unique, wait_for

sys.path.insert(0, os.path.join(bench.ROOT, "tests", "guest"))

from guest import Guest, netdev  # noqa: E402 pylint: disable=wrong-import-position
from lan import Lan  # noqa: E402 pylint: disable=wrong-import-position

SERVER_PORT = 5201
PROGRAMS = ("iperf3",)
# TCG plays `rep movsb` byte by byte. A guest that is told that it is fast (erms, fsrm) copies with it, spends nearly all its time there,
# and hides what backends differ in.
CPU = "max,-erms,-fsrm"


class Process:
    """CPU time of a process' threads, in ns; `but`: without those whose names begin so; `only`: those alone."""

    def __init__(self, pid, but=None, only=""):
        self.pid, self.but, self.only = pid, but, only

    def cpu(self):
        total = 0
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            path = f"/proc/{self.pid}/task/{thread}"
            try:
                with open(f"{path}/comm", encoding="utf-8") as file:
                    name = file.read()
                    if not name.startswith(self.only) or (self.but and name.startswith(self.but)):
                        continue
                with open(f"{path}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])
            except OSError:
                continue  # it ended meanwhile
        return total


def io_threads(guest):
    """QEMU without the threads that play the guest's CPUs."""
    return Process(guest.process.pid, but="CPU ")


def virtual_cpus(guest):
    return Process(guest.process.pid, only="CPU ")


def cpu_of(processes):
    return sum(process.cpu() for process in processes)


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def like_another_machine(namespace, device):
    """The wire's end receives in threads of its own that wait for no other, coalesces, and moderates its interrupts as network cards do.
    Else its whole stack would run frame by frame inside whoever sends, here the backend that is measured. The scheduler leaves such threads
    where they began, for one contestant beside its guest and for another not: so all of them are put on the last CPU."""
    settings = {"napi_defer_hard_irqs": 1, "gro_flush_timeout": 20000, "threaded": 1}
    namespace.sh(f"ethtool -K {device} gro on")
    # sysfs shows the network namespace in which it was mounted.
    namespace.sh(["unshare", "--mount", "sh", "-c", "set -e; mount -t sysfs sysfs /sys; " + "; ".join(
        f"echo {value} > /sys/class/net/{device}/{name}" for name, value in settings.items())])
    threads = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if name_of(pid).startswith(f"napi/{device}"[:15])]
    if not threads:
        raise RigError(f"{device} receives in no thread of its own")
    for pid in threads:
        sh(f"chrt --fifo --pid 1 {pid} && taskset --cpu-list --pid {os.cpu_count() - 1} {pid}")


class TapGuests:
    """Guests on taps in a bridge with their own veth pair into the wire's namespace."""

    def __init__(self, rig, namespace):
        self.rig, self.namespace = rig, namespace
        self.net, self.bridge, self.near, self.far = subnet(), unique("b"), unique("n"), unique("f")
        sh(f"ip link add {self.bridge} type bridge")
        rig.undo(lambda: sh(f"ip link del {self.bridge}"))
        sh(f"ip link add {self.near} type veth peer name {self.far} netns {namespace.name}")
        rig.undo(lambda: sh(f"ip link del {self.near}", check=False))
        sh(f"echo 1 > /proc/sys/net/ipv6/conf/{self.bridge}/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/{self.near}/disable_ipv6")
        sh(f"ip link set {self.near} master {self.bridge} up && ip link set {self.bridge} up")
        namespace.sh(f"ip addr add {self.net}.2/24 dev {self.far} && ip link set {self.far} up && tc qdisc add dev {self.far} root pfifo")
        like_another_machine(namespace, self.far)
        self.uncut = None
        self.set_uncut(False)
        self.guests = []

    def set_uncut(self, uncut):
        if uncut != self.uncut:
            state = "on" if uncut else "off"
            # gro on the near end: what the driver of a real network card does for a bridge.
            sh(f"ethtool -K {self.near} tx {state} gro on")
            self.namespace.sh(f"ethtool -K {self.far} tx {state} txvlan off")
            self.uncut = uncut

    def add(self, vhost, extra):
        number = len(self.guests)
        tap = unique("t")
        sh(f"ip tuntap add dev {tap} mode tap vnet_hdr")
        self.rig.undo(lambda: sh(f"ip link del {tap}", check=False))
        sh(f"echo 1 > /proc/sys/net/ipv6/conf/{tap}/disable_ipv6; ip link set {tap} master {self.bridge} up")
        device = netdev(f"tap,ifname={tap},script=no,downscript=no,vhost={vhost}", f"52:54:00:00:68:{number:02x}", extra)
        guest = Guest(tap, self.rig.directory, device + ["-name", f"{tap},debug-threads=on"], programs=PROGRAMS, cpu=CPU)
        guest.ip, guest.wire_ip, guest.network = f"{self.net}.{11 + number}", f"{self.net}.2", self
        self.rig.undo(guest.kill)
        self.guests.append(guest)
        return guest


class Contestant:
    """One guest with its backend; `uncut`: on the tap's wire that carries large frames."""

    def __init__(self, name, guest, processes, uncut=False):
        self.name, self.guest, self.processes, self.uncut = name, guest, processes, uncut
        self.guests = list(map(virtual_cpus, guest if isinstance(guest, tuple) else [guest]))
        self.results = {}

    def measure(self, way, run, seconds):
        network = getattr(self.guest, "network", None)
        if network:
            network.set_uncut(self.uncut)
        cpu, guests_cpu = cpu_of(self.processes), cpu_of(self.guests)
        result = run(self, seconds)
        result["cpu"] = (cpu_of(self.processes) - cpu) / (result["bytes"] / 1024)
        result["guest cpu"] = (cpu_of(self.guests) - guests_cpu) / (result["bytes"] / 1024)
        self.results.setdefault(way, []).append(result)

    def median(self, way, what="rate"):
        return statistics.median(result[what] for result in self.results[way])

    def ratio(self, other, way):
        """Of rates, turn by turn: the two turns lie close together, whatever the machine's speed does over a run."""
        return statistics.median(ours["rate"] / theirs["rate"] for ours, theirs in zip(self.results[way], other.results[way]))

    def cells(self, way):
        """Rate with its range, CPU, the guests' own CPU, segments sent again."""
        rates = [result["rate"] / 1e6 for result in self.results[way]]
        again = sum(result["again"] for result in self.results[way])
        return [f"{statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})", f"{self.median(way, 'cpu'):.0f}",
                f"{self.median(way, 'guest cpu'):.0f}", str(again)]


def iperf(client, address, seconds):
    """Bytes received a second, bytes, and segments sent again, of one stream from client to a server."""
    command = f"iperf3 -c {address} -p {SERVER_PORT} -t {seconds} -i 0 --json --connect-timeout 20000; true"
    for _ in range(20):
        output = client(command, seconds + 120)
        if "the server is busy" not in output:  # with the end of the turn before
            break
        time.sleep(0.5)
    try:
        result = json.loads(output)
        received, sent = result["end"]["sum_received"], result["end"]["sum_sent"]
        return {"rate": received["bits_per_second"] / 8, "bytes": received["bytes"], "again": sent["retransmits"]}
    except (ValueError, KeyError) as error:
        raise RigError(f"iperf3 to {address}: {output}") from error


def serve(run):
    run(f"iperf3 -s -p {SERVER_PORT} -D")


class Arena:
    """Everybody at once: two guests with offloads, two without, those on taps, and the wire."""

    def __init__(self, rig):
        self.lan = Lan(rig, count=4, queues=1, cpus=1, programs=PROGRAMS, ports=[{"offloads": o} for o in ("all", "all", "none", "none")])
        self.wire = self.lan.link
        # Checksums as on a wire. And a veth coalesces only what comes from an end without TSO.
        sh(f"ethtool -K {self.wire.uplink} tx off tso off")
        like_another_machine(self.wire.namespace, self.wire.peer)
        self.taps = TapGuests(rig, self.wire.namespace)
        self.lan.guests = [self.lan.new_guest(number) for number in range(4)]
        for guest in self.lan.guests:
            guest.devices, guest.cpu = guest.devices + ["-name", f"{guest.name},debug-threads=on"], CPU
            guest.wire_ip = f"{self.lan.net}.2"
        # vectors=0 as QEMU 7.2 needs it for vhost-user under TCG: then everybody has the same kind of interrupts.
        rivals = [("tap, QEMU's virtio backend (vhost=off)", self.taps.add("off", ",vectors=0")),
                  ("the same with MSI-X", self.taps.add("off", ""))]
        if os.path.exists("/dev/vhost-net"):
            rivals.insert(1, ("tap, vhost-net", self.taps.add("on", "")))
        for guest in self.guests():
            guest.start()
        for guest in self.guests():
            guest.wait_up()
            guest.address(f"{guest.ip}/24")
            serve(guest.run)
        background = rig.background(f"exec iperf3 -s -p {SERVER_PORT}", self.wire.namespace)
        wait_for(lambda: background.poll() is None and f":{SERVER_PORT}" in self.wire.sh("ss -ltn"), "the wire serves")
        self.daemon = Process(self.lan.daemon.process.pid)
        self.ours = Contestant("vhostlane", self.lan.guests[0], [self.daemon, io_threads(self.lan.guests[0])])
        self.plain = Contestant("vhostlane, offloads: none", self.lan.guests[2], [self.daemon, io_threads(self.lan.guests[2])])
        self.rivals = [Contestant(name, guest, [io_threads(guest)]) for name, guest in rivals]
        self.uncut = Contestant(f"{rivals[0][0]}, wire uncut", rivals[0][1], self.rivals[0].processes, uncut=True)
        self.wired = [self.ours, *self.rivals, self.uncut, self.plain]
        pairs = [(self.lan.guests[0], self.lan.guests[1]), (self.lan.guests[2], self.lan.guests[3])]
        self.pairs = [Contestant(name, pair, [self.daemon, *map(io_threads, pair)]) for name, pair in zip(("all", "none"), pairs)]

    def guests(self):
        return self.lan.guests + self.taps.guests

    def close(self):
        self.lan.daemon.stop()

    # Who sends to whom.

    def to_guest(self, contestant, seconds):
        return iperf(lambda command, timeout: self.wire.sh(command, timeout=timeout), contestant.guest.ip, seconds)

    @staticmethod
    def from_guest(contestant, seconds):
        return iperf(contestant.guest.run, contestant.guest.wire_ip, seconds)

    @staticmethod
    def guest_to_guest(contestant, seconds):
        return iperf(contestant.guest[0].run, contestant.guest[1].ip, seconds)

    def play(self, turns, seconds):
        """Turns forth and back. The first of each counts nothing: windows, caches and the guests' buffers come to size."""
        rounds = [("guest to guest", self.pairs, self.guest_to_guest), ("wire to guest", self.wired, self.to_guest),
                  ("guest to wire", self.wired, self.from_guest)]
        for way, contestants, run in rounds:
            for contestant in contestants:
                contestant.measure(way, run, 1)
                contestant.results[way].clear()
            for turn in range(turns):
                for contestant in contestants if turn % 2 == 0 else reversed(contestants):
                    contestant.measure(way, run, seconds)


def guest_rows(arena):
    required, measured = [], []
    large, small = arena.pairs
    way = "guest to guest"
    required.append(bench.requirement("TCP guest to guest, offloads `all` to `none`", large.ratio(small, way), minimum=3.0))
    for contestant in arena.pairs:
        measured.append([way, f"vhostlane, offloads: {contestant.name}", *contestant.cells(way), ""])
    for way in ("wire to guest", "guest to wire"):
        for rival in arena.rivals:
            what = f"TCP {way}, vhostlane to {rival.name}"
            if rival.name.startswith("tap"):
                required.append(bench.requirement(what, arena.ours.ratio(rival, way), minimum=1.0))
        for contestant in arena.wired:
            measured.append([way, contestant.name, *contestant.cells(way), f"{arena.ours.ratio(contestant, way):.2f}"])
    return required, measured


def rates_of(name, rounds):
    result = subprocess.run([bench.tool(name), str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode:
        raise RigError(f"{name}: exit {result.returncode}\n{result.stdout}")
    return result.stdout


def segment_rows(quick):
    """Large frames lie in pieces of 32 KiB (from send) or 4 KiB (from sendfile) in a Linux guest."""
    rows = []
    text = rates_of("bench_segment", 400 if quick else 4000)
    for where, piece, copy, cut, ratio in re.findall(r"^(.*\S)\s+pieces of\s+(\d+) B: copy\s+(\d+) ns, segmentation\s+(\d+) ns, ratio ([\d.]+)", text, re.M):
        what = f"64 KB into segments, {where}, pieces of {piece} B: {cut} ns to {copy} ns of copying"
        if int(piece) >= 4096:
            rows.append(bench.requirement(what, float(ratio), maximum=1.5))
        else:
            rows.append([what, ratio, "", ""])
    if not rows:
        raise RigError(f"bench_segment said nothing of use:\n{text}")
    return rows


def coalesce_rows(quick):
    rows = []
    text = rates_of("bench_coalesce", 800 if quick else 8000)
    for where, size, single, merged, count, ratio in re.findall(
            r"^(.*\S)\s+buffers of\s+(\d+) B: one by one\s+(\d+) ns, coalesced\s+(\d+) ns into (\d+), ratio ([\d.]+)", text, re.M):
        what = f"32 segments coalesced, {where}, buffers of {size} B: {merged} ns to {single} ns one by one"
        if where == "nothing to merge":
            rows.append([what, ratio, "", ""])
            continue
        rows.append(bench.requirement(what, float(ratio), maximum=1.2))
        rows.append(bench.requirement(f"— frames for the same bytes, {where}, buffers of {size} B, times fewer", 32 / int(count), minimum=10,
                                      form="{:.0f}"))
    if not rows:
        raise RigError(f"bench_coalesce said nothing of use:\n{text}")
    return rows


def checksum_rows(quick):
    """Only where somebody would have verified it does it pay to leave a checksum open: summing rides on the copy."""
    result = subprocess.run([bench.tool("bench_tx_checksum"), "100" if quick else "400"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False)
    if result.returncode == 2:
        return [[result.stdout.strip().splitlines()[-1], "", "", ""]]
    rows = []
    for size, peer, engine, again, ns, ratio in re.findall(
            r"^ *(\d+) B, peer (\S+) +engine +(\d+) ns \S+ +again +\d+ ns \(([\d.]+)\) +device +(\d+) ns \(([\d.]+)\)", result.stdout, re.M):
        what = f"checksum left open by a frame of {size} B over a veth, peer {peer}: left to it {ns} ns a segment, computed {engine} ns (A/A {again})"
        rows.append(bench.requirement(what, float(ratio), maximum=1.0) if peer == "TCP" else [what, ratio, "", ""])
    if result.returncode or not rows:
        raise RigError(f"bench_tx_checksum: exit {result.returncode}\n{result.stdout}")
    return rows


def main():
    parser = bench.arguments("TCP through guests under TCG, with and without offloads, against QEMU's own backend; segmentation, coalescing.")
    parser.add_argument("--turns", type=int, help="turns of each contestant, each way (default 6; quick 2)")
    parser.add_argument("--seconds", type=int, help="length of a turn (default 4; quick 2)")
    options = parser.parse_args()
    turns, seconds = options.turns or (2 if options.quick else 6), options.seconds or (2 if options.quick else 4)
    surroundings, start = bench.Surroundings(), time.monotonic()
    units = segment_rows(options.quick) + coalesce_rows(options.quick) + checksum_rows(options.quick)
    with Rig() as rig:
        arena = Arena(rig)
        arena.play(turns, seconds)
        arena.close()
    required, measured = guest_rows(arena)
    text = ("## TCP with segmentation and coalescing\n\n" + bench.table(bench.REQUIREMENT_HEADS, required + units) +
            f"\nEach rate: median and range of {turns} interleaved turns of {seconds} s, MB/s that iperf3's receiver got, MTU 1500, guests of one "
            "CPU under TCG. CPU: ns a KiB of all threads of the daemon and of QEMU that are not the guest's CPU. Ratio: vhostlane's rate to this one, "
            "turn by turn, median.\n\n" +
            bench.table(["way", "backend", "MB/s", "CPU, ns a KiB", "guests' CPUs, ns a KiB", "segments sent again", "ratio"], measured) +
            ("" if os.path.exists("/dev/vhost-net") else "\nNo /dev/vhost-net here: a tap with vhost=off is QEMU's built-in virtio backend, one and the "
             "same rival.\n"))
    bench.publish(options, text, surroundings)
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    bench.run(main)
