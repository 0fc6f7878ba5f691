# SPDX-License-Identifier: BSD-2-Clause
"""Fixtures of the suites that use real interfaces; a conftest.py takes them with `from rig_pytest import *`."""
import os

import pytest

from rig import BINARY, Rig, mount_bpffs


def pytest_sessionstart(session):
    if os.geteuid() != 0:
        pytest.exit("these tests make network interfaces and load BPF programs: run them as root", 3)
    if not os.access(BINARY, os.X_OK):
        pytest.exit(f"no {BINARY}: run make first", 3)
    mount_bpffs()


@pytest.fixture
def rig():
    with Rig() as new:
        yield new


@pytest.fixture(scope="module")
def module_rig():
    with Rig() as new:
        yield new


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure brings along what every daemon of the test has logged, and what its guests printed."""
    report = (yield).get_result()
    if report.when == "teardown" or not report.failed:
        return
    for name, value in item.funcargs.items():
        if callable(getattr(value, "state", None)):
            try:
                report.sections.append((f"state of {name}", value.state()))
            except Exception as error:  # pylint: disable=broad-except
                report.sections.append((f"state of {name}", f"not to be had: {error}"))
        owner = value if isinstance(value, Rig) else getattr(value, "rig", None)
        for daemon in getattr(owner, "daemons", []):
            if os.path.exists(daemon.log_path):
                report.sections.append((f"log of {daemon.log_path}", daemon.log()[-6000:]))
        for guest in (guest for guest in getattr(value, "guests", []) if hasattr(guest, "logs")):
            report.sections.append((f"console of {guest.name}", guest.logs()))
