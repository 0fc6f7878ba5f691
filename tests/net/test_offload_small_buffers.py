# SPDX-License-Identifier: BSD-2-Clause
"""Guests that take large frames, and whose buffers never hold one: what could not come whole comes as its segments."""
import random

import pytest

from offload_frames import TCP, UDP, build, segments
from offload_guest import ALL, OffloadLan

BYTES = random.Random(8).randbytes(1 << 16)
SHORT = 16
GUESTS = {"giver": {"offloads": ALL}, "apart": {"offloads": ALL, "mergeable": False, "buffer": 2048}, "short": {"offloads": ALL, "size": SHORT}}


@pytest.fixture(scope="module")
def lan(module_rig):
    lan = OffloadLan(module_rig, GUESTS)
    yield lan
    lan.done()


def drops(lan, name):
    return {counter: value for counter, value in lan.daemon.json("counters", "--drops")["ports"][name].items() if value}


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [4, 6])
def test_buffers_of_one_segment(lan, family, protocol):
    """Without mergeable buffers a frame has one chain, however many there are."""
    packet = build(lan.macs["apart"], lan.macs["giver"], family, protocol, BYTES[:30001])
    header = packet.gso_header(1400)
    expected = segments(header, packet.open)
    before = lan.counters("apart")
    lan.vms["giver"].give(header, packet.open)
    _, came = lan.guest_receive(lan.vms["apart"], lan.macs["giver"], len(expected))
    assert came == expected
    assert not drops(lan, "apart")
    assert lan.counters("apart")["frames_segmented"] == before["frames_segmented"] + 1


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_a_ring_shorter_than_the_frame(lan, protocol):
    """As many segments come as there are buffers, and what had none is counted as that."""
    packet = build(lan.macs["short"], lan.macs["giver"], 4, protocol, BYTES[:40000])
    header = packet.gso_header(1400)
    expected = segments(header, packet.open)
    before = drops(lan, "short").get("to_guest_no_buffers", 0)
    lan.vms["giver"].give(header, packet.open)
    _, came = lan.guest_receive(lan.vms["short"], lan.macs["giver"], SHORT)
    assert came == expected[:SHORT]
    assert drops(lan, "short") == {"to_guest_no_buffers": before + len(expected) - SHORT}
