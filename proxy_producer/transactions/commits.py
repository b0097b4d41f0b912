"""The records of a commit that ends a transaction: its messages for their topics, or as dead letters.

Pure, but for the backend's settings of topics. A message keeps its id. A wait, of a delay level or one that
counts from now, begins with the commit; a stated due time stays unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from backend.internal_topics import schedule_record
from backend.port import Backend
from backend.records import AppendResult, NewRecord
from ddmq_common.delays.command import COMMAND_PROPERTY, DelayCommand, decode_command
from ddmq_common.delays.levels import Levels
from ddmq_common.delays.schedules import first_due_ms
from proxy_producer import wire
from proxy_producer.core.delay_requests import schedule_id
from proxy_producer.delay.context import command_record
from proxy_producer.transactions.codec import HalfMessage


class NotWritable(NamedTuple):
    """A topic takes no messages now."""

    topic: str


class MissingTopic(NamedTuple):
    """A topic is not there any more."""

    topic: str


def targets_fault(backend: Backend, halves: Sequence[HalfMessage]) -> MissingTopic | NotWritable | None:
    """Return why these messages cannot be delivered to their topics, as far as this process knows."""
    closed = None
    for half in halves:
        info = backend.topic(half.mark.topic)
        if info is None:
            return MissingTopic(half.mark.topic)
        if not info.writable:
            closed = NotWritable(half.mark.topic)
    return closed


def plain_record(half: HalfMessage, backend: Backend) -> NewRecord | None:
    """Return the record of a message without a wait whose topic exists and is writable; else None."""
    mark = half.mark
    info = backend.topic(mark.topic)
    if info is None or not info.writable or mark.level or mark.command is not None:
        return None
    return _in_topic(half, info.queues)


def _in_topic(half: HalfMessage, queues: int) -> NewRecord:
    """Return the record for the message's own topic, which may have been recreated with fewer queues."""
    return NewRecord(
        half.mark.topic, half.mark.queue % queues, half.message_id, half.born_ms, half.delivery, half.key,
        half.tags, half.flags,
    )  # fmt: skip


def final_record(
    half: HalfMessage, backend: Backend, levels: Levels, delay_shards: int, now_ms: int
) -> NewRecord:
    """Return the record that delivers a message, or delays it. `now_ms`: the wall clock at the commit."""
    mark = half.mark
    if mark.command is not None:
        command = due_from(mark.command, mark.wait_ms, now_ms)
        return command_record(_in_topic(half, mark.queue + 1), command, delay_shards)
    info = backend.topic(mark.topic)
    record = _in_topic(half, mark.queue + 1 if info is None else info.queues)
    return schedule_record(record, mark.level, levels) if mark.level else record


def due_from(command: DelayCommand, wait_ms: int, now_ms: int) -> DelayCommand:
    """Return the command, due `wait_ms` after the commit; unchanged where `wait_ms` is negative."""
    if wait_ms < 0:
        return command
    due_ms = now_ms + 1 + wait_ms  # the end of this millisecond: it is never early
    if command.schedule is not None and command.schedule.cron:
        due_ms = first_due_ms(command.schedule, now_ms + 1) or due_ms
    return msgspec.structs.replace(command, due_ms=due_ms, timestamp_s=due_ms // 1_000)


def results_of(
    halves: Sequence[HalfMessage], records: Sequence[NewRecord], stored: Sequence[AppendResult]
) -> list[Any]:
    """Return a Result for each message, for the caller that committed."""
    return [_result_of(*each) for each in zip(halves, records, stored, strict=False)]


def _result_of(half: HalfMessage, record: NewRecord, stored: AppendResult) -> Any:
    if half.mark.command is not None:
        command = decode_command((record.system or {})[COMMAND_PROPERTY])
        return wire.delayed_result(record, schedule_id(command))
    return wire.scheduled_result(record, stored) if half.mark.level else wire.stored_result(record, stored)
