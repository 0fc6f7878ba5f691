# SPDX-License-Identifier: BSD-2-Clause
"""One machine, two drivers: the firmware's, which polls one queue pair and takes no offload, fetches kernel and initramfs from the wire; Linux
then takes the same device over with all its pairs; and after a reboot the firmware has it again."""
import os
import shutil

import pytest

from guest import Guest, initramfs, kernel, vhost_user
from lan import MEGABYTE, Lan, mac_of
from rig import wait_for

QUEUES = 4
DEVICES = ("disable-legacy=on", "disable-modern=on")  # one guest each: virtio 1, and the legacy interface
TIMEOUT = 240

# What DHCP names: it goes on only when the test has seen enough of the firmware.
HOLD = """#!ipxe
:again
chain linux.ipxe || sleep 1
goto again
"""
LINUX = """#!ipxe
kernel linux initrd=initramfs console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off
initrd initramfs
boot
"""


class NetworkBoot(Guest):
    """Nothing to boot but the network: iPXE, which QEMU gives a virtio-net device as its option ROM (package ipxe-qemu)."""

    def command(self):
        words = super().command()
        for option in ("-kernel", "-initrd", "-append"):
            at = words.index(option)
            del words[at:at + 2]
        # graphics=off: firmware writes on the first serial port, as Linux does. Where the machine is crowded, DHCP may come too late: once more.
        return words + ["-machine", "pc,graphics=off", "-boot", "reboot-timeout=1000"]


class BootServer:
    """DHCP and TFTP on the wire, and a router's advertisements: without them iPXE waits 20 seconds for IPv6."""

    def __init__(self, lan):
        self.directory, self.log = lan.rig.path("boot"), lan.rig.path("dnsmasq.log")
        os.mkdir(self.directory)
        for name, source in (("linux", kernel()), ("initramfs", initramfs())):
            shutil.copy(source, os.path.join(self.directory, name))
        self.size = sum(entry.stat().st_size for entry in os.scandir(self.directory))
        self._put("boot.ipxe", HOLD)
        hosts = [f"--dhcp-host={mac_of(number)},{lan.net}.{11 + number}" for number in range(lan.count)]
        lan.rig.background(["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root", "--pid-file=", "--port=0",
                            f"--log-facility={self.log}", "--log-dhcp", f"--interface={lan.link.peer}", "--bind-interfaces",
                            f"--dhcp-leasefile={lan.rig.path('leases')}", "--no-ping", f"--dhcp-range={lan.net}.0,static", *hosts,
                            "--enable-ra", f"--dhcp-range={lan.ip6('')},ra-only",
                            "--dhcp-boot=boot.ipxe", "--enable-tftp", f"--tftp-root={self.directory}"], lan.link.namespace)
        wait_for(lambda: "TFTP root" in self.lines(), "dnsmasq serves")

    def _put(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path + ".new", "w") as file:
            file.write(text)
        os.rename(path + ".new", path)

    def go(self):
        self._put("linux.ipxe", LINUX)

    def hold(self):
        os.unlink(os.path.join(self.directory, "linux.ipxe"))

    def lines(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def held(self, address):
        """How often the guest has asked whether it may go on, and was told to wait."""
        return self.lines().count(f"linux.ipxe not found for {address}\n")


class Machines:
    """A LAN with a boot server and guests that boot from it."""

    def __init__(self, rig):
        self.rig = rig
        self.lan = Lan(rig, count=len(DEVICES), queues=QUEUES, ipv6=True)
        self.server = BootServer(self.lan)
        self.guests = self.lan.guests = [self._guest(number, extra) for number, extra in enumerate(DEVICES)]
        for guest in self.guests:
            guest.start()

    def _guest(self, number, extra):
        lan = self.lan
        # QEMU fits the ROM that it finds itself to the device's id. One that romfile= names stays as it is, and SeaBIOS may pass it by.
        device = [word.replace(",romfile=", ",bootindex=0") for word in
                  vhost_user(lan.socket(number), mac_of(number), QUEUES, reconnect=1, extra=f",{extra}")]
        guest = NetworkBoot(f"vm{number + 1}", self.rig.directory, device, cpus=2, memory=256, reboot=True)
        guest.ip, guest.number, guest.lan = f"{lan.net}.{11 + number}", number, lan
        self.rig.undo(guest.kill)
        return guest

    def state(self):
        ports = "".join(f"{self.lan.port_of(guest.number)}\n{self.lan.pairs(guest.number)}\n" for guest in self.guests)
        return ports + self.server.lines()[-4000:]


@pytest.fixture
def machines(rig):
    machines = Machines(rig)
    yield machines
    machines.lan.daemon.stop()


def firmware_is_served(machines, guest):
    """By one pair: it has booted its script, which asks again and again whether it may go on, and is answered."""
    before = machines.server.held(guest.ip)
    wait_for(lambda: machines.server.held(guest.ip) >= before + 2, f"{guest.name}: the firmware has booted its script from the network", TIMEOUT)
    port = machines.lan.port_of(guest.number)
    assert port["state"] == "serving" and port["served_queue_pairs"] == 1, port
    assert not {"MQ", "MRG_RXBUF", "CTRL_VQ"} & set(port["features"]), port["features"]
    return port


def linux_is_served(lan, guest):
    """By all, each of which carries frames both ways."""
    lan.configure(guest)
    port = lan.port_of(guest.number)
    assert port["served_queue_pairs"] == QUEUES and {"MQ", "MRG_RXBUF"} <= set(port["features"]), port
    before = lan.pairs(guest.number)

    def all_used():
        # From each CPU, with ports of their own: Linux chooses a pair by both. Answers come on the pair of what they answer.
        guest.run(f"for cpu in 0 1 0 1; do taskset -c $cpu xfer -t 300 push {lan.wire.ip} {lan.port} {MEGABYTE} || exit; done")
        return all(now[way] > then[way] for now, then in zip(lan.pairs(guest.number), before) for way in ("frames_to_guest", "frames_from_guest"))
    wait_for(all_used, f"{guest.name}: each queue pair carries frames both ways", TIMEOUT)
    lan.pull(lan.wire, guest, MEGABYTE)
    return port


def test_firmware_then_linux_then_firmware(machines):
    lan = machines.lan
    before = [firmware_is_served(machines, guest) for guest in machines.guests]
    machines.server.go()
    after = [linux_is_served(lan, guest) for guest in machines.guests]
    assert ["VERSION_1" in port["features"] for port in after] == [True, False]
    # What Linux runs in has come through the firmware's one pair.
    for then, now in zip(before, after):
        assert now["counters"]["to_guest_bytes"] - then["counters"]["to_guest_bytes"] > machines.server.size
    machines.server.hold()
    for guest in machines.guests:
        guest.run("( sleep 0.2; reboot -f ) >/dev/null 2>&1 &")
    for guest in machines.guests:
        port = firmware_is_served(machines, guest)
        assert port["sessions"] == 1 and port["last_fault"] == "", port
