"""What becomes of `ptymux exec` and its command when exec itself gets a signal: handed on, obeyed, or ignored from the start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import IO

import pytest

from ptymux.cli.execute import CLEAN_UP
from tests.harness import (
    PATIENCE,
    AgentProcess,
    clean_environment,
    ptymux,
    ptymux_argv,
    ptymux_json,
    running_agent,
    wait_for,
)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@contextlib.contextmanager
def executing(
    agent: AgentProcess, trap: str, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """`ptymux exec` of a shell that goes on until its `trap` ends it, and what it prints after "up".

    `before` are words of a command that ends in an exec of what follows it.
    """
    script = f"trap {trap} INT; echo up; while :; do sleep 0.05; done"
    command = [*before, *ptymux_argv(agent.address, "exec", "--name", "executed", "--", "sh", "-c", script)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"up\r\n"
            yield process, process.stdout
            assert process.stderr.read() == b""
        finally:
            process.kill()
    assert "executed" not in [row["name"] for row in ptymux_json(agent.address, "ls")]


def test_exec_hands_ctrl_c_on(agent: AgentProcess) -> None:
    with executing(agent, "'echo caught; exit 3'") as (process, output):
        process.send_signal(signal.SIGINT)
        assert output.read() == b"caught\r\n"
        assert process.wait(PATIENCE) == 3


def test_a_second_ctrl_c_ends_exec_and_its_command(agent: AgentProcess) -> None:
    with executing(agent, "'echo caught'") as (process, output):
        process.send_signal(signal.SIGINT)
        assert output.readline() == b"caught\r\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT


def test_ctrl_c_ends_exec_though_the_agent_does_not_answer(agent: AgentProcess) -> None:
    """And once more does not cut the goodbye short: the command is to be gone, too."""
    with executing(agent, "'echo caught'") as (process, _):
        server = agent.server_pid()
        os.kill(server, signal.SIGSTOP)
        try:
            began = time.monotonic()
            for _ in range(10):
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            assert process.wait(PATIENCE) == 128 + signal.SIGINT
            assert time.monotonic() - began >= CLEAN_UP
        finally:
            os.kill(server, signal.SIGCONT)
        wait_for(lambda: not ptymux_json(agent.address, "ls"), "the session is removed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_exec_ends_its_command(agent: AgentProcess, number: signal.Signals) -> None:
    with executing(agent, "'echo caught'") as (process, output):
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        assert output.read() == b""


def test_exec_ignores_what_it_was_started_to_ignore(agent: AgentProcess) -> None:
    """`nohup ptymux exec ...`, and a script's background job, which Ctrl-C is not meant for."""
    ignoring = ("sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh")
    with executing(agent, "'echo caught; exit 3'", ignoring) as (process, output):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
            process.send_signal(number)
        assert (
            ptymux(agent.address, "signal", "executed", "INT").returncode == 0
        )  # the command was not told to ignore anything
        assert output.read() == b"caught\r\n"
        assert process.wait(PATIENCE) == 3
