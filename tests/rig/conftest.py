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
def machine():
    """One boot for all tests."""
    with Rig() as rig:  # noqa: F405
        yield NumaMachine(rig).boot()
