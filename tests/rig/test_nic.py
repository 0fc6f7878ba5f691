# SPDX-License-Identifier: BSD-2-Clause
"""A NIC with several queues on node 1: its frame memory lies there, whoever serves it. Zero-copy where the kernel has it for virtio-net.
What happens to it under load and in trouble is in tests/kernels."""
import json

import pytest

from numa import NIC_NODE, NIC_QUEUES, check_traffic
from rig_host import Outside, zero_copy


def modes(machine):
    return ["auto", "copy", "zero-copy"] if zero_copy(machine) else ["auto"]


def test_nic(machine, host, nic):
    """Every mode that this kernel has: frames to guests on both nodes and back, on all queues, none lost; frame memory on the NIC's node."""
    for mode in modes(machine):
        daemon = host.start_daemon(f"--uplink {nic},mode={mode}", ports=2)
        uplink, = daemon.json("uplink list")
        assert uplink["mode"] == ("zero-copy" if zero_copy(machine) and mode != "copy" else "copy"), uplink
        assert uplink["queues"] == NIC_QUEUES
        # Each receive queue's interrupt comes to one CPU: both lists say to which.
        irqs = {queue: cpu for cpu, worker in daemon.workers().items() for queue in worker["irqs"]}
        assert sorted(irqs) == [f"{nic}/{queue}" for queue in range(NIC_QUEUES)]
        assert uplink["irq_cpus"] == ",".join(str(irqs[f"{nic}/{queue}"]) for queue in range(NIC_QUEUES))
        assert uplink["node"] == uplink["umem"]["node"] == uplink["umem"]["node_found"] == NIC_NODE
        guests = [host.guest(0, node=0, options="--other-flow"), host.guest(1, node=1, options="--other-flow")]
        outside = Outside(machine, [0, 1], "--flows 16")
        machine.wait_until(lambda: all(pair["frames_to_guest"] > 100 for pair in daemon.pairs().values()), "frames on all pairs")
        for cpu in (3, 0, 2, 1):
            daemon.cli(f"queue set vm0/0 cpu={cpu}")
            machine.wait_until(lambda: daemon.pairs()["vm0", 0]["cpu"] == cpu, f"vm0/0 on CPU {cpu}")
        sent, echoed = outside.end(), [guest.end(None) for guest in guests]
        print(sent, echoed)
        # Moves take the guest's frames to another transmit queue. This driver reports a frame as sent once it is on the virtqueue, so what the
        # queues of the device itself still hold may be overtaken: order over such a move is asserted on veth (test_placement.py).
        result = json.loads(sent)
        assert result["lost"] == 0 and result["returned"] > 1000, result
        frames, drops = daemon.json("uplink list")[0]["frames"], daemon.json("uplink list")[0]["kernel_drops"]
        print(mode, frames, drops)
        assert drops["rx_dropped"] == drops["rx_invalid"] == drops["tx_invalid"] == drops["rx_ring_full"] == 0, drops
        daemon.end()
        host.daemon = None


def test_demand_for_zero_copy_is_refused_plainly(machine, host, nic):
    if zero_copy(machine):
        pytest.skip("this kernel has zero-copy for this NIC")
    status, output = machine.call(f"vhostlane run --uplink {nic},mode=zero-copy --control /run/vhostlane/control.sock")
    assert status == 1 and "zero-copy" in output and "set its mode to auto or copy" in output, output
