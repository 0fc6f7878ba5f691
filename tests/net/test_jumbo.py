# SPDX-License-Identifier: BSD-2-Clause
"""Frames of up to 9000 bytes of packet in every direction, MTU changes while the daemon runs, and frames too large for somebody."""
import re

import pytest

from offload_frames import ACK, PSH, TCP, UDP, Vnet, build, segments
from offload_guest import ALL, RECEIVERS, SENDERS, Burst, OffloadLan, batches
from rig import sh, wait_for

MTU = 9000
BYTES = bytes(i * 31 >> 3 & 0xFF for i in range(1 << 17))
# Frames (with Ethernet header) around each boundary: receive buffers, chunks of UMEM, pages, what the MTU allows.
LENGTHS = [60, 1514, 1515, 1754, 1776, 1777, 2036, 2048, 2049, 2304, 3500, 3776, 3840, 3841, 3842, 4000, 4084, 4096, 4097, 4352, 7680, 7681,
           7682, 8192, 8999, 9013, 9014]

GUESTS = {"big": {"offloads": ALL}, "bare": {"offloads": 0, "large": True, "mergeable": False}, "chunks": {"offloads": 0},
          "csum": {"offloads": RECEIVERS["csum"] | SENDERS["csum"]}, "narrow": {"offloads": 0, "mergeable": False},
          "plain": {"offloads": RECEIVERS["all"], "mergeable": False}}


@pytest.fixture(scope="module")
def lan(module_rig):
    lan = OffloadLan(module_rig, GUESTS, mtu=MTU)
    yield lan
    lan.done()


def frames(destination, source, lengths, vlan=None, family=4, **options):
    """Datagrams whose frames have these lengths (and a tag's more)."""
    head = 14 + (28 if family == 4 else 48)
    for number, length in enumerate(lengths):
        yield build(destination, source, family, UDP, BYTES[number:number + max(length - head, 0)], vlan, ident=number, **options)


def cases(destination, source, left_open=False):
    for vlan in (None, 5):
        for family in (4, 6):
            for packet in frames(destination, source, LENGTHS, vlan, family):
                header, frame = (packet.open_header(), packet.open) if left_open else (Vnet(), packet.frame)
                yield header, frame, segments(header, frame)


@pytest.mark.parametrize("end", ["wire", "host"])
@pytest.mark.parametrize("giver", ["bare", "csum"])
def test_guest_to_outside(lan, giver, end):
    receiver, destination = (lan.wire, lan.wire_mac) if end == "wire" else (lan.host, lan.host_mac)
    for batch in batches(cases(destination, lan.macs[giver], giver == "csum"), 64):
        lan.vms[giver].give_all((header, frame) for header, frame, _ in batch)
        expected = [frame for _, _, whole in batch for frame in whole]
        assert lan.raw_receive(receiver, lan.macs[giver], len(expected), destination) == expected


@pytest.mark.parametrize("end", ["wire", "host"])
@pytest.mark.parametrize("taker", ["big", "bare", "chunks", "csum", "plain"])
def test_outside_to_guest(lan, taker, end):
    sender, source = (lan.wire, lan.wire_mac) if end == "wire" else (lan.host, lan.host_mac)
    for batch in batches(cases(lan.macs[taker], source), 64):
        expected = [frame for _, _, whole in batch for frame in whole]
        for frame in expected:
            sender.send(frame)
        assert lan.guest_receive(lan.vms[taker], source, len(expected))[1] == expected


@pytest.mark.parametrize("giver", ["bare", "csum"])
@pytest.mark.parametrize("taker", ["big", "chunks", "plain"])
def test_guest_to_guest(lan, giver, taker):
    for batch in batches(cases(lan.macs[taker], lan.macs[giver], giver == "csum"), 64):
        lan.vms[giver].give_all((header, frame) for header, frame, _ in batch)
        expected = [frame for _, _, whole in batch for frame in whole]
        assert lan.guest_receive(lan.vms[taker], lan.macs[giver], len(expected))[1] == expected


def test_broadcast(lan):
    """One jumbo frame to all: wire, host and every guest that has room for it."""
    for giver in ("bare", "wire", "host"):
        source = {"wire": lan.wire_mac, "host": lan.host_mac}.get(giver) or lan.macs[giver]
        packet = next(frames(b"\xff" * 6, source, [9014]))
        if giver in lan.vms:
            lan.vms[giver].give(Vnet(), packet.frame)
        else:
            (lan.wire if giver == "wire" else lan.host).send(packet.frame)
        for name in ("big", "bare", "chunks", "csum", "plain"):
            if name != giver:
                assert lan.guest_receive(lan.vms[name], source, 1)[1] == [packet.frame]
        for name, end in (("wire", lan.wire), ("host", lan.host)):
            if name != giver:
                assert lan.raw_receive(end, source, 1) == [packet.frame]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("end", ["wire", "host", "chunks", "plain"])
def test_large_segments(lan, end, family):
    """64 KB cut into jumbo segments, and into those of MTU 1500."""
    destination = {"wire": lan.wire_mac, "host": lan.host_mac}.get(end) or lan.macs[end]
    for mss in (8948 if family == 4 else 8928, 1448, 4000):
        packet = build(destination, lan.macs["big"], family, TCP, BYTES[:65000], flags=ACK | PSH)
        header = packet.gso_header(mss)
        expected = segments(header, packet.open)
        lan.vms["big"].give(header, packet.open)
        if end in lan.vms:
            assert lan.guest_receive(lan.vms[end], lan.macs["big"], len(expected))[1] == expected
        else:
            assert lan.raw_receive(lan.wire if end == "wire" else lan.host, lan.macs["big"], len(expected), destination) == expected


def test_jumbo_segments_coalesce(lan):
    mss, count = 8948, 7
    train = [build(lan.macs["big"], lan.wire_mac, 4, TCP, BYTES[i * mss:(i + 1) * mss], seq=i * mss, ident=i).frame for i in range(count)]
    with Burst(lan):
        for frame in train:
            lan.wire.send(frame)
    got, whole = lan.guest_receive(lan.vms["big"], lan.wire_mac, count)
    assert whole == train and len(got) == 1


# --- too large --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["wire", "host", "bare"])
def test_too_large_for_the_guest(lan, end):
    """Buffers of 2048 bytes that can't be joined: counted, said with the port but not for each frame, and smaller frames still come."""
    source = {"wire": lan.wire_mac, "host": lan.host_mac}.get(end) or lan.macs[end]
    before = lan.counters("narrow")["to_guest_too_large"]
    fits, too_large = list(frames(lan.macs["narrow"], source, [2036])), list(frames(lan.macs["narrow"], source, [2037, 4000, 9014] * 20))
    for packet in (*too_large, *fits):
        if end == "bare":
            lan.vms[end].give(Vnet(), packet.frame)
        else:
            (lan.wire if end == "wire" else lan.host).send(packet.frame)
    assert lan.guest_receive(lan.vms["narrow"], source, 1)[1] == [fits[0].frame]
    assert lan.counters("narrow")["to_guest_too_large"] == before + len(too_large)
    lines = re.findall(r"port narrow: .* (?:2037|4000|9014) bytes .*larger.*", lan.daemon.log())
    assert 1 <= len(lines) < len(too_large), "rate-limited"


def test_too_large_for_the_wire(lan):
    """Longer than the uplink's MTU: nothing goes out, all is counted at the port, and what follows is not harmed."""
    before, full = lan.counters("bare")["from_guest_too_long"], lan.counters("bare")["from_guest_uplink_full"]
    large = [build(lan.wire_mac, lan.macs["bare"], 4, UDP, BYTES[:size]) for size in (9500 - 28, 20000, 65500)]
    fits = next(frames(lan.wire_mac, lan.macs["bare"], [9014]))
    for packet in (*large, fits):
        lan.vms["bare"].give(Vnet(), packet.frame)
    assert lan.raw_receive(lan.wire, lan.macs["bare"], 1) == [fits.frame]
    assert lan.counters("bare")["from_guest_too_long"] - before == len(large)
    assert lan.counters("bare")["from_guest_uplink_full"] == full
    wait_for(lambda: re.search(r"port bare: a frame of \d+ bytes is longer than the uplink's MTU", lan.daemon.log()), "the line names port and size", 5)


# --- MTU at run time --------------------------------------------------------------------------------------------------


def set_mtu(lan, mtu):
    sh(f"ip link set {lan.link.uplink} mtu {mtu}")
    lan.link.sh(f"ip link set {lan.link.peer} mtu {mtu}")
    wait_for(lambda: lan.daemon.json("uplink", "list")[0]["mtu"] == mtu, f"the daemon knows of MTU {mtu}")


def passes(lan, length):
    """A frame of this length goes each way: to and from wire and host, and between guests."""
    for name, end, address in (("wire", lan.wire, lan.wire_mac), ("host", lan.host, lan.host_mac)):
        packet = next(frames(address, lan.macs["bare"], [length]))
        lan.vms["bare"].give(Vnet(), packet.frame)
        assert lan.raw_receive(end, lan.macs["bare"], 1, address) == [packet.frame], name
        packet = next(frames(lan.macs["bare"], address, [length]))
        end.send(packet.frame)
        assert lan.guest_receive(lan.vms["bare"], address, 1)[1] == [packet.frame], name
    packet = next(frames(lan.macs["chunks"], lan.macs["bare"], [length]))
    lan.vms["bare"].give(Vnet(), packet.frame)
    assert lan.guest_receive(lan.vms["chunks"], lan.macs["bare"], 1)[1] == [packet.frame]


def test_mtu_changes(rig):
    """Down and up again while it runs, up to what the daemon was started with."""
    lan = OffloadLan(rig, {name: GUESTS[name] for name in ("bare", "chunks")}, mtu=MTU)
    for mtu in (9000, 1500, 4000, 9000, 2000, 9000):
        set_mtu(lan, mtu)
        passes(lan, mtu + 14)
        passes(lan, 60)
    lan.done()


def test_mtu_raised_beyond_what_was_prepared(rig):
    """Started at 1500 the frames of UMEM are small: what fits still passes, and the log says what to do."""
    lan = OffloadLan(rig, {name: GUESTS[name] for name in ("bare", "chunks")})
    passes(lan, 1514)
    set_mtu(lan, 9000)
    wait_for(lambda: re.search(r"MTU 9000 is more than \d+.*restart vhostlane", lan.daemon.log()), "the log names the remedy")
    passes(lan, 1514)
    packet = next(frames(lan.macs["bare"], lan.wire_mac, [9014]))
    lan.wire.send(packet.frame)  # nobody can have it, and nothing may break
    passes(lan, 1514)
    set_mtu(lan, 1500)
    passes(lan, 1514)
    lan.done()


def test_guest_mtu_at_run_time(rig):
    """`mtu` of a port: shown, and offered to the next driver that asks."""
    lan = OffloadLan(rig, {"bare": {**GUESTS["bare"], "mtu": True}}, {"bare": "mtu=9000"}, mtu=MTU)
    assert lan.daemon.json("port", "show", "bare")["mtu"] == 9000
    lan.daemon.cli("port", "set", "bare", "mtu=4000")
    assert lan.daemon.json("port", "show", "bare")["mtu"] == 4000
    passes_one_way = next(frames(lan.wire_mac, lan.macs["bare"], [9014]))
    lan.vms["bare"].give(Vnet(), passes_one_way.frame)
    assert lan.raw_receive(lan.wire, lan.macs["bare"], 1) == [passes_one_way.frame]
    lan.done()
