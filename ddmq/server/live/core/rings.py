"""The history of series: a sample each second, for ten minutes in steps of 1 s and for 24 hours of 10 s.

Every series has two rings of numbers. All rings of a history have the same time, so a slot that no sample
reached is a gap, which reads as None and not as zero. The value of a step is the mean of the samples in it.
Times are whole seconds of the wall clock. If it is set back, the history begins again: values that lie ahead
of the clock would have a wrong time.

Memory: (FINE_SLOTS + COARSE_SLOTS) × 4 bytes a series, which is 37 KB.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping
from math import isnan, nan
from typing import Generic, NamedTuple, TypeVar

FINE_SLOTS = 600  # of 1 s
COARSE_S = 10
COARSE_SLOTS = 8_640
STEP_MAX_S = 86_400
VALUES_MAX = 1_000  # in an answer whose step nobody chose
K = TypeVar("K", bound=Hashable)


class HistoryRange(NamedTuple):
    """The values of an answer begin at `start_s`, and each covers `step_s` seconds. Steps that are multiples
    of COARSE_S are read from the coarse ring."""

    start_s: int
    step_s: int

    @property
    def is_coarse(self) -> bool:
        return self.step_s % COARSE_S == 0


def plan_range(from_s: int | None, step_s: int | None, now_s: int) -> HistoryRange:
    """Return the range that answers a request. `from_s` None: ten minutes ago; `step_s` None: the shortest
    step that needs at most VALUES_MAX values."""
    oldest_fine_s = now_s - FINE_SLOTS + 1
    oldest_s = now_s - COARSE_S * COARSE_SLOTS + 1
    start_s = max(oldest_s, oldest_fine_s if from_s is None else min(from_s, now_s))
    spans_max = VALUES_MAX - 1  # a first value begins before `start_s`, at a multiple of the step
    step = -(-(now_s - start_s + 1) // spans_max) if step_s is None else step_s
    if start_s < oldest_fine_s:
        step = -(-step // COARSE_S) * COARSE_S
    return HistoryRange(start_s - start_s % step, step)


class _Ring:
    """The values of one series; NaN: none. `total`, `count`: of the samples in the newest coarse step."""

    __slots__ = ("coarse", "count", "fine", "total")

    def __init__(self) -> None:
        self.fine = array("f", [nan]) * FINE_SLOTS
        self.coarse = array("f", [nan]) * COARSE_SLOTS
        self.total, self.count = 0.0, 0


class History(Generic[K]):
    """The rings of all series. `newest_s`: the time of the latest sample; None if there is none yet."""

    def __init__(self) -> None:
        self._rings: dict[K, _Ring] = {}
        self.newest_s: int | None = None

    def __contains__(self, key: K) -> bool:
        return key in self._rings

    def __iter__(self) -> Iterator[K]:
        return iter(self._rings)

    def add(self, key: K) -> None:
        """Add a series. It has no values before the next sample."""
        self._rings.setdefault(key, _Ring())

    def remove(self, key: K) -> None:
        """Remove a series with its values."""
        self._rings.pop(key, None)

    def record_sample(self, at_s: int, values: Mapping[K, float | None]) -> None:
        """Record a sample of all series. A series without a value gets a gap. A second sample of the same
        second is ignored."""
        if self.newest_s is not None and at_s <= self.newest_s:
            if at_s == self.newest_s:
                return
            self._rings = {key: _Ring() for key in self._rings}
            self.newest_s = None
        before_s = at_s - 1 if self.newest_s is None else self.newest_s
        self._clear_between(before_s, at_s)
        self.newest_s = at_s
        fine, coarse = at_s % FINE_SLOTS, at_s // COARSE_S % COARSE_SLOTS
        for key, ring in self._rings.items():
            value = values.get(key)
            if value is None:
                ring.fine[fine] = nan
            else:
                ring.fine[fine] = value
                ring.total += value
                ring.count += 1
                ring.coarse[coarse] = ring.total / ring.count

    def _clear_between(self, before_s: int, at_s: int) -> None:
        """Clear the slots after `before_s`: the fine ones until before `at_s`, the coarse ones up to that of
        `at_s`."""
        fine = range(max(before_s + 1, at_s - FINE_SLOTS + 1), at_s)
        begin, end = before_s // COARSE_S + 1, at_s // COARSE_S + 1
        coarse = range(max(begin, end - COARSE_SLOTS), end)
        if not fine and not coarse:
            return
        for ring in self._rings.values():
            for slot in fine:
                ring.fine[slot % FINE_SLOTS] = nan
            for slot in coarse:
                ring.coarse[slot % COARSE_SLOTS] = nan
            if coarse:
                ring.total, ring.count = 0.0, 0

    def read_latest(self, key: K) -> float | None:
        """Return the value of the newest sample."""
        if self.newest_s is None:
            return None
        value = self._rings[key].fine[self.newest_s % FINE_SLOTS]
        return None if isnan(value) else value

    def read(self, key: K, period: HistoryRange) -> list[float | None]:
        """Return the values of a series, from `period.start_s` up to the newest sample."""
        if self.newest_s is None:
            return []
        ring, unit_s = self._rings[key], COARSE_S if period.is_coarse else 1
        values, slots = (ring.coarse, COARSE_SLOTS) if period.is_coarse else (ring.fine, FINE_SLOTS)
        newest = self.newest_s // unit_s
        if period.step_s == unit_s:
            return _read_slots(values, slots, period.start_s // unit_s, newest)
        steps: list[float | None] = []
        for start_s in range(period.start_s, self.newest_s + 1, period.step_s):
            first, end = start_s // unit_s, (start_s + period.step_s) // unit_s
            recorded_slots = range(max(first, newest - slots + 1), min(end, newest + 1))
            steps.append(_mean_of([values[slot % slots] for slot in recorded_slots]))
        return steps


def _read_slots(values: array[float], slots: int, first: int, newest: int) -> list[float | None]:
    """Return the values of the slots from `first` to `newest`; those before the oldest one are None."""
    if first > newest:
        return []
    oldest = max(first, newest - slots + 1)
    begin, end = oldest % slots, newest % slots + 1
    recorded_values = values[begin:end] if begin < end else values[begin:] + values[:end]
    missing: list[float | None] = [None] * (oldest - first)
    return [*missing, *[None if value != value else value for value in recorded_values]]


def _mean_of(values: list[float]) -> float | None:
    numbers = [value for value in values if not isnan(value)]
    return sum(numbers) / len(numbers) if numbers else None
