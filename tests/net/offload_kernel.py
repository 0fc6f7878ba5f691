# SPDX-License-Identifier: BSD-2-Clause
"""The kernel as a second opinion: its segmentation of a frame with a virtio header, and a TCP peer for its own sockets."""
import json
import socket
import struct
import time

from offload_frames import ACK, FIN, PSH, SYN, TCP, Vnet, build, check, parse, segments
from packet_socket import SOL_PACKET, PacketSocket, in_namespace
from rig import Namespace, unique, wait_for

PACKET_VNET_HDR, SO_SNDBUFFORCE = 15, 32


class VnetSocket:
    """A packet socket that sends frames with a virtio header: the kernel completes and segments them for a device without offloads."""

    def __init__(self, interface, namespace=None):
        def make():
            new = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            new.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            new.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 16 << 20)
            new.bind((interface, 0))
            return new
        self.socket = in_namespace(namespace.name, make) if namespace else make()

    def send(self, header, frame):
        self.socket.send(header.pack(10) + frame)

    def close(self):
        self.socket.close()


class KernelSegmenter:
    """What Linux itself makes of a frame: sent into one end of a veth pair without offloads, read from the other."""

    def __init__(self, rig, mtu=1500):
        space = Namespace(rig)
        a, b = unique("a"), unique("b")
        space.sh(f"ip link add {a} mtu {mtu} type veth peer name {b} mtu {mtu}")
        for end in (a, b):
            space.sh(f"echo 1 > /proc/sys/net/ipv6/conf/{end}/disable_ipv6; ip link set {end} up")
        space.sh(f"ethtool -K {a} tx off tso off gso off txvlan off; ethtool -K {b} gro off")
        # Until both ends know that their carrier is there, the kernel drops what is sent.
        wait_for(lambda: all(json.loads(space.sh(["ip", "-j", "link", "show", end]))[0]["operstate"] == "UP" for end in (a, b)), "the pair is up")
        self.out, self.back = VnetSocket(a, space), PacketSocket(b, space)
        rig.undo(self.out.close)
        rig.undo(self.back.close)

    def segments(self, header, frame, count):
        self.out.send(header, frame)
        return self.back.receive_matching(lambda got: got[6:12] == frame[6:12], 30, count)


class TcpPeer:
    """A guest's TCP, just enough for a lossless link: opens a connection to the host, sends with segmentation offload, and takes what
    comes, every frame checked. Lost data is sent again after a second, counted in `repeats`."""

    WINDOW = 65535

    def __init__(self, lan, guest, name, addresses, port, features):
        self.lan, self.guest, self.features = lan, guest, features
        self.destination = lan.host_mac  # unless set to another
        self.source, self.addresses, self.family = lan.macs[name], addresses, 4 if len(addresses[0]) == 4 else 6
        self.mss = 1460 if self.family == 4 else 1440
        self.ports = (30000 + port % 20000, port)
        self.next, self.acked, self.expected = 1000, 1000, None
        self.window, self.ident, self.received, self.repeats = 0, 1, bytearray(), 0
        self.closed = False
        self.largest = 0  # frame that came

    def packet(self, payload=b"", flags=ACK, sequence=None):
        packet = build(self.destination, self.source, self.family, TCP, payload, addresses=self.addresses, ports=self.ports,
                       seq=self.next if sequence is None else sequence, ack=self.expected or 0, flags=flags, window=self.WINDOW,
                       ident=self.ident, tcp_options=struct.pack(">BBH", 2, 4, self.mss) if flags & SYN else b"")
        self.ident += 1 + len(payload) // self.mss
        if len(payload) > self.mss:
            self.guest.give(packet.gso_header(self.mss), packet.open)
        elif self.features:
            self.guest.give(packet.open_header(), packet.open)
        else:
            self.guest.give(Vnet(), packet.frame)

    def take(self):
        """One frame of this connection, if there is one. True if anything was there."""
        got = self.guest.receive()
        if got is None:
            return False
        header, frame = got
        try:
            layout = parse(frame)
        except (ValueError, IndexError, struct.error):
            return True
        if layout.protocol != TCP or struct.unpack_from(">HH", frame, layout.transport) != self.ports[::-1]:
            return True
        self.largest = max(self.largest, len(frame))
        for piece in segments(header, frame):
            self.take_segment(piece, check(piece))
        return True

    def take_segment(self, frame, layout):
        sequence, ack, offset, flags, window = struct.unpack_from(">IIBBH", frame, layout.transport + 4)
        payload = frame[layout.transport + (offset >> 4) * 4:layout.end]
        if flags & ACK and (ack - self.acked) & 0xFFFFFFFF < 1 << 31:
            self.acked, self.window = ack, window
        if flags & SYN:
            self.expected = (sequence + 1) & 0xFFFFFFFF
            return
        if payload or flags & FIN:
            if sequence == self.expected:
                self.received += payload
                self.expected = (sequence + len(payload) + bool(flags & FIN)) & 0xFFFFFFFF
                self.closed = self.closed or bool(flags & FIN)
            self.packet()

    def run(self, done, timeout=60):
        """Takes frames until done() is true."""
        deadline = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < deadline, f"TCP stalled: sent to {self.next}, acked {self.acked}, got {len(self.received)}; " \
                                                f"drops {self.lan.drops()}"
            if not self.take():
                time.sleep(0.001)

    def open(self):
        self.packet(flags=SYN)
        self.next += 1
        self.run(lambda: self.expected is not None)
        self.packet()

    def send(self, data, chunk):
        """All of the data, in frames of up to @chunk bytes, no more than the window allows."""
        start, last = self.next, time.monotonic()
        while self.acked != (start + len(data)) & 0xFFFFFFFF:
            before = self.acked
            while (n := min(chunk, len(data) - (self.next - start), self.window - (self.next - self.acked))) > 0:
                at = self.next - start
                self.packet(data[at:at + n], ACK | PSH)
                self.next += n
            if not self.take():
                time.sleep(0.0005)
            if self.acked != before:
                last = time.monotonic()
            elif time.monotonic() - last > 5:
                self.repeats += 1
                assert self.repeats < 5, f"TCP stalled: {self.next - start} sent, {self.acked - start} acked; drops {self.lan.drops()}"
                self.next, last = self.acked, time.monotonic()

    def close(self):
        self.packet(flags=FIN | ACK)
        self.next += 1
