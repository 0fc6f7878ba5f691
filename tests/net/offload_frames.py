# SPDX-License-Identifier: BSD-2-Clause
"""Frames with a virtio header, and what must become of them: an oracle that shares no line with the engine.

build() makes a packet from its parts, with its checksum complete or open. segments() says which frames a device must put on a wire
for a frame and its header, by the rules of Linux (the tests hold it against the kernel's own segmentation).
"""
import struct
from dataclasses import dataclass

NEEDS_CSUM, DATA_VALID = 1, 2
GSO_NONE, GSO_TCP4, GSO_UDP4_FRAGMENTS, GSO_TCP6, GSO_UDP, GSO_ECN = 0, 1, 3, 4, 5, 0x80

F_CSUM, F_GUEST_CSUM = 1 << 0, 1 << 1
F_GUEST_TSO4, F_GUEST_TSO6, F_GUEST_ECN = 1 << 7, 1 << 8, 1 << 9
F_HOST_TSO4, F_HOST_TSO6, F_HOST_ECN = 1 << 11, 1 << 12, 1 << 13
F_GUEST_USO4, F_GUEST_USO6, F_HOST_USO = 1 << 54, 1 << 55, 1 << 56

FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
TIMESTAMPS = bytes([1, 1, 8, 10]) + struct.pack(">II", 0x01020304, 0x05060708)
LENGTH_MIN = 60
TAGS = (0x8100, 0x88A8)


def ones_sum(data):
    """One's complement sum of the 16-bit words, folded; 0 only of zeros."""
    value = int.from_bytes(data + b"\0" if len(data) % 2 else data, "big")
    return value % 0xFFFF or (0xFFFF if value else 0)


def checksum(data):
    return 0xFFFF - ones_sum(data)


def store(frame, at, value):
    struct.pack_into(">H", frame, at, value)


@dataclass
class Vnet:
    """The virtio header without num_buffers."""
    flags: int = 0
    gso_type: int = 0
    hdr_len: int = 0
    gso_size: int = 0
    csum_start: int = 0
    csum_offset: int = 0

    def pack(self, length=12):
        return struct.pack("<BBHHHH", self.flags, self.gso_type, self.hdr_len, self.gso_size, self.csum_start,
                           self.csum_offset) + bytes(length - 10)

    @classmethod
    def unpack(cls, data):
        return cls(*struct.unpack_from("<BBHHHH", data))


@dataclass
class Layout:
    family: int
    protocol: int
    network: int
    transport: int
    payload: int
    end: int


def parse(frame):
    """Where a TCP, UDP or ICMP packet has its parts. Raises ValueError for what is none."""
    at = 12
    kind = struct.unpack_from(">H", frame, at)[0]
    while kind in TAGS:
        at += 4
        kind = struct.unpack_from(">H", frame, at)[0]
    network = at + 2
    if kind == 0x0800:
        family, protocol = 4, frame[network + 9]
        transport = network + (frame[network] & 15) * 4
        end = network + struct.unpack_from(">H", frame, network + 2)[0]
    elif kind == 0x86DD:
        family, protocol = 6, frame[network + 6]
        transport = network + 40
        end = transport + struct.unpack_from(">H", frame, network + 4)[0]
        while protocol in (0, 43, 60):
            protocol, transport = frame[transport], transport + 8 * (frame[transport + 1] + 1)
    else:
        raise ValueError(f"ethertype {kind:#x}")
    payload = transport + {TCP: lambda: (frame[transport + 12] >> 4) * 4, UDP: lambda: 8}.get(protocol, lambda: 8)()
    return Layout(family, protocol, network, transport, payload, end)


def pseudo(frame, layout, length=None):
    """The pseudo-header as bytes. Without routing headers, the destination is the packet's own."""
    network, length = layout.network, layout.end - layout.transport if length is None else length
    if layout.family == 4:
        return frame[network + 12:network + 20] + struct.pack(">HH", layout.protocol, length)
    return frame[network + 8:network + 40] + struct.pack(">IHH", length, 0, layout.protocol)


CHECKSUM_AT = {TCP: 16, UDP: 6, ICMP: 2, ICMP6: 2}


def check(frame):
    """Asserts that every checksum and length of a frame is right; returns its layout."""
    layout = parse(frame)
    assert layout.end <= len(frame), f"the packet ends at {layout.end}, the frame at {len(frame)}"
    assert not any(frame[layout.end:]), "padding that is not zero"
    assert layout.end == len(frame) or len(frame) == LENGTH_MIN, "bytes behind the packet"
    if layout.family == 4:
        assert ones_sum(frame[layout.network:layout.network + (frame[layout.network] & 15) * 4]) == 0xFFFF, "IPv4 header checksum"
    body = frame[layout.transport:layout.end]
    cover = b"" if layout.protocol == ICMP else pseudo(frame, layout)
    assert ones_sum(cover + body) == 0xFFFF, f"checksum of protocol {layout.protocol}: {body[:24].hex()}"
    if layout.protocol == UDP:
        assert struct.unpack_from(">H", body, 4)[0] == len(body), "length of the datagram"
        assert body[6:8] != b"\0\0", "datagram without checksum"
    return layout


def padded(frame):
    return frame + bytes(max(0, LENGTH_MIN - len(frame)))


@dataclass
class Packet:
    """A whole packet, and the same with its checksum left open."""
    frame: bytes
    open: bytes
    layout: Layout

    @property
    def header_length(self):
        return self.layout.payload

    def open_header(self, **changes):
        l = self.layout
        return Vnet(**{"flags": NEEDS_CSUM, "hdr_len": l.payload, "csum_start": l.transport, "csum_offset": CHECKSUM_AT[l.protocol],
                       **changes})

    def gso_header(self, size, **changes):
        l = self.layout
        kind = GSO_UDP if l.protocol == UDP else GSO_TCP4 if l.family == 4 else GSO_TCP6
        if l.protocol == TCP and self.open[l.transport + 13] & CWR:
            kind |= GSO_ECN
        return self.open_header(**{"gso_type": kind, "gso_size": size, **changes})


ADDRESSES = {4: (bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2])),
             6: (bytes.fromhex("20010db8000000000000000000000001"), bytes.fromhex("20010db8000000000000000000000002"))}


def build(destination, source, family=4, protocol=TCP, payload=b"", vlan=None, **options):
    """Options: addresses (source, destination), ports, seq, ack, flags, window, tcp_options, ident, df, ttl, tos, ip_options (IPv4) or
    extension (IPv6: hop-by-hop header of 8 n bytes), label, urgent."""
    get = options.get
    link = destination + source
    for tag in (() if vlan is None else vlan if isinstance(vlan, tuple) else (vlan,)):
        link += struct.pack(">HH", 0x8100, tag)
    link += struct.pack(">H", 0x0800 if family == 4 else 0x86DD)
    ports = get("ports", (1000, 2000))
    if protocol == TCP:
        tcp_options = get("tcp_options", b"")
        head = struct.pack(">HHIIBBHHH", *ports, get("seq", 1) & 0xFFFFFFFF, get("ack", 1), (20 + len(tcp_options)) << 2,
                           get("flags", ACK), get("window", 512), 0, get("urgent", 0)) + tcp_options
    elif protocol == UDP:
        head = struct.pack(">HHHH", *ports, 8 + len(payload), 0)
    else:
        protocol = ICMP if family == 4 else ICMP6
        head = struct.pack(">BBHHH", 8 if family == 4 else 128, 0, 0, *ports)
    come_from, go_to = get("addresses", ADDRESSES[family])
    if family == 4:
        ip_options = get("ip_options", b"")
        ip = struct.pack(">BBHHHBBH", 0x45 + len(ip_options) // 4, get("tos", 0), 20 + len(ip_options) + len(head) + len(payload),
                         get("ident", 1) & 0xFFFF, 0x4000 if get("df", True) else 0, get("ttl", 64), protocol, 0)
        ip += come_from + go_to + ip_options
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    else:
        extension = get("extension", b"")
        following = protocol
        if extension:
            extension = bytes([protocol, len(extension) // 8 - 1]) + extension[2:]
            following = 0
        ip = struct.pack(">IHBB", 6 << 28 | get("tos", 0) << 20 | get("label", 0), len(extension) + len(head) + len(payload), following,
                         get("ttl", 64)) + come_from + go_to + extension
    frame = bytearray(link + ip + head + payload)
    layout = parse(frame)
    field = layout.transport + CHECKSUM_AT[protocol]
    cover = b"" if protocol == ICMP else pseudo(bytes(frame), layout)
    whole, left_open = bytearray(frame), bytearray(frame)
    value = checksum(cover + bytes(frame[layout.transport:]))
    store(whole, field, 0xFFFF if protocol == UDP and not value else value)
    store(left_open, field, ones_sum(cover))
    return Packet(bytes(whole), bytes(left_open), layout)


def completed(header, frame):
    """A frame without segmentation, its checksum computed as the header asks."""
    if not header.flags & NEEDS_CSUM:
        return frame
    value = checksum(frame[header.csum_start:])
    if not value and header.csum_offset == CHECKSUM_AT[UDP]:
        value = 0xFFFF
    whole = bytearray(frame)
    store(whole, header.csum_start + header.csum_offset, value)
    return bytes(whole)


def segments(header, frame, fixed_id=False):
    """The frames that must stand on the wire: whole, padded. @fixed_id: of a frame that the engine has coalesced itself."""
    kind = header.gso_type & ~GSO_ECN
    if kind == GSO_NONE:
        return [padded(completed(header, frame))]
    assert header.flags & NEEDS_CSUM and header.gso_size, header
    layout = parse(frame)
    assert kind == {(4, TCP): GSO_TCP4, (6, TCP): GSO_TCP6, (4, UDP): GSO_UDP, (6, UDP): GSO_UDP}[layout.family, layout.protocol]
    assert (header.csum_start, header.csum_offset) == (layout.transport, CHECKSUM_AT[layout.protocol]), header
    heads, payload = frame[:layout.payload], frame[layout.payload:]
    if len(payload) <= header.gso_size:
        return [padded(completed(header, frame))]
    out = []
    for at in range(0, len(payload), header.gso_size):
        piece = payload[at:at + header.gso_size]
        new = bytearray(heads + piece)
        n, t = layout.network, layout.transport
        if layout.family == 4:
            store(new, n + 2, len(new) - n)
            ident = struct.unpack_from(">H", heads, n + 4)[0]
            store(new, n + 4, (ident + (0 if fixed_id else len(out))) & 0xFFFF)
            store(new, n + 10, 0)
            store(new, n + 10, checksum(bytes(new[n:n + (new[n] & 15) * 4])))
        else:
            store(new, n + 4, len(new) - n - 40)
        if layout.protocol == TCP:
            sequence = struct.unpack_from(">I", heads, t + 4)[0] + at
            struct.pack_into(">I", new, t + 4, sequence & 0xFFFFFFFF)
            if at:
                new[t + 13] &= ~CWR & 0xFF
            if at + len(piece) < len(payload):
                new[t + 13] &= ~(FIN | PSH) & 0xFF
        else:
            store(new, t + 4, len(new) - t)
        field = t + CHECKSUM_AT[layout.protocol]
        store(new, field, 0)
        here = parse(new)
        value = checksum(pseudo(bytes(new), here) + bytes(new[t:]))
        store(new, field, 0xFFFF if layout.protocol == UDP and not value else value)
        out.append(padded(bytes(new)))
    return out


def takes(header, features):
    """Whether a guest with these features can be given a frame with this header as it is."""
    if header.flags & NEEDS_CSUM and not features & F_GUEST_CSUM:
        return False
    wanted = {GSO_TCP4: F_GUEST_TSO4, GSO_TCP6: F_GUEST_TSO6, GSO_UDP: F_GUEST_USO4 | F_GUEST_USO6}
    if header.gso_type and not features & wanted[header.gso_type & ~GSO_ECN]:
        return False
    return not header.gso_type & GSO_ECN or bool(features & F_GUEST_ECN)
