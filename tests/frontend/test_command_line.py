# SPDX-License-Identifier: BSD-2-Clause
"""The command line under the sanitizers too: what it prints by --json is what the daemon answers, as a table it names the same things."""
import json

import pytest

from rig import RigError
from virtio_driver import mac

SHOWN = {("status",): {}, ("port", "list"): {}, ("port", "show", "p0"): {"name": "p0"}, ("queue", "list"): {}, ("worker", "list"): {},
         ("uplink", "list"): {}, ("counters",): {"drops": False}, ("counters", "--drops"): {"drops": True}}


def shape(value):
    """Names and kinds: numbers go on counting between two questions."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_shows_what_the_daemon_answers(switch, words):
    s = switch()
    s.pair_of_guests()
    method = ".".join(word for word in words[:2] if not word.startswith("-"))
    answer = s.daemon.call(method, **SHOWN[words])
    assert shape(json.loads(s.daemon.cli(*words, "--json"))) == shape(answer)
    text = s.daemon.cli(*words)
    # Values that stand still, in the table as in the answer.
    still = {"status": ("policy",), "port.list": ("p0", "p1", "serving"), "port.show": ("p0", "serving", ":".join(f"{byte:02x}" for byte in mac(1))),
             "queue.list": ("p0", "p1"), "worker.list": ("cpu",), "uplink.list": (), "counters": ("p0", "p1") if not SHOWN[words].get("drops") else ()}
    assert all(word in text for word in still[method]), text


def test_changes_and_refusals(switch):
    s = switch()
    assert s.daemon.json("port", "set", "p0", "busy-poll-us=7")["name"] == "p0"
    s.daemon.cli("port", "add", f"p9={s.rig.path('p9.sock')}", "queues=1")
    assert [port["name"] for port in s.daemon.json("port", "list")] == ["p0", "p1", "p9"]
    s.daemon.cli("port", "del", "p9")
    assert [port["name"] for port in s.daemon.json("port", "list")] == ["p0", "p1"]
    assert s.daemon.json("worker", "set", "policy=per-port")["policy"] == "per-port"
    for words in (("port", "show", "nobody"), ("port", "del", "nobody"), ("queue", "set", "p0/9", "cpu=0"), ("worker", "set", "policy=none")):
        with pytest.raises(RigError) as told:
            s.daemon.cli(*words)
        assert "vhostlane: " in str(told.value)
