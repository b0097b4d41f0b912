"""Merges the copies of a message and its recorded events into one order of time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ddmq.server.story.core.facts import GroupStanding, MessageCopy, RecordedEvent
from ddmq_common.trace.events import TraceEvent, TraceKind

ENDINGS = frozenset((TraceKind.FAILED, TraceKind.TIMED_OUT, TraceKind.SPENT, TraceKind.ACKED))
_RANK_COPY, _RANK_ENDING, _RANK_OTHER = 1, 0, 2


class TimedEvent(NamedTuple):
    """A trace event with the time at which the story shows it."""

    at_ms: int
    process: str
    event: TraceEvent


def streams_of(
    events: Iterable[RecordedEvent], stored: dict[tuple[bool, int, int], int]
) -> list[list[TimedEvent]]:
    """Return the events of each start of a process as one list, in their order. No event gets a time before
    the copy that it concerns was stored."""
    by_instance: dict[str, list[RecordedEvent]] = {}
    for report in events:
        by_instance.setdefault(report.instance, []).append(report)
    streams = []
    for instance_events in by_instance.values():
        at_ms, stream = 0, list[TimedEvent]()
        for report in sorted(instance_events, key=lambda one: one.event.number):
            event = report.event
            position = (
                bool(event.number_of("retry")),
                event.number_of("queue", -1),
                event.number_of("offset", -1),
            )
            at_ms = max(at_ms, event.at_ms, stored.get(position, 0))
            stream.append(TimedEvent(at_ms, report.process, event))
        streams.append(stream)
    return streams


def merge_by_time(
    copies: Sequence[MessageCopy], streams: list[list[TimedEvent]]
) -> Iterable[MessageCopy | TimedEvent]:
    """Merge copies and events by time; each source keeps its own order. Within one millisecond, the end of a
    delivery comes first, then copies that were stored because of it, then other events."""
    heads = [0] * len(streams)
    at = 0
    while True:
        candidates: list[tuple[int, int, int]] = []
        if at < len(copies):
            candidates.append((copies[at].stored_ms, _RANK_COPY, -1))
        for number, stream in enumerate(streams):
            if heads[number] < len(stream):
                head = stream[heads[number]]
                rank = _RANK_ENDING if head.event.kind in ENDINGS else _RANK_OTHER
                candidates.append((head.at_ms, rank, number))
        if not candidates:
            return
        stream_index = min(candidates)[2]
        if stream_index < 0:
            yield copies[at]
            at += 1
        else:
            yield streams[stream_index][heads[stream_index]]
            heads[stream_index] += 1


def redelivered_ms(standing: GroupStanding, streams: Iterable[Iterable[TimedEvent]]) -> int:
    """Return when a reset of the group's offset made the message be delivered again; 0 if no reset did."""
    at_ms = standing.reset_ms
    delivered_ms = (
        one.at_ms for stream in streams for one in stream if one.event.kind == TraceKind.HANDED_OUT
    )
    return at_ms if not standing.finished or any(one >= at_ms for one in delivered_ms) else 0
