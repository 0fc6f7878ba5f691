# SPDX-License-Identifier: BSD-2-Clause
"""What a user sees: Linux guests in QEMU on one daemon with a wire, the host and each other.

The first half shares one LAN of two guests; the second half makes things die, each test on a LAN of its own.
"""
import itertools
import re

import pytest

from lan import MEGABYTE, Lan, mac_of
from rig import wait_for

PAIRS = list(itertools.permutations(["wire", "host", "vm1", "vm2"], 2))
GUEST_PAIRS = [pair for pair in PAIRS if "vm1" in pair or "vm2" in pair]
VLAN = 5


@pytest.fixture(scope="module")
def lan(module_rig):
    lan = Lan(module_rig, ipv6=True).boot()
    yield lan
    lan.daemon.stop()


def end(lan, name):
    return {"wire": lan.wire, "host": lan.host}.get(name) or lan.guests[int(name[2:]) - 1]


def test_guest_comes_up(lan):
    for number, guest in enumerate(lan.guests):
        assert mac_of(number) in guest.run("ip link show eth0")
        port = lan.port_of(number)
        assert port["state"] == "serving", port
        # The guest negotiates what a modern driver must see.
        features = guest.run("cat /sys/class/net/eth0/device/features").strip()
        for bit, name in ((15, "MRG_RXBUF"), (17, "CTRL_VQ"), (22, "MQ"), (28, "INDIRECT_DESC"), (29, "EVENT_IDX"), (32, "VERSION_1")):
            assert features[bit] == "1", f"{name} not negotiated: {features}"


@pytest.mark.parametrize("source,target", GUEST_PAIRS)
def test_ping(lan, source, target):
    lan.ping(end(lan, source), end(lan, target).ip)


@pytest.mark.parametrize("source,target", GUEST_PAIRS)
def test_ping_full_frame(lan, source, target):
    """1500 bytes of IP: the largest frame that fits the MTU."""
    lan.ping(end(lan, source), end(lan, target).ip, size=1472)


def test_ping_ipv6(lan):
    """Neighbour discovery is multicast: it finds its way only if flooding works."""
    for source, number in ((lan.wire, 11), (lan.host, 12), (lan.guests[0], 12), (lan.guests[1], 2), (lan.guests[0], 1)):
        lan.ping(source, lan.ip6(number))


@pytest.mark.parametrize("source,target", GUEST_PAIRS)
def test_tcp(lan, source, target):
    """64 MB, every byte checked."""
    lan.push(end(lan, source), end(lan, target))


def test_tcp_all_at_once(lan):
    """Every way at the same time, both directions of each."""
    jobs = []
    for source, target in GUEST_PAIRS:
        jobs.append(end(lan, source).spawn(f"xfer -t 300 push {end(lan, target).ip} {lan.port} {8 * MEGABYTE}"))
    for job in jobs:
        job.wait(400)


def test_host_keeps_its_own_traffic(lan):
    """The uplink still serves the host: between host and wire nothing has changed."""
    lan.ping(lan.host, lan.wire.ip)
    lan.push(lan.host, lan.wire)
    lan.push(lan.wire, lan.host)


@pytest.mark.parametrize("source", ["wire", "host", "vm1"])
def test_broadcast_reaches_everyone_once(lan, source):
    count = 40
    receivers = [end(lan, name) for name in ("wire", "host", "vm1", "vm2") if name != source]
    port = lan.port + 1
    jobs = [receiver.spawn(f"xfer udp-recv {port} 5") for receiver in receivers]
    wait_for(lambda: all(f":{port}" in receiver.run("netstat -lun 2>/dev/null || ss -lun") for receiver in receivers),
             "all receivers listen")
    end(lan, source).run(f"xfer udp-send {lan.net}.255 {port} {count} 20 100")
    for receiver, job in zip(receivers, jobs):
        received = int(re.search(r"received=(\d+)", job.wait()).group(1))
        assert received == count, f"{receiver.name} received {received} of {count} broadcasts of {source}"


def vlan_interfaces(lan):
    """A VLAN interface in each guest; returns the network and what undoes it."""
    network = f"198.51.{lan.net.split('.')[2]}"
    for guest in lan.guests:
        guest.run(f"ip link add link eth0 name tag{VLAN} type vlan id {VLAN} && ip link set tag{VLAN} up &&"
                  f" ip addr add {network}.{11 + guest.number}/24 dev tag{VLAN}")
    return network, lambda: [guest.run(f"ip link del tag{VLAN}") for guest in lan.guests]


@pytest.mark.parametrize("name,number", [("wire", 2), ("host", 1)])
def test_vlan_both_ways(lan, name, number):
    """A tag that a guest, the wire or the host puts on stays on, with TCP of full frames, in every direction."""
    outside, (network, undo) = end(lan, name), vlan_interfaces(lan)
    outside.run(f"ip addr add {network}.{number}/24 dev {outside.device}")
    untag = lan.tagged(outside, VLAN)
    try:
        for source, target in ((outside, 11), (lan.guests[0], number), (lan.guests[0], 12), (lan.guests[1], 11)):
            lan.ping(source, f"{network}.{target}")
        outside.run(f"xfer -t 300 push {network}.11 {lan.port} {8 * MEGABYTE}", 400)
        outside.run(f"xfer -t 300 pull {network}.12 {lan.port} {8 * MEGABYTE}", 400)
        lan.guests[0].run(f"xfer -t 300 push {network}.12 {lan.port} {8 * MEGABYTE}", 400)
    finally:
        untag()
        outside.run(f"ip addr del {network}.{number}/24 dev {outside.device}")
        undo()
    lan.ping(outside, lan.guests[0].ip)


def test_queue_pairs_change_under_traffic(lan):
    """ethtool -L in the guest while it sends and receives: only what is enabled is used, and no byte is wrong."""
    guest = lan.guests[0]
    jobs = [lan.wire.spawn(f"xfer -t 300 push {guest.ip} {lan.port} {96 * MEGABYTE}"),
            lan.wire.spawn(f"xfer -t 300 pull {guest.ip} {lan.port} {96 * MEGABYTE}")]
    changes = 0
    while changes < 6 or not all(job.done() for job in jobs):
        guest.run(f"ethtool -L eth0 combined {1 + changes % 2}", 300)
        changes += 1
        if changes > 200:
            break
    for job in jobs:
        job.wait()
    guest.run("ethtool -L eth0 combined 1")
    wait_for(lambda: lan.port_of(0)["served_queue_pairs"] == 1, "one active queue pair")
    lan.push(lan.wire, guest, 4 * MEGABYTE)
    guest.run("ethtool -L eth0 combined 2")
    wait_for(lambda: lan.port_of(0)["served_queue_pairs"] == 2, "two active queue pairs")
    lan.push(lan.wire, guest, 4 * MEGABYTE)


def test_queue_pair_moves_under_traffic(lan):
    """From CPU to CPU and back during a transfer."""
    cpus = sorted({worker["cpu"] for worker in lan.daemon.json("worker", "list")})
    if len(cpus) < 2:
        pytest.skip(f"one worker on CPU {cpus}: there is nowhere to move to")
    guest = lan.guests[1]
    job = lan.wire.spawn(f"xfer -t 300 push {guest.ip} {lan.port} {64 * MEGABYTE}")
    moves = 0
    while moves < 4 or not job.done():
        cpu = cpus[moves % len(cpus)]
        lan.daemon.cli("queue", "set", f"vm2/{moves // 2 % 2}", f"cpu={cpu}")
        moves += 1
        if moves > 400:
            break
    job.wait()
    lan.push(guest, lan.wire, 4 * MEGABYTE)


# Things die. Each test has its own LAN.

def test_mtu_is_told_to_the_guest(rig):
    """QEMU hands it on if it is told to (host_mtu), and asks the backend whether it can be kept."""
    lan = Lan(rig, count=1, mtu=1400).boot(extra=",host_mtu=1400")
    assert "MTU" in lan.port_of(0)["features"]
    assert "mtu 1400" in lan.guests[0].run("ip link show eth0")
    lan.ping(lan.guests[0], lan.wire.ip, size=1372)
    lan.push(lan.guests[0], lan.wire, 4 * MEGABYTE)
    lan.daemon.stop()


def test_driver_unbound_and_bound_under_traffic(rig):
    """50 times, while frames for the guest keep coming and its neighbour works."""
    lan = Lan(rig).boot()
    guest, neighbour = lan.guests
    flood = lan.wire.spawn(f"xfer udp-send {guest.ip} 9 100000000 5000 200")
    job = lan.wire.spawn(f"xfer -t 300 push {neighbour.ip} {lan.port} {64 * MEGABYTE}")
    guest.run("""set -e
        device=$(basename $(readlink /sys/class/net/eth0/device))
        cd /sys/bus/virtio/drivers/virtio_net
        for i in $(seq 50); do
            echo $device > unbind
            echo $device > bind
            ip addr add %s/24 dev eth0
            ip link set eth0 up
        done""" % guest.ip, 300)
    job.wait()
    flood.process.kill()
    guest.run("ethtool -L eth0 combined 2")
    lan.push(lan.wire, guest, 4 * MEGABYTE)
    lan.pull(lan.wire, guest, 4 * MEGABYTE)
    lan.daemon.stop()


def test_guest_reboots(rig):
    """QEMU resets the machine and keeps its connection: the same session serves boot after boot."""
    lan = Lan(rig, count=1).boot(reboot=True)
    guest = lan.guests[0]
    for _ in range(2):
        lan.push(lan.wire, guest, 4 * MEGABYTE)
        flood = lan.wire.spawn(f"xfer udp-send {guest.ip} 9 100000000 2000 200")
        guest.run("( sleep 0.2; reboot -f ) >/dev/null 2>&1 &")
        lan.configure(guest)
        flood.process.kill()
    lan.push(lan.wire, guest, 4 * MEGABYTE)
    lan.pull(lan.wire, guest, 4 * MEGABYTE)
    lan.daemon.stop()


def test_qemu_killed_and_restarted(rig):
    """The neighbour notices nothing; the port serves the next QEMU."""
    lan = Lan(rig).boot()
    guest, neighbour = lan.guests
    for _ in range(2):
        job = neighbour.spawn(f"xfer -t 300 push {lan.wire.ip} {lan.port} {64 * MEGABYTE}")
        flood = lan.wire.spawn(f"xfer udp-send {guest.ip} 9 100000000 5000 200")
        guest.kill()
        wait_for(lambda: lan.port_of(0)["state"] == "waiting", "the port waits for a frontend again")
        guest.start()
        lan.configure(guest)
        flood.process.kill()
        job.wait()
        lan.push(guest, neighbour, 4 * MEGABYTE)
    lan.daemon.stop()


@pytest.mark.parametrize("role", ["server", "client"])
def test_daemon_killed_and_restarted(rig, role):
    """The guest stays up: QEMU reconnects (or is connected to again), and its rings go on where they stood."""
    lan = Lan(rig, role=role).boot()
    guest = lan.guests[0]
    for _ in range(2):
        lan.push(lan.wire, guest, 4 * MEGABYTE)
        lan.daemon.kill()
        lan.daemon.start()
        for number in range(2):
            wait_for(lambda n=number: lan.port_of(n)["state"] == "serving", "the port serves its guest again")
        for source, target in itertools.permutations([lan.wire, lan.host, *lan.guests], 2):
            lan.ping(source, target.ip, count=1)
        lan.push(lan.wire, guest, 4 * MEGABYTE)
        lan.pull(lan.wire, guest, 4 * MEGABYTE)
        lan.push(guest, lan.guests[1], 4 * MEGABYTE)
    lan.daemon.stop()


@pytest.mark.parametrize("role", ["server", "client"])
def test_daemon_stopped_and_started(rig, role):
    """The orderly way: SIGTERM, nothing left on the uplink while the guests wait, and on they go."""
    lan = Lan(rig, count=1, role=role)
    lan.daemon.stop()
    before = lan.link.trace()
    lan.daemon.start()
    lan.boot()
    lan.push(lan.wire, lan.guests[0], 4 * MEGABYTE)
    lan.daemon.stop()
    assert lan.link.trace() == before
    lan.ping(lan.host, lan.wire.ip)
    lan.daemon.start()
    lan.ping(lan.wire, lan.guests[0].ip)
    lan.push(lan.wire, lan.guests[0], 4 * MEGABYTE)
    lan.daemon.stop()


def test_port_removed_and_added(rig):
    """At run time, with a guest on it; the neighbour goes on."""
    lan = Lan(rig).boot()
    guest, neighbour = lan.guests
    job = lan.wire.spawn(f"xfer -t 300 push {neighbour.ip} {lan.port} {64 * MEGABYTE}")
    lan.daemon.cli("port", "del", "vm1")
    assert [port["name"] for port in lan.daemon.json("port", "list")] == ["vm2"]
    lan.daemon.cli("port", "add", "vm1", f"socket={lan.socket(0)}", f"mac={mac_of(0)}", "queues=2")
    wait_for(lambda: lan.port_of(0)["state"] == "serving", "QEMU has reconnected to the new port")
    lan.ping(lan.wire, guest.ip)
    lan.push(guest, lan.wire, 4 * MEGABYTE)
    job.wait()
    lan.daemon.stop()
