"""The errors of the protocol and of the client.

::

    PtymuxError
    ├── ProtocolError          the peer sent something that the protocol does not allow
    ├── LocalProtocolError     this side tried to (a bug in the caller)
    ├── AddressError           an address that cannot be parsed (also a ValueError)
    ├── ConnectionLost         the agent cannot be reached, or not any more
    │   ├── DialError          no stream to the address could be opened; the next dial may succeed
    │   └── HandshakeRefused   it was reached and will not have us: token, version, limit  (.code)
    ├── RequestFailed          the agent answered a request with an error                 (.code, .details)
    ├── InputRefused           typed bytes that the agent would not write to the terminal  (.code, .offset)
    └── AttachEnded            the agent ended an attach: session removed, replaced       (.code)

Texts read "cannot X: cause".  ``code`` is a stable word for programs; :data:`CODES` lists them.
"""

from __future__ import annotations

from typing import Any

CODES = {
    "malformed": "a frame or field is not what the protocol says",
    "unknown_frame": "a frame type that this side does not know",
    "version": "no protocol version in common",
    "unauthorized": "the token is missing or wrong, or the peer is not allowed here",
    "forbidden": "the role does not allow this method",
    "unknown_method": "there is no such method",
    "bad_params": "a parameter is missing, of the wrong type or out of its range",
    "not_found": "there is no such session",
    "exists": "the name is taken",
    "exited": "the session's program has ended",
    "running": "the session's program is still running",
    "limit": "a limit was reached; details name it",
    "spawn": "the program could not be started",
    "os": "the operating system refused",
    "state": "not possible in the agent's present state",
    "no_screen": "the screen cannot be had now: the renderer failed",
    "line_too_long": "a line longer than a cooked terminal keeps",
    "closed": "the program's input is closed",
    "stale": "input that waited too long for a connection to be typed now",
    "uncertain": "typed or carried out, or not: the server was killed in the middle of it",
    "unknown_position": "the agent does not know this client's input position any more",
    "removed": "the session was removed",
    "replaced": "a newer connection of the same client took over",
    "shutdown": "the agent is going down or being upgraded",
    "quiescing": "the agent is quiesced for a snapshot, or about to be: nothing may change now",
    "not_quiesced": "a step of the quiesce failed and everything was undone; details say which",
    "not_restored": "a step of the restore failed; details say which, and it can be tried again",
    "restored": "the VM was restored; earlier connections end, come back",
    "internal": "a bug in the agent; its log has more",
}


class PtymuxError(Exception):
    """Base of everything that this package raises on purpose."""


class ProtocolError(PtymuxError):
    """The peer broke the protocol; the text names what was wrong.  The connection is given up."""

    code = "malformed"


class LocalProtocolError(PtymuxError):
    """This side was asked to break the protocol: a bug in the caller."""


class AddressError(PtymuxError, ValueError):
    """An address that cannot be parsed."""


class _Coded(PtymuxError):
    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}


class ConnectionLost(PtymuxError):
    """The agent could not be reached, or contact was lost for longer than the caller wanted to wait."""


class DialError(ConnectionLost):
    """No stream to the address could be opened: "cannot dial ADDRESS: cause".  The next dial may succeed."""


class HandshakeRefused(ConnectionLost):
    """The agent answered the hello with an error; dialling again with the same arguments will not help."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RequestFailed(_Coded):
    """The agent answered a request with an error.  ``code`` is one of :data:`CODES`."""


class InputRefused(_Coded):
    """Typed bytes from `offset` on were not written to the terminal, and none after them."""

    @property
    def offset(self) -> int:
        offset: int = self.details["offset"]
        return offset


class AttachEnded(_Coded):
    """The agent ended an attach before its `exit` mark; the stream is incomplete."""
