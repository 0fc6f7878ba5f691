# SPDX-License-Identifier: BSD-2-Clause
"""Scripted guests that negotiate offloads and look at virtio headers, and a machine with a wire, the host and many of them."""
import itertools
import os
import signal
import time

from offload_frames import (F_CSUM, F_GUEST_CSUM, F_GUEST_ECN, F_GUEST_TSO4, F_GUEST_TSO6, F_GUEST_USO4, F_GUEST_USO6, F_HOST_ECN,
                            F_HOST_TSO4, F_HOST_TSO6, F_HOST_USO, DATA_VALID, NEEDS_CSUM, Vnet, segments, takes)
from packet_socket import PacketSocket
from rig import subnet, wait_for
from vhost_frontend import F_MTU
from virtio_driver import NetGuest, mac

SENDERS = {"none": 0, "csum": F_CSUM, "tso": F_CSUM | F_HOST_TSO4 | F_HOST_TSO6, "ecn": F_CSUM | F_HOST_TSO4 | F_HOST_TSO6 | F_HOST_ECN,
           "all": F_CSUM | F_HOST_TSO4 | F_HOST_TSO6 | F_HOST_ECN | F_HOST_USO}
RECEIVERS = {"none": 0, "csum": F_GUEST_CSUM, "tso": F_GUEST_CSUM | F_GUEST_TSO4 | F_GUEST_TSO6,
             "ecn": F_GUEST_CSUM | F_GUEST_TSO4 | F_GUEST_TSO6 | F_GUEST_ECN, "uso": F_GUEST_CSUM | F_GUEST_USO4 | F_GUEST_USO6,
             "all": F_GUEST_CSUM | F_GUEST_TSO4 | F_GUEST_TSO6 | F_GUEST_ECN | F_GUEST_USO4 | F_GUEST_USO6}
LARGE = F_GUEST_TSO4 | F_GUEST_TSO6 | F_GUEST_USO4 | F_GUEST_USO6
ALL = SENDERS["all"] | RECEIVERS["all"]
BIG_BUFFER = 66048  # what a driver posts that takes large frames without mergeable buffers: 65562 and a header, rounded


class OffloadGuest(NetGuest):
    """receive() gives (Vnet, frame). Options besides NetGuest's: offloads (feature bits), mtu (takes VIRTIO_NET_F_MTU), and large (a
    guest with a large MTU: big buffers where there are no mergeable ones)."""

    SEND_SLOT = 67584

    def __init__(self, path, offloads=0, **options):
        self.offloads = offloads | (F_MTU if options.pop("mtu", False) else 0)
        large = options.pop("large", False)
        if not options.get("mergeable", True) and (large or offloads & LARGE):
            options = {"buffer": BIG_BUFFER, "size": 128, **options}
        super().__init__(path, **options)

    @property
    def features(self):
        return super().features | self.offloads

    def receive(self, pair=0, recycle=True):
        data = self.receive_whole(pair, recycle)
        if data is None:
            return None
        header, frame = Vnet.unpack(data), data[self.header:]
        self.check_header(header, frame)
        return header, frame

    def check_header(self, header, frame):
        """Nothing may be said to a guest that it did not negotiate (virtio 1.2, 5.1.6.4.1)."""
        assert takes(header, self.offloads), f"{header} for features {self.offloads:#x}"
        assert not header.flags & ~(NEEDS_CSUM | DATA_VALID), header
        if header.flags & NEEDS_CSUM:
            assert header.csum_start + header.csum_offset + 2 <= len(frame), header
        else:
            assert (header.gso_type, header.gso_size, header.hdr_len, header.csum_start, header.csum_offset) == (0, 0, 0, 0, 0), header
        if header.flags & DATA_VALID:
            assert self.offloads & F_GUEST_CSUM, header
        assert not header.gso_type or header.gso_size, header

    def give(self, header, frame, cuts=(), publish=True):
        """One frame with its header."""
        self.send(frame, header=header.pack(self.header), cuts=cuts, publish=publish)

    def give_all(self, pairs):
        for header, frame in pairs:
            self.give(header, frame, publish=False)
        self.publish(1)


def buffers_of(frames):
    """Receive buffers of 2048 bytes that frames take."""
    return sum(-(-(len(frame) + 12) // 2048) for frame in frames)


def batches(cases, most=96):
    """Lists of (header, frame, expected frames) that any guest can take at once. Each batch has at least one case."""
    batch, room = [], most
    for case in cases:
        need = max(len(case[2]), buffers_of([case[1]]))
        if batch and need > room:
            yield batch
            batch, room = [], most
        batch.append(case)
        room -= need
    if batch:
        yield batch


def colons(address):
    return ":".join(f"{byte:02x}" for byte in address)


class OffloadLan:
    """`guests`: name -> options of OffloadGuest; `tail`: name -> further text of its --port.

    One queue by default: a veth's sender picks a queue for tagged frames by itself, frame by frame, and order shall be looked at.
    """

    def __init__(self, rig, guests, tail=None, mtu=1500, queues=1, mode="auto", **options):
        self.rig, self.net = rig, subnet()
        self.wire_ip, self.host_ip = f"{self.net}.2", f"{self.net}.1"
        self.link = rig.wire(host_address=f"{self.host_ip}/24", wire_address=f"{self.wire_ip}/24", mtu=mtu, queues=queues, **options)
        self.macs = {name: mac(number) for number, name in enumerate(guests, 1)}
        tail = tail or {}
        arguments = ["--uplink", f"{self.link.uplink},mode={mode}"]
        for name, address in self.macs.items():
            arguments += ["--port", f"{name}={self.socket(name)},mac={colons(address)}" + (f",{tail[name]}" if tail.get(name) else "")]
        self.daemon = rig.daemon(*arguments)
        self.wire = PacketSocket(self.link.peer, self.link.namespace)
        self.host = PacketSocket(self.link.uplink)
        self.vms = {name: OffloadGuest(self.socket(name), **choice) for name, choice in guests.items()}
        for thing in (self.wire, self.host, *self.vms.values()):
            rig.undo(thing.close)
        wait_for(lambda: all(port["served_queue_pairs"] for port in self.daemon.json("port", "list")), "guests are served")
        self.wire_mac = bytes.fromhex(self.link.peer_mac.replace(":", ""))
        self.host_mac = bytes.fromhex(self.link.mac.replace(":", ""))
        self.numbers = itertools.count(1)

    def socket(self, name):
        return f"{self.rig.path(name)}.sock"

    def done(self):
        for guest in self.vms.values():
            guest.close()
        self.daemon.stop()

    def counters(self, name):
        return self.daemon.json("counters")["ports"][name]

    def drops(self):
        counters = self.daemon.json("counters", "--drops")
        return {f"{kind}.{owner}.{name}": value for kind, owners in counters.items() for owner, values in owners.items()
                for name, value in values.items() if value}

    # --- what came

    def raw_receive(self, end, source, count, destination=None):
        """Frames from a packet socket that have this source address."""
        def ours(frame):
            return frame[6:12] == source and (destination is None or frame[:6] == destination)
        frames = end.receive_matching(ours, 30, count)
        assert len(frames) == count, f"{len(frames)} of {count} frames came; drops {self.drops()}"
        return frames

    def guest_receive(self, guest, source, wanted):
        """(header, frame) from this source until as many frames as @wanted would stand on the wire; then those frames too."""
        got, whole = [], []
        while len(whole) < wanted:
            try:
                header, frame = guest.expect(1, timeout=30)[0]
            except AssertionError as error:
                raise AssertionError(f"{error}; {len(whole)} of {wanted} so far; drops {self.drops()}") from error
            if frame[6:12] == source:
                got.append((header, frame))
                whole += segments(header, frame)
        return got, whole


def stopped(process):
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


class Burst:
    """While the body runs, the daemon stands still; what is sent meets it as one burst."""

    def __init__(self, lan):
        self.process = lan.daemon.process

    def __enter__(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        while not stopped(self.process):
            time.sleep(0.001)

    def __exit__(self, *unused):
        os.kill(self.process.pid, signal.SIGCONT)
