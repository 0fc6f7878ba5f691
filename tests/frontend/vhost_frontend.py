# SPDX-License-Identifier: BSD-2-Clause
"""A vhost-user frontend in plain Python: memory, messages and descriptors, exactly as told, right or wrong.

Frontend speaks the protocol and nothing else; what a guest's driver does on the rings is in virtio_driver.py.
"""
import array
import ctypes
import enum
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import time

TIMEOUT = 60  # only to end a hang; sanitizers on a crowded machine are slow


class Request(enum.IntEnum):
    GET_FEATURES = 1
    SET_FEATURES = 2
    SET_OWNER = 3
    RESET_OWNER = 4
    SET_MEM_TABLE = 5
    SET_LOG_BASE = 6
    SET_LOG_FD = 7
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    SET_VRING_ERR = 14
    GET_PROTOCOL_FEATURES = 15
    SET_PROTOCOL_FEATURES = 16
    GET_QUEUE_NUM = 17
    SET_VRING_ENABLE = 18
    SEND_RARP = 19
    NET_SET_MTU = 20
    SET_BACKEND_REQ_FD = 21
    IOTLB_MSG = 22
    SET_VRING_ENDIAN = 23
    GET_CONFIG = 24
    SET_CONFIG = 25
    CREATE_CRYPTO_SESSION = 26
    CLOSE_CRYPTO_SESSION = 27
    POSTCOPY_ADVISE = 28
    POSTCOPY_LISTEN = 29
    POSTCOPY_END = 30
    GET_INFLIGHT_FD = 31
    SET_INFLIGHT_FD = 32
    GPU_SET_SOCKET = 33
    RESET_DEVICE = 34
    VRING_KICK = 35
    GET_MAX_MEM_SLOTS = 36
    ADD_MEM_REG = 37
    REM_MEM_REG = 38
    SET_STATUS = 39
    GET_STATUS = 40


VERSION, REPLY, NEED_REPLY = 1, 4, 8
NO_FD = 1 << 8

F_MTU, F_MRG_RXBUF, F_CTRL_VQ, F_GUEST_ANNOUNCE, F_MQ = 1 << 3, 1 << 15, 1 << 17, 1 << 21, 1 << 22
F_INDIRECT, F_EVENT_IDX, F_PROTOCOL, F_VERSION_1, F_RING_RESET = 1 << 28, 1 << 29, 1 << 30, 1 << 32, 1 << 40

P_MQ, P_LOG_SHMFD, P_RARP, P_REPLY_ACK, P_NET_MTU = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4
P_RESET_DEVICE, P_MEM_SLOTS, P_STATUS = 1 << 13, 1 << 15, 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


def u64(value):
    return struct.pack("@Q", value)


def ring_state(index, number=0):
    """What several requests say of a ring: its size, its base, whether it is enabled."""
    return struct.pack("@II", index, number)


def eventfd(initial=0, flags=os.O_NONBLOCK | os.O_CLOEXEC):
    fd = _libc.eventfd(initial, flags)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "eventfd")
    return fd


def eventfd_read(fd):
    """The counter, 0 if nobody signalled."""
    try:
        return struct.unpack("@Q", os.read(fd, 8))[0]
    except BlockingIOError:
        return 0


def wait_readable(fd, timeout=TIMEOUT):
    return bool(select.select([fd], [], [], timeout)[0])


class Disconnected(Exception):
    """The backend closed the connection."""


class Region:
    """A piece of guest memory on its own memfd. Addresses: guest-physical, and in the frontend's own (made-up) address space.

    private: as QEMU maps it without share=on; what the guest writes never reaches the memfd.
    """

    NAME = "vhostlane-test-guest"

    def __init__(self, size, guest, user, offset=0, private=False):
        self.size, self.guest, self.user, self.offset = size, guest, user, offset
        self.fd = os.memfd_create(self.NAME)
        os.ftruncate(self.fd, offset + size)
        self.map = mmap.mmap(self.fd, size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED, offset=offset)
        self.view = memoryview(self.map)
        self.used = 0

    def pack(self):
        return struct.pack("@QQQQ", self.guest, self.size, self.user, self.offset)

    def close(self):
        self.view.release()
        try:
            self.map.close()
        except BufferError:
            pass  # a ring still looks at it; the mapping goes with the last view
        os.close(self.fd)


class Memory:
    """Guest memory of one or more regions, with an allocator that never frees."""

    def __init__(self, size=16 << 20, regions=1, guest=0x40000000, user=0x7E0000000000, gap=1 << 24, private=False):
        each = size // regions
        self.regions = [Region(each, guest + i * (each + gap), user + i * (each + 2 * gap), private=private) for i in range(regions)]

    def add(self, region):
        self.regions.append(region)
        return region

    def allocate(self, size, align=4096, region=None):
        """Guest address of a fresh piece, in the first region with room (or in the one that is given)."""
        for candidate in [region] if region else self.regions:
            start = -(-candidate.used // align) * align
            if start + size <= candidate.size:
                candidate.used = start + size
                return candidate.guest + start
        raise MemoryError(f"{size} bytes of guest memory")

    def region_of(self, guest):
        for region in self.regions:
            if region.guest <= guest < region.guest + region.size:
                return region
        raise KeyError(hex(guest))

    def view(self, guest, size):
        region = self.region_of(guest)
        start = guest - region.guest
        return region.view[start:start + size]

    def user(self, guest):
        region = self.region_of(guest)
        return guest - region.guest + region.user

    def write(self, guest, data):
        self.view(guest, len(data))[:] = data

    def read(self, guest, size):
        return bytes(self.view(guest, size))

    def table(self, regions=None):
        regions = self.regions if regions is None else regions
        return struct.pack("@II", len(regions), 0) + b"".join(r.pack() for r in regions), [r.fd for r in regions]

    def close(self):
        for region in self.regions:
            region.close()


class Frontend:
    """One connection to the backend. Every message waits for its acknowledgement once REPLY_ACK is negotiated (acks=True)."""

    def __init__(self, path=None, listener=None, connection=None, timeout=TIMEOUT):
        self.acks = False
        self.fds = []
        self.protocol_features = 0
        if connection:
            self.socket = connection
        elif listener:
            listener.settimeout(timeout)
            self.socket = listener.accept()[0]
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            deadline = time.monotonic() + timeout
            while True:
                try:
                    self.socket.connect(path)
                    break
                except (FileNotFoundError, ConnectionRefusedError):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
        self.socket.settimeout(timeout)

    # --- messages

    def send_bytes(self, data, fds=()):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            return self.socket.sendmsg([data], ancillary)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Disconnected from error

    def send(self, request, payload=b"", fds=(), flags=0, version=VERSION, size=None):
        header = struct.pack("@III", request, version | flags, len(payload) if size is None else size)
        self.send_bytes(header + payload, fds)

    def _receive(self, count):
        data = b""
        while len(data) < count:
            try:
                more = self.socket.recv(count - len(data))
            except (ConnectionResetError, BrokenPipeError) as error:
                raise Disconnected from error
            if not more:
                raise Disconnected
            data += more
        return data

    def reply(self, request):
        """Payload of the answer that must come next."""
        number, flags, size = struct.unpack("@III", self._receive(12))
        assert number == request, f"answer to {number}, expected to {request}"
        assert flags == VERSION | REPLY, hex(flags)
        assert size <= 4096
        return self._receive(size)

    def ask(self, request, payload=b"", fds=(), flags=0):
        self.send(request, payload, fds, flags)
        return self.reply(request)

    def ask_u64(self, request, payload=b"", fds=(), flags=0):
        answer = self.ask(request, payload, fds, flags)
        assert len(answer) == 8
        return struct.unpack("@Q", answer)[0]

    def try_tell(self, request, payload=b"", fds=()):
        """Sends with NEED_REPLY: 0 or the error that came back."""
        return self.ask_u64(request, payload, fds, NEED_REPLY)

    def tell(self, request, payload=b"", fds=()):
        if self.acks:
            assert self.try_tell(request, payload, fds) == 0, f"{Request(request).name} refused"
        else:
            self.send(request, payload, fds)

    def quiet(self):
        """Nothing is waiting to be read: no answer too many. A request with an answer of its own was sent before."""
        self.get_features()
        return not wait_readable(self.socket.fileno(), 0)

    def ended(self, timeout=TIMEOUT):
        """Waits until the backend hung up. Answers that come before are read and dropped."""
        self.socket.settimeout(timeout)
        try:
            while self.socket.recv(4096):
                pass
        except (ConnectionResetError, BrokenPipeError):
            pass
        except socket.timeout:
            return False
        return True

    def close(self):
        self.socket.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    # --- requests

    def get_features(self):
        return self.ask_u64(Request.GET_FEATURES)

    def set_features(self, features):
        self.tell(Request.SET_FEATURES, u64(features))

    def negotiate_protocol(self, wanted=P_MQ | P_REPLY_ACK | P_MEM_SLOTS | P_STATUS | P_RARP | P_NET_MTU | P_RESET_DEVICE):
        offered = self.ask_u64(Request.GET_PROTOCOL_FEATURES)
        self.protocol_features = offered & wanted
        self.send(Request.SET_PROTOCOL_FEATURES, u64(self.protocol_features))
        self.acks = bool(self.protocol_features & P_REPLY_ACK)
        return offered

    def state(self, request, index, number=0):
        self.tell(request, ring_state(index, number))

    def set_mem_table(self, memory, regions=None):
        payload, fds = memory.table(regions)
        self.tell(Request.SET_MEM_TABLE, payload, fds)

    def add_region(self, region):
        self.tell(Request.ADD_MEM_REG, u64(0) + region.pack(), [region.fd])

    def remove_region(self, region):
        self.tell(Request.REM_MEM_REG, u64(0) + region.pack())

    def set_vring_addr(self, index, desc, avail, used, flags=0, log=0):
        self.tell(Request.SET_VRING_ADDR, struct.pack("@IIQQQQ", index, flags, desc, used, avail, log))

    def set_vring_fd(self, request, index, fd):
        """fd=None: the no-descriptor bit."""
        self.tell(request, u64(index | (NO_FD if fd is None else 0)), [] if fd is None else [fd])

    def new_eventfd(self):
        self.fds.append(eventfd())
        return self.fds[-1]

    def get_vring_base(self, index):
        number, base = struct.unpack("@II", self.ask(Request.GET_VRING_BASE, ring_state(index)))
        assert number == index
        return base

    def enable(self, index, on=True):
        self.state(Request.SET_VRING_ENABLE, index, 1 if on else 0)


def listen(path):
    """A listening socket for a backend in the client role."""
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(4)
    return listener


def set_blocking(fd):
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
