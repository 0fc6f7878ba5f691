# SPDX-License-Identifier: BSD-2-Clause
"""The tests that ask most of a kernel, BPF and AF_XDP, run inside a machine with another one (scripts/check-kernels.sh). On this machine's
own kernel `make check` runs them as they are."""
import glob
import os
import re

import pytest

from numa import NumaMachine
from rig import BUILD, ROOT, Rig

# Each is build/tests/NAME already: scripts/check-kernels.sh makes them.
PROGRAMS = sorted(os.path.basename(source)[:-2] for directory in ("bpf", "net")
                  for source in glob.glob(os.path.join(ROOT, "tests", directory, "test_*.c")))
TIMEOUT = 600  # emulated, and some of them wait on purpose


@pytest.fixture(scope="session")
def machine():
    with Rig() as rig:
        files = [(script, f"/work{script[len(ROOT):]}") for script in glob.glob(os.path.join(ROOT, "scripts", "load-with-bpftool.sh"))]
        files += [(name, f"/work{name[len(ROOT):]}") for name in glob.glob(os.path.join(ROOT, "build", "bpf", "*.bpf.o"))]
        # A shell that takes programs by PATH: busybox prefers applets of its own to iproute2.
        files += [("/bin/dash", "/bin/sh"), ("/bin/bash", "/bin/bash"), ("/usr/bin/env", "/usr/bin/env")]
        programs = [os.path.join(BUILD, "tests", name) for name in PROGRAMS]
        machine = NumaMachine(rig, "kernels", files, [*programs, "bash", "nsenter", "grep", "sed", "find", "flock"], nic=False).start().wait_up()
        machine.run("mount -t bpf bpf /sys/fs/bpf; ulimit -l unlimited; ip link set lo up")
        yield machine


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(machine, program):
    status, output = machine.call(f"cd /work && ulimit -l unlimited; exec {program} 2>&1", TIMEOUT)
    print(machine.run("uname -r").strip())
    print("\n".join(line for line in output.splitlines() if re.match(r"\[ +(FAILED|SKIPPED|PASSED) ", line)))
    assert status == 0, output[-8000:]
    assert re.search(r"\[  PASSED  \] [1-9]", output), output[-2000:]
