"""The client's end of the protocol, without I/O: what the agent sends goes in, events and bytes to send come out.

States of the machine::

    DOWN --(connected)--> GREETING --(Welcome)--> UP --(disconnected)--> DOWN
                          GREETING --(Error)----> FAILED                 a refusal that dialling again does not change
                          UP ------(Error)-----> FAILED or DOWN          by its code, see FINAL

States of an attachment::

    WAITING --(answer)--> ATTACHED --(disconnected)--> WAITING           asked for again from its cursor on each connection
    any --(refused, Detached)--> ENDED

What survives a reconnect: unanswered requests with their keys, the cursor of every attachment, unacknowledged input.  Whatever can
wait has an `on_change` hook that the I/O shell sets.  Time and random ids are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from ptymux import events, handshake, limits, queries
from ptymux.cursor import Cursor, Position
from ptymux.errors import AttachEnded, HandshakeRefused, InputRefused, ProtocolError, PtymuxError
from ptymux.frames import Decoder
from ptymux.input import Dropped, InputSender
from ptymux.liveness import Liveness, Verdict
from ptymux.messages import (
    AGENT,
    MAGIC,
    VERSIONS,
    Ack,
    Credit,
    Detached,
    Error,
    Failure,
    Gap,
    Hello,
    Input,
    Mark,
    Message,
    Notice,
    Output,
    Ping,
    Pong,
    Refused,
    Request,
    Response,
    Snapshot,
    UnknownFrame,
    Welcome,
    encode,
)
from ptymux.output import OutputReceiver
from ptymux.requests import Call, RequestTable

# Codes of a fatal Error after which the client does not come back by itself.
FINAL = frozenset({"replaced", "malformed", "unauthorized", "version"})
# Codes of a refused hello that pass by themselves.
PASSING = frozenset({"limit", "shutdown", "restored"})


class State(Enum):
    DOWN = "down"
    GREETING = "greeting"
    UP = "up"
    FAILED = "failed"


class AttachState(Enum):
    WAITING = "waiting"
    ATTACHED = "attached"
    ENDED = "ended"


def _nothing() -> None:
    pass


class Attachment:
    """One stream that the client follows, over all its connections.  `events` is filled by the machine, emptied by the caller."""

    def __init__(self, session: str, params: dict[str, Any], cursor: Cursor | None, window: int) -> None:
        self.session = session
        self.client = ""  # our id in hex, as marks have it
        self.params = params
        self.receiver = OutputReceiver(cursor, window)
        self.events: deque[events.Event] = deque()
        self.state = AttachState.WAITING
        self.error: PtymuxError | None = None
        self.answer: dict[str, Any] = {}  # of the last attach request
        self.exit: events.Exit | None = None
        self.complete = False  # the last mark has come; nothing will follow
        self.on_change: Callable[[], None] = _nothing
        self._replaying = False
        self._owner: object = None  # whose terminal answers queries in what follows
        self._query = b""  # the end of what our terminal was to answer, where a query may have begun
        self._held: list[events.Event] = []  # discontinuities that are told together with their snapshot

    def attached(self, result: dict[str, Any], backlog: int) -> None:
        """The agent answered an attach that told of a `backlog` of so many bytes."""
        try:
            generation, offset, mark, replay_to = (
                result[name] for name in ("generation", "offset", "mark", "replay_to")
            )
        except KeyError as error:
            raise ProtocolError(f"malformed Response: attach without {error}") from None
        if type(generation) is not bytes or not all(type(value) is int for value in (offset, mark, replay_to)):
            raise ProtocolError("malformed Response: attach with a field of the wrong type")
        self.state = AttachState.ATTACHED
        self.answer = result
        self.receiver.attached(generation, Position(offset, mark), replay_to, backlog)
        self._held.clear()
        self._owner = result.get("owner")
        self._replay_from(offset)

    def end(self, error: PtymuxError) -> None:
        if self.state is not AttachState.ENDED:
            self.state, self.error = AttachState.ENDED, error
            self.on_change()

    def on_output(self, frame: Output) -> None:
        self.receiver.on_output(frame)
        replayed = max(0, min(self.receiver.replay_to - frame.offset, len(frame.data)))
        if replayed:
            self.events.append(events.Output(frame.offset, frame.data[:replayed], replayed=True))
        self._end_replay(frame.offset + replayed)
        if replayed < len(frame.data):
            mine = self._owner is not None and self._owner == self.client
            if mine:
                # An acknowledgement of the query also says that it is answered.  It may lie across two frames.
                looked = self._query + frame.data[replayed:]
                if end := queries.end_of_last(looked):
                    self.receiver.acknowledge(frame.offset + len(frame.data) - len(looked) + end)
                self._query = looked[-queries.LONGEST :] if len(looked) - end >= queries.LONGEST else looked[end:]
            else:
                self._query = b""
            self.events.append(events.Output(frame.offset + replayed, frame.data[replayed:], answer=mine))
        self.on_change()

    def on_mark(self, frame: Mark) -> None:
        self.receiver.on_mark(frame)
        if frame.kind == "gap":
            self.events.append(events.Gap(frame.offset, frame.offset, None, frame.data))
        elif frame.kind == "exit":
            data = frame.data
            self.exit = events.Exit(
                frame.offset, data.get("code"), data.get("signal"), bool(data.get("output_closed")), data
            )
            self.events.append(self.exit)
            self.complete = self.exit.output_closed
        else:
            if frame.kind == "size_owner":
                self._owner = frame.data.get("client")
            self.events.append(events.Marked(frame.offset, frame.number, frame.kind, frame.data))
            self.complete = self.complete or frame.kind == "output_closed"
        self.on_change()

    def on_gap(self, frame: Gap) -> None:
        self.receiver.on_gap(frame)
        self._owner = frame.detail.get("owner")
        event: events.Event
        if frame.kind == "foreign":
            event = events.Foreign(frame.to)
        elif frame.start is None:
            raise ProtocolError(f"malformed Gap: {frame.kind} without a start")
        elif frame.kind == "rewound":
            event = events.Rewound(frame.start, frame.to)
        else:
            event = events.Gap(frame.start, frame.to, frame.to - frame.start, frame.detail)
        if frame.detail.get("snapshot"):
            self._held.append(event)
            return
        self.events.append(event)
        self._replay_from(frame.to)
        self.on_change()

    def on_snapshot(self, frame: Snapshot) -> None:
        data = self.receiver.on_snapshot(frame)
        if data is None:
            return
        columns, rows = frame.detail.get("columns"), frame.detail.get("rows")
        if type(columns) is not int or type(rows) is not int:
            raise ProtocolError("malformed Snapshot: without a size")
        self._owner = frame.detail.get("owner")
        self.events.extend(self._held)
        self._held.clear()
        self.events.append(
            events.Snapshot(frame.offset, data, columns, rows, approximate=bool(frame.detail.get("approximate")))
        )
        self._replay_from(frame.offset)
        self.on_change()

    def _replay_from(self, offset: int) -> None:
        self._replaying = offset < self.receiver.replay_to

    def _end_replay(self, offset: int) -> None:
        if self._replaying and offset >= self.receiver.replay_to:
            self._replaying = False
            self.events.append(events.ReplayEnd(offset))


class InputLane:
    """A client's input into one session: the sender and what became of its bytes."""

    def __init__(self, session: str, max_age: float | None) -> None:
        self.sender = InputSender(session, max_age)
        self.refusal: InputRefused | None = None  # the last one; whoever waits for its bytes takes it
        self.flushed = 0  # everything below was waited for
        self.lost: list[events.InputDropped | events.InputUncertain] = []
        self.on_change: Callable[[], None] = _nothing


class ClientMachine:
    def __init__(self, client: bytes, token: bytes | None, info: dict[str, Any] | None = None) -> None:
        self.client = client
        self.state = State.DOWN
        self.failure: PtymuxError | None = None
        self.refusal: HandshakeRefused | None = None  # why the last hello was refused, if that may pass
        self.welcome: Welcome | None = None
        self.worked = False  # something came after the welcome of this connection
        self.requests = RequestTable()
        self.attachments: dict[int, Attachment] = {}
        self.lanes: dict[str, InputLane] = {}
        self._typed: dict[str, InputLane] = {}  # those that may have frames to send
        self.notices: deque[Notice] = deque(maxlen=64)
        self.on_send: Callable[[], None] = _nothing  # there is something in data_to_send
        self.on_state: Callable[[], None] = _nothing
        self._token = token
        self.next_token: bytes | None = None  # a restore that we asked for makes it good, and the present one void
        self._info = info or {}
        self._nonce = b""
        self._decoder = Decoder(AGENT)
        self._liveness: Liveness | None = None
        self._control: list[bytes] = []
        self._next_channel = 0

    # --- connection -------------------------------------------------------------------------------
    def connected(self, nonce: bytes, now: float) -> None:
        """A transport is up: the hello is ready to be sent."""
        self._decoder = Decoder(AGENT)
        self._decoder.greeted()  # whom we dialled may be long-winded: a lineage of many generations
        self._nonce = nonce
        self._control = [encode(Hello(MAGIC, list(VERSIONS), self.client, self._token, nonce, self._info))]
        self._liveness = Liveness(now, limits.PING_AFTER, limits.DEAD_AFTER)
        self.refusal = None
        self.worked = False
        self._enter(State.GREETING)

    def disconnected(self) -> None:
        """The transport is gone.  Nothing is lost by this."""
        self._control.clear()
        self.requests.disconnected()
        for attachment in self.attachments.values():
            if attachment.state is AttachState.ATTACHED:
                attachment.state = AttachState.WAITING
        if self.state is not State.FAILED:
            self._enter(State.DOWN)

    def fail(self, error: PtymuxError) -> None:
        """There will be no further connection: whoever waits gets `error`."""
        if self.state is State.FAILED:
            return
        self.failure = error
        self._enter(State.FAILED)
        for attachment in self.attachments.values():
            attachment.end(error)
        for call in self.requests.abandon():
            call.on_answer()
        for lane in self.lanes.values():
            lane.on_change()

    def _enter(self, state: State) -> None:
        self.state = state
        self.on_state()

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes of the agent.  ProtocolError if it broke the protocol; then drop the connection."""
        if self._liveness is not None:
            self._liveness.heard(now)
        for message in self._decoder.feed(data):
            if self.state not in (State.GREETING, State.UP):
                return  # a fatal error came; what follows it is of no interest
            self._on_message(message, now)

    def check(self, now: float) -> Verdict:
        """Call every :attr:`Liveness.interval` seconds while connected; queues pings, says DEAD when the agent is gone."""
        if self._liveness is None:
            return Verdict.OK
        verdict = self._liveness.check(now)
        if verdict is Verdict.PING and self.state is State.UP:
            self._send(Ping(int(now * 1000) & 0xFFFFFFFF))
        return verdict

    # --- frames -----------------------------------------------------------------------------------
    def _on_message(self, message: Message | UnknownFrame, now: float) -> None:
        if isinstance(message, UnknownFrame):
            return  # from a later minor revision; the agent does not depend on an answer
        if self.state is State.GREETING:
            after = handshake.receive(handshake.State.GREETING, message)
            if after is handshake.State.UP:
                assert isinstance(message, Welcome)
                self._on_welcome(message)
            else:
                assert isinstance(message, Error)
                self._on_refusal(message)
            return
        handshake.receive(handshake.State.UP, message)
        self.worked = True
        match message:
            case Output(channel):
                if channel in self.attachments:
                    self.attachments[channel].on_output(message)
            case Mark(channel):
                if channel in self.attachments:
                    self.attachments[channel].on_mark(message)
            case Gap(channel):
                if channel in self.attachments:
                    self.attachments[channel].on_gap(message)
                    self._give_credit(channel, self.attachments[channel])  # if no byte follows, nothing else would
            case Snapshot(channel):
                if channel in self.attachments:
                    self.attachments[channel].on_snapshot(message)
                    self._give_credit(channel, self.attachments[channel])
            case Response() | Failure():
                self.requests.on_answer(message)
                self.on_send()
            case Ack(session):
                self._on_ack(session, message, now)
            case Refused(session):
                self._on_input_refused(session, message)
            case Detached(channel, code, text):
                attachment = self.attachments.pop(channel, None)
                if attachment is not None:
                    attachment.end(AttachEnded(code, text))
            case Ping(token):
                self._send(Pong(token))
            case Notice():
                self.notices.append(message)
            case Error(code, text, fatal) if fatal:
                if code == "restored":
                    self.take_next_token()
                if code in FINAL:
                    self.fail(HandshakeRefused(code, text))
                else:
                    self._enter(State.DOWN)
            case _:
                pass

    def _on_welcome(self, welcome: Welcome) -> None:
        if welcome.nonce != self._nonce:
            raise ProtocolError("malformed Welcome: not an answer to this hello")
        self.welcome = welcome
        for channel, attachment in list(self.attachments.items()):
            self._ask_attach(channel, attachment)
        for session, lane in self.lanes.items():
            lane.sender.connected()
            self._typed[session] = lane
        self._enter(State.UP)
        self.on_send()

    def take_next_token(self) -> None:
        """The tokens were rotated."""
        if self.next_token is not None:
            self._token, self.next_token = self.next_token, None

    def _on_refusal(self, error: Error) -> None:
        refusal = HandshakeRefused(error.code, error.message)
        if error.code == "unauthorized" and self.next_token is not None:
            self.take_next_token()  # the restore was carried out, and only its answer got lost
            self.refusal = refusal
            self._enter(State.DOWN)
            return
        if error.code in PASSING:
            self.refusal = refusal
            self._enter(State.DOWN)
        else:
            self.fail(refusal)

    # --- sending ----------------------------------------------------------------------------------
    def _send(self, message: Message) -> None:
        self._control.append(encode(message))
        self.on_send()

    def data_to_send(self) -> bytes:
        """Everything that may be sent now; empty if there is nothing.  Never cut it short: half a frame ends the connection."""
        if self.state is State.UP:
            self._control.extend(encode(request) for request in self.requests.frames())
            for lane in self._typed.values():
                self._control.extend(encode(frame) for frame in lane.sender.frames())
            self._typed.clear()
        if self.state not in (State.UP, State.GREETING):
            return b""
        data = b"".join(self._control)
        self._control.clear()
        return data

    # --- requests ---------------------------------------------------------------------------------
    def ask(self, call: Call) -> None:
        """Queue a request; ``call.on_answer`` is called when there is one, or when the machine has failed.

        LocalProtocolError, here and not where it would end the connection, if it cannot be sent.
        """
        encode(call.frame(0))
        self.requests.ask(call)
        self.on_send()

    # --- attachments ------------------------------------------------------------------------------
    def attach(self, attachment: Attachment) -> int:
        """Follow a stream; the channel.  LocalProtocolError if the attachment cannot be asked for."""
        channel = self._next_channel
        attachment.client = self.client.hex()
        encode(Request(0, "attach", self._attach_params(channel, attachment), None))
        self._next_channel += 1
        self.attachments[channel] = attachment
        if self.state is State.UP:
            self._ask_attach(channel, attachment)
        return channel

    def _attach_params(self, channel: int, attachment: Attachment) -> dict[str, Any]:
        cursor = attachment.receiver.cursor
        return {
            **attachment.params,
            "session": attachment.session,
            "channel": channel,
            "cursor": None if cursor is None else cursor.to_wire(),
            "window": attachment.receiver.window,
            "backlog": attachment.receiver.backlog,
        }

    def _ask_attach(self, channel: int, attachment: Attachment) -> None:
        params = self._attach_params(channel, attachment)
        call = Call("attach", params, None, once=True)

        def answered() -> None:
            if channel not in self.attachments:
                return  # let go meanwhile
            if isinstance(call.answer, Response):
                attachment.attached(call.answer.result, params["backlog"])
                self._give_credit(channel, attachment)
                attachment.on_change()
            elif isinstance(call.answer, Failure):
                del self.attachments[channel]
                attachment.end(AttachEnded(call.answer.code, call.answer.message, call.answer.details))

        call.on_answer = answered
        self.ask(call)

    def consumed(self, channel: int, count: int) -> None:
        """The caller has taken `count` more bytes: give credit when it is worth a frame."""
        attachment = self.attachments.get(channel)
        if attachment is not None:
            attachment.receiver.consume(count)
            self._give_credit(channel, attachment)

    def _give_credit(self, channel: int, attachment: Attachment) -> None:
        if self.state is State.UP and attachment.state is AttachState.ATTACHED:
            credit = attachment.receiver.credit_due()
            if credit is not None:
                self._send(Credit(channel, credit))

    def detach(self, channel: int) -> None:
        """Follow no more."""
        attachment = self.attachments.pop(channel, None)
        if attachment is not None and self.state is State.UP:
            self.ask(Call("detach", {"channel": channel}, None, once=True))

    # --- input ------------------------------------------------------------------------------------
    def lane(self, session: str, max_age: float | None = limits.INPUT_MAX_AGE) -> InputLane:
        """The input lane into a session; made at the first call, which decides on `max_age`."""
        found = self.lanes.get(session)
        if found is None:
            encode(Input(session, 0, b""))  # LocalProtocolError if no session can have this name
            found = self.lanes[session] = InputLane(session, max_age)
        return found

    def forget_lane(self, session: str) -> None:
        """The session is gone, and its id will not come again.  (Input that nobody answered for yet is still waited for.)"""
        lane = self.lanes.get(session)
        if lane is not None and lane.sender.acked == lane.sender.end:
            del self.lanes[session]
            self._typed.pop(session, None)

    def type(self, lane: InputLane, data: bytes, now: float) -> int:
        """Queue input; the offset behind it."""
        end = lane.sender.write(data, now)
        self._input_ready(lane)
        return end

    def end_input(self, lane: InputLane) -> None:
        """No more input on this lane."""
        lane.sender.finish()
        self._input_ready(lane)

    def _input_ready(self, lane: InputLane) -> None:
        self._typed[lane.sender.session] = lane
        self.on_send()

    def _on_ack(self, session: str, frame: Ack, now: float) -> None:
        lane = self.lanes.get(session)
        if lane is None:
            return
        for told in lane.sender.on_ack(frame, now):
            if isinstance(told, Dropped):
                self._tell_input(session, lane, events.InputDropped(*told))
            else:
                self._tell_input(session, lane, events.InputUncertain(*told))
        lane.on_change()
        self._input_ready(lane)

    def _on_input_refused(self, session: str, frame: Refused) -> None:
        lane = self.lanes.get(session)
        if lane is None:
            return
        dropped = lane.sender.on_refused(frame)
        if dropped.to > dropped.start:  # else it was given up before
            lane.refusal = InputRefused(frame.code, frame.message, {**frame.details, "offset": frame.offset})
            self._tell_input(session, lane, events.InputDropped(*dropped))
        lane.on_change()
        self._input_ready(lane)

    def _tell_input(self, session: str, lane: InputLane, event: events.InputDropped | events.InputUncertain) -> None:
        lane.lost.append(event)
        del lane.lost[:-64]
        for attachment in self.attachments.values():
            if attachment.session == session:
                attachment.events.append(event)
                attachment.on_change()
