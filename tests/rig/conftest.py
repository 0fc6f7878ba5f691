# SPDX-License-Identifier: BSD-2-Clause
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in ("lib", "guest"):
    sys.path.insert(0, os.path.join(HERE, "..", directory))

from rig_pytest import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import
from numa import HostDaemon, NumaMachine, Process  # noqa: E402 pylint: disable=wrong-import-position


@pytest.fixture(scope="session")
def machine():
    """One boot for all tests."""
    with Rig() as rig:  # noqa: F405
        machine = NumaMachine(rig).start().wait_up()
        machine.run("mount -t bpf bpf /sys/fs/bpf; mount -t cgroup2 cgroup2 /sys/fs/cgroup")
        yield machine


def mac_of(port):
    return f"52:54:00:6e:01:{port:02x}"


class Host:
    """The machine as one test uses it: what is started here ends with the test, and CPUs come back."""

    def __init__(self, machine):
        self.machine = machine
        self.processes = []
        self.daemon = None

    def process(self, command):
        self.processes.append(Process(self.machine, command))
        return self.processes[-1]

    def start_daemon(self, arguments="--uplink up0", ports=0, queues=2, prefix=""):
        """`ports` of them, vm0 and so on."""
        for number in range(ports):
            arguments += f" --port vm{number}=/run/vhostlane/vm{number}.sock,queues={queues},mac={mac_of(number)}"
        self.daemon = HostDaemon(self.machine, arguments, prefix)
        return self.daemon

    def guest(self, number, node, pairs=2, prefix="", options=""):
        """A guest that sends back what it gets."""
        return self.process(f"{prefix} numbered echo --vhost /run/vhostlane/vm{number}.sock --mac {mac_of(number)} --node {node}"
                            f" --pairs {pairs} {options}").wait_line("serving")

    def sender(self, carrier, ports, options=""):
        """Sends to these guests until its end."""
        to = " ".join(f"--to {mac_of(port)}" for port in ports)
        return self.process(f"numbered send {carrier} {to} {options}")

    def close(self):
        for cpu in range(1, self.machine.cpus):
            self.machine.set_cpu(cpu, True)
        for process in reversed(self.processes):
            process.kill()
        if self.daemon:
            daemon, self.daemon = self.daemon, None
            try:
                daemon.end()
            finally:
                daemon.kill()
            left = self.machine.run("/bin/ip -o link | grep -c vhl; ls /sys/fs/bpf/vhostlane 2>/dev/null || true").split()
            assert left == ["0"], f"left behind: {left}"


@pytest.fixture
def host(machine, request):
    host = Host(machine)
    yield host
    log = host.daemon.log() if host.daemon else ""
    if log:
        request.node.add_report_section("call", "vhostlane in the machine", log[-8000:])
    host.close()


@pytest.fixture
def veth(machine):
    machine.veth()
    yield
    machine.run("/bin/ip link del up0")
