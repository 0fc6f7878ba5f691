# SPDX-License-Identifier: BSD-2-Clause
"""DPDK's virtio-user as a guest: another frontend, another virtio driver, polling rings instead of waiting for calls."""
import pytest

from rig import HugePages, unique, wait_for
from testpmd import PAGES, Testpmd

MACS = ["52:54:00:00:0d:01", "52:54:00:00:0d:02"]
ENOUGH = 20000  # packets: the frames have gone round hundreds of times, and every ring has wrapped


@pytest.fixture(scope="module", autouse=True)
def pages(module_rig):
    pages = HugePages(module_rig, 2 * PAGES)
    if not pages.enough:
        pytest.skip(f"{pages.free} free huge pages of 2 MB: testpmd needs {2 * PAGES}")


def ports(rig, names, queues, role="server", **more):
    tail = "".join(f",{key}={value}" for key, value in more.items())
    sockets = [rig.path(f"{unique('s')}.sock") for _ in names]
    arguments = []
    for name, path, mac in zip(names, sockets, MACS):
        arguments += ["--port", f"{name}={path},queues={queues},mac={mac},role={role}{tail}"]
    return sockets, arguments


@pytest.mark.parametrize("ring", [256, 1024])
@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("mrg_rxbuf", [0, 1])
def test_two_ports_in_io_mode(rig, mrg_rxbuf, queues, ring):
    sockets, arguments = ports(rig, ["dpdk1", "dpdk2"], queues)
    daemon = rig.daemon(*arguments)
    testpmd = Testpmd(rig, sockets, MACS, queues=queues, ring=ring, options=f",mrg_rxbuf={mrg_rxbuf}").start()
    testpmd.wait_received(ENOUGH)
    assert len(daemon.json("queue", "list")) == 2 * queues
    testpmd.stop()
    daemon.stop()


def test_client_role(rig):
    """virtio-user listens, vhostlane connects; and connects again when testpmd is replaced."""
    sockets, arguments = ports(rig, ["dpdk1", "dpdk2"], 1, role="client")
    daemon = rig.daemon(*arguments)
    for _ in range(2):
        testpmd = Testpmd(rig, sockets, MACS, options=",server=1").start()
        testpmd.wait_received(ENOUGH)
        testpmd.stop()
    daemon.stop()


def test_killed_under_traffic_and_restarted(rig):
    """SIGKILL in the middle of full traffic: the port is reusable at once, several times over."""
    sockets, arguments = ports(rig, ["dpdk1", "dpdk2"], 1)
    daemon = rig.daemon(*arguments)
    for _ in range(3):
        testpmd = Testpmd(rig, sockets, MACS).start()
        testpmd.wait_received(ENOUGH)
        testpmd.kill()
        wait_for(lambda: all(port["state"] == "waiting" for port in daemon.json("port", "list")), "both ports wait again")
    daemon.stop()


def test_daemon_killed_and_back(rig):
    """virtio-user in server role outlives the daemon: the new one connects and traffic flows again."""
    sockets, arguments = ports(rig, ["dpdk1", "dpdk2"], 1, role="client")
    daemon = rig.daemon(*arguments)
    # flowgen sends without being given anything first: io mode would stall with the packets that were in flight.
    testpmd = Testpmd(rig, sockets, MACS, options=",server=1", forward="flowgen", tx_first=False).start()
    testpmd.wait_received(1000)
    daemon.kill()
    daemon.start()
    testpmd.wait_received(1000)
    testpmd.stop()
    daemon.stop()
