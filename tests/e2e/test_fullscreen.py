"""`ptymux attach` as a person uses it: full-screen programs in a session, seen and typed through a window of tmux."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ptymux import connect
from tests.dying import dying_agent
from tests.e2e.programs import python
from tests.e2e.screens import PROMPT, Tmux, Window, running_tmux
from tests.harness import AgentProcess, cutting_proxy, ptymux_json, running_agent, wait_for


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture(scope="module")
def tmux(agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tmux]:
    with running_tmux(tmp_path_factory.mktemp("tmux"), agent.address) as tmux:
        yield tmux


@pytest.fixture
def window(tmux: Tmux) -> Window:
    return tmux.window()


def new(agent: AgentProcess, *argv: str, **more: Any) -> str:
    """A new session; its id."""

    async def create() -> str:
        async with connect(agent.address) as client:
            return (await client.create(argv, **{"size": (80, 24), **more})).id

    return trio.run(create)


def inspect(agent: AgentProcess, session: str) -> dict[str, Any]:
    found: dict[str, Any] = ptymux_json(agent.address, "inspect", session)
    return found


def in_foreground(pid: int, name: str) -> None:
    """Wait until a program has the terminal of this process: Ctrl-C before that would be the shell's."""

    def found() -> bool:
        group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[5]
        return Path(f"/proc/{group}/comm").read_text().strip() == name

    wait_for(found, f"{name} in the foreground")


def listens(pid: int) -> None:
    """Wait until a process sleeps, as it does when it reads its terminal."""
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S", f"{pid} to read")


def new_vim(agent: AgentProcess, file: Path) -> str:
    """A session in which vim has a new file open."""
    return new(agent, "vim", "-u", "NONE", "-N", "-n", "--", file.name, cwd=str(file.parent))


def saved(file: Path, text: str) -> None:
    wait_for(lambda: file.exists() and file.read_text() == text, f"{file} to be written")


# --- programs -------------------------------------------------------------------------------------
def test_vim_saves_what_was_typed_and_follows_the_window(agent: AgentProcess, window: Window, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    window.attach(new_vim(agent, file))
    window.shows('"file.txt" [New]')
    window.type("ihello wörld — 世界")
    window.keys("Enter")
    window.type("second line")
    window.keys("Escape")
    window.line(":w")
    window.shows("written")
    saved(file, "hello wörld — 世界\nsecond line\n")
    window.line(":set laststatus=2 statusline=it.is.%{&columns}x%{&lines}")
    for columns, rows in ((100, 30), (60, 12), (80, 24)):
        window.resize(columns, rows)
        window.wait(lambda text=f"it.is.{columns}x{rows}": window.lines[-2] == text, "the size in vim's status line")  # type: ignore[misc]
        window.line(":echo 'size' &columns &lines")
        window.shows(f"size {columns} {rows}")
    window.line(":q")
    window.left(0)
    assert window.flag("alternate_on") == "0"


def test_less_pages_searches_and_leaves(agent: AgentProcess, window: Window, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f"line {i:04}\n" for i in range(1000)))
    session = new(agent, "less", str(file), env={"LESS": "-M"})
    window.attach(session)
    window.wait(lambda: "lines 1-23" in window.lines[-1], "the first page")
    window.keys("Space")
    window.wait(lambda: window.lines[0] == "line 0023", "the second page")
    window.type("/0500")
    window.keys("Enter")
    window.wait(lambda: window.lines[0] == "line 0500", "what was searched for")
    window.keys("G")
    window.shows("line 0999")
    listens(inspect(agent, session)["pid"])  # less forgets a SIGWINCH that comes before it reads again
    window.resize(80, 10)

    def page_of_nine() -> bool:
        page = re.search(r"lines (\d+)-(\d+)/1000", window.lines[-1])
        return page is not None and int(page[2]) - int(page[1]) == 8

    window.wait(page_of_nine, "a page of the new size")
    window.keys("g")
    window.wait(lambda: window.lines[:9] == [f"line {i:04}" for i in range(9)], "the top")
    window.keys("q")
    window.left(0)


@pytest.mark.parametrize("program", ["htop", "top"])
def test_monitors_paint_and_repaint(agent: AgentProcess, window: Window, program: str, tmp_path: Path) -> None:
    window.attach(new(agent, program, env={"HOME": str(tmp_path)}))
    window.shows("PID")
    window.wait(lambda: program in window.text, f"{program} in its own list")
    window.resize(120, 35)
    window.wait(lambda: len([line for line in window.lines if line.strip()]) > 24, "the larger screen")
    window.keys("q")
    window.left(0)
    assert [window.flag(name) for name in ("alternate_on", "cursor_flag", "mouse_any_flag")] == ["0", "1", "0"]


def test_a_tmux_in_the_session(agent: AgentProcess, window: Window, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("""set -g default-command "env PS1='inner$ ' HISTFILE= bash --norc --noprofile"\n""")
    session = new(agent, "tmux", "-S", str(tmp_path / "inner"), "-f", str(config), "-u", "new-session")
    window.attach(session)
    window.shows("inner$")
    window.line("echo one | tr a-z A-Z")
    window.shows("ONE")
    window.keys("C-b")
    window.keys("%")
    window.wait(lambda: window.lines[0].count("inner$") == 2, "two panes")
    assert any("│" in line for line in window.lines)
    window.line("echo two | tr a-z A-Z")
    window.shows("TWO")
    window.leave()
    assert window.flag("alternate_on") == "0"
    window.attach(session)
    window.wait(lambda: "ONE" in window.text and "TWO" in window.text and "│" in window.text, "both panes again")
    window.line("exit")
    window.wait(lambda: "│" not in window.text, "one pane")
    window.line("exit")
    window.left(0)


def test_a_python_prompt(agent: AgentProcess, window: Window) -> None:
    window.attach(new(agent, sys.executable, "-q", env={"PYTHONSTARTUP": "", "HOME": "/nonexistent"}))
    window.shows(">>>")
    window.line("print('x' * 3 + 'y')")
    window.shows("xxxy")
    window.keys("Up")
    window.keys("BSpace", "BSpace", "BSpace")
    window.line("z')")
    window.shows("xxxz")
    window.line("while True: pass")
    window.keys("Enter")
    window.keys("C-c")
    window.shows("KeyboardInterrupt")
    window.line("exit(4)")
    window.left(4)


def test_bash_with_readline_and_job_control(agent: AgentProcess, window: Window) -> None:
    session = new(agent, "bash", "--norc", "--noprofile", env={"PS1": "there$ ", "HISTFILE": ""})
    pid = inspect(agent, session)["pid"]
    window.attach(session)
    window.shows("there$")
    window.type("echo ac")
    window.keys("Left")
    window.type("b")
    window.keys("Enter")
    window.wait(lambda: "abc" in window.lines, "the edited line's output")
    window.keys("Up", "Home")
    window.type("x=1; ")
    window.keys("End", "Enter")
    window.shows("there$ x=1; echo abc")
    window.line("sleep 1000")
    in_foreground(pid, "sleep")
    window.keys("C-c")
    window.line("echo status $?")
    window.wait(lambda: "status 130" in window.lines, "the interrupted sleep's status")
    window.line("sleep 1001")
    in_foreground(pid, "sleep")
    window.keys("C-z")
    window.shows("Stopped")
    window.line("jobs")
    window.shows("Stopped", count=2)
    window.line("fg")
    window.wait(lambda: "sleep 1001" in window.lines, "the job to be named")
    in_foreground(pid, "sleep")
    window.keys("C-c")
    window.line("kill -0 %1 || echo no job")
    window.wait(lambda: "no job" in window.lines, "no job to be left")
    window.keys("C-d")
    window.left(0)


# --- detaching ------------------------------------------------------------------------------------
def test_detach_and_find_it_again_from_another_window(
    agent: AgentProcess, window: Window, tmux: Tmux, tmp_path: Path
) -> None:
    session = new_vim(agent, tmp_path / "file")
    window.attach(session)
    window.shows('"file" [New]')
    window.type("iseen from both")
    window.keys("Escape")
    window.line(":set number ruler")
    window.shows("  1 seen from both")
    before = window.lines
    window.leave()
    assert f"[ptymux: detached from {session}]" in window.text
    other = tmux.window()
    other.attach(session)
    other.wait(lambda: other.lines == before, f"the same screen as\n{before}")
    other.keys("o")
    other.type("and written from there")
    other.keys("Escape")
    other.line(":x")
    other.left(0)
    saved(tmp_path / "file", "seen from both\nand written from there\n")


def test_the_detach_key_twice_types_it(agent: AgentProcess, window: Window) -> None:
    session = new(agent, "sh", "-c", "stty raw -echo; echo ready; exec cat -v")
    window.attach(session)
    window.shows("ready")
    window.keys("C-]", "C-]")
    window.type("z")
    window.shows("^]z")
    window.keys("C-]", "x")
    window.left(0)
    window.attach(session, "--detach-key", "C-a")
    window.shows("ready")
    window.keys("C-]")
    window.type("y")
    window.shows("^]z^]y")
    window.keys("C-a")
    window.left(0)
    assert inspect(agent, session)["state"] == "running"


def test_what_was_typed_just_before_leaving_is_typed(agent: AgentProcess, window: Window, tmp_path: Path) -> None:
    file = tmp_path / "typed"
    window.attach(new(agent, "sh", "-c", f"echo ready; read line; echo $line > {file}"))
    window.shows("ready")
    window.type("all of it\r\x1d")
    window.left(0)
    saved(file, "all of it\n")


# --- several people -------------------------------------------------------------------------------
def test_one_who_only_looks_neither_types_nor_sizes(agent: AgentProcess, window: Window, tmux: Tmux) -> None:
    """case C45."""
    session = new(agent, "bash", "--norc", "--noprofile", env={"PS1": "there$ "})
    viewer = tmux.window(60, 15)
    window.attach(session)
    window.shows("there$")
    viewer.attach(session, "--view")
    viewer.shows("there$")
    viewer.line("echo typed by the viewer")
    window.line("stty size")
    window.shows("24 80")
    viewer.shows("24 80")
    viewer.resize(50, 10)
    window.line("echo and st''ill $(stty size)")
    window.shows("and still 24 80")
    viewer.shows("and still 24 80")
    assert "viewer" not in window.text
    viewer.leave()
    window.resize(90, 20)
    window.line("echo now $(stty size)")
    window.shows("now 20 90")
    window.line("exit 3")
    window.left(3)


def test_two_who_type_share_the_session(agent: AgentProcess, window: Window, tmux: Tmux) -> None:
    """The size is of whoever typed last."""
    session = new(agent, "bash", "--norc", "--noprofile", env={"PS1": "there$ "})
    other = tmux.window(100, 30)
    window.attach(session)
    window.shows("there$")
    other.attach(session)
    other.shows("there$")
    other.line("echo from the ot''her")
    window.shows("from the other")
    other.line("stty size")
    other.shows("30 100")
    window.line("stty size")
    window.shows("24 80")
    other.leave()
    window.line("exit")
    window.left(0)


# --- the local terminal afterwards ----------------------------------------------------------------
# Leaves everything switched that a program can leave switched.
_WILD = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"\\x1b[?1049h\\x1b[?25l\\x1b[?1002h\\x1b[?1006h\\x1b[?1h\\x1b=\\x1b[?2004h\\x1b[31mwild")
sys.exit(int(os.read(0, 1)))
"""


def check_restored(window: Window) -> None:
    """The shell's terminal is as it was, and its screen too."""
    before, after = window.settings()
    assert before == after
    assert "icanon" in before.split()
    flags = ("alternate_on", "cursor_flag", "mouse_any_flag", "mouse_sgr_flag", "keypad_cursor_flag", "keypad_flag")
    assert [window.flag(name) for name in flags] == ["0", "1", "0", "0", "0", "0"]
    assert PROMPT in window.all_text, "what the shell's screen showed is in the scrollback"
    # The shell's line editor asks for bracketed pastes itself; a plain program must not get them.
    window.line("clear; cat -v")
    window.wait(lambda: "left with" not in window.text, "a clear screen")
    window.paste("pasted")
    window.keys("Enter")
    window.wait(lambda: window.lines.count("pasted") == 2 or "200~" in window.text, "the echo of a paste")
    assert "200~" not in window.text
    window.keys("C-c")


def attach_wild(agent: AgentProcess, window: Window) -> None:
    """Attach to a program that leaves everything switched."""
    window.attach(new(agent, *python(_WILD)))
    window.shows("wild")
    assert window.flag("alternate_on") == "1"
    assert window.flag("mouse_any_flag") == "1"


def test_restored_after_detaching(agent: AgentProcess, window: Window) -> None:
    attach_wild(agent, window)
    window.leave()
    check_restored(window)


def test_restored_after_the_programs_end(agent: AgentProcess, window: Window) -> None:
    attach_wild(agent, window)
    window.type("5")
    window.left(5)
    check_restored(window)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_restored_after_a_signal(agent: AgentProcess, window: Window, number: signal.Signals) -> None:
    attach_wild(agent, window)
    os.kill(window.client_pid(), number)
    window.left(128 + number)
    assert f"stopped by {number.name}" in window.text
    check_restored(window)


@pytest.mark.slow
def test_restored_after_the_agent_is_gone_for_good(tmp_path: Path) -> None:
    with dying_agent(tmp_path) as agent, running_tmux(tmp_path, agent.address) as tmux:
        window = tmux.window()
        window.line("alias ptymux='ptymux --give-up 1'")
        window.line("clear")
        attach_wild(agent, window)
        agent.die()
        window.shows("contact lost")
        window.left(255)
        assert "ptymux: contact with" in window.text
        assert "Traceback" not in window.text
        check_restored(window)


# --- losing contact -------------------------------------------------------------------------------
async def test_a_status_line_while_contact_is_lost(agent: AgentProcess, tmp_path: Path) -> None:
    """What it was written over is painted again, keys typed meanwhile are typed, and a short cut is not worth a line."""
    file = tmp_path / "file"
    async with cutting_proxy(agent.path, tmp_path, []) as proxy:
        with running_tmux(tmp_path, proxy.address) as tmux:
            window = await trio.to_thread.run_sync(tmux.window)
            session = await trio.to_thread.run_sync(lambda: new_vim(agent, file))
            window.attach(session)
            await window.until(lambda: window.lines[-1].startswith('"file" [New]'), "vim")
            window.line(":set noshowmode | echo 'the last' 'line'")
            await window.until(lambda: window.lines[-1] == "the last line", "vim's last line")
            before = window.lines
            proxy.cut_all()
            await window.until(lambda: proxy.connections == 2, "the next connection")
            window.keys("i", "Escape")
            proxy.refuse = True
            proxy.cut_all()
            await window.will_show("contact lost")
            assert window.lines[:-1] == before[:-1]
            assert window.lines[-1].strip() == "ptymux: contact lost, reconnecting; the detach key leaves"
            window.type("ityped meanwhile")
            window.keys("Escape")
            proxy.refuse = False
            await window.until(lambda: "contact lost" not in window.text, "the status line to go")
            await window.will_show("typed meanwhile")
            window.line(":x")
            await window.will_show("left with 0.")
            assert file.read_text() == "typed meanwhile\n"


async def test_the_program_paints_over_the_status_line(agent: AgentProcess, tmp_path: Path) -> None:
    """It covers the last line of a full screen, which comes back with contact."""
    lines = tmp_path / "lines"
    lines.write_text("".join(f"line {i:02}\n" for i in range(100)))
    async with cutting_proxy(agent.path, tmp_path, []) as proxy:
        with running_tmux(tmp_path, proxy.address) as tmux:
            window = await trio.to_thread.run_sync(tmux.window)
            window.attach(await trio.to_thread.run_sync(lambda: new(agent, "less", "-P", "the prompt", str(lines))))
            await window.until(lambda: window.lines[-1] == "the prompt", "less")
            before = window.lines
            proxy.refuse = True
            proxy.cut_all()
            await window.will_show("contact lost")
            proxy.refuse = False
            await window.until(lambda: window.lines == before, "the same screen")
            window.keys("q")
            await window.will_show("left with 0.")


async def test_leaving_while_contact_is_lost(agent: AgentProcess, tmp_path: Path) -> None:
    async with cutting_proxy(agent.path, tmp_path, []) as proxy:
        with running_tmux(tmp_path, proxy.address) as tmux:
            window = await trio.to_thread.run_sync(tmux.window)
            window.attach(await trio.to_thread.run_sync(lambda: new(agent, "sh", "-c", "echo ready; exec sleep 1000")))
            await window.will_show("ready")
            proxy.refuse = True
            proxy.cut_all()
            await window.will_show("contact lost")
            window.keys("C-]")
            await window.will_show("left with 0.")
            assert "contact lost" not in window.text
            proxy.refuse = False


def test_vim_lives_on_when_the_server_is_killed(agent: AgentProcess, window: Window, tmp_path: Path) -> None:
    file = tmp_path / "file"
    window.attach(new_vim(agent, file))
    window.shows('"file" [New]')
    window.type("ibefore, ")
    window.shows("before,")
    pid = agent.kill_server()
    assert agent.server_pid() != pid
    window.type("after")
    window.keys("Escape")
    window.line(":x")
    window.left(0)
    saved(file, "before, after\n")


# --- how it ends ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -2 $$", 130)])
def test_the_status_is_the_programs(agent: AgentProcess, window: Window, script: str, status: int) -> None:
    session = new(agent, "sh", "-c", f"echo ready; read x; {script}")
    window.attach(session)
    window.shows("ready")
    window.keys("Enter")
    window.left(status)
    how = f"status {status}" if status < 128 else f"signal {status - 128}"
    assert f"[ptymux: session {session} ended with {how}]" in window.text
    # And so it is for who comes later, with everything that was written.
    window.line("clear")
    window.shows_not("left with")
    window.attach(session)
    window.left(status)
    assert "ready" in window.text


def test_a_session_that_is_removed_is_no_success(agent: AgentProcess, window: Window) -> None:
    session = new(agent, "sh", "-c", "echo ready; exec sleep 1000")
    window.attach(session)
    window.shows("ready")
    subprocess.run(
        [sys.executable, "-m", "ptymux.cli", "--to", agent.address, "rm", "--force", session], check=True, timeout=20
    )
    window.left(1)
    assert "the session was removed" in window.text


def test_no_such_session(window: Window) -> None:
    window.attach("nobody")
    window.left(1)
    assert "ptymux: cannot inspect: no session 'nobody'" in window.text


# --- queries --------------------------------------------------------------------------------------
# Asks what terminals answer, then keeps what is typed in a file; asks again when "?" is typed.
_ASKER = """
import os, sys, tty
tty.setraw(0)
ask = b"\\x1b[c\\x1b[>c\\x1b[6n\\x1b]11;?\\x1b\\\\\\x1b[?2026$p\\x1bP$qm\\x1b\\\\"
os.write(1, b"before" + ask + b"after ready")
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        data = os.read(0, 1000)
        file.write(data)
        if b"?" in data:
            os.write(1, b"\\x1b[6n")
"""


def test_old_queries_are_not_answered(agent: AgentProcess, window: Window, tmux: Tmux, tmp_path: Path) -> None:
    """case C12: who attaches late is shown the queries of the history, and his terminal must not answer them."""
    typed = tmp_path / "typed"
    session = new(agent, *python(_ASKER, str(typed)))
    wait_for(lambda: inspect(agent, session)["offset"] > 0 and typed.exists(), "the program's queries")
    before = typed.read_bytes()
    window.attach(session)
    window.shows("beforeafter ready")
    window.type("x")
    wait_for(lambda: typed.read_bytes().endswith(b"x"), "the key")
    assert typed.read_bytes() == before + b"x"
    # The terminal does answer what is asked now, so it would have answered then.
    window.type("?")
    wait_for(lambda: typed.read_bytes().endswith(b"R"), "the answer")
    assert typed.read_bytes().startswith(before + b"x?\x1b[")
    answered = typed.read_bytes()
    # And again from another window, which is shown the new query as well.
    other = tmux.window()
    other.attach(session)
    other.shows("ready")
    other.type("y")
    wait_for(lambda: typed.read_bytes().endswith(b"y"), "the key")
    assert typed.read_bytes() == answered + b"y"


def test_the_programs_are_there() -> None:
    """None of these tests is left out for want of a program: `make apt` installs them."""
    assert [name for name in ("tmux", "vim", "less", "htop", "top", "bash") if shutil.which(name) is None] == []
