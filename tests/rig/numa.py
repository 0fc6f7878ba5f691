# SPDX-License-Identifier: BSD-2-Clause
"""A host with NUMA nodes, as a virtual machine under QEMU's TCG, with vhostlane and raw guests inside.

It is driven like a test guest (tests/guest/guest.py) and has, beside busybox: vhostlane with its libraries and BPF objects, bpftool,
iproute2's ip and tc, xdp-loader and xdp-filter, `numbered` (numbered.c: guests with memory on a chosen node, and senders), `confined`
(confined.c: a program that sees nothing of the guests).
Emulation knows no slow memory: assert placement here, never speed.

    node 0: CPUs 0-1, 512 MB     node 1: CPUs 2-3, 512 MB     node 2: no CPU, 128 MB, nearer to node 1
    two more CPUs can be plugged into node 1, as CPUs 4 and 5
    a virtio-net NIC of four queues on node 1, behind it a tap in a network namespace of this machine

Other kernels and QEMUs (scripts/check-kernels.sh):
    VHOSTLANE_TEST_KERNEL  .../boot/vmlinuz-VERSION, with its modules in .../lib/modules/VERSION
    VHOSTLANE_TEST_QEMU    directory into which QEMU's packages were unpacked
"""
import glob
import json
import os
import select
import shlex
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in ("lib", "guest"):
    sys.path.insert(0, os.path.join(HERE, "..", directory))

from guest import BUILD, Guest, GuestError, kernel  # noqa: E402 pylint: disable=wrong-import-position
from rig import BINARY, ROOT, Namespace, RigError, unique  # noqa: E402 pylint: disable=wrong-import-position

MAKE_INITRAMFS = os.path.join(HERE, "..", "guest", "make-initramfs.sh")
# What a host of the distribution loads by itself when it is needed.
MODULES = "veth tun sch_ingress cls_bpf"
PROGRAMS = ("bpftool", "ip", "tc", "ethtool", "xdp-loader", "xdp-filter", "taskset", "chrt")
LIBXDP_OBJECTS = "/usr/lib/x86_64-linux-gnu/bpf"

CPUS_OF_NODE = {0: "0-1", 1: "2-3", 2: ""}
MEGABYTES_OF_NODE = {0: 512, 1: 512, 2: 128}
DISTANCES = {(0, 1): 21, (0, 2): 31, (1, 2): 15}
CPU_COUNT = 4
SPARE_CPU, SPARE_NODE = CPU_COUNT, 1
PLUG_TIMEOUT = 60  # after which a CPU that was plugged in is not expected to appear any more
CRASH_TIMEOUT = 10
SYSRQ_SECONDS = 3  # of silence, after which a report is complete
CONSOLE_REPORTED = 200000  # characters
NIC_NODE, NIC_QUEUES, NIC_MAC = 1, 4, "52:54:00:6e:00:01"

# Only ends a hang: the machine may be slow, and others may use it.
TIMEOUT = 120


def check_traffic(output):
    """What a sender printed: it sent a lot, and everything came back in order."""
    result = json.loads(output)
    assert result["lost"] == 0 and result["reordered"] == 0, result
    assert result["returned"] > 1000, result
    return result


def own_path(machine, what):
    """A file of the build tree for one machine of this process."""
    return os.path.join(BUILD, f"{what}.{os.getpid()}.{machine}")


def tool(path, *sources):
    """A program of this directory, static, so that it runs in the machine and beside it."""
    os.makedirs(BUILD, exist_ok=True)
    sources = [os.path.join(HERE, source) for source in sources]
    subprocess.run([os.environ.get("CC", "gcc"), "-static", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-D_GNU_SOURCE",
                    "-o", path, *sources], check=True)
    return path


def initramfs(path, files=(), programs=()):
    """Built for each run: it holds the newest daemon. `files`: pairs of source and target."""
    os.makedirs(BUILD, exist_ok=True)
    objects = [(name, f"/usr/lib/vhostlane/{os.path.basename(name)}") for name in glob.glob(os.path.join(ROOT, "build", "bpf", "*.bpf.o"))]
    objects += [(name, name) for name in glob.glob(os.path.join(LIBXDP_OBJECTS, "xdp*.o"))]
    scripts = [(name, f"/rig/{os.path.basename(name)}") for name in glob.glob(os.path.join(HERE, "*.sh"))]
    environment = dict(os.environ, MODULES=MODULES,
                       FILES=" ".join(f"{source}:{target}" for source, target in [*objects, *scripts, *files]))
    subprocess.run([MAKE_INITRAMFS, path, BINARY, *PROGRAMS, *programs], check=True, env=environment)
    return path


def emulator_version():
    """(major, minor) of the QEMU that runs the machine."""
    unpacked = os.environ.get("VHOSTLANE_TEST_QEMU")
    program = f"{unpacked}/usr/bin/qemu-system-x86_64" if unpacked else "qemu-system-x86_64"
    text = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return tuple(int(part) for part in text.split("version ")[1].split(".")[:2])


class EmulatorFault(Exception):
    """What the emulator owes its machine did not happen: nothing is found out about the daemon."""


class Tap:
    """The far end of the machine's NIC: a tap in a namespace of this machine."""

    def __init__(self, rig):
        self.namespace, self.ifname = Namespace(rig), unique("t")
        self.namespace.sh(f"ip tuntap add dev {self.ifname} mode tap multi_queue && "
                          f"echo 1 > /proc/sys/net/ipv6/conf/{self.ifname}/disable_ipv6; ip link set {self.ifname} up")

        self.mac = json.loads(self.namespace.sh(f"ip -j link show {self.ifname}"))[0]["address"]

    def device(self):
        """QEMU's arguments. Without legacy interface and with an IOMMU's rules, as zero-copy AF_XDP needs it."""
        return ["-device", f"pxb-pcie,id=pxb,bus_nr=128,bus=pcie.0,numa_node={NIC_NODE}",
                "-device", "pcie-root-port,id=nicport,bus=pxb,chassis=1,slot=1",
                "-netdev", f"tap,id=nic,ifname={self.ifname},script=no,downscript=no,queues={NIC_QUEUES},vhost=off",
                "-device", f"virtio-net-pci,netdev=nic,bus=nicport,mq=on,vectors={2 * NIC_QUEUES + 2},mac={NIC_MAC},romfile=,"
                           "disable-legacy=on,iommu_platform=on"]


class NumaMachine(Guest):
    def __init__(self, rig, name="numa", files=(), programs=(), nic=True):
        self.rig = rig
        self.tap = Tap(rig) if nic else None
        self.lost = None  # why nothing is to be expected of it any more
        super().__init__(name, rig.directory, self.tap.device() if nic else [], cpus=CPU_COUNT)
        self.numbered = tool(own_path(name, "numbered"), "numbered.c", "vhost_carrier.c", "packet_carrier.c")
        rig.undo(lambda: os.unlink(self.numbered))
        confined = tool(own_path(name, "confined"), "confined.c")
        rig.undo(lambda: os.unlink(confined))
        self.initramfs = initramfs(own_path(name, "rig.cpio"), [(self.numbered, "/bin/numbered"), (confined, "/bin/confined"), *files], programs)
        rig.undo(lambda: os.unlink(self.initramfs))
        rig.undo(self.kill)

    def qemu(self):
        unpacked = os.environ.get("VHOSTLANE_TEST_QEMU")
        if not unpacked:
            return ["qemu-system-x86_64"]
        share = os.path.join(unpacked, "usr/share")
        return [f"{unpacked}/usr/bin/qemu-system-x86_64", "-L", f"{share}/qemu", "-L", f"{share}/seabios"]

    def command(self):
        numa = []
        for node, cpus in {**CPUS_OF_NODE, SPARE_NODE: f"2-{SPARE_CPU + 1}"}.items():
            numa += ["-object", f"memory-backend-ram,id=m{node},size={MEGABYTES_OF_NODE[node]}M",
                     "-numa", f"node,nodeid={node},memdev=m{node}" + (f",cpus={cpus}" if cpus else "")]
        for (a, b), distance in DISTANCES.items():
            numa += ["-numa", f"dist,src={a},dst={b},val={distance}"]
        enter = self.tap.namespace.wrap([]) if self.tap else []
        # QEMU 7.2 lacks a half of cmpxchg16b that kernels from 6.12 on try out at boot.
        return (enter + self.qemu() + ["-name", self.name, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,-cx16",
                "-smp", f"{CPU_COUNT},maxcpus={CPU_COUNT + 2},sockets=3,cores=2,threads=1", "-m", str(sum(MEGABYTES_OF_NODE.values()))] + numa +
                ["-kernel", kernel(), "-initrd", self.initramfs, "-append", "console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off sysrq_always_enabled",
                 "-display", "none", "-no-reboot", "-nodefaults", "-no-user-config",
                 "-chardev", f"socket,id=console,path={self.path('keys')},server=on,wait=off,logfile={self.path('console')}",
                 "-serial", "chardev:console", "-qmp", f"unix:{self.path('qmp')},server=on,wait=off",
                 "-chardev", f"socket,id=agent,path={self.path('agent')},server=on,wait=off", "-serial", "chardev:agent"] +
                self.devices)

    def start(self):
        unpacked = os.environ.get("VHOSTLANE_TEST_QEMU")
        if unpacked:
            os.environ["QEMU_MODULE_DIR"] = glob.glob(f"{unpacked}/usr/lib/*/qemu")[0]
        return super().start()

    def boot(self):
        """Up, with what a host has mounted."""
        self.start().wait_up()
        self.run("mount -t bpf bpf /sys/fs/bpf; mount -t cgroup2 cgroup2 /sys/fs/cgroup")
        return self

    def emulator_crashed(self):
        """Asked once its machine no longer answers."""
        try:
            return self.process.wait(CRASH_TIMEOUT) < 0
        except subprocess.TimeoutExpired:
            return False

    def call(self, command, timeout=TIMEOUT):
        if self.lost:
            raise GuestError(f"told: {command}: {self.lost}")
        try:
            return super().call(command, timeout)
        except (GuestError, OSError) as error:
            self.lost = "the machine does not answer any more, see the first test that says so"
            report = f"it was told: {command}\n{self.what_its_kernel_does() if self.alive() else ''}{self.logs(CONSOLE_REPORTED)}"
            raise GuestError(f"the machine {'does not answer' if self.alive() else f'is gone ({self.process.poll()})'}, {report}") from error

    def what_its_kernel_does(self):
        """Has the kernel print on its console which tasks wait and what the CPUs run; the end of a hang's search, or its beginning."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keys:
                keys.connect(self.path("keys"))
                for key in b"9tlw":  # all that it tells; tasks, CPUs, tasks that wait
                    self.qmp("chardev-send-break", id="console")
                    time.sleep(0.2)  # or the key is taken for part of the break
                    keys.sendall(bytes([key]))
                    while select.select([keys], [], [], SYSRQ_SECONDS)[0] and keys.recv(65536):
                        pass  # it is in the log as well; but nobody else takes it
            return ""
        except (OSError, ValueError, GuestError) as error:
            return f"(its kernel can't be asked: {error})\n"

    def wait_until(self, condition, what, timeout=TIMEOUT):
        """Waits until condition() is true; returns its value. A failed command counts as not yet."""
        deadline, last = time.monotonic() + timeout, None
        while time.monotonic() < deadline:
            try:
                value = condition()
                if value:
                    return value
            except (GuestError, ValueError, KeyError, IndexError) as error:
                if self.lost:
                    raise
                last = error
            time.sleep(0.2)
        raise RigError(f"not within {timeout} s: {what}" + (f" (last: {last})" if last else ""))

    def set_cpu(self, cpu, online):
        self.run(f"echo {1 if online else 0} > /sys/devices/system/cpu/cpu{cpu}/online")

    def qmp(self, command, **arguments):
        """A command of QEMU's machine protocol; what it returns."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as monitor:
            monitor.settimeout(TIMEOUT)
            monitor.connect(self.path("qmp"))
            with monitor.makefile("rw") as lines:
                for execute, given in (("qmp_capabilities", {}), (command, arguments)):
                    print(json.dumps({"execute": execute, "arguments": given}), file=lines, flush=True)
                    answer = {}
                    while "return" not in answer:  # greeting and events pass by
                        answer = json.loads(lines.readline())
                        if "error" in answer:
                            raise GuestError(f"{command}: {answer['error']['desc']}")
                return answer["return"]

    def plug_cpu(self):
        """The spare CPU comes into the machine, and online."""
        self.qmp("device_add", driver="max-x86_64-cpu", id="spare", **{"socket-id": 2, "core-id": 0, "thread-id": 0})
        try:
            self.wait_until(lambda: not self.call(f"test -e /sys/devices/system/cpu/cpu{SPARE_CPU}")[0], "the CPU in the machine", PLUG_TIMEOUT)
        except RigError as error:
            raise EmulatorFault(str(error)) from error
        self.set_cpu(SPARE_CPU, True)

    def pull_cpu(self):
        """It is taken out as it is, in use."""
        self.qmp("device_del", id="spare")
        self.wait_until(lambda: not any(cpu.get("qom-path", "").endswith("/spare") for cpu in self.qmp("query-hotpluggable-cpus")),
                        "the CPU out of the machine")

    def veth(self, uplink="up0", wire="wire0", queues=2):
        """Two queues for four workers, so that workers of both nodes meet at the same rings."""
        self.run(f"/bin/ip link add {uplink} numrxqueues {queues} numtxqueues {queues} type veth peer name {wire}"
                 f" numrxqueues {queues} numtxqueues {queues} && for end in {uplink} {wire}; do"
                 f" echo 1 > /proc/sys/net/ipv6/conf/$end/disable_ipv6; /bin/ip link set $end up; done;"
                 # Without a queue a full ring loses frames.
                 f" ethtool -K {wire} tx off >/dev/null; /bin/tc qdisc add dev {wire} root pfifo; /bin/tc qdisc add dev {uplink} root pfifo")


class Process:
    """A program in the background of the machine, known by its process id."""

    def __init__(self, machine, command, prefix=""):
        machine.jobs += 1
        self.machine, self.command, self.base = machine, command, f"/tmp/process.{machine.jobs}"
        # The shell that waits for it takes its exit status along.
        self.pid = int(machine.run(f"( {prefix} {command} >{self.base}.out 2>{self.base}.err & echo $! >{self.base}.pid; wait $!;"
                                   f" echo $? >{self.base}.rc.new; mv {self.base}.rc.new {self.base}.rc ) >/dev/null 2>&1 &"
                                   f" while ! [ -s {self.base}.pid ]; do sleep 0.01; done; cat {self.base}.pid"))

    def output(self):
        return self.machine.run(f"cat {self.base}.out")

    def log(self):
        return self.machine.run(f"cat {self.base}.err")

    def alive(self):
        return self.machine.call(f"test -e {self.base}.rc")[0] != 0

    def wait_line(self, line):
        def seen():
            if self.machine.call(f"grep -qx {shlex.quote(line)} {self.base}.out")[0] == 0:
                return True
            if not self.alive():
                raise RigError(f"ended: {self.command}\n{self.output()}{self.log()}")
            return False
        self.machine.wait_until(seen, f"{line} of {self.command}")
        return self

    def end(self, status=0):
        """SIGTERM; its output. Any other exit status than this one is an error (None: all will do)."""
        self.machine.call(f"kill {self.pid}")
        return self.wait(status)

    def wait(self, status=0):
        self.machine.wait_until(lambda: not self.alive(), f"end of {self.command}")
        code = int(self.machine.run(f"cat {self.base}.rc"))
        if status is not None and code != status:
            raise RigError(f"exit {code}, not {status}: {self.command}\n{self.output()}{self.log()[-6000:]}")
        return self.output()

    def kill(self):
        if self.alive():
            self.machine.call(f"kill -9 {self.pid}")
            self.machine.wait_until(lambda: not self.alive(), f"end of {self.command}")


class HostDaemon(Process):
    """`vhostlane run` in the machine."""

    def __init__(self, machine, arguments, prefix=""):
        machine.run("mkdir -p /run/vhostlane")
        self.control = "/run/vhostlane/control.sock"
        super().__init__(machine, f"vhostlane run --control {self.control} {arguments}", f"ulimit -l unlimited; exec {prefix}")
        self.wait_line("ready")

    def cli(self, words):
        return self.machine.run(f"vhostlane {words} --control {self.control}")

    def json(self, words):
        return json.loads(self.cli(f"{words} --json"))

    def workers(self):
        """By CPU."""
        return {worker["cpu"]: worker for worker in self.json("worker list")}

    def pairs(self, port=None):
        """By (port, pair)."""
        return {(pair["port"], pair["pair"]): pair for pair in self.json("queue list") if port in (None, pair["port"])}

    def affinity(self, uplink="up0"):
        """The map as bpftool shows it, by (port id, pair)."""
        text = self.machine.run(f"bpftool -j map dump pinned /sys/fs/bpf/vhostlane/{uplink}/queue_affinity")
        return {(e["formatted"]["key"]["port"], e["formatted"]["key"]["queue_pair"]): e["formatted"]["value"] for e in json.loads(text)}

    def allowed(self, tid):
        """CPUs on which the kernel lets a thread run."""
        return self.machine.run(f"sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/{self.pid}/task/{tid}/status").strip()
