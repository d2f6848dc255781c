"""What tests with the product in the guest share: clients, and programs in the guest."""

from __future__ import annotations

import json
import random
import secrets
import subprocess
import tempfile
import textwrap
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ptymux import connect
from ptymux.client import Agent
from tests.e2e.sessions import following
from tests.harness import clean_environment, ptymux_argv
from tests.vm.lab.machine import VM
from tests.vm.lab.rootfs import ADMIN

BLOCK = 1 << 20
WAIT = 30.0  # seconds until an agent answers that has to be restored first, on a busy machine


@asynccontextmanager
async def connected(vm: VM | str, token: str = ADMIN, **more: Any) -> AsyncGenerator[Agent]:
    """A client of a VM's agent, or of one at an address."""
    address = vm if isinstance(vm, str) else vm.address()
    async with connect(address, token=token, wait=WAIT, **more) as agent:
        yield agent


def program(text: str) -> list[str]:
    """A Python program, as a command for the guest."""
    return ["python3", "-c", textwrap.dedent(text)]


def raw(command: list[str]) -> list[str]:
    """On a terminal that passes bytes as they are."""
    return ["sh", "-c", 'stty raw; exec "$@"', "sh", *command]


async def output_of(agent: Agent, *argv: str, status: int | None = 0) -> bytes:
    """Run a program of the guest to its end; what it wrote to a raw terminal."""
    session = await agent.create(raw(list(argv)))
    async with following(session) as stream:
        end = await stream.to_exit()
    assert status is None or end.code == status, (end, bytes(stream.data))
    await session.remove(force=True)
    return bytes(stream.data)


async def answer_of(agent: Agent, text: str) -> Any:
    """What a Python program in the guest prints, which must be JSON."""
    return json.loads(await output_of(agent, *program(text)))


# A stream that is cheap to make in a slow guest, and in which every byte has its place: random blocks, each with its number in front.
STREAM = """
import os, random
block = random.Random({seed}).randbytes({block} - 8)
for number in range({blocks}):
    data = memoryview(number.to_bytes(8, "big") + block)
    while data:
        data = data[os.write(1, data):]
"""


def stream_text(blocks: int, seed: int) -> str:
    """The program, for :func:`program`."""
    return STREAM.format(blocks=blocks, seed=seed, block=BLOCK)


def stream_bytes(blocks: int, seed: int) -> bytes:
    """What it writes."""
    block = random.Random(seed).randbytes(BLOCK - 8)
    return b"".join(number.to_bytes(8, "big") + block for number in range(blocks))


def ptymux(
    vm: VM, *arguments: str, token: str = ADMIN, timeout: float = 60.0, input: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """The command line client, on the host."""
    with tempfile.NamedTemporaryFile("w", prefix="token-") as file:
        file.write(token)
        file.flush()
        argv = ptymux_argv(vm.address(), "--token-file", file.name, "--wait", str(WAIT), *arguments)
        return subprocess.run(argv, input=input, capture_output=True, timeout=timeout, env=clean_environment())


def proxied(proxy: Path | str, port: int = 5252) -> str:
    """The address of a VM behind a relay of bytes."""
    return f"firecracker:{proxy}:{port}"


def fresh_token() -> str:
    return secrets.token_hex(16)
