# SPDX-License-Identifier: BSD-2-Clause
"""The NIC of the rig in trouble: overload, a daemon that dies, a link that goes down. From Linux 6.18 on its lanes are zero-copy."""
import pytest

from numa import NIC_QUEUES, check_traffic
from rig_host import Outside, mac_of, zero_copy

RING_OF_DRIVER = 256  # descriptors of QEMU's virtio-net


@pytest.mark.parametrize("length", [60, 1500 + 14])
def test_lengths(machine, host, nic, length):
    host.start_daemon(f"--uplink {nic}", ports=1)
    host.guest(0, node=1, options="--other-flow")
    check_traffic(Outside(machine, [0], f"--count 3000 --length {length}").wait())


def held_by_kernel(daemon):
    """Frames in no ring: a driver's receive ring in zero-copy mode, and frames on their way out."""
    frames = dict(daemon.json("uplink list")[0]["frames"])
    return frames.pop("total") - sum(frames.values())


def test_overload_loses_no_frame_memory(machine, host, nic):
    """More than fits, both ways at once: what is dropped is counted, all frame memory comes back, and then nothing is lost any more."""
    daemon = host.start_daemon(f"--uplink {nic}", ports=2)
    for _ in range(2):
        echo = host.guest(0, node=0, options="--other-flow")
        quiet = held_by_kernel(daemon)
        inside = host.process(f"numbered flood --vhost /run/vhostlane/vm1.sock --mac {mac_of(1)} --node 1 --pairs 2 --id 1"
                              f" --to {machine.tap.mac} --length 1000 --count 60000")
        outside = Outside(machine, [0, 1], "--count 60000", verb="flood")
        outside.wait()
        inside.wait()
        check_traffic(Outside(machine, [0], "--flows 16 --count 4000 --id 2").wait())
        # What the driver's rings hold in zero-copy mode stays with them, no more.
        machine.wait_until(lambda: held_by_kernel(daemon) <= max(quiet, NIC_QUEUES * RING_OF_DRIVER if zero_copy(machine) else 0),
                           f"frames back: {held_by_kernel(daemon)} with the kernel")
        assert held_by_kernel(daemon) >= 0
        echo.end(None)


def test_killed_and_started_again(machine, host, nic):
    """The daemon dies under traffic: the next one binds all queues although the kernel takes a while to let go."""
    for _ in range(2):
        daemon = host.start_daemon(f"--uplink {nic}", ports=1)
        mode = daemon.json("uplink list")[0]["mode"]
        assert mode == ("zero-copy" if zero_copy(machine) else "copy")
        echo = host.guest(0, node=1, options="--other-flow")
        outside = Outside(machine, [0], "--patience 1")
        machine.wait_until(lambda: daemon.pairs()["vm0", 0]["frames_to_guest"] > 200, "traffic")
        daemon.kill()
        daemon = host.start_daemon(f"--uplink {nic}", ports=1)
        assert daemon.json("uplink list")[0]["mode"] == mode
        outside.wait()
        echo.kill()
        host.guest(0, node=1, options="--other-flow")
        check_traffic(Outside(machine, [0], "--count 2000 --id 2").wait())
        daemon.end()
        host.daemon = None


def test_link_goes_down_and_up(machine, host, nic):
    daemon = host.start_daemon(f"--uplink {nic}", ports=1)
    host.guest(0, node=1, options="--other-flow")
    for round_number in range(3):
        # Other senders each time: frames that waited for the link come late.
        check_traffic(Outside(machine, [0], f"--count 2000 --id {2 * round_number}").wait())
        outside = Outside(machine, [0], f"--patience 1 --id {2 * round_number + 1}")
        machine.wait_until(lambda: daemon.pairs()["vm0", 0]["frames_to_guest"] > 200, "traffic")
        machine.run(f"/bin/ip link set {nic} down; sleep 0.5; /bin/ip link set {nic} up")
        outside.end()
