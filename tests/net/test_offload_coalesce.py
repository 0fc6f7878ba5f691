# SPDX-License-Identifier: BSD-2-Clause
"""Segments of one burst from the wire become large frames, and nothing that Linux's GRO would keep apart is joined.

A burst does not depend on time here: the daemon is stopped while the frames come, so that it finds all of them at once.
"""
import random

import pytest

from offload_frames import (ACK, CWR, ECE, DATA_VALID, FIN, NEEDS_CSUM, PSH, RST, SYN, TCP, TIMESTAMPS, UDP, URG, build, padded, parse, segments)
from offload_guest import RECEIVERS, Burst, OffloadLan
from offload_kernel import VnetSocket
from rig import wait_for

MSS = 1400
BYTES = random.Random(6).randbytes(1 << 17)
BURST = 64  # frames that the daemon takes at once

GUESTS = {"all": {"offloads": RECEIVERS["all"]}, "tso": {"offloads": RECEIVERS["tso"]}, "uso": {"offloads": RECEIVERS["uso"]},
          "csum": {"offloads": RECEIVERS["csum"]}, "plain": {"offloads": RECEIVERS["all"], "mergeable": False},
          "off": {"offloads": RECEIVERS["all"]}, "none": {"offloads": 0}, "few": {"offloads": RECEIVERS["all"], "size": 16}}


@pytest.fixture(scope="module")
def lan(module_rig):
    lan = OffloadLan(module_rig, GUESTS, {"off": "offloads=csum+tso4+tso6+ecn+uso"})
    yield lan
    lan.done()


def identical(header, frame, expected):
    """The frames on a wire of what the guest got; identification fixed or counting, as they came."""
    made = segments(header, frame)
    return made if made == expected[:len(made)] else segments(header, frame, fixed_id=True)


def deliver(lan, name, frames):
    """Sends the frames as a burst; (frames that each delivered one stands for, their headers). Every byte must be right, in order."""
    with Burst(lan):
        for frame in frames:
            lan.wire.send(frame)
    groups, headers, left = [], [], [padded(frame) for frame in frames]
    while left:
        try:
            header, frame = lan.vms[name].expect(1, timeout=30)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(left)} of {len(frames)} are missing; drops {lan.drops()}") from error
        if frame[6:12] != lan.wire_mac:
            continue
        if header.gso_type:
            made = identical(header, frame, left)
        else:
            assert not header.flags & NEEDS_CSUM, "a checksum was opened without need"
            made = [frame]
        assert made == left[:len(made)], f"frame {len(frames) - len(left)}, joined from {len(made)}"
        groups.append(len(made))
        headers.append(header)
        left = left[len(made):]
    return groups, headers


def train(lan, name, count=8, family=4, protocol=TCP, size=MSS, last=None, start=0, **options):
    """Segments of one flow, one behind the other."""
    frames, seq, ident = [], options.pop("seq", 1000), options.pop("ident", 7)
    each = options.pop("each", lambda i: {})
    for i in range(count):
        length = last if last is not None and i + 1 == count else size
        frames.append(build(lan.macs[name], lan.wire_mac, family, protocol, BYTES[start + seq - 1000:][:length],
                            **{"seq": seq, "ident": ident + i, **options, **each(i)}).frame)
        seq += length
    return frames


# --- what is joined ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("vlan", [None, 5])
@pytest.mark.parametrize("shape", [{}, {"tcp_options": TIMESTAMPS}, {"flags": ACK | ECE}, {"ident": 0xFFFC},
                                   {"seq": 0xFFFFFFFF - 3000}, {"extension": bytes([0, 0, 1, 4, 0, 0, 0, 0])}],
                         ids=["plain", "timestamps", "ece", "ident-wraps", "seq-wraps", "extension"])
def test_train_becomes_one(lan, family, vlan, shape):
    before = lan.counters("all")["frames_coalesced"]
    seq = shape.get("seq", 1000)
    frames = [build(lan.macs["all"], lan.wire_mac, family, TCP, BYTES[i * MSS:][:MSS if i < 8 else 77], vlan,
                    **{**shape, "seq": seq + i * MSS, "ident": shape.get("ident", 7) + i}).frame for i in range(9)]
    groups, headers = deliver(lan, "all", frames)
    assert groups == [9]
    assert headers[0].gso_size == MSS and headers[0].hdr_len == parse(frames[0]).payload
    assert lan.counters("all")["frames_coalesced"] == before + 9


@pytest.mark.parametrize("df, ident", [(True, lambda i: 9), (False, lambda i: 9 + i), (True, lambda i: 9 + i)])
def test_identification(lan, df, ident):
    """One for all (with DF), or counting."""
    groups, _ = deliver(lan, "all", train(lan, "all", each=lambda i: {"ident": ident(i), "df": df}))
    assert groups == [8]


@pytest.mark.parametrize("family", [4, 6])
def test_datagrams(lan, family):
    groups, headers = deliver(lan, "uso", train(lan, "uso", 9, family, UDP, last=5))
    assert groups == [9] and headers[0].gso_size == MSS


def test_no_longer_than_ip_allows(lan):
    """60 segments of 1400 bytes are more than one packet may hold."""
    groups, _ = deliver(lan, "all", train(lan, "all", 60))
    assert sum(groups) == 60 and groups[0] == (65535 - 40) // MSS


def test_flows_side_by_side(lan):
    """Segments of four flows, dealt like cards, become a frame each; every flow in its order."""
    flows = [train(lan, "all", 6, family, TCP, ports=(port, 80), start=port) for family, port in ((4, 1), (4, 2), (6, 1), (6, 2))]
    frames = [flow[i] for i in range(6) for flow in flows]
    with Burst(lan):
        for frame in frames:
            lan.wire.send(frame)
    for flow in flows:
        header, frame = next(got for got in iter(lambda: lan.vms["all"].expect(1)[0], None) if got[1][6:12] == lan.wire_mac)
        assert segments(header, frame) == flow


def test_segmented_by_the_kernel(lan, rig):
    """What Linux cuts, comes together again: a 64 KB frame with a virtio header in, the same out."""
    sender = VnetSocket(lan.link.peer, lan.link.namespace)
    rig.undo(sender.close)
    for family in (4, 6):
        packet = build(lan.macs["all"], lan.wire_mac, family, TCP, BYTES[:40 * MSS + 5], flags=ACK | PSH, tcp_options=TIMESTAMPS)
        header = packet.gso_header(MSS)
        with Burst(lan):
            sender.send(header, packet.open)
        got_header, frame = next(got for got in iter(lambda: lan.vms["all"].expect(1)[0], None) if got[1][6:12] == lan.wire_mac)
        assert frame == packet.open
        assert (got_header.gso_type, got_header.gso_size, got_header.csum_start) == (header.gso_type, MSS, header.csum_start)


# --- what is not ------------------------------------------------------------------------------------------------------

# Options of the fifth of eight segments, and what comes of them.
BREAKS = {
    "acknowledgement": ({"ack": 2}, [4, 1, 3]),
    "window": ({"window": 511}, [4, 1, 3]),
    "timestamps": ({"tcp_options": TIMESTAMPS[:-1] + b"\x09"}, [4, 1, 3]),
    "no-options": ({"tcp_options": b""}, [4, 1, 3]),
    "ttl": ({"ttl": 63}, [4, 1, 3]),
    "tos": ({"tos": 4}, [4, 1, 3]),
    "ce-mark": ({"tos": 3}, [4, 1, 3]),
    "df": ({"df": False}, [4, 1, 3]),
    "label": ({"label": 5}, [4, 1, 3]),
    "urgent": ({"flags": ACK | URG, "urgent": 9}, [4, 1, 3]),
    "urgent-pointer": ({"urgent": 9}, [4, 1, 3]),
    "syn": ({"flags": ACK | SYN}, [4, 1, 3]),
    "rst": ({"flags": ACK | RST}, [4, 1, 3]),
    "fin": ({"flags": ACK | FIN}, [4, 1, 3]),
    "no-ack": ({"flags": 0}, [4, 1, 3]),
    "ece": ({"flags": ACK | ECE}, [4, 1, 3]),
    "cwr": ({"flags": ACK | CWR}, [4, 4]),
    "push": ({"flags": ACK | PSH}, [5, 3]),
    "gap": ({"seq": 99}, [4, 1, 3]),
    "ident": ({"ident": 99}, [4, 1, 3]),
}
FOR_ONE_FAMILY = {"df": 4, "ident": 4, "label": 6}


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", BREAKS)
def test_breaks(lan, name, family):
    options, wanted = BREAKS[name]
    if FOR_ONE_FAMILY.get(name, family) != family:
        options, wanted = {}, [8]  # a field that this family has not
    groups, _ = deliver(lan, "all", train(lan, "all", 8, family, tcp_options=TIMESTAMPS, each=lambda i: options if i == 4 else {}))
    assert groups == wanted


def test_sizes(lan):
    """A shorter segment is the last of its frame, a longer one the first of the next; what needs padding is not joined, nor what a guest could not
    send on: TCP in pieces of less than 36 bytes."""
    for sizes, wanted in (([1000] * 3 + [999] + [1000] * 2, [4, 2]), ([1000] * 3 + [1001] + [1000], [3, 2]), ([36, 36, 36, 1], [4]),
                          ([35] * 3, [1] * 3), ([1, 1, 1], [1] * 3), ([1000, 0, 1000, 1000], [1, 1, 2])):
        frames, seq = [], 5
        for i, size in enumerate(sizes):
            frames.append(build(lan.macs["all"], lan.wire_mac, 4, TCP, BYTES[seq:seq + size], seq=seq, ident=i).frame)
            seq += size
        groups, _ = deliver(lan, "all", frames)
        assert groups == wanted, sizes


@pytest.mark.parametrize("where", ["tcp", "udp", "ip", "payload"])
def test_wrong_checksum(lan, where):
    """Goes through as it came, never called valid, and is joined with nothing. (Its neighbours may be left alone, too.) DATA_VALID does not
    speak of the IP header's checksum, which receivers verify themselves."""
    protocol = UDP if where == "udp" else TCP
    frames = train(lan, "all", 8, 4, protocol)
    layout = parse(frames[4])
    at = {"tcp": layout.transport + 16, "udp": layout.transport + 6, "ip": layout.network + 10, "payload": layout.payload + 700}[where]
    frames[4] = frames[4][:at] + bytes([frames[4][at] ^ 0x55]) + frames[4][at + 1:]
    groups, headers = deliver(lan, "all", frames)
    assert groups in ([4, 1, 3], [1] * 8)
    assert where == "ip" or not headers[groups.index(1) if len(groups) == 3 else 4].flags & (DATA_VALID | NEEDS_CSUM)


def test_fewer_buffers_than_all_need(lan):
    """What was joined and finds no room goes in pieces, as far as the buffers reach; the rest is counted as it came."""
    guest, got, frames = lan.vms["few"], [], train(lan, "few", 40)
    while guest.receive():  # what strangers sent
        pass
    before = lan.counters("few")["to_guest_no_buffers"]
    with Burst(lan):
        for frame in frames:
            lan.wire.send(frame)

    def all_accounted():
        while came := guest.receive(recycle=False):
            got.extend([came[1]] if came[1][6:12] == lan.wire_mac else [])
        return len(got) + lan.counters("few")["to_guest_no_buffers"] - before >= len(frames)
    wait_for(all_accounted, "every frame is delivered or counted", 30)
    assert got == frames[:len(got)] and 8 <= len(got) <= 16


@pytest.mark.parametrize("name", ["csum", "plain", "off", "none"])
@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_never_for_those_who_do_not_take_it(lan, name, protocol):
    """No GUEST_TSO, no mergeable buffers, switched off at the port, no offloads."""
    groups, _ = deliver(lan, name, train(lan, name, 20, 4, protocol))
    assert groups == [1] * 20
    assert lan.counters(name)["frames_coalesced"] == 0


def test_kinds_by_feature(lan):
    assert deliver(lan, "tso", train(lan, "tso", 8, 4, UDP))[0] == [1] * 8
    assert deliver(lan, "uso", train(lan, "uso", 8, 4, TCP))[0] == [1] * 8
    assert deliver(lan, "tso", train(lan, "tso", 8, 4, TCP, flags=ACK | PSH))[0] == [1] * 8
    # The first has CWR: not for a guest without GUEST_ECN.
    for name, wanted in (("all", [8]), ("tso", [1, 7])):
        assert deliver(lan, name, train(lan, name, 8, each=lambda i: {"flags": ACK | CWR} if not i else {}))[0] == wanted


def test_switched_at_run_time(lan):
    """`port set offloads` counts for coalescing at once."""
    lan.daemon.cli("port", "set", "all", "offloads=csum+tso4+tso6+ecn+uso")
    try:
        assert deliver(lan, "all", train(lan, "all"))[0] == [1] * 8
    finally:
        lan.daemon.cli("port", "set", "all", "offloads=all")
    assert deliver(lan, "all", train(lan, "all"))[0] == [8]


def test_anything(lan):
    """Random mixtures of flows, sizes, flags and faults: each flow comes as it was sent."""
    rng = random.Random(7)
    before = lan.counters("all")["frames_coalesced"]
    for _ in range(40):
        state, frames = {}, []
        for _ in range(rng.randrange(2, BURST)):
            family, port, protocol = rng.choice([(4, 1, TCP), (4, 2, TCP), (6, 1, TCP), (6, 3, UDP), (4, 4, UDP)])
            seq, ident = state.get((family, port), (1, 1))
            size = rng.choice([100, 100, 100, 100, 100, 99, 0, 101])
            frame = bytearray(build(lan.macs["all"], lan.wire_mac, family, protocol, BYTES[seq:seq + size], ports=(port, 9), seq=seq, ident=ident,
                                    flags=rng.choice([ACK] * 8 + [ACK | PSH, ACK | FIN, ACK | CWR, ACK | ECE]),
                                    window=rng.choice([9] * 9 + [8])).frame)
            if rng.random() < 0.03:
                frame[-1] ^= 1
            frames.append(bytes(frame))
            state[family, port] = (seq + size + (rng.random() < 0.05), ident + 1)
        frames = [padded(frame) for frame in frames]
        with Burst(lan):
            for frame in frames:
                lan.wire.send(frame)

        def flow(frame):
            layout = parse(frame)
            return frame[layout.network:][:1], layout.protocol, frame[layout.transport:layout.transport + 4]
        left, pending = {}, len(frames)
        for frame in frames:
            left.setdefault(flow(frame), []).append(frame)
        while pending:
            header, frame = lan.vms["all"].expect(1, timeout=30)[0]
            if frame[6:12] != lan.wire_mac:
                continue
            queue = left[flow(frame)]
            made = identical(header, frame, queue) if header.gso_type else [frame]
            assert made == queue[:len(made)]
            del queue[:len(made)]
            pending -= len(made)
    assert lan.counters("all")["frames_coalesced"] > before
