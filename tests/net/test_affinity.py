# SPDX-License-Identifier: BSD-2-Clause
"""Orders of the operator: by `queue set`, and by edits of queue_affinity with bpftool alone; taken back, put back, and what is no order."""
import json
import os
import re
import struct

import pytest

from rig import ROOT, sh, wait_for
from test_wire import Lan, affinity, cpus_of, expect, placed
from virtio_driver import BROADCAST, ethernet

BY_ORDER = "set by the operator"


@pytest.fixture
def lan(rig):
    lan = Lan(rig, guests=1, pairs=2)
    yield lan
    lan.done()


def shown(lan, pair):
    return next(e for e in lan.daemon.json("queue", "list") if e["pair"] == pair)


def port_id(lan):
    return lan.daemon.json("port", "list")[0]["id"]


def edit(lan, pair, *words, port=None):
    key = struct.pack("=II", port_id(lan) if port is None else port, pair)
    sh(["bpftool", "map", "update", "pinned", lan.map("queue_affinity"), "key", *map(str, key), "value", *map(str, struct.pack("=IIII", *words))])


def delete(lan, pair):
    sh(["bpftool", "map", "delete", "pinned", lan.map("queue_affinity"), "key", *map(str, struct.pack("=II", port_id(lan), pair))])


def entries(lan):
    found = [entry.get("formatted", entry)["key"] for entry in json.loads(sh(["bpftool", "-j", "map", "dump", "pinned", lan.map("queue_affinity")]))]
    return sorted((key["port"], key["queue_pair"]) for key in found)


def truth(lan, pair):
    entry, row = affinity(lan, pair), shown(lan, pair)
    return [entry[key] for key in ("cpu", "worker", "generation")] == [row[key] for key in ("cpu", "worker", "generation")]


def test_order_to_where_it_sits_and_back(lan):
    cpu = placed(lan, 0)
    assert shown(lan, 0)["reason"] != BY_ORDER
    assert lan.daemon.json("queue", "set", "vm1/0", f"cpu={cpu}")["reason"] == BY_ORDER
    assert placed(lan, 0) == cpu
    released = lan.daemon.json("queue", "set", "vm1/0", "cpu=auto")
    assert released["reason"] != BY_ORDER and released["cpu"] in cpus_of(lan)
    assert truth(lan, 0)


def test_edit_that_names_the_present_cpu_holds_the_pair(lan):
    """The other fields are the engine's: what stands in them is no order and is put right."""
    cpu, node = placed(lan, 1), affinity(lan, 1)["node"]
    edit(lan, 1, cpu, node, 77, 0)
    wait_for(lambda: shown(lan, 1)["reason"] == BY_ORDER, "the edit is an order")
    wait_for(lambda: truth(lan, 1), "the entry tells the truth again")
    assert placed(lan, 1) == cpu
    assert f"queue vm1/1: held on CPU {cpu} by an edit of queue_affinity" in lan.daemon.log()


@pytest.mark.parametrize("field", ("node", "worker"))
def test_edit_of_what_follows_from_the_cpu_is_put_back(lan, field):
    """Whoever changes the worker alone wants the pair to move; that is said with the cpu, and holding the pair would be the opposite."""
    cpu = placed(lan, 1)
    before, reason = affinity(lan, 1), shown(lan, 1)["reason"]
    wanted = dict(before, **{field: before[field] + 1})
    edit(lan, 1, *(wanted[key] for key in ("cpu", "node", "worker", "generation")))
    wait_for(lambda: affinity(lan, 1) == before, "the entry is back")
    assert shown(lan, 1)["reason"] == reason != BY_ORDER and placed(lan, 1) == cpu and truth(lan, 1)
    assert "queue vm1/1: node and worker are not for edits; write the cpu to which it shall move; put back" in lan.daemon.log()
    # The pair is still free to be ordered.
    other = next(c for c in [*cpus_of(lan), cpu] if c != cpu or len(cpus_of(lan)) == 1)
    edit(lan, 1, other, 0, 0, 0)
    wait_for(lambda: shown(lan, 1)["reason"] == BY_ORDER and placed(lan, 1) == other and truth(lan, 1), "an order is carried out")


def test_deleted_entry_is_put_back(lan):
    cpu = placed(lan, 0)
    delete(lan, 0)
    wait_for(lambda: truth(lan, 0), "the entry is back")
    assert placed(lan, 0) == cpu and shown(lan, 0)["reason"] != BY_ORDER
    said = lan.daemon.log()
    assert "the entry of queue vm1/0 was deleted while the pair is in service; put back" in said and "cpu=-1" not in said
    frame = ethernet(lan.macs[0], lan.wire_mac, number=1)
    lan.wire.send(frame)
    expect(lan.guests[0], [frame])


def test_entries_of_no_pair_are_removed(lan):
    ours = entries(lan)
    assert ours == [(port_id(lan), 0), (port_id(lan), 1)]
    for pair, port in ((0, 200), (5, None), (127, 0xffffffff)):
        edit(lan, pair, 0, 0, 0, 0, port=port)
    wait_for(lambda: entries(lan) == ours, "foreign entries are gone")
    lines = re.findall(r"(?m)^.*queue_affinity: removed (\d+) .*$", lan.daemon.log())
    assert sum(map(int, lines)) == 3
    assert truth(lan, 0) and truth(lan, 1)


def test_orders_are_taken_in_their_order(lan):
    """An edit that the daemon has not seen yet when the next order comes is neither lost without a word, nor carried out after it."""
    cpu = placed(lan, 1)
    other = next(c for c in [*cpus_of(lan), cpu] if c != cpu or len(cpus_of(lan)) == 1)
    for last in (other, cpu):
        said = lan.daemon.log().count("cpu=1023")
        edit(lan, 1, 1023, 0, 0, 0)
        assert lan.daemon.json("queue", "set", "vm1/1", f"cpu={last}")["cpu"] == last
        assert lan.daemon.log().count("cpu=1023") == said + 1
        wait_for(lambda: placed(lan, 1) == last and truth(lan, 1), "the entry tells the truth")
    edit(lan, 1, other, 0, 0, 0)
    assert lan.daemon.json("queue", "set", "vm1/1", f"cpu={cpu}")["cpu"] == cpu
    for _ in range(3):  # looks at the map
        assert shown(lan, 1)["cpu"] == cpu
    wait_for(lambda: truth(lan, 1), "the entry tells the truth")


def test_manuals_example(lan):
    """The command that vhostlane(8) prints, as it stands there, moves that very pair."""
    with open(os.path.join(ROOT, "docs", "vhostlane.8.scd")) as file:
        command = re.search(r"(?m)^(bpftool map update pinned [^\\\n]*(?:\\\\\n[^\\\n]*)*)$", file.read()).group(1)
    command = command.replace("\\\\\n", "").replace("/eth1/", f"/{lan.link.uplink}/")
    port, pair, cpu = (struct.unpack("<I", bytes(map(int, part.split())))[0] for part in
                       re.search(r"key ((?:\d+ +){4})((?:\d+ +){4}) *value ((?:\d+ +){4})", command).groups())
    assert port == port_id(lan) and pair in (0, 1), command
    if cpu not in cpus_of(lan):
        pytest.skip(f"the example moves to CPU {cpu}, on which no worker runs here: {cpus_of(lan)}")
    sh(command)
    wait_for(lambda: shown(lan, pair)["reason"] == BY_ORDER and placed(lan, pair) == cpu and truth(lan, pair), "the example's order is carried out")


def test_address_set_and_learned_again(lan):
    """`mac=auto` gives a port back to learning; the guest's next frame brings its address back."""
    def addresses():
        return [(entry["mac"], entry["how"]) for entry in lan.daemon.json("port", "show", "vm1")["addresses"]]
    own = addresses()[0][0]
    lan.daemon.cli("port", "set", "vm1", "mac=52:54:00:99:99:99")
    assert addresses() == [("52:54:00:99:99:99", "configured")]
    lan.daemon.cli("port", "set", "vm1", "mac=auto")
    assert addresses() == [] and lan.daemon.json("port", "list")[0]["mac"] is None
    lan.guests[0].send(ethernet(BROADCAST, lan.macs[0], number=2))
    wait_for(lambda: addresses() == [(own, "learned")], "the address is learned")
    frame = ethernet(lan.macs[0], lan.wire_mac, number=3)
    lan.wire.send(frame)
    expect(lan.guests[0], [frame])
