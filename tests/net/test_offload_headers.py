# SPDX-License-Identifier: BSD-2-Clause
"""Virtio headers that make no sense: dropped under their name, nothing stray on the wire, the neighbour untouched."""
import pytest

from offload_frames import (ACK, CWR, GSO_ECN, GSO_TCP4, GSO_TCP6, GSO_UDP, NEEDS_CSUM, TCP, UDP, Vnet, build, padded, parse, segments)
from offload_guest import ALL, SENDERS, OffloadLan

MSS = 1428
PAYLOAD = bytes(i * 7 & 0xFF for i in range(3 * MSS + 9))
REASONS = ("not_negotiated", "csum_start", "csum_offset", "csum_protocol", "gso_type", "gso_size", "gso_without_csum", "gso_protocol")


@pytest.fixture(scope="module")
def lan(module_rig):
    guests = {f"from-{name}": {"offloads": features} for name, features in SENDERS.items()}
    lan = OffloadLan(module_rig, {**guests, "hostile": {"offloads": ALL}, "neighbour": {"offloads": ALL}, "plain": {"offloads": 0}})
    yield lan
    lan.done()


def refused(lan, name):
    counters = lan.counters(name)
    return {reason: counters["header_" + reason] for reason in REASONS}


def proof(lan, name, number):
    """A good frame: all that this guest sent before has been dealt with when it is on the wire. What came with it is returned."""
    frame = build(lan.wire_mac, lan.macs[name], 4, UDP, b"proof", ports=(1, number))
    lan.vms[name].give(Vnet(), frame.frame)
    came = []
    while not came or came[-1] != padded(frame.frame):
        came += lan.raw_receive(lan.wire, lan.macs[name], 1)
    return came[:-1]


def tcp(lan, name, family=4, size=len(PAYLOAD), **options):
    return build(lan.wire_mac, lan.macs[name], family, options.pop("protocol", TCP), PAYLOAD[:size], **options)


def patched(packet, at, data):
    """The open frame with some bytes overwritten."""
    return packet.open[:at] + data + packet.open[at + len(data):]


def table(lan):
    """(name, header, frame, reason)."""
    name = "hostile"
    large, small, udp, six = tcp(lan, name), tcp(lan, name, size=100), tcp(lan, name, protocol=UDP), tcp(lan, name, 6)
    ip, l4 = small.layout.network, small.layout.transport
    for start in (0, 1, 12, 13, ip, ip + 1, l4 - 2, l4 - 1, len(small.frame), len(small.frame) + 1, 1518, 0x7FFF, 0x8000, 0xFFFF):
        yield f"csum_start {start}", small.open_header(csum_start=start), small.open, "csum_start"
    for start in (0, ip, l4 - 1, l4 + 2, len(large.frame), 0xFFFF):
        yield f"gso, csum_start {start}", large.gso_header(MSS, csum_start=start), large.open, "csum_start"
    for offset in (0, 1, 2, 6, 14, 15, 17, 18, 20, 98, 120, 0x7FFE, 0xFFFE, 0xFFFF):
        yield f"csum_offset {offset}", small.open_header(csum_offset=offset), small.open, "csum_offset"
    yield "a CRC's place", small.open_header(csum_offset=8), small.open, "csum_protocol"
    yield "SCTP", small.open_header(csum_offset=8), patched(small, ip + 9, b"\x84"), "csum_protocol"
    for kind in (2, 3, 6, 7, 0x40, 0x7F, GSO_ECN, GSO_ECN | GSO_UDP, GSO_ECN | 3, 0xFF):
        yield f"gso_type {kind:#x}", large.gso_header(MSS, gso_type=kind), large.open, "gso_type"
    for size in (0, 1, 7):
        yield f"gso_size {size}", large.gso_header(size), large.open, "gso_size"
        yield f"gso_size {size}, IPv6", six.gso_header(size), six.open, "gso_size"
    for size in (0, 1, (len(PAYLOAD) - 1) // 128):
        yield f"datagrams of {size}", udp.gso_header(size), udp.open, "gso_size"
    yield "no checksum asked for", large.gso_header(MSS, flags=0), large.frame, "gso_without_csum"
    for kind, packet in ((GSO_TCP6, large), (GSO_UDP, large), (GSO_TCP4, six), (GSO_UDP, six), (GSO_TCP4, udp)):
        yield f"gso_type {kind} for protocol {packet.layout.protocol}/{packet.layout.family}", packet.gso_header(MSS, gso_type=kind), \
            packet.open, "gso_protocol"
    yield "a fragment", large.gso_header(MSS), patched(large, ip + 6, b"\x20\x00"), "gso_protocol"
    yield "a later fragment", large.gso_header(MSS), patched(large, ip + 6, b"\x00\x10"), "gso_protocol"
    for offset in (0x00, 0x10, 0x40):
        yield f"TCP data offset {offset:#x}", large.gso_header(MSS), patched(large, l4 + 12, bytes([offset])), "gso_protocol"
    for length in (0x40, 0x44, 0x54):
        yield f"IP version and length {length:#x}", large.gso_header(MSS), patched(large, ip, bytes([length])), "gso_protocol"
    yield "another protocol", large.gso_header(MSS), patched(large, 12, b"\x88\xb5"), "gso_protocol"
    long = tcp(lan, name, 6, extension=bytes([0, 0, 1, 70]) + bytes(68))
    yield "headers longer than any", long.gso_header(MSS), long.open, "gso_protocol"


def test_each_reason(lan):
    number = 0
    for what, header, frame, reason in table(lan):
        number += 1
        before = refused(lan, "hostile")
        lan.vms["hostile"].give(header, frame)
        assert proof(lan, "hostile", number) == [], what
        after = refused(lan, "hostile")
        assert {key: after[key] - before[key] for key in REASONS} == {**dict.fromkeys(REASONS, 0), reason: 1}, what


def test_not_negotiated(lan):
    """What the driver did not accept it may not use."""
    small, large, datagrams = (tcp(lan, "hostile", size=100), tcp(lan, "hostile"), tcp(lan, "hostile", protocol=UDP))
    marked = tcp(lan, "hostile", flags=ACK | CWR)
    for number, (name, header, frame) in enumerate([
            ("from-none", small.open_header(), small.open), ("from-none", large.gso_header(MSS), large.open),
            ("from-csum", large.gso_header(MSS), large.open), ("from-csum", datagrams.gso_header(MSS), datagrams.open),
            ("from-tso", marked.gso_header(MSS), marked.open), ("from-ecn", datagrams.gso_header(MSS), datagrams.open)]):
        frame = frame[:6] + lan.macs[name] + frame[12:]
        before = refused(lan, name)
        lan.vms[name].give(header, frame)
        assert proof(lan, name, number) == []
        assert refused(lan, name) == {**before, "not_negotiated": before["not_negotiated"] + 1}, header


def sweep(lan):
    """Every value of each field, in turn, in headers that are otherwise right."""
    small, large, datagrams, six = (tcp(lan, "hostile", size=100), tcp(lan, "hostile"), tcp(lan, "hostile", protocol=UDP), tcp(lan, "hostile", 6))
    wide = sorted({value & 0xFFFF for bit in range(17) for value in ((1 << bit) - 1, 1 << bit, (1 << bit) + 1)})
    for value in sorted({*range(0, 160), *wide, len(small.frame) - 2, len(small.frame) - 18, len(small.frame) - 17}):
        yield small, small.open_header(csum_start=value)
        yield small, small.open_header(csum_offset=value)
        yield small, small.open_header(hdr_len=value)
        yield small, small.open_header(csum_start=value, csum_offset=value)
    for value in range(256):
        yield large, large.gso_header(MSS, gso_type=value)
        yield six, six.gso_header(MSS, gso_type=value)
        yield datagrams, datagrams.gso_header(MSS, gso_type=value)
        yield small, small.open_header(flags=value)
        yield small, Vnet(flags=value)
    for value in wide:
        for packet in (large, six, datagrams):
            yield packet, packet.gso_header(value)
            yield packet, packet.gso_header(MSS, hdr_len=value)
            yield packet, packet.gso_header(MSS, csum_start=value)
            yield packet, packet.gso_header(MSS, csum_offset=value)


def what_it_must_be(header, frame):
    """Unknown flags mean nothing."""
    header.flags &= NEEDS_CSUM
    if not header.flags and not header.gso_type:
        return [padded(frame)]
    return segments(header, frame)


def taken_by(lan, target):
    """What came of one frame of the hostile guest: as it would stand on a wire."""
    if target is None:
        return proof(lan, "hostile", 1)
    lan.vms["hostile"].drain()
    whole = []
    while (got := target.receive()) is not None:
        header, frame = got
        if frame[6:12] == lan.macs["hostile"]:
            if header.flags & NEEDS_CSUM and header.hdr_len:
                assert header.hdr_len == parse(frame).payload, "the length of the headers is the guest's word"
            whole += segments(header, frame)
    return whole


@pytest.mark.parametrize("end", ["wire", "neighbour", "plain"])
def test_sweep(lan, end):
    """Either dropped and counted, or exactly what the header says; never anything else."""
    target, destination = (None, lan.wire_mac) if end == "wire" else (lan.vms[end], lan.macs[end])
    before, delivered, sent = refused(lan, "hostile"), 0, 0
    for packet, header in sweep(lan):
        if target is None and (header.gso_size > MSS or (not header.gso_type and packet.header_length + MSS < len(packet.frame))):
            continue  # frames longer than the uplink's MTU: another test's
        frame = destination + (packet.open if header.flags & NEEDS_CSUM else packet.frame)[6:]
        lan.vms["hostile"].give(header, frame)
        whole = taken_by(lan, target)
        if whole:
            assert whole == what_it_must_be(header, frame), f"{header}; drops {lan.drops()}"
            delivered += 1
        sent += 1
    after = refused(lan, "hostile")
    assert delivered + sum(after.values()) - sum(before.values()) == sent
    assert delivered > 500 and sum(after.values()) - sum(before.values()) > 500


def test_small_segments_are_bounded(lan):
    """The least size of segments that is taken bounds what one frame can become."""
    guest, packet = lan.vms["hostile"], build(lan.wire_mac, lan.macs["hostile"], 4, TCP, bytes(65400))
    taken = []
    for size in (8, 16, 47, 48, 64, 100):
        before = refused(lan, "hostile")["gso_size"]
        guest.give(packet.gso_header(size), packet.open)
        got = proof(lan, "hostile", size)
        if refused(lan, "hostile")["gso_size"] == before:
            assert got == segments(packet.gso_header(size), packet.open)
            taken.append(size)
        else:
            assert got == []
    assert 100 in taken and min(taken) >= 8


def test_the_neighbour_is_untouched(lan):
    """After all that: no frame of the neighbour was refused or lost, and it still sends and receives."""
    counters = lan.counters("neighbour")
    assert not any(counters["header_" + reason] for reason in REASONS)
    packet = build(lan.wire_mac, lan.macs["neighbour"], 4, TCP, PAYLOAD)
    header = packet.gso_header(MSS)
    lan.vms["neighbour"].give(header, packet.open)
    expected = segments(header, packet.open)
    assert lan.raw_receive(lan.wire, lan.macs["neighbour"], len(expected)) == expected
    frame = build(lan.macs["neighbour"], lan.wire_mac, 4, TCP, PAYLOAD[:100]).frame
    lan.wire.send(frame)
    assert lan.guest_receive(lan.vms["neighbour"], lan.wire_mac, 1)[1] == [frame]
