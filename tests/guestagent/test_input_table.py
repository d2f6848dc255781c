"""input_table.py: each client's input position, as later servers find it."""

from __future__ import annotations

import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestagent.input_table import INTENT, SLOT_WORDS, TABLE_BYTES, InputTable, Slot
from ptymux import limits


def client(number: int) -> bytes:
    """Ids that differ in both halves."""
    return number.to_bytes(8, "big") + (number * 7919).to_bytes(8, "little")


class Memory:
    """The table's bytes, which outlive each InputTable over them."""

    def __init__(self, slots: int = limits.MAX_INPUT_CLIENTS) -> None:
        self.words = array.array("Q", bytes(slots * SLOT_WORDS * 8))

    def open(self) -> InputTable:
        return InputTable(memoryview(self.words))


def test_the_table_has_a_slot_for_every_client_there_can_be() -> None:
    assert TABLE_BYTES == limits.MAX_INPUT_CLIENTS * SLOT_WORDS * 8
    assert limits.MAX_INPUT_CLIENTS >= 2 * limits.MAX_CONNECTIONS


def test_a_new_client_begins_at_zero() -> None:
    table = Memory().open()
    assert table.find(client(1)) is None
    slot = table.take(client(1), ())
    assert (slot.written, slot.ended, slot.uncertain) == (0, False, None)
    assert table.take(client(1), ()) is slot
    assert table.find(client(1)) is slot


def test_positions_outlive_the_server() -> None:
    memory = Memory()
    table = memory.open()
    for number in range(5):
        slot = table.take(client(number), ())
        slot.begin(10)
        slot.wrote(100 + number)
    table.take(client(3), ()).end()
    again = memory.open()
    again.recover()
    assert [_slot(again, number).written for number in range(5)] == [100, 101, 102, 103, 104]
    assert [_slot(again, number).ended for number in range(5)] == [False, False, False, True, False]
    assert again.find(client(5)) is None


def _slot(table: InputTable, number: int) -> Slot:
    found = table.find(client(number))
    assert found is not None
    return found


def test_a_write_in_flight_becomes_uncertain_and_is_never_written_again() -> None:
    memory = Memory()
    slot = memory.open().take(client(1), ())
    slot.wrote(40)
    slot.begin(7)  # and here the server was killed
    again = memory.open()
    again.recover()
    assert (_slot(again, 1).written, _slot(again, 1).uncertain) == (47, [40, 47])
    _slot(again, 1).begin(3)
    _slot(again, 1).wrote(50)
    third = memory.open()
    third.recover()
    assert (_slot(third, 1).written, _slot(third, 1).uncertain) == (50, [40, 47])


def test_a_write_that_was_reported_is_certain() -> None:
    """The kill came between the two stores of `wrote`."""
    memory = Memory()
    slot = memory.open().take(client(1), ())
    slot.begin(7)
    slot.wrote(7)
    memory.words[INTENT] = 1  # the intent for position 0 is still there
    again = memory.open()
    again.recover()
    assert (_slot(again, 1).written, _slot(again, 1).uncertain) == (7, None)


def test_of_a_full_table_the_longest_silent_absent_client_goes() -> None:
    memory = Memory(slots=4)
    table = memory.open()
    for number in range(4):
        table.take(client(number), ()).wrote(number + 1)
    table.take(client(0), ())  # used again: 1 is now the oldest
    table.take(client(9), connected={client(1)})  # but 1 is here, so 2 goes
    assert table.find(client(2)) is None
    slot = _slot(table, 9)
    assert (slot.written, slot.ended, slot.uncertain) == (0, False, None)
    again = memory.open()
    assert {number for number in range(10) if again.find(client(number))} == {0, 1, 3, 9}
    assert _slot(again, 1).written == 2


def test_a_slot_that_is_given_away_is_empty() -> None:
    memory = Memory(slots=1)
    slot = memory.open().take(client(1), ())
    slot.wrote(40)
    slot.begin(7)
    table = memory.open()
    table.recover()
    table.find(client(1)).end()  # type: ignore[union-attr]
    fresh = table.take(client(2), ())
    assert (fresh.written, fresh.ended, fresh.uncertain) == (0, False, None)


def test_everybody_is_connected() -> None:
    """More connections than slots is a matter of configuration: then the longest silent goes."""
    table = Memory(slots=2).open()
    everybody = [client(number) for number in range(3)]
    for each in everybody:
        table.take(each, everybody)
    assert table.find(client(0)) is None


def test_the_order_of_use_outlives_the_server() -> None:
    memory = Memory(slots=3)
    table = memory.open()
    for number in (0, 1, 2, 0, 1):
        table.take(client(number), ())
    again = memory.open()
    again.take(client(3), ())
    assert again.find(client(2)) is None
    again.take(client(4), ())
    assert again.find(client(0)) is None


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "die in a write", "end", "reopen", "client goes on"]),
        st.integers(0, 6),
        st.integers(1, 50),
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_against_a_model(operations: list[tuple[str, int, int]]) -> None:
    memory = Memory(slots=4)
    table = memory.open()
    model: dict[int, list[Any]] = {}  # number -> [written, ended, uncertain], the least recently used first
    for what, number, size in operations:
        if what == "reopen":
            table = memory.open()
            table.recover()
        else:
            slot = table.take(client(number), ())
            if number not in model and len(model) == 4:
                del model[next(iter(model))]
            model[number] = state = model.pop(number, [0, False, None])
            if what == "end":
                slot.end()
                state[1] = True
            elif what == "client goes on":
                slot.settle(slot.written)
                state[2] = None
            else:
                slot.begin(size)
                if what == "write":
                    slot.wrote(slot.written + size)
                else:
                    # The client may not know of an earlier one yet, so that is not forgotten.
                    state[2] = [state[2][0] if state[2] else state[0], state[0] + size]
                    table = memory.open()
                    table.recover()
                state[0] += size
        for known, (written, ended, uncertain) in model.items():
            slot = _slot(table, known)
            assert (slot.written, slot.ended, slot.uncertain) == (written, ended, uncertain)
        assert sum(table.find(client(known)) is not None for known in range(7)) == len(model)


def test_what_the_client_may_not_know_of_stays_uncertain() -> None:
    memory = Memory(slots=1)
    slot = memory.open().take(client(1), ())
    slot.wrote(40)
    slot.begin(7)
    table = memory.open()
    table.recover()
    slot = _slot(table, 1)
    slot.settle(46)
    assert slot.uncertain == [40, 47]
    slot.settle(47)
    assert slot.uncertain is None


def test_release() -> None:
    memory = Memory(slots=1)
    table = memory.open()
    table.take(client(1), ())
    table.release()
    with pytest.raises(ValueError, match="released"):
        table.take(client(1), ())
    memory.words.append(0)  # nothing holds the buffer
