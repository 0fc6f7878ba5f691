# SPDX-License-Identifier: BSD-2-Clause
"""Files of a FUSE server that lets them be opened and answers nothing after that: close() of one never returns.

Whoever holds such a descriptor is caught by it, every child of the test that closes what it inherited too. Therefore a process of its
own opens the files and sends them to the program under test, over a connection that the test lends it. StallingFiles is the test's side;
run as a program, this is the other.
"""
import array
import ctypes
import json
import os
import socket
import struct
import subprocess
import sys

TIMEOUT = 60
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
INIT, LOOKUP, GETATTR, OPEN = 26, 1, 3, 14
ROOT, FILE = 1, 2
SIZE = 1 << 20


class NoFuse(Exception):
    """This machine has no FUSE for us."""


class StallingFiles:
    def __init__(self):
        self.socket, other = socket.socketpair()
        self.socket.settimeout(TIMEOUT)
        with other:
            self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), str(other.fileno())], pass_fds=[other.fileno()],
                                            stdin=subprocess.DEVNULL)
        word = self.socket.recv(200).decode()
        if word != "ready":
            self.end()
            raise NoFuse(word or "its server did not start")

    def send(self, frontend, data, count=1):
        """Sends data over the frontend's connection, with so many descriptors of such files."""
        order = json.dumps({"data": data.hex(), "count": count}).encode()
        self.socket.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [frontend.socket.fileno()]))])
        assert self.socket.recv(200) == b"sent"

    def end(self):
        """The server goes: whoever waits for it gets an error and goes on."""
        self.process.kill()
        self.process.wait()
        self.socket.close()


def mount(where):
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "user namespaces")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"stalling", where, b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount of a FUSE file system")
    return device


def attributes(node):
    mode = 0o40755 if node == ROOT else 0o100666
    return struct.pack("=6Q10I", node, SIZE, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device):
    answers = {
        INIT: lambda node: struct.pack("=4I2H2I2H8I", 7, 31, 4096, 0, 10, 10, 1 << 16, 1, 0, 0, *[0] * 8),
        LOOKUP: lambda node: struct.pack("=4Q2I", FILE, 0, 0, 0, 0, 0) + attributes(FILE),
        GETATTR: lambda node: struct.pack("=Q2I", 0, 0, 0) + attributes(node),
        OPEN: lambda node: struct.pack("=Q2I", 1, 0, 0),
    }
    while True:
        _, request, unique, node = struct.unpack_from("=2I2Q", os.read(device, 1 << 20))
        if request in answers:
            answer = answers[request](node)
            os.write(device, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)


def open_and_send(control, path):
    control.send(b"ready")
    while True:
        order, ancillary, *_ = control.recvmsg(65536, socket.CMSG_SPACE(4))
        if not order:
            os._exit(0)
        connection = socket.socket(fileno=struct.unpack("=i", ancillary[0][2])[0])
        order = json.loads(order)
        fds = [os.open(path, os.O_RDWR) for _ in range(order["count"])]
        connection.sendmsg([bytes.fromhex(order["data"])], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        connection.close()
        control.send(b"sent")


def main():
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        device = mount(b"/mnt")
    except OSError as error:
        control.send(str(error).encode())
        return
    if os.fork() == 0:
        os.close(device)
        open_and_send(control, "/mnt/file")
    control.close()
    serve(device)


if __name__ == "__main__":
    main()
