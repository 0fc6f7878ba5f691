# SPDX-License-Identifier: BSD-2-Clause
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in ("lib", "guest", "rig"):
    sys.path.insert(0, os.path.join(HERE, "..", directory))

from rig_pytest import *  # noqa: E402,F401,F403 pylint: disable=wrong-import-position,wildcard-import
