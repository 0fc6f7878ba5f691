# SPDX-License-Identifier: BSD-2-Clause
"""The CPU that kicks, when it is all that is known of a guest: the daemon runs like one in a container (confined.c), which sees neither the guest's
threads nor the node of its rings. Pairs go to the initiator's node, but not to its CPU, and follow it when it moves."""
import json
import re

from numa import check_traffic


def start(host, queues):
    daemon = host.start_daemon(ports=1, queues=queues, prefix="confined ")
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
        pairs = machine.wait_until(followed, f"both pairs on CPU {neighbour}")
        for pair in pairs:
            assert pair["ring_node"] == pair["vcpu_node"] == -1 and pair["vcpus"] == "", pair
            if initiator != 2:  # at first nothing was known, and they may have been there for another reason
                assert re.search(rf"queue vm0/{pair['pair']}: moved to worker \d+ on CPU [{initiator}{neighbour}] \(node of the kicking CPU\)", daemon.log())
    check_traffic(sender.end())
    assert json.loads(guest.end().splitlines()[-1])["reordered"] == 0
    assert "kicks: their CPUs are traced by" in daemon.log()


def test_many_pairs_follow(machine, host, veth):
    """All pairs of a guest go to the one CPU of the initiator's node that is not its own, and to the other node after it."""
    queues = 6
    daemon = start(host, queues)
    guest = host.guest(0, node=0, pairs=queues, prefix="taskset 0x4")
    sender = host.sender("--packet wire0", [0], "--flows 32 --window 1 --pause 10000")  # little: a full CPU takes no more pairs
    for initiator, neighbour in ((2, 3), (0, 1)):
        machine.run(f"taskset -p {1 << initiator:x} {guest.pid}")
        machine.wait_until(lambda: {pair["cpu"] for pair in daemon.pairs().values()} == {neighbour}, f"all pairs on CPU {neighbour}")
    assert daemon.log().count("(node of the kicking CPU)") >= queues
    check_traffic(sender.end())
    assert json.loads(guest.end().splitlines()[-1])["reordered"] == 0
