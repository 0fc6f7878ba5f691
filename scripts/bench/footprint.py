#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""What an idle daemon costs with 24 ports, and how soon it and a further port are ready."""
import json
import os
import re
import socket
import statistics
import time

import bench
from bench import RigError
from rig import Rig

PORTS = 24
MIB = 1 << 20


def port_arguments(rig, count=PORTS):
    arguments = []
    for i in range(count):
        arguments += ["--port", f"vm{i}={rig.path(f'vm{i}.sock')},mac=02:56:4c:00:00:{i:02x}"]
    return arguments


def resident(pid):
    """MiB by kind of mapping: frames of UMEM, guests' own memory (which the daemon shares), and all else."""
    sums = {"umem": 0, "guests": 0, "rest": 0}
    kind = "rest"
    with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as file:
        for line in file:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                kind = "umem" if "memfd:vhostlane-umem" in line else "guests" if "memfd:bench-guest" in line else "rest"
            elif line.startswith(("Rss:", "Shared_Hugetlb:", "Private_Hugetlb:")):
                sums[kind] += int(line.split()[1]) * 1024
    return {name: value / MIB for name, value in sums.items()}


def idle(rig, uplink, seconds):
    """CPU per cent and resident memory with PORTS idle guests connected. They have exchanged frames before."""
    wire = rig.wire(queues=2) if uplink else None
    daemon = rig.daemon(*(["--uplink", wire.uplink] if wire else []), *port_arguments(rig))
    pid = daemon.process.pid
    generator = [bench.tool("bench_generator"), "--sockets", rig.path("vm%u.sock"), "--guests", str(PORTS), "--daemon", str(pid),
                 "--warm-up", "3", "--seconds", str(seconds)]
    process = rig.background(generator + ["rr,guest,64,1", "idle"])
    busy = json.loads(process.stdout.readline())
    time.sleep(3.5)  # into the silence; what the traffic set in motion (pairs moved about) has come to rest
    memory = resident(pid)
    quiet = json.loads(process.stdout.readline())
    if busy["score"] <= 0:
        raise RigError("the guests exchanged nothing before they fell silent")
    process.wait()
    daemon.stop()
    return quiet["daemon_cpu"], memory


def start_times(rig, uplink, count):
    """Milliseconds from exec to the line `ready`, of several starts one after the other."""
    wire = rig.wire(queues=2) if uplink else None
    times = []
    for _ in range(count):
        daemon = rig.daemon(*(["--uplink", wire.uplink] if wire else []), *port_arguments(rig), start=False)
        start = time.monotonic()
        daemon.start(expect_ready=False)
        if not daemon.ready.wait(90):
            raise RigError(f"not ready\n{daemon.log()}")
        times.append(1e3 * (time.monotonic() - start))
        daemon.stop()
    return times


class Control:
    """JSON-RPC over the control socket, so that the time of a process start is not measured."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.file = self.socket.makefile("rw")
        self.number = 0

    def call(self, method, **params):
        self.number += 1
        self.file.write(json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}) + "\n")
        self.file.flush()
        reply = json.loads(self.file.readline())
        if "error" in reply:
            raise RigError(f"{method}: {reply['error']}")
        return reply["result"]

    def close(self):
        self.file.close()
        self.socket.close()


def port_add_times(rig, uplink, count):
    """Milliseconds of `port add` by the control socket and by the command line, with PORTS ports there already."""
    wire = rig.wire(queues=2) if uplink else None
    daemon = rig.daemon(*(["--uplink", wire.uplink] if wire else []), *port_arguments(rig))
    control, by_socket, by_command = Control(daemon.control), [], []
    for i in range(count):
        start = time.monotonic()
        control.call("port.add", name=f"new{i}", socket=rig.path(f"new{i}.sock"))
        by_socket.append(1e3 * (time.monotonic() - start))
        if not os.path.exists(rig.path(f"new{i}.sock")):
            raise RigError("port add answered before its socket was there")
        start = time.monotonic()
        daemon.cli("port", "add", f"more{i}={rig.path(f'more{i}.sock')}")
        by_command.append(1e3 * (time.monotonic() - start))
        for name in (f"new{i}", f"more{i}"):
            control.call("port.del", name=name)
    control.close()
    daemon.stop()
    return by_socket, by_command


def main():
    parser = bench.arguments("Idle CPU, resident memory, start to ready, port add.")
    options = parser.parse_args()
    seconds, repetitions = (2, 4) if options.quick else (10, 15)
    rows, surroundings = [], bench.Surroundings()
    for uplink in (False, True):
        where = "with an uplink" if uplink else "without uplink"
        with Rig() as rig:
            cpu, memory = idle(rig, uplink, seconds)
        rows.append(bench.requirement(f"CPU of an idle daemon, {PORTS} guests, {where}, % of one CPU", cpu, maximum=1.0, form="{:.3f}"))
        rows.append(bench.requirement(f"resident memory apart from UMEM, {PORTS} guests, {where}, MiB", memory["rest"], maximum=32, form="{:.1f}"))
        rows.append([f"— besides, UMEM; pages of the guests' own memory that it shares ({where}), MiB", f"{memory['umem']:.1f}; {memory['guests']:.1f}",
                     "", ""])
        with Rig() as rig:
            times = start_times(rig, uplink, repetitions)
        rows.append(bench.requirement(f"start to `ready`, {PORTS} ports, {where}, median ms", statistics.median(times), maximum=1000, form="{:.0f}"))
        rows.append([f"— slowest of {repetitions}, ms", f"{max(times):.0f}", "", ""])
        with Rig() as rig:
            by_socket, by_command = port_add_times(rig, uplink, repetitions)
        rows.append(bench.requirement(f"`port add` by the control socket, {where}, median ms", statistics.median(by_socket), maximum=50, form="{:.1f}"))
        rows.append(bench.requirement(f"`vhostlane port add`, {where}, median ms", statistics.median(by_command), maximum=50, form="{:.1f}"))
        rows.append([f"— slowest of {repetitions}, ms", f"{max(by_socket):.1f}; {max(by_command):.1f}", "", ""])
    text = "## What an idle daemon costs, and how soon it is ready\n\n" + bench.table(bench.REQUIREMENT_HEADS, rows)
    bench.publish(options, text, surroundings)


if __name__ == "__main__":
    bench.run(main)
