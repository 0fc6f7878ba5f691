# SPDX-License-Identifier: BSD-2-Clause
"""libxdp's dispatcher: vhostlane's program beside another one on the same uplink. Kernels that refuse freplace are seen elsewhere."""
import json

import pytest

from numa import check_traffic
from rig_host import mac_of


@pytest.fixture
def filtered(machine, veth):
    """An uplink with xdp-filter on it, loaded by xdp-loader's library; it drops what comes from this address."""
    machine.run("xdp-filter load up0 --mode native && xdp-filter ether 52:54:00:ba:ad:01 --mode src")
    yield "52:54:00:ba:ad:01"
    machine.call("xdp-filter unload up0")


def test_chained_with_another_program(machine, host, filtered):
    daemon = host.start_daemon(ports=1)
    uplink, = daemon.json("uplink list")
    assert uplink["dispatcher"] and not uplink["adopted"], uplink
    status = machine.run("xdp-loader status up0")
    assert "xdp_dispatcher" in status and "xdpfilt" in status and "xdp_steer" in status, status
    host.guest(0, node=0)
    check_traffic(host.sender("--packet wire0", [0], "--count 2000").wait())

    # The other program still has its say: what it drops never reaches the guest.
    machine.run("/bin/ip link set wire0 address " + filtered)
    dropped = json.loads(host.sender("--packet wire0", [0], "--count 10 --patience 3").wait(status=1))
    assert dropped == {"sent": 10, "returned": 0, "lost": 10, "reordered": 0, "other_pair": 0}
    machine.run("/bin/ip link set wire0 address " + mac_of(200))
    check_traffic(host.sender("--packet wire0", [0], "--count 2000").wait())

    daemon.end()
    host.daemon = None
    status = machine.run("xdp-loader status up0")
    assert "xdpfilt" in status and "xdp_steer" not in status, status
    assert machine.run("xdp-filter status") and "52:54:00:ba:ad:01" in machine.run("xdp-filter status").lower()


def test_others_may_join_and_leave(machine, host, veth):
    """vhostlane comes first, by the dispatcher; another program joins and leaves under traffic."""
    daemon = host.start_daemon(ports=1)
    assert daemon.json("uplink list")[0]["dispatcher"]
    host.guest(0, node=0)
    sender = host.sender("--packet wire0", [0], "--pause 500")
    machine.run("xdp-filter load up0 --mode native")
    status = machine.run("xdp-loader status up0")
    assert "xdpfilt" in status and "xdp_steer" in status, status
    before = daemon.pairs()["vm0", 0]["frames_to_guest"]
    machine.wait_until(lambda: daemon.pairs()["vm0", 0]["frames_to_guest"] > before, "traffic with both")
    machine.run("xdp-filter unload up0")
    status = machine.run("xdp-loader status up0")
    assert "xdpfilt" not in status and "xdp_steer" in status, status
    before = daemon.pairs()["vm0", 0]["frames_to_guest"]
    machine.wait_until(lambda: daemon.pairs()["vm0", 0]["frames_to_guest"] > before, "traffic alone again")
    # While programs are exchanged the kernel resets a veth: frames in flight may be lost, but none is overtaken.
    machine.call(f"kill {sender.pid}")
    machine.wait_until(lambda: not sender.alive(), "end of the sender")
    assert json.loads(sender.output())["returned"] > 100


def test_plain_foreign_program_is_not_replaced(machine, host, veth):
    machine.run("/bin/ip link set up0 xdpdrv obj /usr/lib/vhostlane/xdp_steer.bpf.o sec xdp.frags")
    before = machine.run("bpftool -j net show dev up0")
    status, output = machine.call("mkdir -p /run/vhostlane; vhostlane run --uplink up0 --control /run/vhostlane/control.sock")
    assert status == 1 and "is attached and is not replaced" in output, output
    assert machine.run("bpftool -j net show dev up0") == before
    machine.run("/bin/ip link set up0 xdpdrv off")
