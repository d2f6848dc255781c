"""The agent's end of one connection, without I/O: frames in, batches out.

States: see ptymux/handshake.py.  What a connection may owe its client is bounded: answers by the requests in flight and by
MAX_CONTROL, acknowledgements and pongs likewise, output by nothing but a position per attach.

Order of sending: answers, acknowledgements and marks of liveness overtake everything; then sessions that had input just now; then
bulk output, one group per attach in turn.  A group is at most one frame's worth, so that is what a keystroke's echo waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from guestagent.hub import Hub
from guestagent.listeners import Peer as Origin
from guestagent.stream import Attach
from ptymux import handshake, limits
from ptymux.errors import ProtocolError
from ptymux.frames import Decoder
from ptymux.handshake import State
from ptymux.liveness import Liveness, Verdict
from ptymux.messages import (
    CLIENT,
    MAGIC,
    Credit,
    Detached,
    Error,
    Failure,
    Hello,
    Input,
    InputEnd,
    Message,
    Notice,
    Ping,
    Pong,
    Request,
    Response,
    Skip,
    UnknownFrame,
    Welcome,
    encode,
)
from ptymux.output import Group

ANSWERS_PAUSE = 256 * limits.KIB  # a few bytes of requests can ask for megabytes of answers: then no more are taken
HOT_GROUP = 16 * limits.KIB  # bytes of bulk output in a group while something is hot


class Batch(NamedTuple):
    """What to hand to the transport: control bytes first, then one group per attach."""

    control: bytes
    groups: list[tuple[Attach, Group]]

    def buffers(self) -> list[bytes | memoryview]:
        found: list[bytes | memoryview] = [self.control] if self.control else []
        for _, group in self.groups:
            found.extend(group.buffers)
        return found


class Closing(Exception):
    """The connection is to be closed once what is queued was sent."""


class Peer:
    """`origin` is what the listener knows of the other side; `begin` carries out a request and answers it.

    The I/O shell sets `kick`, which is called when there is something to send, and `on_hang_up`.
    """

    def __init__(self, hub: Hub, origin: Origin, begin: Callable[[Peer, Request], None], now: float) -> None:
        self.hub = hub
        self.origin = origin
        self.kick: Callable[[], None] = lambda: None
        self.on_hang_up: Callable[[], None] = lambda: None
        self._begin = begin
        self.state = State.WAITING
        self.client = b""
        self.role = "viewer"
        self.attaches: dict[int, Attach] = {}
        self.requests = 0  # in flight
        self.connected_at = now
        self.bytes_out = 0
        self.dropped = False  # the VM was restored: what still comes on this connection is from the time before
        self._decoder = Decoder(CLIENT)
        self._control: deque[bytes] = deque()
        self._control_size = 0
        self._ready: dict[Attach, None] = {}  # attaches that may have something to send, in turn
        self._liveness = Liveness(now, hub.config.limits.ping_after, hub.config.limits.dead_after)

    # --- receiving --------------------------------------------------------------------------------
    def take(self, data: bytes) -> Iterator[None]:
        """Take bytes from the transport, and pause wherever the client should read some of its answers first.

        Exhaust it before the next call.  Closing if the connection cannot go on (the reason is queued to be sent).
        """
        self._liveness.heard(self.hub.now())
        try:
            for message in self._decoder.feed(data):
                if self.dropped:
                    return
                self._on_message(message)
                if self._control_size > ANSWERS_PAUSE:
                    yield
        except ProtocolError as error:
            self.hub.stats.protocol_errors += 1
            self.fail(error.code, str(error))

    def fail(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        """Queue a fatal error and raise Closing."""
        self.send(Error(code, message, True, details or {}))
        raise Closing(message)

    def hang_up(self) -> None:
        """Close the connection; what is queued is still sent if that is quick."""
        self.on_hang_up()

    def _on_message(self, message: Message | UnknownFrame) -> None:
        if isinstance(message, UnknownFrame):
            if self.state is not State.UP:
                raise ProtocolError(f"unexpected frame type {message.type}: the connection is {self.state.value}")
            self.send(Error("unknown_frame", f"unknown frame type {message.type}", False, {"type": message.type}))
            return
        if self.state is not State.UP:
            handshake.receive(self.state, message)
            assert isinstance(message, Hello)
            self._on_hello(message)
            return
        handshake.receive(self.state, message)
        if isinstance(message, Input | Skip | InputEnd):
            self._on_input(message)
        elif isinstance(message, Credit):
            attach = self.attaches.get(message.channel)
            if attach is not None:  # else a late one for an attach that has ended
                attach.on_credit(message.offset, self.hub.now())
                self.output_ready(attach)
        elif isinstance(message, Request):
            if self.requests >= limits.MAX_REQUESTS:
                raise ProtocolError(f"malformed Request: more than max_requests ({limits.MAX_REQUESTS}) in flight")
            self.requests += 1
            self._begin(self, message)
        elif isinstance(message, Ping):
            self.send(Pong(message.token))
        elif isinstance(message, Error) and message.fatal:
            raise Closing(message.message)

    def _on_hello(self, hello: Hello) -> None:
        version = handshake.choose_version(hello.versions)
        if version is None:
            self.fail("version", f"cannot connect: the client speaks versions {hello.versions}, the agent 1")
        if self.hub.lifecycle.restoring:
            self.fail("shutdown", "cannot connect: the VM is being restored")
        role = self.hub.authenticate(self.origin, hello.token)
        if role is None:
            self.fail("unauthorized", "cannot connect: the token is missing or wrong")
        if self.hub.is_full(hello.client):
            most = self.hub.config.limits.max_connections
            text = f"cannot connect: max_connections ({most}) is reached"
            self.fail("limit", text, {"limit": "max_connections", "value": most})
        assert version is not None
        assert role is not None
        self.client = hello.client
        self.role = role
        self.state = State.UP
        self._decoder.greeted()
        self.send(
            Welcome(
                version,
                self.hub.agent_id,
                self.hub.generation,
                [ancestor.generation for ancestor in self.hub.lineage],
                hello.nonce,
                role,
                self.hub.config.limits.reported(),
                {"magic": MAGIC},
            )
        )
        self.hub.greeted(self)

    def _on_input(self, frame: Input | Skip | InputEnd) -> None:
        session = self.hub.sessions.get(frame.session)
        if session is not None:
            session.on_input(self, frame)
        elif not isinstance(frame, Skip):
            self.hub.refuse_input(self, frame.session, frame.offset)

    # --- liveness ---------------------------------------------------------------------------------
    def check(self, now: float) -> Verdict:
        """Call at least every few seconds; pings by itself, says DEAD when the client is gone."""
        verdict = self._liveness.check(now)
        if verdict is Verdict.PING and self.state is State.UP:
            self.send(Ping(int(now * 1000) & 0xFFFFFFFF))
        return verdict

    # --- sending ----------------------------------------------------------------------------------
    def send(self, message: Message) -> None:
        """Queue a control frame and have it sent."""
        frame = encode(message)
        self._control.append(frame)
        self._control_size += len(frame)
        if self._control_size > limits.MAX_CONTROL:
            self.hang_up()  # it asks and does not listen
        else:
            self.hub.dirty(self)

    def answer(self, request: int, result: dict[str, Any]) -> None:
        self.requests -= 1
        self.send(Response(request, result))

    def refuse(self, request: int, code: str, message: str, details: dict[str, Any]) -> None:
        self.requests -= 1
        self.send(Failure(request, code, message[:8000], details))

    def notice(self, kind: str, data: dict[str, Any]) -> None:
        self.send(Notice(kind, data))

    def output_ready(self, attach: Attach) -> None:
        """There may be something new to send on this attach."""
        self._ready[attach] = None
        self.hub.dirty(self)

    def collect(self, most: int) -> Batch | None:
        """What to send now, about `most` bytes; None if there is nothing.

        Control bytes are the caller's from here on.  Groups must be committed, with :meth:`commit`, if at least their first byte
        was sent, and are simply collected again otherwise.  Their buffers are views of the rings: send or copy them before
        anything else runs.
        """
        control = b""
        if self._control:
            control = b"".join(self._control)
            self._control.clear()
            self._control_size = 0
            most -= len(control)
        groups: list[tuple[Attach, Group]] = []
        hot_sessions = self.hub.pump.hot_sessions
        if hot_sessions and self._ready:
            for attach in [attach for attach in self._ready if attach.stream.session in hot_sessions]:
                most -= self._collect_from(attach, limits.MAX_OUTPUT_DATA, groups)
            if groups:
                most = 0  # at once, and alone
        quantum = HOT_GROUP if hot_sessions else min(limits.MAX_OUTPUT_DATA, most)
        for attach in list(self._ready):
            if most <= 0:
                break
            if attach.stream.session in hot_sessions:
                continue
            most -= self._collect_from(attach, min(quantum, most), groups)
        return Batch(control, groups) if control or groups else None

    def _collect_from(self, attach: Attach, most: int, groups: list[tuple[Attach, Group]]) -> int:
        group = attach.sender.next_group(most)
        if group is None:
            del self._ready[attach]
            if attach.sender.awaiting:
                attach.stream.show(attach)
            return 0
        groups.append((attach, group))
        return group.size

    def commit(self, attach: Attach, group: Group) -> None:
        """The group is on its way."""
        attach.sender.commit(group)
        self.hub.stats.gaps += group.gaps
        self.bytes_out += group.size
        self.hub.stats.bytes_out += group.size
        # Its next turn comes after the others'.
        if attach in self._ready:
            del self._ready[attach]
            self._ready[attach] = None

    # --- attaches ---------------------------------------------------------------------------------
    def add_attach(self, attach: Attach) -> None:
        self.attaches[attach.channel] = attach
        attach.stream.session.attach(attach)
        self.output_ready(attach)

    def remove_attach(self, attach: Attach) -> None:
        self.attaches.pop(attach.channel, None)
        self._ready.pop(attach, None)
        attach.stream.session.detach(attach)

    def leave_streams(self) -> None:
        """Follow nothing any more, without a word: the connection ends soon, and the client goes on at its cursors."""
        for attach in list(self.attaches.values()):
            self.remove_attach(attach)

    def drop(self, code: str, message: str) -> None:
        """End the connection, and take nothing more from it, not even what was received."""
        self.dropped = True
        self.leave_streams()
        self.send(Error(code, message, True))
        self.hub.flush()
        self.hub.gone(self)
        self.hang_up()

    def end_attach(self, attach: Attach, code: str, message: str) -> None:
        self.remove_attach(attach)
        self.send(Detached(attach.channel, code, message))

    def closed(self) -> None:
        """The connection is gone: nothing may wait for it."""
        for attach in list(self.attaches.values()):
            self.remove_attach(attach)
        self.hub.gone(self)
