#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Measures the points of the seeds' tables: guests x placement policy x pinned or not x busy polling x work, wire and local.

Policy, pinning and busy-poll windows can be set at run time: configurations that are compared take turns at each work within one daemon, over the same
connections, forth and back, so that what else the machine does meets all alike. Everything measured goes to a JSON file; seeds_report.py makes
tables and plots of it.
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
WARM_UP = 0.3  # seconds of each work in which windows settle
SETTLING = 1.2  # the same after a change of policy: a pair that was moved rests for a second
HANG = 900  # seconds after which a generator is taken for stuck


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


def policies(guests, quick):
    """Those that are compared with one another; the first is the base, the last but for quick runs S3's control group."""
    configs = [Config(guests, "per-port"), Config(guests, "multi-worker"), Config(guests), Config(guests, "per-port", again=True), Config(guests, pin=False)]
    return configs + ([] if quick else [Config(guests, "per-port", pin=False)])


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


def set_up(daemon, now, config):
    """Makes a running daemon one of this configuration, as an operator would; `now` is what it is, None at first."""
    calls = []
    if not now or (now.policy, now.pin) != (config.policy, config.pin):
        calls.append({"method": "worker.set", "params": {"policy": config.policy, "pin": config.pin}})
    if not now or now.busy_poll != config.busy_poll:
        calls += [{"method": "queue.set", "params": {"port": f"vm{i}", "pair": 0, "busy-poll-us": config.busy_poll}}
                  for i in range(max(config.guests, 2))]
    if not calls:
        return
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(daemon.control)
        control.sendall(json.dumps([{"jsonrpc": "2.0", "id": i, **call} for i, call in enumerate(calls)]).encode() + b"\n")
        answers = json.loads(control.makefile().readline())
    if len(answers) != len(calls) or any("result" not in answer for answer in answers):
        raise RigError(f"{config}: {answers}")


class Bench:
    def __init__(self, rig, options):
        self.rig, self.options = rig, options
        self.wire = rig.wire(queues=2)
        self.points = []
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

    def generator(self, sockets, pid, guests, works, extra=(), before=lambda number: None, warm_up=WARM_UP):
        """Runs works; @before is told the number of each that comes next."""
        command = [bench.tool("bench_generator"), "--sockets", sockets, "--guests", str(guests), "--daemon", str(pid),
                   "--seconds", str(self.options.seconds), "--warm-up", str(self.options.warm_up or warm_up),
                   "--wire", f"/run/netns/{self.wire.namespace.name},{self.wire.peer},2"] + list(extra) + works
        points = []
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
        return points

    def run_config(self, config, works, queues=1, extra=()):
        """Works against one daemon; returns their points."""
        sockets, arguments = self.ports(config, queues)
        daemon = self.rig.daemon("--uplink", self.wire.uplink, *config.arguments(), *arguments, start=False)
        try:
            daemon.start()
        except RigError:
            daemon.kill()
            raise
        try:
            return self.generator(sockets, daemon.process.pid, config.guests, works, extra)
        finally:
            daemon.stop()

    def works(self, config):
        """[(number of guests that take part, their works)]"""
        wire, local = wire_works(self.options.quick), local_works(self.options.quick)
        if config.guests == 1:  # among guests it takes two for one session
            return [(1, wire), (2, local)]
        return [(config.guests, wire + local)]

    def run_turns(self, configs, daemon_arguments=(), works=None, warm_up=WARM_UP):
        """Configurations take turns at each work. Returns [(its turn, its number in configs, point)]."""
        sockets, arguments = self.ports(configs[0])
        daemon = self.rig.daemon("--uplink", self.wire.uplink, *configs[0].arguments(), *daemon_arguments, *arguments)
        found, marks, now = [], [], None

        def before(config):
            nonlocal now
            set_up(daemon, now, config)
            now = config
            marks.append((time.monotonic(), migrations(daemon.process.pid)))
        try:
            for guests, its in [(configs[0].guests, works)] if works else self.works(configs[0]):
                order = [(turn, number, work) for work in its for turn in range(TURNS)
                         for number in (range(len(configs)) if turn % 2 == 0 else reversed(range(len(configs))))]
                marks.clear()
                points = self.generator(sockets, daemon.process.pid, guests, [work for _, _, work in order],
                                        before=lambda i, order=order: before(configs[order[i][1]]), warm_up=warm_up)
                marks.append((time.monotonic(), migrations(daemon.process.pid)))
                for (turn, number, _), point, (begin, moved), (end, moved_by_end) in zip(order, points, marks, marks[1:]):
                    point["migrations"] = None if moved is None or moved_by_end is None else (moved_by_end - moved) / (end - begin)
                    found.append((turn, number, point))
        finally:
            daemon.stop()
        return found

    def measure(self, config, repetition, table, **how):
        """Keeps the points. A failure costs a second try, then the points, never the whole run: it is told at the end."""
        for attempt in (1, 2):
            try:
                points = self.run_config(config, **how)
                break
            except (RigError, subprocess.TimeoutExpired) as error:
                print(f"  {config}: {str(error).splitlines()[0]}" + ("; once more" if attempt == 1 else "; given up"), flush=True)
                if attempt == 2:
                    self.points.append({"table": table, "config": config.key(), "repetition": repetition, "failed": str(error)[:2000]})
                    return
        for point in points:
            self.points.append({"table": table, "config": config.key(), "repetition": repetition, "point": point})


def compare(run, repetition, configs, table, **how):
    """Configurations against one another."""
    try:
        found = run.run_turns(configs, **how)
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
    compare(run, repetition, configs, "overcommitted", daemon_arguments=["--cpus", "0", "--threads", "2"], works=works)


def symmetry(run, repetition):
    """Guests with four queue pairs, long flows: do both directions of a flow meet on one pair?"""
    works = ["rr,to-guest,118,4,8", "rr,from-guest,118,4,2", "rr,guest,118,4,2", f"stream,from-guest,1514,{WINDOW},1", f"stream,guest,1514,{WINDOW},1"]
    run.measure(Config(2), repetition, table="symmetry", queues=4, works=works, extra=["--pairs", "4"])


def idle(run, repetition, window):
    run.measure(Config(24, busy_poll=window), repetition, table="idle", works=["rr,guest,60,1", "idle", "idle", "idle", "idle"])


BY_GUESTS = ("main", "windows")
TABLES = (*BY_GUESTS, "overcommitted", "symmetry", "idle")


def kept_points(path, tables, guests):
    """(what is not measured now of an earlier run, its numbers of guests, what the report is to say of it)"""
    if not path:
        return [], [], None
    with open(path, encoding="utf-8") as file:
        earlier = json.load(file)
    points = [point for point in earlier["points"]
              if point["table"] not in tables or (point["table"] in BY_GUESTS and point["config"]["guests"] not in guests)]
    text = (f"Measured now: {', '.join(tables)} with {', '.join(map(str, guests))} guests. "
            f"All else is kept from an earlier run: {earlier['surroundings']}")
    return points, earlier["guests"], text


def main():
    parser = bench.arguments("Measures the seeds' tables.")
    parser.add_argument("--guests", help="numbers of guests (default 1,4,12,24; with --quick 1,24)")
    parser.add_argument("--repetitions", type=int, default=1, help="of two turns each (default 1)")
    parser.add_argument("--seconds", type=float, help="of each work (default 0.3; with --quick 0.25)")
    parser.add_argument("--warm-up", type=float,
                        help=f"of each work, seconds, in which placement and windows settle (default {WARM_UP}, {SETTLING} where policies are compared)")
    parser.add_argument("--tables", default=",".join(TABLES), help="which (default all: %(default)s)")
    parser.add_argument("--keep", metavar="JSON", help="take other tables, and those of other numbers of guests, from what an earlier run wrote")
    options = parser.parse_args()
    tables = options.tables.split(",")
    unknown = [table for table in tables if table not in TABLES]
    if unknown:
        parser.error(f"--tables {unknown[0]}: no such table; give some of {','.join(TABLES)}")
    options.seconds = options.seconds or (0.25 if options.quick else 0.3)
    guests = [int(n) for n in (options.guests or ("1,24" if options.quick else "1,4,12,24")).split(",")]
    output = options.output or os.path.join(bench.RESULTS, "seeds.json")
    bench.exit_on_signals()

    adaptive = adaptive_is_offered()
    windows = ["0", "50", "always"] + (["adaptive"] if adaptive else [])
    surroundings, start = bench.Surroundings(), time.monotonic()
    with Rig() as rig:
        run = Bench(rig, options)
        kept, kept_guests, kept_text = kept_points(options.keep, tables, guests)
        for repetition in range(options.repetitions):
            for n in guests:
                for table, configs, warm_up in (("main", policies(n, options.quick), SETTLING),
                                                ("windows", [Config(n, busy_poll=w) for w in windows] + [Config(n, busy_poll="0", again=True)], WARM_UP)):
                    if table in tables:
                        print(f"[{time.monotonic() - start:5.0f} s] repetition {repetition + 1} of {options.repetitions}: {n} guests, {table}", flush=True)
                        compare(run, repetition, configs, table, warm_up=warm_up)
            if "overcommitted" in tables:
                overcommitted(run, repetition, windows)
            if "symmetry" in tables:
                symmetry(run, repetition)
            if "idle" in tables:
                idle(run, repetition, "adaptive" if adaptive else "50")
            # What there is so far stays, whatever happens to the rest.
            bench.write(output, json.dumps({"guests": sorted({*guests, *kept_guests}), "adaptive": adaptive, "turns": TURNS * (repetition + 1), "seconds": options.seconds,
                                            "quick": options.quick, "surroundings": surroundings.describe(), "kept": kept_text, "points": run.points + kept}))
    print(output)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RigError as error:
        sys.exit(f"seeds.py: {error}")
