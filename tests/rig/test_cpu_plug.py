# SPDX-License-Identifier: BSD-2-Clause
"""A CPU that is pulled out of the machine and plugged in again, under traffic. CPUs that only go offline: test_hotplug.py.

In a machine of its own: the emulator of QEMU 7.2 damages its heap every other time that it gives up a CPU ("malloc(): unsorted double
linked list corrupted"): it crashes, stands still, or the CPU does not appear again. So with that one this is skipped; `make check-kernels` can
take a newer QEMU (VHOSTLANE_TEST_QEMU).
"""
import json

import pytest

from numa import SPARE_CPU, SPARE_NODE, EmulatorFault, NumaMachine, emulator_version
from rig import Rig, RigError
from rig_host import Host
from guest import GuestError

SOUND_SINCE = (8, 0)
MACHINES = 4  # of so many, one does what it is told


def pull_and_plug(machine, host):
    daemon = host.start_daemon(ports=1)
    assert daemon.workers()[SPARE_CPU]["node"] == SPARE_NODE
    guest = host.guest(0, node=SPARE_NODE)
    sender = host.sender("--packet wire0", [0])
    daemon.cli(f"queue set vm0/1 cpu={SPARE_CPU}")

    def traffic(cpu_fits, what):
        """Both pairs get frames, the second on such a CPU."""
        machine.wait_until(lambda: cpu_fits(daemon.pairs()["vm0", 1]["cpu"]), what)
        before = daemon.pairs()
        machine.wait_until(lambda: all(pair["frames_to_guest"] > before[key]["frames_to_guest"] for key, pair in daemon.pairs().items()),
                           f"traffic, {what}")
    traffic(lambda cpu: cpu == SPARE_CPU, "pair on the plugged CPU")
    machine.pull_cpu()
    traffic(lambda cpu: cpu != SPARE_CPU, "pair on another CPU")
    pair, worker = daemon.pairs()["vm0", 1], daemon.workers()[SPARE_CPU]
    assert pair["node"] == SPARE_NODE and pair["reason"] == "its CPU went away", pair
    assert worker["pairs"] == 0 and not worker["in_use"]

    machine.plug_cpu()
    traffic(lambda cpu: cpu == SPARE_CPU, "pair on the plugged CPU again")
    worker = daemon.workers()[SPARE_CPU]
    machine.wait_until(lambda: daemon.allowed(worker["tid"]) == str(SPARE_CPU), "its worker pinned again")
    result = json.loads(sender.end(None))
    assert result["lost"] == 0 and result["returned"] > 1000, result
    guest.end(None)


def run_in_a_machine():
    """False if the emulator failed: nothing was found out."""
    with Rig() as rig:
        machine = NumaMachine(rig, "plug").boot()
        host = Host(machine)
        try:
            machine.veth()
            machine.plug_cpu()
            pull_and_plug(machine, host)
            host.close()
        except (GuestError, RigError, OSError, AssertionError):
            if machine.emulator_crashed():
                return False
            print(host.state())
            raise
        except EmulatorFault as fault:
            print(fault)
            return False
    return True


@pytest.mark.skipif(emulator_version() < SOUND_SINCE, reason="QEMU 7's emulator damages its heap when a CPU is unplugged; give a newer one by VHOSTLANE_TEST_QEMU")
def test_cpu_is_pulled_and_plugged():
    assert any(run_in_a_machine() for _ in range(MACHINES)), "the emulator failed each time"
