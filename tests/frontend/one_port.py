# SPDX-License-Identifier: BSD-2-Clause
"""For tests of messages: a session that has got as far as its features, and its end, after which all must be as it was."""
from vhost_frontend import F_PROTOCOL, F_VERSION_1, Request


def negotiated(s, port=0, acks=True):
    f = s.frontend(port)
    f.negotiate_protocol()
    f.acks = acks and f.acks
    f.set_features(F_PROTOCOL | F_VERSION_1)
    return f


def finish(s, *frontends):
    """All is as it was before these were connected."""
    for f in frontends:
        f.close()
    s.wait_state(0, "waiting")
    s.wait_counts(*s.idle)
    # And the port is still good for somebody.
    f = negotiated(s)
    assert f.ask_u64(Request.GET_QUEUE_NUM) == 2
    f.close()
