# SPDX-License-Identifier: BSD-2-Clause
"""What tests with real interfaces share: unique names, a wire (veth and a namespace behind it), the daemon's start and stop.

Everything made here is registered with the Rig that made it and undone in reverse order, whatever happened in between.
A namespace is entered with nsenter, never with `ip netns exec`, which would hide bpffs.
"""
import atexit
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.path.join(ROOT, os.environ.get("VHOSTLANE_BUILD", "build"))
BINARY = os.path.join(BUILD, "vhostlane")
BPFFS = "/sys/fs/bpf/vhostlane"

READY_TIMEOUT = 90  # normally well below a second; sanitizers and crowded machines take longer
STOP_TIMEOUT = 90
WAIT_TIMEOUT = 60
DAMAGE = re.compile(r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|UndefinedBehaviorSanitizer|runtime error:")

_numbers = itertools.count()


class RigError(Exception):
    """Something that a test relies on did not happen."""


def unique(letter):
    """An interface or namespace name that no other process makes: at most ten characters."""
    return f"vt{os.getpid() % 0x100000:05x}{letter}{next(_numbers)}"


def sh(command, check=True, timeout=WAIT_TIMEOUT):
    """Runs a shell command or an argument list; returns its output (stdout and stderr)."""
    result = subprocess.run(command, shell=isinstance(command, str), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)
    if check and result.returncode:
        raise RigError(f"exit {result.returncode}: {command}\n{result.stdout}")
    return result.stdout


def wait_for(condition, what, timeout=WAIT_TIMEOUT, pause=0.1):
    """Waits until condition() is true; returns its value. An exception of the condition counts as not yet."""
    deadline = time.monotonic() + timeout
    last = None
    while time.monotonic() < deadline:
        try:
            value = condition()
            if value:
                return value
        except (RigError, OSError, ValueError, KeyError, IndexError) as error:
            last = error
        time.sleep(pause)
    raise RigError(f"not within {timeout} s: {what}" + (f" (last: {last})" if last else ""))


def mount_bpffs():
    if not os.path.ismount("/sys/fs/bpf"):
        sh("mount -t bpf bpf /sys/fs/bpf")


def subnet():
    """The first three octets of a network for tests (198.18.0.0/15, RFC 2544) that nobody here uses yet."""
    for _ in range(512):
        number = (os.getpid() * 7 + next(_numbers)) % 512
        prefix = f"198.{18 + number // 256}.{number % 256}"
        if f"{prefix}." not in sh(["ip", "-4", "addr", "show"]):
            return prefix
    raise RigError("all of 198.18.0.0/15 is in use here")


def free_port():
    """A TCP and UDP port for a server of this process."""
    return 20000 + (os.getpid() * 16 + next(_numbers)) % 12000


class Namespace:
    def __init__(self, rig):
        self.name = unique("w")
        sh(["ip", "netns", "add", self.name])
        rig.undo(lambda: sh(["ip", "netns", "del", self.name], check=False))
        self.sh("ip link set lo up")

    def wrap(self, command):
        """The argument list that runs a command (list or shell text) inside."""
        inner = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return ["nsenter", f"--net=/run/netns/{self.name}"] + inner

    def sh(self, command, check=True, timeout=WAIT_TIMEOUT):
        return sh(self.wrap(command), check, timeout)


class Wire:
    """An uplink (this side) whose far end lies in a namespace: what stands behind it plays the LAN."""

    def __init__(self, rig, queues=2, host_address=None, wire_address=None, mtu=1500, ipv6=False):
        self.rig = rig
        self.namespace = Namespace(rig)
        self.uplink, self.peer = unique("u"), unique("p")
        far = self.namespace
        # The far end is made inside, so that no daemon of the machine ever configures it.
        sh(f"ip link add {self.uplink} mtu {mtu} numrxqueues {queues} numtxqueues {queues} type veth"
           f" peer name {self.peer} netns {far.name} mtu {mtu} numrxqueues {queues} numtxqueues {queues}")
        rig.undo(lambda: sh(["ip", "link", "del", self.uplink], check=False))
        for end, run in ((self.uplink, sh), (self.peer, far.sh)):
            if not ipv6:
                run(f"echo 1 > /proc/sys/net/ipv6/conf/{end}/disable_ipv6")
            run(f"ip link set {end} up")
        # A veth hands on checksums that nobody has computed yet; real wires don't. And without a queue a full ring loses frames.
        # VLAN tags likewise travel beside the frame; on a wire they are in it.
        far.sh(f"ethtool -K {self.peer} tx off txvlan off && tc qdisc add dev {self.peer} root pfifo")
        self.ifindex = int(sh(f"cat /sys/class/net/{self.uplink}/ifindex"))
        self.mac = sh(f"cat /sys/class/net/{self.uplink}/address").strip()
        self.peer_mac = far.sh(["ip", "-j", "link", "show", self.peer])
        self.peer_mac = json.loads(self.peer_mac)[0]["address"]
        if host_address:
            sh(f"ip addr add {host_address} dev {self.uplink}")
        if wire_address:
            far.sh(f"ip addr add {wire_address} dev {self.peer}")

    def sh(self, command, check=True, timeout=WAIT_TIMEOUT):
        """Runs a command on the LAN side."""
        return self.namespace.sh(command, check, timeout)

    def trace(self):
        """All that a daemon could leave behind on this uplink, as text to compare."""
        parts = [re.sub(r"(?m)^\s+(RX|TX):.*\n.*\n", "", sh(f"ip -d link show dev {self.uplink}")),
                 sh(f"tc qdisc show dev {self.uplink}"),
                 sh(f"tc filter show dev {self.uplink} ingress", check=False),
                 sh(f"tc filter show dev {self.uplink} egress", check=False),
                 sh(f"ethtool -k {self.uplink}"),
                 sh(f"bpftool net show dev {self.uplink}"),
                 sh(f"ip -o link | grep -o 'vhl{self.ifindex}n[0-9]*e*' | sort -u", check=False),
                 sh(f"find {BPFFS}/{self.uplink} 2>/dev/null | sort", check=False)]
        for attribute in ("gro_flush_timeout", "napi_defer_hard_irqs", "threaded"):
            parts.append(sh(f"cat /sys/class/net/{self.uplink}/{attribute}", check=False))
        return "\n---\n".join(parts)


class Daemon:
    """One `vhostlane run`. Its log is kept in the rig's directory and shown when something goes wrong."""

    def __init__(self, rig, *arguments, start=True, environment=None, binary=None, direct=False):
        self.rig, self.direct = rig, direct
        self.binary = binary or BINARY
        self.control = os.path.join(rig.directory, unique("c") + ".sock")
        self.log_path = os.path.join(rig.directory, unique("log"))
        self.arguments = list(arguments)
        self.environment = dict(os.environ, **(environment or {}))
        self.process = None
        self.ready = threading.Event()
        rig.undo(self.end)
        if start:
            self.start()

    def start(self, expect_ready=True):
        self.ready.clear()
        command = [self.binary, "run", "--control", self.control] + self.arguments
        with open(self.log_path, "a") as log:
            log.write("$ " + " ".join(command) + "\n")
            log.flush()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                                            env=self.environment)
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
        if expect_ready:
            deadline = time.monotonic() + READY_TIMEOUT
            while not self.ready.wait(0.05):
                if self.process.poll() is not None:
                    raise RigError(f"vhostlane ended with {self.process.returncode} before it was ready\n{self.log()}")
                if time.monotonic() > deadline:
                    raise RigError(f"vhostlane not ready within {READY_TIMEOUT} s\n{self.log()}")
        return self

    def _read(self, stream):
        for line in stream:
            if line.strip() == "ready":
                self.ready.set()

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()[-20000:]

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def cli(self, *words, check=True):
        """A verb of the command line against this daemon; returns its output."""
        return sh([self.binary, *words, "--control", self.control], check=check)

    def call(self, method, **params):
        """A method of the control socket, without the command line between."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(WAIT_TIMEOUT)
            client.connect(self.control)
            client.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
            with client.makefile() as lines:
                answer = json.loads(lines.readline())
        if "error" in answer:
            raise RigError(f"{method} {params}: {answer['error']['message']}")
        return answer["result"]

    def json(self, *words):
        """What the command line prints by --json; direct: what only shows is asked of the daemon itself, which gives the same
        (tests/frontend/test_command_line.py) and takes no program with sanitizers to start."""
        if self.direct and words[:2] == ("port", "show"):
            return self.call("port.show", name=words[2])
        if self.direct and (words[1:] == ("list",) or words == ("status",)):
            return self.call(".".join(words))
        return json.loads(self.cli(*words, "--json"))

    def stop(self, status=0):
        """SIGTERM, and the exit status that must follow; any finding of a sanitizer is a failure."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            got = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise RigError(f"vhostlane did not end within {STOP_TIMEOUT} s of SIGTERM\n{self.log()}") from error
        self.process = None
        if got != status:
            raise RigError(f"vhostlane ended with {got} instead of {status}\n{self.log()}")
        self.check_log()

    def check_log(self):
        if DAMAGE.search(self.log()):
            raise RigError(f"a sanitizer found something\n{self.log()}")

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self):
        """For cleaning up: an orderly end if it is possible, because a killed daemon leaves its programs attached."""
        try:
            self.stop()
        finally:
            self.kill()


class Rig:
    """Owns what a test makes. `with Rig() as rig:`, or a fixture that calls close()."""

    def __init__(self):
        self.actions = []
        self.daemons = []
        self.directory = tempfile.mkdtemp(prefix="vhostlane-test.")
        self.undo(lambda: shutil.rmtree(self.directory, ignore_errors=True))
        atexit.register(self.close)
        # A test run that is told to end shall clean up as after Ctrl-C.
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)

    def undo(self, action):
        self.actions.append(action)

    def close(self):
        """Undoes everything; the first error is raised when all is done."""
        first = None
        while self.actions:
            try:
                self.actions.pop()()
            except Exception as error:  # pylint: disable=broad-except
                first = first or error
        atexit.unregister(self.close)
        if first:
            raise first

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            self.close()
        except Exception:  # pylint: disable=broad-except
            if value is None:
                raise

    def path(self, name):
        return os.path.join(self.directory, name)

    def wire(self, **options):
        wire = Wire(self, **options)
        self.undo(lambda: self.forget_uplink(wire.uplink, wire.ifindex))
        return wire

    @staticmethod
    def forget_uplink(ifname, ifindex):
        """Removes what a killed daemon left; nothing is left after an orderly end."""
        shutil.rmtree(os.path.join(BPFFS, ifname), ignore_errors=True)
        for link in sh(f"ip -o link | grep -o 'vhl{ifindex}n[0-9]*' | sort -u", check=False).split():
            sh(["ip", "link", "del", link], check=False)

    def daemon(self, *arguments, **options):
        start = options.pop("start", True)
        daemon = Daemon(self, *arguments, start=False, **options)
        self.daemons.append(daemon)
        return daemon.start() if start else daemon

    def background(self, command, namespace=None):
        """A process that is killed at the end."""
        if namespace is not None:
            command = namespace.wrap(command)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, shell=isinstance(command, str))

        def end():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
        self.undo(end)
        return process


class HugePages:
    """2 MB pages for DPDK, given back at the end. Adds to what is there already, because others may use it."""

    def __init__(self, rig, pages):
        path = "/proc/sys/vm/nr_hugepages"
        free = int(re.search(r"HugePages_Free:\s+(\d+)", sh("cat /proc/meminfo")).group(1))
        before = int(sh(f"cat {path}"))
        if free < pages:
            def give_back():
                with open(path, "w") as file:
                    file.write(str(before))
            rig.undo(give_back)
            with open(path, "w") as file:
                file.write(str(before + pages - free))
        os.makedirs("/dev/hugepages", exist_ok=True)
        if not os.path.ismount("/dev/hugepages"):
            sh("mount -t hugetlbfs hugetlbfs /dev/hugepages")
            rig.undo(lambda: sh("umount /dev/hugepages", check=False))
        self.free = int(re.search(r"HugePages_Free:\s+(\d+)", sh("cat /proc/meminfo")).group(1))
        self.enough = self.free >= pages
