"""Another size: wrapped lines of the primary buffer are laid out anew, as xterm.js does.

The line that the cursor is in stays as it is, since the program behind it redraws it.  Rows below the cursor go first when the
screen gets lower, and rows come back from the history when it gets higher.
"""

from __future__ import annotations

from collections import deque

from guestagent.renderer.buffers import Buffer, default_tabs
from guestagent.renderer.cells import BLANK, NUL, Attr, Row, cell_width, erased


class _Lines:
    """A buffer's history and screen as one list."""

    def __init__(self, buffer: Buffer, x: int, y: int) -> None:
        self.rows = [*buffer.history, *buffer.rows]
        self.base = len(buffer.history)  # index of the screen's first row
        self.x = x
        self.y = y
        self.saved = self.base + buffer.saved.y
        self.limit = 0  # most rows


def resize_buffer(buffer: Buffer, columns: int, height: int, x: int, y: int, *, reflow: bool) -> tuple[int, int]:
    """Resize; the cursor's new place."""
    lines = _Lines(buffer, x, y)
    old_columns = buffer.columns
    if columns > old_columns:
        for row in lines.rows:
            row.resize(columns)
    _resize_height(lines, buffer, columns, height)
    if reflow and columns > old_columns:
        _widen(lines, old_columns, columns, height)
    elif reflow and columns < old_columns:
        _narrow(lines, old_columns, columns, height)
    if columns < old_columns:
        for row in lines.rows:
            row.resize(columns, keep=not reflow)
    if columns != old_columns:
        for row in lines.rows:
            row.settle()
    _store(lines, buffer, columns, height)
    return min(lines.x, columns - 1), min(max(lines.y, 0), height - 1)


def _resize_height(lines: _Lines, buffer: Buffer, columns: int, height: int) -> None:
    rows = lines.rows
    added = 0
    for _ in range(buffer.height, height):
        if len(rows) < height + lines.base:
            if lines.base and len(rows) <= lines.base + lines.y + added + 1:
                lines.base -= 1
                added += 1
            else:
                rows.append(Row(columns, BLANK))
    for _ in range(height, buffer.height):
        if len(rows) > height + lines.base:
            if len(rows) > lines.base + lines.y + 1:
                rows.pop()
            else:
                lines.base += 1
    lines.limit = height + buffer.scrollback
    surplus = len(rows) - lines.limit
    if surplus > 0:
        del rows[:surplus]
        lines.base = max(lines.base - surplus, 0)
        lines.saved = max(lines.saved - surplus, 0)
    lines.x = min(lines.x, columns - 1)
    lines.y = min(lines.y, height - 1) + added


def _store(lines: _Lines, buffer: Buffer, columns: int, height: int) -> None:
    while len(lines.rows) < lines.base + height:
        lines.rows.append(Row(columns, BLANK))
    buffer.columns, buffer.height = columns, height
    buffer.history = deque(lines.rows[: lines.base], maxlen=buffer.scrollback)
    buffer.rows[:] = lines.rows[lines.base : lines.base + height]
    buffer.top, buffer.bottom = 0, height - 1
    saved = buffer.saved
    buffer.saved = saved._replace(x=min(saved.x, columns - 1), y=min(lines.saved - lines.base, height - 1))
    tabs = {tab for tab in buffer.tabs if tab < columns}
    last = max(tabs, default=0)  # beyond the last stop they are where they are by default
    buffer.tabs = tabs | {last + tab for tab in default_tabs(max(columns - last, 0))}


def _length(group: list[Row], index: int, columns: int) -> int:
    """Columns of a row of a wrapped line that belong to its text."""
    if index == len(group) - 1:
        return group[index].printed()
    if group[index].chars[columns - 1] == NUL and cell_width(group[index + 1].chars[0]) == 2:
        return columns - 1  # left empty by the wide character that begins the next row
    return columns


def _group(rows: list[Row], first: int) -> list[Row]:
    end = first + 1
    while end < len(rows) and rows[end].wrapped:
        end += 1
    return rows[first:end]


def _flat(group: list[Row], columns: int) -> tuple[list[str], list[Attr]]:
    chars: list[str] = []
    attrs: list[Attr] = []
    for index, row in enumerate(group):
        length = _length(group, index, columns)
        chars += row.chars[:length]
        attrs += row.attrs[:length]
    return chars, attrs


def _lay_out(chars: list[str], attrs: list[Attr], columns: int) -> tuple[list[Row], list[int]]:
    """Rows of a line's cells, and how many cells each has; a wide character that does not fit begins the next row."""
    found: list[Row] = []
    lengths: list[int] = []
    start = 0
    while start < len(chars) or not found:
        end = min(start + columns, len(chars))
        if end < len(chars) and end - start > 1 and cell_width(chars[end - 1]) == 2:
            end -= 1
        row = Row(columns, BLANK, wrapped=True)
        row.chars[: end - start] = chars[start:end]
        row.attrs[: end - start] = attrs[start:end]
        found.append(row)
        lengths.append(end - start)
        start = end
    return found, lengths


def _replace(group: list[Row], laid: list[Row]) -> None:
    for old, new in zip(group, laid, strict=False):
        old.chars, old.attrs = new.chars, new.attrs


def _widen(lines: _Lines, old_columns: int, columns: int, height: int) -> None:
    rows = lines.rows
    kept: list[Row] = []
    removed = 0
    index = 0
    while index < len(rows):
        group = _group(rows, index)
        if len(group) > 1 and not index <= lines.base + lines.y < index + len(group):
            laid, _ = _lay_out(*_flat(group, old_columns), columns)
            _replace(group, laid)
            removed += len(group) - len(laid)
            kept += group[: len(laid)]
        else:
            kept += group
        index += len(group)
    lines.rows[:] = kept
    for _ in range(removed):
        if lines.base:
            lines.base -= 1
        else:
            lines.y = max(lines.y - 1, 0)
            if len(lines.rows) < height:
                lines.rows.append(Row(columns, BLANK))
    lines.saved = max(lines.saved - removed, 0)


def _rewrite(group: list[Row], laid: list[Row], lengths: list[int], columns: int) -> None:
    """Text of `laid` into the rows that are there; behind it, erased backgrounds stay."""
    for old, new, end in zip(group, laid, lengths, strict=False):
        if end < columns:
            old.attrs[end] = BLANK
        old.attrs[end + 1 :] = [erased(attr) for attr in old.attrs[end + 1 : columns]]
        old.attrs[:end] = new.attrs[:end]
        old.chars[:] = new.chars
        del old.attrs[columns:]


def _narrow(lines: _Lines, old_columns: int, columns: int, height: int) -> None:
    """From the last line to the first, as the viewport moves with each.

    Rows go at the end of the buffer while rows come in above, before they are put in place: so xterm.js does it, which may
    lose text below the cursor.
    """
    rows = lines.rows
    alive = len(rows)  # of `rows`; the others are gone, though not yet out of the list
    inserts: list[tuple[int, list[Row]]] = []
    inserted = 0
    end = len(rows)
    while end > 0:
        first = end - 1
        while rows[first].wrapped and first > 0:
            first -= 1
        group = rows[first:end]
        end = first
        alone = len(group) == 1 and not group[0].wrapped
        if (alone and group[0].printed() <= columns) or first <= lines.base + lines.y < first + len(group):
            continue
        laid, lengths = _lay_out(*_flat(group, old_columns), columns)
        added = max(len(laid) - len(group), 0)
        total = alive if lines.base or lines.y == alive - 1 else lines.y
        trimmed = max(0, total - lines.limit + added)
        _rewrite(group, laid, lengths, columns)
        if added:
            inserts.append((first + len(group) + inserted, laid[len(group) :]))
            inserted += added
        for _ in range(added - trimmed):
            if lines.base:
                if lines.base < min(lines.limit, alive + inserted) - height:
                    lines.base += 1
            elif lines.y < height - 1:
                lines.y += 1
                alive -= 1
            else:
                lines.base += 1
        lines.saved = min(lines.saved + added, lines.base + height - 1)
    _insert(lines, rows[:alive], inserts, inserted)


def _insert(lines: _Lines, rows: list[Row], inserts: list[tuple[int, list[Row]]], inserted: int) -> None:
    """Put the new rows in, from the end on; what exceeds the limit at the beginning is lost."""
    found: list[Row] = []
    wanted = min(lines.limit, len(rows) + inserted)
    waiting = iter(inserts)
    following = next(waiting, None)
    placed = 0
    while len(found) < wanted:
        if following is not None and following[0] > len(rows) - 1 + placed:
            found += reversed(following[1])
            placed += len(following[1])
            following = next(waiting, None)
        elif rows:
            found.append(rows.pop())
        else:
            break
    lines.rows[:] = found[wanted - 1 :: -1] if len(found) > wanted else found[::-1]
