# SPDX-License-Identifier: BSD-2-Clause
"""A small LAN for guest tests: a wire and this host on an uplink, guests behind a daemon; all in one network, every one of
them serving checked transfers."""
import guest as guests_library
from guest import Guest, vhost_user
from rig import free_port, sh, subnet, unique, wait_for

MEGABYTE = 1024 * 1024
XFER = guests_library.xfer


def mac_of(number):
    return f"52:54:00:00:67:{number:02x}"


class Host:
    """This machine on the uplink, or the namespace behind the wire; with a guest's methods."""

    def __init__(self, lan, name, address, device, wrap=lambda command: ["sh", "-c", command]):
        self.lan, self.name, self.ip, self.device, self.wrap = lan, name, address, device, wrap
        lan.rig.background(wrap(f"exec {XFER()} serve {lan.port}"))

    def run(self, command, timeout=400):
        return sh(self.wrap(command.replace("xfer ", XFER() + " ", 1)), timeout=timeout)

    def spawn(self, command):
        return HostJob(self.lan.rig.background(self.wrap(command.replace("xfer ", f"exec {XFER()} ", 1))), command)


class HostJob:
    def __init__(self, process, command):
        self.process, self.command = process, command

    def done(self):
        return self.process.poll() is not None

    def wait(self, timeout=400):
        output, _ = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, f"exit {self.process.returncode}: {self.command}\n{output}"
        return output


class Lan:
    """lan.wire, lan.host, lan.guests: all have .ip, .run(), .spawn()."""

    def __init__(self, rig, count=2, queues=2, role="server", ipv6=False, **port_options):
        self.rig, self.count, self.queues, self.role = rig, count, queues, role
        self.net, self.port = subnet(), free_port()
        self.ipv6 = ipv6
        self.tag = unique("x")
        self.link = rig.wire(host_address=f"{self.net}.1/24", wire_address=f"{self.net}.2/24", ipv6=ipv6)
        if ipv6:
            sh(f"ip addr add {self.ip6(1)}/64 dev {self.link.uplink} nodad")
            self.link.sh(f"ip addr add {self.ip6(2)}/64 dev {self.link.peer} nodad")
        tail = "".join(f",{key.replace('_', '-')}={value}" for key, value in port_options.items())
        arguments = ["--uplink", self.link.uplink]
        for number in range(count):
            arguments += ["--port", f"vm{number + 1}={self.socket(number)},mac={mac_of(number)},queues={queues},role={role}{tail}"]
        self.daemon = rig.daemon(*arguments)
        self.host = Host(self, "host", f"{self.net}.1", self.link.uplink)
        self.wire = Host(self, "wire", f"{self.net}.2", self.link.peer, self.link.namespace.wrap)
        self.guests = []

    def ip6(self, number):
        return f"fd00:{self.net.split('.')[1]}:{self.net.split('.')[2]}::{number}"

    def socket(self, number):
        return self.rig.path(f"{self.tag}vm{number + 1}.sock")

    def new_guest(self, number, reboot=False):
        device = vhost_user(self.socket(number), mac_of(number), self.queues, server=self.role == "client",
                            reconnect=1 if self.role == "server" else 0)
        guest = Guest(f"{self.tag}vm{number + 1}", self.rig.directory, device, cpus=2, reboot=reboot)
        guest.ip, guest.number = f"{self.net}.{11 + number}", number
        guest.lan = self
        self.rig.undo(guest.kill)
        return guest

    def boot(self, reboot=False):
        """All guests at once; each with its address, all queues on, and a server."""
        self.guests = [self.new_guest(number, reboot) for number in range(self.count)]
        for guest in self.guests:
            guest.start()
        for guest in self.guests:
            self.configure(guest)
        return self

    def configure(self, guest):
        guest.wait_up()
        guest.address(f"{guest.ip}/24")
        if self.ipv6:
            guest.run(f"ip addr add {self.ip6(11 + guest.number)}/64 dev eth0")
        if self.queues > 1:
            guest.run(f"ethtool -L eth0 combined {self.queues}")
        guest.run(f"( xfer serve {self.port} >/dev/null 2>&1 & )")

    # What tests ask of any two of wire, host and guests.

    def ping(self, source, address, count=3, size=56, seconds=90):
        """At least one answer within the time, then every one of `count` answered: a first one may wait for ARP."""
        wait_for(lambda: "bytes from" in source.run(f"ping -c 1 -W 5 {address}"), f"{source.name} reaches {address}", seconds)
        output = source.run(f"ping -c {count} -W 20 -s {size} {address}")
        assert f"{count} packets received" in output or f"{count} received" in output, output

    def push(self, source, target, size=64 * MEGABYTE):
        return source.run(f"xfer -t 300 push {target.ip} {self.port} {size}", 400)

    def pull(self, target, source, size=64 * MEGABYTE):
        """From source to target, asked for by target."""
        return target.run(f"xfer -t 300 pull {source.ip} {self.port} {size}", 400)

    def pairs(self, number):
        """The daemon's word on a guest's queue pairs."""
        return [pair for pair in self.daemon.json("queue", "list") if pair["port"] == f"vm{number + 1}"]

    def port_of(self, number):
        return self.daemon.json("port", "show", f"vm{number + 1}")
