"""How far each client's input was written to the terminal: a fixed table in the session's memfd.

It outlives the server.  A write to the terminal is framed by :meth:`Slot.begin` and :meth:`Slot.wrote`; a server that
finds a write begun and not reported cannot know whether the kernel took it, so those bytes are never written again and the client
is told that they are uncertain.

A slot is 16 native words; the table has one for each of :data:`limits.MAX_INPUT_CLIENTS` clients, and the least recently used
of those that are not connected is given away.
"""

from __future__ import annotations

from collections.abc import Collection

from ptymux import limits

SLOT_WORDS = 16
TABLE_BYTES = limits.MAX_INPUT_CLIENTS * SLOT_WORDS * 8

ID_LOW, ID_HIGH, WRITTEN, INTENT, INTENT_SIZE, FLAGS, USED_AT, UNCERTAIN_FROM, UNCERTAIN_TO = range(9)
F_USED, F_ENDED = 1, 2


class Slot:
    """One client's input position, kept in the memfd."""

    def __init__(self, words: memoryview, at: int) -> None:
        self._words = words
        self._at = at

    @property
    def written(self) -> int:
        value: int = self._words[self._at + WRITTEN]
        return value

    @property
    def ended(self) -> bool:
        return bool(self._words[self._at + FLAGS] & F_ENDED)

    @property
    def uncertain(self) -> list[int] | None:
        """[from, to) of the last input whose fate is unknown, or None."""
        start, to = self._words[self._at + UNCERTAIN_FROM], self._words[self._at + UNCERTAIN_TO]
        return [start, to] if to > start else None

    def begin(self, size: int) -> None:
        """`size` bytes at `written` are about to be written."""
        self._words[self._at + INTENT_SIZE] = size
        self._words[self._at + INTENT] = self.written + 1

    def wrote(self, offset: int) -> None:
        """Everything below `offset` was written, and nothing is in flight."""
        self._words[self._at + WRITTEN] = offset
        self._words[self._at + INTENT] = 0

    def end(self) -> None:
        """End-of-file is about to be sent; it is never sent twice."""
        self._words[self._at + FLAGS] = F_USED | F_ENDED

    def settle(self, offset: int) -> None:
        """The client goes on at `offset`: what is uncertain below it, it knows of."""
        if self._words[self._at + UNCERTAIN_TO] <= offset:
            self._words[self._at + UNCERTAIN_FROM] = self._words[self._at + UNCERTAIN_TO] = 0

    def recover(self) -> None:
        """After a server died: what was in flight becomes uncertain and counts as written.

        A range that the client may not know of yet grows by it.
        """
        written, size = self.written, self._words[self._at + INTENT_SIZE]
        if self._words[self._at + INTENT] == written + 1:
            if self.uncertain is None:
                self._words[self._at + UNCERTAIN_FROM] = written
            self._words[self._at + UNCERTAIN_TO] = written + size
            self._words[self._at + WRITTEN] = written + size
        self._words[self._at + INTENT] = 0


class InputTable:
    """The slots of one session.  `words` is a view of :data:`TABLE_BYTES` bytes as native 8-byte words."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._slots: dict[bytes, Slot] = {}
        self._clock = 0
        for at in range(0, len(words), SLOT_WORDS):
            if not words[at + FLAGS]:
                break  # slots are taken in order and never freed, so nothing follows (and no page is touched to look)
            client = words[at + ID_LOW].to_bytes(8, "little") + words[at + ID_HIGH].to_bytes(8, "little")
            self._slots[client] = Slot(words, at)
            self._clock = max(self._clock, words[at + USED_AT])

    def find(self, client: bytes) -> Slot | None:
        return self._slots.get(client)

    def take(self, client: bytes, connected: Collection[bytes]) -> Slot:
        """This client's slot; if it is new to the session, a fresh one at position 0."""
        slot = self._slots.get(client)
        if slot is None:
            slot = self._assign(client, connected)
        self._clock += 1
        self._words[slot._at + USED_AT] = self._clock
        return slot

    def recover(self) -> None:
        for slot in self._slots.values():
            slot.recover()

    def _assign(self, client: bytes, connected: Collection[bytes]) -> Slot:
        at = len(self._slots) * SLOT_WORDS
        if at >= len(self._words):
            absent = [known for known in self._slots if known not in connected] or list(self._slots)
            oldest = min(absent, key=lambda known: self._words[self._slots[known]._at + USED_AT])
            at = self._slots.pop(oldest)._at
        self._words[at + FLAGS] = F_USED
        for word in (WRITTEN, INTENT, INTENT_SIZE, UNCERTAIN_FROM, UNCERTAIN_TO):
            self._words[at + word] = 0
        self._words[at + ID_LOW] = int.from_bytes(client[:8], "little")
        self._words[at + ID_HIGH] = int.from_bytes(client[8:], "little")
        slot = self._slots[client] = Slot(self._words, at)
        return slot

    def release(self) -> None:
        self._words.release()
