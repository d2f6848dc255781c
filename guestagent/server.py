"""The server process: started by the keeper with the link on descriptor 3, replaced by it whenever it ends.

Start: parse options, hear from the keeper what there is, take the sessions over, listen, say ready.  A spare hears of it only when
the server before it has died: until then it owns nothing and has done nothing but import.  End: SIGTERM, the keeper's
word or an upgrade; the histories are consistent at every instant, so there is nothing to save.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import trio

from guestagent import access, connection, listening
from guestagent.config import Config, ConfigError, load, override
from guestagent.hub import Hub
from guestagent.keeper_link import KeeperGone, KeeperLink
from guestagent.listeners import Handler, ListenError
from guestagent.listeners import Peer as Origin
from guestagent.methods import Methods
from guestagent.snapshot import freezer, lineage
from ptymux import limits
from ptymux.address import UnixAddress

LINK_FD = 3
TOKENS_MAX = 64 * limits.KIB  # bytes of tokens from a descriptor: they go to every later server in one message

log = logging.getLogger("guestagent.server")


def parser() -> argparse.ArgumentParser:
    """The options of `guestagent serve`."""
    options = argparse.ArgumentParser(prog="guestagent serve", description="Run the agent until SIGTERM.")
    options.add_argument("--config", metavar="FILE", help="TOML file; see guestagent/config.py")
    options.add_argument("--unix", metavar="PATH", help="listen on a unix socket")
    options.add_argument("--vsock", metavar="PORT", type=int, help="listen on a vsock port, for the host")
    options.add_argument("--websocket", metavar="HOST:PORT", help="listen for WebSocket; needs tokens")
    options.add_argument(
        "--token-file", metavar="FILE", help="tokens, one a line: TOKEN or ROLE TOKEN; fd:N for a descriptor"
    )
    return options


def configuration(argv: Sequence[str]) -> Config:
    """From the command line and its file; ConfigError or SystemExit(2) if they are wrong."""
    options = parser().parse_args(argv)
    config = load(options.config) if options.config else Config()
    return override(
        config,
        unix=options.unix,
        vsock=options.vsock,
        websocket=options.websocket,
        token_file=options.token_file,
    )


def main(argv: Sequence[str]) -> int:
    try:
        config = configuration(argv)
    except ConfigError as error:
        print(f"guestagent: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=config.log_level.upper(), stream=sys.stderr, format="guestagent: %(levelname)s %(name)s: %(message)s"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.set_inheritable(LINK_FD, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing to say goodbye to before `_run` takes it over
    listening.load(config)
    link_socket = socket.socket(fileno=LINK_FD)
    try:
        return trio.run(_run, config, link_socket, strict_exception_groups=True)
    except (ListenError, ConfigError, KeeperGone, ExceptionGroup) as error:
        cause = _cause(error)
        if isinstance(cause, KeeperGone):
            return 1
        if isinstance(cause, (ListenError, ConfigError)):
            print(f"guestagent: {cause}", file=sys.stderr)
            return 2
        raise


def _cause(error: BaseException) -> BaseException:
    """What nurseries wrapped, if it was one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _run(config: Config, link_socket: socket.socket) -> int:
    link = KeeperLink(link_socket)
    hello, _ = await link.receive()
    hub = Hub(config, link, _tokens(config, hello["store"], link))
    store: dict[str, bytes] = dict(hello["store"])
    _check_groups(config)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals, _left_thawed(hub):
        async with trio.open_nursery() as nursery:
            hub.nursery = nursery

            def stop() -> None:
                hub.goodbye()
                nursery.cancel_scope.cancel()

            hub.stop = stop
            await _adopt(hub, hello, store)
            hub.lifecycle.recover(store)
            listeners = await listening.open_listeners(config)
            handler = _handler(hub)
            for listener in listeners:
                nursery.start_soon(listener.serve, handler)
            nursery.start_soon(hub.pump.run)
            nursery.start_soon(hub.keep_house)
            nursery.start_soon(hub.stats.watch_loop)
            nursery.start_soon(link.run, hub.on_keeper)
            text = f"listening on {', '.join(str(listener.address) for listener in listeners)}"
            log.info("%s; %d sessions", text, len(hub.sessions))
            paths = [listener.address.path for listener in listeners if isinstance(listener.address, UnixAddress)]
            link.send({"op": "ready", "text": text, "paths": paths, "spare": config.spare_server})
            async for _ in signals:
                break
            stop()
    return 0


@contextlib.contextmanager
def _left_thawed(hub: Hub) -> Iterator[None]:
    """If the keeper dies, nobody else will thaw what is frozen."""
    try:
        yield
    except BaseException as error:
        if isinstance(_cause(error), KeeperGone):
            hub.lifecycle.emergency_thaw()
        raise


def _handler(hub: Hub) -> Handler:
    methods = Methods(hub)

    async def handle(stream: trio.abc.Stream, origin: Origin) -> None:
        await connection.serve(hub, methods, stream, origin)

    return handle


def _tokens(config: Config, store: dict[str, bytes], link: KeeperLink) -> access.Tokens:
    source = config.access.token_file
    if source is None:
        return access.Tokens("")
    try:
        if source.startswith("fd:"):
            # A descriptor can be read once; the keeper keeps the text for the servers that follow.
            if source == f"fd:{LINK_FD}":
                raise ValueError("the agent uses that descriptor itself, pass another one")
            text = store["tokens"].decode() if "tokens" in store else access.read_source(source)
            if len(text.encode()) > TOKENS_MAX:
                raise ValueError(f"more than {TOKENS_MAX} bytes")
            link.send({"op": "store", "key": "tokens", "value": text.encode()})
        else:
            text = access.read_source(source)
        tokens = access.Tokens(text)
    except (OSError, ValueError) as error:
        cause = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"cannot read tokens from {source}: {cause}") from None
    if not tokens:
        raise ConfigError(f"cannot read tokens from {source}: there are none")
    return tokens


def _check_groups(config: Config) -> None:
    """ConfigError if a group is to be frozen that must not be."""
    try:
        for name in config.snapshot.extra_groups:
            freezer.extra_group(name)
    except ValueError as error:
        raise ConfigError(f"cannot use snapshot.extra_groups: {error}") from None


def _identify(hub: Hub, hello: dict[str, Any], store: dict[str, bytes]) -> None:
    """The agent's id and generation, made once and kept by the keeper, and the generations before."""
    if "identity" not in store:
        made = {"agent": os.urandom(16), "generation": os.urandom(limits.GENERATION_SIZE)}
        store["identity"] = msgpack.packb(made)
        hub.store("identity", store["identity"])
    identity = msgpack.unpackb(store["identity"])
    hub.lineage = lineage.load(store, identity.get("lineage", []))
    hub.agent_id, hub.generation = identity["agent"], identity["generation"]
    hub.cgroups, hub.no_cgroups, hub.restarts = hello["cgroups"], hello["why"], hello["restarts"]
    hub.is_init = hello.get("init", False)


async def _adopt(hub: Hub, hello: dict[str, Any], store: dict[str, bytes]) -> None:
    while True:
        message, fds = await hub.keeper.receive()
        if message["op"] == "adopted":
            _identify(hub, hello, store)
            return
        if message["op"] == "stored":
            store[message["key"]] = message["value"]
            hub.lifecycle.take_stored(message["key"], message["value"])
            continue
        if message["op"] == "session" and message.get("truncated"):
            log.error("cannot take session %s over: too many open files", message["record"]["id"])
        elif message["op"] == "session":
            hub.adopt(message["record"], fds)
        elif message["op"] == "remembered":
            client, key, answer = msgpack.unpackb(message["entry"])
            hub.replies.restore(client, key, tuple(answer))
        else:
            hub.on_keeper(message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
