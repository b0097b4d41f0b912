"""Offsets of queues, and the ranges between two of them. Pure.

Spark stores QueueOffsets in its checkpoint: topic → number of the queue, as text → offset of the next
message. A range `[start, end)` of one queue is read by offset, so a batch that Spark repeats has the same
rows. A queue without a start (it was added later) is read from its first message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddmq_client import QueueBounds
from metrics_job.sparksource.options import SourceOptionError, Where

QueueOffsets = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A range of offsets `[start, end)` in one queue. `name`: the queue's wire name."""

    topic: str
    number: int
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A range of offsets `[start, end)` that can no longer be read, and the reason."""

    topic: str
    number: int
    start: int
    end: int
    why: str

    @property
    def count(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return (
            f"{self.count} messages of topic {self.topic}, queue {self.number} "
            f"(offsets {self.start} to {self.end - 1}) cannot be read any more: {self.why}"
        )


def list_end_offsets(bounds: Iterable[QueueBounds], topics: Iterable[str]) -> QueueOffsets:
    """Return the end offset of every queue. A topic without queues has an empty entry."""
    offsets: QueueOffsets = {topic: {} for topic in topics}
    for at in bounds:
        offsets[at.topic][str(at.number)] = at.end
    return offsets


def resolve_fixed_offsets(where: Where, bounds: Iterable[QueueBounds], option: str) -> QueueOffsets:
    """Return the offsets for an edge or for JSON.

    A queue that the JSON does not name starts at its first message.
    """
    bounds = list(bounds)
    if where.offsets is not None:
        _check_named(where.offsets, bounds, option)
    offsets: QueueOffsets = {}
    for at in bounds:
        edge = where.edge or "first"
        if where.offsets is not None:
            offset = where.offsets.get(at.topic, {}).get(str(at.number), edge)
            if isinstance(offset, int):
                offsets.setdefault(at.topic, {})[str(at.number)] = offset
                continue
            edge = offset
        offsets.setdefault(at.topic, {})[str(at.number)] = at.first if edge == "first" else at.end
    return offsets


def _check_named(named: Mapping[str, Mapping[str, object]], bounds: list[QueueBounds], option: str) -> None:
    there = {(at.topic, str(at.number)) for at in bounds}
    for topic, queues in named.items():
        for number in queues:
            if (topic, number) not in there:
                raise SourceOptionError(
                    f"format ddmq: option {option} names queue {number} of topic {topic}, which is not read "
                    f"or does not exist; there are: {sorted(there)}"
                )


def limit_offsets(start: QueueOffsets, end: QueueOffsets, most: int) -> QueueOffsets:
    """Lower `end` so that at most `most` messages lie after `start`, shared fairly among the queues.

    Queues with few messages get all of theirs; the others share the rest equally. With fewer messages than
    queues, the queues with the longest backlog come first.
    """
    backlog = _count_backlog(start, end)
    order = sorted(backlog, key=lambda at: (-backlog[at], at))
    shares = dict.fromkeys(backlog, 0)
    remaining = most
    while order and remaining >= len(order):
        share = remaining // len(order)
        for at in order:
            shares[at] += min(share, backlog[at] - shares[at])
        remaining = most - sum(shares.values())
        order = [at for at in order if shares[at] < backlog[at]]
    for at in order[:remaining]:
        shares[at] += 1
    return {
        topic: {
            q: start.get(topic, {}).get(q, 0) + shares[topic, q] if (topic, q) in shares else n
            for q, n in queues.items()
        }
        for topic, queues in end.items()
    }


def _count_backlog(start: QueueOffsets, end: QueueOffsets) -> dict[tuple[str, str], int]:
    """Count the messages between `start` and `end`, for the queues that have any."""
    sizes = {}
    for topic, queues in end.items():
        for number, upto in queues.items():
            since = start.get(topic, {}).get(number, 0)
            if upto > since:
                sizes[topic, number] = upto - since
    return sizes


def not_past(end: QueueOffsets, target: QueueOffsets) -> QueueOffsets:
    """Lower `end` to at most `target`. Queues that `target` does not have are left out."""
    return {
        topic: {q: min(n, target[topic][q]) for q, n in qs.items() if q in target.get(topic, {})}
        for topic, qs in end.items()
    }


def not_before(end: QueueOffsets, start: QueueOffsets, bounds: Iterable[QueueBounds]) -> QueueOffsets:
    """Raise `end` to at least `start`, unless `start` is after the queue's own end, which `plan_ranges`
    reports as a loss.
    """
    there = {(at.topic, str(at.number)): at.end for at in bounds}
    return {
        topic: {q: n if start[topic][q] > there[topic, q] else max(n, start[topic][q]) for q, n in qs.items()}
        for topic, qs in end.items()
    }


def plan_ranges(
    start: QueueOffsets, end: QueueOffsets, bounds: Iterable[QueueBounds], most: int
) -> tuple[list[OffsetRange], list[Loss]]:
    """Return the ranges to read from `start` to `end`, of at most `most` offsets each, and the losses."""
    bounds_by_queue = {(at.topic, str(at.number)): at for at in bounds}
    ranges: list[OffsetRange] = []
    losses: list[Loss] = []
    for topic, queues in end.items():
        for number, upto in queues.items():
            since = start.get(topic, {}).get(number)
            at = bounds_by_queue.get((topic, number))
            if since == upto:
                continue
            if at is None:
                low, high = sorted((since or 0, upto))
                losses.append(Loss(topic, int(number), low, high, "the queue does not exist any more"))
                continue
            losses += _find_losses(since, upto, at)
            first = at.first if since is None or upto < since else max(since, at.first)
            ranges += _split_range(at, first, min(upto, at.end), most)
    return ranges, losses


def _find_losses(since: int | None, upto: int, at: QueueBounds) -> list[Loss]:
    if since is None:
        return []  # a queue that came later: whatever it has
    if upto < since:
        why = "the topic was deleted and made anew, or offsets were taken back; reading goes on at its first"
        return [Loss(at.topic, at.number, upto, since, why)]
    losses = []
    if since < at.first:
        losses.append(Loss(at.topic, at.number, since, min(at.first, upto), "retention removed them"))
    if upto > at.end:
        why = f"the queue ends at offset {at.end}; the topic was deleted and made anew"
        losses.append(Loss(at.topic, at.number, max(at.end, since), upto, why))
    return losses


def _split_range(at: QueueBounds, start: int, end: int, most: int) -> list[OffsetRange]:
    return [
        OffsetRange(at.topic, at.number, at.queue, first, min(first + most, end))
        for first in range(start, end, most)
    ]
