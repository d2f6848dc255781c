"""An agent spoken by hand: what the client says is heard frame by frame, and the test answers, or does not."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, TypeVar

import trio
import trio.testing

from ptymux.errors import DialError
from ptymux.frames import Decoder
from ptymux.messages import CLIENT, Hello, Message, Output, Request, Response, UnknownFrame, Welcome, encode

AGENT_ID = b"A" * 16
GENERATION = b"G" * 16

M = TypeVar("M", bound=Message)


def welcome(hello: Hello, **changes: Any) -> Welcome:
    """An ordinary welcome to this hello."""
    ordinary = Welcome(1, AGENT_ID, GENERATION, [], hello.nonce, "admin", {"max_frame": 1 << 20}, {})
    return ordinary._replace(**changes)


def attached(offset: int = 0, mark: int = 0, *, replay_to: int = 0, head: int = 0, **more: Any) -> dict[str, Any]:
    """An answer to an attach."""
    return {"generation": GENERATION, "offset": offset, "mark": mark, "replay_to": replay_to, "head": head, **more}


class Wire:
    """The agent's end of one connection."""

    def __init__(self, stream: trio.testing.MemoryReceiveStream | Any) -> None:
        self.stream = stream
        self._decoder = Decoder(CLIENT)
        self._heard: deque[Message | UnknownFrame] = deque()

    async def hear(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message = await self.hear_any()
        assert isinstance(message, kind), f"{message} where a {kind.__name__} was expected"
        return message

    async def hear_any(self) -> Any:
        while not self._heard:
            data = await self.stream.receive_some()
            assert data, "the client hung up"
            self._heard.extend(self._decoder.feed(bytes(data)))
        return self._heard.popleft()

    async def hears_nothing(self, seconds: float) -> None:
        """There is nothing to hear for so long."""
        with trio.move_on_after(seconds):
            raise AssertionError(f"{await self.hear_any()} where nothing was expected")

    async def hang_up_heard(self) -> None:
        """The client closes the connection, and says nothing before."""
        assert not self._heard
        assert await self.stream.receive_some() == b""

    async def say(self, *messages: Message) -> None:
        await self.stream.send_all(b"".join(map(encode, messages)))

    async def greet(self, **changes: Any) -> Hello:
        """Hear the hello and welcome it."""
        hello = await self.hear(Hello)
        self._decoder.greeted()
        await self.say(welcome(hello, **changes))
        return hello

    async def asked(self, method: str) -> Request:
        """The next message is a request for this method."""
        request = await self.hear(Request)
        assert request.method == method
        return request

    async def answer(self, method: str, result: dict[str, Any] | None = None) -> Request:
        """Hear a request for this method and answer it."""
        request = await self.asked(method)
        await self.say(Response(request.id, result or {}))
        return request

    async def attach(self, **answer: Any) -> Request:
        """Hear a request to attach and answer it."""
        return await self.answer("attach", attached(**answer))

    async def output(self, offset: int, data: bytes, channel: int = 0) -> None:
        await self.say(Output(channel, offset, data))

    async def cut(self) -> None:
        """Close the connection, whatever is in it."""
        await trio.aclose_forcefully(self.stream)


class Dials:
    """Stands in for `ptymux.contact.dial`: every dial makes a :class:`Wire`, unless it is `down` or `hangs`."""

    def __init__(self) -> None:
        self.at: list[float] = []  # when
        self.down = False
        self.hangs = False
        self._wires, self._accepted = trio.open_memory_channel[Wire](math.inf)

    async def __call__(self, nursery: trio.Nursery, address: object, *, ssl_context: object = None) -> Any:
        self.at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.down:
            raise DialError("cannot dial memory: it is down")
        client, agent = trio.testing.memory_stream_pair()
        self._wires.send_nowait(Wire(agent))
        return client

    async def accept(self) -> Wire:
        """The agent's end of the next connection."""
        return await self._accepted.receive()

    async def greet(self, **changes: Any) -> Wire:
        """Accept a connection and welcome the client."""
        wire = await self.accept()
        await wire.greet(**changes)
        return wire

    @property
    def pauses(self) -> list[float]:
        """Seconds between the dials."""
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]
