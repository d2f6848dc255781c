"""address.py: the same spellings everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptymux import address as a
from ptymux.errors import AddressError

GOOD = [
    ("unix:/run/guestagent.sock", a.UnixAddress("/run/guestagent.sock"), None),
    ("unix:relative.sock", a.UnixAddress("relative.sock"), None),
    ("unix:/with:colon", a.UnixAddress("/with:colon"), None),
    ("unix:/" + "x" * 106, a.UnixAddress("/" + "x" * 106), None),
    ("unix:/not-\udcff-utf8", a.UnixAddress("/not-\udcff-utf8"), None),
    ("vsock:3:5252", a.VsockAddress(3, 5252), None),
    ("vsock:3", a.VsockAddress(3, a.DEFAULT_VSOCK_PORT), "vsock:3:5252"),
    ("vsock:host:1", a.VsockAddress(2, 1), "vsock:2:1"),
    ("vsock:local:1", a.VsockAddress(1, 1), "vsock:1:1"),
    ("vsock:hypervisor:1", a.VsockAddress(0, 1), "vsock:0:1"),
    ("vsock:any:1", a.VsockAddress(0xFFFFFFFF, 1), "vsock:4294967295:1"),
    ("vsock:4294967295:4294967295", a.VsockAddress(0xFFFFFFFF, 0xFFFFFFFF), None),
    ("firecracker:/srv/v.sock:5252", a.FirecrackerAddress("/srv/v.sock", 5252), None),
    ("firecracker:/a:b/v.sock:1", a.FirecrackerAddress("/a:b/v.sock", 1), None),
    ("tcp:localhost:80", a.TcpAddress("localhost", 80), None),
    ("tcp:[::1]:65535", a.TcpAddress("::1", 65535), None),
    ("tcp:127.0.0.1:0", a.TcpAddress("127.0.0.1", 0), None),
    ("ws://host:1/", a.WebSocketAddress("host", 1), None),
    ("ws://host", a.WebSocketAddress("host", 5252), "ws://host:5252/"),
    ("wss://host", a.WebSocketAddress("host", 443, "/", True), "wss://host:443/"),
    ("wss://host/a/b?c=d", a.WebSocketAddress("host", 443, "/a/b?c=d", True), "wss://host:443/a/b?c=d"),
    ("ws://[::1]:9/x", a.WebSocketAddress("::1", 9, "/x"), None),
    ("ws://host?q", a.WebSocketAddress("host", 5252, "/?q"), "ws://host:5252/?q"),
]

BAD = [
    ("", "no scheme"),
    ("/run/guestagent.sock", "no scheme"),
    ("http://host/", "unknown scheme 'http'"),
    ("UNIX:/x", "unknown scheme 'UNIX'"),
    (":x", "unknown scheme ''"),
    ("unix:", "no path"),
    ("unix:/" + "x" * 107, "at most 107 bytes"),
    ("unix:/" + "\N{GREEK SMALL LETTER ALPHA}" * 54, "at most 107 bytes"),
    ("vsock:", "CID must be a number"),
    ("vsock::1", "CID must be a number"),
    ("vsock:x:1", "CID must be a number"),
    ("vsock:-1:1", "CID must be a number"),
    ("vsock:3:x", "port must be a number"),
    ("vsock:3:4:5", "port must be a number"),
    ("vsock:4294967296:1", "CID must be a number up to 4294967295"),
    ("vsock:3:4294967296", "port must be a number up to 4294967295"),
    ("vsock:\N{ARABIC-INDIC DIGIT THREE}:1", "CID must be a number"),
    ("vsock:\N{SUPERSCRIPT TWO}:1", "CID must be a number"),
    ("vsock:" + "9" * 5000 + ":1", "CID must be a number"),
    ("firecracker:/v.sock", "no path"),
    ("firecracker:5252", "no path"),
    ("firecracker::5252", "no path"),
    ("firecracker:/v.sock:", "port must be a number"),
    ("firecracker:/v.sock:x", "port must be a number"),
    ("tcp:host", "must end in HOST:PORT"),
    ("tcp::80", "must end in HOST:PORT"),
    ("tcp:host:", "port must be a number"),
    ("tcp:host:65536", "port must be a number up to 65535"),
    ("tcp:::1:80", "goes in brackets"),
    ("tcp:[]:80", "no host"),
    ("ws:host:1", "no host"),
    ("ws://", "no host"),
    ("ws://:80/", "no host"),
    ("ws://host:99999/", "cannot parse address"),
    ("ws://host:x/", "cannot parse address"),
    ("ws://[::1/", "cannot parse address"),
    ("ws://user:secret@host/", "the token goes in a file"),
]


@pytest.mark.parametrize(("text", "expected", "canonical"), GOOD, ids=[ascii(text)[:40] for text, _, _ in GOOD])
def test_an_address_is_parsed_and_written_the_same_way(text: str, expected: a.Address, canonical: str | None) -> None:
    assert a.parse(text) == expected
    assert str(expected) == (text if canonical is None else canonical)
    assert a.parse(str(expected)) == expected


@pytest.mark.parametrize(("text", "error"), BAD, ids=[ascii(text)[:40] for text, _ in BAD])
def test_a_bad_address_is_refused_with_its_reason(text: str, error: str) -> None:
    with pytest.raises(AddressError, match=r"^cannot parse address ") as caught:
        a.parse(text)
    assert error in str(caught.value)


def test_the_defaults_are_the_documented_ones() -> None:
    assert (a.DEFAULT_VSOCK_PORT, a.DEFAULT_WEBSOCKET_PORT) == (5252, 5252)
    assert a.DEFAULT_UNIX_PATH == "/run/guestagent.sock"


_PIECES = st.sampled_from(
    ["unix", "vsock", "firecracker", "tcp", "ws", "wss", ":", "//", "/", "[", "]", "::1", "host", "local", "5252", "?", "#",
     "@", "%", " ", "\0", "\n", "é", "\udc80", "\ud800", "-1", "99999999999"]
)  # fmt: skip


@given(text=st.lists(_PIECES | st.text(max_size=3), max_size=8).map("".join))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    """Also text with line breaks, lone surrogates and huge numbers; what is an address survives being written down."""
    try:
        parsed = a.parse(text)
    except AddressError:
        return
    assert a.parse(str(parsed)) == parsed


@pytest.mark.parametrize("text", ["host:80", "[::1]:80", "h:0"])
def test_host_and_port_alone(text: str) -> None:
    host, port = a.host_and_port(text)
    assert f"{a.bracketed(host)}:{port}" == text
