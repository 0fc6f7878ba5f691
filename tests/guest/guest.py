#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""A Linux guest under QEMU's TCG, driven through an agent on its second serial port.

As a library:
    guest = Guest("a", directory, [vhost_user("/tmp/vm1.sock", mac="52:54:00:00:00:01", queues=2)])
    guest.start(); guest.wait_up()
    guest.run("ping -c 1 192.0.2.1")       # output, or GuestError
    guest.stop()

As a program, for shell scripts:
    guest.py start --name a --directory DIR --vhost-user SOCKET,mac=..,queues=N     prints QEMU's process id
    guest.py wait --name a --directory DIR
    guest.py run --name a --directory DIR COMMAND                                   exits with the command's status
"""
import argparse
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", "build", "guest")

BOOT_TIMEOUT = 240  # a guest under emulation on a crowded machine; normally it is up in about five seconds
RUN_TIMEOUT = 120
BOOTS = 3
# TCG with several vCPUs may run a breakpoint that the kernel had put there and taken away again while it patched its code (newer kernels do so
# late in their boot), and the kernel, which knows of none, panics: the emulator's fault, and gone with the next boot.
STALE_BREAKPOINT = "int3: 0000 "


class GuestError(Exception):
    """A command in a guest failed, or the guest did not come up."""


def accelerator(cpu="max"):
    """TCG always: tests must show the same on machines with and without KVM."""
    return ["-accel", "tcg,thread=multi", "-cpu", cpu]


def kernel():
    return subprocess.run([os.path.join(HERE, "kernel.sh")], check=True, capture_output=True, text=True).stdout.strip()


def initramfs(programs=()):
    """The initramfs, with further programs of this machine, built anew when what goes into it is newer."""
    path = os.path.join(BUILD, "-".join(("initramfs", *programs)) + ".cpio")
    parts = [os.path.join(HERE, n) for n in ("agent.c", "xfer.c", "init", "make-initramfs.sh")] + [kernel()]
    os.makedirs(BUILD, exist_ok=True)
    with open(os.path.join(BUILD, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path) or any(os.path.getmtime(p) > os.path.getmtime(path) for p in parts):
            subprocess.run([os.path.join(HERE, "make-initramfs.sh"), path, *programs], check=True)
    return path


def xfer():
    """The byte mover for this machine's side (the initramfs holds the same program)."""
    source, path = os.path.join(HERE, "xfer.c"), os.path.join(BUILD, "xfer")
    os.makedirs(BUILD, exist_ok=True)
    with open(os.path.join(BUILD, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path) or os.path.getmtime(source) > os.path.getmtime(path):
            subprocess.run([os.environ.get("CC", "gcc"), "-static", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE",
                            "-o", path + ".new", source], check=True)
            os.rename(path + ".new", path)
    return os.path.abspath(path)


def vhost_user(path, mac, queues=1, server=False, reconnect=0, extra=""):
    """QEMU's arguments for one vhost-user device. `server`: QEMU listens (vhostlane's role is client)."""
    number = vhost_user.count = getattr(vhost_user, "count", 0) + 1
    chardev = f"socket,id=c{number},path={path}"
    if server:
        chardev += ",server=on,wait=off"
    elif reconnect:
        chardev += f",reconnect={reconnect}"
    device = f"virtio-net-pci,netdev=n{number},mac={mac},vectors=0,romfile="
    if queues > 1:
        device += ",mq=on"
    return ["-chardev", chardev, "-netdev", f"vhost-user,id=n{number},chardev=c{number},queues={queues}",
            "-device", device + extra]


def netdev(backend, mac, extra=""):
    """Any other QEMU network backend, e.g. netdev("socket,listen=:1234", mac): proves the harness without vhostlane."""
    number = vhost_user.count = getattr(vhost_user, "count", 0) + 1
    kind, _, rest = backend.partition(",")
    return ["-netdev", f"{kind},id=n{number},{rest}".rstrip(","),
            "-device", f"virtio-net-pci,netdev=n{number},mac={mac},romfile={extra}"]


class Agent:
    """The line protocol of agent.c, from the outside. One command at a time; threads may share an agent."""

    def __init__(self, path):
        self.path = path
        self.socket = None
        self.buffer = b""
        self.number = int(time.monotonic() * 1000) & 0xFFFFFFF
        self.lock = threading.Lock()

    def _connect(self):
        if self.socket is None:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.connect(self.path)
            self.buffer = b""

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _receive(self, deadline):
        self.socket.settimeout(max(0.01, deadline - time.monotonic()))
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the agent's port was closed")
        self.buffer += data

    def _line(self, deadline):
        while b"\n" not in self.buffer:
            self._receive(deadline)
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.decode(errors="replace")

    def ping(self, timeout):
        """The guest's boot id, or None when the agent does not answer in time."""
        with self.lock:
            deadline = time.monotonic() + timeout
            try:
                self._connect()
                self.number += 1
                self.socket.sendall(f"\n@PING {self.number}\n".encode())
                while True:
                    words = self._line(deadline).split()
                    if len(words) == 3 and words[:2] == ["@PONG", str(self.number)]:
                        return words[2]
            except (OSError, ConnectionError):
                self.close()
                return None

    def run(self, command, timeout):
        """Exit code and output of a shell command in the guest."""
        with self.lock:
            # The guest ends the command; the seconds on top are for a port under emulation.
            deadline = time.monotonic() + timeout + 60
            self._connect()
            self.number += 1
            data = command.encode()
            self.socket.sendall(f"\n@RUN {self.number} {int(timeout)} {len(data)}\n".encode() + data)
            try:
                while True:
                    words = self._line(deadline).split()
                    if len(words) == 4 and words[:2] == ["@DONE", str(self.number)]:
                        break
                status, length = int(words[2]), int(words[3])
                while len(self.buffer) < length:
                    self._receive(deadline)
            except (OSError, ConnectionError) as error:
                self.close()
                raise GuestError(f"no answer from the guest to: {command}: {error}") from error
            output, self.buffer = self.buffer[:length], self.buffer[length:]
            return status, output.decode(errors="replace")


class Job:
    """A command that runs in the background of a guest."""

    def __init__(self, guest, command):
        guest.jobs += 1
        self.guest, self.command, self.base = guest, command, f"/tmp/job.{guest.jobs}"
        guest.run(f"( ( {command}\n ) >{self.base}.out 2>&1; echo $? >{self.base}.rc.new;"
                  f" mv {self.base}.rc.new {self.base}.rc ) &")

    def done(self):
        return self.guest.call(f"test -e {self.base}.rc")[0] == 0

    def wait(self, timeout=RUN_TIMEOUT):
        deadline = time.monotonic() + timeout
        while not self.done():
            if time.monotonic() > deadline:
                raise GuestError(f"{self.guest.name}: not done after {timeout} s: {self.command}\n{self.output()}")
            time.sleep(0.3)
        status = int(self.guest.run(f"cat {self.base}.rc"))
        if status:
            raise GuestError(f"{self.guest.name}: exit {status}: {self.command}\n{self.output()}")
        return self.output()

    def output(self):
        return self.guest.run(f"cat {self.base}.out")


class Guest:
    def __init__(self, name, directory, devices, cpus=1, memory=192, reboot=False, share=True, programs=(), cpu="max"):
        self.name, self.directory, self.devices, self.programs, self.cpu = name, directory, devices, programs, cpu
        self.cpus, self.memory, self.reboot, self.share = cpus, memory, reboot, share
        self.agent = Agent(os.path.join(directory, f"{name}.agent"))
        self.process = None
        self.boot_id = None
        self.jobs = 0

    def path(self, what):
        return os.path.join(self.directory, f"{self.name}.{what}")

    def command(self):
        share = "on" if self.share else "off"
        return (["qemu-system-x86_64", "-name", self.name] + accelerator(self.cpu) +
                ["-smp", str(self.cpus), "-m", str(self.memory),
                 "-object", f"memory-backend-memfd,id=m,size={self.memory}M,share={share}", "-numa", "node,memdev=m",
                 "-kernel", kernel(), "-initrd", initramfs(self.programs),
                 # tsc=reliable: no clock watchdog under emulation. A panic ends QEMU unless the guest may reboot.
                 "-append", "console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off",
                 "-display", "none", "-nodefaults", "-no-user-config",
                 "-serial", f"file:{self.path('console')}",
                 "-chardev", f"socket,id=agent,path={self.path('agent')},server=on,wait=off", "-serial", "chardev:agent"] +
                ([] if self.reboot else ["-no-reboot"]) + self.devices)

    def start(self):
        for what in ("agent", "console"):
            if os.path.exists(self.path(what)):
                os.unlink(self.path(what))
        self.boot_id = None
        self.agent.close()
        with open(self.path("qemu"), "w") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        with open(self.path("pid"), "w") as file:
            file.write(f"{self.process.pid}\n")
        return self

    def wait_up(self, timeout=BOOT_TIMEOUT):
        """Waits for the agent of a fresh boot (another boot id than the last one seen)."""
        deadline, boots = time.monotonic() + timeout, 1
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                if self.boot_id is None and boots < BOOTS and STALE_BREAKPOINT in self.logs():
                    boots += 1
                    self.start()
                    continue
                raise GuestError(f"{self.name}: QEMU ended with {self.process.returncode}\n{self.logs()}")
            boot_id = self.agent.ping(1)
            if boot_id and boot_id != self.boot_id:
                self.boot_id = boot_id
                return self
            time.sleep(0.2)
        raise GuestError(f"{self.name}: not up after {timeout} s\n{self.logs()}")

    def logs(self, length=8000):
        text = ""
        for what in ("qemu", "console"):
            if os.path.exists(self.path(what)):
                with open(self.path(what), errors="replace") as file:
                    text += f"--- {self.path(what)}\n{file.read()[-length:]}\n"
        return text

    def call(self, command, timeout=RUN_TIMEOUT):
        return self.agent.run(command, timeout)

    def run(self, command, timeout=RUN_TIMEOUT):
        status, output = self.call(command, timeout)
        if status:
            raise GuestError(f"{self.name}: exit {status}: {command}\n{output}")
        return output

    def spawn(self, command):
        return Job(self, command)

    def address(self, address, device="eth0", mtu=None):
        self.run(f"ip addr add {address} dev {device} && ip link set {device} up" +
                 (f" mtu {mtu}" if mtu else ""))

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL: what a crashed QEMU looks like to the backend."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.agent.close()

    stop = kill  # there is nothing in a test guest that an orderly shutdown would save


def parse_device(text):
    path, *options = text.split(",")
    values = dict(option.split("=", 1) for option in options)
    return vhost_user(path, values["mac"], int(values.get("queues", 1)), values.get("server") == "on",
                      int(values.get("reconnect", 0)))


def main():
    parser = argparse.ArgumentParser(description="a test guest")
    parser.add_argument("verb", choices=["start", "wait", "run", "xfer"])
    parser.add_argument("--name", default="guest")
    parser.add_argument("--directory", default=".")
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--vhost-user", action="append", default=[])
    parser.add_argument("--timeout", type=int, default=RUN_TIMEOUT)
    parser.add_argument("command", nargs="*")
    options = parser.parse_intermixed_args()
    if options.verb == "xfer":
        print(xfer())
        return 0
    devices = [word for text in options.vhost_user for word in parse_device(text)]
    guest = Guest(options.name, options.directory, devices, cpus=options.cpus)
    try:
        if options.verb == "start":
            guest.start()
            print(guest.process.pid)
        elif options.verb == "wait":
            guest.wait_up()
        else:
            status, output = guest.call(" ".join(options.command), options.timeout)
            sys.stdout.write(output)
            return status
    except (GuestError, OSError) as error:
        print(f"guest.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
