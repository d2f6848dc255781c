"""Everything that can be configured: a TOML file, and the few options of `guestagent serve` that override it.

::

    log_level = "info"                    # debug, info, warning, error
    spare_server = false                  # keep a second server process ready; see below

    [listen.unix]                         # each listener is on if its table or option is there
    path = "/run/guestagent.sock"
    mode = 0o600
    uids = []                             # besides the agent's own and root
    role = "admin"                        # the greatest role that this listener grants
    token = true                          # if tokens are configured, ask for one here too

    [listen.vsock]
    port = 5252
    cids = [2]                            # 2 is the host

    [listen.websocket]
    address = "127.0.0.1:5252"
    origins = []                          # of the pages that may connect; "*" for any
    certificate = "/etc/guestagent/tls.crt"
    key = "/etc/guestagent/tls.key"

    [listen.tcp]
    address = "127.0.0.1:5253"

    [access]
    token_file = "/etc/guestagent/tokens" # or "fd:N"

    [sessions]
    user = "dev"                          # default user; the agent's own if left out
    cwd = "/work"
    term = "xterm-256color"
    env = { EDITOR = "vim" }

    [snapshot]
    thaw_after = 120                      # seconds; then the guest thaws by itself if the host did not come back
    budget = 10                           # seconds that a quiesce may take, hooks included, if the host does not say
    hooks = "/etc/guestagent/hooks.d"     # pre-snapshot/, post-resume/, post-restore/
    hook_timeout = 30
    sync = true                           # write the sessions' filesystems out
    sync_paths = []                       # or only those of these paths
    freeze_filesystems = []               # mount points for FIFREEZE
    extra_groups = []                     # further cgroups to freeze, "/system.slice/postgresql.service"
    network = false                       # may TCP and WebSocket peers with the role admin drive the lifecycle?
    detect = false                        # act on VMGenID
    system = "module:Class"               # for tests: stands in for the machine

    [limits]                              # see ptymux/limits.py
    max_sessions = 1024

Unknown keys are errors: a misspelt limit must not be silently without effect.

When the server dies, the time until the next one answers is nearly all Python's start and imports: 0.25 s on a fast processor, 2 s
on a slow or an emulated one, more if the files have left a small guest's page cache.  With `spare_server` that is done in advance,
for the memory of one more process (some 25 MB).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from guestagent.access import ROLES
from ptymux import limits
from ptymux.address import DEFAULT_UNIX_PATH, DEFAULT_VSOCK_PORT


class ConfigError(ValueError):
    """What is wrong with the configuration, in one line."""


@dataclass(frozen=True)
class UnixListen:
    path: str = DEFAULT_UNIX_PATH
    mode: int = 0o600
    uids: tuple[int, ...] = ()
    role: str = "admin"
    token: bool = True


@dataclass(frozen=True)
class VsockListen:
    port: int = DEFAULT_VSOCK_PORT
    cids: tuple[int, ...] = (2,)
    role: str = "admin"
    token: bool = True


@dataclass(frozen=True)
class WebSocketListen:
    address: str = "127.0.0.1:5252"
    origins: tuple[str, ...] = ()
    certificate: str | None = None
    key: str | None = None
    role: str = "admin"


@dataclass(frozen=True)
class TcpListen:
    address: str = "127.0.0.1:5253"
    role: str = "admin"


@dataclass(frozen=True)
class Listen:
    unix: UnixListen | None = None
    vsock: VsockListen | None = None
    websocket: WebSocketListen | None = None
    tcp: TcpListen | None = None


@dataclass(frozen=True)
class Access:
    token_file: str | None = None


@dataclass(frozen=True)
class Sessions:
    user: str | None = None
    cwd: str | None = None
    term: str = "xterm-256color"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    thaw_after: float = 120.0
    budget: float = 10.0
    hooks: str = "/etc/guestagent/hooks.d"
    hook_timeout: float = 30.0
    sync: bool = True
    sync_paths: tuple[str, ...] = ()
    freeze_filesystems: tuple[str, ...] = ()
    extra_groups: tuple[str, ...] = ()
    network: bool = False
    detect: bool = False
    system: str | None = None


@dataclass(frozen=True)
class Limits:
    """The limits that a site may change; the numbers and their reasons are in ptymux/limits.py."""

    max_sessions: int = limits.MAX_SESSIONS
    max_connections: int = limits.MAX_CONNECTIONS
    default_history: int = limits.DEFAULT_HISTORY
    max_history: int = limits.MAX_HISTORY
    retention: float = limits.RETENTION
    greeting_time: float = limits.GREETING_TIME
    ping_after: float = limits.PING_AFTER
    dead_after: float = limits.DEAD_AFTER
    demote_after: float = limits.DEMOTE_AFTER
    block_lease: float = limits.BLOCK_LEASE
    hold_window: int = limits.HOLD_WINDOW

    def reported(self) -> dict[str, float]:
        return {**limits.defaults(), **{item.name: getattr(self, item.name) for item in fields(self)}}


@dataclass(frozen=True)
class Config:
    log_level: str = "info"
    spare_server: bool = False
    listen: Listen = field(default_factory=Listen)
    access: Access = field(default_factory=Access)
    sessions: Sessions = field(default_factory=Sessions)
    snapshot: Snapshot = field(default_factory=Snapshot)
    limits: Limits = field(default_factory=Limits)


_TABLES: dict[str, type[Any]] = {
    "listen": Listen,
    "access": Access,
    "sessions": Sessions,
    "snapshot": Snapshot,
    "limits": Limits,
    "listen.unix": UnixListen,
    "listen.vsock": VsockListen,
    "listen.websocket": WebSocketListen,
    "listen.tcp": TcpListen,
}


def parse(text: str) -> Config:
    """The configuration in a TOML text; ConfigError names what is wrong."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot read configuration: {error}") from None
    config: Config = _build(Config, tables, "")
    if config.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigError("cannot read configuration: log_level must be debug, info, warning or error")
    _check(config)
    return config


def _check(config: Config) -> None:
    """What would make the start, or every connection or session, fail for an obscure reason is better refused here."""
    listen, chosen = config.listen, config.limits
    for good, text in (
        (listen.unix is None or listen.unix.mode <= 0o777, "listen.unix.mode must be at most 0o777"),
        (listen.unix is None or listen.unix.path != "", "listen.unix.path must not be empty"),
        (listen.vsock is None or 0 <= listen.vsock.port < 0xFFFFFFFF, "listen.vsock.port must be below 4294967295"),
        (chosen.max_sessions > 0, "limits.max_sessions must be more than 0"),
        (chosen.max_connections > 0, "limits.max_connections must be more than 0"),
        (chosen.hold_window > 0, "limits.hold_window must be more than 0"),
        (chosen.ping_after < chosen.dead_after, "limits.ping_after must be less than limits.dead_after"),
        (
            limits.MIN_HISTORY <= chosen.default_history <= chosen.max_history,
            f"limits.default_history must be from {limits.MIN_HISTORY} to limits.max_history ({chosen.max_history})",
        ),
    ):
        if not good:
            raise ConfigError(f"cannot use configuration: {text}")


def load(path: str) -> Config:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read configuration {path}: it is not UTF-8") from None


def _build(cls: type[Any], table: Any, where: str) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"cannot read configuration: {where} must be a table")
    known = {item.name: item for item in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            raise ConfigError(f"cannot read configuration: unknown key {name}")
        if name in _TABLES:
            values[key] = _build(_TABLES[name], value, name)
        else:
            values[key] = _value(name, known[key].type, value)
    return cls(**values)


def _value(name: str, kind: Any, value: Any) -> Any:
    """`value` if it is of the annotated kind (annotations are strings here)."""
    words, good, convert = _KINDS[str(kind).removesuffix(" | None")]
    if name.endswith(".role"):
        words, good = f"one of {', '.join(ROLES)}", lambda role: role in ROLES
    if not good(value):
        raise ConfigError(f"cannot read configuration: {name} must be {words}")
    return convert(value)


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


# annotation -> what a user is told it must be, the test, and what becomes of the value
_KINDS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "int": ("a whole number from 0 on", lambda value: type(value) is int and 0 <= value < 1 << 63, int),
    "float": ("a number above 0", lambda value: type(value) in (int, float) and value > 0, lambda value: value),
    "str": ("text", lambda value: type(value) is str, str),
    "bool": ("true or false", lambda value: type(value) is bool, bool),
    "tuple[int, ...]": ("a list of whole numbers", _all(int), tuple),
    "tuple[str, ...]": ("a list of texts", _all(str), tuple),
    "Mapping[str, str]": (
        "a table of texts",
        lambda value: isinstance(value, dict) and all(type(item) is str for item in value.values()),
        dict,
    ),
}


def override(
    config: Config,
    *,
    unix: str | None = None,
    vsock: int | None = None,
    websocket: str | None = None,
    token_file: str | None = None,
) -> Config:
    """`config` with what the command line says instead; a unix listener at the default path if nothing listens at all."""
    listen = config.listen
    if unix is not None:
        listen = replace(listen, unix=replace(listen.unix or UnixListen(), path=unix))
    if vsock is not None:
        listen = replace(listen, vsock=replace(listen.vsock or VsockListen(), port=vsock))
    if websocket is not None:
        listen = replace(listen, websocket=replace(listen.websocket or WebSocketListen(), address=websocket))
    if listen == Listen():
        listen = Listen(unix=UnixListen())
    if token_file is not None:
        config = replace(config, access=Access(token_file))
    config = replace(config, listen=listen)
    _check(config)
    return config
