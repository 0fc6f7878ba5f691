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
    (("queue", "set", "vm1/0", "cpu=x"), "'auto'"),
    (("port", "set", "vm1", "queues=2"), "port del vm1"),
    (("port", "set", "vm1", "queues=2"), "only mac, busy-poll-us, node, mtu, offloads can"),
    (("port", "set", "vm1", "name=vm2"), "only mac"),
    (("port", "set", "vm1", "mack=auto"), "'mac'"),
    (("worker", "set", "polcy=per-cpu"), "'policy'"),
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
    with open(os.path.join(ROOT, "user", "control", "placement.h")) as file:
        reasons = re.findall(r'X\([A-Z_]+, "([^"]+)"\)', file.read())
    assert len(reasons) > 10
    for reason in reasons:
        assert f"_{reason}_" in page, reason
    # Fields of the lists, too.
    for row in (daemon.json("queue", "list")[0], daemon.json("worker", "list")[0]):
        for field in row:
            assert f"_{field}_" in page or f"*{field}*" in page, field
    keys = manual("vhostlane.yaml.5.scd")
    with open(os.path.join(ROOT, "user", "control", "config.h")) as file:
        for key in re.findall(r'X\([A-Z_]+, "([a-z-]+)"\)', file.read()):
            assert f"*{key}*" in keys, key


@pytest.mark.parametrize("group, actions", [("port", 5), ("queue", 2), ("worker", 2), ("uplink", 1)])
def test_help_of_each_group(group, actions):
    for word in ("--help", "-h"):
        result = run(group, word)
        assert result.returncode == 0 and result.stderr == ""
        assert len(re.findall(rf"(?m)^  {group} ", result.stdout)) == actions, result.stdout
    assert run("xyzzy", "--help").returncode == 2


def complete(*words):
    """What the completion proposes for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in ("vhostlane",) + words)
    script = (f"PATH={os.path.dirname(BINARY)}:$PATH; unset -f _init_completion; compopt() {{ :; }}\n. {ROOT}/docs/vhostlane.bash-completion\n"
              f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _vhostlane; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    result = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert result.stderr == ""
    return result.stdout.split()


def test_completion(daemon):
    """Names come from the daemon that the line names, wherever in the line it stands."""
    assert complete("po") == ["port"]
    assert complete("worker", "") == ["list", "set"]
    assert "policy=per-port" in complete("worker", "set", "pol")
    assert complete("port", "set", "vm1", "o") == ["offloads="]
    for control in (["--control", daemon.control], [f"--control={daemon.control}"], ["--control", "=", daemon.control]):
        assert complete("port", "show", *control, "") == ["vm1", "vm2"], control
        assert complete("queue", "set", *control, "vm1") == ["vm1/0", "vm1/1"], control
        assert "mac=" in complete("port", "set", *control, "vm1", "m"), control


def test_terminal_is_not_driven_by_quoted_text():
    assert "\x1b" not in run("port", "show", "\x1b[31m").stderr


def test_configuration_file(tmp_path):
    path = tmp_path / "v.yaml"
    path.write_text("ports:\n  - name: vm1\n    socket: /x\n    quees: 2\n")
    wrong("run", "-c", str(path), status=1, says=f"{path}:4: key 'quees'")
    wrong("check", f"--config={path}", status=1, says="did you mean 'queues'?")
    wrong("run", "-c", str(tmp_path / "none.yaml"), status=1, says="none.yaml")
    # What is wrong only among the parts: the file and its line all the same, and no wrong use of the command.
    path.write_text("uplinks: [{ifname: eth0}]\nports:\n  - name: vm1\n    socket: /x\n    uplink: eth7\n")
    wrong("check", "-c", str(path), status=1, says=f"{path}:3: port vm1, uplink 'eth7'")
    path.write_text("ports:\n  - name: vm1\n")
    assert "socket=" not in wrong("check", "-c", str(path), status=1, says=f"{path}:2: port vm1: has no socket")


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


NO_NODE = max(int(n) for n in re.findall(r"\d+", open("/sys/devices/system/node/online").read())) + 1 if os.path.exists(
    "/sys/devices/system/node/online") else 1


def test_node_that_is_not_there(rig, daemon):
    """Named by `run`, `port add` and `port set`: refused, with the nodes that there are."""
    says = f"node '{NO_NODE}': no such NUMA node here; choose among 0"
    result = run("run", "--control", rig.path("c.sock"), "--port", f"vm1={rig.path('n.sock')},node={NO_NODE}")
    assert result.returncode == 1 and says in result.stderr, result
    wrong("port", "add", f"vm3={rig.path('n.sock')},node={NO_NODE}", "--control", daemon.control, status=1, says=says)
    wrong("port", "set", "vm1", f"node={NO_NODE}", "--control", daemon.control, status=1, says=says)
    assert daemon.json("port", "show", "vm1")["node"] == -1
    daemon.cli("port", "set", "vm1", "node=0")
    daemon.cli("port", "set", "vm1", "node=auto")


def test_few_descriptors(rig):
    """Whatever there is too little for, the limit is named; and a limit that ends later is told of at the start."""
    wire = rig.wire(queues=2)
    control = rig.path("c.sock")
    refused = 0
    for limit in (8, 10, 13, 16, 21, 25, 30, 36, 42):
        result = subprocess.run(["prlimit", f"--nofile={limit}", "timeout", "2", BINARY, "run", "--control", control, "--uplink", wire.uplink],
                                capture_output=True, text=True, timeout=120, check=False)
        if "ready" not in result.stdout:
            refused += 1
            assert re.search(r"(?m)^vhostlane: .*raise the limit of open files \(ulimit -n, LimitNOFILE=\)$", result.stderr), (limit, result)
    assert refused > 5, "ready with next to no descriptors"
    daemon = rig.daemon("--port", f"vm1={rig.path('vm1.sock')},queues=128", start=False)
    daemon.binary = rig.path("limited")
    with open(daemon.binary, "w") as file:
        file.write(f"#!/bin/sh\nexec prlimit --nofile=64 {BINARY} \"$@\"\n")
    os.chmod(daemon.binary, 0o755)
    daemon.start()
    lines = re.findall(r"open files: the limit is 64, this configuration takes about (\d+): .*ulimit -n \1, or LimitNOFILE=\1", daemon.log())
    assert len(lines) == 1 and int(lines[0]) > 128 * 4, daemon.log()


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
    # Nobody is there yet: nothing is known of places, and columns that say nothing are not shown.
    header = daemon.cli("queue", "list").splitlines()[0].split()
    assert header[:2] == ["port", "pair"] and "reason" in header
    assert not {"worker", "cpu", "node", "vcpus", "ring_node", "kick_cpu", "vcpu_node"} & set(header)
    assert "node" not in table[0].split()
    assert status["trouble"] == []
    assert daemon.json("uplink", "list") == [] and daemon.cli("uplink", "list") == ""
    assert set(daemon.json("counters")) == {"ports", "workers", "uplinks"}
    assert daemon.cli("counters", "--drops") == ""


def test_uplink_list(rig):
    wire = rig.wire(queues=2)
    daemon = rig.daemon("--uplink", f"{wire.uplink},mode=copy,queues=2")
    lines = daemon.cli("uplink", "list").splitlines()
    assert lines[0].split()[:4] == ["ifname", "state", "mode", "queues"]  # and no node: a veth has none
    assert lines[1].split()[:4] == [wire.uplink, "up", "copy", "2"]
    assert "it cannot be seen from here" in daemon.cli("uplink", "list")
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
    wrong("port", "set", "vm3", "mac=52:54:00:00:00:02", "--control", daemon.control, status=1,
          says="port vm3: mac=52:54:00:00:00:02 belongs to port vm2")
    for role in ("server", "client"):  # the daemon as its own client
        wrong("port", "add", f"vm4={daemon.control},role={role}", "--control", daemon.control, status=1, says="is the control socket")
    daemon.cli("port", "set", "vm2", "mac=auto")
    daemon.cli("port", "set", "vm3", "mac=52:54:00:00:00:02")
    assert daemon.json("port", "show", "vm3")["last_fault_ago_s"] is None
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


@pytest.mark.parametrize("method, params, says", (
    ("queue.set", {"port": "vm1", "pair": 0, "cpu": "auto", "busy-poll_us": 7}, "did you mean 'busy-poll-us'"),
    ("queue.set", {"port": "vm1", "pair": 0, "busy-poll-us": 7, "cpu": None}, "parameter cpu: neither text nor whole number"),
    ("status", {"of": "vm1"}, "it takes none"),
    ("port.show", {"name": "vm1", "full": True}, "parameter 'full': unknown"),
    ("port.set", {"name": "vm1"}, "nothing to set"),
    ("worker.set", {}, "nothing to set"),
    ("counters", {"drops": 1}, "neither true nor false"),
))
def test_parameters_that_would_not_count(daemon, method, params, says):
    before = daemon.json("queue", "list")[0]["busy-poll-us"]
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(daemon.control)
        client.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
        answer = json.loads(client.makefile().readline())
    assert answer["error"]["code"] == -32602 and says in answer["error"]["message"]
    assert daemon.json("queue", "list")[0]["busy-poll-us"] == before


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


def test_check_of_numbers_and_addresses_that_the_machine_decides(rig):
    """Fewer worker slots than CPUs are no fewer workers; the uplink's own address is no guest's: `run` says the same."""
    wire = rig.wire(queues=2)
    words = ("--control", rig.path("c.sock"), "--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac={wire.mac}")
    text = run("check", *words).stdout
    assert re.search(rf"(?m)^fail port vm1: mac {wire.mac} is the address of uplink {wire.uplink}; choose another address", text), text
    refused = run("run", *words)
    assert refused.returncode == 1 and f"mac={wire.mac} is the address of uplink {wire.uplink}" in refused.stderr
    cpus = os.sched_getaffinity(0)
    if len(cpus) > 1:
        words = ("--control", rig.path("c.sock"), "--threads", str(len(cpus) - 1))
        assert re.search(rf"(?m)^warn workers, threads: {len(cpus) - 1}, but there is a worker on each of {len(cpus)} CPUs; name fewer", run("check", *words).stdout)
        daemon = rig.daemon("--threads", str(len(cpus) - 1))
        assert f"threads: {len(cpus) - 1} is less than one a CPU" in daemon.log() and len(daemon.json("worker", "list")) == len(cpus)


def test_check_sees_what_is_in_use(rig, daemon):
    found = findings("--control", daemon.control, "--port", f"vm1={rig.path('vm1.sock')}", "--port", f"x={rig.path('vm2.sock')},role=client",
                     status=1)
    assert found["control socket"]["status"] == "fail"
    assert found["port vm1"]["status"] == "fail"
    assert found["port x"]["status"] == "ok"  # something listens there
    assert daemon.json("port", "show", "vm2")["sessions"] == 0  # and was not disturbed


def test_check_sees_an_uplink_in_use(rig):
    """A living daemon's uplink: `run` would be refused. A dead one's is taken over."""
    wire = rig.wire(queues=2)
    daemon = rig.daemon("--uplink", wire.uplink)
    words = ("--control", rig.path("c.sock"), "--uplink", wire.uplink)
    found = findings(*words, status=1)[f"uplink {wire.uplink}"]
    assert found["status"] == "fail" and f"process {daemon.process.pid}" in found["found"], found
    assert "xdp off" not in run("check", *words).stdout
    daemon.kill()
    assert findings(*words, status=0)[f"uplink {wire.uplink}"]["status"] == "ok"
    # Not as root: it may be anybody's. No advice to take off what may be ours.
    text = sh(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", BINARY, "check", *words], check=False)
    assert re.search(rf"(?m)^warn uplink {wire.uplink}: carries an XDP program .*; run the check as root", text), text
    assert "xdp off" not in text
    daemon.start()


def test_check_knows_the_modes(rig):
    """What `run` does with each mode, `check` has said before."""
    wire = rig.wire(queues=2)
    narrow, peer = unique("u"), unique("p")
    sh(f"ip link add {narrow} numrxqueues 1 numtxqueues 1 type veth peer name {peer} numrxqueues 4 numtxqueues 4"
       f" && ip link set {narrow} up && ip link set {peer} up")
    rig.undo(lambda: sh(["ip", "link", "del", narrow], check=False))
    for ifname, mode in ((wire.uplink, "auto"), (wire.uplink, "copy"), (wire.uplink, "zero-copy"), (wire.uplink, "generic"),
                         (narrow, "auto"), (narrow, "copy"), (narrow, "generic")):
        words = ("--control", rig.path("c.sock"), "--uplink", f"{ifname},mode={mode}")
        checked = run("check", *words)
        daemon = rig.daemon("--uplink", f"{ifname},mode={mode}", start=False)
        daemon.start(expect_ready=False)
        while not daemon.ready.wait(0.05) and daemon.process.poll() is None:
            pass
        started = daemon.process.poll() is None
        daemon.end() if started else daemon.kill()
        if "does not tell whether" in checked.stdout:
            assert re.search(rf"(?m)^warn uplink {ifname}: mode zero-copy: .*start it", checked.stdout), checked.stdout
        else:
            assert (checked.returncode == 0) == started, (ifname, mode, checked.stdout, daemon.log())


def test_check_of_places_that_take_no_sockets(rig):
    for directory in ("/proc", "/sys"):
        found = findings("--control", rig.path("c.sock"), "--port", f"vm7={directory}/vm7.sock", status=1)
        assert f"{directory} belongs to the kernel" in found["port vm7"]["found"]
        result = run("run", "--control", rig.path("c.sock"), "--port", f"vm7={directory}/vm7.sock")
        assert result.returncode == 1 and f"directory {directory} is there and takes no sockets" in result.stderr, result
        wrong("run", "--control", f"{directory}/c.sock", status=1, says="its directory takes no sockets")
    found = findings("--control", rig.path("c.sock"), "--port", f"vm7={rig.path('vm7.sock')},node={NO_NODE}", status=1)
    assert "no such NUMA node" in found["port vm7"]["found"] and found["port vm7"]["remedy"].startswith("choose among 0")


def test_absent_interface_names_the_others(rig):
    """All, or how many more; never vhostlane's own."""
    wire = rig.wire(queues=2)
    rig.daemon("--uplink", wire.uplink)
    line = wrong("run", "--control", rig.path("c.sock"), "--uplink", "vt-not-there", status=1, says="does not exist")
    names = re.search(r"`ip link` shows: (.*)$", line).group(1)
    more = re.search(r" and (\d+) more$", names)
    listed = re.sub(r" and \d+ more$", "", names).split(", ")
    there = [name.split("@")[0] for name in re.findall(r"(?m)^\d+: ([^:]+):", sh("ip -o link"))]
    there = [name for name in there if name != "lo" and not re.fullmatch(r"vhl\d+n\d+e?", name)]
    assert not [name for name in listed if re.fullmatch(r"vhl\d+n\d+e?", name)]
    assert more or wire.uplink in listed
    # Others' interfaces come and go meanwhile.
    assert abs(len(listed) + (int(more.group(1)) if more else 0) - len(there)) <= 8


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


def test_port_set_is_all_or_nothing(daemon):
    before = daemon.json("port", "show", "vm1")
    for words, says in [(("mtu=1400", "mac=52:54:00:00:00:02"), "belongs to port vm2"), (("busy-poll-us=7", "node=63"), "node"),
                        (("mtu=1400", "busy-poll-us=often"), "busy-poll-us")]:
        result = run("port", "set", "vm1", *words, "--control", daemon.control)
        assert result.returncode != 0 and says in result.stderr
        after = daemon.json("port", "show", "vm1")
        assert all(after[key] == before[key] for key in ("mtu", "mac", "node", "busy-poll-us"))
    result = run("port", "set", "vm1", "mtu=1400", "busy-poll-us=7", "--control", daemon.control)
    assert result.returncode == 0
    after = daemon.json("port", "show", "vm1")
    assert (after["mtu"], after["busy-poll-us"]) == (1400, 7)
