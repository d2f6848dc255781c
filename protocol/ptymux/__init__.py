"""ptymux: terminals in a guest, over any cut.

``connect(address)`` is the way in for trio programs, :mod:`ptymux.aio` for asyncio ones.  The sans-IO core (frames,
messages, cursor, output, input, requests, liveness) needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptymux.client import Agent, Attach, Session, connect
    from ptymux.cursor import Cursor
    from ptymux.errors import (
        AddressError,
        AttachEnded,
        ConnectionLost,
        DialError,
        HandshakeRefused,
        InputRefused,
        LocalProtocolError,
        ProtocolError,
        PtymuxError,
        RequestFailed,
    )
    from ptymux.events import (
        Event,
        Exit,
        Foreign,
        Gap,
        InputDropped,
        InputUncertain,
        Marked,
        Output,
        ReplayEnd,
        Rewound,
    )

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(("Agent", "Attach", "Session", "connect"), "ptymux.client"),
    "Cursor": "ptymux.cursor",
    **dict.fromkeys(
        (
            "AddressError",
            "AttachEnded",
            "ConnectionLost",
            "DialError",
            "HandshakeRefused",
            "InputRefused",
            "LocalProtocolError",
            "ProtocolError",
            "PtymuxError",
            "RequestFailed",
        ),
        "ptymux.errors",
    ),
    **dict.fromkeys(
        (
            "Event",
            "Exit",
            "Foreign",
            "Gap",
            "InputDropped",
            "InputUncertain",
            "Marked",
            "Output",
            "ReplayEnd",
            "Rewound",
        ),
        "ptymux.events",
    ),
}

__all__ = [
    "AddressError",
    "Agent",
    "Attach",
    "AttachEnded",
    "ConnectionLost",
    "Cursor",
    "DialError",
    "Event",
    "Exit",
    "Foreign",
    "Gap",
    "HandshakeRefused",
    "InputDropped",
    "InputRefused",
    "InputUncertain",
    "LocalProtocolError",
    "Marked",
    "Output",
    "ProtocolError",
    "PtymuxError",
    "ReplayEnd",
    "RequestFailed",
    "Rewound",
    "Session",
    "connect",
]


def __getattr__(name: str) -> Any:
    # Lazy, because the guest's keeper imports the core only and must not pay for trio (25 MB).
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ptymux' has no attribute {name!r}")
