# SPDX-License-Identifier: BSD-2-Clause
"""`make demo` where it cannot run: it says why before it makes anything. (That it runs, a person sees.)"""
import fcntl
import os
import subprocess

import pytest

from rig import ROOT, sh, unique

LOCK = "/run/vhostlane-demo.lock"
NETWORK = "203.0.113.0/24"


def refused():
    """What it says; nothing may have been made, nor the lock be left changed."""
    before = sh("ip netns; ip -o link | cut -d: -f2; ls /run /tmp")
    result = subprocess.run([os.path.join(ROOT, "scripts", "demo.sh")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                            check=False)
    assert result.returncode == 1 and result.stdout == "", result
    made = set(sh("ip netns; ip -o link | cut -d: -f2; ls /run /tmp").split()) - set(before.split())
    assert not [name for name in made if name.startswith(("vldemo", "vlup", "vlwire", "vhostlane-demo"))]
    return result.stderr


@pytest.fixture(autouse=True)
def alone():
    """Holds the lock as a demo does; skips beside a real one."""
    lock = open(LOCK, "a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        pytest.skip("a demo runs on this machine")
    yield lock
    lock.close()
    if os.path.exists(LOCK):
        os.unlink(LOCK)


def test_another_demo_runs(alone):
    alone.write(f"{os.getpid()}\n")
    alone.flush()
    assert f"another demo runs on this machine (process {os.getpid()})" in refused()
    assert os.path.exists(LOCK)


def test_addresses_in_use(rig, alone):
    fcntl.flock(alone, fcntl.LOCK_UN)
    link = unique("d")
    sh(f"ip link add {link} type veth peer name {unique('d')}")
    rig.undo(lambda: sh(f"ip link del {link}"))
    sh(f"ip addr add 203.0.113.1/24 dev {link} && ip link set {link} up")
    assert f"{NETWORK} is in use on this machine" in refused()
    assert not os.path.exists(LOCK)
