# SPDX-License-Identifier: BSD-2-Clause
"""Policies changed at run time, with traffic both ways: nothing lost, nothing overtaken, and pairs where the new policy wants them."""
import itertools

import pytest

from flows import TwoWay
from test_wire import Lan, affinity, cpus_of

PAIRS = 4
# per-port is kept to the last but one, so that going back to per-cpu has something to spread.
CHANGES = [("policy=multi-worker", "per-port=2"), ("pin=false",), ("policy=per-cpu",), ("pin=true",), ("policy=multi-worker", "per-port=1"),
           ("per-port=3",), ("policy=per-port",), ("policy=per-cpu", "pin=false"), ("policy=per-port", "pin=true"), ("policy=per-cpu",)]


def places_of(lan):
    return [(pair["worker"], pair["generation"]) for pair in lan.daemon.json("queue", "list")]


def map_agrees(lan):
    """What XDP reads names the workers that serve. Read again if placement moved a pair in between, as it may at any time."""
    places = None
    while places != places_of(lan):
        places = places_of(lan)
        entries = [affinity(lan, pair) for pair in range(PAIRS)]
    return [(entry["worker"], entry["generation"]) for entry in entries] == places


def as_the_policy_wants(policy, pairs, workers):
    used = {pair["worker"] for pair in pairs}
    # Slots 0, 1, ... of port 0.
    wanted = {"per-port": 1, "per-cpu": min(workers, PAIRS)}.get(policy)
    # On a machine whose CPUs others want, per-cpu may gather pairs as soon as it has spread them, or leave such a CPU with them.
    gathered = policy == "per-cpu" and any(pair["reason"] in ("gathered on fewer workers", "left a CPU that others fill") for pair in pairs)
    return None not in used and (wanted is None or len(used) == wanted or gathered)


def test_policies_change_under_traffic(rig):
    lan = Lan(rig, guests=1, pairs=PAIRS)
    workers = len(lan.daemon.json("worker", "list"))
    if workers < 2:
        pytest.skip("one worker: every policy places alike")
    changes, generations = itertools.chain(CHANGES), []

    def change():
        words = next(changes, None)
        if not words:
            return False
        lan.daemon.cli("worker", "set", *words)
        status = lan.daemon.json("status")
        for word in words:
            key, value = word.split("=")
            if key == "policy":
                assert status["policy"] == value
            if key == "pin":
                assert status["pin"] == (value == "true")
        # At once: the command returns when the pairs have moved.
        pairs = lan.daemon.json("queue", "list")
        assert as_the_policy_wants(status["policy"], pairs, workers), str(pairs)
        assert map_agrees(lan)
        generations.append(max(pair["generation"] for pair in lan.daemon.json("queue", "list")))
        return True
    TwoWay(lan).run_while(change)
    assert len(set(generations)) > 3, f"hardly anything moved: {generations}"
    drops = {name: value for name, value in lan.drops().items() if "xdp_no_lane" in name or "lane_no_port" in name}
    assert drops == {}
    lan.done()


def test_number_of_workers_per_port(rig):
    """With slots enough each port has its N workers, and changes them at run time."""
    lan = Lan(rig, guests=2, pairs=PAIRS, arguments=("--threads", "8"))
    for count in (1, 2, 4):
        lan.daemon.cli("worker", "set", "policy=multi-worker", f"per-port={count}")
        for name in lan.names:
            used = {pair["worker"] for pair in lan.daemon.json("queue", "list") if pair["port"] == name}
            assert len(used) == count, (name, used)
    lan.daemon.cli("worker", "set", "policy=per-port")
    first, second = ({pair["worker"] for pair in lan.daemon.json("queue", "list") if pair["port"] == name} for name in lan.names)
    assert len(first) == len(second) == 1 and first != second
    assert {pair["reason"] for pair in lan.daemon.json("queue", "list")} == {"the port's own worker"}
    lan.daemon.cli("worker", "set", "policy=per-cpu")
    for name in lan.names:
        used = {pair["worker"] for pair in lan.daemon.json("queue", "list") if pair["port"] == name}
        assert len(used) == min(PAIRS, len(set(cpus_of(lan))))
    assert "the port's own worker" not in {pair["reason"] for pair in lan.daemon.json("queue", "list")}
    lan.done()
