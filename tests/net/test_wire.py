# SPDX-License-Identifier: BSD-2-Clause
"""Frames between a wire, the host and scripted guests: what arrives where, byte for byte, how often and in which order."""
import json
import os
import random
import struct
import time

import pytest
from scapy.all import ARP, ICMP, IP, Dot1Q, Ether, Raw  # pylint: disable=no-name-in-module

from flows import TwoWay
from packet_socket import PacketSocket
from rig import BPFFS, RigError, sh, subnet, wait_for
from virtio_driver import BROADCAST, NetGuest, ethernet, mac, number_of

EXPERIMENT = 0x88B5
QUIET = 1.0  # seconds in which what must not come does not come
MULTICAST = bytes.fromhex("01005e010203")
STRANGER = mac(0x7777)


class Lan:
    """An uplink with its host address, a raw socket on the wire and on the host's side, and scripted guests of known MACs."""

    def __init__(self, rig, guests=2, pairs=1, size=1024, learn=False, vlan=None, arguments=(), **options):
        self.rig, self.net = rig, subnet()
        self.wire_ip, self.host_ip = f"{self.net}.2", f"{self.net}.1"
        self.link = rig.wire(host_address=f"{self.host_ip}/24", wire_address=f"{self.wire_ip}/24", **options)
        self.names = [f"vm{number}" for number in range(1, guests + 1)]
        self.macs = [mac(number) for number in range(1, guests + 1)]
        arguments = [*arguments, "--uplink", self.link.uplink]
        for name, address in zip(self.names, self.macs):
            text = ":".join(f"{byte:02x}" for byte in address)
            arguments += ["--port", f"{name}={rig.path(name)}.sock,queues={pairs}" + ("" if learn else f",mac={text}") +
                          (f",vlan={vlan}" if vlan else "")]
        self.daemon = rig.daemon(*arguments)
        self.wire = PacketSocket(self.link.peer, self.link.namespace)
        self.host = PacketSocket(self.link.uplink)
        self.guests = [NetGuest(f"{rig.path(name)}.sock", size=size, pairs=pairs) for name in self.names]
        for thing in (self.wire, self.host, *self.guests):
            rig.undo(thing.close)
        wait_for(lambda: all(port["served_queue_pairs"] == pairs for port in self.daemon.json("port", "list")), "guests are served")
        self.wire_mac = bytes.fromhex(self.link.peer_mac.replace(":", ""))
        self.host_mac = bytes.fromhex(self.link.mac.replace(":", ""))

    def done(self):
        for guest in self.guests:
            guest.close()
        self.daemon.stop()

    def map(self, name):
        return os.path.join(BPFFS, self.link.uplink, name)

    def drops(self):
        """Everything that was dropped, by name, without what the environment drops by itself."""
        counters = self.daemon.json("counters", "--drops")
        return {f"{kind}.{owner}.{name}": value for kind, owners in counters.items() for owner, values in owners.items()
                for name, value in values.items() if value}


def experimental(frame):
    """A frame of these tests, tagged or not; the host's stack sends others."""
    kind = frame[12:14] if frame[12:14] not in (b"\x81\x00", b"\x88\xa8") else frame[16:18]
    return kind == struct.pack(">H", EXPERIMENT)


def expect(guest, frames):
    """The guest receives exactly these experimental frames; what the host's stack broadcasts in between is let by."""
    got = []
    while len(got) < len(frames):
        got += [frame for frame in guest.expect(1) if experimental(frame)]
    assert got == frames


def expect_nothing(*ends):
    deadline = time.monotonic() + QUIET
    while time.monotonic() < deadline:
        for end in ends:
            if isinstance(end, NetGuest):
                frames = [frame for pair in range(end.pairs) for frame in [end.receive(pair)] if frame]
            else:
                frames = [frame for frame in [end.receive(0.01)] if frame]
            assert not [frame for frame in frames if experimental(frame)], "a frame came where none should"
        time.sleep(0.01)


@pytest.fixture
def lan(rig):
    lan = Lan(rig)
    yield lan
    lan.done()


SIZES = [60, 61, 64, 127, 128, 129, 256, 1024, 1500, 1513, 1514]


def test_wire_to_guest(lan):
    frames = [ethernet(lan.macs[0], lan.wire_mac, length=size, number=i) for i, size in enumerate(SIZES * 3)]
    for frame in frames:
        lan.wire.send(frame)
    expect(lan.guests[0], frames)
    expect_nothing(lan.guests[1], lan.host)


def test_guest_to_wire(lan):
    frames = [ethernet(lan.wire_mac, lan.macs[0], length=size, number=i) for i, size in enumerate(SIZES * 3)]
    lan.guests[0].send_all(frames)
    assert lan.wire.receive_matching(experimental, 30, len(frames)) == frames
    expect_nothing(lan.guests[1])


def test_guest_to_guest_stays_inside(lan):
    frames = [ethernet(lan.macs[1], lan.macs[0], length=size, number=i) for i, size in enumerate(SIZES * 3)]
    lan.guests[0].send_all(frames)
    expect(lan.guests[1], frames)
    expect_nothing(lan.wire, lan.host, lan.guests[0])


def test_unknown_unicast_goes_to_the_wire_only(lan):
    """An edge switch: what is no guest's is outside."""
    frame = ethernet(STRANGER, lan.macs[0], number=1)
    lan.guests[0].send(frame)
    assert lan.wire.receive_matching(experimental, 30) == [frame]
    expect_nothing(lan.guests[1])


def test_wire_to_stranger_stays_with_the_host(lan):
    """A frame for nobody here is the host stack's to judge, not the guests' to see."""
    frame = ethernet(STRANGER, lan.wire_mac, number=1)
    lan.wire.send(frame)
    assert lan.host.receive_matching(experimental, 30) == [frame]
    expect_nothing(*lan.guests)


@pytest.mark.parametrize("destination", [BROADCAST, MULTICAST], ids=["broadcast", "multicast"])
@pytest.mark.parametrize("source", ["wire", "guest", "host"])
def test_flooding_reaches_each_once(lan, source, destination):
    sender = {"wire": lan.wire_mac, "guest": lan.macs[0], "host": lan.host_mac}[source]
    frames = [ethernet(destination, sender, number=i, length=60 + 16 * i) for i in range(40)]
    if source == "guest":
        lan.guests[0].send_all(frames)
    else:
        for frame in frames:
            (lan.wire if source == "wire" else lan.host).send(frame)
    receivers = lan.guests[1:] if source == "guest" else list(lan.guests)
    for guest in receivers:
        expect(guest, frames)
    raw = [end for name, end in (("wire", lan.wire), ("host", lan.host)) if name != source]
    for end in raw:
        assert end.receive_matching(experimental, 30, len(frames)) == frames
    expect_nothing(*lan.guests, *raw)


def tagged(frame, vlan, priority=0):
    return frame[:12] + struct.pack(">HH", 0x8100, priority << 13 | vlan) + frame[12:]


@pytest.mark.parametrize("vlan, priority", [(1, 0), (5, 3), (4094, 7)])
def test_tags_survive(lan, vlan, priority):
    """Both directions, between guests, and to the host; priority bits included."""
    guest, other = lan.guests
    for size in (60, 512, 1514):
        frame = tagged(ethernet(lan.macs[0], lan.wire_mac, length=size, number=size), vlan, priority)
        lan.wire.send(frame)
        expect(guest, [frame])
        frame = tagged(ethernet(lan.wire_mac, lan.macs[0], length=size, number=size), vlan, priority)
        guest.send(frame)
        assert lan.wire.receive_matching(experimental, 30) == [frame]
        frame = tagged(ethernet(lan.macs[1], lan.macs[0], length=size, number=size), vlan, priority)
        guest.send(frame)
        expect(other, [frame])
        frame = tagged(ethernet(lan.host_mac, lan.macs[0], length=size, number=size), vlan, priority)
        guest.send(frame)
        assert lan.host.receive_matching(experimental, 30) == [frame]
        frame = tagged(ethernet(lan.macs[0], lan.host_mac, length=size, number=size), vlan, priority)
        lan.host.send(frame)
        expect(guest, [frame])
        frame = tagged(ethernet(BROADCAST, lan.wire_mac, length=size, number=size), vlan, priority)
        lan.wire.send(frame)
        expect(guest, [frame])
        expect(other, [frame])
        assert lan.host.receive_matching(experimental, 30) == [frame]


def test_short_frames_are_padded(lan):
    """Below 60 bytes nothing may go to a guest or on a wire: padded with zeros."""
    for size in (14, 15, 46, 59):
        frame = ethernet(lan.macs[1], lan.macs[0], length=size)
        lan.guests[0].send(frame)
        padded = frame + bytes(60 - len(frame))
        assert lan.guests[1].expect(1) == [padded]


def exchange(lan, guest, address, ip):
    """The guest asks for the host by ARP, is asked, pings and is pinged."""
    ours = ":".join(f"{byte:02x}" for byte in address)
    guest.send(bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=ours) / ARP(hwsrc=ours, psrc=ip, pdst=lan.host_ip)).ljust(60, b"\0"))

    def hear(wanted):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            packet = Ether(guest.expect(1)[0])
            if wanted(packet):
                return packet
        raise RigError("the guest did not hear what it waited for")
    answer = hear(lambda p: ARP in p and p[ARP].op == 2)
    assert answer[ARP].hwsrc == lan.link.mac and answer[ARP].psrc == lan.host_ip
    guest.send(bytes(Ether(dst=lan.link.mac, src=ours) / IP(src=ip, dst=lan.host_ip) / ICMP(id=7, seq=1) / Raw(b"p" * 400)))
    answer = hear(lambda p: ICMP in p and p[ICMP].type == 0)
    assert answer[IP].src == lan.host_ip and bytes(answer[Raw]) == b"p" * 400
    ping = lan.rig.background(f"ping -c 1 -W 60 {ip}")
    while ping.poll() is None:
        frame = guest.receive()
        if frame is None:
            time.sleep(0.005)
            continue
        packet = Ether(frame)
        if ARP in packet and packet[ARP].op == 1 and packet[ARP].pdst == ip:
            guest.send(bytes(Ether(dst=packet.src, src=ours) / ARP(op=2, hwsrc=ours, psrc=ip, hwdst=packet[ARP].hwsrc,
                                                                 pdst=packet[ARP].psrc)).ljust(60, b"\0"))
        elif ICMP in packet and packet[ICMP].type == 8:
            guest.send(bytes(Ether(dst=packet.src, src=ours) / IP(src=ip, dst=packet[IP].src) /
                             ICMP(type=0, id=packet[ICMP].id, seq=packet[ICMP].seq) / packet[ICMP].payload))
    assert ping.returncode == 0


def test_guest_and_host_talk(lan):
    exchange(lan, lan.guests[0], lan.macs[0], f"{lan.net}.11")
    exchange(lan, lan.guests[1], lan.macs[1], f"{lan.net}.12")


def test_host_and_wire_talk_beside_guests(lan):
    sh(f"ping -c 3 -i 0.2 -W 20 {lan.wire_ip}")
    lan.link.sh(f"ping -c 3 -i 0.2 -W 20 {lan.host_ip}")


def test_access_vlan_isolates(rig):
    """Ports in VLAN 9: guests see no tag and send none; on the wire there is one; untagged frames are not theirs."""
    lan = Lan(rig, vlan=9)
    plain = ethernet(lan.macs[0], lan.wire_mac, number=1, length=100)
    lan.wire.send(plain)
    expect_nothing(*lan.guests)
    lan.done()


def order_to(lan, pair, cpu):
    """The operator's edit of queue_affinity, with bpftool alone."""
    entry = next(e for e in lan.daemon.json("queue", "list") if e["port"] == "vm1" and e["pair"] == pair)
    words = struct.pack("=IIII", cpu, entry["node"], entry["worker"], entry["generation"] & 0xFFFFFFFF)
    port = next(p["id"] for p in lan.daemon.json("port", "list") if p["name"] == "vm1")
    key = struct.pack("=II", port, pair)
    sh(["bpftool", "map", "update", "pinned", lan.map("queue_affinity"), "key", *map(str, key), "value", *map(str, words), "exist"])


def affinity(lan, pair):
    port = next(p["id"] for p in lan.daemon.json("port", "list") if p["name"] == "vm1")
    for entry in json.loads(sh(["bpftool", "-j", "map", "dump", "pinned", lan.map("queue_affinity")])):
        entry = entry.get("formatted", entry)
        if (entry["key"]["port"], entry["key"]["queue_pair"]) == (port, pair):
            return entry["value"]
    raise RigError(f"no entry of pair {pair} in queue_affinity")


def placed(lan, pair):
    return next(e for e in lan.daemon.json("queue", "list") if e["port"] == "vm1" and e["pair"] == pair)["cpu"]


def cpus_of(lan):
    return sorted(worker["cpu"] for worker in lan.daemon.json("worker", "list"))


def test_affinity_map_tells_the_truth(rig):
    lan = Lan(rig, guests=1, pairs=2)
    for pair in range(2):
        shown = next(e for e in lan.daemon.json("queue", "list") if e["pair"] == pair)
        assert {key: affinity(lan, pair)[key] for key in ("cpu", "node", "worker")} == {key: shown[key] for key in ("cpu", "node", "worker")}
    lan.done()


def test_impossible_order_is_put_back(rig):
    lan = Lan(rig, guests=1)
    before = affinity(lan, 0)
    order_to(lan, 0, 4000)
    wait_for(lambda: affinity(lan, 0)["cpu"] == before["cpu"], "the entry is put back")
    assert "4000" in lan.daemon.log()
    frame = ethernet(lan.macs[0], lan.wire_mac, number=1)
    lan.wire.send(frame)
    expect(lan.guests[0], [frame])
    lan.done()


def test_moves_by_bpftool_lose_and_reorder_nothing(rig):
    """Both directions, eight flows over two queue pairs, while the operator moves both pairs to and fro."""
    wanted_moves = 12
    lan = Lan(rig, guests=1, pairs=2)
    cpus = cpus_of(lan)
    if len(cpus) < 2:
        pytest.skip(f"one worker on CPU {cpus}: there is nowhere to move to")
    moves, order = 0, None
    rng = random.Random(1)

    def move():
        nonlocal moves, order
        if order and placed(lan, order[0]) == order[1]:
            moves, order = moves + 1, None
        if not order:
            pair = rng.randrange(2)
            order = pair, cpus[(cpus.index(placed(lan, pair)) + 1) % len(cpus)]
            order_to(lan, *order)
        return moves < wanted_moves
    TwoWay(lan).run_while(move)
    # The last order too is carried out, and map and daemon agree.
    for pair in range(2):
        goal = cpus[0]
        order_to(lan, pair, goal)
        wait_for(lambda p=pair: placed(lan, p) == goal and affinity(lan, p)["cpu"] == goal, "the pair is where it was ordered to")
    lan.done()


def ones_sum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_open_checksums_of_the_wire_are_completed(rig):
    """A veth peer with tx checksumming on leaves checksums to a device that is not there: guests get them whole."""
    lan = Lan(rig, guests=1)
    count, address = 20, f"{lan.net}.77"
    far = lan.link.namespace
    far.sh(["ethtool", "-K", lan.link.peer, "tx", "on"])
    far.sh(["ip", "neigh", "replace", address, "lladdr", ":".join(f"{byte:02x}" for byte in lan.macs[0]), "dev", lan.link.peer])
    far.sh(["/usr/bin/python3", "-c", f"""if True:
        import socket
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for i in range({count}):
            s.sendto(bytes([i]) * (100 + 37 * i), ({address!r}, 999))"""])
    got = 0
    while got < count:
        frame = lan.guests[0].expect(1)[0]
        if frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[36:38] != struct.pack(">H", 999):
            continue
        packet = frame[14:14 + struct.unpack(">H", frame[16:18])[0]]
        assert ones_sum(packet[12:20] + struct.pack(">HH", 17, len(packet) - 20) + packet[20:]) == 0xFFFF
        got += 1
    assert lan.daemon.json("counters")["ports"]["vm1"]["partial_checksums"] == count
    lan.done()
