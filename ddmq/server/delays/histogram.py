"""GET /delay/histogram: how many delayed messages are due when, from the counters of the stores.

The process that gets the request asks all other owners of shards. Each of them answers with the same steps,
because the range that it is asked for begins and ends at whole steps, for which it chooses that step again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ddmq.address import parse
from ddmq.server.admin.contract.queries import DelayHistogramQuery
from ddmq.server.admin.contract.structs.delay_answers import DelayHistogramAnswer, DueCount
from ddmq.server.admin.figures import fetch_answers
from ddmq.server.delays.owners import DelayOwners
from ddmq.server.http.parameters import query_texts
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError

MINUTE_MS, HOUR, DAY = 60_000, 60, 1_440
STEPS = (1, 2, 5, 10, 15, 30, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY)  # minutes


class Steps(NamedTuple):
    """A range in minutes since the epoch that begins and ends at a multiple of `step`."""

    start: int
    end: int
    step: int


def choose_steps(start: int, end: int, buckets: int) -> Steps:
    """Return the shortest steps of which at most `buckets` cover the minutes in [start, end)."""
    step = next((step for step in STEPS if _count_steps(start, end, step) <= buckets), 0)
    if not step:
        days = max((end - start) // DAY // buckets, 1)
        while _count_steps(start, end, days * DAY) > buckets:
            days += 1
        step = days * DAY
    return Steps(start // step * step, -(-end // step) * step, step)


def _count_steps(start: int, end: int, step: int) -> int:
    return -(-end // step) - start // step


def answer_histogram(owners: DelayOwners, request: AdminRequest) -> DelayHistogramAnswer:
    """Answer GET /delay/histogram; to another process, about this one alone.

    Without a range, it is that of all messages.
    """
    query: DelayHistogramQuery = request.query
    if query.from_ms is not None and query.to_ms is not None and query.from_ms >= query.to_ms:
        raise CallerError(f"to_ms is {query.to_ms}; allowed: a time after from_ms, which is {query.from_ms}")
    if request.is_forwarded:
        return _count_own(owners, query)
    answer = _collect_counts(owners, query)
    if query.from_ms is not None and query.to_ms is not None:
        return answer
    if answer.from_ms is None or not owners.list_other_owners():
        return answer
    whole = DelayHistogramQuery(
        topic=query.topic, from_ms=answer.from_ms, to_ms=answer.to_ms, buckets=query.buckets
    )
    return _collect_counts(owners, whole)


def count_next_hour(owners: DelayOwners, clock: Clock) -> int | None:
    """Return how many delayed messages of this process's shards are overdue or due within the next hour; None
    if it owns no open shard."""
    minute = clock.wall_ms() // MINUTE_MS
    counts = owners.count_due(None, minute, minute + HOUR, 1)
    return sum(each.before + sum(each.counts.values()) for each in counts) if counts else None


def _collect_counts(owners: DelayOwners, query: DelayHistogramQuery) -> DelayHistogramAnswer:
    """Return the counts of all processes that own shards."""
    addresses = owners.list_other_owners()
    others = fetch_answers(
        {address: parse(address) for address in addresses.values() if address},
        "/delay/histogram", *DelayHistogramAnswer.__struct_fields__, query=query_texts(query),
        token=owners.read_token(),
    )  # fmt: skip
    answers = [msgspec.convert(each, DelayHistogramAnswer) for each in others.answers]
    missing = {
        f"shard {number}": f"its owner {address} does not answer" if address else "its owner is not known"
        for number, address in addresses.items()
        if address in others.silent or not address
    }
    combined = _combine_answers([_count_own(owners, query), *answers], missing)
    has_moved = owners.list_other_owners() != addresses  # a shard then counts twice, or not at all
    combined.exact = combined.exact and not has_moved
    return combined


def _count_own(owners: DelayOwners, query: DelayHistogramQuery) -> DelayHistogramAnswer:
    """Return the counts of the shards of this process."""
    from_ms, to_ms = query.from_ms, query.to_ms
    if from_ms is None or to_ms is None:
        spans = owners.count_due(query.topic, 0, 0, 1)
        firsts = [span.first for span in spans if span.first is not None]
        ends = [span.end for span in spans if span.end is not None]
        from_ms = min(firsts, default=0) * MINUTE_MS if from_ms is None else from_ms
        to_ms = max(ends, default=0) * MINUTE_MS if to_ms is None else to_ms
    missing = {f"shard {number}": why for number, why in owners.list_closed_shards().items()}
    answer = DelayHistogramAnswer(
        topic=query.topic, from_ms=None, to_ms=None, step_ms=None, items=[], before=0, after=0, total=0,
        exact=not missing and not owners.is_behind(), missing=missing,
    )  # fmt: skip
    if from_ms > to_ms:  # no message is due in the open range
        from_ms = to_ms = to_ms if query.from_ms is None else from_ms
    steps = choose_steps(from_ms // MINUTE_MS, -(-to_ms // MINUTE_MS), query.buckets)
    counts = owners.count_due(query.topic, *steps)
    if steps.start < steps.end:
        answer.from_ms, answer.to_ms = steps.start * MINUTE_MS, steps.end * MINUTE_MS
        answer.step_ms = steps.step * MINUTE_MS
    sums = Counter[int]()
    for each in counts:
        sums.update(each.counts)
        answer.before += each.before
        answer.after += each.after
        answer.exact = answer.exact and each.complete
    answer.items = [DueCount(from_ms=start * MINUTE_MS, count=sums[start]) for start in range(*steps)]
    answer.total = answer.before + sums.total() + answer.after
    return answer


def _combine_answers(
    answers: Sequence[DelayHistogramAnswer], missing: dict[str, str]
) -> DelayHistogramAnswer:
    """Add up answers about the same steps, or about any if only their ranges matter."""
    combined = answers[0]
    sums = Counter({item.from_ms: item.count for item in combined.items})
    for answer in answers[1:]:
        sums.update({item.from_ms: item.count for item in answer.items})
        combined.before += answer.before
        combined.after += answer.after
        combined.total += answer.total
        combined.exact = combined.exact and answer.exact
        combined.missing |= answer.missing
        if answer.from_ms is not None and answer.to_ms is not None:
            is_first = combined.from_ms is None or combined.to_ms is None
            combined.from_ms = answer.from_ms if is_first else min(combined.from_ms or 0, answer.from_ms)
            combined.to_ms = answer.to_ms if is_first else max(combined.to_ms or 0, answer.to_ms)
            combined.step_ms = answer.step_ms
    combined.items = [DueCount(from_ms=start, count=count) for start, count in sorted(sums.items())]
    combined.missing |= missing
    combined.exact = combined.exact and not missing
    return combined
