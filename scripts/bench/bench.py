# SPDX-License-Identifier: BSD-2-Clause
"""What all benches share: the rig of the tests, medians, tables, verdicts, and a description of the machine."""
import argparse
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))

from rig import BUILD, RigError  # noqa: E402 pylint: disable=wrong-import-position

RESULTS = os.path.join(BUILD, "bench")


def tool(name):
    path = os.path.join(BUILD, "tests", name)
    if not os.path.exists(path):
        raise RigError(f"{path} is missing; build it: make benches")
    return path


def exit_on_signals():
    """So that SIGTERM and SIGINT unwind `with Rig()` like any other end."""
    def leave(number, _frame):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK", "0") not in ("", "0"),
                        help="fewer and shorter turns (also by QUICK=1)")
    parser.add_argument("--output", metavar="FILE", help="write the Markdown there too")
    return parser


def publish(options, text, surroundings):
    """Prints the Markdown, and writes it where --output says."""
    text += "\n" + surroundings.describe()
    print(text)
    if options.output:
        write(options.output, text)


def run(main):
    """A bench's own end: what stands in its way is one line."""
    exit_on_signals()
    try:
        main()
    except RigError as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")


def geometric_mean(values):
    values = [v for v in values if v > 0]
    return statistics.geometric_mean(values) if values else 0.0


def table(heads, rows):
    """A Markdown table; numbers are right-aligned."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join("---" if i == 0 else "---:" for i in range(len(heads))) + "|"]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def verdict(reached):
    return "pass" if reached else "**FAIL**"


def requirement(what, value, minimum=None, maximum=None, form="{:.2f}"):
    """A row of a table of requirements."""
    wanted = f">= {form.format(minimum)}" if minimum is not None else f"<= {form.format(maximum)}"
    reached = (minimum is None or value >= minimum) and (maximum is None or value <= maximum)
    return [what, form.format(value), wanted, verdict(reached)]


REQUIREMENT_HEADS = ["required", "measured", "to reach", ""]


def cpu_model():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        found = re.search(r"model name\s*:\s*(.*)", file.read())
    return found.group(1) if found else platform.machine()


def stolen_seconds():
    """CPU time that the hypervisor gave to others since the machine started, all CPUs together."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = file.readline().split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


class Surroundings:
    """What else happened while a bench ran: a table without it says little."""

    def __init__(self):
        self.start, self.stolen = time.monotonic(), stolen_seconds()
        self.load = os.getloadavg()[0]

    def describe(self):
        elapsed = time.monotonic() - self.start
        stolen = 100 * (stolen_seconds() - self.stolen) / elapsed / os.cpu_count()
        git = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                             check=False)
        revision = git.stdout.strip() or "unknown"
        busy = " **Something else was running: these figures are not to be trusted.**" if self.load > 1 or stolen > 5 else ""
        return (f"{time.strftime('%Y-%m-%d %H:%M')}, revision {revision}, Linux {platform.release()}, {os.cpu_count()} CPUs ({cpu_model()}); "
                f"{elapsed:.0f} s; load average before {self.load:.1f}; {stolen:.1f} % of CPU time stolen by other machines.{busy}\n")


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def run_json(command, **options):
    """Runs a generator; returns the JSON object that it prints."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL, **options)
    if result.returncode:
        raise RigError(f"exit {result.returncode}: {' '.join(map(str, command))}\n{result.stderr}")
    return json.loads(result.stdout)


def have(program):
    return shutil.which(program) is not None
