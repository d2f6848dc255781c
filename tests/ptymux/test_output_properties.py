"""The promise for output: whatever is cut, what the client received and what it was told is missing are together exactly what
was written, in order.

A writer, a ring that may be far too small, an OutputSender, a link that is cut at any byte, an OutputReceiver and a reader that
takes its time.  VMs are snapshotted, restored, restored twice, and the client is moved from one to another.

And the promise for memory: whatever is cut, overwritten or rewound, what the client holds, what is on its way to it and what the
agent may still send are together never more than one window; and a reader that reads arrives at the head all the same.
"""

from __future__ import annotations

from typing import Any

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
from ptymux.cursor import Cursor, Position, resolve
from ptymux.output import OutputReceiver, OutputSender
from tests.ptymux.link import Link, Pipe
from tests.ptymux.ring import Ring, World

ID = "session"
TEXT = st.text("ab\n\N{CJK UNIFIED IDEOGRAPH-6F22}", max_size=12).map(str.encode)


class Client:
    """What a client knows: bytes and marks by their numbers, None where it was told that one is missing.

    It believes only frames; what they must mean is checked against `World` elsewhere.
    """

    def __init__(self, window: int) -> None:
        self.receiver = OutputReceiver(None, window)
        self.bytes: list[int | None] = []
        self.marks: list[m.Mark | None] = []
        self.allowed = 0  # how far the agent may send, by the rules of SPEC and not by the receiver's own count
        self.held = 0  # bytes that have come and the reader has not taken
        self.asked = 0  # what the last attach request said of them
        self.found = 0  # gaps that the answer to it counted in already, and that are still to come
        self.world: World | None = None  # whose output `bytes` is
        self.attached_to: World | None = None

    def on_answer(self, result: dict[str, Any], world: World) -> None:
        self.attached_to = world
        start = Position(*result["start"])
        before = self.receiver.cursor
        self.receiver.attached(result["generation"], start, result["replay_to"], self.asked)
        self.allowed = start.offset + self.receiver.window - self.asked
        self.found = result["found"]
        assert self.receiver.cursor == before

    def take(self, frame: Any) -> None:
        receiver = self.receiver
        if isinstance(frame, m.Gap):
            self.on_gap(frame)
        elif isinstance(frame, m.Output):
            assert frame.offset == len(self.bytes)
            receiver.on_output(frame)
            self.bytes.extend(frame.data)
            self.held += len(frame.data)
            assert len(self.bytes) <= self.allowed, "more than was asked for"
        else:
            assert isinstance(frame, m.Mark)
            assert (frame.number, frame.offset) == (len(self.marks), len(self.bytes)), "a mark at the wrong place"
            receiver.on_mark(frame)
            self.marks.append(frame)
        self.world = self.attached_to
        assert self.world is not None
        assert receiver.cursor == Cursor(self.world.generation, len(self.bytes), len(self.marks))

    def on_gap(self, frame: m.Gap) -> None:
        if frame.kind == "gap":
            assert frame.start == len(self.bytes), "a gap that does not begin where the client is"
            assert frame.to >= len(self.bytes)
            assert frame.mark >= len(self.marks)
            assert frame.detail["marks"] == [len(self.marks), frame.mark]
            assert (frame.to, frame.mark) != (len(self.bytes), len(self.marks)), "a gap of nothing"
        elif frame.kind == "rewound":
            assert frame.start == len(self.bytes)
            assert frame.to <= len(self.bytes)
            assert frame.mark <= len(self.marks)
        else:
            assert frame.start is None
            self.bytes.clear()
            self.marks.clear()
        del self.bytes[frame.to :]
        del self.marks[frame.mark :]
        self.bytes.extend([None] * (frame.to - len(self.bytes)))
        self.marks.extend([None] * (frame.mark - len(self.marks)))
        self.receiver.on_gap(frame)
        if self.found:
            self.found -= 1
        else:
            assert frame.kind == "gap"
            self.allowed += frame.to - frame.start

    def consume(self, count: int) -> None:
        self.receiver.consume(count)
        self.held -= count

    def credit_due(self) -> int | None:
        credit = self.receiver.credit_due()
        if credit is not None:
            assert credit == self.receiver.offset - self.held + self.receiver.window
            self.allowed = max(self.allowed, credit)
        return credit


class OutputMachine(RuleBasedStateMachine):
    @initialize(
        size=st.sampled_from([1, 2, 7, 30, 300, 1000]),
        most_marks=st.sampled_from([1, 2, 5, 1000]),
        window=st.sampled_from([1, 5, 20, 64, 300, 1000]),
        repair=st.sampled_from(["bytes", "snapshot"]),
        pace=st.sampled_from([0, 0, 1, 60]),
    )
    def begin(self, size: int, most_marks: int, window: int, repair: str, pace: int) -> None:
        self.generations = 0
        self.world = World(Ring(size, most_marks), self.new_generation())
        self.worlds = [self.world]
        self.client = Client(window)
        self.repair = repair
        self.channel = 0
        self.link: Link | None = None
        self.sender: OutputSender | None = None
        self.rest = b""  # of a group whose first byte is out
        self.in_flight = 0  # bytes of output that were sent on this connection and have not come
        self.pace = pace  # what the reader takes by the way
        self.connect()
        self.to_agent(None)

    def new_generation(self) -> bytes:
        self.generations += 1
        return self.generations.to_bytes(16, "big")

    # --- the program ------------------------------------------------------------------------------
    @rule(data=TEXT)
    def write(self, data: bytes) -> None:
        self.world.write(data)

    @rule(lines=st.sampled_from([3, 8, 150]))
    def flood(self, lines: int) -> None:
        """More than most rings hold."""
        self.world.write(b"0123456789\n" * lines)

    @rule(kind=st.sampled_from(["resize", "title"]))
    def mark(self, kind: str) -> None:
        self.world.mark(kind, {"n": len(self.world.marks)})

    # --- the connection ---------------------------------------------------------------------------
    @precondition(lambda self: self.link is None)
    @rule()
    def connect(self) -> None:
        """Dial and ask for the stream from the cursor on."""
        receiver = self.client.receiver
        cursor = receiver.cursor
        self.link = Link()
        self.channel += 1
        self.client.asked = receiver.backlog
        params = {"cursor": None if cursor is None else cursor.to_wire(), "backlog": receiver.backlog}
        self.link.to_agent.send(m.encode(m.Request(1, "attach", params, None)))

    @rule(
        trouble=st.sampled_from(["come back", "cut", "branch", "diverge", "diverge", "forgotten", "move"]),
        count=st.integers(0, 300),
        index=st.integers(0, 7),
    )
    def trouble(self, trouble: str, count: int, index: int) -> None:
        """One rule for all of it, or hardly a byte would ever arrive."""
        if trouble == "cut":
            self.cut()
        elif trouble == "come back":
            self.come_back(count, index)
        elif trouble == "move":
            self.go(self.worlds[index % len(self.worlds)])
        elif len(self.worlds) < 8:
            # Snapshot the present VM and restore it as another one; the source lives on.
            new = self.world.restored(self.new_generation(), ID, prepared=trouble != "forgotten")
            self.worlds.append(new)
            if trouble == "diverge":  # the client sees something of the source that the branch will never have had
                self.world.write(b"only here\n" * (1 + index))
                if self.sender is not None:
                    self.pump(1000, None, count)
            self.go(new)

    def come_back(self, count: int, taken: int = 0) -> None:
        """Cut, dial, and the agent has the attach at once.  The reader takes `taken` sevenths of what it holds meanwhile."""
        if self.link is not None:
            self.to_client(count)
            self.cut()
        self.connect()
        self.to_agent(None)
        self.consume(self.client.held * taken // 7)

    def cut(self) -> None:
        """Case C29, at any byte: what is in flight is lost, whatever part of it the client has had."""
        self.link = None
        self.sender = None
        self.rest = b""
        self.in_flight = 0
        self.client.attached_to = None

    @precondition(lambda self: self.link is not None)
    @rule(count=st.integers(1, 300) | st.none())
    def to_client(self, count: int | None) -> None:
        assert self.link is not None
        for frame in self.link.to_client.deliver(count):
            if isinstance(frame, m.Response):
                self.client.on_answer(frame.result, self.world)
                self.give_credit()
            else:
                assert frame.channel == self.channel
                self.client.take(frame)
                if isinstance(frame, m.Output):
                    self.in_flight -= len(frame.data)
                elif isinstance(frame, m.Gap):
                    self.give_credit()

    @precondition(lambda self: self.link is not None and len(self.link.to_agent))
    @rule(count=st.integers(1, 60) | st.none())
    def to_agent(self, count: int | None) -> None:
        """Credits may be late by any number of other steps."""
        assert self.link is not None
        for frame in self.link.to_agent.deliver(count):
            if isinstance(frame, m.Request):
                self.attach(Cursor.from_wire(frame.params["cursor"]), frame.params["backlog"])
            else:
                assert self.sender is not None
                self.sender.on_credit(frame.offset)

    def attach(self, cursor: Cursor | None, backlog: int) -> None:
        world = self.world
        start = resolve(
            cursor,
            world.ring,
            stream=ID,
            generation=world.generation,
            lineage=world.lineage,
            repair=self.repair,
        )
        for told in start.discontinuities:
            if told.kind == "foreign" or (told.kind == "gap" and told.to.offset != told.start):
                assert told.to == self.oldest_there_is(), "more was given up than is missing"
        window = self.client.receiver.window
        self.sender = OutputSender(self.channel, world.ring, start, repair=self.repair, window=window, backlog=backlog)
        answer = {
            "generation": world.generation,
            "start": list(start.position),
            "replay_to": start.replay_to,
            "found": len(start.discontinuities),  # not in the protocol: which gaps came later only the test must know
        }
        assert self.link is not None
        self.link.to_client.send(m.encode(m.Response(1, answer)))

    @precondition(lambda self: self.sender is not None and not self.rest)
    @rule(most=st.sampled_from([1, 3, 10, 60, 1000]), out=st.integers(0, 300) | st.none())
    def send(self, most: int, out: int | None) -> None:
        """The transport takes `out` bytes of a group; if none, the group was never made."""
        assert self.sender is not None
        assert self.link is not None
        group = self.sender.next_group(most)
        if group is None:
            return
        data = b"".join(group.buffers)
        size = self.check_group(data, most)
        if out == 0:
            return
        self.sender.commit(group)
        self.in_flight += size
        self.link.to_client.send(data[:out])
        self.rest = b"" if out is None else data[out:]

    def oldest_there_is(self) -> tuple[int, int]:
        ring = self.world.ring
        offset = ring.oldest if self.repair == "bytes" else ring.safe_boundary()
        return offset, ring.first_mark_from(offset)

    def check_group(self, data: bytes, most: int) -> int:
        """Whole frames; as much output as the quantum; no byte given up that is still there.  The bytes of output in it."""
        pipe = Pipe(m.AGENT)
        pipe.send(data)
        frames = pipe.deliver()
        assert b"".join(map(m.encode, frames)) == data
        size = sum(len(frame.data) for frame in frames if isinstance(frame, m.Output))
        assert size <= most
        assert self.sender is not None
        ring = self.sender.source
        position = self.sender.position
        if position.offset >= self.sender.credit:
            assert size == 0
            if position.offset < ring.oldest or position.mark < ring.oldest_mark:
                # What the attach found, and not what was overwritten since: that is told when the client can take more.
                assert all(isinstance(frame, m.Gap) and frame.to <= position.offset for frame in frames)
        elif position.offset < ring.oldest:
            gap = [frame for frame in frames if isinstance(frame, m.Gap)][-1]  # before it, what the attach found
            assert (gap.kind, gap.start) == ("gap", position.offset)
            assert (gap.to, gap.mark) == self.oldest_there_is()
        return size

    @precondition(lambda self: self.sender is not None)
    @rule(most=st.sampled_from([5, 60, 1000]), out=st.integers(1, 300), count=st.integers(1, 300))
    def pump_some(self, most: int, out: int, count: int) -> None:
        self.pump(most, out, count)

    @precondition(lambda self: self.sender is not None)
    @rule(most=st.sampled_from([5, 60, 1000]))
    def pump_all(self, most: int) -> None:
        self.pump(most, None, None)

    def pump(self, most: int, out: int | None, count: int | None) -> None:
        """Steps that mostly go together; Hypothesis seldom finds long chains by itself."""
        if self.rest:
            self.send_rest(len(self.rest))
        self.send(most, out)
        self.to_client(count)
        self.consume(self.pace)
        if self.link is not None and len(self.link.to_agent):
            self.to_agent(count)

    @precondition(lambda self: self.rest)
    @rule(count=st.integers(1, 200))
    def send_rest(self, count: int) -> None:
        assert self.link is not None
        self.link.to_client.send(self.rest[:count])
        self.rest = self.rest[count:]

    # --- the reader -------------------------------------------------------------------------------
    @rule(pace=st.sampled_from([0, 0, 1, 7, 60, 1000]))
    def change_pace(self, pace: int) -> None:
        """With 0 it sleeps, and maybe for good."""
        self.pace = pace

    @precondition(lambda self: self.client.held)
    @rule(count=st.integers(0, 5) | st.integers(0, 300))
    def consume(self, count: int | None) -> None:
        """Connected, asking or neither.  None: everything."""
        count = self.client.held if count is None else min(count, self.client.held)
        if count:  # one who waits for something to take says nothing
            self.client.consume(count)
            self.give_credit()

    def give_credit(self) -> None:
        """As the machine does: when something was taken, and when the stream goes on elsewhere."""
        if self.client.attached_to is None:
            return
        credit = self.client.credit_due()
        if credit is not None:
            assert self.link is not None
            self.link.to_agent.send(m.encode(m.Credit(self.channel, credit)))

    # --- VMs --------------------------------------------------------------------------------------
    def go(self, world: World) -> None:
        """The client is sent to another VM: an ancestor of its own, a branch, a sibling or a twin."""
        if world is not self.world:
            self.cut()
            self.world = world
            self.come_back(0)

    # --- what must hold -----------------------------------------------------------------------------
    @invariant()
    def what_was_received_is_what_was_written(self) -> None:
        """Each byte and mark that the client has is the one of that number in the life that it came from."""
        client = self.client
        if client.world is None:
            assert client.bytes == []
            assert client.marks == []
            return
        written, marks = client.world.written, client.world.marks
        assert len(client.bytes) <= len(written)
        assert all(got is None or got == true for got, true in zip(client.bytes, written, strict=False))
        assert len(client.marks) <= len(marks)
        for got, true in zip(client.marks, marks, strict=False):
            if got is not None:
                assert (got.number, got.offset, got.kind, got.data) == true

    @invariant()
    def nothing_is_sent_that_was_not_asked_for(self) -> None:
        if self.sender is not None:
            assert self.sender.position.offset <= self.sender.credit
            assert self.sender.acked == self.sender.credit - self.sender.window

    @invariant()
    def the_client_never_holds_more_than_its_window(self) -> None:
        """Nor ever will by what is under way or may still be sent, if it takes nothing more."""
        receiver = self.client.receiver
        assert receiver.backlog == self.client.held <= receiver.window
        assert 0 <= self.in_flight <= receiver.window - receiver.backlog
        if self.sender is not None:
            assert (
                self.sender.credit - self.sender.position.offset <= receiver.window - receiver.backlog - self.in_flight
            )

    def teardown(self) -> None:
        """Progress: with a link that works and a reader that reads, the client arrives at the head, and quickly."""
        if not hasattr(self, "world"):
            return
        if self.pace == 0:  # it wakes up while it is asked for the stream again, and takes everything before the answer
            self.cut()
        for _ in range(self.world.ring.size + len(self.world.marks) + 30):
            if self.link is None:
                self.connect()
            if self.rest:
                self.send_rest(len(self.rest))
            elif self.sender is not None:
                self.send(20, None)
            self.to_client(None)
            self.consume(None)
            assert self.link is not None
            if len(self.link.to_agent):
                self.to_agent(None)
            arrived = self.client.receiver.cursor == (self.world.generation, *self.world.position())
            if arrived and self.quiet():
                break
        client = self.client
        if client.world is not self.world:  # nothing was ever written here, and no frame has come
            assert self.world.position() == (len(client.bytes), len(client.marks)) == (0, 0)
        assert client.receiver.offset == self.world.ring.head
        assert client.held == 0
        assert self.quiet()
        # Acknowledged, but for what is not worth a frame: a program that waits for this reader is not held up for more.
        step = min(client.receiver.window // 4, limits.MAX_OUTPUT_DATA)
        assert self.sender is not None
        assert self.sender.lag < max(1, step)
        assert len(client.bytes) == len(self.world.written)
        assert len(client.marks) == len(self.world.marks)
        self.what_was_received_is_what_was_written()

    def quiet(self) -> bool:
        """Attached, and nothing is under way."""
        link = self.link
        if link is None or self.client.attached_to is None or self.rest:
            return False
        return not len(link.to_client) and not len(link.to_agent)


SETTINGS = settings(stateful_step_count=50, suppress_health_check=list(HealthCheck), deadline=None)
TestOutput = OutputMachine.TestCase
TestOutput.settings = settings(SETTINGS, max_examples=200)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(5))
def test_output_over_many_more_schedules(batch: int) -> None:
    """In batches, because Hypothesis remembers every example of a run: thousands take a gigabyte."""
    machine = seed(batch)(type("Batch", (OutputMachine,), {}))
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=400, stateful_step_count=80))
