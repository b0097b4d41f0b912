"""A process's replica of the table, from the first record that it reads. Pure."""

from __future__ import annotations

from typing import NamedTuple

from backend.kafka.coordination.events import Begun, Event, Snapshot
from backend.kafka.coordination.replica import TableState
from backend.kafka.coordination.snapshot import restored, snapshot
from backend.ownership.group import Decision


class PlacedEvent(NamedTuple):
    """An event at its place in the log. `stamp_ms`: the broker's time."""

    offset: int
    stamp_ms: int
    event: Event


class CoordinationLog:
    """Records go in, in their order; decisions come out. `state` is None until the table is known.

    `first`: the offset from which on it was read. `begins`: how often the table has begun anew: then
    everything that was held is lost, also without a decision that says so.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self.state: TableState | None = None
        self.begins = 0
        self.next = first  # offset of what comes next
        self.known_at = -1  # offset of the newest snapshot, or beginning, that counted
        self._kept: list[PlacedEvent] = []  # what a snapshot may have to be followed by

    def apply(self, placed: PlacedEvent) -> list[Decision]:
        """One record. A record without an event that can be read only counts as an offset."""
        offset, stamp_ms, event = placed
        self.next = offset + 1
        if isinstance(event, Snapshot):
            return self._snapshot(offset, event)
        if isinstance(event, Begun):
            self._begin(offset, event)
            return []
        if self.state is None:
            self._kept.append(placed)
            return []
        return self.state.apply(event, stamp_ms / 1000)

    def _snapshot(self, offset: int, event: Snapshot) -> list[Decision]:
        decisions: list[Decision] = []
        if self.state is None:
            if event.at < self._first:
                return []
            self.state = restored(event)
            for placed in self._kept:
                if placed.offset >= event.at:
                    decisions += self.state.apply(placed.event, placed.stamp_ms / 1000)
            self._kept.clear()
        self.known_at = offset
        return decisions

    def _begin(self, offset: int, event: Begun) -> None:
        unknown = self.state is None and event.seen < self._first
        if unknown or (self.state is not None and self.known_at >= event.seen):
            return
        self.state = TableState(event.epoch)
        self.begins += 1
        self.known_at = offset
        self._kept.clear()

    def snapshot(self) -> Snapshot | None:
        """All that is known now."""
        return None if self.state is None else snapshot(self.next, self.state)
