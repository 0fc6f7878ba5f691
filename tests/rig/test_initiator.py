# SPDX-License-Identifier: BSD-2-Clause
"""The CPU that kicks, when it is all that is known of a guest: the daemon runs like one in a container (confined.c), which sees neither the guest's
threads nor the node of its rings. Pairs go to the initiator's node, but not to its CPU, and follow it when it moves."""
import json
import time

from numa import check_traffic

MOVES_PER_SECOND = 2


def start(host, queues):
    daemon = host.start_daemon(ports=1, queues=queues, prefix="confined ")
    assert "kicks: their CPUs are traced by" in daemon.log()
    for pair in range(queues):
        daemon.cli(f"queue set vm0/{pair} busy-poll-us=0")  # whoever sleeps has to be kicked
    return daemon


def test_pairs_follow_the_initiator(machine, host, veth):
    """Its memory stays on node 0; the guest's thread, and so its kicks, go to and fro between the nodes. All under traffic."""
    daemon = start(host, queues=2)
    guest = host.guest(0, node=0, prefix="taskset 0x4")
    sender = host.sender("--packet wire0", [0], "--pause 500")
    for initiator, neighbour in ((2, 3), (0, 1), (3, 2)):
        machine.run(f"taskset -p {1 << initiator:x} {guest.pid}")

        def followed():
            pairs = list(daemon.pairs().values())
            return all(pair["cpu"] == neighbour and pair["kick_cpu"] == initiator for pair in pairs) and pairs
        for pair in machine.wait_until(followed, f"both pairs on CPU {neighbour}"):
            assert pair["reason"] == "node of the kicking CPU", pair
            assert pair["ring_node"] == pair["vcpu_node"] == -1 and pair["vcpus"] == "", pair
            assert f"queue vm0/{pair['pair']}: moved to worker {pair['worker']} on CPU {neighbour} ({pair['reason']})" in daemon.log()
    check_traffic(sender.end())
    assert json.loads(guest.end().splitlines()[-1])["reordered"] == 0


def test_moves_are_bounded(machine, host, veth):
    """Many pairs whose initiator moves follow it a few at a time."""
    queues = 6
    daemon = start(host, queues)
    guest = host.guest(0, node=0, pairs=queues, prefix="taskset 0x4")
    sender = host.sender("--packet wire0", [0], "--flows 32 --window 1 --pause 10000")  # little: a full CPU takes no more pairs

    def moved_to(cpu):
        return sum(pair["cpu"] == cpu for pair in daemon.pairs().values())
    machine.wait_until(lambda: moved_to(3) == queues, "all pairs on CPU 3")
    machine.run(f"taskset -p 1 {guest.pid}")
    still = time.monotonic()

    def all_moved():
        nonlocal still
        seen = moved_to(1)
        if not seen:
            still = time.monotonic()
        return seen == queues
    machine.wait_until(all_moved, "all pairs on CPU 1")
    # One look less than it takes: the first may have come right after the last glance at none.
    assert time.monotonic() - still > queues / MOVES_PER_SECOND - 2
    check_traffic(sender.end())
    assert json.loads(guest.end().splitlines()[-1])["reordered"] == 0
