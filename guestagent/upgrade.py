"""`guestagent upgrade`: have the keeper start a new server process, from the code that is installed now; sessions go on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from guestagent.access import lesser
from guestagent.config import Config, ConfigError
from guestagent.server import configuration
from ptymux import connect
from ptymux.address import UnixAddress
from ptymux.errors import PtymuxError

PATIENCE = 15.0  # seconds for the new server to answer


def main(argv: Sequence[str]) -> int:
    try:
        config = configuration(argv)
        old, new = trio.run(_upgrade, config)
    except ConfigError as error:
        print(f"guestagent: {error}", file=sys.stderr)
        return 2
    except (PtymuxError, OSError) as error:
        print(f"guestagent: cannot upgrade: {error}", file=sys.stderr)
        return 1
    print(f"server {old} was replaced by {new}")
    return 0


async def _upgrade(config: Config) -> tuple[int, int]:
    if config.listen.unix is None:
        raise ConfigError("cannot upgrade: the agent does not listen on a unix socket")
    async with connect(
        UnixAddress(config.listen.unix.path), token=_admin_token(config), give_up_after=PATIENCE
    ) as agent:
        old = (await agent.request("upgrade", keyed=False))["server_pid"]
        with trio.fail_after(PATIENCE):
            while (new := (await agent.info())["server_pid"]) == old:  # noqa: ASYNC110 - nothing tells us
                await trio.sleep(0.01)
    return old, new


def _admin_token(config: Config) -> str | None:
    source = config.access.token_file
    if source is None or source.startswith("fd:"):
        return None
    for line in Path(source).read_text().splitlines():
        role, _, token = line.strip().rpartition(" ")
        if token and not line.startswith("#") and lesser(role.strip() or "admin", "admin") == "admin":
            return token
    raise ConfigError(f"cannot upgrade: there is no admin token in {source}")
