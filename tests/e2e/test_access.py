"""Who may come in, what each may do, and what nobody may: roles, tokens, strangers, limits, silence."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ptymux import connect, contact, limits
from ptymux import messages as m
from ptymux.client import Agent
from ptymux.errors import ConnectionLost, HandshakeRefused, InputRefused, RequestFailed
from ptymux.frames import Decoder
from ptymux.messages import CLIENT, encode
from tests.e2e.raw import RawClient
from tests.e2e.sessions import alive, configured_agent, descendants, eventually, following, output_of
from tests.harness import AgentProcess, clean_environment, ptymux, ptymux_argv, running_agent, until, wait_for

SECRET = "correct-horse-battery-staple"
TOKENS = f"# for the tests\nviewer look-{SECRET}\ncontroller type-{SECRET}\nadmin rule-{SECRET}\n"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(TOKENS)
    return file


@pytest.fixture
def guarded(tmp_path: Path, tokens: Path) -> Iterator[AgentProcess]:
    """An agent that wants tokens."""
    with running_agent(tmp_path, "--token-file", str(tokens)) as agent:
        yield agent


def token(role: str) -> str:
    return {"viewer": "look-", "controller": "type-", "admin": "rule-"}[role] + SECRET


# --- roles ---------------------------------------------------------------------------------------------------
ALLOWED = {
    "viewer": {"info", "stats", "list", "inspect", "attach", "detach"},
    "controller": {"info", "stats", "list", "inspect", "attach", "detach", "resize", "signal"},
    "admin": {
        "info",
        "stats",
        "list",
        "inspect",
        "attach",
        "detach",
        "resize",
        "signal",
        "create",
        "label",
        "kill",
        "remove",
    },
}


@pytest.mark.parametrize("role", list(ALLOWED))
async def test_what_each_role_may(guarded: AgentProcess, role: str) -> None:
    """Every method once, as each role; what is forbidden has no effect."""
    async with (
        connect(guarded.address, token=token("admin")) as admin,
        connect(guarded.address, token=token(role)) as client,
    ):
        assert client.role == role
        session = await admin.create(["sh", "-c", "trap 'echo got it' TERM; echo up; while :; do sleep 0.02; done"])
        async with following(session) as stream:
            await stream.until(b"up\r\n")
        params: dict[str, dict[str, Any]] = {
            "attach": {"session": session.id, "channel": 1000},
            "detach": {"channel": 1000},
            "inspect": {"session": session.id},
            "resize": {"session": session.id, "columns": 70, "rows": 20},
            "signal": {"session": session.id, "signal": "WINCH"},
            "label": {"session": session.id, "label": "labelled"},
            "create": {"argv": ["cat"], "name": "created"},
            "kill": {"session": session.id},
            "remove": {"session": session.id, "force": True},
        }
        for method in ("info", "stats", "list", *params):
            try:
                await client.request(method, params.get(method, {}))
            except RequestFailed as error:
                needed = "controller" if method in ALLOWED["controller"] else "admin"
                answer = (error.code, error.message)
                assert answer == ("forbidden", f"cannot {method}: the role is {role}, {needed} is needed"), method
                assert method not in ALLOWED[role]
            else:
                assert method in ALLOWED[role], method
        rows = await admin.sessions()
        if role == "admin":
            assert [row["name"] for row in rows] == ["created"]
        else:
            assert [(row["name"], row["label"], row["state"]) for row in rows] == [(None, "", "running")]
            assert rows[0]["size"] == ([70, 20] if role == "controller" else [80, 24])
            with pytest.raises(RequestFailed, match="admin is needed"):
                await client.request("upgrade")


async def test_a_viewer_does_not_type(guarded: AgentProcess) -> None:
    async with (
        connect(guarded.address, token=token("admin")) as admin,
        connect(guarded.address, token=token("viewer")) as viewer,
        connect(guarded.address, token=token("controller")) as controller,
    ):
        session = await admin.create(["cat"])
        async with following(viewer.session(session.id)) as stream:
            with pytest.raises(InputRefused) as caught:
                await viewer.session(session.id).send(b"from the viewer\n")
            assert (caught.value.code, str(caught.value)) == ("forbidden", "cannot type: the role is viewer")
            viewer.session(session.id).end_input()
            await controller.session(session.id).send(b"from the controller\n")
            assert await stream.until(b"\r\n", count=2) == b"from the controller\r\n" * 2
            assert (await session.inspect())["input_bytes"] == len(b"from the controller\n")


async def test_a_viewer_slows_nothing(guarded: AgentProcess) -> None:
    """Case C21: it attaches, reads nothing, and the program runs on."""
    async with (
        connect(guarded.address, token=token("admin")) as admin,
        connect(guarded.address, token=token("viewer")) as viewer,
    ):
        async with contextlib.AsyncExitStack() as stack:
            session = await admin.create(["sh", "-c", "read go; head -c 3000000 /dev/zero; exit 3"])
            await stack.enter_async_context(viewer.session(session.id).attach(window=1000))
            await session.send(b"\n")
            await eventually(session.inspect, lambda row: row["state"] == "exited", "its end")
        assert (await admin.stats())["stalls"] == 0


async def test_a_listener_may_grant_less_than_the_token(tmp_path: Path, tokens: Path) -> None:
    with configured_agent(tmp_path, '[listen.unix]\nrole = "controller"\n', "--token-file", str(tokens)) as agent:
        async with connect(agent.address, token=token("admin")) as client:
            assert client.role == "controller"
        async with connect(agent.address, token=token("viewer")) as client:
            assert client.role == "viewer"


async def test_a_trusted_listener_may_go_without_tokens(tmp_path: Path, tokens: Path) -> None:
    configuration = '[listen.unix]\ntoken = false\nrole = "viewer"\n'
    with configured_agent(tmp_path, configuration, "--token-file", str(tokens)) as agent:
        async with connect(agent.address) as client:
            assert client.role == "viewer"
        with pytest.raises(HandshakeRefused):  # but a token that is wrong is wrong
            async with connect(agent.address, token="wrong"):
                pass


# --- tokens --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("given", [None, "wrong", SECRET, "admin rule-" + SECRET, "x" * limits.MAX_TOKEN])
def test_a_wrong_token_is_one_line_and_255(guarded: AgentProcess, tmp_path: Path, given: str | None) -> None:
    options: tuple[str, ...] = ()
    if given is not None:
        (tmp_path / "given").write_text(given.split()[-1].removeprefix("rule-") + "\n")
        options = ("--token-file", str(tmp_path / "given"))
    done = ptymux(guarded.address, *options, "ls")
    assert (done.returncode, done.stdout) == (255, b"")
    assert done.stderr == b"ptymux: cannot connect: the token is missing or wrong\n"


async def test_a_wrong_token_is_not_tried_again(guarded: AgentProcess) -> None:
    before = guarded.log().count("closing the connection")
    with pytest.raises(HandshakeRefused) as caught:
        async with connect(guarded.address, token="wrong", wait=10):
            pass
    assert caught.value.code == "unauthorized"
    wait_for(lambda: guarded.log().count("closing the connection") == before + 1, "the log to say it")


def search(pid: int, text: str) -> list[str]:
    """Where in the environments and command lines of a process tree a text is."""
    found = []
    for process in descendants(pid):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                if text.encode() in Path(f"/proc/{process}/{name}").read_bytes():
                    found.append(f"/proc/{process}/{name}")
    return found


async def test_no_token_is_seen_anywhere(guarded: AgentProcess, tmp_path: Path) -> None:
    """Not in an environment, not on a command line, not in a log; not of the agent, of its sessions, or of the client."""
    async with connect(guarded.address, token=token("admin")) as client:
        session = await client.create(["sh", "-c", "sleep 1000 & sleep 1000"])
        leader = (await session.inspect())["pid"]
        await until(lambda: len(descendants(leader)) == 3, "the session's children")
        assert len(descendants(guarded.keeper_pid)) >= 5
        assert search(guarded.keeper_pid, SECRET) == []
        assert SECRET.encode() not in await output_of(client, "env")
        argv = ptymux_argv(guarded.address, "--token-file", str(tmp_path / "tokens"), "read", "--follow", session.id)
        reader = await trio.lowlevel.open_process(argv, env=clean_environment())
        await eventually(session.inspect, lambda row: row["attached"] == 1, "it to read")
        assert search(reader.pid, SECRET) == []
        reader.kill()
        await reader.wait()
    with pytest.raises(HandshakeRefused):
        async with connect(guarded.address, token=f"{SECRET}-wrong"):
            pass
    assert SECRET not in guarded.log()


def feed_tokens(text: str) -> int:
    """A pipe with tokens in it."""
    source, target = os.pipe()
    os.write(target, text.encode())
    os.close(target)
    return source


async def test_tokens_from_a_descriptor(tmp_path: Path) -> None:
    """They can be read only once; the next server has them all the same, and no child has the descriptor."""
    source = feed_tokens(TOKENS)
    try:
        agent = AgentProcess(tmp_path, "--token-file", f"fd:{source}", pass_fds=(source,))
    finally:
        os.close(source)
    try:
        async with connect(agent.address, token=token("controller"), wait=10) as client:
            assert client.role == "controller"
            for _ in range(2):
                agent.kill_server()
                before = client.connections
                await until(lambda before=before: client.connections > before, "the next server")
                assert client.role == "controller"
        with pytest.raises(HandshakeRefused):
            async with connect(agent.address, token="wrong"):
                pass
        async with connect(agent.address, token=token("admin")) as client:
            files = await output_of(client, "ls", "/proc/self/fd")
            assert files.split() == [b"0", b"1", b"2", b"3"]  # 3 is of `ls` itself
        assert search(agent.keeper_pid, SECRET) == []
        assert SECRET not in agent.log()
    finally:
        agent.stop()


# --- strangers ----------------------------------------------------------------------------------------------------
def test_a_stranger_who_says_nothing_is_shown_out(tmp_path: Path, tokens: Path) -> None:
    """After greeting_time, in words; the same for half a hello, and where a WebSocket handshake should have come."""
    configuration = '[limits]\ngreeting_time = 0.5\n[listen.websocket]\naddress = "127.0.0.1:0"\n'
    with configured_agent(tmp_path, configuration, "--token-file", str(tokens)) as agent:
        with RawClient(agent) as silent, RawClient(agent) as slow:
            start = time.monotonic()
            slow.socket.sendall(encode(m.Hello(m.MAGIC, [1, 1], b"c" * 16, None, b"n" * 16))[:20])
            for each in (silent, slow):
                [error] = each.rest()
                assert (error.code, error.fatal) == ("limit", True)
                assert error.message == "cannot connect: no hello within greeting_time (0.5 s)"
                assert error.details == {"limit": "greeting_time", "value": 0.5}
            assert 0.4 < time.monotonic() - start < 10
        with socket.create_connection(("127.0.0.1", agent.websocket_port()), timeout=20) as mute:
            assert mute.recv(1000) == b""
        with RawClient(agent) as client:
            assert isinstance(client.hello(token("admin").encode()), m.Welcome)
            time.sleep(1.0)  # what is looked at is that nothing happens to one who has said hello
            assert isinstance(client.request("info"), m.Response)


def test_strangers_do_not_keep_clients_out(tmp_path: Path) -> None:
    """More silent connections than there may be: each new one shows the longest silent one out."""
    with contextlib.ExitStack() as stack:
        configuration = "[limits]\nmax_connections = 4\ngreeting_time = 60.0\n"
        agent = stack.enter_context(configured_agent(tmp_path, configuration))
        silent = [stack.enter_context(RawClient(agent)) for _ in range(50)]
        client = stack.enter_context(RawClient(agent))
        assert isinstance(client.hello(), m.Welcome)
        stats = client.request("stats")
        assert isinstance(stats, m.Response)
        assert stats.result["strangers"] == 3
        [error] = silent[0].rest()
        assert error.message == "cannot connect: max_connections (4) others have not said hello either"
        assert isinstance(silent[-1].hello(), m.Welcome)


@pytest.mark.slow
def test_a_flood_of_strangers_at_the_default_limits(agent: AgentProcess) -> None:
    """More than all that the listener keeps open at a time: a client gets in all the same."""
    with contextlib.ExitStack() as stack:
        for _ in range(800):
            stack.enter_context(RawClient(agent))
        done = ptymux(agent.address, "--wait", "10", "info", "--json")
        assert (done.returncode, done.stderr) == (0, b"")


# --- limits ---------------------------------------------------------------------------------------------------------
async def test_max_connections(tmp_path: Path) -> None:
    """One too many is told so, on the command line too, and comes in when there is room."""
    with configured_agent(tmp_path, "[limits]\nmax_connections = 2\n") as agent:
        async with connect(agent.address) as one:
            async with connect(agent.address) as two:
                assert two.limits["max_connections"] == 2
                with pytest.raises(ConnectionLost, match=r"max_connections \(2\) is reached"):
                    async with connect(agent.address):
                        pass
                done = await trio.to_thread.run_sync(lambda: ptymux(agent.address, "--wait", "0.2", "ls"))
                assert (done.returncode, done.stdout) == (255, b"")
                assert done.stderr == b"ptymux: cannot connect: max_connections (2) is reached\n"
                waiting = await trio.lowlevel.open_process(
                    ptymux_argv(agent.address, "--wait", "20", "info"),
                    stdout=subprocess.DEVNULL,
                    env=clean_environment(),
                )
                assert await one.info()
            assert await waiting.wait() == 0


async def test_max_sessions(tmp_path: Path) -> None:
    with configured_agent(tmp_path, "[limits]\nmax_sessions = 3\n") as agent:
        async with connect(agent.address) as client:
            answers: list[str] = []

            async def ask() -> None:
                try:
                    await client.create(["cat"])
                except RequestFailed as error:
                    answers.append(f"{error} {error.details}")
                else:
                    answers.append("ok")

            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(ask)
            text = "cannot create: 3 sessions are there (max_sessions) {'limit': 'max_sessions', 'value': 3}"
            assert sorted(answers) == [text] * 5 + ["ok"] * 3
            rows = await client.sessions()
            await client.session(rows[0]["id"]).remove(force=True)
            await client.create(["cat"])


OVERSIZED = m.LENGTH.pack(limits.MAX_GREETING + 1) + b"x" * 100
BROKEN = {
    "an oversized hello": (False, OVERSIZED, "malformed frame: length 4097 exceeds max_greeting (4096)"),
    "an HTTP request": (
        False,
        b"GET / HTTP/1.1\r\n\r\n",
        "malformed frame: length 1195725856 exceeds max_greeting (4096)",
    ),
    "an oversized frame": (
        True,
        m.LENGTH.pack(limits.MAX_FRAME + 1),
        "malformed frame: length 1048577 exceeds max_frame (1048576)",
    ),
    "an empty frame": (True, m.LENGTH.pack(0), "malformed frame: length 0"),
    "a frame of zeros": (True, m.LENGTH.pack(1) + b"\0", "malformed frame: not a non-empty array"),
    "a request with a bad key": (
        True,
        m.LENGTH.pack(12) + b"\x95\x06\x01\xa4list\x80\xc4\x01k",
        "malformed Request: key must be 16 bytes or nil",
    ),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_what_breaks_the_protocol(agent: AgentProcess, case: str) -> None:
    """One error that names it, the connection is closed, and nobody else notices."""
    greeted, data, text = BROKEN[case]
    with RawClient(agent) as other, RawClient(agent) as client:
        other.hello()
        if greeted:
            client.hello()
        client.socket.sendall(data)
        [error] = client.rest()
        assert error == m.Error("malformed", text, True, {})
        stats = other.request("stats")
        assert isinstance(stats, m.Response)
        assert (stats.result["protocol_errors"], stats.result["connections"]) == (1, 1)


def test_requests_in_flight(agent: AgentProcess) -> None:
    """More than max_requests creations that are under way at a time."""
    with RawClient(agent) as client, RawClient(agent) as other:
        client.hello()
        many = limits.MAX_REQUESTS + 1
        client.send(*[m.Request(number, "create", {"argv": ["true"]}) for number in range(many)])
        found = client.rest()
        assert found[-1].message == "malformed Request: more than max_requests (64) in flight"
        other.hello()
        assert isinstance(other.request("info"), m.Response)


def test_an_unknown_method_and_an_unknown_frame(agent: AgentProcess) -> None:
    with RawClient(agent) as client:
        client.hello()
        answer = client.request("teleport")
        assert answer == m.Failure(1, "unknown_method", "there is no method teleport", {})
        client.socket.sendall(m.LENGTH.pack(2) + b"\x91\x77")
        error = client.next()
        assert (error.code, error.fatal, error.details) == ("unknown_frame", False, {"type": 0x77})
        assert isinstance(client.request("info"), m.Response)


def test_who_asks_and_does_not_listen(agent: AgentProcess) -> None:
    """Its questions are not read any more; nobody's memory fills, and others are served."""
    with RawClient(agent) as deaf, RawClient(agent) as other:
        deaf.hello()
        other.hello()
        server = agent.server_pid()
        before = resident(server)
        question = b"".join(encode(m.Request(number, "info", {})) for number in range(1000))
        deaf.socket.setblocking(False)
        sent, since = 0, time.monotonic()
        while time.monotonic() - since < 1.0 and sent < 50_000_000:  # until it has taken nothing for a second
            try:
                sent += deaf.socket.send(question[sent % len(question) :])
                since = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        start = time.monotonic()
        assert isinstance(other.request("list"), m.Response)
        assert time.monotonic() - start < 1.0
        assert sent < 5_000_000
        assert resident(server) - before < 8_000_000


def resident(pid: int) -> int:
    """Bytes of memory that a process has, shared pages included."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_client_that_asks_a_lot_gets_all_its_answers(agent: AgentProcess) -> None:
    """Megabytes of answers to questions that come in one piece."""
    async with connect(agent.address) as client:
        sessions = [await client.create(["cat"], label="l" * limits.MAX_LABEL) for _ in range(40)]
        answers: list[int] = []

        async def ask(client: Agent) -> None:
            answers.append(len(await client.sessions()))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(ask, client)
        assert answers == [len(sessions)] * 200
        assert client.connections == 1


# --- the newest connection wins ---------------------------------------------------------------------------------------
def test_c31_a_new_connection_replaces_the_old_one_at_once(agent: AgentProcess) -> None:
    """Case C31: the client came back, and its dead connection holds nothing."""
    with RawClient(agent, b"c" * 16) as old, RawClient(agent, b"c" * 16) as new:
        assert isinstance(old.hello(), m.Welcome)
        answer = old.request("create", argv=["cat"])
        assert isinstance(answer, m.Response)
        session = answer.result["id"]
        assert isinstance(old.request("attach", session=session, channel=0, size=[90, 20]), m.Response)
        start = time.monotonic()
        assert isinstance(new.hello(), m.Welcome)
        assert isinstance(new.request("attach", session=session, channel=0), m.Response)
        [error] = [message for message in old.rest() if isinstance(message, m.Error)]
        assert (error.code, error.fatal) == ("replaced", True)
        assert time.monotonic() - start < 2.0
        row = new.request("inspect", session=session)
        assert isinstance(row, m.Response)
        assert len(row.result["streams"]["stdout"]["attaches"]) == 1


# --- silence ----------------------------------------------------------------------------------------------------------
QUICK = "[limits]\nping_after = 0.3\ndead_after = 1.5\ngreeting_time = 0.2\n"


def test_c32_a_quiet_client_is_pinged_and_lives_as_long_as_it_answers(tmp_path: Path) -> None:
    """Case C32."""
    with configured_agent(tmp_path, QUICK) as agent, RawClient(agent) as client:
        client.hello()
        start = time.monotonic()
        while time.monotonic() - start < 4.0:
            ping = client.next()
            assert isinstance(ping, m.Ping)
            client.send(m.Pong(ping.token))
        assert isinstance(client.request("info"), m.Response)


def test_c32_one_that_stops_answering_is_dropped(tmp_path: Path) -> None:
    with configured_agent(tmp_path, QUICK) as agent, RawClient(agent) as client:
        client.hello()
        start = time.monotonic()
        assert {type(message) for message in client.rest()} == {m.Ping}
        assert 1.3 < time.monotonic() - start < 6.0
        with RawClient(agent) as other:
            other.hello()
            stats = other.request("stats")
            assert isinstance(stats, m.Response)
            assert stats.result["connections"] == 1


async def test_c32_the_client_pings_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An agent that goes silent (case C36: without an end of the connection) is left, and dialled again."""
    monkeypatch.setattr(limits, "PING_AFTER", 0.2)
    monkeypatch.setattr(limits, "DEAD_AFTER", 0.8)
    monkeypatch.setattr(contact, "CHECK_EVERY", 0.05)
    heard: list[type[Any]] = []

    async def mute(stream: trio.SocketStream) -> None:
        decoder = Decoder(CLIENT)
        async for data in stream:
            for message in decoder.feed(data):
                heard.append(type(message))
                if isinstance(message, m.Hello):
                    welcome = m.Welcome(1, b"a" * 16, b"g" * 16, [], message.nonce, "admin", {})
                    await stream.send_all(encode(welcome))

    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(tmp_path / "mute.sock"))
    listener.listen(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, mute, [trio.SocketListener(listener)])
        async with connect(f"unix:{tmp_path}/mute.sock") as client:
            await until(lambda: client.connections == 2, "another connection")
            assert heard[:2] == [m.Hello, m.Ping]
        nursery.cancel_scope.cancel()


async def test_c32_after_a_nap_of_its_own_the_agent_blames_nobody(tmp_path: Path) -> None:
    """The server was stopped for longer than dead_after: its clients are not gone."""
    with configured_agent(tmp_path, QUICK) as agent:
        async with connect(agent.address) as client:
            server = agent.server_pid()
            os.kill(server, signal.SIGSTOP)
            try:
                await trio.sleep(2.5)  # the nap
            finally:
                os.kill(server, signal.SIGCONT)
            stats = await client.stats()
            assert (client.connections, stats["connections_total"]) == (1, 1)
            await trio.sleep(1.0)  # and a few pings later
            assert (await client.stats())["connections_total"] == 1


def test_c32_a_client_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """It was given up meanwhile, as it must be; when it wakes, it comes back and misses nothing."""
    with configured_agent(tmp_path, QUICK) as agent:
        session = ptymux(agent.address, "new", "--", "cat").stdout.decode().strip()
        reader = subprocess.Popen(
            ptymux_argv(agent.address, "read", "--follow", session), stdout=subprocess.PIPE, env=clean_environment()
        )
        assert reader.stdout is not None
        assert ptymux(agent.address, "send", "--enter", session, "before").returncode == 0
        got = b""
        while got.count(b"\n") < 2:
            got += os.read(reader.stdout.fileno(), 1000)
        os.kill(reader.pid, signal.SIGSTOP)
        wait_for(lambda: "quiet for dead_after" in agent.log(), "it to be given up")
        assert ptymux(agent.address, "send", "--enter", session, "meanwhile").returncode == 0
        os.kill(reader.pid, signal.SIGCONT)
        assert ptymux(agent.address, "kill", session).returncode == 0
        got += reader.stdout.read()
        assert reader.wait() == 0
        reader.stdout.close()
        assert got == b"before\r\n" * 2 + b"meanwhile\r\n" * 2
        assert not alive(reader.pid)
