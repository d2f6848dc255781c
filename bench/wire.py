"""A blocking connection to the agent for what the C client does not do: list, kill, stall, be there first.

Built on ptymux's sans-IO core, like any client.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from ptymux.frames import Decoder
from ptymux.messages import AGENT, Error, Failure, Hello, Request, Response, Welcome, encode

TIMEOUT = 20.0  # for one answer; a target is far below


class Refused(Exception):
    """The agent answered, but not with a result."""


class Control:
    """Connects and greets at once.  OSError or Refused if there is no agent behind `path` (yet)."""

    def __init__(self, path: str, token: bytes | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT)
        self._decoder = Decoder(AGENT)
        self._last = 0
        self._messages: list[Any] = []
        try:
            self._socket.connect(path)
            self._socket.sendall(encode(Hello(b"ptymux", [1, 1], os.urandom(16), token, os.urandom(16))))
            answer = self._next()
            if not isinstance(answer, Welcome):
                raise Refused(f"hello: {answer}")
        except BaseException:
            self.close()
            raise
        self._decoder.greeted()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request; output and events that come in between are dropped."""
        self._last += 1
        self._socket.sendall(encode(Request(self._last, method, params, os.urandom(16))))
        while True:
            message = self._next()
            if isinstance(message, Failure) and message.id == self._last:
                raise Refused(f"{method}: {message.code}: {message.message}")
            if isinstance(message, Error) and message.fatal:
                raise Refused(f"{method}: {message.code}: {message.message}")
            if isinstance(message, Response) and message.id == self._last:
                return message.result

    def create(self, *argv: str, policy: str = "hold", history: int | None = None) -> str:
        extra = {} if history is None else {"history": history}
        result = self.ask("create", argv=list(argv), policy=policy, size=[80, 24], **extra)
        return str(result["id"])

    def attach(self, session: str, channel: int, *, view: bool = False, window: int = 512 << 10) -> None:
        self.ask(
            "attach", session=session, channel=channel, window=window, cursor=None, repair="bytes", view=view
        )  # fmt: skip

    def _next(self) -> Any:
        while not self._messages:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the agent hung up")
            self._messages.extend(self._decoder.feed(data))
        return self._messages.pop(0)
