"""config.py: the configuration file, and what the command line says instead."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields
from pathlib import Path

import pytest

from guestagent import config as config_module
from guestagent.config import (
    Access,
    Config,
    ConfigError,
    Limits,
    Listen,
    Sessions,
    TcpListen,
    UnixListen,
    VsockListen,
    WebSocketListen,
    load,
    override,
    parse,
)
from ptymux import limits


def test_nothing_configured() -> None:
    assert parse("") == Config()
    assert override(Config()) == Config(listen=Listen(unix=UnixListen()))


def test_the_documented_example_is_valid_and_complete() -> None:
    """The module's docstring shows every key there is, apart from the limits."""
    assert config_module.__doc__ is not None
    text = config_module.__doc__.split("::\n", 1)[1].split("\nUnknown keys", 1)[0]
    found = parse(textwrap.dedent(text))
    assert found.listen == Listen(
        unix=UnixListen(),
        vsock=VsockListen(),
        websocket=WebSocketListen(certificate="/etc/guestagent/tls.crt", key="/etc/guestagent/tls.key"),
        tcp=TcpListen(),
    )
    assert found.access == Access("/etc/guestagent/tokens")
    assert found.sessions == Sessions(user="dev", cwd="/work", env={"EDITOR": "vim"})
    assert found.limits == Limits()
    for cls in (UnixListen, VsockListen, WebSocketListen, TcpListen, Access, Sessions, Config):
        for item in fields(cls):
            assert item.name in text, f"{cls.__name__}.{item.name} is not in the example"


def test_every_configurable_limit_is_one_of_the_protocols() -> None:
    assert {item.name for item in fields(Limits)} == set(limits.CONFIGURABLE)
    for item in fields(Limits):
        assert item.default == getattr(limits, item.name.upper())
    assert set(Limits().reported()) == set(limits.REPORTED)
    assert Limits(max_sessions=7).reported()["max_sessions"] == 7


def test_values_arrive() -> None:
    found = parse(
        """
        log_level = "debug"
        spare_server = true
        [listen.unix]
        path = "/tmp/a.sock"
        mode = 0o660
        uids = [1000, 1001]
        role = "controller"
        token = false
        [listen.websocket]
        address = "[::1]:80"
        origins = ["https://a", "*"]
        [limits]
        retention = 5
        greeting_time = 0.5
        """
    )
    assert (found.log_level, found.spare_server) == ("debug", True)
    assert found.listen.unix == UnixListen("/tmp/a.sock", 0o660, (1000, 1001), "controller", False)
    assert found.listen.websocket == WebSocketListen("[::1]:80", ("https://a", "*"))
    assert (found.limits.retention, found.limits.greeting_time) == (5, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "unknown key x"),
        ("[listen.unix]\npfad = 'x'", "unknown key listen.unix.pfad"),
        ("[listen.quic]\nport = 1", "unknown key listen.quic"),
        ("[limits]\nmax_sesions = 1", "unknown key limits.max_sesions"),
        ("[limits]\nmax_frame = 1", "unknown key limits.max_frame"),
        ("listen = 3", "listen must be a table"),
        ("[listen]\nunix = 'path'", "listen.unix must be a table"),
        ("log_level = 'loud'", "log_level must be debug, info, warning or error"),
        ("log_level = 3", "log_level must be text"),
        ("[limits]\nmax_sessions = 'many'", "limits.max_sessions must be a whole number from 0 on"),
        ("[limits]\nmax_sessions = 1.5", "limits.max_sessions must be a whole number from 0 on"),
        ("[limits]\nmax_sessions = true", "limits.max_sessions must be a whole number from 0 on"),
        ("[limits]\nmax_sessions = -1", "limits.max_sessions must be a whole number from 0 on"),
        (f"[limits]\nmax_history = {1 << 63}", "limits.max_history must be a whole number from 0 on"),
        ("[limits]\nretention = 0", "limits.retention must be a number above 0"),
        ("[limits]\nretention = nan", "limits.retention must be a number above 0"),
        ("[limits]\nretention = '1h'", "limits.retention must be a number above 0"),
        ("[listen.unix]\nuids = 3", "listen.unix.uids must be a list of whole numbers"),
        ("[listen.unix]\nuids = ['root']", "listen.unix.uids must be a list of whole numbers"),
        ("[listen.unix]\ntoken = 'no'", "listen.unix.token must be true or false"),
        ("[listen.unix]\nrole = 'owner'", "listen.unix.role must be one of viewer, controller, admin"),
        ("[listen.unix]\nrole = ['admin']", "listen.unix.role must be one of viewer, controller, admin"),
        ("[listen.websocket]\norigins = '*'", "listen.websocket.origins must be a list of texts"),
        ("[sessions]\nenv = ['A=b']", "sessions.env must be a table of texts"),
        ("[sessions]\nenv = { A = 1 }", "sessions.env must be a table of texts"),
        ("[sessions]\nuser = 0", "sessions.user must be text"),
        ("= nothing", "Invalid statement"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"cannot read configuration: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nping_after = 60", "limits.ping_after must be less than limits.dead_after"),
        ("[limits]\nping_after = 3\ndead_after = 3", "limits.ping_after must be less than limits.dead_after"),
        ("[limits]\nmax_sessions = 0", "limits.max_sessions must be more than 0"),
        ("[limits]\nmax_connections = 0", "limits.max_connections must be more than 0"),
        ("[limits]\nhold_window = 0", "limits.hold_window must be more than 0"),
        ("[limits]\ndefault_history = 1000", "limits.default_history must be from 65536 to limits.max_history"),
        ("[limits]\nmax_history = 1000000", "limits.default_history must be from 65536 to limits.max_history"),
        ("[listen.unix]\nmode = 0o1777", "listen.unix.mode must be at most 0o777"),
        ("[listen.unix]\npath = ''", "listen.unix.path must not be empty"),
        ("[listen.vsock]\nport = 4294967295", "listen.vsock.port must be below 4294967295"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"cannot use configuration: {message}")


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("log_level = 'error'")
    assert load(str(file)).log_level == "error"
    with pytest.raises(ConfigError, match=r"^cannot read configuration .*none: No such file or directory$"):
        load(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"^cannot read configuration .*: Is a directory$"):
        load(str(tmp_path))
    file.write_bytes(b"log_level = '\xff'")
    with pytest.raises(ConfigError, match=r"^cannot read configuration .*agent\.toml: it is not UTF-8$"):
        load(str(file))


def test_the_command_line_wins_and_keeps_the_rest() -> None:
    config = parse(
        "[listen.unix]\npath = '/a'\nmode = 0o666\n[listen.websocket]\norigins = ['*']\n[access]\ntoken_file='x'"
    )
    found = override(config, unix="/b", vsock=99, websocket="0.0.0.0:1", token_file="fd:5")
    assert found.listen.unix == UnixListen("/b", 0o666)
    assert found.listen.vsock == VsockListen(99)
    assert found.listen.websocket == WebSocketListen("0.0.0.0:1", ("*",))
    assert found.access.token_file == "fd:5"
    assert override(config) == config


def test_options_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"listen\.vsock\.port"):
        override(Config(), vsock=-1)
    with pytest.raises(ConfigError, match=r"listen\.unix\.path"):
        override(Config(), unix="")


def test_only_a_vsock_listener_means_no_unix_socket() -> None:
    assert override(Config(), vsock=5252).listen == Listen(vsock=VsockListen())


def test_the_annotations_are_all_known() -> None:
    """A field of a new type would fail only when somebody configures it."""
    for cls in (UnixListen, VsockListen, WebSocketListen, TcpListen, Access, Sessions, Limits):
        for item in fields(cls):
            assert str(item.type).removesuffix(" | None") in config_module._KINDS, item
    assert inspect.getdoc(ConfigError)
