"""GET /retries: the messages of a group on the retry path, one by one.

A message waits at a delay level until its retry is due, and then in the group's retry topic until it is
finished. Any process can read both.
"""

from __future__ import annotations

from typing import Any

from backend.internal_topics import REAL_TOPIC
from backend.port import Backend
from backend.records import QueueRef, StoredRecord
from ddmq.server.admin.contract.queries import RetriesQuery
from ddmq.server.admin.search.records import RecordScan, ScannedRange, read_cursor
from ddmq.server.admin.topics import WAIT_S
from ddmq_common import delivery
from ddmq_common.clock import Clock
from ddmq_common.errors import DamagedError
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC, retry_topic
from proxy_consumer.retries import headers
from proxy_consumer.retries.headers import since_ms

ITEMS_MAX = 1_000
DUE, AT_LEVEL = 0, 1  # kinds of ranges


def list_retries(backend: Backend, clock: Clock, query: RetriesQuery) -> dict[str, object]:
    """Answer GET /retries: due messages first, then those at each delay level in the order of their due
    times."""
    scan = RecordScan(backend, clock, list_ranges(backend, query.group), read_cursor(query.after))
    items = collect_retries(scan, query.group, query.topic, min(max(query.count, 1), ITEMS_MAX))
    exact = scan.next is None and query.after is None
    return {
        "items": items, "next": None if scan.next is None else str(scan.next),
        "total": len(items) if exact else None, "exact": exact, "missing": {}, "scanned": scan.scanned,
    }  # fmt: skip


def collect_retries(
    scan: RecordScan, group: str, topic: str | None, count_max: int, text: str | None = None
) -> list[dict[str, Any]]:
    """Return the rows of up to `count_max` retries of a group. `text`: only those that contain it."""
    rows: list[dict[str, Any]] = []
    for record in scan.walk_records():
        row = describe_retry(record, group)
        if row is None or topic not in (None, row["topic"]):
            continue
        if text is None or contains_text(row, record, text):
            rows.append(row)
        if len(rows) >= count_max:
            scan.stop()
    return rows


def contains_text(row: dict[str, Any], record: StoredRecord, text: str) -> bool:
    """Return whether the key, the error or the body of a retry contains the text."""
    content, raw = delivery.decode(record.delivery), text.encode("utf-8", "surrogateescape")
    return text in row["error"] or raw in content.key or raw in content.value


def list_ranges(backend: Backend, group: str) -> list[ScannedRange]:
    """Return the offsets of a group's messages that are due, and of all messages at each delay level."""
    return [*_ranges_of(backend, DUE, retry_topic(group), group), *list_level_ranges(backend)]


def _ranges_of(backend: Backend, kind: int, topic: str, owner: str) -> list[ScannedRange]:
    """Return the offsets of each queue of a topic that a group has not finished."""
    info = backend.topic(topic)
    queues: list[QueueRef] = [] if info is None else info.refs()
    views, bounds = backend.progress(owner, queues), backend.bounds(queues)
    ranges = []
    for queue, view, limits in zip(queues, views.wait(WAIT_S), bounds.wait(WAIT_S), strict=True):
        if limits is not None:
            start = max(limits.min, view.committed or 0)
            ranges.append(ScannedRange(kind, queue, start, limits.next, sorted(view.finished)))
    return ranges


def list_level_ranges(backend: Backend) -> list[ScannedRange]:
    """Return the offsets of the messages that wait at each delay level, retries and others."""
    return _ranges_of(backend, AT_LEVEL, SCHEDULE_TOPIC, LEVELS_GROUP)


def describe_retry(record: StoredRecord, group: str) -> dict[str, Any] | None:
    """Return the row of a message on the group's retry path; None for any other message."""
    is_due = record.topic == retry_topic(group)
    if not is_due and record.system.get(REAL_TOPIC) != retry_topic(group):
        return None
    system = record.system
    try:
        content = delivery.decode(record.delivery)
    except DamagedError:
        return None
    row = {
        "group": group, "topic": system.get(headers.TOPIC, ""),
        "queue": _as_int(system.get(headers.QUEUE)), "offset": _as_int(system.get(headers.OFFSET)),
        "id": record.message_id.hex(), "key": content.key.decode("utf-8", "replace"),
        "state": "due" if is_due else "waiting", "due_ms": record.stored_ms if is_due else record.due_ms,
        "step": _as_int(system.get(headers.STEPS)), "deliveries": _as_int(system.get(headers.DELIVERIES)),
        "since_ms": since_ms(record), "error": system.get(headers.ERROR, ""),
        "body_bytes": len(content.value),
    }  # fmt: skip
    return row if is_due else row | {"level": record.queue_id + 1, "level_offset": record.offset}


def _as_int(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else 0
