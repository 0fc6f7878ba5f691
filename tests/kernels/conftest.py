# SPDX-License-Identifier: BSD-2-Clause
import glob
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in ("lib", "guest", "rig"):
    sys.path.insert(0, os.path.join(HERE, "..", directory))

from rig_pytest import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import
from rig_host import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import
from numa import NumaMachine  # noqa: E402 pylint: disable=wrong-import-position
from rig import BUILD, ROOT  # noqa: E402 pylint: disable=wrong-import-position

# Each is build/tests/NAME already: scripts/check-kernels.sh makes them.
PROGRAMS = sorted(os.path.basename(source)[:-2] for directory in ("bpf", "net")
                  for source in glob.glob(os.path.join(ROOT, "tests", directory, "test_*.c")))


@pytest.fixture(scope="session")
def machine():
    with Rig() as rig:  # noqa: F405
        files = [(script, f"/work{script[len(ROOT):]}") for script in glob.glob(os.path.join(ROOT, "scripts", "load-with-bpftool.sh"))]
        files += [(name, f"/work{name[len(ROOT):]}") for name in glob.glob(os.path.join(ROOT, "build", "bpf", "*.bpf.o"))]
        # A shell that takes programs by PATH: busybox prefers applets of its own to iproute2.
        files += [("/bin/dash", "/bin/sh"), ("/bin/bash", "/bin/bash"), ("/usr/bin/env", "/usr/bin/env")]
        programs = [os.path.join(BUILD, "tests", name) for name in PROGRAMS]
        machine = NumaMachine(rig, "kernels", files, [*programs, "bash", "nsenter", "grep", "sed", "find", "flock"]).start().wait_up()
        machine.run("mount -t bpf bpf /sys/fs/bpf; ip link set lo up")
        yield machine
