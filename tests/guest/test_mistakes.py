# SPDX-License-Identifier: BSD-2-Clause
"""What people get wrong when they start QEMU: the guest has no network, and the daemon says why. No wire is needed to see it."""
import time

import pytest

from guest import Guest, vhost_user
from rig import wait_for

MAC = "52:54:00:00:67:01"


class Port:
    """A daemon with one port, and guests that may be started wrongly."""

    def __init__(self, rig, options=""):
        self.rig, self.path = rig, rig.path("vm1.sock")
        self.daemon = rig.daemon("--port", f"vm1={self.path},queues=2{options}")

    def guest(self, queues=2, extra="", without_memory=False, **options):
        device = vhost_user(self.path, MAC, queues, reconnect=1, extra=extra)
        guest = (GuestWithoutMemory if without_memory else Guest)("vm1", self.rig.directory, device, cpus=2, **options)
        self.rig.undo(guest.kill)
        return guest.start()

    def show(self):
        return self.daemon.json("port", "show", "vm1")

    def wait_fault(self, text):
        wait_for(lambda: text in self.show()["last_fault"], f"last_fault: {text}", 120)

    def wait_served(self, guest):
        guest.wait_up()
        guest.address("192.0.2.1/24")
        # Only a guest whose frames arrive has an address that can be learned.
        wait_for(lambda: guest.run("ping -c 1 -W 1 192.0.2.2 || true") and self.show()["addresses"], "frames of the guest arrive", 120)
        assert self.show()["state"] == "serving"


class GuestWithoutMemory(Guest):
    def command(self):
        words = super().command()
        at = words.index("-object")
        del words[at:at + 4]  # -object memory-backend-memfd,... -numa node,memdev=m
        return words


@pytest.fixture
def port(rig):
    port = Port(rig)
    yield port
    port.daemon.stop()


def comes_right(port, guest, text):
    """It was said once, and the next start, the right way, works."""
    assert port.daemon.log().count(text) == 1, port.daemon.log()
    guest.kill()
    port.wait_served(port.guest())
    assert port.daemon.log().count(text) == 1
    assert text in port.show()["last_fault"]  # kept: it is of the last session that failed


def test_memory_that_is_not_shared(port):
    guest = port.guest(share=False)
    guest.wait_up()
    guest.address("192.0.2.1/24")
    port.wait_fault("maps its memory privately")
    assert "share=on" in port.show()["last_fault"]
    assert port.show()["state"] == "negotiated"
    assert not any(ring["started"] for ring in port.show()["rings"])
    # QEMU heard of it, too.
    wait_for(lambda: "vring error" in guest.logs(), "QEMU's line")
    comes_right(port, guest, "maps its memory privately")


def test_no_memory_backend(port):
    guest = port.guest(without_memory=True)
    guest.wait_up()
    port.wait_fault("shares no memory")
    assert "share=on" in port.show()["last_fault"]
    assert port.show()["state"] == "negotiated"
    comes_right(port, guest, "shares no memory")


def test_shared_memory_is_not_complained_of(port):
    """Neither of a guest that works, nor of one whose driver never comes."""
    guest = port.guest()
    port.wait_served(guest)
    time.sleep(7)
    guest.run("ip link set eth0 down; echo virtio1 > /sys/bus/virtio/drivers/virtio_net/unbind || ls /sys/bus/virtio/drivers/virtio_net")
    time.sleep(7)
    assert port.show()["last_fault"] == ""


def test_more_queues_than_the_port_has(port):
    """QEMU with reconnect= comes back as fast as it can, for ever."""
    started = time.monotonic()
    guest = port.guest(queues=4)
    port.wait_fault("probably wants more")
    assert "2 queue pairs" in port.show()["last_fault"]
    time.sleep(8)
    sessions, seconds = port.show()["sessions"], time.monotonic() - started
    assert sessions < 2 * (11 + 7 + seconds), sessions
    assert len(port.daemon.log().splitlines()) < 40, port.daemon.log()
    guest.kill()
    port.wait_served(port.guest())
    assert port.daemon.log().count("probably wants more") <= 2


def test_mtu_larger_than_the_port_carries(rig):
    port = Port(rig, ",mtu=1500")
    guest = port.guest(extra=",host_mtu=9000")
    guest.wait_up()
    port.wait_fault("MTU 9000 of the guest is more than the 1500 that the port carries")
    assert port.show()["state"] != "serving"
    assert "9000Bytes MTU not supported by the backend" in guest.logs()
    guest.kill()
    guest = port.guest(extra=",host_mtu=1400")
    port.wait_served(guest)
    assert "mtu 1400" in guest.run("ip link show eth0")
    assert "is told an MTU of 1400 (host_mtu= of QEMU), the port carries 1500" in port.daemon.log()
    guest.kill()
    guest = port.guest()
    port.wait_served(guest)
    assert "mtu 1500" in guest.run("ip link show eth0")
    port.daemon.stop()


def test_mtu_is_not_told_without_host_mtu(rig):
    """The key mtu alone changes nothing that a guest sees; vhostlane.yaml(5) says so."""
    port = Port(rig, ",mtu=1400")
    guest = port.guest()
    port.wait_served(guest)
    assert "mtu 1500" in guest.run("ip link show eth0")
    assert "MTU" not in port.show()["features"]
    port.daemon.stop()
