"""Places in queues, and the ranges between two of them. Pure.

A place is what Spark keeps in its checkpoint: topic → number of the queue, as text → offset of the next
message. A range `[start, end)` of one queue is read by offset, so that a batch which Spark repeats has the
same rows. A queue without a start (it came later) is read from its first message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddmq_client import QueueBounds
from metrics_job.sparksource.options import SourceOptionError, Where

Places = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `[start, end)` of one queue; `name` is the queue's on the wire."""

    topic: str
    number: int
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Loss:
    """`[start, end)` of a queue cannot be read any more, and why."""

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


def ends(bounds: Iterable[QueueBounds], topics: Iterable[str]) -> Places:
    """Behind the last message of every queue; a topic without queues yet has an empty entry."""
    places: Places = {topic: {} for topic in topics}
    for at in bounds:
        places[at.topic][str(at.number)] = at.end
    return places


def fixed(where: Where, bounds: Iterable[QueueBounds], option: str) -> Places:
    """Places of an edge, or of JSON: a queue that it does not name stands at its first message."""
    bounds = list(bounds)
    if where.offsets is not None:
        _check_named(where.offsets, bounds, option)
    places: Places = {}
    for at in bounds:
        wanted = where.edge or "first"
        if where.offsets is not None:
            given = where.offsets.get(at.topic, {}).get(str(at.number), wanted)
            if isinstance(given, int):
                places.setdefault(at.topic, {})[str(at.number)] = given
                continue
            wanted = given
        places.setdefault(at.topic, {})[str(at.number)] = at.first if wanted == "first" else at.end
    return places


def _check_named(named: Mapping[str, Mapping[str, object]], bounds: list[QueueBounds], option: str) -> None:
    there = {(at.topic, str(at.number)) for at in bounds}
    for topic, queues in named.items():
        for number in queues:
            if (topic, number) not in there:
                raise SourceOptionError(
                    f"format ddmq: option {option} names queue {number} of topic {topic}, which is not read "
                    f"or does not exist; there are: {sorted(there)}"
                )


def limited(start: Places, end: Places, most: int) -> Places:
    """`end`, brought nearer so that at most `most` messages lie behind `start`; every queue gets its share.

    Queues with little take all they have, the others share what is left equally; with fewer messages than
    queues, the longest go first.
    """
    backlog = _backlog(start, end)
    order = sorted(backlog, key=lambda at: (-backlog[at], at))
    shares = dict.fromkeys(backlog, 0)
    left = most
    while order and left >= len(order):
        share = left // len(order)
        for at in order:
            shares[at] += min(share, backlog[at] - shares[at])
        left = most - sum(shares.values())
        order = [at for at in order if shares[at] < backlog[at]]
    for at in order[:left]:
        shares[at] += 1
    return {
        topic: {
            q: start.get(topic, {}).get(q, 0) + shares[topic, q] if (topic, q) in shares else n
            for q, n in queues.items()
        }
        for topic, queues in end.items()
    }


def _backlog(start: Places, end: Places) -> dict[tuple[str, str], int]:
    """How much lies between two places, of the queues that have something."""
    found = {}
    for topic, queues in end.items():
        for number, upto in queues.items():
            since = start.get(topic, {}).get(number, 0)
            if upto > since:
                found[topic, number] = upto - since
    return found


def not_past(end: Places, target: Places) -> Places:
    """`end`, but nowhere behind `target`; queues that `target` does not have are left out."""
    return {
        topic: {q: min(n, target[topic][q]) for q, n in qs.items() if q in target.get(topic, {})}
        for topic, qs in end.items()
    }


def not_before(end: Places, start: Places, bounds: Iterable[QueueBounds]) -> Places:
    """`end`, but nowhere before `start`, so that nothing lies between the two; where `start` is behind the
    queue itself it stays before it, which `spans` tells as a loss."""
    there = {(at.topic, str(at.number)): at.end for at in bounds}
    return {
        topic: {q: n if start[topic][q] > there[topic, q] else max(n, start[topic][q]) for q, n in qs.items()}
        for topic, qs in end.items()
    }


def spans(
    start: Places, end: Places, bounds: Iterable[QueueBounds], most: int
) -> tuple[list[OffsetRange], list[Loss]]:
    """What is to be read between two places, in pieces of at most `most` offsets; and what is lost."""
    known = {(at.topic, str(at.number)): at for at in bounds}
    found: list[OffsetRange] = []
    losses: list[Loss] = []
    for topic, queues in end.items():
        for number, upto in queues.items():
            since = start.get(topic, {}).get(number)
            at = known.get((topic, number))
            if since == upto:
                continue
            if at is None:
                low, high = sorted((since or 0, upto))
                losses.append(Loss(topic, int(number), low, high, "the queue does not exist any more"))
                continue
            losses += _losses(since, upto, at)
            first = at.first if since is None or upto < since else max(since, at.first)
            found += _cut(at, first, min(upto, at.end), most)
    return found, losses


def _losses(since: int | None, upto: int, at: QueueBounds) -> list[Loss]:
    if since is None:
        return []  # a queue that came later: whatever it has
    if upto < since:
        why = "the topic was deleted and made anew, or offsets were taken back; reading goes on at its first"
        return [Loss(at.topic, at.number, upto, since, why)]
    lost = []
    if since < at.first:
        lost.append(Loss(at.topic, at.number, since, min(at.first, upto), "retention removed them"))
    if upto > at.end:
        why = f"the queue ends at offset {at.end}; the topic was deleted and made anew"
        lost.append(Loss(at.topic, at.number, max(at.end, since), upto, why))
    return lost


def _cut(at: QueueBounds, start: int, end: int, most: int) -> list[OffsetRange]:
    return [
        OffsetRange(at.topic, at.number, at.queue, piece, min(piece + most, end))
        for piece in range(start, end, most)
    ]
