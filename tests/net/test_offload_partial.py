# SPDX-License-Identifier: BSD-2-Clause
"""Checksums of what comes from the wire: right ones are called so, those that a veth peer left open are completed, wrong ones stay."""
import pytest

from offload_frames import DATA_VALID, F_GUEST_CSUM, NEEDS_CSUM, TCP, UDP, build, completed, padded
from offload_guest import ALL, OffloadLan
from offload_kernel import VnetSocket

GUESTS = {"all": {"offloads": ALL}, "csum": {"offloads": F_GUEST_CSUM}, "none": {"offloads": 0}, "plain": {"offloads": 0, "mergeable": False}}


@pytest.fixture(scope="module")
def lan(module_rig):
    """The peer leaves checksums open, as veth does by default."""
    lan = OffloadLan(module_rig, GUESTS)
    lan.link.sh(f"ethtool -K {lan.link.peer} tx on")
    lan.sender = VnetSocket(lan.link.peer, lan.link.namespace)
    module_rig.undo(lan.sender.close)
    yield lan
    lan.done()


def one(lan, name):
    while True:
        header, frame = lan.vms[name].expect(1, timeout=30)[0]
        if frame[6:12] == lan.wire_mac:
            return header, frame


@pytest.mark.parametrize("vlan", [None, 5])
@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", GUESTS)
def test_open_checksums(lan, name, family, protocol, vlan):
    """Whole when the guest gets it, or declared open to a guest that completes it itself; counted."""
    before = lan.counters(name)["partial_checksums"]
    for number, size in enumerate((18, 19, 200, 1001, 1400)):
        packet = build(lan.macs[name], lan.wire_mac, family, protocol, bytes(i * 5 & 0xFF for i in range(size)), vlan, ident=number)
        lan.sender.send(packet.open_header(), packet.open)
        header, frame = one(lan, name)
        assert completed(header, frame) == packet.frame
        assert not header.flags & NEEDS_CSUM or lan.vms[name].offloads & F_GUEST_CSUM
    assert lan.counters(name)["partial_checksums"] == before + 5


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", GUESTS)
def test_right_and_wrong(lan, name, family, protocol):
    """A right checksum is called so where the guest can be told; a wrong one is neither mended nor called right."""
    packet = build(lan.macs[name], lan.wire_mac, family, protocol, bytes(200))
    lan.wire.send(packet.frame)
    header, frame = one(lan, name)
    assert frame == packet.frame
    assert header.flags in ((0, DATA_VALID) if lan.vms[name].offloads & F_GUEST_CSUM else (0,))
    for at in (packet.layout.transport + (16 if protocol == TCP else 6), len(packet.frame) - 1):
        wrong = bytearray(packet.frame)
        wrong[at] ^= 0x10
        lan.wire.send(wrong)
        header, frame = one(lan, name)
        assert frame == wrong and header.flags == 0


def test_a_datagram_without_checksum(lan):
    """Is not called right, and gets none."""
    packet = build(lan.macs["all"], lan.wire_mac, 4, UDP, bytes(50))
    at = packet.layout.transport + 6
    bare = packet.frame[:at] + b"\0\0" + packet.frame[at + 2:]
    lan.wire.send(bare)
    header, frame = one(lan, "all")
    assert frame == padded(bare) and header.flags == 0
