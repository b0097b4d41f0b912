"""What is committed when a transaction ends: its messages as they become visible, or as dead letters. Pure
but for what is known of topics.

A message keeps its id. A wait, of a delay level or one that counts from now, begins with the commit; a due
time that was given stays as it is.
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


class Gone(NamedTuple):
    """A topic is not there any more."""

    topic: str


def targets_fault(backend: Backend, halves: Sequence[HalfMessage]) -> Gone | NotWritable | None:
    """What keeps these messages from being visible, as far as this process knows."""
    closed = None
    for half in halves:
        info = backend.topic(half.mark.topic)
        if info is None:
            return Gone(half.mark.topic)
        if not info.writable:
            closed = NotWritable(half.mark.topic)
    return closed


def plain(half: HalfMessage, backend: Backend) -> NewRecord | None:
    """The record of one that goes to a topic that is there and open, without any wait; None: look closer."""
    mark = half.mark
    info = backend.topic(mark.topic)
    if info is None or not info.writable or mark.level or mark.command is not None:
        return None
    return _in_topic(half, info.queues)


def _in_topic(half: HalfMessage, queues: int) -> NewRecord:
    """Its record where it goes in the end; that topic may have been made anew with fewer queues."""
    return NewRecord(
        half.mark.topic, half.mark.queue % queues, half.message_id, half.born_ms, half.delivery, half.key,
        half.tags, half.flags,
    )  # fmt: skip


def visible(half: HalfMessage, backend: Backend, levels: Levels, delay_shards: int, now_ms: int) -> NewRecord:
    """The record that makes it visible; its topic is there. `now_ms`: the wall clock at the commit."""
    mark = half.mark
    if mark.command is not None:
        command = due_from(mark.command, mark.wait_ms, now_ms)
        return command_record(_in_topic(half, mark.queue + 1), command, delay_shards)
    info = backend.topic(mark.topic)
    record = _in_topic(half, mark.queue + 1 if info is None else info.queues)
    return schedule_record(record, mark.level, levels) if mark.level else record


def due_from(command: DelayCommand, wait_ms: int, now_ms: int) -> DelayCommand:
    """The command with its due time, if that counts from the commit; `wait_ms` negative: it does not."""
    if wait_ms < 0:
        return command
    due_ms = now_ms + 1 + wait_ms  # the end of this millisecond: it is never early
    if command.schedule is not None and command.schedule.cron:
        due_ms = first_due_ms(command.schedule, now_ms + 1) or due_ms
    return msgspec.structs.replace(command, due_ms=due_ms, timestamp_s=due_ms // 1_000)


def results_of(
    halves: Sequence[HalfMessage], records: Sequence[NewRecord], stored: Sequence[AppendResult]
) -> list[Any]:
    """What the one who committed is told of each message."""
    return [_result(*each) for each in zip(halves, records, stored, strict=False)]


def _result(half: HalfMessage, record: NewRecord, stored: AppendResult) -> Any:
    if half.mark.command is not None:
        command = decode_command((record.system or {})[COMMAND_PROPERTY])
        return wire.delayed(record, schedule_id(command))
    return wire.scheduled(record, stored) if half.mark.level else wire.stored(record, stored)
