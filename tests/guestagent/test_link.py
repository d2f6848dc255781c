"""link.py: messages and descriptors between keeper and server."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from guestagent import link
from guestagent.link import MESSAGE_MAX, LinkClosed, encode, receive, send
from ptymux import limits
from tests.ptymux.streams.tools import descriptors


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = link.pair()
    with ours, theirs:
        yield ours, theirs


Ends = tuple[socket.socket, socket.socket]


def test_messages_keep_their_boundaries(ends: Ends) -> None:
    for number in range(3):
        send(ends[0], encode({"op": "n", "n": number, "blob": b"\0" * number}))
    assert [receive(ends[1]) for _ in range(3)] == [({"op": "n", "n": n, "blob": b"\0" * n}, []) for n in range(3)]


def test_descriptors_come_along_and_are_not_inherited(ends: Ends) -> None:
    pipe = os.pipe()
    send(ends[0], encode({"op": "spawned"}), list(pipe))
    for fd in pipe:
        os.close(fd)
    message, (source, target) = receive(ends[1])
    assert message == {"op": "spawned"}
    assert not os.get_inheritable(source)
    assert not os.get_inheritable(target)
    os.write(target, b"through")
    assert os.read(source, 10) == b"through"
    os.close(source)
    os.close(target)


def test_as_many_descriptors_as_a_record_can_have(ends: Ends) -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(link.FDS_MAX)]
    send(ends[0], encode({"op": "session"}), fds)
    _, received = receive(ends[1])
    assert len(received) == link.FDS_MAX >= len(link.FDS)
    for fd in [*fds, *received]:
        os.close(fd)


def test_a_message_of_the_largest_size(ends: Ends) -> None:
    """It fits an empty socket buffer, so it cannot wait for ever."""
    ends[0].setblocking(False)
    overhead = len(encode({"op": "x", "blob": b"x" * 70_000})) - 70_000
    blob = os.urandom(MESSAGE_MAX - overhead)
    send(ends[0], encode({"op": "x", "blob": blob}))
    assert receive(ends[1]) == ({"op": "x", "blob": blob}, [])


def test_a_message_that_is_too_large_is_refused_before_it_is_queued() -> None:
    with pytest.raises(ValueError, match=r"^cannot send meta: \d+ bytes are too many$"):
        encode({"op": "meta", "blob": b"x" * MESSAGE_MAX})


def test_what_a_client_may_ask_for_fits() -> None:
    """The largest `spawn` that passes the checks of `create`, with the widest characters."""
    wide = "\U0001f600"
    shown = wide * 4096
    meta = {"argv": [shown], "cwd": shown, "label": wide * limits.MAX_LABEL, "user": wide * 256, "name": wide * 64}
    short = ["x" * 32] * (limits.MAX_ARGV // 33)  # the size at which msgpack's overhead weighs most
    encode(
        {
            "op": "spawn",
            "argv": short,
            "cwd": shown,
            "user": wide * 256,
            "term": wide * 64,
            "meta": encode({**meta, "op": ""}),
        }
    )


def test_the_end(ends: Ends) -> None:
    send(ends[0], encode({"op": "last"}))
    ends[0].close()
    assert receive(ends[1]) == ({"op": "last"}, [])
    with pytest.raises(LinkClosed):
        receive(ends[1])
    with pytest.raises(LinkClosed):
        send(ends[1], encode({"op": "late"}))


def test_what_was_sent_before_a_death_with_unread_messages_is_not_lost(ends: Ends) -> None:
    """The kernel reports the reset once, and first."""
    send(ends[1], encode({"op": "unread"}))
    send(ends[0], encode({"op": "remember"}))
    send(ends[0], encode({"op": "ready"}))
    ends[0].close()
    assert receive(ends[1])[0] == {"op": "remember"}
    assert receive(ends[1])[0] == {"op": "ready"}
    with pytest.raises(LinkClosed):
        receive(ends[1])


def test_nothing_there_and_no_room(ends: Ends) -> None:
    for end in ends:
        end.setblocking(False)
    with pytest.raises(BlockingIOError):
        receive(ends[1])
    body = encode({"op": "x", "blob": b"x" * 50_000})
    sent = 0
    try:
        while True:
            send(ends[0], body)
            sent += 1
    except BlockingIOError:
        pass
    assert sent > 0
    for _ in range(sent):
        assert receive(ends[1])[0]["op"] == "x"
    send(ends[0], body)


@pytest.mark.parametrize("room", [0, 1, 2])
def test_out_of_descriptors(ends: Ends, room: int) -> None:
    """The message arrives, marked, and without any of its descriptors: half of them would be of no use."""
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    send(ends[0], encode({"op": "spawned", "n": 7}), fds)
    for fd in fds:
        os.close(fd)
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = _free_numbers(room)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert receive(ends[1]) == ({"op": "spawned", "n": 7, "truncated": True}, [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert descriptors() == before
    send(ends[0], encode({"op": "next"}))
    assert receive(ends[1])[0] == {"op": "next"}


def _free_numbers(count: int) -> int:
    """The limit below which `count` descriptor numbers are free."""
    number = 0
    while True:
        try:
            os.fstat(number)
        except OSError:
            if count == 0:
                return number
            count -= 1
        number += 1
