# SPDX-License-Identifier: BSD-2-Clause
"""VLANs of ports: tags inserted and stripped, also of frames with offloads; who gets what, by a model; the maps agree.

Tagged frames are sent and read raw on wire and host, so that no VLAN interfaces are needed.
"""
import itertools
import json
import os
import random
import struct
import time
from dataclasses import dataclass, field

import pytest

from offload_frames import ICMP, TCP, UDP, Vnet, build, segments
from offload_guest import ALL, OffloadLan
from rig import BPFFS, sh, wait_for
from virtio_driver import BROADCAST, mac

MSS = 1400
BYTES = random.Random(8).randbytes(3 * MSS + 77)
TAGGED = (None, 7, 8, 9, 10)
STRANGER = mac(0x7777)
QUIET = 0.3  # seconds in which what must not come does not come


@dataclass
class Vlans:
    """What a port's `vlan` means."""
    text: str = ""
    native: int = 0
    listed: set = field(default_factory=set)
    any: bool = False
    access: bool = False

    def enter(self, tag):
        """VLAN in which a frame from the guest travels, 0 = untagged; None = refused."""
        if self.any:
            return tag or 0
        if tag is None:
            return self.native or None
        return None if self.access or tag not in self.carried() else tag

    def carried(self):
        return self.listed | ({self.native} if self.native else set())

    def leave(self, vlan):
        """(True, tag with which a guest gets a frame), or (False, None)."""
        if self.any:
            return True, vlan or None
        if vlan not in self.carried():
            return False, None
        return True, None if vlan == self.native else vlan


PORTS = {
    "access9": Vlans("9", native=9, access=True), "access9b": Vlans("9", native=9, access=True),
    "access8": Vlans("8", native=8, access=True), "trunk": Vlans("trunk:8-9", listed={8, 9}),
    "native": Vlans("trunk:8+10/native:9", native=9, listed={8, 10}), "open": Vlans(any=True), "openb": Vlans(any=True),
}


@pytest.fixture(scope="module", params=["offloads", "plain"])
def lan(request, module_rig):
    features = ALL if request.param == "offloads" else 0
    lan = OffloadLan(module_rig, {name: {"offloads": features} for name in PORTS},
                     {name: f"vlan={vlans.text}" for name, vlans in PORTS.items() if vlans.text})
    lan.features = features
    yield lan
    lan.done()


class Numbers:
    """Each frame of a test bears a number that it can be known by."""

    def __init__(self):
        self.next = itertools.count(1)

    def make(self, destination, source, tag, protocol, size):
        """A function that builds the same packet with any tag."""
        number = next(self.next)
        payload = struct.pack(">4sI", b"vlan", number) + BYTES[:size]

        def packet(vlan=tag):
            return build(destination, source, 4 + number % 2 * 2, protocol, payload, vlan, seq=number * 65536, ident=number)
        return number, packet


def number_in(frame):
    at = frame.find(b"vlan", 14, 120)
    return struct.unpack_from(">I", frame, at + 4)[0] if at >= 0 else None


def guest_frames(lan, name, source):
    """Whole frames that lie in a guest's ring, from one source."""
    frames = []
    while (got := lan.vms[name].receive()) is not None:
        if got[1][6:12] == source:
            frames += segments(*got)
    return frames


def raw_frames(end, source, count):
    """At least @count frames of a source, and all that comes until it is quiet."""
    frames, deadline = [], time.monotonic() + 30
    while True:
        frame = end.receive(QUIET if len(frames) >= count else max(deadline - time.monotonic(), 0.01))
        if frame is None:
            return frames
        if frame[6:12] == source:
            frames.append(frame)


def offer(lan, name, packet):
    """The guest sends it as a guest with its features would."""
    made = packet()
    payload = len(made.frame) - made.header_length
    if lan.features and made.layout.protocol != ICMP:
        header = made.gso_header(MSS) if payload > MSS else made.open_header()
        lan.vms[name].give(header, made.open)
        return lambda tag: segments(header_at(header, made, packet(tag)), packet(tag).open)
    lan.vms[name].give(Vnet(), made.frame)
    return lambda tag: segments(Vnet(), packet(tag).frame)


def header_at(header, made, other):
    """The same header for the packet with another tag."""
    moved = other.layout.network - made.layout.network
    return Vnet(header.flags, header.gso_type, header.hdr_len + moved, header.gso_size, header.csum_start + moved, header.csum_offset)


@pytest.mark.parametrize("sender", PORTS)
def test_from_guest(lan, sender):
    """Unicast to each port, the host, the wire, and broadcast; with each tag; small, with an open checksum, and to be cut."""
    numbers, source = Numbers(), lan.macs[sender]
    targets = {**{name: address for name, address in lan.macs.items() if name != sender}, "host": lan.host_mac, "wire": lan.wire_mac,
               "unknown": STRANGER, "all": BROADCAST}
    sizes = (3 * MSS, 5) if lan.features else (5, MSS - 8)
    expected = {name: [] for name in (*PORTS, "wire", "host")}
    got = {name: [] for name in expected}
    refused = before = lan.counters(sender)["vlan_mismatch"]
    for tag, (target, address), protocol in itertools.product(TAGGED, targets.items(), (TCP, UDP, ICMP)):
        for size in sizes if protocol != ICMP else sizes[-1:]:
            _, packet = numbers.make(address, source, tag, protocol, size)
            frames = offer(lan, sender, packet)
            vlan = PORTS[sender].enter(tag)
            if vlan is None:
                refused += 1
                continue
            reached = {name: PORTS[name].leave(vlan)[1] for name in PORTS if name != sender and target in (name, "all")
                       and PORTS[name].leave(vlan)[0]}
            for name, out in reached.items():
                expected[name] += frames(out)
            if target in ("host", "all"):
                expected["host"] += frames(vlan or None)
            if target in ("wire", "unknown", "all") or (target in PORTS and not reached):
                expected["wire"] += frames(vlan or None)
        lan.vms[sender].drain()
        for name in PORTS:
            got[name] += guest_frames(lan, name, source)
    for name, end in (("wire", lan.wire), ("host", lan.host)):
        got[name] = raw_frames(end, source, len(expected[name]))
    for name in PORTS:
        got[name] += guest_frames(lan, name, source)
    assert got.pop(sender) == expected.pop(sender) == []
    for name, frames in expected.items():
        assert len(got[name]) == len(frames) and got[name] == frames, f"{name} got {describe(got[name])}, not {describe(frames)}"
    assert lan.counters(sender)["vlan_mismatch"] == refused
    assert (refused > before) == (not PORTS[sender].any)


def describe(frames):
    return [(number_in(frame), struct.unpack_from(">H", frame, 14)[0] & 0xFFF if frame[12:14] == b"\x81\0" else None) for frame in frames][:40]


@pytest.mark.parametrize("end", ["wire", "host"])
def test_to_guest(lan, end):
    """From outside: unicast to each port and broadcast, with each tag. What is for nobody goes past the guests."""
    numbers, source, sender = Numbers(), lan.wire_mac if end == "wire" else lan.host_mac, lan.wire if end == "wire" else lan.host
    other = lan.host if end == "wire" else lan.wire
    expected, past = {name: [] for name in PORTS}, []
    for tag, (target, address), protocol in itertools.product(TAGGED, {**lan.macs, "all": BROADCAST}.items(), (TCP, UDP, ICMP)):
        number, packet = numbers.make(address, source, tag, protocol, 40)
        sender.send(packet().frame)
        reached = [name for name in PORTS if target in (name, "all") and PORTS[name].leave(tag or 0)[0]]
        for name in reached:
            expected[name].append(packet(PORTS[name].leave(tag or 0)[1]).frame)
        if target == "all" or not reached:
            past.append(packet().frame)
    got = {name: [] for name in PORTS}

    def all_came():
        for name in PORTS:
            got[name] += guest_frames(lan, name, source)
        return all(len(got[name]) >= len(expected[name]) for name in PORTS)
    wait_for(all_came, "frames come", 30, 0.02)
    outside = raw_frames(other, source, len(past))
    time.sleep(QUIET)
    all_came()
    for name, frames in expected.items():
        # Broadcasts come by the host link, on a queue for each flow: they may overtake unicast and each other.
        assert sorted(got[name]) == sorted(frames), f"{name} got {describe(got[name])}, not {describe(frames)}"
        assert [frame for frame in got[name] if not frame[0] & 1] == [frame for frame in frames if not frame[0] & 1]
    assert sorted(outside) == sorted(past), f"{describe(outside)}, not {describe(past)}"


def test_priority_survives(lan):
    """Of a tag that goes through; a priority tag (VLAN 0) from an access port gets the port's VLAN and keeps its priority."""
    tags = {"open": (5 << 13 | 77, 5 << 13 | 77), "trunk": (3 << 13 | 8, 3 << 13 | 8), "access9": (6 << 13, 6 << 13 | 9),
            "native": (6 << 13, 6 << 13 | 9)}
    for number, (name, (given, expected)) in enumerate(tags.items(), 1):
        _, packet = Numbers().make(lan.wire_mac, lan.macs[name], given, UDP, 40 + number)
        offer(lan, name, packet)
        assert lan.raw_receive(lan.wire, lan.macs[name], 1) == [packet(expected).frame]


def test_two_tags(lan):
    """Only the outer tag counts; the inner one is payload."""
    for outer, inner in ((9, 8), (8, 9)):
        _, packet = Numbers().make(BROADCAST, lan.wire_mac, (outer, inner), UDP, 40)
        lan.wire.send(packet().frame)
        expected = {name: packet((outer, inner) if vlans.leave(outer)[1] else inner).frame for name, vlans in PORTS.items()
                    if vlans.leave(outer)[0]}
        got = {name: [] for name in PORTS}

        def came(got=got, expected=expected):
            for name in PORTS:
                got[name] += guest_frames(lan, name, lan.wire_mac)
            return all(got[name] for name in expected)
        wait_for(came, "frames come", 30, 0.02)
        time.sleep(QUIET)
        came()
        assert {name: frames[0] for name, frames in got.items() if frames} == expected
        assert all(len(frames) <= 1 for frames in got.values())


def dump(lan, name):
    entries = json.loads(sh(["bpftool", "-j", "map", "dump", "pinned", os.path.join(BPFFS, lan.link.uplink, name)]))
    return [(entry["key"], entry["value"]) for entry in (e.get("formatted", e) for e in entries)]


def test_maps_agree(lan):
    """`ports` and `port_vlans`, read with bpftool, say what the ports are configured to."""
    ids = {port["name"]: port["id"] for port in lan.daemon.json("port", "list")}
    rows = {key: {64 * word + bit for word, bits in enumerate(value["allowed"]) for bit in range(64) if bits >> bit & 1}
            for key, value in dump(lan, "port_vlans")}
    entries = {bytes(int(str(b), 0) for b in key["mac"]): (key, value) for key, value in dump(lan, "ports")}
    for name, vlans in PORTS.items():
        key, value = entries[lan.macs[name]]
        assert value["port"] == ids[name]
        assert key["vlan"] == (vlans.native if vlans.access else 0)
        if not vlans.any and not vlans.access:
            assert rows[ids[name]] == vlans.carried(), name
        assert bool(value["flags"] & 2) == (not vlans.any and not vlans.access), "VL_PORT_VLANS"
