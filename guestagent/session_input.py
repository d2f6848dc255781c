"""The input side of one session: what clients typed, in order, until the terminal has it.

For each client a receiver (ptymux/input.py) whose position is kept in the session's memfd (input_table.py), so that it outlives this
server process.  Writes are non-blocking and partial: a session that does not read its input delays no other.

Told to a client is only what its present connection has asked for: after a reconnect the first word is the client's (a probe), since
an acknowledgement that crossed it would be taken for the answer.
"""

from __future__ import annotations

import contextlib
import os
import termios
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from guestagent import processes
from guestagent.access import allows
from guestagent.history import History
from guestagent.input_table import Slot
from guestagent.line_guard import LineGuard
from guestagent.services import Client, Services
from ptymux import limits
from ptymux.input import InputReceiver
from ptymux.messages import Ack, Input, InputEnd, Refused, Skip

VEOF, VKILL = termios.VEOF, termios.VKILL
LFLAG, CC = 3, 6  # indices of termios attributes

END_LOOK = 0.02  # seconds between two looks whether the program waits for input, so that its end can be told
END_PATIENCE = 1.0  # and how long that is worth: a program may wait with poll, or /proc be closed to us

ANSWER_QUEUE = 4096  # bytes of answers to queries that wait for a program to read them: some hundred

UNKNOWN = "cannot type: the input position is not known here"
TOO_LONG = f"cannot type: a line is longer than cooked_line ({limits.COOKED_LINE}) and would lose its end"


class Typed(Protocol):
    """The session, as its input sees it."""

    id: str
    pid: int
    group: str | None
    tty: bool
    status: int | None
    hot_until: float

    def fds(self) -> list[int]: ...
    def write_input(self) -> None: ...


class SessionInput:
    """`fd` is the terminal, or the program's stdin; None once it is closed.  `on_typing` is told who types."""

    def __init__(
        self, hub: Services, session: Typed, history: History, fd: int | None, on_typing: Callable[[Client], None]
    ) -> None:
        self.fd = fd
        self.bytes_in = 0
        self._hub = hub
        self._session = session
        self._history = history
        self._on_typing = on_typing
        self._receivers: dict[bytes, InputReceiver] = {}
        self._heard: dict[bytes, Client] = {}  # the connection from which a client's last frame came
        self._turns: deque[bytes] = deque()  # clients with input to write, in order of arrival
        self._guard = LineGuard(history.line)
        self._end_deferred = False  # end-of-file waits for a terminal mode in which it means something
        self._canonical_since: float | None = None  # while it waits
        self._looking = False  # and a look is coming
        self._answer = b""  # of the terminal that the agent stands for; goes before what clients type

    def recover(self) -> None:
        """Take over from an earlier server."""
        self._history.inputs.recover()

    def on_frame(self, peer: Client, frame: Input | Skip | InputEnd) -> None:
        """Take a client's input frame.  ProtocolError if it breaks the stream."""
        if not allows(peer.role, "controller"):
            offset = frame.start if isinstance(frame, Skip) else frame.offset
            peer.send(Refused(self._session.id, offset, "forbidden", "cannot type: the role is viewer"))
            return
        receiver = self._receiver(peer, frame)
        if receiver is None:
            return
        if isinstance(frame, Input):
            if receiver.on_input(frame):
                self._acknowledge(peer.client, receiver)
            elif frame.data and not receiver.refused and not self._hub.held:
                self._on_typing(peer)
        elif isinstance(frame, Skip):
            receiver.on_skip(frame)
        else:
            receiver.on_end(frame)
        if peer.client not in self._turns:
            self._turns.append(peer.client)
        self.write()

    def _receiver(self, peer: Client, frame: Input | Skip | InputEnd) -> InputReceiver | None:
        """The receiver of this client's input; None if the frame is refused because nobody knows the client's position."""
        first = self._heard.get(peer.client) is not peer  # frame of this connection
        self._heard[peer.client] = peer
        offset = frame.start if isinstance(frame, Skip) else frame.offset
        slot = self._history.inputs.find(peer.client)
        if slot is not None:
            slot.settle(offset)
        receiver = self._receivers.get(peer.client)
        if receiver is not None and first:
            receiver.give_back()  # before anything is acknowledged on it: what the client takes for lost must not be typed later
        if receiver is None:
            if slot is not None:
                receiver = InputReceiver(slot.written, ended=slot.ended)
            elif offset == 0:
                receiver = InputReceiver()
            elif isinstance(frame, Skip):
                receiver = InputReceiver(frame.to)  # the client's answer to our refusal
            else:
                # Forgotten, or never known: whether the bytes before were written, nobody can say.
                peer.send(Refused(self._session.id, offset, "unknown_position", UNKNOWN))
                return None
            if len(self._receivers) >= limits.MAX_INPUT_CLIENTS:
                self._forget_receivers()
            self._receivers[peer.client] = receiver
        return receiver

    def _forget_receivers(self) -> None:
        """Drop those of clients that are gone and owe nothing: should they come back, the table knows their positions."""
        for client, receiver in list(self._receivers.items()):
            if client not in self._hub.peers and client not in self._turns and receiver.end is None:
                del self._receivers[client]
                self._heard.pop(client, None)

    def retry_end(self) -> None:
        """Try again to deliver an end-of-file that had to wait."""
        if self._end_deferred and self.fd is not None:
            self._end_deferred = False
            self._turns.extend(client for client in self._receivers if client not in self._turns)
            self.write()

    def answer(self, data: bytes) -> None:
        """Type a terminal's answer to a query, if the program is in a mode to read it.

        One that asks has switched off echo and line editing, or its question's answer would appear on the screen.  What only looks
        like a question, in a file that somebody prints, gets none: it would be echoed into the output, and read as a line.  A
        program that asks and does not read gets as much as ANSWER_QUEUE.
        """
        if self.fd is None or self._session.status is not None or len(self._answer) + len(data) > ANSWER_QUEUE:
            return
        if not termios.tcgetattr(self.fd)[LFLAG] & (termios.ECHO | termios.ICANON):
            self._answer += data
            self.write()

    def write(self) -> None:
        """Write what is queued, as far as the terminal takes it; the pump calls again when it takes more."""
        if self._hub.held:  # queued it stays, and unacknowledged
            if self.fd is not None:
                self._hub.pump.want_write(self.fd, False)
            return
        if self._answer and not self._write_answer():
            return
        while self._turns:
            client = self._turns[0]
            receiver = self._receivers[client]
            before = receiver.written
            blocked = self._write_from(client, receiver)
            if receiver.written != before:
                self._acknowledge(client, receiver)
            if blocked:
                if self.fd is not None:
                    self._hub.pump.want_write(self.fd, True)
                return
            self._turns.popleft()
        if self.fd is not None:
            self._hub.pump.want_write(self.fd, False)

    def _write_answer(self) -> bool:
        """False if the terminal takes no more now."""
        fd = self.fd
        if fd is None or self._session.status is not None:
            self._answer = b""
            return True
        try:
            count = os.write(fd, self._answer)
        except BlockingIOError:
            count = 0
        except OSError:
            count = len(self._answer)  # hung up
        if count:
            self._typed(self._answer[:count], termios.tcgetattr(fd))
        self._answer = self._answer[count:]
        if self._answer:
            self._hub.pump.want_write(fd, True)
        return not self._answer

    def _write_from(self, client: bytes, receiver: InputReceiver) -> bool:
        """Write one client's queue; True if the terminal takes no more now."""
        slot = self._history.inputs.take(client, self._hub.peers)
        while data := receiver.pending():
            fd = self.fd
            if fd is None or self._session.status is not None:
                self._refuse(client, receiver, "exited", "cannot type: the program has ended")
                return False
            attributes = termios.tcgetattr(fd) if self._session.tty else None
            if attributes is not None:
                admitted = self._guard.admit(data, attributes)
                if admitted == 0:
                    self._take_back_line(fd, attributes)
                    self._refuse(client, receiver, "line_too_long", TOO_LONG)
                    return False
                data = data[:admitted]
            slot.wrote(receiver.written)  # a skip may have moved it
            slot.begin(len(data))
            try:
                count = os.write(fd, data)
            except BlockingIOError:
                count = 0
            except OSError:
                slot.wrote(receiver.written)
                self._refuse(client, receiver, "closed", "cannot type: the program's input is closed")
                return False
            if count:
                receiver.wrote(count)
                self.bytes_in += count
                if attributes is not None:
                    self._typed(data[:count], attributes)
                self._hub.pump.heat(self._session)
            slot.wrote(receiver.written)
            if count < len(data):
                return True
        slot.wrote(receiver.written)
        if receiver.at_end and not slot.ended:
            self._end_of_input(slot)
        return False

    def _end_of_input(self, slot: Slot) -> None:
        """End-of-file: the terminal's EOF character, or closing the pipe."""
        fd = self.fd
        if fd is None:
            return
        if not self._session.tty:
            slot.end()
            self.close()
            return
        attributes = termios.tcgetattr(fd)
        self._end_deferred = not self._end_makes_sense(fd, attributes[LFLAG])
        if self._end_deferred:
            return
        slot.end()
        eof = attributes[CC][VEOF]
        # In the middle of a line the first EOF character only hands over the line so far.
        with contextlib.suppress(OSError):
            os.write(fd, eof * 2 if self._guard.in_line else eof)
        self._typed(eof, attributes)

    def _end_makes_sense(self, fd: int, mode: int) -> bool:
        """Would the EOF character end something, in the terminal's present mode?  If not, we look again later."""
        if not mode & termios.ICANON:
            # In raw mode with echo it would mean nothing and appear in the output; that of line editors is without.
            self._canonical_since = None
            return not mode & termios.ECHO
        # The kernel looks at what we write a moment later, in the mode of then.  So wait until the program asks for input, lest
        # one that is just switching to raw mode gets the character echoed into its output.
        now = self._hub.now()
        if self._canonical_since is None:
            self._canonical_since = now
        if now - self._canonical_since >= END_PATIENCE or self._program_reads(fd):
            return True
        if not self._looking:
            self._looking = True
            self._hub.after(END_LOOK, self._look)
        return False

    def _look(self) -> None:
        self._looking = False
        self.retry_end()

    def _program_reads(self, fd: int) -> bool:
        session = self._session
        pids = processes.members(session.pid, session.group, reaped=session.status is not None)
        try:
            return processes.waits_for_input(pids, os.tcgetpgrp(fd))
        except OSError:
            return False

    def _typed(self, data: bytes, attributes: list[Any]) -> None:
        """`data` went to the terminal: keep track of the line, for the next server too."""
        self._guard.wrote(data, attributes)
        self._history.line = self._guard.line

    def _take_back_line(self, fd: int, attributes: list[Any]) -> None:
        """The rest of a line is refused: erase what the terminal has of it, or Enter would execute the beginning."""
        kill = attributes[CC][VKILL]
        if self._guard.in_line and kill != b"\0":
            with contextlib.suppress(OSError):
                os.write(fd, kill)
            self._typed(kill, attributes)

    def close(self) -> None:
        """End-of-file on a pipe.  (A terminal is closed by its stream.)"""
        fd, self.fd = self.fd, None
        if fd is not None and not self._session.tty:
            self._hub.pump.remove(fd)
            os.close(fd)
            self._hub.link.send({"op": "release", "id": self._session.id, "all": False, "only": "stdin"})

    def _refuse(self, client: bytes, receiver: InputReceiver, code: str, message: str) -> None:
        offset = receiver.refuse()
        peer = self._listener(client)
        if peer is not None:
            peer.send(Refused(self._session.id, offset, code, message))

    def give_back(self) -> None:
        """The VM was restored: forget what is queued and not written.  Clients send it to whichever branch they meet."""
        for client, receiver in self._receivers.items():
            receiver.give_back()
            if receiver.written:  # a skip may have moved it
                self._history.inputs.take(client, self._hub.peers).wrote(receiver.written)
        self._receivers.clear()
        self._heard.clear()
        self._turns.clear()
        self._end_deferred = False

    def refuse_queued(self, code: str, message: str) -> None:
        """Nothing more will be written: whoever has input waiting here is told so."""
        while self._turns:
            client = self._turns.popleft()
            receiver = self._receivers[client]
            if receiver.pending():
                self._refuse(client, receiver, code, message)

    def _acknowledge(self, client: bytes, receiver: InputReceiver) -> None:
        peer = self._listener(client)
        if peer is not None:
            slot = self._history.inputs.find(client)
            peer.send(Ack(self._session.id, receiver.written, slot.uncertain if slot is not None else None))

    def _listener(self, client: bytes) -> Client | None:
        """The client's connection, if it has asked."""
        peer = self._hub.peers.get(client)
        return peer if peer is not None and peer is self._heard.get(client) else None
