# SPDX-License-Identifier: BSD-2-Clause
"""An uplink before, during and after: the host lives on, others' programs stay, and nothing is left behind."""
import os
import re
import subprocess

import pytest

from guest import xfer
from rig import BPFFS, READY_TIMEOUT, ROOT, free_port, sh, subnet, unique, wait_for

LOAD_WITH_BPFTOOL = os.path.join(ROOT, "scripts", "load-with-bpftool.sh")

FOREIGN = """
#include <linux/bpf.h>
#define SEC(name) __attribute__((section(name), used))
SEC("xdp") int foreign_pass(struct xdp_md *context) { return XDP_PASS; }
SEC("tc") int foreign_ok(struct __sk_buff *skb) { return 0; }
char _license[] SEC("license") = "Dual BSD/GPL";
"""


@pytest.fixture
def wire(rig):
    net = subnet()
    wire = rig.wire(host_address=f"{net}.1/24", wire_address=f"{net}.2/24")
    wire.host_ip, wire.wire_ip = f"{net}.1", f"{net}.2"
    return wire


def host_lives(rig, wire):
    """ARP, ICMP and TCP between the host and its wire, both ways."""
    sh(f"ip neigh flush dev {wire.uplink}")
    wire.sh(f"ip neigh flush dev {wire.peer}")
    sh(f"ping -c 3 -i 0.2 -W 20 {wire.wire_ip}")
    wire.sh(f"ping -c 3 -i 0.2 -W 20 {wire.host_ip}")
    port = free_port()
    rig.background([xfer(), "serve", str(port)], wire.namespace)
    sh(f"for i in $(seq 50); do {xfer()} push {wire.wire_ip} {port} 1 && break; sleep 0.1; done")
    sh([xfer(), "push", wire.wire_ip, str(port), "16000000"])
    sh([xfer(), "pull", wire.wire_ip, str(port), "16000000"])


def xdp_id(wire):
    found = re.search(r"prog/xdp id (\d+)", sh(f"ip -d link show dev {wire.uplink}"))
    return int(found.group(1)) if found else None


def foreign_object(rig):
    """Somebody else's BPF programs."""
    with open(rig.path("foreign.c"), "w") as source:
        source.write(FOREIGN)
    sh(f"clang -O2 -g -target bpf -I/usr/include/$(gcc -print-multiarch) -c -o {rig.path('foreign.o')} {rig.path('foreign.c')}")
    return rig.path("foreign.o")


def start_refused(rig, *arguments):
    """A start that must fail: exit 1 and one clear line."""
    daemon = rig.daemon(*arguments, start=False)
    daemon.start(expect_ready=False)
    assert daemon.process.wait(READY_TIMEOUT) == 1, daemon.log()
    daemon.process = None
    errors = re.findall(r"(?m)^vhostlane: [^:]+: .+; .+$", daemon.log())
    assert errors, f"no line of the shape WHAT: WHY; REMEDY\n{daemon.log()}"
    return errors[-1]


def test_host_lives_on(rig, wire):
    daemon = rig.daemon("--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac=52:54:00:00:00:01")
    host_lives(rig, wire)
    daemon.stop()
    host_lives(rig, wire)


def test_no_trace_after_sigterm(rig, wire):
    before = wire.trace()
    daemon = rig.daemon("--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac=52:54:00:00:00:01,queues=2")
    assert wire.trace() != before
    assert os.path.exists(rig.path("vm1.sock"))
    daemon.stop()
    assert wire.trace() == before
    assert not os.path.exists(rig.path("vm1.sock"))
    assert not os.path.exists(daemon.control)
    assert not os.path.exists(f"{BPFFS}/{wire.uplink}")


def test_others_tc_filters_stay(rig, wire):
    sh(f"tc qdisc add dev {wire.uplink} clsact && tc filter add dev {wire.uplink} ingress prio 7 bpf da obj {foreign_object(rig)} sec tc")
    before = wire.trace()
    daemon = rig.daemon("--uplink", wire.uplink)
    host_lives(rig, wire)
    assert "foreign" in sh(f"tc filter show dev {wire.uplink} ingress")
    daemon.stop()
    assert wire.trace() == before


def test_foreign_xdp_program_is_not_replaced(rig, wire):
    pin = f"/sys/fs/bpf/{unique('f')}"
    sh(f"bpftool prog load {foreign_object(rig)} {pin} type xdp")
    rig.undo(lambda: os.unlink(pin))
    sh(f"bpftool net attach xdpdrv pinned {pin} dev {wire.uplink}")
    before, program = wire.trace(), xdp_id(wire)
    assert program
    error = start_refused(rig, "--uplink", wire.uplink)
    assert wire.uplink in error and str(program) in error
    assert xdp_id(wire) == program
    assert wire.trace() == before
    host_lives(rig, wire)


def test_second_instance_is_refused(rig, wire):
    first = rig.daemon("--uplink", wire.uplink)
    trace = wire.trace()
    error = start_refused(rig, "--uplink", wire.uplink)
    assert wire.uplink in error
    second = rig.daemon(start=False)
    second.control = first.control
    second.start(expect_ready=False)
    assert second.process.wait(READY_TIMEOUT) == 1
    assert first.control in second.log()
    second.process = None
    assert wire.trace() == trace
    first.cli("status")
    host_lives(rig, wire)
    first.stop()


def test_killed_and_restarted(rig, wire):
    """The programs that a killed daemon leaves let the host live; the next one takes them over and removes them at its end."""
    before = wire.trace()
    daemon = rig.daemon("--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac=52:54:00:00:00:01")
    for _ in range(3):
        program = xdp_id(wire)
        daemon.kill()
        assert xdp_id(wire) == program
        host_lives(rig, wire)
        daemon.start()
        assert xdp_id(wire) == program, "the programs found were to be adopted"
    host_lives(rig, wire)
    daemon.stop()
    assert wire.trace() == before


def test_operators_load_is_adopted_and_left(rig, wire):
    """Loaded by bpftool alone: `run` adopts it, and leaves it loaded and attached."""
    before = wire.trace()
    sh([LOAD_WITH_BPFTOOL, wire.uplink])
    loaded, program = wire.trace(), xdp_id(wire)
    assert program
    host_lives(rig, wire)
    daemon = rig.daemon("--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac=52:54:00:00:00:01")
    assert xdp_id(wire) == program
    host_lives(rig, wire)
    daemon.stop()
    assert wire.trace() == loaded
    host_lives(rig, wire)
    sh([LOAD_WITH_BPFTOOL, "--unload", wire.uplink])
    assert wire.trace() == before


def test_unload_clears_up_after_a_killed_daemon(rig, wire):
    """All of it, host links, settings and lock file too; from a living daemon it keeps its hands."""
    before = wire.trace()
    lock = f"/run/vhostlane/{wire.uplink}.lock"
    daemon = rig.daemon("--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac=52:54:00:00:00:01")
    during = wire.trace()
    assert "stop it first" in sh([LOAD_WITH_BPFTOOL, "--unload", wire.uplink], check=False)
    assert wire.trace() == during and os.path.exists(lock)
    daemon.kill()
    sh([LOAD_WITH_BPFTOOL, "--unload", wire.uplink])
    assert wire.trace() == before
    assert not os.path.exists(lock)
    # Nothing is left to do, which it says.
    assert "nothing of vhostlane's" in sh([LOAD_WITH_BPFTOOL, "--unload", wire.uplink], check=False)


def test_unload_when_the_interface_is_gone(rig, wire):
    daemon = rig.daemon("--uplink", wire.uplink)
    daemon.kill()
    sh(["ip", "link", "del", wire.uplink])
    sh([LOAD_WITH_BPFTOOL, "--unload", wire.uplink])
    assert f"vhl{wire.ifindex}n" not in sh("ip -o link")
    assert not os.path.exists(f"/run/vhostlane/{wire.uplink}.lock") and not os.path.exists(f"{BPFFS}/{wire.uplink}")


def state_of(daemon):
    """As `uplink list` and `status` tell it, which must agree."""
    while True:
        uplink = daemon.json("uplink", "list")[0]
        trouble = daemon.json("status")["trouble"]
        if daemon.json("uplink", "list")[0]["state"] == uplink["state"]:
            break  # it did not change between the two
    assert trouble == ([] if uplink["state"] == "up" else [f"uplink {uplink['ifname']}: {uplink['state']}"])
    return uplink["state"]


def test_uplink_disappears(rig, wire):
    """The device is removed under the daemon: what has nothing to do with it goes on, and the end is orderly."""
    daemon = rig.daemon("--uplink", wire.uplink, "--port", f"vm1={rig.path('vm1.sock')},mac=52:54:00:00:00:01")
    assert state_of(daemon) == "up"
    sh(["ip", "link", "del", wire.uplink])
    wait_for(lambda: state_of(daemon) == "gone", "the removal is seen")
    assert f"trouble     uplink {wire.uplink}: gone" in re.sub(" +", " ", daemon.cli("status")).replace("trouble ", "trouble     ")
    daemon.cli("port", "list")
    daemon.stop()
    said = daemon.log()
    assert said.count("the interface is gone") == 1
    assert "name one that" not in said and "error" not in said.replace("the interface is gone", ""), said


def test_programs_taken_off_by_hand(rig, wire):
    """Said once, with the remedy, and shown until they are back."""
    daemon = rig.daemon("--uplink", wire.uplink)
    pin = f"{BPFFS}/{wire.uplink}/progs"
    sh(f"ip link set dev {wire.uplink} xdp off")
    wait_for(lambda: "its XDP program was taken off" in daemon.log(), "the event is seen")
    assert state_of(daemon) == "xdp missing"
    sh(f"ip link set dev {wire.uplink} down && ip link set dev {wire.uplink} up")
    assert state_of(daemon) == "xdp missing"
    sh(f"ip link set dev {wire.uplink} xdp pinned {pin}/xdp_steer")
    wait_for(lambda: state_of(daemon) == "up", "the program is back")
    sh(f"tc filter del dev {wire.uplink} egress")
    wait_for(lambda: "its tc program was taken off" in daemon.log(), "the event is seen")
    assert state_of(daemon) == "tc missing"
    lines = re.findall(r"(?m)^.*was taken off.*$", daemon.log())
    assert len(lines) == 2 and all("; restart vhostlane" in line for line in lines), lines
    daemon.stop()
    assert not os.path.exists(f"{BPFFS}/{wire.uplink}")


def test_host_link_deleted_by_hand(rig, wire):
    daemon = rig.daemon("--uplink", wire.uplink)
    link = daemon.json("uplink", "list")[0]["host_links"][0]["ifname"]
    sh(f"ip link del {link}")
    wait_for(lambda: state_of(daemon) == "host link gone", "the removal is seen")
    assert daemon.log().count(f"its host link {link} was deleted") == 1 and "restart vhostlane" in daemon.log()
    daemon.stop()


def test_uplink_gets_another_name(rig, wire):
    """It is the same device: followed under its new name, and left as it was found."""
    before = sh(f"ethtool -k {wire.uplink} | tail -n +2")
    daemon = rig.daemon("--uplink", wire.uplink)
    name = f"{wire.uplink[:12]}new"
    sh(f"ip link set {wire.uplink} down && ip link set {wire.uplink} name {name} && ip link set {name} up")
    wait_for(lambda: daemon.json("uplink", "list")[0]["ifname"] == name and state_of(daemon) == "up", "the name is followed")
    sh(f"ip link set {name} mtu 1400")
    wait_for(lambda: daemon.json("uplink", "list")[0]["mtu"] == 1400, "the MTU is followed")
    assert "gone" not in daemon.log()
    daemon.stop()
    assert sh(f"ethtool -k {name} | tail -n +2") == before
    assert "xdp" not in sh(f"ip link show {name}") and "clsact" not in sh(f"tc qdisc show dev {name}")
    sh(f"ip link set {name} down && ip link set {name} name {wire.uplink}")


def test_state_follows_the_carrier(rig, wire):
    daemon = rig.daemon("--uplink", wire.uplink)
    wire.sh(f"ip link set {wire.peer} down")
    wait_for(lambda: state_of(daemon) == "no carrier", "the carrier is lost")
    sh(f"ip link set {wire.uplink} down")
    wait_for(lambda: state_of(daemon) == "down", "the uplink is down")
    sh(f"ip link set {wire.uplink} up")
    wire.sh(f"ip link set {wire.peer} up")
    wait_for(lambda: state_of(daemon) == "up", "the carrier is back")
    daemon.stop()


def test_uplink_down_and_up(rig, wire):
    daemon = rig.daemon("--uplink", wire.uplink)
    for _ in range(3):
        sh(f"ip link set {wire.uplink} down")
        sh(f"ip link set {wire.uplink} up")
    host_lives(rig, wire)
    daemon.stop()


@pytest.mark.parametrize("arguments,named", [
    (["--uplink", "no-such-if0"], "no-such-if0"),
    (["--uplink", "lo"], "lo"),
    (["--uplink", "a-name-too-long0"], "a-name-too-long0"),
    (["--port", "vm1=/nowhere/at/all/vm1.sock"], "/nowhere/at/all"),
    (["--port", "vm1=/tmp/" + "x" * 120], "107"),
    (["--port", "../vm1=/tmp/vm1.sock"], "../vm1"),
    (["--port", "vm1=/tmp/vm1.sock,colour=red"], "colour"),
    (["--port", "vm1=/tmp/vm1.sock,queues=0"], "queues"),
    (["--port", "vm1=/tmp/vm1.sock,mac=01:00:00:00:00:01"], "01:00:00:00:00:01"),
    (["--port", "vm1=/tmp/vm1.sock", "--port", "vm1=/tmp/vm2.sock"], "vm1"),
    (["--cpus", "4000"], "4000"),
    (["--policy", "fastest"], "fastest"),
    (["--no-such-option"], "no-such-option"),
])
def test_bad_command_line(rig, arguments, named):
    """Each names the value and a remedy, and ends with 1 (impossible) or 2 (wrong use) before anything is made."""
    daemon = rig.daemon(*arguments, start=False)
    daemon.start(expect_ready=False)
    try:
        status = daemon.process.wait(READY_TIMEOUT)
    except subprocess.TimeoutExpired:
        pytest.fail(f"accepted: {arguments}")
    daemon.process = None
    assert status in (1, 2), daemon.log()
    said = daemon.log().split("\n", 1)[1]
    assert named in said, said
    assert re.search(r"(?m)^vhostlane: .+: .+; .+$", said), said
    assert not os.path.exists(daemon.control)
