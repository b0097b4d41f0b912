"""Order as a picture: one row for each key, time from left to right. Plain data, drawn by terminal.py and
sections.py alike.

A client that watches its own messages makes the picture of its events, as `ddmq demo` does. The samples do
not have it: metrics have no label for a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

KEYS_MAX = 8  # keys with a row of their own; the others share the last row


class KeyMark(IntEnum):
    """The mark that the picture shows for a key in one slice of time: the last finish or failure in it;
    without one, that the key is blocked; else that a message was stored; else nothing."""

    NOTHING = 0
    STORED = 1
    BLOCKED = 2
    FINISHED = 3
    FAILED = 4


class KeyEvent(NamedTuple):
    """A message of an order key was stored, finished or failed, at a time in epoch ms."""

    at_ms: int
    key: str
    mark: KeyMark


class Outage(NamedTuple):
    """The time without a server, epoch ms: from its kill until its successor was ready."""

    killed_ms: int
    ready_ms: int


class OrderPhase(NamedTuple):
    """A named part of the picture's time, from its start in epoch ms to the start of the next one."""

    start_ms: int
    name: str


@dataclass(frozen=True, slots=True)
class KeyRow:
    """The picture's row for one key, or for `keys` other keys together. `blocked`: ranges in epoch ms in
    which messages of the key only failed."""

    name: str
    keys: int
    events: list[KeyEvent]
    blocked: list[tuple[int, int]]


class Stretch(NamedTuple):
    """A run of equal adjacent marks in a row.

    `start` and `width` are fractions, from 0 to 1, of the entire period.
    """

    mark: KeyMark
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class OrderPicture:
    """The picture of the order of keys: its rows from the first event to the last, and the outages in that
    time."""

    start_ms: int
    end_ms: int
    rows: list[KeyRow]
    outages: list[Outage]
    phases: list[OrderPhase]

    def share_of(self, at_ms: int) -> float:
        """Return the position of a moment in the entire time, from 0 to 1."""
        return min(1.0, max(0.0, (at_ms - self.start_ms) / self._length_ms))

    def column_of(self, at_ms: int, columns: int) -> int:
        """Return the number of the column in which a moment lies."""
        return min(columns - 1, int(self.share_of(at_ms) * columns))

    def marks_of(self, row: KeyRow, columns: int) -> list[KeyMark]:
        """Return the row's KeyMark (finished, failed, blocked, stored or nothing) for each of `columns`
        slices of time.

        The last finish or failure in a column wins over everything else.
        """
        marks = [KeyMark.NOTHING] * columns
        for start_ms, end_ms in row.blocked:
            for column in range(self.column_of(start_ms, columns), self.column_of(end_ms, columns) + 1):
                marks[column] = KeyMark.BLOCKED
        for event in row.events:
            column = self.column_of(event.at_ms, columns)
            if event.mark is not KeyMark.STORED or marks[column] is KeyMark.NOTHING:
                marks[column] = event.mark  # the last ending, for events are in their order
        return marks

    def stretches_of(self, row: KeyRow, columns: int) -> list[Stretch]:
        """Return the marks of a row with equal neighbours joined; columns without a mark are left out."""
        stretches, column = [], 0
        for mark, equal in groupby(self.marks_of(row, columns)):
            width = len(list(equal))
            if mark is not KeyMark.NOTHING:
                stretches.append(Stretch(mark, column / columns, width / columns))
            column += width
        return stretches

    @property
    def _length_ms(self) -> int:
        return max(1, self.end_ms - self.start_ms)


def draw_order(
    events: Iterable[KeyEvent], outages: Sequence[Outage] = (), phases: Sequence[OrderPhase] = ()
) -> OrderPicture | None:
    """Build the picture; None without events. Keys that failed come first, then those with the most
    messages."""
    ordered = sorted(events)
    if not ordered:
        return None
    by_key: dict[str, list[KeyEvent]] = {}
    for event in ordered:
        by_key.setdefault(event.key, []).append(event)
    names = sorted(by_key, key=lambda name: (not _count_failures(by_key[name]), -len(by_key[name]), name))
    rows = [KeyRow(name, 1, by_key[name], _blocked_stretches(by_key[name])) for name in names[:KEYS_MAX]]
    rest = set(names[KEYS_MAX:])
    if rest:
        shared = [event for event in ordered if event.key in rest]
        rows.append(KeyRow(f"{len(rest):,} other keys", len(rest), shared, []))
    return OrderPicture(ordered[0].at_ms, ordered[-1].at_ms, rows, list(outages), list(phases))


def _count_failures(events: Iterable[KeyEvent]) -> int:
    return sum(event.mark is KeyMark.FAILED for event in events)


def _blocked_stretches(events: Iterable[KeyEvent]) -> list[tuple[int, int]]:
    """Return the times in which a key was blocked, each from a first failure to the last failure before a
    message of the key was finished."""
    endings = [event for event in events if event.mark in (KeyMark.FAILED, KeyMark.FINISHED)]
    return [
        (run[0].at_ms, run[-1].at_ms)
        for is_failed, group in groupby(endings, lambda event: event.mark is KeyMark.FAILED)
        if is_failed and len(run := list(group)) > 1
    ]
