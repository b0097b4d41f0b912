"""Searches a group's open dead letters, in either order: pages of them, and counts by facet.

A request examines at most SCANNED_MAX dead letters and works for SEARCH_S; its answer has the offset from
which the next request continues. Bodies are compared here, so that a search reads them only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from backend.internal_topics import DeadLetter
from backend.port import Backend
from ddmq.server.admin.contract.queries import DeadLetterChoiceQuery, DeadLetterFacetsQuery
from ddmq.server.admin.dlq import (
    BATCH,
    DeadLetterFilter,
    DeadLetterRange,
    OpenDeadLetters,
    dead_letter_row,
    list_dead_letter_queues,
    read_dead_letters,
    read_open_dead_letters,
)
from ddmq.server.admin.messages import ANSWER_BYTES_MAX
from ddmq.server.admin.search.facets import FacetCounts
from ddmq.server.http.pace import paced
from ddmq_common.clock import Clock

SHOWN_MAX = 1_000
SCANNED_MAX = 10_000
SEARCH_S = 2.0


class SearchOrder(NamedTuple):
    """The direction of a search, and the offset at which it begins; None: at the end of the queue from which
    the direction leads. `queue_id`: the queue of `start`, and the first one of the search; None: every queue
    begins there."""

    newest: bool = False
    start: int | None = None
    queue_id: int | None = None


class DeadLetterScan:
    """One bounded walk over the open dead letters of a group.

    Iterate over `walk_letters`, and call `stop` where the answer is full. `scanned`: the number of dead
    letters that were examined; `next`: the offset from which another scan continues, None if this one reached
    the end. `position`: the same as a queue and an offset, which no dead letter of another queue shares.
    """

    def __init__(self, backend: Backend, clock: Clock, group: str, order: SearchOrder) -> None:
        queues = list_dead_letter_queues(backend, group)
        bounds, self._opened = read_open_dead_letters(backend, queues)
        self.open = sum(each.count(*limits) for each, limits in zip(self._opened, bounds, strict=True))
        self.scanned = 0
        self.next: int | None = None
        self.position: tuple[int, int] | None = None
        self._backend = backend
        self._clock = clock
        self._newest = order.newest
        self._stop_at = clock.monotonic() + SEARCH_S
        self._full = False
        self._ranges: list[DeadLetterRange] = []
        for queue, limits in zip(queues, bounds, strict=True):
            low, end = limits
            if order.queue_id is not None and queue.queue_id < order.queue_id:
                continue
            if order.start is not None and order.queue_id in (None, queue.queue_id):
                low, end = (low, min(end, order.start + 1)) if order.newest else (max(low, order.start), end)
            self._ranges.append(DeadLetterRange(queue, low, end))
        self._opened = self._opened[len(queues) - len(self._ranges) :]

    def stop(self) -> None:
        """End the scan after the dead letter that `walk_letters` has yielded last."""
        self._full = True

    def walk_letters(self) -> Iterator[DeadLetter]:
        """Yield the open dead letters in the order of the scan, until its bounds or `stop` end it."""
        continued: list[int] = []
        for offset_range, opened in zip(self._ranges, self._opened, strict=True):
            remaining = offset_range
            for batch, after in self._read_batches(offset_range, opened):
                for letter in paced(batch):
                    self.scanned += 1
                    yield letter
                    if self._full:
                        after = self._drop_part(remaining, letter.record.offset)
                        break
                remaining = after
                if self._full or self.scanned >= SCANNED_MAX or self._clock.monotonic() >= self._stop_at:
                    self._full = True
                    break
            if remaining.at < remaining.end:
                offset = remaining.end - 1 if self._newest else remaining.at
                continued.append(offset)
                self.position = self.position or (remaining.queue.queue_id, offset)
        self.next = max(continued, default=None) if self._newest else min(continued, default=None)

    def _read_batches(
        self, offset_range: DeadLetterRange, opened: OpenDeadLetters
    ) -> Iterator[tuple[Sequence[DeadLetter], DeadLetterRange]]:
        if self._full:
            return iter(())
        read = read_backward if self._newest else read_forward
        return read(self._backend, offset_range, opened)

    def _drop_part(self, remaining: DeadLetterRange, offset: int) -> DeadLetterRange:
        """Return the range without the part that ends with `offset`."""
        return remaining._replace(end=offset) if self._newest else remaining._replace(at=offset + 1)


def read_forward(
    backend: Backend, offset_range: DeadLetterRange, opened: OpenDeadLetters
) -> Iterator[tuple[Sequence[DeadLetter], DeadLetterRange]]:
    """Yield the open dead letters of a range in batches, oldest first, each with the range after it."""
    while offset_range.at < offset_range.end:
        letters, at = read_dead_letters(backend, offset_range, opened)
        offset_range = offset_range._replace(at=at)
        yield letters, offset_range


def read_backward(
    backend: Backend, offset_range: DeadLetterRange, opened: OpenDeadLetters
) -> Iterator[tuple[Sequence[DeadLetter], DeadLetterRange]]:
    """Yield the open dead letters of a range in batches, newest first, each with the range before it.

    A read may end early because of its bytes. Then the older part of its window is read again later, in
    smaller windows, so that only one batch is in memory.
    """
    size = BATCH
    while offset_range.at < offset_range.end:
        low = max(offset_range.at, offset_range.end - size)
        letters, at = read_dead_letters(backend, offset_range._replace(at=low), opened)
        while at < offset_range.end:
            low = at
            letters, at = read_dead_letters(backend, offset_range._replace(at=low), opened)
        size = min(BATCH, 2 * (offset_range.end - low))
        offset_range = offset_range._replace(end=low)
        yield letters[::-1], offset_range


def show_dead_letters(
    backend: Backend, clock: Clock, group: str, choice: DeadLetterFilter, order: SearchOrder, count: int
) -> dict[str, Any]:
    """Return up to `count` open dead letters that match `choice`, in the order of the search.

    `letters` is the number of all open dead letters, `scanned` that of the examined ones, and `next` the
    offset from which the next page begins, None at the end.
    """
    scan = DeadLetterScan(backend, clock, group, order)
    rows = collect_letters(scan, choice, count)
    return {
        "group": group,
        "letters": scan.open,
        "shown": rows,
        "next": scan.next,
        "scanned": scan.scanned,
    }


def collect_letters(scan: DeadLetterScan, choice: DeadLetterFilter, count: int) -> list[dict[str, Any]]:
    """Return up to `count` dead letters that match as rows. The scan ends after the last one."""
    rows: list[dict[str, Any]] = []
    size = 0
    if not count:
        scan.stop()
    for letter in scan.walk_letters():
        if not choice.matches(letter):
            continue
        rows.append(dead_letter_row(letter))
        size += sum(map(len, rows[-1]["properties"].values())) + len(rows[-1]["error"])
        if len(rows) == count or size > ANSWER_BYTES_MAX:
            scan.stop()
    return rows


def count_facets(
    backend: Backend, clock: Clock, group: str, choice: DeadLetterFilter, order: SearchOrder
) -> dict[str, Any]:
    """Count the open dead letters that match `choice` by reason, error class, topic and hour.

    `counted` is their number. `exact` is true if this request has examined all open dead letters; otherwise
    `next` is the offset from which the next request continues.
    """
    scan = DeadLetterScan(backend, clock, group, order)
    counts = FacetCounts()
    for letter in scan.walk_letters():
        if choice.matches(letter):
            counts.add(letter.reason, letter.error, letter.topic, letter.time_ms)
    return {
        "group": group,
        "letters": scan.open,
        "counted": counts.total,
        "scanned": scan.scanned,
        "exact": scan.next is None and order.start is None,
        "next": scan.next,
    } | counts.as_rows()


def filter_of(query: DeadLetterChoiceQuery) -> DeadLetterFilter:
    """Return the filter that a query states."""
    return DeadLetterFilter(
        reason=query.reason,
        topic=query.topic,
        since_ms=query.since_ms,
        until_ms=query.until_ms,
        error=query.error,
        text=query.text,
    )


def order_of(query: DeadLetterFacetsQuery) -> SearchOrder:
    """Return the order that a query states."""
    return SearchOrder(query.order == "newest", query.start)
