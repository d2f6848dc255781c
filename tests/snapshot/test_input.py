"""Typed input around a snapshot: what was acknowledged is in every branch, what was not reaches each that it is sent to, once."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import trio

from ptymux import connect
from ptymux import messages as m
from ptymux.errors import InputRefused
from tests.e2e.programs import sink
from tests.e2e.raw import RawClient
from tests.e2e.sessions import following
from tests.harness import cutting_proxy, until
from tests.snapshot.clone import Guest, Snapshot, guest, host

END = "<end>"


def resend(guest: Guest, client: bytes, session: str, acked: int, data: bytes) -> list[int]:
    """Another life of a client: it probes, and sends what is not acknowledged; the offsets in the acknowledgements."""
    acks = []
    with RawClient(guest, client) as raw:
        raw.hello()
        raw.send(m.Input(session, acked, b""))
        while not acks or acks[-1] < acked + len(data):
            message = raw.next()
            assert message is not None
            if isinstance(message, m.Ack):
                acks.append(message.written)
                if len(acks) == 1:
                    raw.send(m.Input(session, message.written, data[message.written - acked :]))
    return acks


async def test_each_branch_gets_the_unacknowledged_once(tmp_path: Path) -> None:
    """Typed while quiesced: acknowledged by nobody.  The source has it once after its resume, each branch once from a resend,
    however often it is sent; and what was acknowledged before is taken from nobody again."""
    source_file = tmp_path / "typed in source"
    with guest(tmp_path / "source") as source:
        async with host(source) as agent:
            session = await agent.create(sink(source_file, END))
            async with following(session) as stream:
                await stream.until(b"ready")
            session.keep_input(None)
            await session.send(b"before;")
            async with agent.quiesced() as report:
                client = agent.client_id
                sent = await session.send(b"between;", wait=False)
                with trio.move_on_after(0.2):
                    await session.flush_input()
                    pytest.fail("acknowledged while quiesced")
                snapshot = Snapshot.take(source)
                # The clones' server has it queued, too, if the snapshot was taken a moment later: it must not type it by itself.
            await session.flush_input()
            await session.send(END.encode())
            await until(lambda: source_file.exists() and source_file.read_text().endswith(END), "the source's input")
            assert source_file.read_text() == f"before;between;{END}"
            for name in ("one", "two"):
                file = tmp_path / name
                with guest(
                    tmp_path / f"clone-{name}", snapshot=snapshot, standins={session.id: sink(file, END)}
                ) as clone:
                    async with host(clone) as driver:
                        # Before the restore it is queued there as well; the restore gives it back.
                        with RawClient(clone, client) as raw:
                            raw.hello()
                            raw.send(m.Input(session.id, 7, b"between;"))
                            await driver.restore(report["ticket"])
                            assert [type(message) for message in await trio.to_thread.run_sync(raw.rest)] == [m.Error]
                        async with following(driver.session(session.id)) as stream:
                            await stream.until(b"ready", 2)  # the source's, and its own
                            assert file.read_bytes() == b""
                            assert resend(clone, client, session.id, 7, b"between;") == [7, sent]
                            assert resend(clone, client, session.id, 0, b"before;between;") == [sent]
                            assert resend(clone, client, session.id, sent, END.encode())[-1] == sent + len(END)
                            await stream.until(b"done")
                assert file.read_text() == f"between;{END}"


async def test_a_client_that_moves_to_the_branch(tmp_path: Path) -> None:
    """It types on, over cuts and the restore, and the branch has every byte once: what was typed while quiesced comes by itself."""
    file = tmp_path / "typed"
    with guest(tmp_path / "source") as source:
        async with (
            host(source) as agent,
            cutting_proxy(source.path, tmp_path) as proxy,
            connect(proxy.address) as client,
        ):
            session = await agent.create(sink(tmp_path / "other", END))
            async with following(session) as stream:
                await stream.until(b"ready")
            typing = client.session(session.id)
            typing.keep_input(None)
            await typing.send(b"0;")
            async with agent.quiesced() as report:
                for number in range(1, 50):
                    await typing.send(b"%d;" % number, wait=False)
                snapshot = Snapshot.take(source)
                with guest(
                    tmp_path / "clone",
                    snapshot=snapshot,
                    standins={session.id: ["raw", "sh", "-c", f"exec cat >{file}"]},
                ) as clone:
                    proxy.target = clone.path
                    proxy.cut_all()
                    async with host(clone) as driver:
                        await until(lambda: client.connections == 2, "the move")
                        await typing.send(b"50;", wait=False)
                        await driver.restore(report["ticket"])
                        await until(lambda: file.exists() and file.read_text().endswith("50;"), "what was typed before")
                        proxy.cut_all()
                        await typing.send(END.encode())
                        await until(lambda: file.read_text().endswith(END), "the end")
                assert file.read_text() == "".join(f"{number};" for number in range(1, 51)) + END


async def test_the_end_of_input_while_quiesced(tmp_path: Path) -> None:
    """InputEnd is no more taken than other input: the source's program has it after the resume, the branch's if it is sent there."""
    program = [sys.executable, "-c", "import sys; print('got', repr(sys.stdin.read()))"]
    with guest(tmp_path / "source") as source:
        async with host(source) as agent:
            session = await agent.create(program, tty=False)
            await session.send(b"text")
            async with agent.quiesced() as report:
                session.end_input()
                await trio.sleep(0.1)
                snapshot = Snapshot.take(source)
            async with following(session) as stream:
                await stream.to_exit()
            assert bytes(stream.data) == b"got 'text'\n"
            with guest(tmp_path / "clone", snapshot=snapshot, standins={session.id: program}) as clone:
                async with host(clone) as driver:
                    await driver.restore(report["ticket"])
                    with RawClient(clone, agent.client_id) as raw:
                        raw.hello()
                        raw.send(m.Input(session.id, 4, b"!"), m.InputEnd(session.id, 5))
                        async with following(driver.session(session.id)) as stream:
                            await stream.to_exit()
                    assert bytes(stream.data) == b"got '!'\n"


async def test_old_keystrokes_are_given_up_not_typed_into_a_branch(tmp_path: Path) -> None:
    """The age limit holds over a restore: what waited too long is dropped, and the user is told."""
    file = tmp_path / "typed"
    with guest(tmp_path / "source") as source:
        async with (
            host(source) as agent,
            cutting_proxy(source.path, tmp_path) as proxy,
            connect(proxy.address) as client,
        ):
            session = await agent.create(sink(tmp_path / "other", END))
            async with following(session) as stream:
                await stream.until(b"ready")
            typing = client.session(session.id)
            typing.keep_input(0.1)
            async with agent.quiesced() as report:
                await typing.send(b"rm -rf /\n", wait=False)
                await trio.sleep(0.2)
                snapshot = Snapshot.take(source)
                with guest(tmp_path / "clone", snapshot=snapshot, standins={session.id: sink(file, END)}) as clone:
                    proxy.target = clone.path
                    proxy.cut_all()
                    async with host(clone) as driver:
                        await driver.restore(report["ticket"])
                        with pytest.raises(InputRefused) as caught:
                            await typing.flush_input()
                        assert caught.value.code == "stale"
                        async with following(driver.session(session.id)) as stream:
                            await stream.until(b"ready", 2)
                            with contextlib.suppress(InputRefused):
                                await typing.send(END.encode())
                            await stream.until(b"done")
                assert file.read_text() == END
