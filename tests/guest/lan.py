# SPDX-License-Identifier: BSD-2-Clause
"""A small LAN for guest tests: a wire and this host on an uplink, guests behind a daemon; all in one network, every one of
them serving checked transfers."""
import guest as guests_library
from guest import Guest, vhost_user
from rig import free_port, sh, subnet, unique, wait_for

MEGABYTE = 1024 * 1024

# Makes an interface a member of one VLAN, with all that stands behind it: for kernels without VLAN interfaces (8021q), and alike on all.
TAGGER = """
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#define SEC(name) __attribute__((section(name), used))
static long (*vlan_push)(struct __sk_buff *, __be16, __u16) = (void *)BPF_FUNC_skb_vlan_push;
static long (*vlan_pop)(struct __sk_buff *) = (void *)BPF_FUNC_skb_vlan_pop;
SEC("out") int tag_out(struct __sk_buff *skb)
{
	if (!skb->vlan_present && vlan_push(skb, __builtin_bswap16(0x8100), VLAN))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC; /* other filters have their say */
}
SEC("in") int tag_in(struct __sk_buff *skb)
{
	if (!skb->vlan_present || (skb->vlan_tci & 0xfff) != VLAN || vlan_pop(skb))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC;
}
char _license[] SEC("license") = "Dual BSD/GPL";
"""
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
    """lan.wire, lan.host, lan.guests: all have .ip, .run(), .spawn(). `ports`: further options of each port, one dict a guest."""

    def __init__(self, rig, count=2, queues=2, role="server", ipv6=False, uplink_mtu=1500, cpus=2, programs=(), ports=None, **port_options):
        self.rig, self.count, self.queues, self.role, self.cpus = rig, count, queues, role, cpus
        self.programs = programs
        self.net, self.port = subnet(), free_port()
        self.ipv6 = ipv6
        self.tag = unique("x")
        self.link = rig.wire(host_address=f"{self.net}.1/24", wire_address=f"{self.net}.2/24", mtu=uplink_mtu, ipv6=ipv6)
        if ipv6:
            sh(f"ip addr add {self.ip6(1)}/64 dev {self.link.uplink} nodad")
            self.link.sh(f"ip addr add {self.ip6(2)}/64 dev {self.link.peer} nodad")
        arguments = ["--uplink", self.link.uplink]
        for number in range(count):
            options = {**port_options, **(ports[number] if ports else {})}
            tail = "".join(f",{key.replace('_', '-')}={value}" for key, value in options.items())
            arguments += ["--port", f"vm{number + 1}={self.socket(number)},mac={mac_of(number)},queues={queues},role={role}{tail}"]
        self.daemon = rig.daemon(*arguments)
        self.host = Host(self, "host", f"{self.net}.1", self.link.uplink)
        self.wire = Host(self, "wire", f"{self.net}.2", self.link.peer, self.link.namespace.wrap)
        self.guests = []

    def ip6(self, number):
        return f"fd00:{self.net.split('.')[1]}:{self.net.split('.')[2]}::{number}"

    def socket(self, number):
        return self.rig.path(f"{self.tag}vm{number + 1}.sock")

    def new_guest(self, number, reboot=False, extra=""):
        device = vhost_user(self.socket(number), mac_of(number), self.queues, server=self.role == "client",
                            reconnect=1 if self.role == "server" else 0, extra=extra)
        guest = Guest(f"{self.tag}vm{number + 1}", self.rig.directory, device, cpus=self.cpus, reboot=reboot, programs=self.programs)
        guest.ip, guest.number = f"{self.net}.{11 + number}", number
        guest.lan = self
        self.rig.undo(guest.kill)
        return guest

    def boot(self, **options):
        """All guests at once; each with its address, all queues on, and a server."""
        self.guests = [self.new_guest(number, **options) for number in range(self.count)]
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
        guest.run(f"( xfer serve {self.port} >/dev/null 2>&1 & ); until netstat -ltn | grep -q ':{self.port} '; do sleep 0.1; done")

    def tagged(self, end, vlan):
        """Makes the wire's or the host's end a member of a VLAN; returns what undoes it."""
        source, program = self.rig.path("tagger.c"), self.rig.path(f"tagger{vlan}.o")
        with open(source, "w") as file:
            file.write(TAGGER)
        sh(f"clang -O2 -g -target bpf -DVLAN={vlan} -I/usr/include/$(gcc -print-multiarch) -c -o {program} {source}")
        end.run(f"tc qdisc show dev {end.device} | grep -q clsact || tc qdisc add dev {end.device} clsact")
        end.run(f"tc filter add dev {end.device} egress pref 1 bpf da obj {program} sec out")
        end.run(f"tc filter add dev {end.device} ingress pref 1 bpf da obj {program} sec in")
        return lambda: end.run(f"tc filter del dev {end.device} egress pref 1; tc filter del dev {end.device} ingress pref 1")

    # What tests ask of any two of wire, host and guests.

    def ping(self, source, address, count=3, size=56, seconds=90):
        """At least one answer within the time, then every one of `count` answered: a first one may wait for ARP."""
        wait_for(lambda: "bytes from" in source.run(f"ping -c 1 -W 5 {address}"), f"{source.name} reaches {address}", seconds)
        output = source.run(f"ping -c {count} -i 0.2 -W 20 -s {size} {address}")
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
