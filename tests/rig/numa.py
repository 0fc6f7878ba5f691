# SPDX-License-Identifier: BSD-2-Clause
"""A host with two NUMA nodes, as a virtual machine under QEMU's TCG, with vhostlane inside.

It is driven like a test guest (tests/guest/guest.py) and has, beside busybox: vhostlane with its libraries and BPF objects,
bpftool, iproute2's ip and tc, the byte mover xfer. Emulation knows no slow memory: assert placement here, never speed.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
for directory in ("lib", "guest"):
    sys.path.insert(0, os.path.join(HERE, "..", directory))

from guest import BUILD, Guest, accelerator, kernel  # noqa: E402 pylint: disable=wrong-import-position
from rig import BINARY, ROOT  # noqa: E402 pylint: disable=wrong-import-position

MAKE_INITRAMFS = os.path.join(HERE, "..", "guest", "make-initramfs.sh")
# What a host of the distribution loads by itself when it is needed.
MODULES = "veth tun sch_ingress cls_bpf"
NODES, CPUS_PER_NODE, NODE_MEGABYTES, DISTANCE = 2, 2, 512, 21


def initramfs(files=()):
    """Built for each run: it holds the newest daemon. `files`: pairs of source and target."""
    os.makedirs(BUILD, exist_ok=True)
    path = os.path.join(BUILD, f"rig.{os.getpid()}.cpio")
    bpf = os.path.join(ROOT, "build", "bpf")
    objects = [(os.path.join(bpf, name), f"/usr/lib/vhostlane/{name}") for name in sorted(os.listdir(bpf)) if name.endswith(".bpf.o")]
    scripts = [(os.path.join(HERE, name), f"/rig/{name}") for name in sorted(os.listdir(HERE)) if name.endswith(".sh")]
    environment = dict(os.environ, MODULES=MODULES,
                       FILES=" ".join(f"{source}:{target}" for source, target in [*objects, *scripts, *files]))
    # bpftool is a small shell script in front of the kernel's own in some distributions: take the program.
    subprocess.run([MAKE_INITRAMFS, path, BINARY, "bpftool", "ip", "tc"], check=True, env=environment)
    return path


class NumaMachine(Guest):
    """CPUs 0-1 and 512 MB on node 0, CPUs 2-3 and 512 MB on node 1."""

    def __init__(self, name, directory, files=(), devices=()):
        super().__init__(name, directory, list(devices), cpus=NODES * CPUS_PER_NODE)
        self.initramfs = initramfs(files)

    def command(self):
        numa = []
        for node in range(NODES):
            first = node * CPUS_PER_NODE
            numa += ["-object", f"memory-backend-ram,id=m{node},size={NODE_MEGABYTES}M",
                     "-numa", f"node,nodeid={node},cpus={first}-{first + CPUS_PER_NODE - 1},memdev=m{node}"]
        return (["qemu-system-x86_64", "-name", self.name, "-M", "q35"] + accelerator() +
                ["-smp", f"{self.cpus},sockets={NODES},cores={CPUS_PER_NODE},threads=1", "-m", str(NODES * NODE_MEGABYTES)] + numa +
                ["-numa", f"dist,src=0,dst=1,val={DISTANCE}",
                 "-kernel", kernel(), "-initrd", self.initramfs, "-append", "console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off",
                 "-display", "none", "-no-reboot", "-nodefaults", "-no-user-config",
                 "-serial", f"file:{self.path('console')}",
                 "-chardev", f"socket,id=agent,path={self.path('agent')},server=on,wait=off", "-serial", "chardev:agent"] +
                self.devices)

    def kill(self):
        super().kill()
        if os.path.exists(self.initramfs):
            os.unlink(self.initramfs)

    stop = kill
