# SPDX-License-Identifier: BSD-2-Clause
"""The driver's side of split virtqueues (virtio 1.2, 2.7) and of a network device on them, over vhost_frontend."""
import os
import select
import struct
import threading
import time

from vhost_frontend import (F_EVENT_IDX, F_INDIRECT, F_MRG_RXBUF, F_PROTOCOL, F_VERSION_1, Frontend, Memory, Request, TIMEOUT,
                            eventfd_read)

NEXT, WRITE, INDIRECT = 1, 2, 4
NO_INTERRUPT, NO_NOTIFY = 1, 1

_lock = threading.Lock()


def fence():
    """A full memory barrier: taking a lock is one."""
    with _lock:
        pass


class Vring:
    """Descriptors, available ring, used ring. Fields are written with single native stores (memoryview casts)."""

    def __init__(self, memory, size, event_idx=False, base=0, region=None):
        self.memory, self.size, self.event_idx = memory, size, event_idx
        self.desc_at = memory.allocate(16 * size, 16, region)
        self.avail_at = memory.allocate(6 + 2 * size, 2, region)
        self.used_at = memory.allocate(6 + 8 * size, 4, region)
        self.desc = memory.view(self.desc_at, 16 * size)
        self.avail = memory.view(self.avail_at, 6 + 2 * size).cast("H")  # flags, idx, ring[size], used_event
        self.used16 = memory.view(self.used_at, 6 + 8 * size).cast("H")  # flags, idx, ring, avail_event
        self.used_elements = memory.view(self.used_at + 4, 8 * size).cast("I")
        self.free = list(range(size - 1, -1, -1))
        self.tokens = {}  # chain head -> (token, descriptors)
        self.avail[1] = self.used16[1] = base
        self.next = self.kicked = self.seen = base
        self.kicks = self.kicks_spared = 0

    # --- available

    def write_desc(self, index, address, length, flags, following=0):
        struct.pack_into("@QIHH", self.desc, 16 * index, address, length, flags, following)

    def make(self, buffers, token=None, indirect_at=None):
        """Writes a chain of (guest address, length, device writes) and returns its head; not available yet."""
        if indirect_at is not None:
            table = b"".join(struct.pack("@QIHH", a, n, (WRITE if w else 0) | (NEXT if i + 1 < len(buffers) else 0), i + 1)
                             for i, (a, n, w) in enumerate(buffers))
            self.memory.write(indirect_at, table)
            head = self.free.pop()
            self.write_desc(head, indirect_at, len(table), INDIRECT)
            self.tokens[head] = (token, [head])
            return head
        taken = [self.free.pop() for _ in buffers]
        for i, (address, length, write) in enumerate(buffers):
            last = i + 1 == len(buffers)
            self.write_desc(taken[i], address, length, (WRITE if write else 0) | (0 if last else NEXT), 0 if last else taken[i + 1])
        self.tokens[taken[0]] = (token, taken)
        return taken[0]

    def offer(self, head):
        """Puts a head into the available ring; publish() makes it visible."""
        self.avail[2 + self.next % self.size] = head
        self.next = (self.next + 1) & 0xFFFF

    def publish(self):
        """Moves the index. True if the device wants a kick."""
        fence()
        self.avail[1] = self.next
        fence()
        old, self.kicked = self.kicked, self.next
        if self.event_idx:
            event = self.used16[2 + 4 * self.size]
            wanted = (self.next - event - 1) & 0xFFFF < (self.next - old) & 0xFFFF
        else:
            wanted = not self.used16[0] & NO_NOTIFY
        if wanted:
            self.kicks += 1
        else:
            self.kicks_spared += 1
        return wanted

    # --- used

    def pending(self):
        return (self.used16[1] - self.seen) & 0xFFFF

    def take(self):
        """(token, length, head) of the next used chain, or None."""
        if not self.pending():
            return None
        fence()
        slot = self.seen % self.size
        head, length = self.used_elements[2 * slot], self.used_elements[2 * slot + 1]
        token, descriptors = self.tokens.pop(head)  # KeyError: the device returned what it was not given
        self.free.extend(descriptors)
        self.seen = (self.seen + 1) & 0xFFFF
        return token, length, head

    def want_call(self, wanted=True):
        """True if there is something to take already."""
        if self.event_idx:
            self.avail[2 + self.size] = self.seen if wanted else (self.seen - 1) & 0xFFFF
        self.avail[0] = 0 if wanted or self.event_idx else NO_INTERRUPT
        fence()
        return bool(self.pending())


class NetGuest:
    """A guest with a network device of some queue pairs.

    Ring numbers as on the wire: 2 x pair is to_guest, 2 x pair + 1 is from_guest. Options: size, pairs, mergeable, indirect,
    event_idx, modern, buffer (bytes of one receive buffer), base (first index), kicks and calls (False: no descriptors),
    posted (receive buffers to start with, default all), private (memory, see Region), connection or listener (else connects to path).
    """

    SEND_SLOT = 12288

    def __init__(self, path, start=True, **options):
        get = options.get
        self.path, self.size, self.pairs = path, get("size", 256), get("pairs", 1)
        self.mergeable, self.indirect, self.event_idx = get("mergeable", True), get("indirect", False), get("event_idx", False)
        self.modern, self.kicks, self.calls = get("modern", True), get("kicks", True), get("calls", True)
        self.buffer, self.base, self.posted = get("buffer", 2048), get("base", 0), get("posted", None)
        self.header = 12 if self.modern or self.mergeable else 10
        self.memory = Memory(get("memory", 64 << 20), get("regions", 1), private=get("private", False))
        self.rings = [Vring(self.memory, self.size, self.event_idx, self.base) for _ in range(2 * self.pairs)]
        self.kick_fds, self.call_fds = [None] * (2 * self.pairs), [None] * (2 * self.pairs)
        slots = min(self.size, 256)
        self.send_slots = [[self.memory.allocate(self.SEND_SLOT, 64) for _ in range(slots)] for _ in range(self.pairs)]
        self.partial = [[] for _ in range(self.pairs)]
        self.frontend = Frontend(path, get("listener"), get("connection"))
        if start:
            self.start()

    # --- life

    @property
    def features(self):
        return (F_PROTOCOL | (F_VERSION_1 if self.modern else 0) | (F_MRG_RXBUF if self.mergeable else 0)
                | (F_INDIRECT if self.indirect else 0) | (F_EVENT_IDX if self.event_idx else 0))

    def negotiate(self):
        f = self.frontend
        f.negotiate_protocol()
        offered = f.get_features()
        assert self.features & ~offered == 0, hex(self.features & ~offered)
        f.tell(Request.SET_OWNER)
        f.set_features(self.features)

    def setup_ring(self, index, base=None):
        f, ring = self.frontend, self.rings[index]
        f.state(Request.SET_VRING_NUM, index, ring.size)
        f.state(Request.SET_VRING_BASE, index, self.base if base is None else base)
        user = self.memory.user
        f.set_vring_addr(index, user(ring.desc_at), user(ring.avail_at), user(ring.used_at))
        self.kick_fds[index] = f.new_eventfd() if self.kicks else None
        self.call_fds[index] = f.new_eventfd() if self.calls else None
        f.set_vring_fd(Request.SET_VRING_CALL, index, self.call_fds[index])
        f.set_vring_fd(Request.SET_VRING_KICK, index, self.kick_fds[index])

    def start(self, enable=None):
        """enable: ring numbers, default all."""
        self.negotiate()
        self.frontend.set_mem_table(self.memory)
        for pair in range(self.pairs):
            self.post(pair, self.size if self.posted is None else self.posted, kick=False)
        for index in range(2 * self.pairs):
            self.setup_ring(index)
        for index in range(2 * self.pairs) if enable is None else enable:
            self.frontend.enable(index)
        return self

    def reconnect(self, **source):
        """A new connection with the same memory and rings; indices go on where the used rings stand, as QEMU does it."""
        self.frontend.close()
        self.frontend = Frontend(source.get("path", self.path), source.get("listener"))
        self.negotiate()
        self.frontend.set_mem_table(self.memory)
        for index, ring in enumerate(self.rings):
            self.setup_ring(index, base=ring.used16[1])
            self.frontend.enable(index)
            self.kick(index)

    def close(self):
        self.frontend.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
        self.rings = []
        self.memory.close()

    # --- notifications

    def kick(self, index):
        if self.kick_fds[index] is not None:
            try:
                os.write(self.kick_fds[index], struct.pack("@Q", 1))
            except BlockingIOError:
                pass

    def publish(self, index):
        if self.rings[index].publish():
            self.kick(index)

    def wait_used(self, indices, deadline):
        """True if something was used before the deadline. Sleeps on the call descriptors without looking again on a timer:
        a call that never comes is a failure."""
        rings = [self.rings[i] for i in indices]
        fds = [self.call_fds[i] for i in indices]
        while not any([ring.want_call() for ring in rings]):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if None in fds:
                time.sleep(0.001)
                continue
            for fd in select.select(fds, [], [], left)[0]:
                eventfd_read(fd)
        for ring in rings:
            ring.want_call(False)
        return True

    # --- to the guest

    def post(self, pair=0, count=None, kick=True):
        """Receive buffers: one descriptor each with mergeable buffers or a modern header, else header and data apart."""
        ring = self.rings[2 * pair]
        for _ in range(len(ring.free) if count is None else count):
            if not ring.free:
                break
            at = self.memory.allocate(self.buffer, 64)
            ring.offer(ring.make([(at, self.buffer, True)], at))
        if ring.publish() and kick:
            self.kick(2 * pair)

    def receive_whole(self, pair=0, recycle=True):
        """Header and frame as one string of bytes, or None. Checks what the device said of buffers."""
        ring = self.rings[2 * pair]
        parts = self.partial[pair]
        while True:
            used = ring.take()
            if used is None:
                return None
            at, length, _ = used
            parts.append(self.memory.read(at, length))
            if recycle:
                ring.offer(ring.make([(at, self.buffer, True)], at))
                self.publish(2 * pair)
            assert len(parts[0]) >= self.header, f"used length {len(parts[0])} does not hold a header"
            buffers = struct.unpack_from("@H", parts[0], 10)[0] if self.header == 12 else 1
            assert buffers >= 1 and (self.mergeable or buffers == 1), f"num_buffers {buffers}"
            if len(parts) == buffers:
                data = b"".join(parts)
                assert all(len(part) == self.buffer for part in parts[:-1]), "a buffer was left half empty"
                parts.clear()
                return data

    def receive(self, pair=0, recycle=True):
        """One frame, or None if there is none; its header says nothing, since no offload was negotiated."""
        data = self.receive_whole(pair, recycle)
        if data is None:
            return None
        assert data[:10] == bytes(10), f"virtio header {data[:10].hex()}"
        return data[self.header:]

    def expect(self, count=1, pair=None, timeout=TIMEOUT, recycle=True):
        """That many frames, on one pair or on whichever they come, waiting on calls."""
        frames = []
        pairs = range(self.pairs) if pair is None else [pair]
        deadline = time.monotonic() + timeout
        while True:
            for p in pairs:
                while len(frames) < count:
                    frame = self.receive(p, recycle)
                    if frame is None:
                        break
                    frames.append(frame)
            if len(frames) == count:
                return frames
            if not self.wait_used([2 * p for p in pairs], deadline):
                raise AssertionError(f"{len(frames)} of {count} frames came within {timeout} s")

    # --- from the guest

    def reclaim(self, pair=0):
        ring = self.rings[2 * pair + 1]
        count = 0
        while True:
            used = ring.take()
            if used is None:
                return count
            if used[0] is not None:
                self.send_slots[pair].append(used[0])
            count += 1

    def drain(self, pair=0, timeout=TIMEOUT):
        """Waits until the device has returned all that was sent."""
        deadline = time.monotonic() + timeout
        while self.reclaim(pair) or self.rings[2 * pair + 1].tokens:
            if self.rings[2 * pair + 1].tokens and not self.wait_used([2 * pair + 1], deadline):
                raise AssertionError(f"{len(self.rings[2 * pair + 1].tokens)} chains not returned within {timeout} s")

    def send(self, frame, pair=0, cuts=(), publish=True, header=None, timeout=TIMEOUT):
        """One frame, header first in the same buffer; cuts: offsets (header counted) at which a new descriptor begins."""
        ring = self.rings[2 * pair + 1]
        data = (bytes(self.header) if header is None else header) + frame
        pieces = len(cuts) + 1
        deadline = time.monotonic() + timeout
        self.reclaim(pair)
        while not self.send_slots[pair] or len(ring.free) < (1 if self.indirect else pieces):
            self.publish(2 * pair + 1)
            if not self.wait_used([2 * pair + 1], deadline):
                raise AssertionError("the device returns no sent buffers")
            self.reclaim(pair)
        at = self.send_slots[pair].pop()
        assert len(data) + 16 * pieces + 16 <= self.SEND_SLOT
        self.memory.write(at, data)
        edges = [0, *cuts, len(data)]
        buffers = [(at + a, b - a, False) for a, b in zip(edges, edges[1:])]
        table_at = at + self.SEND_SLOT - 16 * pieces if self.indirect else None
        ring.offer(ring.make(buffers, at, table_at))
        if publish:
            self.publish(2 * pair + 1)

    def send_all(self, frames, pair=0, burst=32, **options):
        for i, frame in enumerate(frames):
            self.send(frame, pair, publish=(i + 1) % burst == 0, **options)
        self.publish(2 * pair + 1)


# --- frames ----------------------------------------------------------------------------------------------------------

BROADCAST = b"\xff" * 6


def mac(number):
    return bytes([0x52, 0x54, 0x00, 0, number >> 8, number & 0xFF])


def ethernet(destination, source, payload=b"", length=60, number=None, kind=0x88B5):
    """A frame of a type for experiments; its payload begins with a number and goes on with bytes that depend on it."""
    head = destination + source + struct.pack(">H", kind)
    if number is not None:
        payload = struct.pack(">I", number) + payload
    room = max(0, length - len(head) - len(payload))
    return head + payload + bytes((number or 0) + i & 0xFF for i in range(room))


def number_of(frame):
    return struct.unpack_from(">I", frame, 14)[0]


def numbered(count, destination, source, start=0):
    """Frames of every length that an Ethernet without jumbo frames has, one after the other."""
    return [ethernet(destination, source, length=60 + (start + i) * 37 % 1455, number=start + i) for i in range(count)]
