"""What a session starts with, and what is refused before anything starts."""

from __future__ import annotations

import os
import pwd
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ptymux import connect, limits
from ptymux.client import Agent
from ptymux.errors import RequestFailed
from ptymux.events import Marked
from tests.e2e.sessions import Gate, configured_agent, ended, following, output_of
from tests.harness import AgentProcess, clean_environment, ptymux, until

BOTH = pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipes"])


async def refused(agent: Agent, *argv: str, **arguments: Any) -> RequestFailed:
    """The answer to a creation that must fail; and the agent goes on as before."""
    with pytest.raises(RequestFailed) as caught:
        await agent.create(argv, **arguments)
    assert (await agent.info())["sessions"] == 0
    assert len(caught.value.message) <= 1100
    assert "\n" not in caught.value.message
    return caught.value


# --- programs ----------------------------------------------------------------------------------------------
@BOTH
async def test_programs_that_cannot_be_started(agent: AgentProcess, tmp_path: Path, tty: bool) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program\n")
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x7fELF and then nothing of the kind")
    noise.chmod(0o755)
    script = tmp_path / "script"
    script.write_text("#!/nonexistent/interpreter\n")
    script.chmod(0o755)
    cases = {
        "no-such-program": "cannot start no-such-program: not found in PATH",
        "/no/such/program": "cannot start /no/such/program: No such file or directory",
        "./no-such-program": "cannot start ./no-such-program: No such file or directory",
        "": "cannot start : not found in PATH",
        str(plain): f"cannot start {plain}: Permission denied",
        str(tmp_path): f"cannot start {tmp_path}: Permission denied",
        str(noise): f"cannot start {noise}: Exec format error",
        str(script): f"cannot start {script}: No such file or directory",
    }
    async with connect(agent.address) as client:
        for program, text in cases.items():
            error = await refused(client, program, tty=tty)
            assert (error.code, error.message) == ("spawn", f"cannot create: {text}")
        assert (await output_of(client, "echo", "still here", tty=tty)) == b"still here\n"


@BOTH
async def test_a_program_is_looked_for_from_the_sessions_folder_and_path(
    agent: AgentProcess, tmp_path: Path, tty: bool
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("here", "bin/there"):
        script = tmp_path / name
        script.write_text('#!/bin/sh\necho "$0" "$PWD" "$@"\n')
        script.chmod(0o755)
    async with connect(agent.address) as client:
        cwd = str(tmp_path)
        assert await output_of(client, "./here", "a b", cwd=cwd, tty=tty) == f"./here {cwd} a b\n".encode()
        assert await output_of(client, "bin/there", cwd=cwd, tty=tty) == f"bin/there {cwd}\n".encode()
        path = {"PATH": "bin:/usr/bin:/bin"}
        found = await output_of(client, "there", cwd=cwd, env=path, tty=tty)
        assert found == f"{cwd}/bin/there {cwd}\n".encode()


async def test_argv_0_is_what_was_asked_for(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        assert await output_of(client, "sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline; echo") == (
            b"sh -c tr '\\0' ' ' </proc/$$/cmdline; echo \n"
        )


async def test_the_default_is_a_login_shell(agent: AgentProcess) -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    async with connect(agent.address) as client:
        session = await client.create()
        async with following(session) as stream:
            await session.send(b"echo $0:$PWD:$HOME; exit 5\n")
            assert (await stream.to_exit()).code == 5
            assert f":{home}:{home}\r\n".encode() in stream.data
        assert (await session.inspect())["command"] == "(login shell)"


@BOTH
async def test_folders(agent: AgentProcess, tmp_path: Path, tty: bool) -> None:
    async with connect(agent.address) as client:
        assert await output_of(client, "pwd", cwd=str(tmp_path), tty=tty) == f"{tmp_path}\n".encode()
        error = await refused(client, "pwd", cwd="/nonexistent", tty=tty)
        assert error.message == "cannot create: cannot start pwd: folder /nonexistent: No such file or directory"
        error = await refused(client, "pwd", cwd="/etc/passwd", tty=tty)
        assert error.message == "cannot create: cannot start pwd: folder /etc/passwd: Not a directory"


def test_on_the_command_line_a_failed_start_is_one_line(agent: AgentProcess) -> None:
    for command, text in (
        (("exec", "--", "no-such-program"), "cannot create: cannot start no-such-program: not found in PATH"),
        (
            ("exec", "--cwd", "/nope", "--", "ls"),
            "cannot create: cannot start ls: folder /nope: No such file or directory",
        ),
        (("new", "--user", "nobody-here", "--", "ls"), "cannot create: cannot start: there is no user 'nobody-here'"),
        (("new", "--size", "0x0", "--", "ls"), "cannot create: columns must be from 2 to 1000"),
    ):
        done = ptymux(agent.address, *command)
        assert (done.stdout, done.stderr.decode()) == (b"", f"ptymux: {text}\n")
        assert done.returncode == 1


# --- users --------------------------------------------------------------------------------------------------
@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start sessions as somebody else")


@pytest.mark.usefixtures("as_root")
@BOTH
async def test_another_user(agent: AgentProcess, tty: bool) -> None:
    """Who it is, where it is at home, and that its terminal or pipes are its own."""
    script = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; pwd; umask"
    async with connect(agent.address) as client:
        lines = (await output_of(client, "sh", "-c", script, user="nobody", tty=tty)).decode().splitlines()
        assert lines == ["65534", "65534", "65534", "/nonexistent nobody nobody", "/", "0022"]
        script = "stat -L -c %u /dev/fd/0 /dev/fd/1 /dev/fd/2; echo again >/dev/stdout" + (
            "; echo tty >/dev/tty" if tty else ""
        )
        lines = (await output_of(client, "sh", "-c", script, user="nobody", tty=tty)).decode().splitlines()
        assert lines == ["65534"] * 3 + ["again"] + ["tty"] * tty
        session = await client.create(["sleep", "1000"], user="nobody", tty=tty)
        await session.signal("TERM")
        assert (await ended(session))["exit"]["signal"] == 15


@pytest.mark.usefixtures("as_root")
async def test_a_folder_that_the_user_may_not_enter(agent: AgentProcess, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    async with connect(agent.address) as client:
        error = await refused(client, "ls", cwd=str(closed), user="nobody")
        assert error.message == f"cannot create: cannot start ls: folder {closed}: Permission denied"


async def test_a_user_that_does_not_exist(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        error = await refused(client, "ls", user="nobody-here")
        assert (error.code, error.message) == ("spawn", "cannot create: cannot start: there is no user 'nobody-here'")


# --- environment ----------------------------------------------------------------------------------------------
async def test_the_environment_is_made_and_not_inherited(tmp_path: Path) -> None:
    configuration = '[sessions]\nterm = "vt220"\nenv = { EDITOR = "vim", BOTH = "configured" }\n'
    environment = clean_environment(SECRET="of the agent", LD_PRELOAD="", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    with configured_agent(tmp_path, configuration, environment=environment) as agent:
        async with connect(agent.address) as client:
            session = await client.create(["env", "-0"], env={"BOTH": "asked for", "EMPTY": "", "G": "\u00fc=\n1"})
            async with following(session) as stream:
                await stream.to_exit()
            found = dict(
                line.split("=", 1) for line in bytes(stream.data).replace(b"\r\n", b"\n").decode().split("\0") if line
            )
            assert found == {
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": pwd.getpwuid(os.geteuid()).pw_dir,
                "USER": "root",
                "LOGNAME": "root",
                "SHELL": found["SHELL"],
                "LANG": "C.UTF-8",
                "TERM": "vt220",
                "EDITOR": "vim",
                "BOTH": "asked for",
                "EMPTY": "",
                "G": "\u00fc=\n1",
                "GUESTAGENT_SESSION": session.id,
            }
            assert b"TERM=xterm\n" in await output_of(client, "env", term="xterm")
            assert b"TERM=" not in await output_of(client, "env", tty=False)


async def test_open_files_are_limited_as_for_the_agent_itself(tmp_path: Path) -> None:
    """The agent raises its own limit; its children have the one that it was started with."""
    limit = ("sh", "-c", 'ulimit -S -n 256 && exec "$@"', "sh")
    with configured_agent(tmp_path, "", before=limit) as agent:
        async with connect(agent.address) as client:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            for tty in (True, False):
                assert (
                    await output_of(client, "bash", "-c", "ulimit -S -n; ulimit -H -n", tty=tty) == b"256\n%d\n" % hard
                )


# --- sizes ----------------------------------------------------------------------------------------------------
async def test_c46_the_size_is_there_from_the_start(agent: AgentProcess) -> None:
    """Case C46: the program's very first look finds it."""
    async with connect(agent.address) as client:
        for columns, rows in ((101, 37), (2, 1), (1000, 1000)):
            assert await output_of(client, "stty", "size", size=(columns, rows)) == b"%d %d\n" % (rows, columns)
        assert await output_of(client, "stty", "size") == b"24 80\n"
    assert ptymux(agent.address, "exec", "--size", "101x37", "--", "stty", "size").stdout == b"37 101\r\n"


SIZES = [(0, 0), (0, 24), (80, 0), (1, 24), (1001, 24), (80, 1001), (-1, 24), (80, -1), (1 << 40, 24)]


@pytest.mark.parametrize("size", SIZES)
async def test_c46_sizes_that_no_terminal_has(agent: AgentProcess, size: tuple[int, int]) -> None:
    async with connect(agent.address) as client:
        assert (await refused(client, "ls", size=size)).code == "bad_params"
        session = await client.create(["sleep", "1000"])
        for ask in (lambda: session.resize(*size), lambda: session.attach(size=size).__aenter__()):
            with pytest.raises(RequestFailed) as caught:
                await ask()
            assert caught.value.code == "bad_params"
        assert (await session.inspect())["size"] == [80, 24]


async def test_c47_a_resize_is_a_mark_in_the_stream(agent: AgentProcess) -> None:
    """Case C47: between the bytes before it and those after it."""
    script = "stty -echo; echo up; while read line; do stty size; done"
    async with connect(agent.address) as client:
        session = await client.create(["sh", "-c", script])
        async with following(session) as stream:
            await stream.until(b"up\r\n")
            await session.resize(100, 30)
            mark = await stream.event(Marked)
            assert (mark.kind, mark.data, mark.offset) == ("resize", {"columns": 100, "rows": 30}, 4)
            await session.send(b"\n")
            await stream.until(b"30 100\r\n")
            await session.resize(100, 30)  # no change, no mark
            await session.resize(90, 30)
            mark = await stream.event(Marked)
            assert (mark.data, mark.offset) == ({"columns": 90, "rows": 30}, 12)
            await session.send(b"\n")
            await stream.until(b"30 90\r\n")
        async with following(session) as again:
            await again.until(b"30 90\r\n")
            assert [event.data["columns"] for event in again.events if isinstance(event, Marked)] == [100, 90]


async def test_c47_what_was_written_before_a_resize_comes_before_its_mark(agent: AgentProcess, tmp_path: Path) -> None:
    """Also what the agent had not read by then: here it was stopped meanwhile."""
    async with connect(agent.address) as client:
        for number in range(6):  # which of the two it looks at first when it wakes is a matter of chance
            gate, done = Gate(tmp_path / f"gate{number}"), tmp_path / f"done{number}"
            script = f"echo up; {gate.wait}; printf %3000d 0; touch {done}; cat"
            session = await client.create(["bash", "-c", script])
            async with following(session) as stream:
                await stream.until(b"up\r\n")
                server = agent.server_pid()
                os.kill(server, signal.SIGSTOP)
                try:
                    await gate.open()
                    await until(done.exists, "the program to have written")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(session.resize, 100, 30)
                        await trio.testing.wait_all_tasks_blocked()
                        os.kill(server, signal.SIGCONT)
                finally:
                    os.kill(server, signal.SIGCONT)
                assert (await stream.event(Marked)).offset == 4 + 3000
            await session.remove(force=True)


async def test_c47_the_program_hears_of_a_resize_after_its_mark(agent: AgentProcess) -> None:
    """So whatever it writes because of it has the size that was asked for."""
    async with connect(agent.address) as client:
        session = await client.create(["bash", "-c", "trap 'stty size' WINCH; echo up; while :; do sleep 0.02; done"])
        async with following(session) as stream:
            await stream.until(b"up\r\n")
            await session.resize(100, 30)
            await stream.until(b"30 100\r\n")
        [mark] = [event for event in stream.events if isinstance(event, Marked)]
        assert mark.offset == 4


async def test_c45_who_only_looks_never_resizes(tmp_path: Path) -> None:
    """Case C45: neither a viewer nor a controller that attached to view."""
    (tmp_path / "tokens").write_text("viewer look\ncontroller type\nadmin rule\n")
    with configured_agent(tmp_path, "", "--token-file", str(tmp_path / "tokens")) as agent:
        async with (
            connect(agent.address, token="rule") as admin,
            connect(agent.address, token="look") as viewer,
            connect(agent.address, token="type") as controller,
        ):
            session = await admin.create(["sh", "-c", "trap 'echo resized' WINCH; echo up; cat"])
            async with following(session) as stream:
                await stream.until(b"up\r\n")
                with pytest.raises(RequestFailed) as caught:
                    await viewer.session(session.id).resize(100, 30)
                assert caught.value.code == "forbidden"
                for client, arguments in ((viewer, {}), (viewer, {"view": True}), (controller, {"view": True})):
                    async with client.session(session.id).attach(size=(100, 30), **arguments) as attach:
                        assert attach.answer["view"] is True
                        assert attach.answer["size"] == [80, 24]
                assert (await session.inspect())["size"] == [80, 24]
                async with controller.session(session.id).attach(size=(90, 20)) as attach:
                    assert attach.answer["size"] == [90, 20]
                    row = await session.inspect()
                    assert (row["size"], row["size_owner"]) == ([90, 20], controller.client_id.hex())
                    async with viewer.session(session.id).attach(size=(100, 30)):
                        assert (await session.inspect())["size_owner"] == controller.client_id.hex()
                mark = await stream.event(Marked)
                assert mark.data == {"columns": 90, "rows": 20}
                assert b"resized" not in stream.data[: mark.offset]


async def test_who_types_owns_the_size(agent: AgentProcess) -> None:
    async with connect(agent.address) as one, connect(agent.address) as other:
        session = await one.create(["cat"])
        async with session.attach(size=(90, 20)), other.session(session.id).attach(size=(70, 50)) as second:
            assert second.answer["size"] == [70, 50]
            await session.send(b"x\n")
            row = await session.inspect()
            assert (row["size"], row["size_owner"]) == ([90, 20], one.client_id.hex())
            await other.session(session.id).send(b"y\n")
            assert (await session.inspect())["size"] == [70, 50]
        await other.info()  # the agent takes what a connection asks in order, so its detach is done
        assert (await session.inspect())["size_owner"] is None


async def test_pipes_have_no_size(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        session = await client.create(["cat"], tty=False)
        assert (await session.inspect())["size"] is None
        with pytest.raises(RequestFailed) as caught:
            await session.resize(100, 30)
        assert caught.value.code == "state"


async def test_an_ended_session_is_not_resized(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        session = await client.create(["true"], size=(70, 20))
        await ended(session)
        with pytest.raises(RequestFailed) as caught:
            await session.resize(100, 30)
        assert caught.value.code == "exited"
        assert (await session.inspect())["size"] == [70, 20]


# --- names and labels --------------------------------------------------------------------------------------------
async def test_names(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        long = "n" * limits.MAX_NAME
        session = await client.create(["cat"], name=long, label="l" * limits.MAX_LABEL)
        assert (await client.find(long)).id == (await client.find(session.id)).id == session.id
        row = await session.inspect()
        assert (row["name"], row["label"]) == (long, "l" * limits.MAX_LABEL)
        for name in (long, session.id):  # a name that is another's id would hide it
            with pytest.raises(RequestFailed) as caught:
                await client.create(["cat"], name=name)
            assert (caught.value.code, caught.value.message) == (
                "exists",
                f"cannot create: there is a session {name!r}",
            )
        with pytest.raises(RequestFailed) as caught:
            await client.create(["cat"], name=long + "n")
        assert (caught.value.code, caught.value.details) == ("limit", {"limit": "max_name", "value": 64})
        with pytest.raises(RequestFailed) as caught:
            await client.create(["cat"], label="l" * (limits.MAX_LABEL + 1))
        assert (caught.value.code, caught.value.details) == ("limit", {"limit": "max_label", "value": 1024})
        await session.remove(force=True)
        await client.create(["cat"], name=long)
        with pytest.raises(RequestFailed) as caught:
            await client.find("somebody else")
        assert (caught.value.code, caught.value.message) == ("not_found", "cannot inspect: no session 'somebody else'")


async def test_a_name_is_taken_from_the_moment_it_is_asked_for(agent: AgentProcess) -> None:
    """Ten that ask at once: one gets it."""
    async with connect(agent.address) as client:
        answers: list[str] = []

        async def ask() -> None:
            try:
                await client.create(["cat"], name="mine")
            except RequestFailed as error:
                answers.append(error.code)
            else:
                answers.append("ok")

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask)
        assert sorted(answers) == ["exists"] * 9 + ["ok"]
        assert len(await client.sessions()) == 1
        with pytest.raises(RequestFailed):
            await client.create(["/nonexistent"], name="free")
        await client.create(["cat"], name="free")  # a start that failed gives its name back


async def test_a_label_can_be_changed_and_outlives_the_server(agent: AgentProcess) -> None:
    async with connect(agent.address, wait=5) as client:
        session = await client.create(["cat"], name="n", label="first")
        await client.request("label", {"session": "n", "label": "second"})
        agent.kill_server()
        row = await session.inspect()
        assert (row["name"], row["label"]) == ("n", "second")
        with pytest.raises(RequestFailed) as caught:
            await client.request("label", {"session": "n", "label": "x" * 1025})
        assert caught.value.details == {"limit": "max_label", "value": 1024}


# --- arguments that try the agent ------------------------------------------------------------------------------------
async def test_long_command_lines(agent: AgentProcess) -> None:
    """To the limit they arrive whole; the keeper, which has to carry them, is not impressed."""
    async with connect(agent.address) as client:
        overhead = len("sh") + 1 + len("-c") + 1 + 1 + len("TERM") + 1 + len("xterm-256color") + 1
        script = "echo ${#0} #"
        script += "x" * (limits.MAX_ARGV - overhead - len(script))
        session = await client.create(["sh", "-c", script])
        async with following(session) as stream:
            assert (await stream.to_exit()).code == 0
        assert bytes(stream.data) == b"2\r\n"
        row = await session.inspect()
        assert row["command"] == f"sh -c {script}"[:200]
        assert sum(map(len, row["argv"])) <= 4200  # as much as is worth looking at
        many = await client.create(["sh", "-c", "echo $#", *["y" * 31] * ((limits.MAX_ARGV - 200) // 32)])
        async with following(many) as stream:
            await stream.to_exit()
        assert bytes(stream.data) == b"%d\r\n" % ((limits.MAX_ARGV - 200) // 32 - 1)
        with pytest.raises(RequestFailed) as caught:
            await client.create(["sh", "-c", script + "x"])
        assert (caught.value.code, caught.value.details) == ("limit", {"limit": "max_argv", "value": limits.MAX_ARGV})
        await session.remove()
        await many.remove()
        await refused(client, "/" + "z" * 120_000)
        await refused(client, "z" * 120_000)
        agent.kill_server()  # what the keeper remembers of all this reaches the next server
        assert await output_of(client, "echo", "fine") == b"fine\n"


@BOTH
async def test_texts_with_nul(agent: AgentProcess, tty: bool) -> None:
    """Wherever they are: an error, and the keeper lives."""
    async with connect(agent.address) as client:
        cases: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            (("ls", "a\0b"), {}),
            (("l\0s",), {}),
            (("ls",), {"cwd": "a\0b"}),
            (("ls",), {"cwd": "a\0b", "env": {"PATH": "bin"}}),
            (("ls",), {"user": "a\0b"}),
            (("ls",), {"env": {"A": "a\0b"}}),
            (("ls",), {"env": {"A\0B": "a"}}),
            (("ls",), {"env": {"A=B": "a"}}),
            (("ls",), {"env": {"": "a"}}),
        ]
        if tty:
            cases.append((("ls",), {"term": "a\0b"}))
        for argv, arguments in cases:
            assert (await refused(client, *argv, tty=tty, **arguments)).code in ("bad_params", "spawn")
        assert await output_of(client, "echo", "fine", tty=tty) == b"fine\n"


@pytest.mark.parametrize(
    "params",
    [
        {"argv": "ls"},
        {"argv": [1]},
        {"argv": [b"ls"]},
        {"argv": ["ls"], "env": ["A=B"]},
        {"argv": ["ls"], "env": {"A": 1}},
        {"argv": ["ls"], "size": [80]},
        {"argv": ["ls"], "size": [80.0, 24.0]},
        {"argv": ["ls"], "size": ["80", "24"]},
        {"argv": ["ls"], "size": "80x24"},
        {"argv": ["ls"], "tty": 1},
        {"argv": ["ls"], "policy": "never"},
        {"argv": ["ls"], "history": 1000},
        {"argv": ["ls"], "history": 1 << 40},
        {"argv": ["ls"], "history": "4M"},
        {"argv": ["ls"], "name": 3},
        {"argv": ["ls"], "name": "two\nlines"},
        {"argv": ["ls"], "cwd": 3},
        {"argv": ["ls"], "user": 0},
    ],
)
async def test_parameters_of_the_wrong_kind(agent: AgentProcess, params: dict[str, Any]) -> None:
    async with connect(agent.address) as client:
        with pytest.raises(RequestFailed) as caught:
            await client.request("create", params)
        assert caught.value.code == "bad_params"
        wrong = list(params)[-1]
        assert wrong in caught.value.message or "columns" in caught.value.message
        assert (await client.info())["sessions"] == 0


async def test_history_sizes(agent: AgentProcess) -> None:
    async with connect(agent.address) as client:
        for size in (limits.MIN_HISTORY, 100_000, 1 << 30):
            session = await client.create(["cat"], history=size)
            assert (await session.inspect())["streams"]["stdout"]["size"] == size
            await session.remove(force=True)
