# SPDX-License-Identifier: BSD-2-Clause
"""The probe that tells which CPU kicks: opened when there is a guest to look at, behind everybody's back. Whether this kernel allows it or not."""
import os
import time

from rig import wait_for
from virtio_driver import mac
from test_session import exchange


def threads(s):
    names = []
    for task in os.listdir(f"/proc/{s.pid}/task"):
        try:
            with open(f"/proc/{s.pid}/task/{task}/comm") as file:
                names.append(file.read().strip())
        except FileNotFoundError:  # it ended just now
            pass
    return names


def test_told_once_and_only_with_a_guest(switch):
    s = switch(ports=3)
    f = s.frontend(2)
    f.get_features()
    time.sleep(2.5)  # connected, not served
    assert s.probes_told() == 0
    f.close()
    a, b = s.pair_of_guests()
    wait_for(s.probes_told, "it was tried")
    exchange(a, b)
    with s.guest(2) as c:
        s.learn(c, mac(3), a, b)
        time.sleep(2.5)
    exchange(a, b)
    assert s.probes_told() == 1 and "vhostlane-kick" not in threads(s)


def test_stopped_while_it_is_opened(switch):
    s = switch()
    s.guest(0)
    wait_for(lambda: "vhostlane-kick" in threads(s) or s.probes_told(), "it is opened", pause=0.001)
    s.daemon.stop()  # with 0, and no finding of a sanitizer
