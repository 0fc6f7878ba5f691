# SPDX-License-Identifier: BSD-2-Clause
"""Real TCP of Linux guests whose ports offer different offloads: with the wire, the host and each other, MTU 1500 and 9000.

Files of which every byte is checked, and iperf3, which fills what TCP allows. No end may count a wrong checksum or a broken frame, and the
frames that crossed must be as large as was negotiated. What was sent again is reported at the end, not judged: on a busy machine TCP may
lose patience.

UDP goes without segmentation (USO): guests learn it with Linux 6.2, these run 6.1. tests/net/test_offload.py has scripted guests do it.
"""
import itertools
import json
import re

import pytest

from lan import MEGABYTE, Lan
from rig import free_port, wait_for

SIZE = 8 * MEGABYTE
# One guest each; two that take everything, so that large frames meet a port that takes them.
PORTS = {"all": "all", "again": "all", "csum": "csum", "none": "none"}
GUEST_PAIRS = [("all", "again"), ("all", "none"), ("none", "all"), ("all", "csum"), ("csum", "all"), ("none", "csum"), ("csum", "none")]
OUTSIDE_PAIRS = [pair for guest, end in itertools.product(("all", "csum", "none"), ("wire", "host")) for pair in ((guest, end), (end, guest))]
# Real speed is asked of the two that differ most, each with everybody, both ways.
IPERF_PAIRS = [("all", "again"), ("again", "all"), ("all", "none"), ("none", "all")] + [pair for pair in OUTSIDE_PAIRS if "csum" not in pair]
WRONG = re.compile(r"CsumErrors|^Tcp\.InErrs$|^Udp6?\.?InErrors$|^UdpLite")


class TcpLan(Lan):
    def __init__(self, rig):
        super().__init__(rig, count=len(PORTS), queues=1, cpus=1, ipv6=True, uplink_mtu=9000, ports=[{"offloads": o} for o in PORTS.values()],
                         programs=("iperf3",))
        self.report = []
        self.iperf_port = free_port()
        self.mtu = 9000

    def end(self, name):
        return {"wire": self.wire, "host": self.host}.get(name) or self.guests[list(PORTS).index(name)]

    def ends(self):
        return ["wire", "host", *PORTS]

    def address(self, name, family):
        return self.end(name).ip if family == 4 else self.ip6({"wire": 2, "host": 1}.get(name) or 11 + list(PORTS).index(name))

    def set_mtu(self, mtu):
        if mtu == self.mtu:
            return
        for end in (self.wire, self.host):
            end.run(f"ip link set {end.device} mtu {mtu}")
        for guest in self.guests:
            guest.run(f"ip link set eth0 mtu {mtu}")
        wait_for(lambda: self.daemon.json("uplink", "list")[0]["mtu"] == mtu, f"the daemon knows of MTU {mtu}")
        self.mtu = mtu

    def counters(self, name):
        """The kernel's own counters at one end: {"Tcp.RetransSegs": 0, "Udp6InCsumErrors": 0, ...}, and its device's."""
        end = self.end(name)
        device = getattr(end, "device", "eth0")
        text = end.run(f"cat /proc/net/snmp /proc/net/netstat /proc/net/snmp6; sed -n 's/^ *{device}: */device /p' /proc/net/dev; "
                       f"ethtool -S {device} | sed -n 's/^ *\\(rx_queue_[0-9]*_drops\\): /driver.\\1 /p'")
        values, heads = {}, {}
        for line in text.splitlines():
            words = line.split()
            if words[0] == "device":  # bytes, packets, errors, drop, fifo, frame, ... received
                values.update({"device.packets": int(words[2]), "device.errors": int(words[3]), "device.frame_errors": int(words[6])})
            elif not words[0].endswith(":"):
                values[words[0]] = int(words[1])
            elif words[0] in heads:
                values.update((words[0][:-1] + "." + key, int(value)) for key, value in zip(heads.pop(words[0]), words[1:]))
            else:
                heads[words[0]] = words[1:]
        assert "Tcp.InCsumErrors" in values and "Udp.InCsumErrors" in values and "device.errors" in values, text
        return values

    def changes(self, names):
        """A context: .of(name) tells by how much counters of these ends grew meanwhile; what must never grow did not."""
        return Changes(self, names)

    def port_counter(self, name, counter):
        return self.port_of(list(PORTS).index(name))["counters"][counter]


class Changes:
    def __init__(self, lan, names):
        self.lan, self.names = lan, names

    def __enter__(self):
        self.before = {name: self.lan.counters(name) for name in self.names}
        return self

    def __exit__(self, kind, value, traceback):
        if kind:
            return
        self.after = {name: self.lan.counters(name) for name in self.names}
        for name in self.names:
            wrong = {key: self.grown(name, key) for key in self.after[name]
                     if (WRONG.search(key) or key.startswith("device.") and key.endswith("errors") or key in self.refused(name))
                     and self.grown(name, key)}
            assert not wrong, f"{name} counted {wrong}"

    def refused(self, name):
        """What a guest's driver did not take: a frame whose header or length makes no sense."""
        return [key for key in self.after[name] if key.startswith("driver.") and name in PORTS]

    def grown(self, name, key):
        return self.after[name].get(key, 0) - self.before[name].get(key, 0)


@pytest.fixture(scope="module")
def lan(module_rig, request):
    lan = TcpLan(module_rig).boot()
    yield lan
    lan.daemon.stop()
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("", *lan.report, sep="\n")


@pytest.fixture(scope="module")
def iperf(lan):
    """A server at every end."""
    for end in map(lan.end, lan.ends()):
        command = f"iperf3 -s -B {end.ip} -p {lan.iperf_port}"
        if end in lan.guests:
            end.run(f"{command} -D")
        else:
            lan.rig.background(end.wrap(f"exec {command}"))
        wait_for(lambda end=end: f":{lan.iperf_port}" in end.run("netstat -ltn 2>/dev/null || ss -ltn"), f"iperf3 serves at {end.name}")


@pytest.fixture(params=[1500, 9000], scope="module")
def mtu(lan, request):
    lan.set_mtu(request.param)
    return request.param


def transfer(lan, source, target, family=4):
    """From source to target, checked; returns bytes of payload a frame that the target's device received: None at the host, whose frames
    come in beside its device's counters."""
    lan.ping(lan.end(source), lan.end(target).ip, count=1)
    with lan.changes([source, target]) as changes:
        output = lan.end(source).run(f"xfer -t 300 push {lan.address(target, family)} {lan.port} {SIZE}", 400)
    assert f"{SIZE} bytes right" in output
    again = changes.grown(source, "Tcp.RetransSegs")
    mean = SIZE / changes.grown(target, "device.packets") if target != "host" else None
    lan.report.append(f"TCP{family} MTU {lan.mtu}, {source} to {target}: {output.strip().rpartition(', ')[2]}, "
                      + (f"{mean:.0f} B a frame received, " if mean else "") + f"{again} segments sent again")
    return mean


def test_negotiated(lan):
    """What a port offers is what its guest takes: a transfer would prove little else."""
    for name, guest in zip(PORTS, lan.guests):
        features = guest.run("cat /sys/class/net/eth0/device/features").strip()
        wanted = {"all": "11111111", "csum": "11000000", "none": "00000000"}[PORTS[name]]
        # CSUM, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, GUEST_ECN, HOST_TSO4, HOST_TSO6, HOST_ECN; MRG_RXBUF always.
        bits = "".join(features[bit] for bit in (0, 1, 7, 8, 9, 11, 12, 13))
        assert bits == wanted and features[15] == "1", f"{name}: {features}"


@pytest.mark.parametrize("source,target", GUEST_PAIRS + OUTSIDE_PAIRS)
def test_tcp(lan, mtu, source, target):
    mean = transfer(lan, source, target)
    if PORTS.get(source) == PORTS.get(target) == "all":
        # Large frames go from guest to guest whole.
        assert mean > 2 * mtu
    elif PORTS.get(target) in ("none", "csum"):
        assert mean <= mtu


@pytest.mark.parametrize("source,target", [("all", "again"), ("all", "none"), ("csum", "all"), ("all", "wire"), ("wire", "all"), ("host", "all"),
                                           ("none", "host")])
def test_tcp_ipv6(lan, mtu, source, target):
    transfer(lan, source, target, family=6)


def iperf_run(source, address, port):
    """The result of one stream; the server may still be busy with the end of the one before."""
    results = []

    def done():
        results.append(source.run(f"iperf3 -c {address} -p {port} -n {SIZE} -i 0 --json --connect-timeout 20000; true", 400))
        return "the server is busy" not in results[-1]
    wait_for(done, f"iperf3 at {address} is free", pause=0.5)
    return json.loads(results[-1])["end"]


@pytest.mark.parametrize("source,target", IPERF_PAIRS)
def test_iperf3(lan, iperf, mtu, source, target):
    with lan.changes([source, target]) as changes:
        end = iperf_run(lan.end(source), lan.end(target).ip, lan.iperf_port)
    sent, received = end["sum_sent"], end["sum_received"]
    # The server stops counting when the client says that it has sent all.
    assert sent["bytes"] >= SIZE and 0 < received["bytes"] <= sent["bytes"], end
    if target != "host":
        mean = received["bytes"] / changes.grown(target, "device.packets")
        assert mean <= mtu or PORTS.get(target) in ("all", None)
    lan.report.append(f"iperf3 MTU {mtu}, {source} to {target}: {received['bits_per_second'] / 8 / MEGABYTE:.0f} MiB/s, "
                      f"{sent['retransmits']} segments sent again")


def test_coalesced(lan):
    """What came from the wire to the guest that takes large frames was joined, else the transfers above showed less than they say."""
    transfer(lan, "wire", "all")
    assert lan.port_counter("all", "frames_coalesced") > 0
    assert lan.port_counter("none", "frames_coalesced") == 0
    transfer(lan, "all", "none")
    assert lan.port_counter("none", "frames_segmented") > 0
    assert lan.port_counter("again", "frames_segmented") == 0


def test_all_at_once(lan, mtu):
    """Every way at the same time: bursts for one guest hold frames of many flows."""
    ways = GUEST_PAIRS + OUTSIDE_PAIRS
    with lan.changes(lan.ends()) as changes:
        jobs = [lan.end(source).spawn(f"xfer -t 300 push {lan.address(target, 4)} {lan.port} {MEGABYTE}") for source, target in ways]
        for job in jobs:
            assert f"{MEGABYTE} bytes right" in job.wait(400)
    again = ", ".join(f"{name} {changes.grown(name, 'Tcp.RetransSegs')}" for name in lan.ends() if name != "host")
    lan.report.append(f"TCP4 MTU {mtu}, {len(ways)} transfers at once: segments sent again by {again}")


def test_udp(lan, mtu):
    """Datagrams of one frame, their checksums left open by those who may; and of many fragments, which nobody may touch."""
    sizes, count = (16, mtu - 28, 4 * mtu), 5
    jobs, ports = {}, {name: free_port() for name in lan.ends()}
    with lan.changes(lan.ends()):
        for name, port in ports.items():
            jobs[name] = lan.end(name).spawn(f"xfer udp-recv {port} 8")
        wait_for(lambda: all(f":{port}" in lan.end(name).run("netstat -lun 2>/dev/null || ss -lun") for name, port in ports.items()),
                 "all receivers listen")
        pairs = [pair for pair in itertools.permutations(lan.ends(), 2) if set(pair) != {"wire", "host"}]
        for source in lan.ends():
            targets = " ".join(f"'{lan.address(target, 4)} {ports[target]}'" for sender, target in pairs if sender == source)
            lan.end(source).run(f"set -e; for to in {targets}; do for size in {sizes[0]} {sizes[1]} {sizes[2]}; do "
                                f"xfer udp-send $to {count} 200 $size; done; done")
        for name, job in jobs.items():
            wanted = count * len(sizes) * sum(target == name for _, target in pairs)
            received = int(re.search(r"received=(\d+)", job.wait()).group(1))
            assert received == wanted, f"{name} received {received} of {wanted} datagrams"
