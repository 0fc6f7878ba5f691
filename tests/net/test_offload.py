# SPDX-License-Identifier: BSD-2-Clause
"""Checksum and segmentation offload, end to end: each frame that a guest may send, to each receiver that there may be.

Every frame that arrives is held, byte by byte, against an oracle (offload_frames), which itself is held against scapy and against the
kernel's own segmentation.
"""
import hashlib
import itertools
import random
import socket
import threading

import pytest
from scapy.all import ICMP as ScapyICMP, IP, TCP as ScapyTCP, UDP as ScapyUDP, Ether  # pylint: disable=no-name-in-module
from scapy.layers.inet6 import ICMPv6EchoRequest

from offload_frames import (ACK, CWR, ECE, F_CSUM, F_GUEST_CSUM, F_GUEST_TSO4, F_GUEST_TSO6, F_GUEST_USO4, F_GUEST_USO6, F_HOST_ECN,
                            F_HOST_TSO4, F_HOST_TSO6, F_HOST_USO, FIN, ICMP, NEEDS_CSUM, PSH, TCP, TIMESTAMPS, UDP, Vnet, build,
                            check, padded, segments, takes)
from offload_guest import ALL, RECEIVERS, SENDERS, OffloadLan, batches
from offload_kernel import KernelSegmenter, TcpPeer
from rig import free_port, sh, wait_for

MTU = 1500
LONGEST = 65535  # frame, as Linux bounds it (gso_max_size)
VLAN = 5
BYTES = random.Random(4).randbytes(1 << 17)
HOP_BY_HOP = bytes(2) + bytes([1, 4, 0, 0, 0, 0])  # PadN
NO_OPERATIONS = bytes([1, 1, 1, 0])


def room(family, protocol, options):
    """Payload bytes of one packet of the MTU."""
    network = 20 + len(options.get("ip_options", b"")) if family == 4 else 40 + len(options.get("extension", b""))
    return MTU - network - (20 + len(options.get("tcp_options", b"")) if protocol == TCP else 8)


def sizes(mss):
    return [0, 1, 2, mss - 1, mss, mss + 1, 2 * mss, 3 * mss + 7]


def shapes(family, protocol):
    """Options of build() that matter to a device."""
    if protocol == ICMP:
        return [{}]
    if protocol == UDP:
        return [{}, {"df": False, "ip_options": NO_OPERATIONS, "extension": HOP_BY_HOP}]
    return [{"tcp_options": TIMESTAMPS, "flags": ACK | PSH | FIN, "ident": 0xFFFE, "seq": 0xFFFFFF00}, {"flags": ACK | PSH, "df": False},
            {"ip_options": NO_OPERATIONS, "extension": HOP_BY_HOP, "flags": ACK | ECE | CWR, "tos": 2}]


def each_shape():
    """Family, VLAN, protocol, options of build(), payload that the MTU allows, payload."""
    for family, vlan, protocol in itertools.product((4, 6), (None, VLAN), (TCP, UDP, ICMP)):
        for shape in shapes(family, protocol):
            mss = room(family, protocol, shape)
            head = 14 + (4 if vlan else 0) + MTU - mss
            for size in [*sizes(mss), LONGEST - head]:
                yield family, vlan, protocol, shape, mss, size


def cases(features, destination, source, seed=0):
    """(header, frame, frames on the wire) of everything that a guest with these features may send. Each frame has its own payload."""
    numbers = itertools.count(seed)
    for family, vlan, protocol, shape, mss, size in each_shape():
        def packet(**more):
            start = next(numbers) * 7 % 65536
            return build(destination, source, family, protocol, BYTES[start:start + size], vlan, **{**shape, **more})
        segmented = protocol == TCP and features & F_HOST_TSO4 or protocol == UDP and features & F_HOST_USO
        if size <= mss:
            yield case(Vnet(), packet(), False)
            if features & F_CSUM and protocol != ICMP:
                made = packet()
                yield case(made.open_header(), made, True)
        if segmented and size not in (1, 2, mss - 1):
            made = packet()
            if made.gso_header(mss).gso_type & 0x80 and not features & F_HOST_ECN:
                made = packet(flags=ACK)
            yield case(made.gso_header(mss), made, True)


def case(header, packet, left_open):
    frame = packet.open if left_open else packet.frame
    return header, frame, segments(header, frame)


# --- the oracle itself ------------------------------------------------------------------------------------------------


def scapy_whole(frame):
    """The frame as scapy builds it when it has to find lengths and checksums by itself."""
    packet = Ether(frame)
    for layer in (IP, ScapyTCP, ScapyUDP, ScapyICMP, ICMPv6EchoRequest):
        if layer in packet:
            for field in ("chksum", "cksum"):
                if field in packet[layer].fields:
                    delattr(packet[layer], field)
    return bytes(packet)


def test_oracle_agrees_with_scapy():
    everything = [frame for _, _, whole in cases(SENDERS["all"], b"\2\0\0\0\0\1", b"\2\0\0\0\0\2") for frame in whole]
    for frame in everything:
        check(frame)
    for frame in random.Random(1).sample(everything, 300):
        assert scapy_whole(frame) == frame


def test_oracle_agrees_with_the_kernel(rig):
    """Linux segments and completes the same frames, sent by a packet socket with a virtio header. It refuses a single segment."""
    kernel, seen = KernelSegmenter(rig), 0
    for header, frame, whole in cases(SENDERS["all"], b"\2\0\0\0\0\1", b"\2\0\0\0\0\2"):
        if len(whole) > 1 or (header.flags & NEEDS_CSUM and not header.gso_type and len(frame) > 60):
            got = [padded(piece) for piece in kernel.segments(header, frame, len(whole))]
            assert got == whole, f"{header}, {len(frame)} bytes"
            seen += len(got)
    assert seen > 1000


# --- guest to guest ---------------------------------------------------------------------------------------------------

TAKERS = {f"{name}-{kind}": {"offloads": features, **({} if kind == "mrg" else {"mergeable": False, "modern": kind != "legacy"})}
          for name, features in RECEIVERS.items() for kind in ("mrg", "plain", "legacy") if kind != "legacy" or name in ("none", "tso")}
GIVERS = {f"from-{name}": {"offloads": features} for name, features in SENDERS.items()}


@pytest.fixture(scope="module")
def lan(module_rig):
    lan = OffloadLan(module_rig, {**GIVERS, **TAKERS})
    yield lan
    lan.done()


def same_meaning(got, sent):
    """The header went through unchanged; its length hint may be worked out anew."""
    return (got.flags, got.gso_type, got.gso_size, got.csum_start, got.csum_offset) == \
           (sent.flags, sent.gso_type, sent.gso_size, sent.csum_start, sent.csum_offset)


def check_delivery(sent, got, whole, features):
    """@sent: (header, frame, frames on the wire); @got: (header, frame) as they came; @whole: what they would be on a wire."""
    expected = [frame for _, _, frames in sent for frame in frames]
    for i, (a, b) in enumerate(zip(whole, expected)):
        assert a == b, f"frame {i} of {len(expected)}: {a[:80].hex()}, expected {b[:80].hex()}"
    assert len(whole) == len(expected)
    at = 0
    for header, frame, frames in sent:
        single = len(frames) == 1
        if single or takes(header, features):
            came_header, came = got[at]
            at += 1
            if takes(header, features) and header.flags & NEEDS_CSUM:
                assert came == padded(frame), "a frame that its receiver takes was changed"
                if not single:
                    assert same_meaning(came_header, header), f"{came_header}, sent {header}"
                else:
                    assert came_header.flags == NEEDS_CSUM and came_header.gso_type == 0, came_header
        else:
            at += len(frames)
    assert at == len(got), "frames were cut or joined without need"


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("giver", SENDERS)
def test_guest_to_guest(lan, giver, taker):
    source, destination = lan.macs[f"from-{giver}"], lan.macs[taker]
    sender, receiver = lan.vms[f"from-{giver}"], lan.vms[taker]
    for batch in batches(cases(SENDERS[giver], destination, source), 96):
        sender.give_all((header, frame) for header, frame, _ in batch)
        got, whole = lan.guest_receive(receiver, source, sum(len(frames) for _, _, frames in batch))
        check_delivery(batch, got, whole, receiver.offloads)


def test_scattered_frames(lan):
    """Descriptors that cut header, headers, checksum field and payload anywhere."""
    rng = random.Random(5)
    sender, source = lan.vms["from-all"], lan.macs["from-all"]
    chosen = rng.sample(list(cases(ALL, lan.macs["none-mrg"], source)), 60)
    for taker in ("none-mrg", "all-mrg", "all-plain", "none-legacy"):
        for header, frame, whole in chosen:
            frame = lan.macs[taker] + frame[6:]
            cuts = sorted({rng.choice([10, 12, 12 + 14, 12 + 34, 12 + 50, 12 + 51, 12 + 60, 12 + 61, rng.randrange(1, 12 + len(frame))])
                           for _ in range(rng.randrange(6))} & set(range(1, 12 + len(frame))))
            sender.give(header, frame, cuts=cuts)
            got, came = lan.guest_receive(lan.vms[taker], source, len(whole))
            check_delivery([(header, frame, segments(header, frame))], got, came, lan.vms[taker].offloads)


# --- guest to wire and host, wire and host to guest -------------------------------------------------------------------


@pytest.mark.parametrize("end", ["wire", "host"])
@pytest.mark.parametrize("giver", SENDERS)
def test_guest_to_outside(lan, giver, end):
    source, destination = lan.macs[f"from-{giver}"], lan.wire_mac if end == "wire" else lan.host_mac
    sender, receiver = lan.vms[f"from-{giver}"], lan.wire if end == "wire" else lan.host
    for batch in batches(cases(SENDERS[giver], destination, source), 96):
        expected = [frame for _, _, frames in batch for frame in frames]
        sender.give_all((header, frame) for header, frame, _ in batch)
        got = lan.raw_receive(receiver, source, len(expected), destination)
        for i, (a, b) in enumerate(zip(got, expected)):
            assert a == b, f"frame {i} of {len(expected)}: {a[:80].hex()}, expected {b[:80].hex()}"


@pytest.mark.parametrize("end", ["wire", "host"])
@pytest.mark.parametrize("taker", TAKERS)
def test_outside_to_guest(lan, taker, end):
    """Whole frames, one by one or coalesced: the same bytes, in the same order."""
    destination, source = lan.macs[taker], lan.wire_mac if end == "wire" else lan.host_mac
    receiver, sender = lan.vms[taker], lan.wire if end == "wire" else lan.host
    for batch in batches(cases(0, destination, source), 64):
        expected = [frame for _, _, frames in batch for frame in frames]
        for frame in expected:
            sender.send(frame)
        _, whole = lan.guest_receive(receiver, source, len(expected))
        assert whole == expected


def with_sum_of_zero(packet, at=0):
    """The payload changed so that the checksum of the segment that begins there comes out as 0."""
    payload = bytearray(BYTES[:3000])
    payload[at + 100:at + 102] = b"\0\0"
    made = packet(bytes(payload))
    whole = segments(made.gso_header(1000), made.open)[at // 1000]
    layout = check(whole)
    field = layout.transport + (16 if layout.protocol == TCP else 6)
    payload[at + 100:at + 102] = whole[field:field + 2]
    return bytes(payload)


@pytest.mark.parametrize("at", [0, 1000, 2000])
@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [4, 6])
def test_checksum_that_comes_out_as_zero(lan, family, protocol, at):
    """In a datagram 0 means that there is none: the other form of zero is sent (RFC 768, RFC 8200)."""
    def packet(payload, destination=lan.wire_mac):
        return build(destination, lan.macs["from-all"], family, protocol, payload, flags=ACK)
    payload = with_sum_of_zero(packet, at)
    for destination in (lan.wire_mac, lan.host_mac, lan.macs["none-mrg"], lan.macs["none-plain"]):
        made = packet(payload, destination)
        expected = segments(made.gso_header(1000), made.open)
        layout = check(expected[at // 1000])
        field = layout.transport + (16 if protocol == TCP else 6)
        assert expected[at // 1000][field:field + 2] == (b"\0\0" if protocol == TCP else b"\xff\xff")
        # Cut here, and cut by the guest.
        alone = build(destination, lan.macs["from-all"], family, protocol, payload[at:at + 1000], flags=ACK)
        for header, frame in ((made.gso_header(1000), made.open), (alone.open_header(), alone.open)):
            wanted = segments(header, frame)
            lan.vms["from-all"].give(header, frame)
            name = next((name for name, address in lan.macs.items() if address == destination), None)
            if name:
                got = lan.guest_receive(lan.vms[name], lan.macs["from-all"], len(wanted))[1]
            else:
                got = lan.raw_receive(lan.wire if destination == lan.wire_mac else lan.host, lan.macs["from-all"], len(wanted), destination)
            assert got == wanted


# --- the kernel's own sockets -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host_side(lan):
    """Addresses of guests, known to the host without asking; both families."""
    prefix = f"fd00:{lan.link.ifindex:x}:"
    sh(f"echo 0 > /proc/sys/net/ipv6/conf/{lan.link.uplink}/disable_ipv6; ip addr add {prefix}:1/64 dev {lan.link.uplink} nodad")
    known = {}
    for number, name in enumerate(("from-none", "from-csum", "from-all", "none-mrg", "all-mrg", "tso-plain"), 11):
        pair = f"{lan.net}.{number}", f"{prefix}:{number}"
        for address in pair:
            sh(f"ip neigh replace {address} lladdr {':'.join(f'{b:02x}' for b in lan.macs[name])} nud permanent dev {lan.link.uplink}")
        known[name] = {4: (socket.inet_pton(socket.AF_INET, pair[0]), socket.inet_pton(socket.AF_INET, lan.host_ip)),
                       6: (socket.inet_pton(socket.AF_INET6, pair[1]), socket.inet_pton(socket.AF_INET6, f"{prefix}:1"))}
    return known


def kernel_socket(family, kind, address, port):
    new = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, kind)
    new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    new.bind((socket.inet_ntop(new.family, address), port))
    new.settimeout(60)
    return new


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", ["from-none", "from-csum", "from-all", "none-mrg", "all-mrg", "tso-plain"])
def test_tcp_with_the_host(lan, host_side, name, family):
    """The kernel's TCP takes what a guest sends in large pieces, and its answer reaches the guest; both hashed."""
    features, port = lan.vms[name].offloads, free_port()
    addresses = host_side[name][family]
    forth, back = BYTES[:100000], BYTES[1000:120000]
    listener = kernel_socket(family, socket.SOCK_STREAM, addresses[1], port)
    listener.listen(1)
    heard = []

    def serve():
        connection = listener.accept()[0]
        connection.settimeout(60)
        digest, left = hashlib.sha256(), len(forth)
        while left and (data := connection.recv(65536)):
            digest.update(data)
            left -= len(data)
        heard.append(digest.digest())
        connection.sendall(back)
        connection.close()
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    peer = TcpPeer(lan, lan.vms[name], name, addresses, port, features & F_CSUM)
    peer.open()
    peer.send(forth, 40000 if features & F_HOST_TSO4 else peer.mss)
    peer.run(lambda: peer.closed)
    peer.close()
    server.join(60)
    listener.close()
    assert heard == [hashlib.sha256(forth).digest()]
    assert bytes(peer.received) == back
    assert peer.repeats == 0


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", ["from-none", "from-csum", "from-all"])
def test_udp_with_the_host(lan, host_side, name, family):
    """The kernel's UDP takes every datagram: whole, with an open checksum, and cut from a large frame."""
    features, port = lan.vms[name].offloads, free_port()
    addresses = host_side[name][family]
    receiver = kernel_socket(family, socket.SOCK_DGRAM, addresses[1], port)
    mss = room(family, UDP, {})
    for size in (0, 1, mss - 1, mss, mss + 1, 5 * mss + 3):
        for number in range(3):
            payload = BYTES[number:number + size]
            packet = build(lan.host_mac, lan.macs[name], family, UDP, payload, addresses=addresses, ports=(port, port))
            if size > mss:
                if not features & F_HOST_USO:
                    continue
                lan.vms[name].give(packet.gso_header(mss), packet.open)
            elif features & F_CSUM:
                lan.vms[name].give(packet.open_header(), packet.open)
            else:
                lan.vms[name].give(Vnet(), packet.frame)
            for at in range(0, max(size, 1), mss):
                assert receiver.recv(65536) == payload[at:at + mss]
    receiver.setblocking(False)
    with pytest.raises(BlockingIOError):
        receiver.recv(1)
    receiver.close()


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", ["none-mrg", "all-mrg", "tso-plain"])
def test_udp_from_the_host(lan, host_side, name, family):
    addresses, port = host_side[name][family], free_port()
    sender = kernel_socket(family, socket.SOCK_DGRAM, addresses[1], port)
    mss = room(family, UDP, {})
    for size in (0, 1, mss - 1, mss):
        sender.sendto(BYTES[:size], (socket.inet_ntop(sender.family, addresses[0]), port))
        while True:
            _, whole = lan.guest_receive(lan.vms[name], lan.host_mac, 1)
            layout = None
            for frame in whole:
                try:
                    layout = check(frame)
                except ValueError:  # not IP: the host's own
                    continue
                if layout.protocol == UDP and frame[layout.transport:layout.transport + 2] == port.to_bytes(2, "big"):
                    break
            else:
                continue
            assert frame[layout.payload:layout.end] == BYTES[:size]
            break
    sender.close()


def test_nothing_was_lost(lan):
    """After all that the module has sent: no header refused, nothing too large, nothing without room."""
    drops = {name: value for name, value in lan.drops().items() if name.startswith("ports.") and "port_down" not in name}
    assert not drops
    assert lan.counters("none-mrg")["frames_segmented"] >= 50


# --- what is offered --------------------------------------------------------------------------------------------------

OFFERS = {"all": ALL, "none": 0, "csum": F_CSUM | F_GUEST_CSUM, "csum+tso4": F_CSUM | F_GUEST_CSUM | F_HOST_TSO4 | F_GUEST_TSO4,
          "csum+tso6+coalesce": F_CSUM | F_GUEST_CSUM | F_HOST_TSO6 | F_GUEST_TSO6, "tso4+tso6": 0, "csum+ecn": F_CSUM | F_GUEST_CSUM,
          "csum+uso": F_CSUM | F_GUEST_CSUM | F_HOST_USO | F_GUEST_USO4 | F_GUEST_USO6}


def test_offered_and_negotiated_again(rig):
    """What `offloads` names is offered, no more. A guest that comes back with less gets frames cut from then on, and with more whole."""
    lan = OffloadLan(rig, {**{f"p{i}": {} for i in range(len(OFFERS))}, "giver": {"offloads": ALL}},
                     {f"p{i}": f"offloads={text}" for i, text in enumerate(OFFERS)})
    for i, (text, wanted) in enumerate(OFFERS.items()):
        assert lan.vms[f"p{i}"].frontend.get_features() & ALL == wanted, text
    source, destination = lan.macs["giver"], lan.macs["p0"]
    packet = build(destination, source, 4, TCP, BYTES[:10000], flags=ACK)
    header = packet.gso_header(1448)
    expected = segments(header, packet.open)
    for features in (0, RECEIVERS["all"], RECEIVERS["csum"], RECEIVERS["tso"], 0, RECEIVERS["uso"]):
        guest = lan.vms["p0"]
        guest.offloads = features
        guest.reconnect()
        wait_for(lambda: lan.daemon.json("port", "show", "p0")["served_queue_pairs"] == 1, "the guest is served")
        lan.vms["giver"].give(header, packet.open)
        got, whole = lan.guest_receive(guest, source, len(expected))
        assert whole == expected
        assert (len(got) == 1) == takes(header, features)
    lan.daemon.cli("port", "set", "p0", "offloads=csum")
    lan.vms["p0"].offloads = 0
    lan.vms["p0"].reconnect()
    assert lan.vms["p0"].frontend.get_features() & ALL == OFFERS["csum"]
    lan.done()
