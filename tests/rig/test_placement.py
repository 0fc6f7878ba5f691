# SPDX-License-Identifier: BSD-2-Clause
"""Where memory, workers and queue pairs lie on a host with NUMA nodes, and how pairs move."""
import json
import re

from numa import CPU_COUNT, CPUS_OF_NODE, DISTANCES, MEGABYTES_OF_NODE, check_traffic

NODE_OF_CPU = {0: 0, 1: 0, 2: 1, 3: 1}


def test_the_machine(machine):
    """The harness itself: topology as asked for, and the programs that the tests need run here."""
    nodes = {int(line.split()[1]): line for line in machine.run("sh /rig/nodes.sh").splitlines() if line.strip()}
    assert sorted(nodes) == sorted(CPUS_OF_NODE)
    for node, line in nodes.items():
        found = re.fullmatch(r"node \d+ cpus (\S*) memory (\d+) distance (.*)", line)
        assert found, line
        assert found.group(1) == CPUS_OF_NODE[node]
        assert int(found.group(2)) > MEGABYTES_OF_NODE[node] * 1024 // 2  # the kernel keeps some
        row = [10 if other == node else DISTANCES[min(node, other), max(node, other)] for other in sorted(CPUS_OF_NODE)]
        assert found.group(3).split() == [str(distance) for distance in row]
    assert "bpftool" in machine.run("bpftool version")


def numa_maps(machine, pid):
    """(policy, name, {node: pages}) of each mapping that has pages."""
    for line in machine.run(f"cat /proc/{pid}/numa_maps").splitlines():
        words = line.split()
        pages = {int(word[1:word.index("=")]): int(word[word.index("=") + 1:]) for word in words[2:] if re.match(r"N\d+=", word)}
        if pages:
            yield words[1], next((word for word in words[2:] if word.startswith("file=")), ""), pages


def test_memory_and_workers(machine, host, veth):
    """One host link a node with its frames there; each worker on its CPU with its memory on its node."""
    daemon = host.start_daemon()
    workers = daemon.workers()
    assert {cpu: worker["node"] for cpu, worker in workers.items()} == NODE_OF_CPU
    for cpu, worker in workers.items():
        assert daemon.allowed(worker["tid"]) == str(cpu)
        assert machine.run(f"cat /proc/{daemon.pid}/task/{worker['tid']}/comm").strip() == f"vhostlane-w{worker['worker']}"

    uplink, = daemon.json("uplink list")
    assert uplink["umem"]["node_found"] in CPUS_OF_NODE and uplink["umem"]["node"] == -1  # a veth is nowhere
    links = {link["node"]: link for link in uplink["host_links"]}
    assert sorted(links) == [0, 1]
    for node, link in links.items():
        assert link["umem"]["node"] == link["umem"]["node_found"] == node

    # The kernel's own books: mappings that ask for a node have their pages there, all of them.
    umem, private = {}, {}
    for policy, name, pages in numa_maps(machine, daemon.pid):
        wanted = re.fullmatch(r"(?:prefer|bind)(?:\([a-z ]+\))?:(\d+)", policy)
        if wanted:
            assert list(pages) == [int(wanted.group(1))], (policy, name, pages)
            kind = umem if "vhostlane-umem" in name else private
            kind[int(wanted.group(1))] = kind.get(int(wanted.group(1)), 0) + sum(pages.values())
    for node, link in links.items():
        assert umem[node] * 4096 == link["umem"]["bytes"]
    assert sorted(private) == [0, 1]  # the workers' own


def test_pairs_go_where_the_guests_memory_is(machine, host, veth):
    """Both pairs of a guest on that guest's node, on a CPU each; bpftool says the same as the daemon."""
    daemon = host.start_daemon(ports=2)
    host.guest(0, node=0)
    host.guest(1, node=1)

    def settled():
        pairs = daemon.pairs()
        return all(pair["node"] == int(port[2:]) for (port, _), pair in pairs.items()) and pairs
    pairs = machine.wait_until(settled, "pairs on the nodes of their guests")
    for (port, _), pair in pairs.items():
        node = int(port[2:])
        assert NODE_OF_CPU[pair["cpu"]] == node
        assert pair["reason"] == "node of the ring's memory", pair
        assert pair["state_node"] == pair["ring_node"] == node, pair
    for port in ("vm0", "vm1"):
        assert pairs[port, 0]["cpu"] != pairs[port, 1]["cpu"]
    ids = {port["name"]: port["id"] for port in daemon.json("port list")}
    for (port, index), value in pairs.items():
        entry = daemon.affinity()[ids[port], index]
        assert (entry["cpu"], entry["node"], entry["worker"]) == (value["cpu"], value["node"], value["worker"])
        assert entry["generation"] == value["generation"]
    # What is for all guests is taken by a worker of the host link's own node.
    nodes = {worker["worker"]: worker["node"] for worker in daemon.workers().values()}
    for node in (0, 1):
        entry, = json.loads(machine.run(f"bpftool -j map dump pinned /sys/fs/bpf/vhostlane/up0/settings_n{node}"))
        assert nodes[entry["formatted"]["value"]["flood_worker"]] == node
    # Host and wire reach both guests through those lanes.
    for carrier in ("--packet wire0", "--packet up0"):
        check_traffic(host.sender(carrier, [0, 1], "--count 2000").wait())
    after = daemon.pairs()
    for key, pair in pairs.items():
        assert after[key]["frames_to_guest"] > pair["frames_to_guest"], key


def test_guest_on_a_node_without_cpus(machine, host, veth):
    """Its pairs go to the nearest node that has some."""
    daemon = host.start_daemon(ports=1)
    host.guest(0, node=2)
    pairs = machine.wait_until(lambda: [p for p in daemon.pairs().values() if p["node"] == 1 and "nearest" in p["reason"]],
                               "pairs on node 1, the nearest")
    assert len(pairs) == 2
    check_traffic(host.sender("--packet wire0", [0], "--count 2000").wait())


def test_pairs_follow_memory_that_moves(machine, host, veth):
    """Re-homing under traffic: the guest's pages go to the other node, and its pairs after them."""
    daemon = host.start_daemon(ports=1)
    guest = host.guest(0, node=0, options="--move-to 1")
    machine.wait_until(lambda: {p["node"] for p in daemon.pairs().values()} == {0}, "pairs on node 0")
    sender = host.sender("--packet wire0", [0])
    machine.run(f"kill -USR1 {guest.pid}")
    guest.wait_line("moved")
    machine.wait_until(lambda: {p["node"] for p in daemon.pairs().values()} == {1}, "pairs on node 1")
    # Told with a reason: that of the memory, or on a machine as crowded as this one another that leads there at once.
    moves = re.findall(r"queue (vm0/\d): moved to worker \d+ on CPU [23] \((.+)\)", daemon.log())
    assert {pair for pair, _ in moves} == {"vm0/0", "vm0/1"}, daemon.log()
    # What vhostlane keeps of a pair went along, by the kernel's word, and what the guest's buffers are on was seen.
    machine.wait_until(lambda: {(p["state_node"], p["ring_node"], p["buffer_node"]) for p in daemon.pairs().values()} == {(1, 1, 1)},
                       "all memory of the pairs on node 1")
    check_traffic(sender.end())
    assert json.loads(guest.end().splitlines()[-1])["reordered"] == 0


def test_pair_avoids_its_guests_own_cpu(machine, host, veth):
    """The guest's thread is bound to one CPU of the node: its pairs go to the other."""
    daemon = host.start_daemon(ports=1, queues=2)
    host.guest(0, node=1, prefix="taskset 0x4")
    host.sender("--packet wire0", [0])
    machine.wait_until(lambda: {p["cpu"] for p in daemon.pairs().values()} == {3}, "both pairs on CPU 3")


def test_moves_under_traffic(machine, host, veth):
    """By the operator's order and by an edit of the map: nothing lost, nothing overtaken, map and daemon agree. Traffic comes by XDP from the
    wire, and by tc and host links from the host's own stack."""
    daemon = host.start_daemon(ports=2)
    guests = [host.guest(0, node=0), host.guest(1, node=1)]
    port_id = {port["name"]: port["id"] for port in daemon.json("port list")}
    senders = [host.sender("--packet wire0", [0, 1]), host.sender("--packet up0", [0, 1], "--id 1")]
    machine.wait_until(lambda: all(p["frames_to_guest"] for p in daemon.pairs().values()), "frames on all pairs")

    for round_number in range(3):
        for cpu in range(CPU_COUNT):
            port, index = f"vm{cpu % 2}", round_number % 2
            before = daemon.pairs()[port, index]
            if cpu % 2:
                daemon.cli(f"queue set {port}/{index} cpu={cpu}")
            else:
                key = f"{port_id[port]} 0 0 0 {index} 0 0 0"
                value = f"{cpu} 0 0 0 0 0 0 0 {before['worker']} 0 0 0 0 0 0 0"
                machine.run(f"bpftool map update pinned /sys/fs/bpf/vhostlane/up0/queue_affinity key {key} value {value}")

            def moved():
                now = daemon.pairs()[port, index]
                entry = daemon.affinity()[port_id[port], index]
                return now["cpu"] == entry["cpu"] == cpu and entry["node"] == NODE_OF_CPU[cpu] and entry["generation"] == now["generation"] and now
            now = machine.wait_until(moved, f"{port}/{index} on CPU {cpu}")
            if before["cpu"] != cpu:
                assert now["generation"] > before["generation"]
            if before["cpu"] != cpu or cpu % 2:  # an edit that changes nothing is none
                assert now["reason"] == "set by the operator"
            machine.wait_until(lambda: daemon.pairs()[port, index]["frames_to_guest"] > now["frames_to_guest"], "traffic after the move")
    results = [json.loads(sender.end(None)) for sender in senders] + [json.loads(guest.end(None).splitlines()[-1]) for guest in guests]
    print(*results, sep="\n")  # which way it was, if a frame was overtaken
    assert all(result["reordered"] == 0 for result in results), results
    for result in results[:2]:
        assert result["lost"] == 0 and result["returned"] > 1000, result


def test_policies_change_under_traffic(machine, host, veth):
    """From per-cpu to one worker a port, to two, unpinned and back: nothing lost, and homes are found again. While workers are not pinned the kernel
    carries them on to other CPUs in the middle of sending, so that on a veth frames overtake: order over moves is asserted in test_moves_under_traffic."""
    daemon = host.start_daemon("--uplink up0 --threads 8", ports=2)
    guests = [host.guest(0, node=0), host.guest(1, node=1)]
    senders = [host.sender("--packet wire0", [0, 1]), host.sender("--packet up0", [0, 1], "--id 1")]

    def workers(port):
        return {pair["worker"] for pair in daemon.pairs(port).values()}

    def map_agrees():
        entries = daemon.affinity()
        return all((entry["worker"], entry["generation"]) == (pair["worker"], pair["generation"])
                   for (port, index), pair in daemon.pairs().items() for entry in [entries[int(port[2:]), index]])
    for words, count in (("policy=per-port", 1), ("policy=multi-worker per-port=2", 2), ("pin=false", 2), ("policy=per-port", 1), ("pin=true", 1),
                         ("policy=per-cpu", None)):  # per-cpu may join what works hardly, or on a crowded machine
        daemon.cli(f"worker set {words}")
        # Not at once: on a crowded machine a worker may not come to run for a while, and its pairs are rescued before they go where they belong.
        machine.wait_until(lambda n=count: not n or [len(workers(port)) for port in ("vm0", "vm1")] == [n, n], f"{count} workers a port, {words}")
        before = daemon.pairs()
        machine.wait_until(lambda b=before: all(p["frames_to_guest"] > b[key]["frames_to_guest"] for key, p in daemon.pairs().items()),
                           f"traffic on all pairs after {words}")
        machine.wait_until(map_agrees, "map and daemon agree")
    machine.wait_until(lambda: {(key[0], pair["node"]) for key, pair in daemon.pairs().items()} == {("vm0", 0), ("vm1", 1)}, "homes found again")
    for sender in senders:
        result = json.loads(sender.end(status=None))
        assert result["lost"] == 0 and result["returned"] > 1000, result
    for guest in guests:
        guest.end(status=None)


def test_impossible_edit_is_put_back(machine, host, veth):
    daemon = host.start_daemon(ports=1)
    host.guest(0, node=1)
    machine.wait_until(lambda: daemon.pairs()["vm0", 0]["node"] == 1, "pair on node 1")
    before = daemon.affinity()[0, 0]
    machine.run("bpftool map update pinned /sys/fs/bpf/vhostlane/up0/queue_affinity key 0 0 0 0 0 0 0 0"
                f" value 77 0 0 0 0 0 0 0 {before['worker']} 0 0 0 0 0 0 0")
    machine.wait_until(lambda: daemon.affinity()[0, 0]["cpu"] == daemon.pairs()["vm0", 0]["cpu"], "edit put back")
    assert "no worker runs on that CPU" in daemon.log()


def test_taskset_restricts_workers(machine, host, veth):
    """Started under a mask, the daemon takes the CPUs of that mask, and memory of their nodes."""
    daemon = host.start_daemon(ports=1, prefix="taskset 0xc")
    assert sorted(daemon.workers()) == [2, 3]
    uplink, = daemon.json("uplink list")
    assert [link["node"] for link in uplink["host_links"]] == [1]
    host.guest(0, node=0)
    # Before there is traffic, whose load may be a reason for another move.
    machine.wait_until(lambda: any("nearest" in pair["reason"] for pair in daemon.pairs().values()), "reason: nearest node")
    check_traffic(host.sender("--packet wire0", [0], "--count 2000").wait())
    assert {pair["node"] for pair in daemon.pairs().values()} == {1}
    status, output = machine.call("taskset 0xc vhostlane run --cpus 0,2 --control /run/vhostlane/other.sock")
    assert status != 0 and "CPU 0" in output, output
