"""From the configuration to bound listeners."""

from __future__ import annotations

import ssl

from guestagent import listeners
from guestagent.config import Config, ConfigError, WebSocketListen
from guestagent.listeners import Listener, Options
from ptymux import limits
from ptymux.address import CIDS, Address, TcpAddress, UnixAddress, VsockAddress, WebSocketAddress, host_and_port
from ptymux.errors import AddressError

# Bytes in a socket cannot be overtaken by a keystroke's echo, but a small buffer means a wake-up for every few kilobytes.
SEND_BUFFER = 64 * limits.KIB


def load(config: Config) -> None:
    """Import what binding would import, so that a server that waits to be told has it already."""
    if config.listen.websocket is not None:
        from guestagent.listeners import websocket  # noqa: F401


async def open_listeners(config: Config) -> list[Listener]:
    """Everything that the configuration asks for, bound.  ListenError or ConfigError if one cannot be; then none is."""
    bound: list[Listener] = []
    try:
        for address, options in _wanted(config):
            bound.append(await listeners.bind(address, options))
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def _wanted(config: Config) -> list[tuple[Address, Options]]:
    listen, handshake = config.listen, config.limits.greeting_time
    found: list[tuple[Address, Options]] = []

    def add(address: Address, role: str, **more: object) -> None:
        options = Options(max_role=role, send_buffer=SEND_BUFFER, handshake_time=handshake, **more)  # type: ignore[arg-type]
        found.append((address, options))

    if listen.unix is not None:
        add(UnixAddress(listen.unix.path), listen.unix.role, mode=listen.unix.mode, uids=listen.unix.uids)
    if listen.vsock is not None:
        add(VsockAddress(CIDS["any"], listen.vsock.port), listen.vsock.role, cids=listen.vsock.cids)
    if (listen.tcp or listen.websocket) and config.access.token_file is None:
        raise ConfigError("cannot listen on TCP or WebSocket without tokens: give --token-file or access.token_file")
    if listen.tcp is not None:
        add(TcpAddress(*_pair(listen.tcp.address)), listen.tcp.role)
    if listen.websocket is not None:
        context = _tls(listen.websocket)
        address = WebSocketAddress(*_pair(listen.websocket.address), tls=context is not None)
        add(address, listen.websocket.role, origins=listen.websocket.origins, ssl_context=context)
    return found


def _pair(text: str) -> tuple[str, int]:
    try:
        return host_and_port(text)
    except AddressError as error:
        raise ConfigError(str(error)) from None


def _tls(listen: WebSocketListen) -> ssl.SSLContext | None:
    if listen.certificate is None and listen.key is None:
        return None
    if listen.certificate is None:
        raise ConfigError("cannot use TLS: there is a key but no certificate")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(listen.certificate, listen.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use TLS: {error}") from None
    return context
