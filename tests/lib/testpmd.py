# SPDX-License-Identifier: BSD-2-Clause
"""dpdk-testpmd with virtio-user ports: a guest that nobody here wrote.

Two ports in io mode: what arrives on one leaves by the other. --tx-first sends one burst out of each, addressed to the
other port's MAC, and the frames then go round through the switch for as long as nothing is lost.
"""
import os
import re
import signal
import subprocess
import time

from rig import RigError, unique

PAGES = 160  # 2 MB pages one instance needs: 256 MB and something for DPDK itself


class Testpmd:
    __test__ = False  # for pytest, which takes every Test* for tests

    def __init__(self, rig, sockets, macs, queues=1, ring=256, cores="0,1", main_core=1, ports=None, options="", forward="io",
                 tx_first=True):
        self.rig = rig
        self.prefix = unique("d")
        self.log_path = rig.path(self.prefix + ".testpmd")
        vdevs = []
        for number, (path, mac) in enumerate(zip(sockets, macs)):
            vdevs += ["--vdev", f"net_virtio_user{number},path={path},mac={mac},queues={queues},queue_size={ring}{options}"]
        for text in ports or []:
            vdevs += ["--vdev", text]
        peers = [f"--eth-peer={number},{macs[1 - number]}" for number in range(len(macs))] if len(macs) == 2 else []
        self.command = (["dpdk-testpmd", "-l", cores, "--main-lcore", str(main_core), "-n", "2", "-m", "256", "--no-pci",
                         "--iova-mode=va", "--single-file-segments", "--file-prefix", self.prefix, "--no-telemetry"] + vdevs +
                        ["--", "--nb-cores=1", "--total-num-mbufs=16384", f"--forward-mode={forward}", "--auto-start",
                         "--stats-period", "1", f"--rxq={queues}", f"--txq={queues}", f"--rxd={ring}", f"--txd={ring}"] +
                        (["--tx-first"] if tx_first else []) + peers)
        self.process = None
        rig.undo(self.kill)

    def start(self):
        with open(self.log_path, "w") as log:
            log.write("$ " + " ".join(self.command) + "\n")
            log.flush()
            # Its standard input stays open: at end of file testpmd would take it for the Enter key that ends it.
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        return self

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def received(self):
        """Packets received by port number, as the newest statistics tell."""
        counts = {}
        for port, rx in re.findall(r"NIC statistics for port (\d+)[^\n]*\n\s+RX-packets: (\d+)", self.log()):
            counts[int(port)] = int(rx)
        return counts

    def wait_received(self, packets, ports=(0, 1), timeout=90):
        """Waits until each of `ports` has received `packets` more than before."""
        before = self.received()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            now = self.received()
            if all(now.get(p, 0) - before.get(p, 0) >= packets for p in ports):
                return now
            if self.process.poll() is not None:
                raise RigError(f"testpmd ended with {self.process.returncode}\n{self.log()[-6000:]}")
            time.sleep(0.2)
        raise RigError(f"testpmd did not receive {packets} packets on each of {ports} within {timeout} s: {self.received()}\n"
                       f"{self.log()[-6000:]}")

    def stop(self):
        """An orderly end (it resets its rings and closes); returns all that it printed."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired as error:
                raise RigError(f"testpmd did not end\n{self.log()[-6000:]}") from error
            self.process.stdin.close()
            self.process = None
        return self.log()

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process = None
        # A killed instance leaves its page files behind, and with them the pages.
        for name in os.listdir("/dev/hugepages") if os.path.isdir("/dev/hugepages") else []:
            if name.startswith(self.prefix):
                os.unlink(os.path.join("/dev/hugepages", name))
