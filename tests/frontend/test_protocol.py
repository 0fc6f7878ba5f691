# SPDX-License-Identifier: BSD-2-Clause
"""Messages, right and wrong: what is answered, what is refused, and that nothing leaks or stands still for it."""
import itertools
import os
import socket
import struct

import pytest

from one_port import finish, negotiated
from rig import wait_for
from vhost_frontend import (F_CTRL_VQ, F_EVENT_IDX, F_GUEST_ANNOUNCE, F_INDIRECT, F_MQ, F_MRG_RXBUF, F_MTU, F_PROTOCOL, F_RING_RESET,
                            F_VERSION_1, NEED_REPLY, NO_FD, P_LOG_SHMFD, P_MEM_SLOTS, P_MQ, P_NET_MTU, P_RARP, P_REPLY_ACK, P_RESET_DEVICE,
                            P_STATUS, Disconnected, Memory, Request, eventfd, ring_state, u64, wait_readable)
from virtio_driver import ethernet, mac, number_of

A, B = mac(1), mac(2)
F_LOG_ALL, F_ANY_LAYOUT, F_ACCESS_PLATFORM = 1 << 26, 1 << 27, 1 << 33
RING_REQUESTS = (Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR)


# --- negotiation -----------------------------------------------------------------------------------------------------


def test_offer(lone):
    f = lone.frontend(0)
    offered = f.get_features()
    wanted = (F_VERSION_1 | F_MRG_RXBUF | F_INDIRECT | F_EVENT_IDX | F_MQ | F_CTRL_VQ | F_GUEST_ANNOUNCE | F_RING_RESET | F_PROTOCOL
              | F_ANY_LAYOUT)
    assert offered & wanted == wanted
    assert not offered & (F_MTU | F_LOG_ALL | F_ACCESS_PLATFORM)  # no MTU is known here; the others would need more than a bit
    assert f.negotiate_protocol() == P_MQ | P_REPLY_ACK | P_RARP | P_NET_MTU | P_MEM_SLOTS | P_STATUS | P_RESET_DEVICE
    assert f.ask_u64(Request.GET_QUEUE_NUM) == 2  # pairs, not rings
    assert f.ask_u64(Request.GET_MAX_MEM_SLOTS) >= 32
    assert f.ask_u64(Request.GET_STATUS) == 0
    f.tell(Request.SET_STATUS, u64(11))
    assert f.ask_u64(Request.GET_STATUS) == 11
    assert f.quiet()
    f.close()


def test_mtu_is_offered_where_it_is_known(switch):
    s = switch(ports=1, options={0: ",mtu=9000"})
    f = s.frontend(0)
    assert f.get_features() & F_MTU
    f.negotiate_protocol()
    f.tell(Request.NET_SET_MTU, u64(9000))
    assert "is told an MTU" not in s.daemon.log()
    for bad in (0, 67, 65536, 1 << 32 | 1500):
        assert f.try_tell(Request.NET_SET_MTU, u64(bad)) != 0
    # More than the port carries would be lost on the way; less is the guest's business, but worth a line.
    assert f.try_tell(Request.NET_SET_MTU, u64(9001)) != 0
    assert "MTU 9001" in s.show(0)["last_fault"] and "9000" in s.show(0)["last_fault"] and "host_mtu=" in s.show(0)["last_fault"]
    f.tell(Request.NET_SET_MTU, u64(1400))
    assert "is told an MTU of 1400" in s.daemon.log()
    assert s.show(0)["guest_mtu"] == 1400
    s.daemon.cli("port", "set", "p0", "mtu=1300")
    assert f.try_tell(Request.NET_SET_MTU, u64(1400)) != 0
    f.close()


def test_mtu_where_none_is_known(lone):
    f = negotiated(lone)
    f.tell(Request.NET_SET_MTU, u64(65521))
    assert f.try_tell(Request.NET_SET_MTU, u64(65522)) != 0
    f.close()


def test_features_that_are_not_offered(lone):
    f = negotiated(lone)
    for bit in range(64):
        if not f.get_features() >> bit & 1:
            assert f.try_tell(Request.SET_FEATURES, u64(F_PROTOCOL | 1 << bit)) != 0
    assert lone.show(0)["state"] == "negotiated"
    assert f.try_tell(Request.SET_PROTOCOL_FEATURES, u64(P_REPLY_ACK | P_LOG_SHMFD)) != 0
    f.acks = False
    f.send(Request.SET_FEATURES, u64(F_PROTOCOL | F_LOG_ALL))
    assert f.ended()
    assert "not offered" in lone.show(0)["last_fault"]
    finish(lone, f)


def test_one_answer_to_each_message(lone):
    """NEED_REPLY on every request that there is, each in a form that is right and in some that are wrong."""
    memory = Memory(1 << 20)
    region = memory.regions[0]
    table, fds = memory.table()
    good = {
        Request.SET_FEATURES: (u64(F_PROTOCOL), []), Request.SET_OWNER: (b"", []), Request.RESET_OWNER: (b"", []),
        Request.SET_MEM_TABLE: (table, fds), Request.SET_VRING_NUM: (ring_state(0, 256), []),
        Request.SET_VRING_ADDR: (struct.pack("@IIQQQQ", 0, 0, region.user, region.user + 8192, region.user + 4096, 0), []),
        Request.SET_VRING_BASE: (ring_state(0, 7), []), Request.SET_VRING_KICK: (u64(NO_FD), []), Request.SET_VRING_CALL: (u64(NO_FD), []),
        Request.SET_VRING_ERR: (u64(NO_FD), []), Request.SET_PROTOCOL_FEATURES: (u64(P_REPLY_ACK | P_MQ), []),
        Request.SET_VRING_ENABLE: (ring_state(0, 1), []), Request.SEND_RARP: (b"\x52\x54\0\1\2\3\0\0", []),
        Request.NET_SET_MTU: (u64(1500), []), Request.RESET_DEVICE: (b"", []), Request.SET_STATUS: (u64(1), []),
        Request.REM_MEM_REG: (u64(0) + region.pack(), []), Request.ADD_MEM_REG: (u64(0) + region.pack(), fds),
    }
    answers = {Request.GET_FEATURES: b"", Request.GET_PROTOCOL_FEATURES: b"", Request.GET_QUEUE_NUM: b"", Request.GET_MAX_MEM_SLOTS: b"",
               Request.GET_STATUS: b"", Request.GET_VRING_BASE: ring_state(0)}
    f = negotiated(lone)
    for request, payload in answers.items():
        for flags in (0, NEED_REPLY):
            assert len(f.ask(request, payload, flags=flags)) == 8
            assert f.quiet()
    for request, (payload, passed) in good.items():
        assert f.try_tell(request, payload, passed) == 0, request.name
        assert f.quiet(), request.name
    bad = {
        Request.SET_FEATURES: u64(1 << 63), Request.SET_PROTOCOL_FEATURES: u64(1 << 63), Request.SET_VRING_NUM: ring_state(0, 3),
        Request.SET_VRING_ADDR: struct.pack("@IIQQQQ", 0, 0, 1, 2, 3, 0), Request.SET_VRING_BASE: ring_state(0, 65536),
        Request.SET_VRING_KICK: u64(0), Request.SET_VRING_CALL: u64(0), Request.SET_VRING_ERR: u64(99 | NO_FD),
        Request.SET_VRING_ENABLE: ring_state(0, 2), Request.NET_SET_MTU: u64(1), Request.SET_STATUS: u64(256),
        Request.SET_MEM_TABLE: ring_state(0), Request.ADD_MEM_REG: u64(0) + region.pack(),
        Request.REM_MEM_REG: u64(0) + struct.pack("@QQQQ", 1, 2, 3, 4),
    }
    for request, payload in bad.items():
        assert f.try_tell(request, payload) != 0, request.name
        assert f.quiet(), request.name
    # Of a ring that does not exist: an answer of its own all the same.
    assert struct.unpack("@II", f.ask(Request.GET_VRING_BASE, ring_state(77, 5), flags=NEED_REPLY)) == (77, 0)
    for request in range(0, 300):
        if request in good or request in answers:
            continue
        assert f.try_tell(request, u64(0)) != 0, request
        assert f.quiet(), request
    # Without REPLY_ACK the flag means nothing.
    assert f.try_tell(Request.SET_PROTOCOL_FEATURES, u64(0)) == 0
    f.send(Request.SET_OWNER, flags=NEED_REPLY)
    assert f.quiet()
    finish(lone, f)
    memory.close()


def test_log_base(lone):
    """LOG_SHMFD is not offered. A frontend that sends a log all the same gets one answer if it asks for one; the log is closed."""
    log = os.memfd_create("log")
    os.ftruncate(log, 4096)
    f = negotiated(lone)
    count = lone.descriptors()
    assert f.try_tell(Request.SET_LOG_BASE, struct.pack("@QQ", 4096, 0), [log]) != 0
    assert f.quiet()
    f.send(Request.SET_LOG_BASE, struct.pack("@QQ", 4096, 0), [log])
    f.send(Request.SET_LOG_FD, b"", [log])
    assert f.quiet()
    wait_for(lambda: lone.descriptors() == count, "surplus descriptors closed", pause=0.01)
    os.close(log)
    finish(lone, f)


@pytest.mark.parametrize("request_", (Request.IOTLB_MSG, Request.GET_CONFIG, Request.POSTCOPY_ADVISE, Request.GET_INFLIGHT_FD, 0, 99))
def test_requests_that_cannot_be_answered(lone, request_):
    """They want an answer of a shape that only their feature defines; it is not offered, so the session ends and says why."""
    f = negotiated(lone)
    f.send(request_, u64(0))
    assert f.ended()
    assert f"message {int(request_)}" in lone.show(0)["last_fault"]
    finish(lone, f)


# --- sizes, descriptors, pieces --------------------------------------------------------------------------------------


def test_ring_sizes(lone):
    f = negotiated(lone)
    for good in (1, 2, 256, 32768):
        f.state(Request.SET_VRING_NUM, 3, good)
    for bad in (0, 3, 255, 32769, 65536, 0xFFFFFFFF):
        assert f.try_tell(Request.SET_VRING_NUM, ring_state(3, bad)) != 0, bad
    for index in (4, 255, 256, 0xFFFFFFFF):
        assert f.try_tell(Request.SET_VRING_NUM, ring_state(index, 256)) != 0, index
    finish(lone, f)


@pytest.mark.parametrize("size", (0, 3, 32769))
def test_bad_ring_size_drops_only_that_client(switch, size):
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    f = negotiated(s, 2, acks=False)
    f.send(Request.SET_VRING_NUM, ring_state(0, size))
    assert f.ended()
    assert f"ring size {size}" in s.show(2)["last_fault"]
    a.send(ethernet(B, A, number=1))
    assert number_of(b.expect()[0]) == 1
    f.close()


def test_ring_size_a_million_times(lone):
    f = negotiated(lone, acks=False)
    f.get_features()
    before = lone.resident_kib()
    message = struct.pack("@III", Request.SET_VRING_NUM, 1, 8)
    chunk = b"".join(message + ring_state(i % 4, 1 << i % 16) for i in range(1000))
    f.socket.settimeout(600)
    for _ in range(1000):
        f.socket.sendall(chunk)
    f.get_features()
    assert not lone.grown_since(before, 2048)
    finish(lone, f)


@pytest.mark.parametrize("acks", (False, True))
def test_surplus_descriptors(lone, acks):
    """On each request: 1, 2, 8, 9 and many descriptors. Whatever becomes of the session, none stays open here."""
    sample = [os.dup(0) for _ in range(200)]
    table, _ = Memory(1 << 20).table()
    for request, count in itertools.product(range(0, 46), (1, 2, 8, 9, 200)):
        if count == 1:
            lone.calm(0)
        f = negotiated(lone)
        payload = table if request == Request.SET_MEM_TABLE else u64(0)
        try:
            f.send(request, payload, sample[:count], NEED_REPLY if acks else 0)
            f.get_features()
        except (Disconnected, AssertionError):
            pass  # refused with an answer, or dropped
        f.close()
    for fd in sample:
        os.close(fd)
    finish(lone)


def test_surplus_payload(lone):
    for request, size in itertools.product(range(0, 46), (1, 7, 9, 39, 41, 263, 265, 1024)):
        if size == 1:
            lone.calm(0)
        f = negotiated(lone)
        try:
            f.send(request, bytes(size))
            f.get_features()
        except (Disconnected, AssertionError):
            pass
        f.close()
    finish(lone)


@pytest.mark.parametrize("header", (
    struct.pack("@III", Request.SET_VRING_NUM, 1, 0xFFFFFFFF), struct.pack("@III", Request.SET_VRING_NUM, 1, 1025),
    struct.pack("@III", Request.GET_FEATURES, 0, 0), struct.pack("@III", Request.GET_FEATURES, 2, 0),
    struct.pack("@III", Request.GET_FEATURES, 3, 0), struct.pack("@III", Request.GET_FEATURES, 1 | 4, 0)))
def test_bad_header_ends_the_session(lone, header):
    f = negotiated(lone)
    f.send_bytes(header + bytes(64), [0, 1, 2])
    assert f.ended()
    assert lone.show(0)["last_fault"]
    finish(lone, f)


def test_too_many_descriptors_end_the_session(lone):
    f = negotiated(lone)
    f.send(Request.SET_MEM_TABLE, Memory(1 << 20).table()[0], [0] * 9)
    assert f.ended()
    assert "descriptors" in lone.show(0)["last_fault"]
    finish(lone, f)


def test_message_in_pieces_stalls_nobody(switch):
    """Half a header, for as long as it likes; the rest is understood when it comes."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    f = s.frontend(2)
    f.negotiate_protocol()
    f.acks = False
    event = eventfd()
    message = struct.pack("@IIIQ", Request.SET_VRING_CALL, 1 | NEED_REPLY, 8, 0)
    for i, byte in enumerate(message):
        f.send_bytes(bytes([byte]), [event] if i == 3 else [])
        a.send(ethernet(B, A, number=i))
        assert number_of(b.expect()[0]) == i
        assert s.state(2) == "connected"
    assert struct.unpack("@Q", f.reply(Request.SET_VRING_CALL))[0] == 0
    # And a connection that ends within a message, with a descriptor on its way.
    f.send_bytes(message[:9], [event])
    f.close()
    os.close(event)
    s.wait_state(2, "waiting")


def test_answers_that_nobody_reads(switch):
    """The daemon neither waits nor stores: the connection ends."""
    s = switch(ports=3)
    a, b = s.pair_of_guests()
    f = s.frontend(2)
    before = s.resident_kib()
    f.socket.settimeout(1)
    message = struct.pack("@III", Request.GET_FEATURES, 1, 0)
    with pytest.raises(Disconnected):
        for _ in range(100000):
            try:
                f.send_bytes(message)
            except socket.timeout:
                pass
    s.wait_state(2, "waiting")
    assert "does not read" in s.show(2)["last_fault"]
    assert not s.grown_since(before, 2048)
    a.send(ethernet(B, A, number=1))
    assert number_of(b.expect()[0]) == 1
    f.close()


def test_silent_frontend(lone):
    """One that connects and says nothing stays connected."""
    f = lone.frontend(0)
    assert not wait_readable(f.socket.fileno(), 2)
    assert f.get_features()
    finish(lone, f)


# --- rings' descriptors ----------------------------------------------------------------------------------------------


def test_kick_and_call_must_be_eventfds(lone, tmp_path):
    f = negotiated(lone)
    count = lone.descriptors()
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    memfd = os.memfd_create("x")
    pipe = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    for request, fd in itertools.product(RING_REQUESTS, (file, memfd, *pipe, null)):
        assert f.try_tell(request, u64(1), [fd]) != 0
    for request in RING_REQUESTS:
        assert f.try_tell(request, u64(1)) != 0  # no descriptor, and no bit that says so
        assert f.try_tell(request, u64(1 | NO_FD), [eventfd()]) != 0
        assert f.try_tell(request, u64(1 | NO_FD)) == 0
        assert f.try_tell(request, u64(4 | NO_FD)) != 0
        assert f.try_tell(request, u64(1 | 1 << 9 | NO_FD)) != 0
    wait_for(lambda: lone.descriptors() == count, "surplus descriptors closed", pause=0.01)
    for fd in (file, memfd, null, *pipe):
        os.close(fd)
    finish(lone, f)


def test_descriptors_are_replaced_not_piled_up(lone):
    f = negotiated(lone)
    for request, index in itertools.product(RING_REQUESTS, range(4)):
        f.set_vring_fd(request, index, f.new_eventfd())
    count = lone.descriptors()
    event = eventfd()
    for i in range(500):
        f.set_vring_fd(RING_REQUESTS[i % 3], i % 4, event)
    assert lone.descriptors() == count
    os.close(event)
    finish(lone, f)
