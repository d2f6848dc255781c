"""input.py: the two ends of one client's input, step by step.  The promise as a whole is in test_input_properties.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ptymux import limits
from ptymux.errors import ProtocolError
from ptymux.input import Dropped, InputReceiver, InputSender, SenderState, Uncertain
from ptymux.messages import Ack, Input, InputEnd, Refused, Skip

S = "session"


def connected_sender(data: bytes = b"", max_age: float | None = 10.0) -> InputSender:
    """A sender whose `data` is on its way."""
    sender = InputSender(S, max_age)
    sender.connected()
    if data:
        sender.write(data, 0.0)
        sender.frames()
    return sender


def refused(offset: int, code: str = "line_too_long") -> Refused:
    return Refused(S, offset, code, "cannot type")


# --- sender ---------------------------------------------------------------------------------------
def test_input_goes_out_once() -> None:
    sender = connected_sender()
    assert sender.frames() == []
    assert sender.write(b"ls", 0.0) == 2
    assert sender.write(b"\n", 0.0) == 3
    assert sender.frames() == [Input(S, 0, b"ls"), Input(S, 2, b"\n")]
    assert sender.frames() == []
    assert sender.on_ack(Ack(S, 3), 0.0) == []
    assert (sender.acked, sender.sent, sender.end) == (3, 3, 3)


def test_a_paste_is_cut_into_frames_and_held_back_by_the_window() -> None:
    """Case C28: 1 MiB goes out a window at a time, as the terminal takes it, and arrives whole."""
    paste = bytes(range(256)) * 4096
    sender = connected_sender()
    receiver = InputReceiver()
    sender.write(paste, 0.0)
    typed = b""
    while sender.acked < len(paste):
        for frame in sender.frames():
            assert isinstance(frame, Input)
            assert len(frame.data) <= limits.MAX_INPUT_DATA
            receiver.on_input(frame)
        assert receiver.received - receiver.written <= limits.INPUT_WINDOW
        part = receiver.pending()[:5000]
        typed += part
        receiver.wrote(len(part))
        sender.on_ack(Ack(S, receiver.written), 0.0)
    assert typed == paste


def test_the_window_is_measured_from_what_was_acknowledged() -> None:
    sender = connected_sender(b"x" * (limits.INPUT_WINDOW + 1))
    assert sender.sent == limits.INPUT_WINDOW
    sender.on_ack(Ack(S, 1), 0.0)
    assert sender.frames() == [Input(S, limits.INPUT_WINDOW, b"x")]


def test_after_a_reconnect_the_agent_is_asked_first() -> None:
    """Case C30: nothing is resent before it is known what was typed."""
    sender = connected_sender(b"abc")
    sender.write(b"def", 0.0)
    sender.connected()
    assert sender.state is SenderState.PROBING
    assert sender.frames() == [Input(S, 0, b"")]
    sender.write(b"ghi", 1.0)
    assert sender.frames() == []
    assert sender.on_ack(Ack(S, 4), 1.0) == []
    assert sender.frames() == [Input(S, 4, b"ef"), Input(S, 6, b"ghi")]


def test_a_reconnect_with_nothing_in_flight_asks_nothing() -> None:
    sender = connected_sender(b"abc")
    sender.on_ack(Ack(S, 3), 0.0)
    sender.connected()
    assert sender.frames() == []
    sender.write(b"d", 0.0)
    assert sender.frames() == [Input(S, 3, b"d")]


def test_what_is_too_old_is_given_up_after_a_reconnect() -> None:
    """Case C30: stale keystrokes are not typed into a shell that has moved on; newer ones are, without a hole."""
    sender = connected_sender(b"rm x\n")
    sender.write(b"y", 7.0)
    sender.connected()
    sender.frames()
    assert sender.on_ack(Ack(S, 2), 10.5) == [Dropped(2, 5, "stale")]
    assert sender.frames() == [Skip(S, 2, 5), Input(S, 5, b"y")]


@pytest.mark.parametrize(("now", "told"), [(10.0, []), (10.1, [Dropped(0, 3, "stale")])])
def test_the_age_limit_is_to_the_letter(now: float, told: list[Any]) -> None:
    sender = connected_sender(b"abc")
    sender.connected()
    assert sender.on_ack(Ack(S, 0), now) == told


def test_without_an_age_limit_nothing_is_too_old() -> None:
    sender = connected_sender(b"abc", max_age=None)
    sender.connected()
    assert sender.on_ack(Ack(S, 0), 1e9) == []
    assert sender.frames()[-1] == Input(S, 0, b"abc")


def test_on_a_link_that_holds_nothing_is_too_old() -> None:
    """Only a reconnect is a reason: a program that does not read its input for an hour still gets it."""
    sender = connected_sender(b"abc")
    assert sender.on_ack(Ack(S, 1), 3600.0) == []
    assert sender.acked == 1


def test_a_skip_is_sent_until_it_is_confirmed() -> None:
    """Regression: a Skip that was lost with its connection was forgotten, and whatever was typed afterwards was a hole for
    the agent: a ProtocolError on this connection and on every later one.
    """
    sender = connected_sender(b"abc")
    receiver = InputReceiver()
    sender.connected()
    sender.on_ack(Ack(S, 0), 99.0)
    assert Skip(S, 0, 3) in sender.frames()  # and lost
    sender.write(b"d", 99.0)
    sender.connected()
    skip, probe = sender.frames()
    assert (skip, probe) == (Skip(S, 0, 3), Input(S, 3, b""))
    receiver.on_skip(skip)
    assert receiver.on_input(probe)
    sender.on_ack(Ack(S, receiver.written), 99.0)
    assert sender.frames() == [Input(S, 3, b"d")]
    sender.connected()
    assert sender.frames() == [Input(S, 3, b"")]  # confirmed: not again


def test_a_late_ack_does_not_confirm_a_skip() -> None:
    sender = connected_sender(b"abc")
    sender.on_refused(refused(1))
    sender.on_ack(Ack(S, 1), 0.0)
    sender.connected()
    assert sender.frames() == [Skip(S, 1, 3)]
    sender.on_ack(Ack(S, 3), 0.0)
    sender.connected()
    assert sender.frames() == []


def test_a_second_skip_is_joined_with_an_unconfirmed_one() -> None:
    """Or the first would leave a hole after a cut that takes both."""
    sender = connected_sender(b"abc")
    sender.connected()
    sender.on_ack(Ack(S, 0), 99.0)
    sender.write(b"def", 99.0)
    sender.connected()
    assert sender.on_ack(Ack(S, 0), 200.0) == [Dropped(3, 6, "stale")]
    sender.connected()
    assert sender.frames() == [Skip(S, 0, 6)]


def test_a_refusal_gives_up_what_is_queued_behind_it() -> None:
    sender = connected_sender(b"abc")
    sender.write(b"defg", 0.0)
    assert sender.on_refused(refused(2)) == Dropped(2, 7, "refused")
    assert sender.frames() == [Skip(S, 2, 7)]
    sender.write(b"h", 0.0)
    assert sender.frames() == [Input(S, 7, b"h")]


def test_a_refusal_answers_a_probe() -> None:
    sender = connected_sender(b"abc")
    sender.connected()
    assert sender.on_refused(refused(0, "unknown_position")) == Dropped(0, 3, "unknown_position")
    assert sender.state is SenderState.OPEN


def test_a_refusal_beyond_what_was_typed_is_malformed() -> None:
    sender = connected_sender(b"abc")
    with pytest.raises(ProtocolError, match=r"^malformed Refused: "):
        sender.on_refused(refused(4))


@pytest.mark.parametrize("skip_too", [False, True])
@pytest.mark.parametrize("ended", [False, True])
def test_an_agent_that_refuses_every_frame_is_left_in_peace(skip_too: bool, ended: bool) -> None:
    """Regression: the second Refused of a viewer's two keystrokes was "malformed" and ended the connection, and one for the end
    of the input was answered with a skip that was refused, and so on for ever.
    """
    sender = connected_sender()
    sender.write(b"a", 0.0)
    sender.write(b"b", 0.0)
    if ended:
        sender.finish()
    told = []
    for _ in range(10):
        frames = sender.frames()
        if not frames:
            break
        for frame in frames:
            if not isinstance(frame, Skip):
                told.append(sender.on_refused(refused(frame.offset, "forbidden")))
            elif skip_too:
                told.append(sender.on_refused(refused(frame.start, "forbidden")))
    assert sender.frames() == []
    assert [d for d in told if d.start < d.to] == [Dropped(0, 2, "refused")]


def test_a_late_refusal_does_not_touch_what_was_typed_since() -> None:
    sender = connected_sender(b"a")
    sender.write(b"b", 0.0)
    sender.frames()
    assert sender.on_refused(refused(0)) == Dropped(0, 2, "refused")
    sender.write(b"c", 0.0)
    late = sender.on_refused(refused(1))
    assert late.start == late.to
    assert sender.frames() == [Skip(S, 0, 2), Input(S, 2, b"c")]


def test_what_is_uncertain_is_told_once() -> None:
    sender = connected_sender(b"abcdef")
    sender.connected()
    assert sender.on_ack(Ack(S, 4, [1, 4]), 0.0) == [Uncertain(1, 4)]
    assert sender.on_ack(Ack(S, 4, [1, 4]), 0.0) == []
    assert sender.frames()[-1] == Input(S, 4, b"ef")


def test_only_the_news_of_an_uncertain_range_is_told() -> None:
    """The agent may have joined two ranges; of the first this client knows."""
    sender = connected_sender(b"abcdef")
    assert sender.on_ack(Ack(S, 2, [1, 2]), 0.0) == [Uncertain(1, 2)]
    sender.on_ack(Ack(S, 4), 0.0)
    assert sender.on_ack(Ack(S, 5, [1, 5]), 0.0) == [Uncertain(4, 5)]


def test_uncertain_input_is_told_before_stale_input() -> None:
    sender = connected_sender(b"abcdef")
    sender.connected()
    assert sender.on_ack(Ack(S, 2, [1, 2]), 99.0) == [Uncertain(1, 2), Dropped(2, 6, "stale")]


def test_an_ack_beyond_what_was_typed_is_malformed() -> None:
    sender = connected_sender(b"abc")
    with pytest.raises(ProtocolError, match=r"^malformed Ack: "):
        sender.on_ack(Ack(S, 4), 0.0)


def test_a_late_ack_takes_nothing_back() -> None:
    sender = connected_sender(b"abc")
    sender.on_ack(Ack(S, 2), 0.0)
    sender.on_ack(Ack(S, 1), 0.0)
    assert sender.acked == 2


def test_the_end_follows_the_last_byte() -> None:
    sender = connected_sender()
    sender.write(b"abc", 0.0)
    sender.finish()
    assert sender.frames() == [Input(S, 0, b"abc"), InputEnd(S, 3)]
    assert sender.frames() == []
    with pytest.raises(ValueError, match="its end was sent"):
        sender.write(b"d", 0.0)


def test_the_end_waits_for_the_window() -> None:
    sender = connected_sender(b"x" * (limits.INPUT_WINDOW + 1))
    sender.finish()
    assert sender.frames() == []
    sender.on_ack(Ack(S, 1), 0.0)
    assert sender.frames()[-1] == InputEnd(S, limits.INPUT_WINDOW + 1)


def test_the_end_is_sent_again_after_a_reconnect() -> None:
    sender = connected_sender(b"abc")
    sender.finish()
    sender.frames()
    sender.on_ack(Ack(S, 3), 0.0)
    sender.connected()
    assert sender.frames() == [InputEnd(S, 3)]


def test_the_end_is_sent_again_after_a_refusal() -> None:
    """Regression: an agent that refuses ignores the end that follows, and the program waited for its end-of-file for ever."""
    sender = connected_sender(b"abc")
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abc"))
    sender.finish()
    assert sender.frames() == [InputEnd(S, 3)]
    offset = receiver.refuse()
    receiver.on_end(InputEnd(S, 3))
    sender.on_refused(refused(offset))
    skip, end = sender.frames()
    assert (skip, end) == (Skip(S, 0, 3), InputEnd(S, 3))
    receiver.on_skip(skip)
    receiver.on_end(end)
    assert receiver.at_end


# --- receiver -------------------------------------------------------------------------------------
def type_all(receiver: InputReceiver) -> bytes:
    typed = b""
    while data := receiver.pending():
        typed += data
        receiver.wrote(len(data))
    return typed


def test_input_is_queued_and_written_in_parts() -> None:
    receiver = InputReceiver()
    assert not receiver.on_input(Input(S, 0, b"abc"))
    assert not receiver.on_input(Input(S, 3, b"de"))
    assert (receiver.received, receiver.written) == (5, 0)
    assert receiver.pending() == b"abc"
    receiver.wrote(0)
    receiver.wrote(2)
    assert (receiver.pending(), receiver.written) == (b"c", 2)
    receiver.wrote(1)
    assert (receiver.pending(), receiver.written) == (b"de", 3)
    receiver.wrote(2)
    assert (receiver.pending(), receiver.written) == (b"", 5)


@pytest.mark.parametrize(("frame", "typed"), [
    (Input(S, 0, b"abc"), b""), (Input(S, 1, b"bc"), b""), (Input(S, 0, b"abcd"), b"d"), (Input(S, 2, b"cdef"), b"def"),
    (Input(S, 3, b"d"), b"d"),
])  # fmt: skip
def test_what_was_received_is_not_typed_again(frame: Input, typed: bytes) -> None:
    """Case C30: a repeated frame, or the known part of one, is dropped by its offset; an Ack is due if nothing is new in it."""
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abc"))
    type_all(receiver)
    assert receiver.on_input(frame) is (typed == b"")
    assert type_all(receiver) == typed


def test_a_hole_is_refused() -> None:
    """Case C24, for input."""
    receiver = InputReceiver(5)
    for frame in (Input(S, 6, b"x"), Input(S, 6, b""), Input(S, 1 << 63, b"x")):
        with pytest.raises(ProtocolError, match=rf"^malformed Input: offset {frame.offset} where 5 follows$"):
            receiver.on_input(frame)
    with pytest.raises(ProtocolError, match=r"^malformed InputEnd: before the input it ends$"):
        receiver.on_end(InputEnd(S, 6))
    for skip in (Skip(S, 6, 7), Skip(S, 5, 4)):
        with pytest.raises(ProtocolError, match=r"^malformed Skip: "):
            receiver.on_skip(skip)
    assert (receiver.received, receiver.written) == (5, 5)


def test_more_than_the_window_is_refused() -> None:
    """The agent's memory for a program that does not read its input is bounded, whatever the client sends."""
    receiver = InputReceiver()
    part = b"x" * limits.MAX_INPUT_DATA
    for i in range(limits.INPUT_WINDOW // len(part)):
        receiver.on_input(Input(S, i * len(part), part))
    with pytest.raises(ProtocolError, match=r"^malformed Input: exceeds input_window"):
        receiver.on_input(Input(S, limits.INPUT_WINDOW, b"x"))
    receiver.pending()
    receiver.wrote(1)
    receiver.on_input(Input(S, limits.INPUT_WINDOW, b"x"))


def test_a_probe_gives_the_queue_back() -> None:
    """Regression: the queue was kept, so what the client then gave up as too old, and told its user, could still be typed by a
    terminal that became writable before the Skip arrived.
    """
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abcdef"))
    receiver.pending()
    receiver.wrote(2)
    assert receiver.on_input(Input(S, 0, b""))
    assert (receiver.written, receiver.received, receiver.pending()) == (2, 2, b"")
    receiver.on_skip(Skip(S, 2, 6))
    assert (receiver.written, receiver.received) == (6, 6)
    assert type_all(receiver) == b""


def test_a_probe_ends_a_refusal() -> None:
    """Regression: if the Refused frame was lost, the probe of the next connection was ignored and the client waited for ever."""
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abc"))
    assert receiver.refuse() == 0
    assert receiver.on_input(Input(S, 0, b""))
    receiver.on_input(Input(S, 0, b"abc"))
    assert type_all(receiver) == b"abc"


def test_a_refusal_ignores_all_that_follows_until_the_client_skips() -> None:
    """The rest of a refused line is never executed as a line of its own."""
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"echo very long"))
    receiver.pending()
    receiver.wrote(5)
    assert receiver.refuse() == 5
    assert receiver.received == 5
    for frame in (Input(S, 14, b"; rm x\n"), Input(S, 99, b"hole")):
        assert not receiver.on_input(frame)
    receiver.on_end(InputEnd(S, 21))
    assert receiver.pending() == b""
    receiver.on_skip(Skip(S, 5, 21))
    assert (receiver.written, receiver.received, receiver.refused) == (21, 21, False)
    receiver.on_input(Input(S, 21, b"ls\n"))
    assert type_all(receiver) == b"ls\n"


@pytest.mark.parametrize(
    ("skip", "typed", "written"),
    [
        (Skip(S, 6, 9), b"abcdef", 9),  # behind everything queued
        (Skip(S, 4, 9), b"abcd", 9),  # a queued chunk's end
        (Skip(S, 3, 9), b"abc", 9),  # all of a chunk
        (Skip(S, 1, 9), b"a", 9),
        (Skip(S, 0, 9), b"", 9),
        (Skip(S, 0, 0), b"abcdef", 6),  # nothing
        (Skip(S, 6, 6), b"abcdef", 6),
    ],
)
def test_a_skip_may_reach_into_the_queue(skip: Skip, typed: bytes, written: int) -> None:
    """What lies before it is typed, nothing of it is, and what follows begins behind it."""
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abc"))
    receiver.on_input(Input(S, 3, b"def"))
    receiver.on_skip(skip)
    receiver.on_input(Input(S, written, b"!"))
    assert type_all(receiver) == typed + b"!"
    assert receiver.written == written + 1


def test_a_skip_that_comes_again_changes_nothing() -> None:
    receiver = InputReceiver()
    receiver.on_skip(Skip(S, 0, 5))
    receiver.on_input(Input(S, 5, b"abc"))
    receiver.pending()
    receiver.wrote(1)
    receiver.on_skip(Skip(S, 0, 5))
    assert (receiver.written, receiver.pending()) == (6, b"bc")


def test_the_end_comes_after_the_last_byte_is_written() -> None:
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abc"))
    receiver.on_end(InputEnd(S, 3))
    assert not receiver.at_end
    receiver.pending()
    receiver.wrote(2)
    assert not receiver.at_end
    receiver.wrote(1)
    assert receiver.at_end


def test_the_end_may_be_reached_by_a_skip() -> None:
    receiver = InputReceiver()
    receiver.on_input(Input(S, 0, b"abc"))
    receiver.on_skip(Skip(S, 2, 9))
    receiver.on_end(InputEnd(S, 9))
    assert type_all(receiver) == b"ab"
    assert receiver.at_end


def test_a_receiver_that_is_built_again_goes_on_where_it_was() -> None:
    """Server restart: what was queued is resent, what was written is dropped, an end that was delivered stays delivered."""
    receiver = InputReceiver(7)
    assert not receiver.on_input(Input(S, 5, b"abcd"))
    assert type_all(receiver) == b"cd"
    assert InputReceiver(7, ended=True).at_end
    assert not InputReceiver(7).at_end


# --- both -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("lost", ["input", "ack", "probe", "answer"])
def test_whatever_frame_is_lost_every_byte_is_typed_once(lost: str) -> None:
    """Case C33: a send that succeeded proves nothing; only the Ack does."""
    sender, receiver, typed = connected_sender(), InputReceiver(), b""

    def deliver(frames: list[Any], *, drop_answer: bool = False) -> None:
        nonlocal typed
        for frame in frames:
            receiver.on_input(frame)
            typed += type_all(receiver)
            if not drop_answer:
                sender.on_ack(Ack(S, receiver.written), 0.0)

    def reconnect(deliver_: Callable[..., None], **how: bool) -> None:
        sender.connected()
        deliver_(sender.frames(), **how)

    sender.write(b"ls -l\n", 0.0)
    frames = sender.frames()
    if lost != "input":
        deliver(frames, drop_answer=True)
    if lost == "probe":
        sender.connected()
        sender.frames()
    if lost == "answer":
        reconnect(deliver, drop_answer=True)
    reconnect(deliver)
    deliver(sender.frames())
    assert typed == b"ls -l\n"
    assert sender.acked == 6
