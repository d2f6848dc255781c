"""init/options.py: what the kernel's command line says."""

from __future__ import annotations

import pytest

from guestagent.init.options import CONFIG, parse
from guestagent.server import parser


@pytest.mark.parametrize(
    ("cmdline", "has_config", "serve"),
    [
        ("console=ttyS0 quiet", False, ["--vsock", "5252", "--unix", "/run/guestagent.sock"]),
        ("console=ttyS0 quiet", True, ["--config", CONFIG]),
        ("guestagent.vsock=7", False, ["--vsock", "7"]),
        ("guestagent.vsock=7 guestagent.vsock=8", True, ["--config", CONFIG, "--vsock", "8"]),
        ("guestagent.config=/x guestagent.unix=/y", True, ["--config", "/x", "--unix", "/y"]),
        (
            "guestagent.websocket=[::]:1 guestagent.token_file=/t",
            False,
            ["--websocket", "[::]:1", "--token-file", "/t"],
        ),
        ('guestagent.config="/a b"', False, ["--config", "/a b"]),
        ("-- guestagent.vsock=7", True, ["--config", CONFIG]),
    ],
)
def test_what_the_server_is_given(cmdline: str, has_config: bool, serve: list[str]) -> None:
    options = parse(cmdline, has_config=has_config)
    assert options.serve == serve
    assert options.problems == []
    parser().parse_args(options.serve)  # it knows them all


def test_host_name_and_how_it_ends() -> None:
    options = parse("hostname=box guestagent.off=reboot\n", has_config=True)
    assert (options.hostname, options.off) == ("box", "reboot")
    options = parse("hostname= root=/dev/vda", has_config=True)
    assert (options.hostname, options.off) == (None, "poweroff")


@pytest.mark.parametrize("word", ["guestagent.vsok=1", "guestagent.vsock=", "guestagent.off=now", "guestagent."])
def test_what_is_misspelt_is_said_and_the_rest_is_done(word: str) -> None:
    options = parse(f"{word} hostname=box", has_config=True)
    assert options.problems == [f"cannot use {word} of the kernel's command line"]
    assert options.hostname == "box"


def test_a_quote_that_is_never_closed() -> None:
    assert parse('a="b guestagent.vsock=3', has_config=False).serve == ["--vsock", "3"]
