# SPDX-License-Identifier: BSD-2-Clause
"""vhostlane on a host with two NUMA nodes: a virtual machine that has what this one may lack."""
import json

import pytest

from numa import NODE_MEGABYTES, NumaMachine

UPLINK = """set -e
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/vhostlane
/bin/ip link add up0 numrxqueues 4 numtxqueues 4 type veth peer name wire0 numrxqueues 4 numtxqueues 4
/bin/ip link set up0 up
/bin/ip link set wire0 up
"""


@pytest.fixture(scope="module")
def machine(module_rig):
    machine = NumaMachine("numa", module_rig.directory)
    module_rig.undo(machine.kill)
    return machine.start().wait_up()


def test_two_nodes(machine):
    """The harness itself: topology as asked for, and the programs that the tests need run here."""
    nodes = [line.split() for line in machine.run("sh /rig/nodes.sh").splitlines() if line.strip()]
    assert [node[3] for node in nodes] == ["0-1", "2-3"]
    assert [" ".join(node[7:]) for node in nodes] == ["10 21", "21 10"]
    for node in nodes:
        assert int(node[5]) > NODE_MEGABYTES * 1024 * 8 // 10
    assert "bpftool" in machine.run("bpftool version")


def test_daemon_starts_on_two_nodes(machine):
    """Ready, one worker on each CPU, on the node that the kernel says; and an end without trace."""
    machine.run(UPLINK)
    machine.run("export VHOSTLANE_BPF_DIR=/usr/lib/vhostlane; vhostlane run --uplink up0 --control /run/vhostlane/control.sock"
                " >/run/vhostlane/out 2>/run/vhostlane/log & echo $! >/run/vhostlane/pid")
    machine.run("for i in $(seq 600); do grep -qx ready /run/vhostlane/out && exit 0; kill -0 $(cat /run/vhostlane/pid) || break;"
                " sleep 0.1; done; cat /run/vhostlane/log; exit 1")
    text = machine.run("vhostlane worker list --json --control /run/vhostlane/control.sock")
    workers = {worker["cpu"]: worker["node"] for worker in json.loads(text)}
    assert workers == {0: 0, 1: 0, 2: 1, 3: 1}
    machine.run("kill $(cat /run/vhostlane/pid); for i in $(seq 600); do kill -0 $(cat /run/vhostlane/pid) 2>/dev/null || exit 0; sleep 0.1;"
                " done; cat /run/vhostlane/log; exit 1")
    assert "vhl" not in machine.run("/bin/ip link")
    assert not machine.run("ls /sys/fs/bpf/vhostlane 2>/dev/null || true").strip()
