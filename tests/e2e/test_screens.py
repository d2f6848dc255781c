"""What a client sees that was not there, and who answers a program that asks its terminal something."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from guestagent.renderer.terminal import Terminal
from ptymux import connect
from ptymux.client import Agent, Attach, Session
from ptymux.errors import RequestFailed
from ptymux.events import Gap, Output, Snapshot
from ptymux.limits import MAX_SNAPSHOT, MIN_HISTORY, SNAPSHOT_SCROLLBACK
from tests.e2e.data import check_equal, numbered_part
from tests.e2e.programs import Reading, counter, python
from tests.e2e.screens import Tmux, Window, running_tmux
from tests.e2e.sessions import stream_is
from tests.e2e.test_fullscreen import new, new_vim
from tests.harness import AgentProcess, children, cutting_proxy, running_agent, until

LONG_ENOUGH = 1.6  # seconds in which a second answer would have come: the agent's grace is 1


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture(scope="module")
def tmux(agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tmux]:
    with running_tmux(tmp_path_factory.mktemp("tmux"), agent.address) as tmux:
        yield tmux


# --- late clients in tmux -----------------------------------------------------------------------------
def look(window: Window) -> tuple[str, ...]:
    """All that tmux can say of a window: cells with attributes, cursor, modes."""
    names = (
        "cursor_x", "cursor_y", "cursor_flag", "alternate_on", "insert_flag", "keypad_cursor_flag", "mouse_any_flag",
        "mouse_sgr_flag", "origin_flag", "scroll_region_lower", "scroll_region_upper", "wrap_flag",
    )  # fmt: skip
    # Drawn again, as tmux spells the same cells in several ways: it keeps the pen of erased ones.
    drawn = Terminal(80, 25)
    drawn.feed(window._tmux.run("capture-pane", "-p", "-e", "-t", window.name).replace("\n", "\r\n").encode())
    return (*map(str, cells(drawn)), *(f"{name}={window.flag(name)}" for name in names))


def cells(terminal: Terminal) -> Iterator[list[Any]]:
    """Rows of (text, style), where blanks have no foreground, and those at the end only what is seen of them."""
    shown = terminal.screen_data()
    for row in shown["cells"]:
        found: list[Any] = []
        for text, _, index in row:
            style = shown["styles"][index]
            for char in text:
                look = {key: value for key, value in style.items() if char != " " or key in ("bg", "flags")}
                found.append(
                    (
                        char,
                        {key: value & ~3 if key == "flags" and char == " " else value for key, value in look.items()},
                    )
                )
        while (
            found
            and found[-1][0] == " "
            and not any(value for key, value in found[-1][1].items() if (key, value) != ("bg", -1))
        ):
            found.pop()
        yield found


def come_late(tmux: Tmux, early: Window, session: str) -> Window:
    """A second window, attached now; both show the same."""
    late = tmux.window()
    late.attach(session)
    alike(late, early)
    return late


def alike(one: Window, other: Window) -> None:
    """Wait until two windows show the same."""
    with contextlib.suppress(TimeoutError):
        one.wait(lambda: look(one) == look(other), "the same screen")
    for left, right in zip(look(one), look(other), strict=True):
        assert left == right


BASH = ("bash", "--norc", "--noprofile")
BASH_ENV = {"PS1": "\\[\\e[1;32m\\]there\\[\\e[0m\\]$ ", "HISTFILE": ""}


def start_vim(agent: AgentProcess, window: Window, folder: Path) -> str:
    session = new_vim(agent, folder / "file.py")
    window.attach(session)
    window.shows("[New]")
    window.line(":set number ruler hlsearch filetype=python | syntax on")
    window.type("idef function(世界):\n    return 'wörld'  # comment")
    window.keys("Escape")
    window.line("/return")
    window.line(":vsplit")
    window.wait(lambda: window.text.count("return 'w") == 2, "two panes")
    return session


def start_top(agent: AgentProcess, window: Window, folder: Path) -> str:
    session = new(agent, "top", "-d", "1000", env={"HOME": str(folder)})
    window.attach(session)
    window.wait(lambda: "PID" in window.text and "top" in window.lines[0], "top")
    return session


def start_htop(agent: AgentProcess, window: Window, folder: Path) -> str:
    session = new(agent, "htop", "-d", "1000", env={"HOME": str(folder)})
    window.attach(session)
    window.shows("F10")
    return session


def start_less(agent: AgentProcess, window: Window, folder: Path) -> str:
    file = folder / "lines"
    file.write_text("".join(f"line \x1b[3{i % 8}m{i:04}\x1b[0m 漢字\n" for i in range(1000)))
    session = new(agent, "less", "-R", str(file), env={"LESS": "-M"})
    window.attach(session)
    window.shows("line 0000")
    window.type("/0500")
    window.keys("Enter")
    window.wait(lambda: window.lines[0].startswith("line 0500"), "what was searched for")
    return session


def start_tmux(agent: AgentProcess, window: Window, folder: Path) -> str:
    config = folder / "config"
    config.write_text(
        """set -g default-command "env PS1='inner$ ' HISTFILE= bash --norc --noprofile"\nset -g status-right 'x'\nset -g status-interval 0\n"""
    )
    session = new(agent, "tmux", "-S", str(folder / "inner"), "-f", str(config), "-u", "new-session")
    window.attach(session)
    window.shows("inner$")
    window.keys("C-b")
    window.keys("%")
    window.wait(lambda: window.lines[0].count("inner$") == 2, "two panes")
    window.line("echo -e '\\e[44mblue\\e[0m' | tr a-z A-Z; echo do''ne")
    window.shows("done")
    return session


def start_shell(agent: AgentProcess, window: Window, folder: Path) -> str:
    session = new(agent, *BASH, env=BASH_ENV)
    window.attach(session)
    window.shows("there$")
    window.line(
        r"for i in {1..300}; do printf '\e[3%dm%d\e[m 漢\n' $((i % 8)) $i; done; printf %200s x; echo; echo do''ne"
    )
    window.shows("done")
    window.type("echo half a li")
    window.shows("half a li")
    return session


STARTS = (start_vim, start_top, start_htop, start_less, start_tmux, start_shell)


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__.removeprefix("start_"))
def test_who_comes_late_sees_what_is_there(
    agent: AgentProcess, tmux: Tmux, tmp_path: Path, start: Callable[[AgentProcess, Window, Path], str]
) -> None:
    early = tmux.window()
    session = start(agent, early, tmp_path)
    late = come_late(tmux, early, session)
    if start is start_shell:  # the scrollback too
        pages = [w._tmux.run("capture-pane", "-p", "-S", "-200", "-t", w.name) for w in (early, late)]
        assert pages[0] == pages[1]
    late.leave()
    early.leave()


def test_after_the_alternate_screen_was_left(agent: AgentProcess, tmux: Tmux, tmp_path: Path) -> None:
    """The primary screen was saved under vim, whose output is most of the history."""
    early = tmux.window()
    session = start_shell(agent, early, tmp_path)
    early.line(f"ne; vim -u NONE -N -n -- {tmp_path}/file")
    early.shows("[New]")
    during = come_late(tmux, early, session)
    early.line(":q")
    early.wait(lambda: early.flag("alternate_on") == "0" and early.lines[-1].startswith("there$"), "the prompt")
    alike(during, early)
    come_late(tmux, early, session)


async def test_after_a_gap(agent: AgentProcess, tmux: Tmux, tmp_path: Path) -> None:
    """A client whose connection stood still while a lot was written gets a picture, and nothing of what it showed is left."""

    def flood(early: Window, witness: Window) -> str:
        session = new(agent, *BASH, env=BASH_ENV, history=4 * MIN_HISTORY, policy="overwrite")
        for window in (early, witness):
            window.attach(session)
            window.shows("there$")
        trio.from_thread.run_sync(proxy.hold_down)
        witness.line(r"printf '\e[?1h\e[4m'; seq 300000; printf '\e[0m'; echo do''ne")
        witness.wait(lambda: "done" in witness.lines, "the flood")
        trio.from_thread.run_sync(proxy.release_down)
        alike(early, witness)
        assert "missing" not in early.text
        return session

    async with cutting_proxy(agent.path, tmp_path) as proxy:
        with running_tmux(tmp_path, proxy.address) as slow:
            early = await trio.to_thread.run_sync(slow.window)
            session = await trio.to_thread.run_sync(flood, early, tmux.window())
            await trio.to_thread.run_sync(come_late, tmux, early, session)


# --- screen() -----------------------------------------------------------------------------------------
def reference(data: bytes, columns: int = 80, rows: int = 24) -> Terminal:
    terminal = Terminal(columns, rows, SNAPSHOT_SCROLLBACK)
    terminal.feed_plain(data) if len(data) > 1 << 20 else terminal.feed(data)
    return terminal


def renderer_of(agent: AgentProcess) -> int:
    """The pid of the renderer; 0 if there is none."""
    return next(iter(children(agent.server_pid(), "renderer")), 0)


async def is_exact(session: Session, terminal: Terminal) -> dict[str, Any]:
    """The screen now, which must be this."""
    shown = await session.screen(count=50)
    assert not shown["approximate"]
    expected = terminal.screen_data(max(0, len(terminal.main.history) - 50), 50)
    assert {key: shown[key] for key in expected if shown[key] != expected[key]} == {}, {
        key: value for key, value in expected.items() if shown[key] != value
    }
    return shown


def build_log(size: int) -> bytes:
    chance = random.Random(5)
    words = ("cc", "-O2", "\x1b[35mwarning:\x1b[m", "unused", "src/main.c", "\x1b[1mlinking\x1b[0m", "ok", "漢字")
    text = "".join(
        f"\x1b[32m[{chance.randrange(10**6):6d}]\x1b[0m {' '.join(chance.choices(words, k=chance.randrange(1, 13)))}\r\n"
        for _ in range(20_000)
    ).encode()
    return text * (size // len(text) + 1)


@pytest.mark.slow
async def test_the_screen_after_a_long_log_is_exact_and_fast(agent: AgentProcess, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = build_log(20_000_000)
    log.write_bytes(data)
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", f"stty raw; cat {log}; exec sleep 1000"])
        await stream_is(session, head=len(data))
        times = []
        for _ in range(3):
            begun = trio.current_time()
            shown = await session.screen()
            times.append(trio.current_time() - begun)
        print(f"screen() after {len(data)} bytes: {', '.join(f'{t * 1e3:.0f}' for t in times)} ms")
        assert shown["offset"] == len(data)
        await is_exact(session, reference(data))
        await session.remove(force=True)


async def test_any_bytes(agent: AgentProcess) -> None:
    """case C17: whatever a program writes, there is a screen, and the session goes on."""
    script = "import os, random, tty; tty.setraw(0); c = random.Random(3); os.write(1, b'ready')\nwhile True:\n if os.read(0, 1) == b'!': os.write(1, c.randbytes(5000))"
    async with connect(agent.address) as client:
        session = await client.create(python(script))
        await stream_is(session, head=5)
        for number in range(1, 41):
            await session.send(b"!")
            await stream_is(session, head=5000 * number + 5)
            shown = await session.screen()
            assert (len(shown["text"]), shown["offset"]) == (24, 5000 * number + 5)
        assert (await session.inspect())["state"] == "running"
        await session.remove(force=True)


MODES = b"\x1b[?1049h\x1b[?2004h\x1b[?1h\x1b=\x1b[?1002h\x1b[?1006h\x1b[?25l\x1b[5 q\x1b]2;a title\x07"


async def test_state_that_fell_out_of_the_ring_is_in_the_picture(agent: AgentProcess, tmp_path: Path) -> None:
    """cases C14, C15: modes, margins, title and the saved main screen were set once, long ago."""
    log = tmp_path / "log"
    begin = b"main screen\r\n" + MODES + b"\x1b[24;1H"
    data = b"".join(b"\x1b[3%dmline %d\x1b[m\r\n" % (n % 8, n) for n in range(30_000))
    log.write_bytes(data)
    first = tmp_path / "first"
    first.write_bytes(begin)
    async with connect(agent.address) as client:
        script = f"stty raw -echo; cat {first}; read x; cat {log}; exec sleep 1000"
        session = await client.create(["sh", "-c", script], history=MIN_HISTORY * 4)
        await stream_is(session, head=len(begin))
        await session.screen()
        await session.send(b"\n")
        await stream_is(session, head=len(begin + data))
        terminal = Terminal(80, 24, SNAPSHOT_SCROLLBACK)
        terminal.feed(begin + data)
        shown = await is_exact(session, terminal)
        assert (shown["title"], shown["alternate"], shown["modes"]["bracketed_paste"]) == ("a title", True, True)
        async with session.attach(begin="snapshot") as stream:
            picture = await anext(stream)
        assert isinstance(picture, Snapshot)
        late = Terminal(picture.columns, picture.rows, SNAPSHOT_SCROLLBACK)
        late.feed(picture.data)
        assert late.key() == terminal.key()
        await session.remove(force=True)


async def test_modes_of_a_killed_program_are_not_armed_again(agent: AgentProcess) -> None:
    """case C16: it died with the mouse on; at the shell's prompt nobody wants that, and what the shell set itself stays."""
    async with connect(agent.address) as client:
        session = await client.create(BASH, env=BASH_ENV, size=(80, 24))
        await shows(session, "there$")
        await session.send(b"sh -c 'printf \"\\033[?1003h\\033[?1006h\\033[?25l armed\"; kill -9 $$'\r")
        await shows(session, "Killed")
        await until(lambda: prompt(session), "the prompt")
        shown = await session.screen()
        assert (shown["modes"]["mouse"], shown["modes"]["mouse_encoding"]) == ("none", "default")
        assert shown["cursor"]["visible"]
        async with session.attach(begin="snapshot") as stream:
            picture = await anext(stream)
        assert isinstance(picture, Snapshot)
        assert b"\x1b[?1003h" not in picture.data
        # A program that lives keeps its modes, also where it has no process group of its own.
        script = 'printf "\\033[?1003h\\033[?25l"; sh -c "echo up; read x"; :'
        alive = await client.create(["sh", "-c", script], size=(80, 24))
        await shows(alive, "up")
        shown = await alive.screen()
        assert (shown["modes"]["mouse"], shown["cursor"]["visible"]) == ("any", False)
        await session.remove(force=True)
        await alive.remove(force=True)


async def prompt(session: Session) -> bool:
    shown = await session.screen()
    return bool(shown["text"][shown["cursor"]["y"]] == "there$")


async def shows(session: Session, text: str) -> dict[str, Any]:
    """Wait for a text on the session's screen."""

    async def there() -> dict[str, Any] | None:
        shown = await session.screen()
        return shown if text in "\n".join(shown["text"]) else None

    found: dict[str, Any] = await until(there, f"{text!r} on the screen")
    return found


# --- attaching with a picture -------------------------------------------------------------------------
class Pictures(Reading):
    """Output that follows a picture, or what came before it."""

    async def next(self) -> Any:
        event = await super().next()
        if isinstance(event, Snapshot):
            self.offset = event.offset
            self.data.clear()
        return event


async def test_a_picture_and_what_follows_are_one(agent: AgentProcess) -> None:
    """case C18: under a flood, the picture is of its offset to the byte, and the next byte is the one behind it."""
    async with connect(agent.address) as client:
        session = await client.create(counter(), size=(80, 24))
        await until(lambda: session.inspect(), "output")
        for _ in range(15):
            async with session.attach(begin="snapshot") as stream:
                reading = Pictures(stream)
                await reading.until(lambda reading=reading: len(reading.data) > 100_000)
            picture = reading.of(Snapshot)[-1]  # where the flood outran the first, there was a gap and another one
            assert isinstance(picture, Snapshot)
            assert len(reading.of(Snapshot)) == len(reading.of(Gap)) + 1
            data = bytes(reading.data)
            check_equal(data, numbered_part(picture.offset, picture.offset + len(data)))
            terminal = Terminal(picture.columns, picture.rows, SNAPSHOT_SCROLLBACK)
            terminal.feed(picture.data + data[:5000])
            end = picture.offset + 5000
            # A raw terminal's LF does not return, so lines wrap anywhere, but no digit is missing.
            shown = "".join("".join(terminal.screen_data()["text"]).split())
            assert shown
            assert numbered_part(max(0, end - 4000), end).replace(b"\n", b"").decode().endswith(shown)
        await session.remove(force=True)


async def test_a_reconnect_paints_nothing(agent: AgentProcess, tmp_path: Path) -> None:
    """case C19, of a client that began with a picture."""
    async with cutting_proxy(agent.path, tmp_path) as proxy, connect(proxy.address) as client:
        session = await client.create(["sh", "-c", "stty raw -echo; seq 200; exec cat"], size=(80, 24))
        await shows(session, "200")
        async with session.attach(begin="snapshot", size=(80, 24), answers=True) as stream:
            reading = Pictures(stream)
            await reading.until(lambda: reading.of(Snapshot))
            for number in range(10):
                contacts, before = client.connections, proxy.down
                proxy.cut_all()
                await until(
                    lambda contacts=contacts: client.connections > contacts and stream.attached, "the reconnect"
                )
                await session.send(b"%d\n" % number)
                await reading.until_text(b"%d\n" % number)
                assert proxy.down - before < 3000
            assert len(reading.of(Snapshot)) == 1
        await session.remove(force=True)


async def test_the_first_paint_is_bounded(agent: AgentProcess, tmp_path: Path) -> None:
    """case C20: of 100,000 lines of colours the picture has a thousand, and older ones come by pages."""
    log = tmp_path / "log"
    log.write_bytes(
        b"".join(b"\x1b[38;2;%d;7;7m%07d\x1b[48;5;%dm words\x1b[0m\r\n" % (n % 256, n, n % 256) for n in range(100_000))
    )
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", f"stty raw -echo; cat {log}; exec sleep 1000"], size=(80, 24))
        await stream_is(session, head=log.stat().st_size)
        begun = trio.current_time()
        async with session.attach(begin="snapshot") as stream:
            picture = await anext(stream)
        took = trio.current_time() - begun
        assert isinstance(picture, Snapshot)
        print(f"first paint: {len(picture.data)} bytes after {took * 1e3:.0f} ms")
        assert len(picture.data) < 200_000 < MAX_SNAPSHOT
        assert took < 5
        page = await session.screen(start=900, count=50)
        assert page["scrollback"]["text"][0].startswith(f"{100_000 - 23 - 950:07d}")
        await session.remove(force=True)


async def test_a_picture_has_the_size_that_it_was_made_for(agent: AgentProcess, tmp_path: Path) -> None:
    """case C47: the window was resized, and the ring went on, while a client was away."""
    async with (
        cutting_proxy(agent.path, tmp_path) as proxy,
        connect(agent.address) as other,
        connect(proxy.address) as client,
    ):
        script = "stty raw -echo; echo ready; read x; seq 50000; printf 'wide %100s' end; exec sleep 1000"
        session = await client.create(["sh", "-c", script], history=MIN_HISTORY, size=(80, 24))
        await shows(session, "ready")
        async with session.attach(begin="snapshot", view=True) as stream:
            reading = Pictures(stream)
            await reading.until(lambda: reading.of(Snapshot))
            proxy.refuse = True
            proxy.cut_all()
            await until(lambda: not client.up, "the client to be away")
            seen = other.session(session.id)
            await seen.resize(132, 30)
            await seen.send(b"\n")
            await shows(seen, "end")
            proxy.refuse = False
            await reading.until(lambda: reading.of(Gap))
            await reading.until(lambda: isinstance(reading.events[-1], Snapshot))
        picture = reading.events[-1]
        assert isinstance(picture, Snapshot)
        assert (picture.columns, picture.rows) == (132, 30)
        terminal = Terminal(132, 30, SNAPSHOT_SCROLLBACK)
        terminal.feed(picture.data)
        shown = await seen.screen()
        assert terminal.screen_data()["cells"] == shown["cells"]
        await seen.remove(force=True)


# --- the renderer dies --------------------------------------------------------------------------------
@pytest.mark.slow
async def test_no_session_notices_that_the_renderer_is_killed(agent: AgentProcess) -> None:
    """Twenty times: while screens are asked for, clients come, something is typed, and a flood is written."""
    async with connect(agent.address) as client:
        shell = await client.create(BASH, env=BASH_ENV, size=(80, 24), history=MIN_HISTORY * 4)
        flood = await client.create(counter(), size=(80, 24), policy="overwrite", history=MIN_HISTORY * 4)
        server = agent.server_pid()
        async with shell.attach(size=(80, 24)) as stream, trio.open_nursery() as nursery:
            reading = Reading(stream)
            looks = lost = 0

            async def look_at_the_flood() -> None:
                nonlocal looks, lost
                while True:
                    try:
                        assert len((await flood.screen())["text"]) == 24
                        looks += 1
                    except RequestFailed as error:  # two were killed under one request
                        if error.code != "no_screen":
                            raise
                        lost += 1

            await reading.until_text(b"there")
            await shell.send(b"printf '\\e[?66h\\e]2;kept\\a'\r")
            nursery.start_soon(look_at_the_flood)
            for number in range(20):
                before = looks
                await until(lambda before=before: looks > before, "a screen")
                pid = await until(lambda: renderer_of(agent), "a renderer")
                os.kill(pid, signal.SIGKILL)
                await shell.send(b"seq 4000; echo number-$((%d + 100))\r" % number)
                await reading.until_text(b"number-%d\r\n" % (number + 100))
                with contextlib.suppress(RequestFailed):
                    await shell.screen()
                async with flood.attach(begin="snapshot", view=True) as late:
                    assert isinstance(await anext(late), Snapshot | Gap)
            await until(lambda: prompt(shell), "the prompt")
            shown = await shell.screen()
            assert not shown["approximate"]
            # What was set before the first of the kills, and has long left the ring, is known from the checkpoint.
            assert (shown["title"], shown["modes"]["app_keypad"]) == ("kept", True)
            assert shown["text"][shown["cursor"]["y"] - 1] == "number-119"
            print(f"renderer killed 20 times: {looks} screens of the flood, {lost} requests said that there is none")
            nursery.cancel_scope.cancel()
        assert agent.server_pid() == server
        for session in (shell, flood):
            assert (await session.inspect())["state"] == "running"
            await session.remove(force=True)


# --- queries ------------------------------------------------------------------------------------------
# Writes what comes through a FIFO on its terminal, and keeps what is typed in a file.
_RECORDER = """
import os, select, sys, tty
tty.setraw(0)
commands = os.open(sys.argv[1], os.O_RDWR)
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(1, b"ready\\r\\n")
while True:
    for fd in select.select([0, commands], [], [])[0]:
        if fd == 0:
            os.write(log, os.read(0, 65536))
        else:
            os.write(1, os.read(commands, 65536))
"""


class Recorder:
    """A program that asks its terminal what it is told to, and knows every byte that was typed."""

    def __init__(self, folder: Path) -> None:
        self._fifo, self._log = folder / "fifo", folder / "typed"
        os.mkfifo(self._fifo)
        self.written = len(b"ready\r\n")

    async def start(self, client: Agent, **more: Any) -> Session:
        session = await client.create(python(_RECORDER, str(self._fifo), str(self._log)), size=(80, 24), **more)
        await stream_is(session, head=self.written)
        return session

    def write(self, data: bytes) -> None:
        with self._fifo.open("wb") as file:
            file.write(data)
        self.written += len(data)

    @property
    def typed(self) -> bytes:
        return self._log.read_bytes()

    async def is_answered(self, *answers: bytes) -> None:
        """Wait for so many bytes: these, in this order, and nothing else."""
        expected = b"".join(answers)
        await until(lambda: len(self.typed) >= len(expected), f"{expected!r}; typed is {self.typed!r}")
        assert self.typed == expected

    async def stays(self) -> None:
        """Nothing more is typed."""
        before = self.typed
        await trio.sleep(LONG_ENOUGH)
        assert self.typed == before


@contextlib.asynccontextmanager
async def person(session: Session, name: bytes, *, wait: bool = True, **more: Any) -> AsyncGenerator[Attach]:
    """A client whose terminal answers each question for the cursor's position with its name."""

    async def look(stream: Attach) -> None:
        async for event in stream:
            if isinstance(event, Snapshot):
                painted.set()
            if isinstance(event, Output) and event.answer:
                for _ in range(event.data.count(b"\x1b[6n")):
                    await session.send(name)

    painted = trio.Event()
    arguments = {"begin": "snapshot", "size": (80, 24), "answers": True, **more}
    async with session.attach(**arguments) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(look, stream)
        if arguments["begin"] == "snapshot" and wait:
            await painted.wait()
        yield stream
        nursery.cancel_scope.cancel()


async def test_the_agent_answers_if_nobody_is_there(agent: AgentProcess, tmp_path: Path) -> None:
    """case C13: each once, in order, and right."""
    recorder = Recorder(tmp_path)
    async with connect(agent.address) as client:
        session = await recorder.start(client)
        recorder.write(
            b"\x1b[c\x1b[5;7H\x1b[6n\x1b[?2004h\x1b[?2004$p\x1b]11;?\x07\x1b[>q\x1b[>5u\x1b[?u\x1b]4;1;?;2;?\x07"
        )
        await recorder.is_answered(
            b"\x1b[?62;22c", b"\x1b[5;7R", b"\x1b[?2004;1$y", b"\x1b]11;rgb:0000/0000/0000\x1b\\", b"\x1bP>|guestagent\x1b\\", b"\x1b[?5u",
            b"\x1b]4;1;rgb:cdcd/0000/0000\x1b\\", b"\x1b]4;2;rgb:0000/cdcd/0000\x1b\\",
        )  # fmt: skip
        before = recorder.typed
        for part in (b"\x1b", b"[", b"6", b"n"):  # no ESC in what completes it
            recorder.write(part)
            await stream_is(session, head=recorder.written)
            await session.screen()
        await recorder.is_answered(before, b"\x1b[5;7R")
        async with session.attach(view=True), session.attach(begin="snapshot", size=(80, 24)):
            recorder.write(b"\x1b[6n")  # neither a viewer nor a program that only reads answers
            await recorder.is_answered(before, b"\x1b[5;7R", b"\x1b[5;7R")
        agent.kill_server()
        await recorder.stays()
        recorder.write(b"\x1b[6n")
        await recorder.is_answered(before, *[b"\x1b[5;7R"] * 3)
        await recorder.stays()
        await session.remove(force=True)


async def test_one_of_several_answers(agent: AgentProcess, tmp_path: Path) -> None:
    """case C13: whoever owns the size; the others and the agent do not."""
    recorder = Recorder(tmp_path)
    async with connect(agent.address) as one, connect(agent.address) as two, connect(agent.address) as three:
        session = await recorder.start(one)
        async with (
            person(two.session(session.id), b"<two>"),
            person(three.session(session.id), b"<viewer>", view=True),
            person(session, b"<one>"),
        ):
            for number in range(1, 6):
                recorder.write(b"\x1b[6n")
                await recorder.is_answered(b"<one>" * number)
            await two.session(session.id).send(b"typed")  # the size is of whoever typed last
            recorder.write(b"\x1b[6n")
            await recorder.is_answered(b"<one>" * 5, b"typed", b"<two>")
            await recorder.stays()
        # What they answered is not answered again when they leave.
        await recorder.stays()
        recorder.write(b"\x1b[6n")
        await recorder.is_answered(b"<one>" * 5, b"typed", b"<two>", b"\x1b[2;1R")
        # Nor when somebody comes and is shown it (case C12), or the server is another.
        async with person(session, b"<late>"), person(two.session(session.id), b"<later>", begin="history"):
            await recorder.stays()
        agent.kill_server()
        await session.screen()
        await recorder.stays()
        await session.remove(force=True)


async def test_what_is_asked_while_a_client_comes_is_answered_once(agent: AgentProcess, tmp_path: Path) -> None:
    """By its terminal, or by the agent if the question is in the picture already and so is never sent."""
    recorder = Recorder(tmp_path)
    async with connect(agent.address) as client:
        session = await recorder.start(client)
        for number in range(10):
            before = recorder.typed
            async with person(session, b"<owner>", wait=False):
                recorder.write(b"\x1b[6n")
                await until(lambda before=before: recorder.typed != before, "an answer")
                if number % 5 == 4:
                    await recorder.stays()
            assert recorder.typed[len(before) :] in (b"<owner>", b"\x1b[2;1R")
        await recorder.stays()
        await session.remove(force=True)


async def test_an_owner_that_leaves_with_a_question(agent: AgentProcess, tmp_path: Path) -> None:
    """It never saw it: the agent answers a second later, once, and the owner does not when it is back."""
    recorder = Recorder(tmp_path)
    async with (
        connect(agent.address) as creator,
        cutting_proxy(agent.path, tmp_path) as proxy,
        connect(proxy.address) as client,
    ):
        session = await recorder.start(creator)
        async with person(client.session(session.id), b"<owner>") as stream:
            recorder.write(b"\x1b[6n")
            await recorder.is_answered(b"<owner>")
            # It is back within that second: the question is still its to answer.
            proxy.hold_down()
            recorder.write(b"\x1b[6n")
            await stream_is(session, head=recorder.written)
            proxy.cut_all()
            proxy.release_down()
            await recorder.is_answered(b"<owner>" * 2)
            await recorder.stays()
            # It is not.
            proxy.hold_down()
            recorder.write(b"\x1b[6n")
            await stream_is(session, head=recorder.written)
            proxy.refuse = True
            proxy.cut_all()
            proxy.release_down()
            await recorder.is_answered(b"<owner>" * 2, b"\x1b[2;1R")
            proxy.refuse = False
            await until(lambda: client.up and stream.attached, "the owner to be back")
            await recorder.stays()
            recorder.write(b"\x1b[6n")
            await recorder.is_answered(b"<owner>" * 2, b"\x1b[2;1R", b"<owner>")
        await recorder.stays()
        await session.remove(force=True)


async def test_the_owner_is_the_owner_again_when_the_server_was_killed(agent: AgentProcess, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    async with connect(agent.address) as client:
        session = await recorder.start(client)
        async with person(session, b"<owner>") as stream:
            recorder.write(b"\x1b[6n")
            await recorder.is_answered(b"<owner>")
            for number in range(2, 5):
                contacts = client.connections
                agent.kill_server()
                await until(
                    lambda contacts=contacts: client.connections > contacts and stream.attached, "the next server"
                )
                recorder.write(b"\x1b[6n")
                await recorder.is_answered(b"<owner>" * number)
            await session.screen()
            await recorder.stays()
        await session.remove(force=True)


# --- programs that ask when they start ----------------------------------------------------------------
STARTING = {
    "bash": (BASH, "there$"),
    "python": (("python3", "-q"), ">>>"),
    "vim": (("vim", "-u", "NONE", "-N", "--cmd", "set t_RV=\033[>c t_u7=\033[6n"), "~"),
    "fish": (("fish", "--no-config", "-C", "function fish_prompt; echo 'there> '; end"), "there>"),
}


@pytest.mark.parametrize("name", STARTING)
async def test_programs_start_at_once_without_anybody(agent: AgentProcess, tmp_path: Path, name: str) -> None:
    argv, text = STARTING[name]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    async with connect(agent.address) as client:
        begun = time.monotonic()
        session = await client.create(argv, env={**BASH_ENV, "HOME": str(tmp_path), "PYTHONSTARTUP": ""}, size=(80, 24))
        await shows(session, text)
        await session.send(b":" if name == "vim" else b"echo o''k\r" if name in ("bash", "fish") else b"'o' + 'k'\r")
        shown = await shows(session, ":" if name == "vim" else "ok")
        print(f"{name}: {time.monotonic() - begun:.2f} s")
        assert "warning" not in "\n".join(shown["text"])
        assert "\x1b" not in "\n".join(shown["text"])
        assert "[?" not in "\n".join(shown["text"]).replace("~", "")
        await session.remove(force=True)
