"""Addresses, everywhere the same.

==============================  ==========================================================================
``unix:/run/guestagent.sock``   a unix socket
``vsock:CID:PORT``              AF_VSOCK; CID may be ``host`` (2), ``local`` (1) or ``any`` when listening
``firecracker:/path/v.sock:PORT``  the unix socket of a VM monitor that takes ``CONNECT port`` and answers ``OK n``
``tcp:HOST:PORT``               plain TCP, for a relay on the same host
``ws://HOST:PORT/``             WebSocket
``wss://HOST:PORT/``            WebSocket over TLS
==============================  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ptymux.errors import AddressError

DEFAULT_VSOCK_PORT = 5252
DEFAULT_WEBSOCKET_PORT = 5252
DEFAULT_UNIX_PATH = "/run/guestagent.sock"

CIDS = {"any": 0xFFFFFFFF, "hypervisor": 0, "local": 1, "host": 2}


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class VsockAddress:
    cid: int
    port: int

    def __str__(self) -> str:
        return f"vsock:{self.cid}:{self.port}"


@dataclass(frozen=True, slots=True)
class FirecrackerAddress:
    path: str
    port: int

    def __str__(self) -> str:
        return f"firecracker:{self.path}:{self.port}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class WebSocketAddress:
    host: str
    port: int
    resource: str = "/"
    tls: bool = False

    def __str__(self) -> str:
        return f"{'wss' if self.tls else 'ws'}://{bracketed(self.host)}:{self.port}{self.resource}"


Address = UnixAddress | VsockAddress | FirecrackerAddress | TcpAddress | WebSocketAddress


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse(text: str) -> Address:
    """The address that `text` spells; AddressError says what is wrong with it."""
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise AddressError(
            f"cannot parse address {text!r}: no scheme (unix:, vsock:, firecracker:, tcp:, ws://, wss://)"
        )
    if scheme == "unix":
        return UnixAddress(_path(text, rest))
    if scheme == "vsock":
        cid, _, port = rest.partition(":")
        return VsockAddress(_cid(text, cid), _number(text, port or str(DEFAULT_VSOCK_PORT), "port", 0xFFFFFFFF))
    if scheme == "firecracker":
        path, _, port = rest.rpartition(":")
        return FirecrackerAddress(_path(text, path), _number(text, port, "port", 0xFFFFFFFF))
    if scheme == "tcp":
        return TcpAddress(*host_and_port(rest, text))
    if scheme in ("ws", "wss"):
        return _websocket(text, tls=scheme == "wss")
    raise AddressError(f"cannot parse address {text!r}: unknown scheme {scheme!r}")


def host_and_port(rest: str, text: str | None = None) -> tuple[str, int]:
    """``HOST:PORT``, with an IPv6 host in brackets."""
    text = rest if text is None else text
    host, colon, port = rest.rpartition(":")
    if not colon or not host:
        raise AddressError(f"cannot parse address {text!r}: must end in HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not host:
            raise AddressError(f"cannot parse address {text!r}: no host")
    elif ":" in host:
        raise AddressError(f"cannot parse address {text!r}: an IPv6 host goes in brackets")
    return host, _number(text, port, "port", 0xFFFF)


def _websocket(text: str, *, tls: bool) -> WebSocketAddress:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"cannot parse address {text!r}: {error}") from None
    if not parts.hostname:
        raise AddressError(f"cannot parse address {text!r}: no host")
    if parts.username or parts.password:
        raise AddressError(f"cannot parse address {text!r}: the token goes in a file, not in the address")
    resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    default = 443 if tls else DEFAULT_WEBSOCKET_PORT
    return WebSocketAddress(parts.hostname, default if port is None else port, resource, tls)


def _path(text: str, path: str) -> str:
    if not path:
        raise AddressError(f"cannot parse address {text!r}: no path")
    if len(path.encode(errors="surrogateescape")) > 107:  # sun_path holds 108 bytes, the last one a NUL
        raise AddressError(f"cannot parse address {text!r}: a unix socket's path has at most 107 bytes")
    return path


def _cid(text: str, value: str) -> int:
    return CIDS[value] if value in CIDS else _number(text, value, "CID", 0xFFFFFFFF)


def _number(text: str, value: str, name: str, most: int) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 10 or int(value) > most:
        raise AddressError(f"cannot parse address {text!r}: {name} must be a number up to {most}")
    return int(value)
