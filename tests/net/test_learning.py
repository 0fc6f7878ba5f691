# SPDX-License-Identifier: BSD-2-Clause
"""Ports without an address of their own: what they learn from their guests, and what a guest cannot make its own."""
import json
import struct
import time

import pytest
from scapy.all import ARP, Dot1Q, Ether, ICMPv6ND_NS, IPv6  # pylint: disable=no-name-in-module

from rig import sh, wait_for
from test_wire import QUIET, STRANGER, Lan, expect, expect_nothing, experimental
from virtio_driver import BROADCAST, ethernet


@pytest.fixture
def lans(rig):
    """lans(...): a Lan whose ports learn."""
    made = []

    def make(**options):
        made.append(Lan(rig, learn=True, **options))
        return made[-1]
    yield make
    for lan in made:
        lan.done()


def text_of(address):
    return ":".join(f"{byte:02x}" for byte in address)


def learned(lan, port="vm1"):
    return [entry["mac"] for entry in lan.daemon.json("port", "show", port)["addresses"]]


def counted(lan, name, port="vm1"):
    return lan.daemon.json("counters")["ports"][port][name]


def test_learned_addresses(lans):
    """Ports without a MAC: the guest's own is learned from what it sends, mirrored in the map, and gone with the guest."""
    lan = lans()
    frame = ethernet(lan.macs[0], lan.wire_mac, number=1)
    lan.wire.send(frame)
    assert lan.host.receive_matching(experimental, 30) == [frame]
    lan.guests[0].send(ethernet(BROADCAST, lan.macs[0], number=2))

    def steered():
        return list(lan.macs[0]) in [[int(b) for b in e["key"]["mac"]] for e in
                                     json.loads(sh(["bpftool", "-j", "map", "dump", "pinned", lan.map("ports")]))[0:] for e in
                                     [e.get("formatted", e)]]
    wait_for(steered, "the learned address is in the map")
    frame = ethernet(lan.macs[0], lan.wire_mac, number=3)
    lan.wire.send(frame)
    expect(lan.guests[0], [frame])
    lan.guests[0].close()
    wait_for(lambda: not steered(), "the address went with its guest")



# --- addresses of others ---------------------------------------------------------------------------------------------


def silent_gateway(lan):
    """A station on the wire that says nothing of its own accord, and of which the host knows, as of its gateway."""
    lan.link.sh(f"ip neigh replace {lan.host_ip} lladdr {lan.link.mac} dev {lan.link.peer} nud permanent")
    sh(f"ip neigh replace {lan.wire_ip} lladdr {lan.link.peer_mac} dev {lan.link.uplink} nud stale")


def take(lan, address):
    """The guest sends as if the address were its own."""
    lan.guests[0].send(ethernet(STRANGER, address, number=9))
    wait_for(lambda: counted(lan, "addresses_learned") == 1, "the guest's claim is heard", pause=0.01)


def gives_up(lan, address):
    wait_for(lambda: learned(lan) == [], "the address is its owner's again")
    assert counted(lan, "addresses_refused") == 1
    assert f"port vm1: address {address}, which the guest had used, is in use on {lan.link.uplink}: no longer the port's" in lan.daemon.log()
    # Not again, either.
    lan.guests[0].send(ethernet(STRANGER, bytes.fromhex(address.replace(":", "")), number=10))
    wait_for(lambda: counted(lan, "addresses_refused") > 1, "refused")
    assert learned(lan) == []


def test_gateway_keeps_its_address(lans):
    """The host's neighbour table knows the station: it is asked to show itself, and the guest loses what is not its own."""
    lan = lans()
    silent_gateway(lan)
    take(lan, lan.wire_mac)
    gives_up(lan, lan.link.peer_mac)
    frame = ethernet(lan.wire_mac, lan.host_mac, number=11)
    lan.host.send(frame)
    assert frame in lan.wire.receive_matching(experimental, 30, 3)
    expect_nothing(*lan.guests)


def test_gateway_of_a_vlan_keeps_its_address(lans):
    """It is asked in the VLAN of the port, and answers there."""
    lan = lans(vlan=30)
    silent_gateway(lan)
    take(lan, lan.wire_mac)
    asked = Ether(lan.wire.receive_matching(lambda frame: frame[:6] == lan.wire_mac and frame[12:14] == b"\x81\x00", 30)[0])
    assert asked[Dot1Q].vlan == 30 and asked[ARP].pdst == lan.wire_ip
    time.sleep(QUIET)
    assert learned(lan) == [lan.link.peer_mac]  # nobody has answered yet
    lan.wire.send(bytes(Ether(src=lan.link.peer_mac, dst=asked.src) / Dot1Q(vlan=30) /
                        ARP(op=2, hwsrc=lan.link.peer_mac, psrc=lan.wire_ip, hwdst=asked.src, pdst="0.0.0.0")))
    gives_up(lan, lan.link.peer_mac)


def test_station_that_nobody_knows_has_to_speak_up(lans):
    """Without an entry of the host there is nobody to be asked: the address goes back with the station's first frame."""
    lan = lans()
    silent_gateway(lan)
    sh(f"ip neigh flush dev {lan.link.uplink}")
    take(lan, lan.wire_mac)
    time.sleep(QUIET)
    assert learned(lan) == [lan.link.peer_mac]
    lan.wire.send(ethernet(STRANGER, lan.wire_mac, number=1))
    wait_for(lambda: learned(lan) == [], "the address is the station's again")


def test_known_guest_keeps_its_address(lans):
    """The host knows its guests, too, also when they or vhostlane come back: nobody on the wire answers for them."""
    lan = lans()
    sh(f"ip neigh replace {lan.net}.77 lladdr {text_of(lan.macs[0])} dev {lan.link.uplink} nud stale")
    take(lan, lan.macs[0])
    asked = lan.wire.receive_matching(lambda frame: Ether(frame).dst == text_of(lan.macs[0]), 30)[0]
    assert Ether(asked).haslayer(ARP)
    time.sleep(QUIET)
    assert learned(lan) == [text_of(lan.macs[0])] and counted(lan, "addresses_refused") == 0
    frame = ethernet(lan.macs[0], lan.wire_mac, number=3)
    lan.wire.send(frame)
    expect(lan.guests[0], [frame])


def test_challenge_as_it_is_sent(lans):
    """To that station alone, past the guests, from nobody, so that no table on the way changes; IPv6 likewise."""
    lan = lans(ipv6=True)
    silent_gateway(lan)
    six = "2001:db8::77"
    sh(f"ip -6 neigh replace {six} lladdr {lan.link.peer_mac} dev {lan.link.uplink} nud stale")
    lan.guests[0].send(ethernet(STRANGER, lan.wire_mac, number=9))
    frames = [Ether(frame) for frame in lan.wire.receive_matching(
        lambda frame: frame[:12] == lan.wire_mac + lan.host_mac and frame[12:14] in (b"\x08\x06", b"\x86\xdd"), 30, 2)]
    arp = next(frame[ARP] for frame in frames if ARP in frame)
    assert (arp.op, arp.hwsrc, arp.psrc, arp.hwdst, arp.pdst) == (1, lan.link.mac, "0.0.0.0", "00:00:00:00:00:00", lan.wire_ip)
    ask = next(frame for frame in frames if IPv6 in frame)
    assert (ask[IPv6].src, ask[IPv6].dst, ask[IPv6].hlim, ask[ICMPv6ND_NS].tgt) == ("::", "ff02::1:ff00:77", 255, six)
    again = ask.copy()
    del again[ICMPv6ND_NS].cksum
    assert Ether(bytes(again))[ICMPv6ND_NS].cksum == ask[ICMPv6ND_NS].cksum
    assert struct.unpack_from("!H", bytes(ask), 18)[0] == 24  # no option: RFC 4861, 4.3
