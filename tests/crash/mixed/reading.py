"""What a mixed run leaves behind: the log's records and progress, and the lines that the proxies logged.

Reads the directory when no server has it any more, the progress records straight from the segments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from backend.file_log import FileLogOptions, open_log
from backend.file_log.core.layout import UNSALTED, Frame, Record, RecordKind
from backend.file_log.core.names import parse_segment
from backend.file_log.core.scan import scan_items
from backend.file_log.start.format_file import read_format
from backend.file_log.storage import Storage
from backend.internal_topics import read_dead_letter
from backend.port import Backend
from backend.progress.ack_map import AckMap
from backend.progress.codec import decode_delta
from backend.records import QueueRef, ReadStatus, StoredRecord
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import decode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC, dlq_topic, retry_topic
from tests.crash.mixed.history import Ending, Finish, Letter, Location, Loss, Plan, Row

WAIT_S = 60.0
LOST_EVENTS = ("queues lost", "queues handed over")


def body_id(value: bytes) -> str:
    """The id in a message's body."""
    return str(json.loads(value)["id"])


def read_ending(directory: Path, plans: Sequence[Plan], logs: dict[str, Path], offset_s: float) -> Ending:
    """Everything. `logs`: what each proxy wrote; `offset_s`: wall time − monotonic time."""
    log = open_log(directory, FileLogOptions(), clock=SystemClock(), metrics=Registry())
    try:
        ending = read_backend(log, plans, offset_s)
    finally:
        log.close()
    ending.finishes = list(_finishes(directory))
    ending.losses = read_losses(logs, offset_s)
    return ending


def read_backend(log: Backend, plans: Sequence[Plan], offset_s: float) -> Ending:
    """What an engine holds."""
    ending = Ending()
    for topic in sorted({topic for plan in plans for topic in plan.topics}):
        ending.rows += [_row(record) for record in _records(log, topic)]
    for plan in plans:
        letters = _records(log, dlq_topic(plan.name))
        ending.letters += [_letter(plan.name, record, offset_s) for record in letters]
        for topic in (*plan.topics, retry_topic(plan.name)):
            ending.unfinished += [(plan.name, location) for location in _unfinished(log, plan.name, topic)]
    on_the_way = _unfinished(log, LEVELS_GROUP, SCHEDULE_TOPIC)
    ending.unfinished += [(plan.name, location) for location in on_the_way for plan in plans if plan.steps]
    return ending


def read_losses(logs: dict[str, Path], offset_s: float) -> list[Loss]:
    """When proxies say that they have lost queues."""
    return [loss for proxy, path in logs.items() for loss in _losses(proxy, path, offset_s)]


def _queues(log: Backend, topic: str) -> list[QueueRef]:
    info = log.topic(topic)
    return [] if info is None else [QueueRef(topic, info.incarnation, n) for n in range(info.queues)]


def _records(log: Backend, topic: str) -> Iterator[StoredRecord]:
    for queue in _queues(log, topic):
        at = 0
        while (batch := log.read(queue, at, 1_000, 1 << 22).wait(WAIT_S)).status is ReadStatus.DATA:
            yield from (batch.record(index) for index in range(len(batch.offsets)))
            at = batch.next_offset


def _row(record: StoredRecord) -> Row:
    content = decode(record.delivery)
    location = (record.topic, record.queue_id, record.offset)
    position = record.offset if record.position < 0 else record.position  # Kafka: in its queue alone
    return Row(location, position, body_id(content.value), content.key.decode())


def _letter(group: str, record: StoredRecord, offset_s: float) -> Letter:
    dead_letter = read_dead_letter(record)
    assert dead_letter.content is not None
    location = (dead_letter.topic, dead_letter.queue_id, dead_letter.offset)
    at = dead_letter.time_ms / 1000 - offset_s
    return Letter(
        group,
        body_id(dead_letter.content.value),
        dead_letter.reason,
        dead_letter.error,
        location,
        dead_letter.attempts,
        at,
    )


def _unfinished(log: Backend, group: str, topic: str) -> Iterator[Location]:
    done: dict[int, AckMap] = {}
    for queue in _queues(log, topic):
        (view,) = log.progress(group, [queue]).wait(WAIT_S)
        acks = done[queue.queue_id] = AckMap(view.committed or 0)
        acks.finish(view.finished)
    for record in _records(log, topic):
        if not done[record.queue_id].is_finished(record.offset):
            yield (topic, record.queue_id, record.offset)


def _finishes(directory: Path) -> Iterator[Finish]:
    salting = read_format(Storage(), str(directory)) or UNSALTED
    for path in sorted((directory / "commitlog").glob("[0-9]*")):
        base = parse_segment(path.name)
        if base is None:
            continue
        data = path.read_bytes().rstrip(b"\0")
        commit = base
        for item in scan_items(data, base, base, base + len(data), salting.of_segment(base)):
            if isinstance(item, Frame):
                commit = item.position
            elif isinstance(item, Record) and item.kind == RecordKind.PROGRESS:
                start = item.position - base + item.meta_bytes
                delta = decode_delta(data[start : item.end - base])
                for first, after in delta.finished:
                    queue = delta.queue
                    yield Finish(delta.group, queue.topic, queue.queue_id, first, after, commit)


def _losses(proxy: str, path: Path, offset_s: float) -> Iterator[Loss]:
    for line in path.read_text(errors="replace").splitlines():
        if not any(name in line for name in LOST_EVENTS):
            continue
        event = json.loads(line)
        if event["event"] in LOST_EVENTS:
            at = datetime.fromisoformat(event["time"]).timestamp() - offset_s
            for queue in event["queues"]:
                yield Loss(proxy, event["group"], event["topic"], queue, at)
