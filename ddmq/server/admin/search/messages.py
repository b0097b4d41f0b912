"""POST /topics/TOPIC/search: messages that contain a text, or match an SQL filter, in a range of time."""

from __future__ import annotations

from backend.port import Backend
from backend.records import StoredRecord
from ddmq.server.admin.contract.bodies import MessageSearchBody
from ddmq.server.admin.messages import ANSWER_BYTES_MAX, message_row
from ddmq.server.admin.search.records import RecordScan, ScannedRange, read_cursor
from ddmq.server.admin.topics import WAIT_S, require_topic
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DamagedError
from proxy_consumer.filters.message_filters import SqlFilter, find_expression_error

ITEMS_MAX = 100
ITEM_BYTES_MAX = ANSWER_BYTES_MAX // ITEMS_MAX


def search_messages(backend: Backend, clock: Clock, request: AdminRequest) -> dict[str, object]:
    """Answer POST /topics/TOPIC/search. Raises CallerError."""
    body: MessageSearchBody = request.body
    if error := find_expression_error("", body.sql or ""):
        raise CallerError(error)
    matches_sql = None if body.sql is None else SqlFilter(body.sql)
    needle = None if body.text is None else body.text.encode()
    ranges = _list_ranges(backend, request.topic, body)
    scan = RecordScan(backend, clock, ranges, read_cursor(body.after))
    items = []
    for record in scan.walk_records():
        if needle is not None and needle not in record.delivery:  # it has key, tags, properties and body
            continue
        if matches_sql is not None and not _is_match(matches_sql, record):
            continue
        try:
            items.append(message_row(record, ITEM_BYTES_MAX))
        except DamagedError:
            continue
        if len(items) >= min(body.count, ITEMS_MAX):
            scan.stop()
    following = None if scan.next is None else str(scan.next)
    exact = scan.next is None and body.after is None
    return {
        "items": items, "next": following, "total": len(items) if exact else None, "exact": exact,
        "missing": {}, "scanned": scan.scanned,
    }  # fmt: skip


def _is_match(sql: SqlFilter, record: StoredRecord) -> bool:
    return sql.find_rejection(bytes(record.delivery)) is None


def _list_ranges(backend: Backend, topic: str, body: MessageSearchBody) -> list[ScannedRange]:
    """Return the offsets of the requested time in each queue of the topic."""
    queues = require_topic(backend, topic).refs()
    ranges = []
    for queue, limits in zip(queues, backend.bounds(queues).wait(WAIT_S), strict=True):
        if limits is None:
            continue
        start, end = limits.min, limits.next
        if body.from_ms is not None:
            start = max(start, backend.offset_for_time(queue, body.from_ms).wait(WAIT_S))
        if body.to_ms is not None:
            end = min(end, backend.offset_for_time(queue, body.to_ms).wait(WAIT_S))
        ranges.append(ScannedRange(0, queue, start, end))
    return ranges
