# SPDX-License-Identifier: BSD-2-Clause
"""Who may connect: the group of a port's socket."""
import grp
import os
import stat
import subprocess

import pytest

from conftest import BINARY
from test_session import run_and_fail
from vhost_frontend import Frontend

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to groups and becomes another user: needs root")
NOBODY = 65534


def other_group():
    """A group of this machine, not root's nor nobody's."""
    return next(g for g in grp.getgrall() if g.gr_gid not in (0, NOBODY))


def connect_as(path, groups):
    """Exit code of a connection by nobody with these groups: 0, or 1 for no permission."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups(groups)
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            Frontend(path, timeout=20).get_features()
            code = 0
        except PermissionError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_group_of_the_socket(rig, switch):
    group = other_group()
    os.chmod(rig.directory, 0o755)
    s = switch(options={0: f",group={group.gr_name}"})
    given, kept = os.stat(s.paths[0]), os.stat(s.paths[1])
    assert given.st_gid == group.gr_gid and kept.st_gid == os.getegid()
    for file in (given, kept):
        assert file.st_uid == 0 and stat.S_IMODE(file.st_mode) == 0o660
    assert connect_as(s.paths[0], [group.gr_gid]) == 0
    assert connect_as(s.paths[0], []) == 1
    assert connect_as(s.paths[1], [group.gr_gid]) == 1
    assert s.show(0)["group"] == group.gr_name and s.show(1)["group"] == ""
    # Also of a port that comes later.
    path = rig.path("late.sock")
    s.daemon.cli("port", "add", "late", f"socket={path}", f"group={group.gr_name}")
    assert os.stat(path).st_gid == group.gr_gid


def test_group_that_is_none(rig, switch):
    path = rig.path("x.sock")
    text = run_and_fail(rig, "--port", f"x={path},group=no-such-group")
    assert "port x, group 'no-such-group': there is none of that name" in text and "groupadd" in text
    assert not os.path.exists(path)
    text = run_and_fail(rig, "--port", f"x={path},group=root,role=client")
    assert "leave it out" in text
    # `check` says so before; a running daemon says it and runs on.
    file = rig.path("x.yaml")
    with open(file, "w") as f:
        f.write(f"ports:\n  - name: x\n    socket: {path}\n    group: no-such-group\n")
    result = subprocess.run([BINARY, "check", "-c", file], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1 and "no-such-group" in result.stdout + result.stderr
    s = switch(ports=1)
    assert "no-such-group" in s.daemon.cli("port", "add", "x", f"socket={path}", "group=no-such-group", check=False)
    assert s.frontend(0).get_features()
