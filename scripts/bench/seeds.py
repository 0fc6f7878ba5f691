#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures the points of the seeds' tables: guests x placement policy x pinned or not x busy polling x work, wire and local.

A configuration is one daemon with its guests; all works run one after the other over the same connections. Configurations take turns within a
repetition, and the order is reversed in every second one, so that what else the machine does meets all alike. Busy-poll windows, which can be set at
run time, take turns within one daemon, work by work. Everything measured goes to a JSON file; seeds_report.py makes tables and plots of it.
"""
import json
import os
import socket
import subprocess
import sys
import threading
import time

import bench
from bench import RigError
from rig import BINARY, Rig

HEADERS = 54  # Ethernet, IPv4 and TCP before a payload
RR_PAYLOADS = (1, 64, 256, 1024)
WINDOW = 64  # frames a stream keeps unacknowledged
TURNS = 2  # of each window at each work, a repetition
HANG = 600  # seconds after which a generator is taken for stuck


def rr(path, payload, in_flight):
    return f"rr,{path},{max(60, HEADERS + payload)},{in_flight}"


def stream(path, size):
    return f"stream,{path},{1514 if size == 1500 else size},{WINDOW}"


def wire_works(quick):
    points = [(1, 1), (256, 16)] if quick else [(p, k) for k in (1, 16) for p in RR_PAYLOADS]
    streams = [("to-guest", 1500), ("from-guest", 64)] if quick else [(d, s) for d in ("to-guest", "from-guest") for s in (64, 1500)]
    return [rr("to-guest", p, k) for p, k in points] + [stream(d, s) for d, s in streams]


def local_works(quick):
    points = [(1, 1), (256, 16)] if quick else [(p, k) for k in (1, 16) for p in RR_PAYLOADS]
    return [rr("guest", p, k) for p, k in points] + [stream("guest", s) for s in (64, 1500)]


class Config:
    """One daemon: policy, pinned or not, busy-poll window, number of guests. `again` tells the A/A control from the base."""

    def __init__(self, guests, policy="per-cpu", pin=True, busy_poll="50", again=False):
        self.guests, self.policy, self.pin, self.busy_poll, self.again = guests, policy, pin, busy_poll, again

    def key(self):
        return {"guests": self.guests, "policy": self.policy, "pin": self.pin, "busy_poll": self.busy_poll, "again": self.again}

    def arguments(self):
        return ["--policy", self.policy] + ([] if self.pin else ["--no-pin"])

    def __str__(self):
        return f"{self.guests} guests, {self.policy}, {'pinned' if self.pin else 'not pinned'}, busy-poll {self.busy_poll}" + (" (A/A)" if self.again else "")


def configurations(guests, quick):
    """Those that are compared with one another stand side by side."""
    configs = []
    for n in guests:
        configs += [Config(n, "per-port"), Config(n, "multi-worker"), Config(n), Config(n, "per-port", again=True), Config(n, pin=False)]
        if not quick and n == max(guests):
            configs += [Config(n, "per-port", pin=False), Config(n, "multi-worker", pin=False)]
        if not quick and n in (min(guests), max(guests)):
            configs += [Config(n, "per-port", busy_poll="0")]
    return configs


def adaptive_is_offered():
    """Whether this build knows busy-poll-us=adaptive. `queues=0` behind it keeps it from running in any case."""
    result = subprocess.run([BINARY, "run", "--port", "x=/x,busy-poll-us=adaptive,queues=0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    return "busy-poll-us" not in result.stdout


def migrations(pid):
    """How often threads of a process were moved to another CPU by the scheduler; None where the kernel does not tell."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/sched", encoding="ascii", errors="replace") as file:
                total += sum(int(line.split(":")[1]) for line in file if line.startswith("se.nr_migrations"))
        except OSError:
            return None
    return total


def set_windows(daemon, guests, window):
    """Of all ports at once, as an operator would by `queue set`."""
    calls = [{"jsonrpc": "2.0", "id": i, "method": "queue.set", "params": {"port": f"vm{i}", "pair": 0, "busy-poll-us": window}}
             for i in range(max(guests, 2))]
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(daemon.control)
        control.sendall(json.dumps(calls).encode() + b"\n")
        answers = json.loads(control.makefile().readline())
    if len(answers) != len(calls) or any("result" not in answer for answer in answers):
        raise RigError(f"busy-poll-us={window}: {answers}")


class Bench:
    def __init__(self, rig, options):
        self.rig, self.options = rig, options
        self.wire = rig.wire(queues=2)
        self.points = []
        self.migrations = []  # a second, of the daemon's threads, of each run of the generator
        self.count = 0

    def ports(self, config, queues=1):
        """A directory of their own for each daemon's sockets, so that no late guest meets the next one."""
        self.count += 1
        directory = self.rig.path(str(self.count))
        os.mkdir(directory)
        arguments = []
        for i in range(max(config.guests, 2)):
            arguments += ["--port", f"vm{i}={directory}/{i}.sock,mac=02:56:4c:00:00:{i:02x},queues={queues},busy-poll-us={config.busy_poll}"]
        return f"{directory}/%u.sock", arguments

    def generator(self, sockets, pid, guests, works, extra=(), before=lambda number: None):
        """Runs works; @before is told the number of each that comes next."""
        command = [bench.tool("bench_generator"), "--sockets", sockets, "--guests", str(guests), "--daemon", str(pid),
                   "--seconds", str(self.options.seconds), "--warm-up", str(self.options.warm_up),
                   "--wire", f"/run/netns/{self.wire.namespace.name},{self.wire.peer},2"] + list(extra) + works
        moved, start, points = migrations(pid), time.monotonic(), []
        before(0)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            stuck = threading.Timer(HANG, process.kill)
            stuck.start()
            for line in process.stdout:
                points.append(json.loads(line))
                if len(points) < len(works):
                    before(len(points))
            errors = process.stderr.read()
            stuck.cancel()
        if process.returncode:
            raise RigError(f"generator: exit {process.returncode}: {errors.strip()}")
        seconds = time.monotonic() - start
        if moved is not None:
            self.migrations.append((migrations(pid) - moved) / seconds)
        return points

    def run_config(self, config, daemon_arguments=(), queues=1, works=None, extra=()):
        """All works against one daemon; returns their points."""
        sockets, arguments = self.ports(config, queues)
        daemon = self.rig.daemon("--uplink", self.wire.uplink, *config.arguments(), *daemon_arguments, *arguments, start=False)
        try:
            daemon.start()
        except RigError:
            daemon.kill()
            raise
        try:
            if works:
                return self.generator(sockets, daemon.process.pid, config.guests, works, extra)
            return [point for guests, its in self.works(config) for point in self.generator(sockets, daemon.process.pid, guests, its)]
        finally:
            daemon.stop()

    def works(self, config):
        """[(number of guests that take part, their works)]"""
        wire, local = wire_works(self.options.quick), local_works(self.options.quick)
        if config.guests == 1:  # among guests it takes two for one session
            return [(1, wire), (2, local)]
        return [(config.guests, wire + local)]

    def run_windows(self, config, windows, daemon_arguments=(), works=None):
        """Windows take turns at each work: what differs from daemon to daemon meets all alike. Returns [(its turn, its number in windows, point)]."""
        sockets, arguments = self.ports(config)
        daemon = self.rig.daemon("--uplink", self.wire.uplink, *config.arguments(), *daemon_arguments, *arguments)
        found = []
        try:
            for guests, its in [(config.guests, works)] if works else self.works(config):
                order = [(turn, number, work) for work in its for turn in range(TURNS)
                         for number in (range(len(windows)) if turn % 2 == 0 else reversed(range(len(windows))))]
                points = self.generator(sockets, daemon.process.pid, guests, [work for _, _, work in order],
                                        before=lambda i, order=order: set_windows(daemon, config.guests, windows[order[i][1]]))
                found += [(turn, number, point) for (turn, number, _), point in zip(order, points)]
        finally:
            daemon.stop()
        return found

    def measure(self, config, repetition, table="main", **how):
        """Keeps the points. A failure costs a second try, then the points, never the whole run: it is told at the end."""
        for attempt in (1, 2):
            self.migrations = []
            try:
                points = self.run_config(config, **how)
                break
            except (RigError, subprocess.TimeoutExpired) as error:
                print(f"  {config}: {str(error).splitlines()[0]}" + ("; once more" if attempt == 1 else "; given up"), flush=True)
                if attempt == 2:
                    self.points.append({"table": table, "config": config.key(), "repetition": repetition, "failed": str(error)[:2000]})
                    return
        for point in points:
            self.points.append({"table": table, "config": config.key(), "repetition": repetition, "point": point,
                                "migrations": sum(self.migrations) / len(self.migrations) if self.migrations else None})


def compare_windows(run, repetition, configs, table="windows", **how):
    """Windows of otherwise one configuration against one another."""
    try:
        found = run.run_windows(configs[0], [c.busy_poll for c in configs], **how)
    except (RigError, subprocess.TimeoutExpired) as error:
        print(f"  {table}: {str(error).splitlines()[0]}; given up", flush=True)
        run.points.append({"table": table, "config": configs[0].key(), "repetition": repetition, "failed": str(error)[:2000]})
        return
    for turn, number, point in found:
        run.points.append({"table": table, "config": configs[number].key(), "repetition": TURNS * repetition + turn, "point": point})


def overcommitted(run, repetition, windows):
    """Two workers forced onto one CPU, which they also share with guests: does polling take from others what they need?"""
    works = [rr("guest", p, k) for p, k in ((1, 1), (256, 16))] + [rr("to-guest", 1, 1), stream("guest", 64), stream("guest", 1500)]
    configs = [Config(4, "per-port", busy_poll=window) for window in windows] + [Config(4, "per-port", busy_poll="0", again=True)]
    compare_windows(run, repetition, configs, "overcommitted", daemon_arguments=["--cpus", "0", "--threads", "2"], works=works)


def symmetry(run, repetition):
    """Guests with four queue pairs, long flows: do both directions of a flow meet on one pair?"""
    works = ["rr,to-guest,118,4,8", "rr,from-guest,118,4,2", "rr,guest,118,4,2", f"stream,from-guest,1514,{WINDOW},1", f"stream,guest,1514,{WINDOW},1"]
    run.measure(Config(2), repetition, table="symmetry", queues=4, works=works, extra=["--pairs", "4"])


def idle(run, repetition, window):
    run.measure(Config(24, busy_poll=window), repetition, table="idle", works=["rr,guest,60,1", "idle", "idle", "idle", "idle"])


def main():
    parser = bench.arguments("Measures the seeds' tables.")
    parser.add_argument("--guests", help="numbers of guests (default 1,4,12,24; with --quick 1,24)")
    parser.add_argument("--repetitions", type=int, default=3, help="(default 3)")
    parser.add_argument("--seconds", type=float, help="of each work (default 0.3; with --quick 0.25)")
    parser.add_argument("--warm-up", type=float, default=0.2, help="of each work, seconds, in which placement and windows settle (default 0.2)")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.25 if options.quick else 0.3)
    guests = [int(n) for n in (options.guests or ("1,24" if options.quick else "1,4,12,24")).split(",")]
    output = options.output or os.path.join(bench.RESULTS, "seeds.json")
    bench.exit_on_signals()

    adaptive = adaptive_is_offered()
    windows = ["0", "50", "always"] + (["adaptive"] if adaptive else [])
    configs = configurations(guests, options.quick)
    surroundings, start = bench.Surroundings(), time.monotonic()
    with Rig() as rig:
        run = Bench(rig, options)
        for repetition in range(options.repetitions):
            for number, config in enumerate(configs if repetition % 2 == 0 else reversed(configs)):
                print(f"[{time.monotonic() - start:5.0f} s] repetition {repetition + 1} of {options.repetitions}, "
                      f"{number + 1} of {len(configs)}: {config}", flush=True)
                run.measure(config, repetition)
            for n in guests:
                print(f"[{time.monotonic() - start:5.0f} s] repetition {repetition + 1} of {options.repetitions}: {n} guests, windows", flush=True)
                compare_windows(run, repetition, [Config(n, busy_poll=window) for window in windows] + [Config(n, busy_poll="0", again=True)])
            overcommitted(run, repetition, windows)
            symmetry(run, repetition)
            idle(run, repetition, "adaptive" if adaptive else "50")
            # What there is so far stays, whatever happens to the rest.
            bench.write(output, json.dumps({"guests": guests, "adaptive": adaptive, "repetitions": repetition + 1, "seconds": options.seconds,
                                            "quick": options.quick, "surroundings": surroundings.describe(), "points": run.points}))
    print(output)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RigError as error:
        sys.exit(f"seeds.py: {error}")
