# SPDX-License-Identifier: BSD-2-Clause
"""Open checksums of guests left to what stands behind a device: which, how they arrive, and who completes them further on.

PacketSocket completes what comes open by the place that the kernel names, so a frame that equals the oracle's was open in the right place
and held the pseudo-header's sum. The oracle's tests (test_offload, test_jumbo, test_vlan) run over the same ways.
"""
import os
import random
import socket
import threading

import pytest

from offload_frames import ACK, ICMP, PSH, TCP, UDP, Vnet, build, segments
from offload_guest import ALL, OffloadLan, colons
from offload_kernel import TcpPeer
from packet_socket import PacketSocket, in_namespace
from rig import Namespace, free_port, sh, subnet, unique, wait_for

BYTES = random.Random(12).randbytes(1 << 17)
OPTIONS = {"ip_options": bytes([1, 1, 1, 0]), "extension": bytes(2) + bytes([1, 4, 0, 0, 0, 0])}
GUESTS = {"vm": {"offloads": ALL}, "tagged": {"offloads": ALL}, "other": {"offloads": ALL}}


def kernel_takes_metadata():
    """Linux 6.11 and newer, from the version, so that what the daemon says is held against something."""
    major, minor = (int("".join(filter(str.isdigit, part))) for part in os.uname().release.split("-")[0].split(".")[:2])
    return (major, minor) >= (6, 11)


pytestmark = pytest.mark.skipif(not kernel_takes_metadata(), reason="AF_XDP takes transmit metadata since Linux 6.11, this is "
                                                                      f"{os.uname().release}")


@pytest.fixture(scope="module", params=["auto", "generic"])
def lan(module_rig, request):
    """Generic XDP looks at what enters the uplink from the host link, too."""
    lan = OffloadLan(module_rig, GUESTS, {"tagged": "vlan=9"}, mode=request.param)
    yield lan
    lan.done()


def uplink(lan):
    return lan.daemon.json("uplink", "list")[0]


def left(lan, end):
    return lan.daemon.json("counters")["uplinks"][lan.link.uplink][f"checksums_left_to_{end}"]


def ends(lan, end):
    return (lan.wire, lan.wire_mac) if end == "wire" else (lan.host, lan.host_mac)


def mix(destination, source, vlan=None):
    """(header, frame, frames on a wire, how many of these may come open)."""
    for family in (4, 6):
        for protocol in (TCP, UDP):
            for options in ({}, OPTIONS):
                for size in (0, 1, 5, 700, 1400):
                    packet = build(destination, source, family, protocol, BYTES[size:2 * size], vlan, **options)
                    yield packet.open_header(), packet.open, not options
                    yield Vnet(), packet.frame, False
                packet = build(destination, source, family, protocol, BYTES[:30001], vlan, flags=ACK | PSH, **options)
                yield packet.gso_header(1400), packet.open, not options
        yield Vnet(), build(destination, source, family, ICMP, BYTES[:100], vlan).frame, False


def exchange(lan, end, name="vm", vlan=None, leaves=True):
    """All of mix(); exactly the plain ones come open, and are counted."""
    receiver, destination = ends(lan, end)
    before, heard, expected = left(lan, end), receiver.open_checksums, 0
    for header, frame, plain in mix(destination, lan.macs[name]):
        lan.vms[name].give(header, frame)
        whole = segments(header, frame)
        if vlan:
            tag = b"\x81\x00" + vlan.to_bytes(2, "big")
            tagged = segments(header, frame, False) if len(frame) >= 60 else [segments(header, frame)[0][:len(frame)]]
            whole = [(piece[:12] + tag + piece[12:]).ljust(60, b"\0") for piece in tagged]
        assert lan.raw_receive(receiver, lan.macs[name], len(whole), destination) == whole
        expected += len(whole) if plain and leaves else 0
    assert (expected > 0) == leaves
    assert receiver.open_checksums - heard == expected
    assert left(lan, end) - before == expected


@pytest.mark.parametrize("end", ["wire", "host"])
def test_plain_ones_are_left(lan, end):
    """Of whole frames and of each segment; behind IP options and extension headers, and where the guest completed them, nothing is."""
    assert uplink(lan)["tx_checksum"] == "kernel"
    assert [link["tx_checksum"] for link in uplink(lan)["host_links"]] == ["kernel"]
    exchange(lan, end)


def test_places_move_with_the_tag(lan):
    """An access port's frames get their tag here: what is asked for counts from the tagged frame's start."""
    exchange(lan, "wire", "tagged", vlan=9)


def test_ethtool_is_followed(lan):
    """`ethtool -K UPLINK tx off` while it runs: completed from then on, as for the host's own TCP; back again with `on`."""
    for wanted, setting in (("engine", "off"), ("kernel", "on"), ("engine", "off"), ("kernel", "on")):
        sh(["ethtool", "-K", lan.link.uplink, "tx", setting])
        wait_for(lambda w=wanted: uplink(lan)["tx_checksum"] == w, f"checksums by the {wanted}")
        exchange(lan, "wire", leaves=wanted == "kernel")
    sh(["ethtool", "-K", lan.link.uplink, "tx", "off"])
    wait_for(lambda: uplink(lan)["tx_checksum"] == "engine", "checksums by the engine")
    exchange(lan, "host")  # its link has nothing to do with the uplink's offload
    sh(["ethtool", "-K", lan.link.uplink, "tx", "on"])
    wait_for(lambda: uplink(lan)["tx_checksum"] == "kernel", "checksums by the kernel")


def test_guests_get_theirs_as_before(lan):
    """A broadcast goes open to the wire and the host and whole to a guest that asks for that, from the same memory."""
    lan.vms["other"].offloads = 0
    lan.vms["other"].reconnect()
    wait_for(lambda: lan.daemon.json("port", "show", "other")["served_queue_pairs"] == 1, "the guest is served")
    packet = build(b"\xff" * 6, lan.macs["vm"], 4, UDP, BYTES[:1000])
    lan.vms["vm"].give(packet.open_header(), packet.open)
    header, frame = lan.vms["other"].expect(1, timeout=30)[0]
    assert frame == packet.frame and header.flags == 0
    for end in ("wire", "host"):
        receiver, before = ends(lan, end)[0], ends(lan, end)[0].open_checksums
        assert lan.raw_receive(receiver, lan.macs["vm"], 1) == [packet.frame]
        assert receiver.open_checksums == before + 1


@pytest.mark.parametrize("where", ["host", "wire"])
def test_the_kernels_sockets_take_them(lan, where):
    """Datagrams and a TCP stream to sockets of the host and of a machine on the wire: none is dropped, no checksum is found wrong."""
    space = lan.link.namespace if where == "wire" else None
    run = space.sh if space else sh
    device, address = (lan.link.peer, lan.wire_ip) if space else (lan.link.uplink, lan.host_ip)
    ours = f"{lan.net}.{77 if space else 78}"
    run(["ip", "neigh", "replace", ours, "lladdr", colons(lan.macs["vm"]), "nud", "permanent", "dev", device])
    addresses, port = (socket.inet_aton(ours), socket.inet_aton(address)), free_port()
    destination = ends(lan, where)[1]

    def listen(kind):
        def make():
            new = socket.socket(socket.AF_INET, kind)
            new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            new.bind((address, port))
            new.settimeout(60)
            return new
        return in_namespace(space.name, make) if space else make()
    wrong = bad_checksums(run)
    receiver = listen(socket.SOCK_DGRAM)
    for number, size in enumerate((0, 1, 17, 18, 1000, 1471, 1472)):
        packet = build(destination, lan.macs["vm"], 4, UDP, BYTES[number:number + size], addresses=addresses, ports=(port, port))
        lan.vms["vm"].give(packet.open_header(), packet.open)
        assert receiver.recv(65536) == BYTES[number:number + size]
    receiver.close()

    listener, heard = listen(socket.SOCK_STREAM), bytearray()
    listener.listen(1)

    def serve():
        connection = listener.accept()[0]
        connection.settimeout(60)
        while data := connection.recv(65536):
            heard.extend(data)
        connection.close()
    server = threading.Thread(target=serve, daemon=True)
    server.start()
    peer = TcpPeer(lan, lan.vms["vm"], "vm", addresses, port, True)
    peer.destination = destination
    peer.open()
    peer.send(BYTES[:100000], 40000)
    peer.close()
    peer.run(lambda: peer.closed)
    server.join(60)
    listener.close()
    assert bytes(heard) == BYTES[:100000] and peer.repeats == 0
    assert bad_checksums(run) == wrong


def bad_checksums(run):
    """TCP's and UDP's InCsumErrors of a namespace."""
    lines = [line.split() for line in run(["cat", "/proc/net/snmp"]).splitlines()]
    tables = {(name[0]): dict(zip(name[1:], values[1:])) for name, values in zip(lines[::2], lines[1::2])}
    return {name: tables[name]["InCsumErrors"] for name in ("Tcp:", "Udp:")}


def test_the_host_routes_them_on(lan, module_rig):
    """What the stack forwards to a device without checksum offload leaves it complete."""
    far, out, end = Namespace(module_rig), unique("o"), unique("e")
    sh(f"ip link add {out} type veth peer name {end} netns {far.name}")
    module_rig.undo(lambda: sh(["ip", "link", "del", out], check=False))
    far.sh(f"ip link set {end} up")
    net = subnet()
    sh(f"ethtool -K {out} tx off; ip addr add {net}.1/24 dev {out}; ip link set {out} up;"
       f"ip neigh replace {net}.2 lladdr 02:00:00:00:00:99 nud permanent dev {out};"
       f"echo 1 > /proc/sys/net/ipv4/conf/{lan.link.uplink}/forwarding; echo 1 > /proc/sys/net/ipv4/conf/{out}/forwarding")
    heard = PacketSocket(end, far)
    module_rig.undo(heard.close)
    addresses = (socket.inet_aton(f"{lan.net}.77"), socket.inet_aton(f"{net}.2"))
    before = left(lan, "host")
    for number, (protocol, size) in enumerate([(UDP, 1000), (TCP, 1000), (UDP, 1), (TCP, 30000)]):
        packet = build(lan.host_mac, lan.macs["vm"], 4, protocol, BYTES[:size], addresses=addresses, ident=100 * number, flags=ACK)
        header = packet.gso_header(1400) if size > 1400 else packet.open_header()
        lan.vms["vm"].give(header, packet.open)
        # One hop further: addresses of the link, time to live.
        wanted = [routed(piece, b"\2\0\0\0\0\x99") for piece in segments(header, packet.open)]
        got = heard.receive_matching(lambda frame: frame[:6] == b"\2\0\0\0\0\x99" and frame[23] in (TCP, UDP), 30, len(wanted))
        assert [frame[:6] + frame[12:] for frame in got] == wanted
    assert heard.open_checksums == 0
    assert left(lan, "host") - before == 3 + 22


def routed(frame, destination):
    """Without the source's link address, which is the forwarding device's, and without padding."""
    out = bytearray(destination + frame[12:14 + int.from_bytes(frame[16:18], "big")])
    at = 6 + 2
    out[at + 8] -= 1
    out[at + 10:at + 12] = b"\0\0"
    total = sum(int.from_bytes(out[at + i:at + i + 2], "big") for i in range(0, 20, 2))
    out[at + 10:at + 12] = (0xFFFF - (total % 0xFFFF or 0xFFFF)).to_bytes(2, "big")
    return bytes(out)
