# SPDX-License-Identifier: BSD-2-Clause
"""Uplinks that lie on other devices. What those have made of frames (merged, checksums open, tags beside them) reaches guests as it was meant."""
import fcntl
import os
import random
import struct

import pytest

from offload_frames import F_GUEST_CSUM, TCP, UDP, Vnet, build, segments
from offload_guest import ALL, OffloadGuest, OffloadLan, colons
from offload_kernel import VnetSocket
from rig import sh, unique, wait_for
from virtio_driver import mac

BYTES = random.Random(21).randbytes(1 << 16)
GUESTS = {"all": {"offloads": ALL}, "csum": {"offloads": F_GUEST_CSUM}, "none": {"offloads": 0}, "access": {"offloads": 0}, "trunk": {"offloads": ALL}}
VLAN_OF = {"all": None, "csum": None, "none": None, "access": 7, "trunk": 9}
TAILS = {"access": "vlan=7", "trunk": "vlan=trunk:9+11"}
MAKE = {"bond": "ip link add {over} numtxqueues 1 numrxqueues 1 type bond mode active-backup miimon 50 && ip link set {member} down"
                " && ip link set {member} master {over}",
        "bridge": "ip link add {over} type bridge && ip link set {member} master {over}",
        "macvlan": "ip link add link {member} {over} type macvlan mode passthru"}
NO_BOND = "Unknown device type" in sh("unshare -n ip link add x0 type bond", check=False)
KINDS = [kind for kind in MAKE if not (kind == "bond" and NO_BOND)]


class Stacked:
    """A rig whose wires end in a device that lies on the veth, which the peer treats as hardware: it leaves work to it."""

    def __init__(self, rig, kind):
        self.rig, self.kind = rig, kind

    def __getattr__(self, name):
        return getattr(self.rig, name)

    def wire(self, host_address=None, **options):
        link = self.rig.wire(**options)
        member, over = link.uplink, unique("s")
        sh(MAKE[self.kind].format(over=over, member=member))
        self.rig.undo(lambda: sh(["ip", "link", "del", over], check=False))
        sh(f"echo 1 > /proc/sys/net/ipv6/conf/{over}/disable_ipv6; ip link set {member} up && ip link set {over} up && ip addr add {host_address} dev {over}")
        wait_for(lambda: "up" in sh(f"cat /sys/class/net/{over}/operstate"), f"the {self.kind} is up")
        link.sh(f"ethtool -K {link.peer} tx on tso on gso on txvlan on")
        link.uplink, link.ifindex = over, int(sh(f"cat /sys/class/net/{over}/ifindex"))
        link.mac = sh(f"cat /sys/class/net/{over}/address").strip()
        return link


@pytest.fixture(scope="module", params=KINDS)
def lan(module_rig, request):
    lan = OffloadLan(Stacked(module_rig, request.param), GUESTS, TAILS)
    lan.sender = VnetSocket(lan.link.peer, lan.link.namespace)
    module_rig.undo(lan.sender.close)
    yield lan
    lan.done()


def as_the_guest_sees(name, frame):
    """An access port's guest sees no tag."""
    return frame[:12] + frame[16:] if name == "access" else frame


@pytest.mark.skipif(NO_BOND, reason="this kernel has no bond: bridge and macvlan stand for it")
def test_bond_is_among_them():
    assert "bond" in KINDS


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", GUESTS)
def test_from_the_wire(lan, name, family, protocol):
    """Whole, with an open checksum, and many in one: each once, right, in order, on its VLAN only."""
    expected = []
    for number, size in enumerate((100, 1400, 20001, 30, 4200)):
        packet = build(lan.macs[name], lan.wire_mac, family, protocol, BYTES[number:number + size], VLAN_OF[name], ident=100 * number)
        header = packet.gso_header(1400) if size > 1400 else packet.open_header()
        lan.sender.send(header, packet.open)
        expected += [as_the_guest_sees(name, frame) for frame in segments(header, packet.open)]
    _, came = lan.guest_receive(lan.vms[name], lan.wire_mac, len(expected))
    assert [frame[:len(want)] for frame, want in zip(came, expected)] == expected


@pytest.mark.parametrize("name, vlan", [("access", None), ("access", 9), ("trunk", None), ("trunk", 7)])
def test_other_vlans_stay_out(lan, name, vlan):
    def send(of, number):
        lan.sender.send(Vnet(), build(lan.macs[name], lan.wire_mac, 4, UDP, BYTES[:200], of, ident=number).frame)
    send(vlan, 1)
    send(VLAN_OF[name], 2)
    _, came = lan.guest_receive(lan.vms[name], lan.wire_mac, 1)
    network = 14 if name == "access" else 18
    assert came[0][network + 4:network + 6] == b"\0\2"


@pytest.mark.parametrize("end", ["wire", "host"])
def test_to_wire_and_host(lan, end):
    receiver, destination = (lan.wire, lan.wire_mac) if end == "wire" else (lan.host, lan.host_mac)
    for family in (4, 6):
        packet = build(destination, lan.macs["all"], family, TCP, BYTES[:20000])
        expected = segments(packet.gso_header(1400), packet.open)
        lan.vms["all"].give(packet.gso_header(1400), packet.open)
        assert lan.raw_receive(receiver, lan.macs["all"], len(expected), destination) == expected


def test_broadcast_comes_once(lan):
    for number in (1, 2):
        lan.wire.send(build(b"\xff" * 6, lan.wire_mac, 4, UDP, BYTES[:100], ident=number).frame)
    for name in ("all", "none"):
        _, came = lan.guest_receive(lan.vms[name], lan.wire_mac, 2)
        assert [frame[18:20] for frame in came] == [b"\0\1", b"\0\2"]


def test_nothing_was_dropped(lan):
    assert not lan.drops()


TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 2, 0x1000, 0x4000


@pytest.mark.parametrize("header", [True, False])
def test_tap(rig, header):
    """The process behind a tap writes large frames if it has agreed on a virtio header; without, XDP steers what it writes."""
    name = unique("t")
    tap = os.open("/dev/net/tun", os.O_RDWR)
    rig.undo(lambda: os.close(tap))
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | (IFF_VNET_HDR if header else 0)))
    sh(f"echo 1 > /proc/sys/net/ipv6/conf/{name}/disable_ipv6; ip link set {name} up")
    daemon = rig.daemon("--uplink", name, "--port", f"vm={rig.path('vm.sock')},mac={colons(mac(1))}")
    guest = OffloadGuest(rig.path("vm.sock"), offloads=ALL)
    rig.undo(guest.close)
    wait_for(lambda: daemon.json("port", "list")[0]["served_queue_pairs"], "the guest is served")
    expected = []
    for number, size in enumerate((500, 20000) if header else (500, 1400)):
        packet = build(mac(1), mac(9), 4, TCP, BYTES[:size], ident=100 * number)
        vnet = packet.gso_header(1400) if size > 1400 else packet.open_header()
        os.write(tap, vnet.pack(10) + packet.open if header else packet.frame)
        expected += segments(vnet, packet.open)
    came = []
    while len(came) < len(expected):
        got, frame = guest.expect(1, timeout=30)[0]
        came += segments(got, frame) if frame[6:12] == mac(9) else []
    assert came == expected
    counters = daemon.json("counters")["uplinks"][name]
    assert (counters["tc_host_to_guest"] > 0) == header and not counters["socket_rx_dropped"]
    guest.close()
    daemon.stop()
