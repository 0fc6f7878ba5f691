# SPDX-License-Identifier: BSD-2-Clause
"""Symmetric multiqueue (virtio 1.2, 5.1.6.5.6): answers of a flow come back on the pair on which the guest last sent it."""
import json
import struct

from flows import flow_frame, flow_of
from rig import sh, wait_for
from test_wire import Lan

PAIRS, FLOWS = 4, 24


def steering_row(lan):
    """The port's row of the map, as XDP reads it."""
    key = struct.pack("=I", lan.daemon.json("port", "list")[0]["id"])
    entry = json.loads(sh(["bpftool", "-j", "map", "lookup", "pinned", lan.map("flow_steering"), "key", *map(str, key)]))
    return entry.get("formatted", entry)["value"]["queue_pair"]


def say(lan, flow, pair, number):
    """The guest sends a frame of the flow on a pair; it is on the wire when this returns, and so noted."""
    frame = flow_frame(lan.wire_mac, lan.macs[0], flow, number)
    lan.guests[0].send(frame, pair=pair)
    assert lan.wire.receive_matching(lambda f: flow_of(f) == (flow, number), 60) == [frame]


def answer(lan, flow, number):
    """The wire answers; returns the pair on which the guest gets it. Ports are swapped as in any answer."""
    colon = flow_frame(lan.macs[0], lan.wire_mac, flow, number)
    at = 14 + 12  # addresses and ports of IPv4 and UDP change places
    swapped = bytearray(colon)
    swapped[at:at + 4], swapped[at + 4:at + 8] = colon[at + 4:at + 8], colon[at:at + 4]
    swapped[34:36], swapped[36:38] = colon[36:38], colon[34:36]
    lan.wire.send(bytes(swapped))
    found = []

    def came():
        for pair in range(lan.guests[0].pairs):
            while (frame := lan.guests[0].receive(pair)) is not None:
                if flow_of(frame) == (flow, number):
                    found.append(pair)
        return found
    return wait_for(came, f"answer {number} of flow {flow}", pause=0.001)[0]


def flows_apart(lan):
    """Flows that have a bucket of their own: those that meet in one share its pair, the last word counts."""
    own = {}
    for flow in range(FLOWS):
        say(lan, flow, 1, 0)
        before = steering_row(lan)
        say(lan, flow, 2, 1)
        changed = [bucket for bucket, (old, new) in enumerate(zip(before, steering_row(lan))) if old != new]
        assert len(changed) == 1, f"flow {flow} changed buckets {changed}"
        own.setdefault(changed[0], flow)
    return sorted(own.values())


def test_answers_come_back_on_the_senders_pair(rig):
    lan = Lan(rig, guests=1, pairs=PAIRS)
    flows = flows_apart(lan)
    assert len(flows) > FLOWS // 2
    for turn in range(3):
        for flow in flows:
            say(lan, flow, (flow + turn) % PAIRS, 10 + turn)
        for flow in flows:
            assert answer(lan, flow, 20 + turn) == (flow + turn) % PAIRS, f"flow {flow}, turn {turn}"
    # And by the worker that serves that pair: none was handed to another's.
    assert sum(worker["lane_strays"] for worker in lan.daemon.json("worker", "list")) == 0
    lan.done()


def test_steering_follows_pairs_that_go_and_come(rig):
    """Pairs are switched off in one order and on in another; a flow's answer always finds a pair that is on."""
    lan = Lan(rig, guests=1, pairs=PAIRS)
    guest = lan.guests[0]
    flows = flows_apart(lan)[:8]
    on, number = set(range(PAIRS)), 100
    for pair, enable in ((1, False), (3, False), (3, True), (2, False), (1, True), (0, False), (2, True), (0, True)):
        for ring in ((2 * pair, 2 * pair + 1) if enable else (2 * pair + 1, 2 * pair)):
            guest.frontend.enable(ring, enable)
        (on.add if enable else on.discard)(pair)
        wait_for(lambda: lan.daemon.json("port", "list")[0]["served_queue_pairs"] == len(on), f"{len(on)} pairs in service")
        assert set(steering_row(lan)) <= on
        for flow in flows:
            number += 1
            assert answer(lan, flow, number) in on
            speaker = sorted(on)[flow % len(on)]
            say(lan, flow, speaker, number)
            number += 1
            assert answer(lan, flow, number) == speaker
    lan.done()
