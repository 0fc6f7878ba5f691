# SPDX-License-Identifier: BSD-2-Clause
"""The tests that ask most of a kernel, BPF and AF_XDP, run inside a machine with another one (scripts/check-kernels.sh). On this machine's
own kernel `make check` runs them as they are."""
import re

import pytest

from conftest import PROGRAMS

TIMEOUT = 600  # emulated, and some of them wait on purpose


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(machine, program):
    status, output = machine.call(f"cd /work && ulimit -l unlimited; exec {program} 2>&1", TIMEOUT)
    print(machine.run("uname -r").strip())
    print("\n".join(line for line in output.splitlines() if re.match(r"\[ +(FAILED|SKIPPED|PASSED) |skipped: ", line)))
    assert status == 0, output[-8000:]
    assert re.search(r"\[  PASSED  \] [1-9]", output), output[-2000:]
