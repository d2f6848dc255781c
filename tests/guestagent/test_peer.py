"""peer.py: the agent's end of one connection, against the client's own machine and against raw frames; no I/O at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestagent.access import Tokens
from guestagent.config import Config, Limits, Listen, UnixListen
from guestagent.hub import Hub
from guestagent.listeners import Peer as Origin
from guestagent.peer import ANSWERS_PAUSE, HOT_GROUP, Closing, Peer
from guestagent.stream import Attach
from ptymux import limits
from ptymux import messages as m
from ptymux.cursor import Position, Start
from ptymux.errors import HandshakeRefused, PtymuxError
from ptymux.frames import Decoder
from ptymux.handshake import State
from ptymux.liveness import Verdict
from ptymux.machine import ClientMachine
from ptymux.machine import State as ClientState
from ptymux.messages import AGENT, encode
from ptymux.output import OutputSender
from ptymux.requests import Call
from tests.ptymux.ring import Ring

CLIENT = b"c" * 16
LOCAL = Origin("unix", "unix uid 0 pid 1", "admin", trusted=True)
REMOTE = Origin("tcp", "tcp 192.0.2.1:1", "admin", trusted=False)
TOKENS = "viewer look\ncontroller type\nadmin rule\n"
HELLO = m.Hello(m.MAGIC, [1, 1], CLIENT, None, b"n" * 16)


class Keeper:
    """Told, and never answers."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)


class TestHub(Hub):
    """The hub itself, with a clock of ours and no keeper."""

    __test__ = False

    def __init__(self, tokens: str = "", **limit: Any) -> None:
        self.clock = 100.0
        config = Config(listen=Listen(unix=UnixListen()), limits=Limits(**limit))
        super().__init__(config, Keeper(), Tokens(tokens))  # type: ignore[arg-type]
        self.agent_id, self.generation = b"a" * 16, b"g" * 16

    def now(self) -> float:
        return self.clock


class Connection:
    """A Peer and what it would do to a socket."""

    def __init__(self, hub: TestHub, origin: Origin = LOCAL) -> None:
        self.hub = hub
        self.begun: list[m.Request] = []
        self.hung_up = 0
        self.kicks = 0
        self.peer = Peer(hub, origin, lambda peer, request: self.begun.append(request), hub.now())
        self.peer.kick = self._kicked
        self.peer.on_hang_up = self._hung_up
        self._decoder = Decoder(AGENT)
        self._decoder.greeted()
        hub.add_peer(self.peer)

    def _kicked(self) -> None:
        self.kicks += 1

    def _hung_up(self) -> None:
        self.hung_up += 1

    def feed(self, data: bytes) -> None:
        """As one read, with all pauses ignored."""
        for _ in self.peer.take(data):
            pass

    def send(self, *messages: m.Message) -> None:
        self.feed(b"".join(map(encode, messages)))

    def raw(self) -> bytes:
        """Everything that it wants to send now, and does."""
        data = b""
        while (batch := self.peer.collect(limits.MAX_BATCH)) is not None:
            data += b"".join(batch.buffers())
            for attach, group in batch.groups:
                self.peer.commit(attach, group)
        return data

    def sent(self) -> list[Any]:
        return list(self._decoder.feed(self.raw()))

    def up(self) -> Connection:
        self.send(HELLO)
        assert [type(message) for message in self.sent()] == [m.Welcome]
        return self

    def dies(self, *messages: m.Message) -> m.Error:
        """Send something that ends the connection; the one frame that says why."""
        with pytest.raises(Closing):
            self.send(*messages)
        return self.last_word()

    def last_word(self) -> m.Error:
        [error] = self.sent()
        assert isinstance(error, m.Error)
        assert error.fatal
        return error


@pytest.fixture
def hub() -> Iterator[TestHub]:
    found = TestHub()
    yield found
    found.pump.close()


@pytest.fixture
def guarded() -> Iterator[TestHub]:
    """A hub with tokens."""
    found = TestHub(TOKENS)
    yield found
    found.pump.close()


# --- the handshake ---------------------------------------------------------------------------------------
def test_a_client_comes_in(hub: TestHub) -> None:
    connection = Connection(hub)
    machine = ClientMachine(CLIENT, None)
    machine.connected(b"n" * 16, 0.0)
    connection.feed(machine.data_to_send())
    assert connection.peer.state is State.UP
    assert hub.peers == {CLIENT: connection.peer}
    assert not hub.strangers
    machine.receive(connection.raw(), 0.0)
    assert machine.state is ClientState.UP
    welcome = machine.welcome
    assert welcome is not None
    assert (welcome.version, welcome.agent, welcome.generation, welcome.lineage) == (1, b"a" * 16, b"g" * 16, [])
    assert welcome.role == "admin"
    assert welcome.limits == hub.config.limits.reported()


def test_a_version_that_nobody_here_speaks(hub: TestHub) -> None:
    error = Connection(hub).dies(HELLO._replace(versions=[2, 9]))
    assert error.code == "version"
    assert error.message == "cannot connect: the client speaks versions [2, 9], the agent 1"
    assert not hub.peers


@pytest.mark.parametrize(
    ("token", "origin", "role"),
    [
        (b"look", LOCAL, "viewer"),
        (b"type", REMOTE, "controller"),
        (b"rule", REMOTE, "admin"),
        (b"wrong", LOCAL, None),
        (b"wrong", REMOTE, None),
        (b"", REMOTE, None),
        (None, LOCAL, None),  # tokens are configured, so also somebody local must have one
        (None, REMOTE, None),
    ],
)
def test_tokens(guarded: TestHub, token: bytes | None, origin: Origin, role: str | None) -> None:
    connection = Connection(guarded, origin)
    if role is None:
        error = connection.dies(HELLO._replace(token=token))
        assert (error.code, error.message) == ("unauthorized", "cannot connect: the token is missing or wrong")
        assert guarded.stats.refused == 1
        assert not guarded.peers
    else:
        connection.send(HELLO._replace(token=token))
        [welcome] = connection.sent()
        assert (welcome.role, connection.peer.role) == (role, role)


def test_a_listener_grants_no_more_than_its_role(guarded: TestHub) -> None:
    connection = Connection(guarded, Origin("unix", "unix", "controller", trusted=True))
    connection.send(HELLO._replace(token=b"rule"))
    assert connection.peer.role == "controller"


def test_without_tokens_a_trusted_transport_is_enough_and_another_is_not(hub: TestHub) -> None:
    Connection(hub).up()
    assert Connection(hub, REMOTE).dies(HELLO).code == "unauthorized"


def test_a_refused_client_is_told_and_does_not_come_back(guarded: TestHub) -> None:
    connection = Connection(guarded)
    machine = ClientMachine(CLIENT, b"wrong")
    machine.connected(b"n" * 16, 0.0)
    with pytest.raises(Closing):
        connection.feed(machine.data_to_send())
    machine.receive(connection.raw(), 0.0)
    assert machine.state is ClientState.FAILED
    assert isinstance(machine.failure, HandshakeRefused)


def test_a_second_hello(hub: TestHub) -> None:
    error = Connection(hub).up().dies(HELLO)
    assert (error.code, error.message) == ("malformed", "unexpected Hello: the connection is up")


@pytest.mark.parametrize(
    "message",
    [m.Ping(1), m.Request(1, "info", {}), m.Input("s", 0, b"rm -rf"), m.Credit(0, 5), m.Error("shutdown", "x", True)],
    ids=lambda message: type(message).__name__,
)
def test_nothing_before_hello(hub: TestHub, message: m.Message) -> None:
    connection = Connection(hub)
    error = connection.dies(message, HELLO)
    assert error.code == "malformed"
    assert error.message == f"unexpected {type(message).__name__}: the connection is waiting for hello"
    assert not connection.begun
    assert not hub.peers


def test_an_unknown_frame_before_hello(hub: TestHub) -> None:
    connection = Connection(hub)
    with pytest.raises(Closing):
        connection.feed(frame([0x77]))
    assert connection.last_word().message == "unexpected frame type 119: the connection is waiting for hello"


def frame(body: Any) -> bytes:
    packed = msgpack.packb(body)
    return m.LENGTH.pack(len(packed)) + packed


def test_a_stranger_may_not_send_much(hub: TestHub) -> None:
    connection = Connection(hub)
    with pytest.raises(Closing):
        connection.feed(m.LENGTH.pack(limits.MAX_GREETING + 1))
    error = connection.last_word()
    assert error.message == f"malformed frame: length {limits.MAX_GREETING + 1} exceeds max_greeting (4096)"


def test_a_greeted_client_may_send_a_whole_frame_and_no_more(hub: TestHub) -> None:
    connection = Connection(hub).up()
    text = "x" * (limits.MAX_FRAME - 100)
    connection.send(m.Request(1, "create", {"text": text}))
    assert connection.begun[0].params == {"text": text}
    with pytest.raises(Closing):
        connection.feed(m.LENGTH.pack(limits.MAX_FRAME + 1))
    assert connection.last_word().message.endswith("exceeds max_frame (1048576)")


# --- who gets in ----------------------------------------------------------------------------------------
def test_a_newer_connection_of_a_client_replaces_the_older_at_once(hub: TestHub) -> None:
    """Case C31: nobody waits for a dead holder."""
    first = Connection(hub).up()
    second = Connection(hub).up()
    assert hub.peers == {CLIENT: second.peer}
    [error] = first.sent()
    assert (error.code, error.fatal, first.hung_up) == ("replaced", True, 1)
    first.peer.closed()
    assert hub.peers == {CLIENT: second.peer}  # the end of the first changes nothing for the second


def test_max_connections() -> None:
    """The next one is refused instead of welcomed; a client that comes back is not one more."""
    hub = TestHub(max_connections=2)
    for number in range(2):
        connection = Connection(hub)
        connection.send(HELLO._replace(client=bytes([number]) * 16))
    error = Connection(hub).dies(HELLO)
    assert (error.code, error.message) == ("limit", "cannot connect: max_connections (2) is reached")
    assert error.details == {"limit": "max_connections", "value": 2}
    Connection(hub).send(HELLO._replace(client=b"\0" * 16))
    assert len(hub.peers) == 2
    connection.peer.closed()
    Connection(hub).up()
    hub.pump.close()


def test_strangers_make_room_for_each_other() -> None:
    hub = TestHub(max_connections=3)
    silent = [Connection(hub) for _ in range(3)]
    later = Connection(hub)
    assert [connection.hung_up for connection in silent] == [1, 0, 0]
    silent[0].peer.closed()
    Connection(hub)
    assert [connection.hung_up for connection in silent] == [1, 1, 0]
    later.up()
    assert later.hung_up == 0
    hub.pump.close()


# --- what breaks the protocol ------------------------------------------------------------------------------
def test_unknown_frames_are_answered_and_nothing_else_happens(hub: TestHub) -> None:
    connection = Connection(hub).up()
    connection.feed(frame([0x77, "from", "the future"]) + frame([0xFFFF]) + encode(m.Ping(5)))
    first, second, pong = connection.sent()
    assert first == m.Error("unknown_frame", "unknown frame type 119", False, {"type": 119})
    assert second.details == {"type": 0xFFFF}
    assert pong == m.Pong(5)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (m.LENGTH.pack(0), "malformed frame: length 0"),
        (b"\xff\xff\xff\xff", "malformed frame: length 4294967295 exceeds max_frame (1048576)"),
        (frame("text"), "malformed frame: not a non-empty array"),
        (frame([]), "malformed frame: not a non-empty array"),
        (frame([-1]), "malformed frame: the type is not an integer from 0 to 65535"),
        (frame([0x04]), "malformed Ping: 0 fields, 1 needed"),
        (frame([0x04, "now"]), "malformed Ping: token must be an unsigned 64-bit integer"),
        (frame([0x06, 1, "list", {}, b"short"]), "malformed Request: key must be 16 bytes or nil"),
        (frame([0x02] + [0] * 8), "unexpected Welcome: not for the client to send"),
        (frame([0x10, 0, 0, b"x"]), "unexpected Output: not for the client to send"),
        (m.LENGTH.pack(1) + b"\xc1", "malformed frame: not one msgpack value (FormatError)"),
        (m.LENGTH.pack(2) + b"\x04\x04", "malformed frame: not one msgpack value (ExtraData)"),
    ],
)
def test_malformed(hub: TestHub, data: bytes, text: str) -> None:
    """One fatal error, after the answers to what came before, and nothing of what comes after is looked at."""
    connection = Connection(hub).up()
    with pytest.raises(Closing, match=r".*"):
        connection.feed(encode(m.Ping(1)) + data + encode(m.Ping(2)) + encode(m.Request(1, "kill", {})))
    pong, error = connection.sent()
    assert pong == m.Pong(1)
    assert error == m.Error("malformed", text, True, {})
    assert not connection.begun
    assert hub.stats.protocol_errors == 1
    assert connection.peer.collect(limits.MAX_BATCH) is None


@given(greeted=st.booleans(), data=st.binary(max_size=200), cuts=st.integers(0, 1 << 30))
def test_garbage(greeted: bool, data: bytes, cuts: int) -> None:
    """In one piece, in random pieces and byte by byte: Closing or nothing, and the same answers."""
    outcomes = []
    chance = random.Random(cuts)
    for largest in (len(data) or 1, 7, 1):
        hub = TestHub()
        connection = Connection(hub)
        if greeted:
            connection.up()
        closed = False
        rest = data
        try:
            while rest:
                size = largest if largest != 7 else chance.randrange(1, 8)
                part, rest = rest[:size], rest[size:]
                connection.feed(part)
        except Closing:
            closed = True
        answers = connection.sent()
        fatal = [answer.message for answer in answers if isinstance(answer, m.Error) and answer.fatal]
        assert len(fatal) == closed
        assert all(text.startswith(("malformed ", "unexpected ", "cannot connect: ")) for text in fatal)
        assert hub.stats.protocol_errors == closed
        outcomes.append((closed, answers))
        hub.pump.close()
    assert outcomes[0] == outcomes[1] == outcomes[2]


FRAMES = st.sampled_from([HELLO, m.Ping(7), m.Request(3, "info", {}), m.InputEnd("s", 3), m.Credit(9, 9)])


@given(st.lists(FRAMES, max_size=6), st.integers(0, 400), st.integers(0, 255))
def test_one_byte_changed(messages: list[m.Message], position: int, value: int) -> None:
    """Anywhere in a good stream."""
    hub = TestHub()
    connection = Connection(hub).up()
    data = bytearray(b"".join(map(encode, messages)))
    if data:
        data[position % len(data)] = value
    try:
        connection.feed(bytes(data))
    except Closing:
        assert connection.sent()[-1].fatal
    hub.pump.close()


# --- requests ----------------------------------------------------------------------------------------------
def test_requests_in_flight_are_bounded(hub: TestHub) -> None:
    connection = Connection(hub).up()
    connection.send(*[m.Request(number, "create", {}) for number in range(limits.MAX_REQUESTS)])
    connection.peer.answer(0, {})
    connection.peer.refuse(1, "limit", "no", {})
    connection.send(m.Request(100, "create", {}), m.Request(101, "create", {}))
    assert len(connection.begun) == limits.MAX_REQUESTS + 2
    assert len(connection.sent()) == 2
    error = connection.dies(m.Request(102, "create", {}))
    assert error.message == f"malformed Request: more than max_requests ({limits.MAX_REQUESTS}) in flight"
    assert len(connection.begun) == limits.MAX_REQUESTS + 2


def test_the_clients_machine_keeps_within_that(hub: TestHub) -> None:
    """However much its caller asks, and every answer reaches its call."""
    connection = Connection(hub)
    machine = ClientMachine(CLIENT, None)
    machine.connected(b"n" * 16, 0.0)
    calls = [Call("create", {"n": number}, bytes([number]) * 16) for number in range(3 * limits.MAX_REQUESTS)]
    for call in calls:
        machine.ask(call)
    answered = 0
    while data := machine.data_to_send():
        connection.feed(data)
        for request in connection.begun[answered:]:
            connection.peer.answer(request.id, {"n": request.params["n"]})
            answered += 1
        machine.receive(connection.raw(), 0.0)
    assert [call.answer.result for call in calls if isinstance(call.answer, m.Response)] == [
        {"n": number} for number in range(len(calls))
    ]


def test_texts_that_are_too_long_for_a_frame_are_cut(hub: TestHub) -> None:
    connection = Connection(hub).up()
    connection.send(m.Request(1, "create", {}))
    connection.peer.refuse(1, "spawn", "x" * 100_000, {})
    [failure] = connection.sent()
    assert len(failure.message) == 8000


def test_answers_pause_the_reading_of_requests(hub: TestHub) -> None:
    """A few bytes can ask for megabytes: no more requests are taken while that much is waiting to be sent."""
    connection = Connection(hub).up()
    big = {"text": "x" * 100_000}
    requests = b"".join(encode(m.Request(number, "list", {})) for number in range(30))
    taken = connection.peer.take(requests)
    connection.peer._begin = lambda peer, request: peer.answer(request.id, big)
    answers = pauses = 0
    for _ in taken:
        pauses += 1
        found = connection.sent()
        assert sum(len(answer.result["text"]) for answer in found) < ANSWERS_PAUSE + 110_000
        answers += len(found)
    answers += len(connection.sent())
    assert (answers, pauses, connection.hung_up) == (30, 10, 0)


def test_who_asks_and_does_not_listen_is_dropped(hub: TestHub) -> None:
    """The answers to what it asked are bounded by MAX_CONTROL."""
    connection = Connection(hub).up()
    answer = len(encode(m.Error("unknown_frame", "unknown frame type 119", False, {"type": 119})))
    few = limits.MAX_CONTROL // answer
    connection.feed(frame([0x77]) * few)
    assert connection.hung_up == 0
    connection.feed(frame([0x77]))
    assert connection.hung_up == 1


# --- input, credit, the client's errors -------------------------------------------------------------------
def test_input_for_a_session_that_is_not_there(hub: TestHub) -> None:
    connection = Connection(hub).up()
    connection.send(m.Input("gone", 7, b"ls\n"), m.InputEnd("gone", 10), m.Skip("gone", 7, 10))
    text = "cannot type: no session gone"
    assert connection.sent() == [
        m.Refused("gone", 7, "not_found", text),
        m.Refused("gone", 10, "not_found", text),
    ]


def test_a_late_credit_is_nothing(hub: TestHub) -> None:
    connection = Connection(hub).up()
    connection.send(m.Credit(3, 1000))
    assert connection.sent() == []


def test_a_client_that_hangs_up_in_words(hub: TestHub) -> None:
    connection = Connection(hub).up()
    connection.send(m.Error("oops", "not fatal", False))
    with pytest.raises(Closing, match="tired"):
        connection.send(m.Error("bye", "tired", True))
    assert connection.sent() == []


# --- liveness ---------------------------------------------------------------------------------------------
def test_a_quiet_client_is_pinged_and_then_given_up(hub: TestHub) -> None:
    """Case C32."""
    connection = Connection(hub).up()
    said = []
    for _ in range(12):
        hub.clock += 5.0
        verdict = connection.peer.check(hub.clock)
        said.append((verdict, [type(message) for message in connection.sent()]))
        if verdict is Verdict.DEAD:
            break
    assert said == [
        (Verdict.OK, []),
        (Verdict.OK, []),
        (Verdict.PING, [m.Ping]),
        (Verdict.OK, []),
        (Verdict.OK, []),
        (Verdict.PING, [m.Ping]),
        (Verdict.OK, []),
        (Verdict.OK, []),
        (Verdict.DEAD, []),
    ]


def test_any_byte_is_a_sign_of_life(hub: TestHub) -> None:
    connection = Connection(hub).up()
    data = encode(m.Ping(1)) * 100
    for byte in data[:40]:
        hub.clock += 5.0
        connection.feed(bytes([byte]))
        assert connection.peer.check(hub.clock) is Verdict.OK


def test_after_a_nap_of_our_own_nobody_is_blamed(hub: TestHub) -> None:
    connection = Connection(hub).up()
    hub.clock += 100_000.0
    assert connection.peer.check(hub.clock) is Verdict.PING
    hub.clock += 5.0
    assert connection.peer.check(hub.clock) is Verdict.OK


def test_a_stranger_is_not_pinged(hub: TestHub) -> None:
    connection = Connection(hub)
    for _ in range(4):
        hub.clock += 5.0
        connection.peer.check(hub.clock)
    assert connection.sent() == []


# --- the order of sending ------------------------------------------------------------------------------------
class Session:
    """As much of a session as an attach needs."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.attached: list[Attach] = []
        self.hot_until = 0.0

    def attach(self, attach: Attach) -> None:
        self.attached.append(attach)

    def detach(self, attach: Attach) -> None:
        self.attached.remove(attach)

    def fds(self) -> list[int]:
        return []


class Stream:
    def __init__(self, name: str) -> None:
        self.session = Session(name)
        self.history = Ring(8 * limits.MIB, 100)

    def acknowledged(self, attach: Attach) -> None:
        pass


def attach(connection: Connection, channel: int, output: int, window: int = limits.MAX_WINDOW) -> Stream:
    """A new stream with `output` bytes of history, attached from its beginning."""
    stream = Stream(f"s{channel}")
    stream.history.append(bytes([channel]) * output)
    sender = OutputSender(channel, stream.history, Start(Position(0, 0), (), 0), repair="bytes", window=window)
    found = Attach(connection.peer, stream, sender, view=False, size=None, now=connection.hub.now())  # type: ignore[arg-type]
    connection.peer.add_attach(found)
    return stream


def batch(connection: Connection, most: int = limits.MAX_BATCH) -> tuple[int, list[tuple[int, int]]]:
    """The next batch, sent: size of its control bytes, and (channel, size) of its groups."""
    found = connection.peer.collect(most)
    if found is None:
        return 0, []
    for one, group in found.groups:
        connection.peer.commit(one, group)
    return len(found.control), [(one.channel, group.size) for one, group in found.groups]


def test_control_goes_before_output(hub: TestHub) -> None:
    connection = Connection(hub).up()
    attach(connection, 0, 1_000_000)
    connection.send(m.Ping(1), m.Ping(2))
    found = connection.peer.collect(limits.MAX_BATCH)
    assert found is not None
    data = b"".join(found.buffers())
    assert data.startswith(encode(m.Pong(1)) + encode(m.Pong(2)))
    assert len(data) <= limits.MAX_BATCH + limits.MAX_OUTPUT_DATA


def test_what_was_not_sent_is_collected_again(hub: TestHub) -> None:
    connection = Connection(hub).up()
    attach(connection, 0, 1000)
    first = connection.peer.collect(limits.MAX_BATCH)
    second = connection.peer.collect(limits.MAX_BATCH)
    assert first is not None
    assert second is not None
    assert b"".join(first.buffers()) == b"".join(second.buffers())
    assert [message.data for message in connection.sent()] == [b"\0" * 1000]
    assert connection.peer.collect(limits.MAX_BATCH) is None


def test_bulk_sessions_take_turns(hub: TestHub) -> None:
    connection = Connection(hub).up()
    for channel in range(6):
        attach(connection, channel, 1_000_000)
    seen = [channel for _ in range(6) for channel, _ in batch(connection)[1]]
    assert {channel: seen.count(channel) for channel in range(6)} == dict.fromkeys(range(6), len(seen) // 6)
    assert seen[:6] == sorted(seen[:6])
    assert seen[6:12] == seen[:6]


def test_a_group_is_at_most_one_frame(hub: TestHub) -> None:
    """That is what a keystroke's echo waits for."""
    connection = Connection(hub).up()
    attach(connection, 0, 3_000_000)
    for _ in range(10):
        _, groups = batch(connection)
        assert all(size <= limits.MAX_OUTPUT_DATA + m.OUTPUT_HEADER_SIZE for _, size in groups)


def test_what_was_typed_into_comes_first_and_alone(hub: TestHub) -> None:
    connection = Connection(hub).up()
    for channel in range(3):
        attach(connection, channel, 500_000)
    hot = attach(connection, 3, 10)
    hub.pump.heat(hot.session)
    connection.send(m.Ping(1))
    control, groups = batch(connection)
    assert control == len(encode(m.Pong(1)))
    assert groups == [(3, 10 + m.OUTPUT_HEADER_SIZE)]
    _, groups = batch(connection)  # nothing hot is left: now the others, in small pieces
    assert {channel for channel, _ in groups} == {0, 1, 2}
    assert all(size <= HOT_GROUP + m.OUTPUT_HEADER_SIZE for _, size in groups)


def test_credit_is_kept(hub: TestHub) -> None:
    connection = Connection(hub).up()
    attach(connection, 5, 1000, window=300)
    assert sum(len(message.data) for message in connection.sent()) == 300
    connection.send(m.Credit(5, 500))
    assert sum(len(message.data) for message in connection.sent()) == 200
    error = connection.dies(m.Credit(5, 801))
    assert error.message == "malformed Credit: acknowledges bytes that were not sent"


def test_the_end_of_a_connection_ends_its_attaches(hub: TestHub) -> None:
    connection = Connection(hub).up()
    streams = [attach(connection, channel, 10) for channel in range(3)]
    connection.peer.end_attach(connection.peer.attaches[1], "removed", "the session was removed")
    assert streams[1].session.attached == []
    connection.peer.closed()
    assert all(stream.session.attached == [] for stream in streams)
    assert not connection.peer.attaches
    assert not hub.peers
    assert m.Detached(1, "removed", "the session was removed") in connection.sent()
    assert connection.peer.collect(limits.MAX_BATCH) is None


def test_errors_are_the_packages_own() -> None:
    """Closing never reaches a client, so it is none of these."""
    assert not issubclass(Closing, PtymuxError)
