# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures of the suites that use the machine with NUMA nodes; a conftest.py takes them with `from rig_host import *`."""
import subprocess

import pytest

from numa import NIC_QUEUES, HostDaemon, Process


ZERO_COPY_SINCE = (6, 18)  # virtio-net's AF_XDP zero-copy, as the distribution builds it


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

    def state(self):
        """For the report of a test that failed."""
        if not self.daemon:
            return "no daemon"
        pairs = self.machine.call(f"vhostlane queue list --control {self.daemon.control} 2>&1")[1] if self.daemon.alive() else "not running\n"
        return pairs + self.daemon.log()[-8000:]

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


def zero_copy(machine):
    return tuple(int(part) for part in machine.run("uname -r").split("-")[0].split(".")[:2]) >= ZERO_COPY_SINCE


class Outside:
    """A sender on this machine, at the far end of the NIC."""

    def __init__(self, machine, ports, options="", verb="send"):
        to = " ".join(f"--to {mac_of(port)}" for port in ports)
        self.process = subprocess.Popen(machine.tap.namespace.wrap(
            f"exec {machine.numbered} {verb} --packet {machine.tap.ifname} {to} {options}"), stdout=subprocess.PIPE, text=True)
        machine.rig.undo(self.kill)

    def wait(self):
        return self.process.communicate(timeout=300)[0]

    def end(self):
        self.process.terminate()
        return self.wait()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def lend(machine):
    host = Host(machine)
    yield host
    host.close()


@pytest.fixture
def host(machine):
    yield from lend(machine)


@pytest.fixture(scope="module")
def module_host(machine):
    yield from lend(machine)


@pytest.fixture(scope="module")
def veth(machine):
    machine.veth()
    yield
    machine.run("/bin/ip link del up0")


@pytest.fixture
def nic(machine):
    """The machine's NIC, up, with all its queues."""
    ifname = machine.run("cd /sys/class/net; for d in *; do [ -e $d/device ] && echo $d; done; true").strip()
    machine.run(f"echo 1 > /proc/sys/net/ipv6/conf/{ifname}/disable_ipv6; /bin/ip link set {ifname} up;"
                f" ethtool -L {ifname} combined {NIC_QUEUES}")
    yield ifname
    machine.run(f"/bin/ip link set {ifname} down")
