# SPDX-License-Identifier: BSD-2-Clause
"""CPUs that go and come back, and a set of CPUs that shrinks, while guests are served."""
import json

import pytest


@pytest.fixture(scope="module")
def served(machine, module_host, veth):
    """A daemon with a guest of two pairs on each node, and a sender to both."""
    host = module_host
    daemon = host.start_daemon(ports=2)
    guests = [host.guest(0, node=0), host.guest(1, node=1)]
    sender = host.sender("--packet wire0", [0, 1])
    machine.wait_until(lambda: all(pair["frames_to_guest"] for pair in daemon.pairs().values()), "frames on all pairs")
    yield daemon
    # No loss. Order is not demanded here: a thread whose CPU goes is carried on by another one in the middle of what it sends, and what it sent before
    # waits in the backlog of the old one, which the kernel hands over later.
    result = json.loads(sender.end(status=None))
    print(result)
    assert result["lost"] == 0 and result["returned"] > 1000, result
    for guest in guests:
        guest.end(status=None)


@pytest.fixture(autouse=True)
def all_cpus(machine):
    yield
    for cpu in range(1, machine.cpus):
        machine.set_cpu(cpu, True)


def wait_traffic(machine, daemon):
    """Every pair gets frames from now on."""
    before = daemon.pairs()
    machine.wait_until(lambda: all(pair["frames_to_guest"] > before[key]["frames_to_guest"] for key, pair in daemon.pairs().items()),
                       "traffic on all pairs")


def cpus_of(daemon, port=None):
    return {pair["cpu"] for pair in daemon.pairs(port).values()}


def test_cpu_goes_and_comes_back(machine, served):
    daemon = served
    for cpu in (3, 1):
        # An order puts a pair there, so that there is one to be moved away.
        daemon.cli(f"queue set vm{cpu // 2}/1 cpu={cpu}")
        machine.set_cpu(cpu, False)
        machine.wait_until(lambda: cpu not in cpus_of(daemon), f"no pair on CPU {cpu}")
        worker = daemon.workers()[cpu]
        assert worker["pairs"] == 0 and not worker["in_use"]
        # A CPU on its way down is online still, and allowed no more.
        assert f"CPU {cpu}: offline" in daemon.log() or f"CPU {cpu}: no longer allowed" in daemon.log()
        pair = daemon.pairs()[f"vm{cpu // 2}", 1]
        assert pair["node"] == cpu // 2 and pair["reason"] == "its CPU went away", pair
        wait_traffic(machine, daemon)

        refused = machine.call(f"vhostlane queue set vm0/0 cpu={cpu} --control {daemon.control}")
        assert refused[0] != 0 and "offline" in refused[1], refused
        # By an edit of the map: put back, and told why.
        before = daemon.affinity()[0, 0]
        machine.run("bpftool map update pinned /sys/fs/bpf/vhostlane/up0/queue_affinity key 0 0 0 0 0 0 0 0"
                    f" value {cpu} 0 0 0 0 0 0 0 {before['worker']} 0 0 0 0 0 0 0")
        machine.wait_until(lambda gone=cpu: daemon.affinity()[0, 0]["cpu"] == daemon.pairs()["vm0", 0]["cpu"] != gone, "edit put back")
        assert f"cpu={cpu}: that CPU is offline" in daemon.log() or f"cpu={cpu}: that CPU is no longer allowed" in daemon.log()

        machine.set_cpu(cpu, True)
        machine.wait_until(lambda: daemon.workers()[cpu]["in_use"], f"worker of CPU {cpu} in use")
        machine.wait_until(lambda: daemon.allowed(worker["tid"]) == str(cpu), f"worker pinned to CPU {cpu} again")
        # The order still stands.
        machine.wait_until(lambda: daemon.pairs()[f"vm{cpu // 2}", 1]["cpu"] == cpu, "pair back where it was put")
        wait_traffic(machine, daemon)


def test_all_cpus_of_a_node_go(machine, served):
    """The node's guest is served from the other node, and from its own again when that has a CPU."""
    daemon = served
    machine.wait_until(lambda: {p["node"] for p in daemon.pairs("vm1").values()} == {1}, "vm1 on node 1")
    machine.set_cpu(2, False)
    machine.set_cpu(3, False)
    machine.wait_until(lambda: cpus_of(daemon) <= {0, 1}, "all pairs on node 0")
    wait_traffic(machine, daemon)
    machine.set_cpu(2, True)
    machine.wait_until(lambda: cpus_of(daemon, "vm1") == {2}, "vm1 on CPU 2")
    machine.set_cpu(3, True)
    machine.wait_until(lambda: daemon.workers()[3]["in_use"], "worker of CPU 3 in use")
    wait_traffic(machine, daemon)


def test_only_one_cpu_is_left(machine, served):
    daemon = served
    for cpu in (1, 2, 3):
        machine.set_cpu(cpu, False)
    machine.wait_until(lambda: cpus_of(daemon) == {0}, "all pairs on CPU 0")
    wait_traffic(machine, daemon)
    for cpu in (1, 2, 3):
        machine.set_cpu(cpu, True)
    machine.wait_until(lambda: all(worker["in_use"] for worker in daemon.workers().values()), "all workers in use")
    wait_traffic(machine, daemon)


def test_cpuset_shrinks_and_grows(machine, served):
    """A change of the cpuset has no event; it is noticed by looking."""
    daemon = served
    group = "/sys/fs/cgroup/rig"
    machine.run("echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control;"
                f" mkdir -p {group} && echo {daemon.pid} > {group}/cgroup.procs && echo 0,2 > {group}/cpuset.cpus")
    try:
        machine.wait_until(lambda: cpus_of(daemon) <= {0, 2}, "all pairs on CPUs 0 and 2")
        wait_traffic(machine, daemon)
        assert {cpu for cpu, worker in daemon.workers().items() if worker["in_use"]} == {0, 2}
        assert "CPU 3: no longer allowed" in daemon.log()
        machine.run(f"echo 0-3 > {group}/cpuset.cpus")
        machine.wait_until(lambda: all(worker["in_use"] for worker in daemon.workers().values()), "all workers in use")
        for cpu, worker in daemon.workers().items():
            machine.wait_until(lambda: daemon.allowed(worker["tid"]) == str(cpu), f"worker pinned to CPU {cpu} again")
        wait_traffic(machine, daemon)
    finally:
        machine.run(f"echo {daemon.pid} > /sys/fs/cgroup/cgroup.procs; rmdir {group}")
