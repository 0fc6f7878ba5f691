# SPDX-License-Identifier: BSD-2-Clause
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in ("lib", "guest"):
    sys.path.insert(0, os.path.join(HERE, "..", directory))

from rig_pytest import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import
from rig_host import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import
from numa import NumaMachine  # noqa: E402 pylint: disable=wrong-import-position


@pytest.fixture(scope="session")
def machines():
    """The machine that is up; another one only after that has been lost."""
    with Rig() as rig:  # noqa: F405
        booted = []

        def up():
            if not booted or booted[-1].lost:
                for lost in booted[-1:]:
                    lost.kill()
                booted.append(NumaMachine(rig, f"numa{len(booted)}").boot())
            return booted[-1]
        yield up


@pytest.fixture(scope="module")
def machine(machines):  # pylint: disable=redefined-outer-name
    """One boot for all tests, unless the machine of the module before does not answer any more."""
    return machines()
