# SPDX-License-Identifier: BSD-2-Clause
"""Numbered frames of several flows between a wire and a scripted guest, both ways at once: one that is lost or overtaken shows."""
import struct
import time

from scapy.all import IP, UDP, Ether, Raw  # pylint: disable=no-name-in-module

from rig import RigError


def flow_frame(destination, source, flow, number):
    """UDP of one of several flows; the payload numbers it within its flow."""
    colon = [":".join(f"{byte:02x}" for byte in address) for address in (destination, source)]
    packet = Ether(dst=colon[0], src=colon[1]) / IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=1000 + flow, dport=2000 + flow, chksum=0)
    return bytes(packet / Raw(struct.pack(">4sIQ", b"FLOW", flow, number) + bytes(100)))


def flow_of(frame):
    """(flow, number) or None."""
    at = frame.find(b"FLOW", 14, 80)
    return struct.unpack_from(">IQ", frame, at + 4) if at >= 0 else None


def numbered(frame, number):
    at = frame.find(b"FLOW") + 8
    return frame[:at] + struct.pack(">Q", number) + frame[at + 8:]


class TwoWay:
    """At most `window` frames each way are under way, fewer than any ring holds: whatever is lost was lost by what is done meanwhile."""

    def __init__(self, lan, flows=8, window=256):
        self.lan, self.guest, self.flows, self.window = lan, lan.guests[0], flows, window
        self.frames = {"to_guest": [flow_frame(lan.macs[0], lan.wire_mac, flow, 0) for flow in range(flows)],
                       "from_guest": [flow_frame(lan.wire_mac, lan.macs[0], flow, 0) for flow in range(flows)]}
        self.sent = {direction: 0 for direction in self.frames}
        self.heard = {direction: [0] * flows for direction in self.frames}
        # As a real guest does, it answers a flow on the pair on which the flow came: steering has no reason to change.
        self.pair_of = {}
        for flow in range(flows):
            lan.wire.send(self.frames["to_guest"][flow])
            while flow not in self.pair_of:
                for pair in range(self.guest.pairs):
                    frame = self.guest.receive(pair)
                    if frame and flow_of(frame):
                        self.pair_of[flow] = pair

    def _send(self):
        for direction in self.sent:
            n = self.sent[direction]
            if n - sum(self.heard[direction]) >= self.window:
                continue
            flow = n % self.flows
            frame = numbered(self.frames[direction][flow], n // self.flows)
            if direction == "to_guest":
                self.lan.wire.send(frame)
            else:
                self.guest.send(frame, pair=self.pair_of[flow])
            self.sent[direction] = n + 1

    def _take(self, direction, frame):
        found = flow_of(frame)
        if found:
            flow, number = found
            assert number == self.heard[direction][flow], f"{direction}, flow {flow}: {number} came instead of {self.heard[direction][flow]}"
            self.heard[direction][flow] += 1

    def _receive(self):
        for pair in range(self.guest.pairs):
            while (frame := self.guest.receive(pair)) is not None:
                self._take("to_guest", frame)
        while (frame := self.lan.wire.receive(0)) is not None:
            self._take("from_guest", frame)

    def total_heard(self):
        return sum(sum(heard) for heard in self.heard.values())

    def run_while(self, go_on):
        """Calls go_on() every few rounds, until it returns False and all that was sent has come."""
        going, last_progress, turn = True, time.monotonic(), 0
        while going or self.total_heard() < sum(self.sent.values()):
            for _ in range(32 if going else 0):
                self._send()
            before = self.total_heard()
            self._receive()
            if self.total_heard() > before:
                last_progress = time.monotonic()
            elif time.monotonic() - last_progress > 60:
                raise RigError(f"lost: sent {self.sent}, received {self.heard}; drops {self.lan.drops()}")
            turn += 1
            if going and turn % 16 == 0:
                going = go_on()
        for direction, count in self.sent.items():
            assert sum(self.heard[direction]) == count > 1000
