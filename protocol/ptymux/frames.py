"""From a byte stream to messages: u32 big-endian length, then one msgpack array.

The boundaries of reads, segments and WebSocket messages mean nothing; whatever the cuts, the same messages come out, and
for a malformed stream the same ones before the same error.
"""

from __future__ import annotations

from collections.abc import Iterator

from ptymux import limits
from ptymux.errors import ProtocolError
from ptymux.messages import LENGTH, Message, UnknownFrame, decode


class Decoder:
    """Messages that `sender` (``"client"`` or ``"agent"``) sends.

    Holds at most one incomplete frame: :data:`limits.MAX_GREETING` bytes until :meth:`greeted` is called, then
    :data:`limits.MAX_FRAME`.
    """

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._limit = limits.MAX_GREETING
        self._limit_name = "max_greeting"
        self._buffer = bytearray()
        self._needed = LENGTH.size

    def greeted(self) -> None:
        """The peer has shown who it is: frames up to the full size are taken from now on."""
        self._limit = limits.MAX_FRAME
        self._limit_name = "max_frame"

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Message | UnknownFrame]:
        """The messages that are complete with `data`.  Exhaust the iterator before feeding again.

        Raises ProtocolError after the last good message; the decoder is of no use then.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        view = memoryview(data)
        position, size = 0, len(view)
        self._needed = LENGTH.size
        while size - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(view, position)
            if length == 0:
                raise ProtocolError("malformed frame: length 0")
            if length > self._limit:
                raise ProtocolError(f"malformed frame: length {length} exceeds {self._limit_name} ({self._limit})")
            end = position + LENGTH.size + length
            if end > size:
                self._needed = LENGTH.size + length
                break
            yield decode(view[position + LENGTH.size : end], self._sender)
            position = end
        if position < size:
            self._buffer += view[position:]
