"""screens.py with real renderer processes that are killed, stopped and replaced; and who answers a query."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import pytest
import trio

from guestagent import screens as screens_module
from guestagent.history import History, memory_size
from guestagent.queries import Queries
from guestagent.screens import Screens
from ptymux import limits
from ptymux.errors import RequestFailed
from ptymux.output import LoggedMark
from tests.harness import until


class Stream:
    """What Screens sees of a session's output."""

    gone = False
    prompt = False
    followed_at = 0.0
    birth_size = (20, 4)

    def __init__(self, key: str) -> None:
        self.key = self.session_id = key
        self.fd = os.memfd_create("test-history", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, memory_size(limits.MIN_HISTORY))
        self.history = History(os.dup(self.fd))
        self.answers: list[tuple[int, bytes]] = []
        self.seen: list[int | None] = []
        self.looked = trio.Event()

    def answer(self, offset: int, data: bytes) -> None:
        self.answers.append((offset, data))

    def followed(self, offset: int | None, *, unfinished: int = 0) -> None:
        self.seen.append(offset)
        self.looked.set()

    def close(self) -> None:
        self.history.close()
        os.close(self.fd)


class Keeper:
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}

    async def borrow(self, session: str) -> int:
        return os.dup(self.streams[session].fd)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


@pytest.fixture
def stream(keeper: Keeper) -> Iterator[Stream]:
    found = keeper.streams["one"] = Stream("one")
    yield found
    found.close()


@pytest.fixture
async def screens(keeper: Keeper) -> AsyncIterator[Screens]:
    async with trio.open_nursery() as nursery:
        found = Screens(keeper, nursery.start_soon)
        yield found
        found.stop()
        nursery.cancel_scope.cancel()


def pid_of(screens: Screens) -> int:
    assert screens._process is not None
    return screens._process.pid


async def first_row(screens: Screens, stream: Stream) -> str:
    return str((await screens.screen(stream, 0, 0))["text"][0])


async def test_a_screen_a_picture_and_answers(screens: Screens, stream: Stream) -> None:
    stream.history.append(b"hello\x1b[6n")
    shown = await screens.screen(stream, 0, 0)
    assert (shown["text"][0], shown["offset"], shown["approximate"], shown["columns"]) == ("hello", 9, False, 20)
    assert stream.answers == [(9, b"\x1b[1;6R")]
    picture = await screens.picture(stream)
    assert picture is not None
    assert (picture.position.offset, picture.columns, picture.rows) == (9, 20, 4)
    assert b"hello" in picture.data
    screens.follow(stream)
    await stream.looked.wait()
    assert stream.seen == [9]
    assert len(stream.answers) == 1


async def test_a_stream_that_floods_is_looked_at_now_and_then(screens: Screens, stream: Stream) -> None:
    await screens.screen(stream, 0, 0)  # it is up
    stream.followed_at = began = trio.current_time()
    for _ in range(5):
        stream.looked = trio.Event()
        screens.follow(stream)
        await stream.looked.wait()
    pace = min(screens_module.PACE, stream.history.size / screens_module.FASTEST)
    assert stream.followed_at - began >= 5 * pace


async def test_a_stream_that_goes_before_its_look_costs_the_others_nothing(screens: Screens, stream: Stream) -> None:
    stream.followed_at = trio.current_time() + 0.05
    screens.follow(stream)
    stream.gone = True
    await trio.sleep(0.2)
    assert stream.seen == []
    assert screens._followed == 0
    assert screens._pause == screens_module.AGAIN
    assert screens._process is None, "nobody was asked"


async def test_a_renderer_that_was_killed_is_replaced(screens: Screens, stream: Stream) -> None:
    stream.history.append(b"hello")
    for number in range(3):
        assert await first_row(screens, stream) == "hello"
        os.kill(pid_of(screens), signal.SIGKILL)
        assert screens.restarts == number
    assert await first_row(screens, stream) == "hello"
    assert screens.restarts == 3


async def test_what_left_the_ring_is_known_from_the_checkpoint(screens: Screens, stream: Stream) -> None:
    stream.history.append(b"\x1b]2;title\x07")
    for _ in range(20):
        stream.history.append(b"words\r\n" * 2000)
        await screens.screen(stream, 0, 0)
    os.kill(pid_of(screens), signal.SIGKILL)
    shown = await screens.screen(stream, 0, 0)
    assert (shown["title"], shown["approximate"]) == ("title", False)


async def test_one_that_does_not_answer_is_given_up(
    screens: Screens, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await screens.screen(stream, 0, 0)
    os.kill(pid_of(screens), signal.SIGSTOP)
    monkeypatch.setattr(screens_module, "PATIENCE", 0.2)
    with pytest.raises(RequestFailed, match="no answer within") as failure:
        await screens.screen(stream, 0, 0)
    assert failure.value.code == "no_screen"
    monkeypatch.undo()
    assert len((await screens.screen(stream, 0, 0))["text"]) == 4
    os.kill(pid_of(screens), signal.SIGSTOP)
    monkeypatch.setattr(screens_module, "PATIENCE", 0.2)
    assert await screens.picture(stream) is None


async def test_two_deaths_under_one_request_are_said(
    screens: Screens, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens_module.launch, "module_argv", lambda *_: ["false"])
    with pytest.raises(RequestFailed, match="the renderer does not start"):
        await screens.screen(stream, 0, 0)
    assert await screens.picture(stream) is None
    monkeypatch.setattr(screens_module, "AGAIN", 0.01)
    screens.follow(stream)
    await stream.looked.wait()
    assert stream.seen == [None]


async def test_one_terminal_that_cannot_be_drawn_is_no_harm_to_others(
    screens: Screens, stream: Stream, keeper: Keeper
) -> None:
    other = keeper.streams["other"] = Stream("other")
    try:
        other.history.append(b"good")
        await screens.screen(other, 0, 0)
        stream.history.save_checkpoint(b"\xc1 no checkpoint")
        with pytest.raises(RequestFailed, match="the renderer failed"):
            await screens.screen(stream, 0, 0)
        assert await first_row(screens, other) == "good"
        assert screens.restarts == 0
    finally:
        other.close()


async def test_one_that_nobody_needs_is_ended(
    screens: Screens, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens_module, "IDLE", 3.0)
    await screens.screen(stream, 0, 0)
    process = screens._process
    await until(lambda: process is not None and process.dead, "its end")
    assert len((await screens.screen(stream, 0, 0))["text"]) == 4
    assert screens.restarts == 0


# --- whose answer -----------------------------------------------------------------------------------
class Asked:
    """A stream and what its session types."""

    def __init__(self) -> None:
        fd = os.memfd_create("test-history", os.MFD_CLOEXEC)
        os.ftruncate(fd, memory_size(limits.MIN_HISTORY))
        self.history = History(fd)
        self.typed: list[bytes] = []
        session = SimpleNamespace(answerer=None, answer=self.typed.append)
        self.queries = Queries(session, self.history, lambda: 0)

    def own(self, client: str | None) -> LoggedMark:
        return self.history.add_mark("size_owner", {"client": client})

    def ask(self, name: bytes) -> None:
        self.history.append(b"\x1b[6n")
        self.queries.answer(self.history.head, name)


@pytest.fixture
def asked() -> Iterator[Asked]:
    found = Asked()
    yield found
    found.history.close()


def test_ours_are_answered_once(asked: Asked) -> None:
    asked.ask(b"a")
    asked.ask(b"b")
    asked.queries.answer(4, b"a")  # the next renderer meets it again
    assert asked.typed == [b"a", b"b"]


def test_theirs_are_not_until_they_leave(asked: Asked) -> None:
    asked.own("one")
    asked.ask(b"a")
    asked.ask(b"b")
    assert asked.typed == []
    asked.queries.take_over(4, asked.history.head)
    assert asked.typed == [b"b"], "a was acknowledged, and so it is answered"
    for offset, data in ((4, b"a"), (8, b"b")):
        asked.queries.answer(offset, data)
    assert asked.typed == [b"b"]


def test_what_an_earlier_owner_was_asked_is_not_the_later_ones(asked: Asked) -> None:
    asked.own("one")
    asked.ask(b"a")
    asked.own("two")
    asked.ask(b"b")
    asked.queries.take_over(4, asked.history.head)
    assert asked.typed == [b"b"]


def test_what_comes_after_the_take_over_is_the_new_owners(asked: Asked) -> None:
    asked.own("one")
    asked.ask(b"a")
    end = asked.history.head
    asked.ask(b"b")
    asked.queries.take_over(0, end)
    assert asked.typed == [b"a"]
    asked.queries.take_over(end, asked.history.head)
    assert asked.typed == [b"a", b"b"]
