# SPDX-License-Identifier: BSD-2-Clause
"""The command line against the real binary and a real daemon: wrong use, refusals, what is printed, `check`."""
import json
import os
import re
import socket
import subprocess

import pytest

from rig import BINARY, ROOT, sh, unique

# WHAT: WHY; REMEDY
ERROR = re.compile(r"^vhostlane: [^\n]+: [^\n]+[;?] ?[^\n]*$")


def run(*words, environment=None):
    return subprocess.run([BINARY, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, **(environment or {})), check=False)


def wrong(*words, status=2, says=""):
    """One line on stderr, nothing on stdout, the exit status, and the part that names what is wrong."""
    result = run(*words)
    assert result.returncode == status, (words, result)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert ERROR.match(lines[0]), lines[0]
    assert says in lines[0], lines[0]
    return lines[0]


@pytest.fixture
def daemon(rig):
    return rig.daemon("--port", f"vm1={rig.path('vm1.sock')},queues=2", "--port", f"vm2={rig.path('vm2.sock')},mac=52:54:00:00:00:02")


# --- words and options

def test_help_and_version():
    usage = run("--help")
    assert usage.returncode == 0 and "queue set" in usage.stdout and usage.stderr == ""
    assert run("--version").stdout.startswith("vhostlane ")
    bare = run()
    assert bare.returncode == 2 and bare.stdout == "" and "Usage:" in bare.stderr


@pytest.mark.parametrize("command", re.findall(r"^  ([a-z]+(?: [a-z]+)?) ", run("--help").stdout, re.M))
def test_help_of_each_command(command):
    result = run(*command.split(), "--help")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith(f"Usage: vhostlane {command} ")
    assert "Options:" in result.stdout


@pytest.mark.parametrize("words, says", [
    (("rnu",), "'run'"),
    (("xyzzy",), "known: run, check"),
    (("port",), "known: list"),
    (("port", "lst"), "'list'"),
    (("queue", "--json"), "known: list, set"),
    (("status", "now"), "'now'"),
    (("status", "--jsno"), "--json"),
    (("status", "--json=yes"), "--json"),
    (("status", "--control"), "--control SOCKET"),
    (("status", "-x"), "'-x'"),
    (("port", "show"), "NAME"),
    (("port", "show", "a", "b"), "'b'"),
    (("port", "show", "../a"), "'/'"),
    (("port", "add"), "NAME=SOCKET"),
    (("port", "add", "vm1"), "socket"),
    (("port", "add", "vm1=relative"), "absolute"),
    (("port", "add", "vm1=/" + "x" * 107), "108 bytes"),
    (("port", "add", "vm1=/x,quees=2"), "'queues'"),
    (("port", "add", "vm1=/x", "queues=0"), "1 to 128"),
    (("port", "add", "vm1=/x,queues=2", "queues=2"), "given twice"),
    (("port", "set", "vm1"), "key=value"),
    (("port", "set", "vm1", "busy-poll-us=sometimes"), "'always'"),
    (("queue", "set", "vm1/0"), "cpu=N"),
    (("queue", "set", "vm1", "cpu=0"), "vm1/0"),
    (("queue", "set", "vm1/128", "cpu=0"), "127"),
    (("queue", "set", "vm1/0", "cpu=x"), "cpu 'x'"),
    (("queue", "set", "vm1/0", "node=1"), "cpu"),
    (("run", "--uplnk", "eth0"), "--uplink"),
    (("run", "--uplink", "a-name-of-17-char"), "15 characters"),
    (("run", "--uplink", "eth0,mode=fast"), "zero-copy"),
    (("run", "--uplink", "eth0", "--uplink", "eth0"), "twice"),
    (("run", "--port", "vm1"), "NAME=SOCKET"),
    (("run", "--port", "vm1=/x", "--port", "vm1=/y"), "named twice"),
    (("run", "--port", "vm1=/x", "--port", "vm2=/x"), "port vm1 has it"),
    (("run", "--port", "vm1=/x,mac=01:00:00:00:00:01"), "mac"),
    (("run", "--port", "vm1=/x,uplink=eth7"), "eth7"),
    (("run", "--cpus", "3-1"), "3-1"),
    (("run", "--policy", "fair"), "per-cpu"),
    (("run", "--workers-per-port", "0"), "1 to 64"),
    (("run", "--control", "here"), "absolute"),
    (("run", "surplus"), "'surplus'"),
    (("run", "--", "--verbose"), "'--verbose'"),
])
def test_wrong_use(words, says):
    wrong(*words, says=says)


def manual(name):
    with open(os.path.join(ROOT, "docs", name)) as file:
        return file.read()


def test_manual_names_every_option_and_counter(daemon):
    """What the program has and the manual lacks is found here, not by a user."""
    page = manual("vhostlane.8.scd")
    with open(os.path.join(ROOT, "docs", "vhostlane.bash-completion")) as file:
        completion = file.read()
    for command in re.findall(r"^  ([a-z]+(?: [a-z]+)?) ", run("--help").stdout, re.M):
        if len(command.split()) == 1 and command != "run":
            assert f"*vhostlane {command}" in page or f"## vhostlane {command}" in page, command
        assert f"vhostlane {command}" in page, command
        for option in re.findall(r"--([a-z-]+)", run(*command.split(), "--help").stdout):
            assert f"*--{option}*" in page, (command, option)
            assert f"--{option}" in completion, (command, option)
    counters = daemon.json("counters")
    names = list(counters["ports"]["vm1"]) + list(counters["workers"]["0"])
    with open(os.path.join(ROOT, "include", "vhostlane", "bpf_abi.h")) as file:
        names += re.findall(r'X\([A-Z_]+, "([a-z_]+)"\)', file.read())
    assert len(names) > 30
    for name in names:
        assert f"*{name}*" in page, name
    keys = manual("vhostlane.yaml.5.scd")
    with open(os.path.join(ROOT, "user", "control", "config.h")) as file:
        for key in re.findall(r'X\([A-Z_]+, "([a-z-]+)"\)', file.read()):
            assert f"*{key}*" in keys, key


def test_terminal_is_not_driven_by_quoted_text():
    assert "\x1b" not in run("port", "show", "\x1b[31m").stderr


def test_configuration_file(tmp_path):
    path = tmp_path / "v.yaml"
    path.write_text("ports:\n  - name: vm1\n    socket: /x\n    quees: 2\n")
    wrong("run", "-c", str(path), status=1, says=f"{path}:4: key 'quees'")
    wrong("check", f"--config={path}", status=1, says="did you mean 'queues'?")
    wrong("run", "-c", str(tmp_path / "none.yaml"), status=1, says="none.yaml")


# --- start that fails

def test_start_refused(rig):
    control = ("--control", rig.path("c.sock"))
    wrong("run", *control, "--uplink", "vt-not-there", status=1, says="vt-not-there")
    wrong("run", *control, "--cpus", "1023", status=1, says="CPU 1023")
    wrong("run", "--control", rig.path("missing/c.sock"), status=1, says="missing")
    assert not os.path.exists(rig.path("c.sock"))
    # Started under taskset: another CPU is not allowed, and nothing is silently unpinned.
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU only: there is none to forbid")
    result = subprocess.run(["taskset", "-c", str(cpus[0]), BINARY, "run", *control, "--cpus", str(cpus[1])], capture_output=True,
                            text=True, timeout=120, check=False)
    assert result.returncode == 1 and f"CPU {cpus[1]}" in result.stderr and f"choose among {cpus[0]} " in result.stderr


def test_missing_socket_directory(rig):
    result = run("run", "--control", rig.path("c.sock"), "--port", f"vm1={rig.path('nowhere')}/vm1.sock")
    assert result.returncode == 1 and "nowhere" in result.stderr and "ready" not in result.stdout
    assert not os.path.exists(rig.path("c.sock"))


def test_second_instance(rig, daemon):
    line = run("run", "--control", daemon.control).stderr.strip().splitlines()[-1]
    assert line == f"vhostlane: control socket {daemon.control}: another vhostlane answers there; stop it or give --control another path"
    assert daemon.json("status")["ports"] == 2


def test_no_daemon(rig):
    wrong("status", "--control", rig.path("none.sock"), status=1, says="vhostlane run")


# --- a daemon that answers

def test_status_and_lists(daemon):
    status = daemon.json("status")
    assert status["ports"] == 2 and status["pid"] == daemon.process.pid and status["control"] == daemon.control
    assert re.search(r"^policy +per-cpu$", daemon.cli("status"), re.M)

    ports = daemon.json("port", "list")
    assert [p["name"] for p in ports] == ["vm1", "vm2"]
    table = daemon.cli("port", "list").splitlines()
    assert table[0].split()[:3] == ["name", "role", "state"]
    assert table[1].split()[:3] == ["vm1", "server", "waiting"]
    assert "52:54:00:00:00:02" in table[2]
    assert len({len(line[:line.rindex("/")].split()) for line in table[1:]}) == 1  # no cell is empty

    assert len(daemon.json("queue", "list")) == 3
    assert len(daemon.cli("queue", "list").splitlines()) == 4
    assert len(daemon.json("worker", "list")) == daemon.json("status")["workers"]
    assert daemon.json("uplink", "list") == [] and daemon.cli("uplink", "list") == ""
    assert set(daemon.json("counters")) == {"ports", "workers", "uplinks"}
    assert daemon.cli("counters", "--drops") == ""


def test_uplink_list(rig):
    wire = rig.wire(queues=2)
    daemon = rig.daemon("--uplink", f"{wire.uplink},mode=copy,queues=2")
    lines = daemon.cli("uplink", "list").splitlines()
    assert lines[0].split()[:4] == ["ifname", "mode", "queues", "node"]
    assert lines[1].split()[:3] == [wire.uplink, "copy", "2"]
    assert any(line.startswith(f"{wire.uplink} frames: total ") for line in lines)
    assert sum(line.startswith(f"{wire.uplink} host_links: ifname vhl") for line in lines) == len(daemon.json("uplink", "list")[0]["host_links"])
    assert "warning" not in lines[0]
    assert [line for line in lines if line.startswith("warning: ")] == \
        ["warning: " + text for text in daemon.json("uplink", "list")[0]["warnings"].splitlines()]


def test_port_life(rig, daemon):
    path = rig.path("vm3.sock")
    daemon.cli("port", "add", "vm3", f"socket={path}", "queues=4", "busy-poll-us=always")
    assert os.path.exists(path)
    shown = daemon.json("port", "show", "vm3")
    assert shown["queues"] == 4 and shown["busy-poll-us"] == "always"
    assert "rings:" in daemon.cli("port", "show", "vm3")
    daemon.cli("port", "set", "vm3", "busy-poll-us=10")
    assert daemon.json("port", "show", "vm3")["busy-poll-us"] == 10

    wrong("port", "add", f"vm3={path}", "--control", daemon.control, status=1, says="vm3")
    wrong("port", "add", f"vm4={rig.path('none/vm4.sock')}", "--control", daemon.control, status=1, says="none")
    wrong("port", "add", f"vm4={rig.path('vm1.sock')}", "--control", daemon.control, status=1, says="vm1")
    daemon.cli("port", "del", "vm3")
    assert not os.path.exists(path)
    wrong("port", "del", "vm3", "--control", daemon.control, status=1, says="vm3")
    wrong("port", "show", "vm3", "--control", daemon.control, status=1, says="vm3")
    assert [p["name"] for p in daemon.json("port", "list")] == ["vm1", "vm2"]


def test_queue_set(daemon):
    pair = daemon.json("queue", "set", "vm1/1", "busy-poll-us=7")
    assert pair["busy-poll-us"] == 7
    cpu = daemon.json("worker", "list")[-1]["cpu"]
    daemon.cli("queue", "set", "vm1/1", f"cpu={cpu}", "busy-poll-us=always")
    assert daemon.json("queue", "list")[1]["busy-poll-us"] == "always"
    wrong("queue", "set", "vm1/2", "cpu=0", "--control", daemon.control, status=1, says="vm1/2")
    wrong("queue", "set", "vm1/0", "cpu=1023", "--control", daemon.control, status=1, says="1023")
    wrong("queue", "set", "vm9/0", "cpu=0", "--control", daemon.control, status=1, says="vm9")


def test_hostile_clients(daemon):
    """Nonsense on the control socket costs its sender the connection at most."""
    for nonsense in (b"\n", b"{}\n", b"[" * 100000 + b"\n", b"\x00\xff\n", b"{" * 10, b"x" * (2 << 20), b'{"jsonrpc":"2.0","method":"status"}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(daemon.control)
            try:
                client.sendall(nonsense)
            except OSError:
                pass
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(daemon.control)
        client.sendall(b'{"jsonrpc":"2.0","id":1,"method":"port.show","params":{"name":7}}\n')
        answer = json.loads(client.makefile().readline())
    assert answer["error"]["code"] < 0
    assert daemon.json("status")["ports"] == 2


def test_control_socket_mode(daemon):
    assert os.stat(daemon.control).st_mode & 0o777 == 0o600
    daemon.stop()
    assert not os.path.exists(daemon.control)


def test_dead_daemons_socket_is_taken_over(rig, daemon):
    daemon.kill()
    assert os.path.exists(daemon.control)
    daemon.start()
    assert daemon.json("status")["ports"] == 2


def test_output_that_cannot_be_written(daemon):
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, "status", "--control", daemon.control], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
                                check=False)
    assert result.returncode == 1 and "standard output" in result.stderr


# --- check

def findings(*words, status):
    result = run("check", "--json", *words)
    assert result.returncode == status, result
    report = json.loads(result.stdout)
    assert report["passed"] == (status == 0)
    for finding in report["findings"]:
        assert finding["status"] == "ok" or finding["remedy"], finding
    # The first of each: what follows on the same thing are surprises of it.
    return {finding["what"]: finding for finding in reversed(report["findings"])}


def test_check_passes(rig):
    wire = rig.wire(queues=2)
    found = findings("--control", rig.path("c.sock"), "--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')}", status=0)
    assert found["port vm1"]["status"] == "ok"
    assert found["kernel"]["status"] == "ok"
    assert "veth" in found[f"uplink {wire.uplink}"]["found"] and "2 receive queues" in found[f"uplink {wire.uplink}"]["found"]
    text = run("check", "--control", rig.path("c.sock")).stdout
    assert re.fullmatch(r"((ok  |warn|fail) [^:\n]+: [^\n]+\n)+", text)
    assert not os.path.exists(rig.path("c.sock"))


def test_check_names_what_would_fail(rig):
    os.mkdir(rig.path("directory"))
    with open(rig.path("file"), "w"):
        pass
    nobody = unique("n")
    found = findings("--uplink", nobody, "--cpus", "1023", "--control", rig.path("gone/c.sock"),
                     "--port", f"a={rig.path('none/a.sock')}", "--port", f"b={rig.path('file')}", "--port", f"c={rig.path('c.sock')},role=client",
                     status=1)
    failed = {what for what, finding in found.items() if finding["status"] == "fail"}
    assert failed == {f"interface '{nobody}'", "cpus, CPU 1023", "control socket", "port a", "port b"}
    assert found["port c"]["status"] == "warn"
    assert "mkdir" in found["port a"]["remedy"]


def test_check_sees_what_is_in_use(rig, daemon):
    found = findings("--control", daemon.control, "--port", f"vm1={rig.path('vm1.sock')}", "--port", f"x={rig.path('vm2.sock')},role=client",
                     status=1)
    assert found["control socket"]["status"] == "fail"
    assert found["port vm1"]["status"] == "fail"
    assert found["port x"]["status"] == "ok"  # something listens there
    assert daemon.json("port", "show", "vm2")["sessions"] == 0  # and was not disturbed


def test_check_sees_few_descriptors(rig):
    result = sh(f"ulimit -n 64; {BINARY} check --control {rig.path('c.sock')} --port vm1={rig.path('vm1.sock')},queues=128", check=False)
    assert re.search(r"^fail open files: .*LimitNOFILE=\d+", result, re.M), result


def test_check_without_privileges(rig):
    result = sh(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", BINARY, "check", "--uplink", "lo", "--control", "/tmp/c.sock"],
                check=False)
    assert re.search(r"^fail CAP_NET_ADMIN: .*; run as root", result, re.M), result
    assert re.search(r"^fail AF_XDP sockets", result, re.M), result


def test_check_foreign_xdp_program(rig):
    wire = rig.wire(queues=2)
    source = rig.path("foreign.c")
    with open(source, "w") as file:
        file.write('__attribute__((section("xdp"), used)) int foreign(void *c) { return 2; }\nchar l[] __attribute__((section("license"), used)) = "GPL";\n')
    sh(["clang", "-O2", "-g", "-target", "bpf", "-c", "-o", rig.path("foreign.o"), source])
    sh(["ip", "link", "set", "dev", wire.uplink, "xdp", "obj", rig.path("foreign.o"), "sec", "xdp"])
    result = run("check", "--control", rig.path("c.sock"), "--uplink", wire.uplink)
    assert result.returncode == 1
    assert re.search(rf"^fail uplink {wire.uplink}: carries the foreign XDP program foreign .*xdp off", result.stdout, re.M), result.stdout
