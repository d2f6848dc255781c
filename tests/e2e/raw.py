"""A client that does what it is told, right or wrong: a blocking socket and the frames themselves."""

from __future__ import annotations

import secrets
import socket
from types import TracebackType
from typing import Any

from ptymux import messages as m
from ptymux.frames import Decoder
from ptymux.messages import AGENT, encode
from tests.harness import PATIENCE, AgentProcess, wait_for


class RawClient:
    """A connection to an agent's unix socket.  Reading waits at most PATIENCE."""

    def __init__(self, agent: AgentProcess, client: bytes | None = None) -> None:
        self.client = client or secrets.token_bytes(16)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE)
        wait_for(lambda: self._connected(agent.path), "room in the listener's queue")
        self._decoder = Decoder(AGENT)
        self._decoder.greeted()
        self._messages: list[Any] = []
        self.ended = False

    def _connected(self, path: str) -> bool:
        try:
            self.socket.connect(path)
        except BlockingIOError:  # its queue is full
            return False
        return True

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *messages: m.Message) -> None:
        self.socket.sendall(b"".join(map(encode, messages)))

    def hello(self, token: bytes | None = None) -> m.Welcome | m.Error:
        self.send(m.Hello(m.MAGIC, [1, 1], self.client, token, b"n" * 16))
        answer = self.next()
        assert isinstance(answer, m.Welcome | m.Error)
        return answer

    def next(self) -> Any:
        """The next frame; None at the end of the connection."""
        while not self._messages:
            if self.ended:
                return None
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            self.ended = not data
            self._messages.extend(self._decoder.feed(data))
        return self._messages.pop(0)

    def rest(self) -> list[Any]:
        """Everything to the end of the connection."""
        found = []
        while (message := self.next()) is not None:
            found.append(message)
        return found

    def request(self, method: str, **params: Any) -> m.Response | m.Failure:
        """Ask, and wait for the answer; other frames are dropped."""
        self.send(m.Request(1, method, params))
        while not isinstance(answer := self.next(), m.Response | m.Failure):
            assert answer is not None, "the agent hung up"
        return answer
