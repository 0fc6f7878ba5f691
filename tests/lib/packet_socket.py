# SPDX-License-Identifier: BSD-2-Clause
"""A raw socket on an interface of any network namespace, which gives frames as a wire would carry them: VLAN tags in the frame, checksums
completed where the sender left them open and the kernel knows it."""
import ctypes
import os
import socket
import struct
import threading
import time

ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_AUXDATA, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, SO_RCVBUFFORCE = 263, 8, 15, 23, 33
TP_STATUS_VLAN_VALID, TP_STATUS_VLAN_TPID_VALID = 1 << 4, 1 << 6
CLONE_NEWNET = 0x40000000
VNET_NEEDS_CSUM, VNET_LENGTH, UDP_CHECKSUM_AT = 1, 10, 6


def in_namespace(name, action):
    """Runs action() in a thread that has entered the namespace; sockets made there stay there."""
    result = []

    def body():
        try:
            handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
            try:
                if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns {name}")
            finally:
                os.close(handle)
            result.append((action(), None))
        except Exception as error:  # pylint: disable=broad-except
            result.append((None, error))
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    value, error = result[0]
    if error:
        raise error
    return value


def complete(frame, start, offset):
    """The frame with the checksum that the kernel's packet leaves open, computed as a device would: over all from @start on, from the sum
    that the field holds."""
    assert start + offset + 2 <= len(frame), f"checksum at {start} + {offset} of {len(frame)} bytes"
    data = frame[start:] + b"\0" * (len(frame[start:]) % 2)
    value = 0xFFFF - (int.from_bytes(data, "big") % 0xFFFF or (0xFFFF if any(data) else 0))
    if value == 0 and offset == UDP_CHECKSUM_AT:
        value = 0xFFFF
    return frame[:start + offset] + struct.pack("!H", value) + frame[start + offset + 2:]


class PacketSocket:
    """`open_checksums` counts the frames received that had theirs left open."""

    def __init__(self, interface, namespace=None):
        def make():
            new = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            new.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            new.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            new.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            new.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            new.bind((interface, ETH_P_ALL))
            return new
        self.open_checksums = 0
        self.socket = in_namespace(namespace.name, make) if namespace else make()

    def close(self):
        self.socket.close()

    def send(self, frame):
        """Sends a whole frame; waits where the device's queue is full."""
        frame = bytes(VNET_LENGTH) + bytes(frame)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.socket.send(frame)
                return
            except OSError as error:
                if error.errno != 105 or time.monotonic() > deadline:  # ENOBUFS
                    raise
                time.sleep(0.001)

    def receive(self, timeout):
        """The next frame, or None."""
        self.socket.settimeout(max(timeout, 0.001))
        try:
            packet, ancillary, _, _ = self.socket.recvmsg(VNET_LENGTH + 65536, 256)
        except (TimeoutError, BlockingIOError):
            return None
        flags, _, _, _, start, offset = struct.unpack_from("<BBHHHH", packet)
        frame = packet[VNET_LENGTH:]
        if flags & VNET_NEEDS_CSUM:
            self.open_checksums += 1
            frame = complete(frame, start, offset)
        for level, kind, data in ancillary:
            if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                status, _, _, _, _, tag, tpid = struct.unpack_from("IIIHHHH", data)
                if status & TP_STATUS_VLAN_VALID:
                    tpid = tpid if status & TP_STATUS_VLAN_TPID_VALID else 0x8100
                    frame = frame[:12] + struct.pack("!HH", tpid, tag) + frame[12:]
        return frame

    def receive_matching(self, wanted, timeout, count=1):
        """Frames for which wanted(frame) is true: up to `count` of them."""
        found, deadline = [], time.monotonic() + timeout
        while len(found) < count and time.monotonic() < deadline:
            frame = self.receive(deadline - time.monotonic())
            if frame is not None and wanted(frame):
                found.append(frame)
        return found
