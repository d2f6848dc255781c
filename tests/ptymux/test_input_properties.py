"""The promise for input: every byte that was typed is executed at most once and in order, and each one that was not, or may not
have been, is told.

An InputSender, a link that is cut at any byte, an InputReceiver and a terminal that takes what it likes.  The agent's server is
killed in the middle of writes, lines are refused, input grows too old, the agent forgets the client's position.

What the agent around the receiver must do, and the machine below does:

* Write only what `pending` gives; keep `written` (and the bytes in flight, before the write) where a kill does not reach them.
* Acknowledge only on a connection on which a frame of this input has come: before the client's probe, `written` is not final.
* Give the queue back at the first frame of a connection, before anything is acknowledged on it.
* Take no frame of an earlier connection once a newer one is up.
* Keep an uncertain range until the client's probe shows that it knows, and merge a second one with it.
* A client that it does not know and that does not begin at 0: refuse with `unknown_position` at the end of the frame's range, once a
  connection, and believe only the Skip that answers it.
"""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ptymux import limits
from ptymux import messages as m
from ptymux.input import Dropped, InputReceiver, InputSender, Uncertain
from tests.ptymux.link import Link

ID = "session"


class Slot:
    """What survives the agent's server: see guestagent/input_table.py."""

    def __init__(self) -> None:
        self.written = 0
        self.ended = False
        self.uncertain: list[int] | None = None


class Terminal:
    """Takes bytes, with the numbers that the agent gives them, and compares them with what was typed."""

    def __init__(self, typed: bytearray) -> None:
        self._typed = typed
        self.taken: set[int] = set()
        self._next = 0
        self.ended = False

    def take(self, offset: int, data: bytes) -> None:
        assert not self.ended, "typed after the end"
        assert offset >= self._next, "typed twice, or out of order"
        assert self._typed[offset : offset + len(data)] == data, "typed something else"
        self.taken.update(range(offset, offset + len(data)))
        self._next = offset + len(data)

    def end(self) -> None:
        assert not self.ended, "ended twice"
        self.ended = True


class InputMachine(RuleBasedStateMachine):
    lossy: ClassVar[bool] = True  # whether anything happens that makes the two give up bytes

    @initialize(max_age=st.sampled_from([10.0, 10.0, None]), small=st.booleans())
    def begin(self, max_age: float | None, small: bool) -> None:
        # Small frames and a small window, or the limits would never be met.
        self.patches = [
            mock.patch.object(limits, "MAX_INPUT_DATA", 7 if small else 100),
            mock.patch.object(limits, "INPUT_WINDOW", 20 if small else 1000),
        ]
        for patch in self.patches:
            patch.start()
        self.now = 0.0
        self.typed = bytearray()
        self.sender = InputSender(ID, max_age if self.lossy else None)
        self.told: dict[int, str] = {}  # position -> why it was not, or may not have been, typed
        self.slot: Slot | None = Slot()
        self.receiver: InputReceiver | None = InputReceiver()
        self.terminal = Terminal(self.typed)
        self.link: Link | None = None
        self.spoken = False  # a frame of this input has come on this connection
        self.unknown = False  # ... and was refused, since nobody here knows its position
        self.connect()

    # --- the client -------------------------------------------------------------------------------
    @rule(count=st.integers(1, 40))
    def type(self, count: int) -> None:
        if self.sender.ended:
            return
        data = bytes((len(self.typed) + i) * 7 % 251 for i in range(count))
        self.typed += data
        assert self.sender.write(data, self.now) == len(self.typed)
        self.flush()

    def finish(self) -> None:
        self.sender.finish()
        self.flush()

    def flush(self) -> None:
        if self.link is not None:
            for frame in self.sender.frames():
                self.link.to_agent.send(m.encode(frame))
            assert self.sender.sent - self.sender.acked <= limits.INPUT_WINDOW

    @precondition(lambda self: self.link is not None)
    @rule(count=st.integers(1, 60) | st.none())
    def to_client(self, count: int | None) -> None:
        assert self.link is not None
        for frame in self.link.to_client.deliver(count):
            if isinstance(frame, m.Ack):
                for told in self.sender.on_ack(frame, self.now):
                    self.tell(told)
            else:
                self.tell(self.sender.on_refused(frame))
        self.flush()

    def tell(self, told: Dropped | Uncertain) -> None:
        reason = "uncertain" if isinstance(told, Uncertain) else told.reason
        assert 0 <= told.start <= told.to <= len(self.typed)
        for position in range(told.start, told.to):
            assert position not in self.told, "told twice"
            self.told[position] = reason

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- the connection ---------------------------------------------------------------------------
    @rule(
        what=st.sampled_from(
            ["again", "again", "late", "cut", "upgrade", "refuse", "refuse", "kill", "kill", "forget", "end"]
        ),
        delivered=st.integers(0, 60),
        count=st.integers(1, 30),
        taken=st.integers(0, 10),
    )
    def trouble(self, what: str, delivered: int, count: int, taken: int) -> None:
        """One rule for all of it, or hardly a byte would ever be typed."""
        if what == "end":
            self.finish()
        elif what in ("refuse", "kill") and self.lossy:
            # With something queued, or there is mostly nothing to refuse and no write to be killed in.
            if self.link is None:
                self.connect()
            self.exchange_all(60)
            self.type(count)
            self.to_agent(None)
            if what == "refuse":
                self.refuse()
                if taken % 2:  # before the client hears of it
                    self.cut()
                    self.connect()
            else:
                self.kill(count, taken)
                self.connect()
        elif what == "upgrade":
            self.upgrade()
        elif what == "forget" and self.lossy:
            self.forget()
        else:
            if self.link is not None:
                self.to_agent(delivered)
            self.cut()
            if what == "late":
                self.now += 11.0
            if what != "cut":
                self.connect()
            if what == "late" and taken % 2:  # the client gives up what is too old, and its Skip is lost
                self.to_agent(None)
                self.to_client(None)
                self.cut()
                self.connect()

    @rule(count=st.integers(1, 60))
    def exchange_some(self, count: int) -> None:
        """Steps that mostly go together; Hypothesis seldom finds long chains by itself."""
        if self.link is not None:
            self.to_agent(count)
            self.write(count, True)
            self.to_client(count)

    @rule(count=st.integers(1, 60))
    def exchange_all(self, count: int) -> None:
        if self.link is not None:
            self.to_agent(None)
            self.write(count, True)
            self.to_client(None)

    @precondition(lambda self: self.link is None)
    @rule()
    def connect(self) -> None:
        self.link = Link()
        self.spoken = self.unknown = False
        self.sender.connected()
        self.flush()

    def cut(self) -> None:
        """What is in flight is lost, acks included (case C33: what was sent may never have arrived)."""
        self.link = None

    # --- the agent --------------------------------------------------------------------------------
    @precondition(lambda self: self.link is not None)
    @rule(count=st.integers(1, 100) | st.none())
    def to_agent(self, count: int | None) -> None:
        assert self.link is not None
        for frame in self.link.to_agent.deliver(count):
            self.on_frame(frame)

    def on_frame(self, frame: Any) -> None:
        known = self.known(frame)
        if not self.spoken and self.receiver is not None:
            self.receiver.give_back()
        self.spoken = True
        if not known:
            return
        receiver = self.receiver
        assert receiver is not None
        if isinstance(frame, m.Input):
            if not frame.data:
                self.forget_uncertain(frame.offset)
            if receiver.on_input(frame):
                self.acknowledge()
        elif isinstance(frame, m.Skip):
            receiver.on_skip(frame)
            self.save()
            self.acknowledge()
        else:
            receiver.on_end(frame)
        self.look_for_the_end()

    def known(self, frame: Any) -> bool:
        """Whether the position that the frame speaks of can be believed."""
        if self.receiver is not None:
            return True
        first, answer = (frame.start, frame.to) if isinstance(frame, m.Skip) else (frame.offset, frame.offset)
        if self.unknown and isinstance(frame, m.Skip):
            self.slot, self.receiver = Slot(), InputReceiver(first)
            return True
        if not self.unknown:
            self.unknown = True
            self.answer(m.Refused(ID, answer, "unknown_position", "cannot type"))
        return False

    def forget_uncertain(self, offset: int) -> None:
        assert self.slot is not None
        if self.slot.uncertain is not None and offset >= self.slot.uncertain[1]:
            self.slot.uncertain = None

    def answer(self, frame: m.Ack | m.Refused) -> None:
        if self.link is not None:
            self.link.to_client.send(m.encode(frame))

    def acknowledge(self) -> None:
        assert self.receiver is not None
        assert self.slot is not None
        if self.spoken:
            self.answer(m.Ack(ID, self.receiver.written, self.slot.uncertain))

    def save(self) -> None:
        assert self.receiver is not None
        assert self.slot is not None
        assert self.receiver.written >= self.slot.written, "a written byte was forgotten"
        self.slot.written = self.receiver.written

    @rule(count=st.integers(1, 50), told=st.booleans())
    def write(self, count: int, told: bool) -> None:
        """Case C28: the terminal takes a part, or what it likes of several chunks; the ack may come later or not at all."""
        receiver = self.receiver
        if receiver is None:
            return
        while count and (data := receiver.pending()):
            part = data[:count]
            self.terminal.take(receiver.written, part)
            receiver.wrote(len(part))
            count -= len(part)
        self.save()
        if told:
            self.acknowledge()
        self.look_for_the_end()

    def look_for_the_end(self) -> None:
        assert self.receiver is not None
        assert self.slot is not None
        if self.receiver.at_end and not self.slot.ended:
            self.slot.ended = True
            self.terminal.end()
        self.save()

    def refuse(self) -> None:
        """The rest of a line that would lose its end is never executed as a line of its own."""
        if self.receiver is None or not self.receiver.pending():
            return
        offset = self.receiver.refuse()
        self.save()
        if self.spoken:
            self.answer(m.Refused(ID, offset, "line_too_long", "cannot type"))
            self.acknowledge()

    def upgrade(self) -> None:
        """A new server process, asked for: the queue is lost, the position is not, and nothing is uncertain."""
        self.cut()
        if self.slot is not None:
            self.receiver = InputReceiver(self.slot.written, ended=self.slot.ended)

    def kill(self, count: int, taken: int) -> None:
        """SIGKILL between the write's begin and its report: the kernel may have taken all, some or none of it."""
        slot = self.slot
        if slot is None or self.receiver is None or not self.receiver.pending():
            return
        data = self.receiver.pending()[:count]
        start = self.receiver.written
        if taken:
            self.terminal.take(start, data[:taken])
        slot.uncertain = [start if slot.uncertain is None else slot.uncertain[0], start + len(data)]
        slot.written = start + len(data)
        self.upgrade()

    def forget(self) -> None:
        """Too many clients came meanwhile: this one's position was given to another."""
        # A client that has nothing acknowledged yet cannot be told from a new one, and its input would be typed again.
        if self.sender.acked > 0 and not self.terminal.ended:
            self.cut()
            self.slot = self.receiver = None

    # --- what must hold -----------------------------------------------------------------------------
    @invariant()
    def what_is_acknowledged_was_typed_or_told(self) -> None:
        """Nothing is lost silently, and nothing that was told to be dropped was typed after all."""
        for position in range(self.sender.acked):
            assert position in self.terminal.taken or position in self.told, "lost silently"
        for position, reason in self.told.items():
            assert position < self.sender.acked, "given up and still in flight"
            if reason in ("stale", "refused"):
                assert position not in self.terminal.taken, "told to be dropped, and typed"

    def teardown(self) -> None:
        if not hasattr(self, "patches"):
            return
        try:
            self.settle()
        finally:
            for patch in self.patches:
                patch.stop()

    def settle(self) -> None:
        """Progress: with a link that works and a terminal that reads, nothing stays pending."""
        for _ in range(3 * len(self.typed) + 20):
            if self.link is None:
                self.connect()
            assert self.link is not None
            self.to_agent(None)
            if self.receiver is not None:
                self.write(13, True)
            self.to_client(None)
            if not len(self.link.to_agent) and not len(self.link.to_client) and self.sender.acked == len(self.typed):
                break
        self.what_is_acknowledged_was_typed_or_told()
        assert self.sender.acked == self.sender.end == len(self.typed)
        assert self.terminal.ended == self.sender.ended
        if not self.lossy:
            assert self.told == {}
            assert self.terminal.taken == set(range(len(self.typed)))


class LosslessInputMachine(InputMachine):
    """Case C30: without a reason to drop, cuts and upgrades alone: all is typed exactly once, nothing is told."""

    lossy = False


SETTINGS = settings(stateful_step_count=50, suppress_health_check=list(HealthCheck), deadline=None)
TestInput = InputMachine.TestCase
TestInput.settings = settings(SETTINGS, max_examples=250)
TestLosslessInput = LosslessInputMachine.TestCase
TestLosslessInput.settings = settings(SETTINGS, max_examples=100)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(5))
@pytest.mark.parametrize("machine", [InputMachine, LosslessInputMachine])
def test_input_over_many_more_schedules(machine: type[InputMachine], batch: int) -> None:
    """In batches, because Hypothesis remembers every example of a run."""
    seeded = seed(batch)(type("Batch", (machine,), {}))
    run_state_machine_as_test(seeded, settings=settings(SETTINGS, max_examples=400, stateful_step_count=80))
