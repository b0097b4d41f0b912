"""Describe subscriptions with waiting messages in words, and sort them by urgency."""

from __future__ import annotations

from collections.abc import Iterable

from metrics_job.report.core import words
from metrics_job.report.core.material import MINUTE_MS, Waiting

NOISE = 1.1  # two rates that differ by less are the same
OLD_MS = 5 * MINUTE_MS  # a state reported so long before the end of the report is shown with its time
EMPTY, PAUSED, UNCONSUMED, NEVER, GROWING, STANDING, KEEPING_UP = (
    "empty",
    "paused",
    "nobody consumes",
    "never at present rates",
    "growing",
    "stands still",
    "keeps up",
)


def describe_outlook(row: Waiting) -> str:
    """Describe how a subscription's waiting messages will develop: by one of this module's constants, or by
    the time until all are consumed."""
    if not row.lag:
        return EMPTY
    if row.paused:
        return PAUSED
    if not row.consumed:
        return UNCONSUMED
    if row.time_to_drain_s is not None:
        return words.format_duration(row.time_to_drain_s)
    if row.is_stuck:
        return NEVER
    if row.arrived_per_s > row.finished_per_s * NOISE:
        return GROWING
    return KEEPING_UP if row.finished_per_s else STANDING


def is_bad(row: Waiting) -> bool:
    """Return whether the subscription needs action or has no consumer, and is not paused."""
    return row.is_stuck or row.is_slow or bool(row.lag and not row.consumed and not row.paused)


def sort_worst_first(rows: Iterable[Waiting]) -> list[Waiting]:
    """Sort subscriptions: those that need action first, then by the number of waiting messages."""
    return sorted(
        rows,
        key=lambda row: (not (row.is_stuck or row.is_slow), -row.lag, -row.lag_max, row.group, row.topic),
    )


def add_time(text: str, row: Waiting, end_ms: int) -> str:
    """Add the time of the row to `text` if the subscription was last reported long before `end_ms`."""
    if not row.lag and not row.blocked_keys:
        return text
    return f"{text} (as of {words.format_time(row.seen_ms)})" if is_old(row, end_ms) else text


def is_old(row: Waiting, end_ms: int) -> bool:
    """Return whether the subscription was last reported long before `end_ms`."""
    return bool(row.seen_ms) and end_ms - row.seen_ms > OLD_MS
