# SPDX-License-Identifier: BSD-2-Clause
"""One machine, two drivers: the firmware's, with one queue, fetches kernel and initramfs through vhostlane from the wire; Linux then takes the same
device over with all its queues."""
import os
import shutil
import threading

import pytest
from scapy.all import BOOTP, DHCP, IP, UDP, Ether  # pylint: disable=no-name-in-module

from guest import Guest, initramfs, kernel, vhost_user
from lan import MEGABYTE, Lan, mac_of
from packet_socket import PacketSocket
from rig import free_port, wait_for

ROM = "pxe-virtio.rom"  # iPXE, as Debian's ipxe-qemu has it; QEMU finds it by its name
QUEUES = 4


class NetworkBoot(Guest):
    def command(self):
        words = super().command()
        for option in ("-kernel", "-initrd", "-append"):
            at = words.index(option)
            del words[at:at + 2]
        return words


class BootServer:
    """DHCP and HTTP on the wire: an address, a script, and what the script names."""

    def __init__(self, lan, address):
        self.lan, self.address, self.http = lan, address, free_port()
        root = lan.rig.path("boot")
        os.mkdir(root)
        shutil.copy(kernel(), os.path.join(root, "linux"))
        shutil.copy(initramfs(), os.path.join(root, "initramfs"))
        url = f"http://{lan.wire.ip}:{self.http}"
        with open(os.path.join(root, "boot.ipxe"), "w") as file:
            file.write(f"#!ipxe\nkernel {url}/linux initrd=initramfs console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off\n"
                       f"initrd {url}/initramfs\nboot\n")
        self.script = f"{url}/boot.ipxe"
        self.ended = False
        self.socket = PacketSocket(lan.link.peer, lan.link.namespace)
        lan.rig.background(["/usr/bin/python3", "-m", "http.server", str(self.http), "--bind", lan.wire.ip, "--directory", root], lan.link.namespace)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        lan.rig.undo(self.close)

    def close(self):
        self.ended = True
        self.thread.join()
        self.socket.close()

    def _serve(self):
        while not self.ended:
            frame = self.socket.receive(0.2)
            if frame is None or frame[12:14] != b"\x08\x00":
                continue
            packet = Ether(frame)
            if DHCP in packet and packet[BOOTP].op == 1:
                self._answer(packet)

    def _answer(self, packet):
        asked = dict(option[:2] for option in packet[DHCP].options if isinstance(option, tuple))["message-type"]
        kind = {1: "offer", 3: "ack"}.get(asked)
        if not kind:
            return
        wire = self.lan.wire.ip
        self.socket.send(bytes(
            Ether(dst=packet.src, src=self.lan.link.peer_mac) / IP(src=wire, dst="255.255.255.255") / UDP(sport=67, dport=68) /
            BOOTP(op=2, xid=packet[BOOTP].xid, flags=packet[BOOTP].flags, yiaddr=self.address, siaddr=wire, chaddr=packet[BOOTP].chaddr,
                  file=self.script.encode()) /
            DHCP(options=[("message-type", kind), ("server_id", wire), ("subnet_mask", "255.255.255.0"), ("lease_time", 3600), "end"])))


def test_firmware_then_linux(rig):
    if not os.path.exists(f"/usr/lib/ipxe/qemu/{ROM}"):
        pytest.skip(f"no {ROM} for QEMU: install ipxe-qemu")
    lan = Lan(rig, count=1, queues=QUEUES)
    address = f"{lan.net}.11"
    BootServer(lan, address)
    device = [word.replace("romfile=", f"romfile={ROM},bootindex=0") for word in vhost_user(lan.socket(0), mac_of(0), QUEUES, reconnect=1)]
    guest = NetworkBoot("firmware", rig.directory, device, cpus=2, memory=256)
    guest.ip, guest.number, guest.lan = address, 0, lan
    rig.undo(guest.kill)
    guest.start()

    def firmware():
        port = lan.port_of(0)
        return port["state"] == "serving" and "MQ" not in port["features"] and port
    port = wait_for(firmware, "the firmware's driver is served", 240)
    assert port["served_queue_pairs"] == 1, port

    lan.guests = [guest]
    lan.configure(guest)  # what it runs has all come through that one queue
    port = lan.port_of(0)
    assert "MQ" in port["features"] and port["served_queue_pairs"] == QUEUES and port["sessions"] == 1
    assert port["counters"]["to_guest_bytes"] > os.path.getsize(kernel()) + os.path.getsize(initramfs())
    lan.push(lan.wire, guest, 4 * MEGABYTE)
    lan.pull(lan.wire, guest, 4 * MEGABYTE)
    assert sum(pair["frames_to_guest"] > 0 for pair in lan.pairs(0)) > 1, "more than one queue is used"
    assert port["last_fault"] == ""
    lan.daemon.stop()
