"""Pages of the messages of a topic: the newest first, or oldest first, or those with a key or an id.

A cursor contains the next offset of each queue, so that no message is listed twice or left out, whatever the
times of the messages are. In each queue, messages are listed in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from backend.port import Backend
from backend.records import Bounds, QueueRef, StoredRecord
from ddmq.server.admin.messages import (
    BACK_MAX,
    FIND_MAX,
    SEARCH_BYTES_MAX,
    STATES_MAX,
    MessageSearch,
    find_by_id,
    find_by_key,
    find_by_offset,
    read,
    read_last,
)
from ddmq.server.admin.topics import WAIT_S, require_topic
from ddmq.server.http.pace import paced
from ddmq.server.http.paging import ItemPage, PageRequest, select_page
from ddmq.server.http.routing import AdminRequest
from ddmq_common import delivery
from ddmq_common.errors import DamagedError

EXAMINED_MAX = 10_000  # messages that one page examines for a text
ANSWERED_MAX = 100  # messages of a page, which share the bytes of one answer
Offsets = list[int]  # by queue


def page_messages(search: MessageSearch, backend: Backend, request: AdminRequest, page: PageRequest) -> Any:
    """Return a page of the messages that the query chooses."""
    query, topic = request.query, request.topic
    page = page._replace(size=min(page.size, STATES_MAX if query.group is not None else ANSWERED_MAX))
    with search.lock:
        if query.id is not None:
            selected = select_page(
                find_by_id(backend, topic, query.id), _position_of, tuple[int, int, int], page
            )
        elif query.key is not None:
            selected = _page_by_key(backend, topic, query.key, page)
        else:
            selected = _page_by_offset(backend, topic, query, page)
        return selected._replace(items=search.describe_records(selected.items, query.group))


def _position_of(record: StoredRecord) -> tuple[int, int, int]:
    return record.stored_ms, record.queue_id, record.offset


def _page_by_key(backend: Backend, topic: str, key: str, page: PageRequest) -> ItemPage:
    """Return a page of the messages with a key, of which the newest FIND_MAX can be found."""
    records = find_by_key(backend, topic, key, FIND_MAX)
    matches = [record for record in records if page.matches(key)]
    selected = select_page(matches, _position_of, tuple[int, int, int], page)
    return selected._replace(exact=len(records) < FIND_MAX)


def _page_by_offset(backend: Backend, topic: str, query: Any, page: PageRequest) -> ItemPage:
    queues: Sequence[QueueRef] = require_topic(backend, topic).refs()
    if query.offset is not None:
        find_by_offset(backend, topic, query.queue, query.offset, 0)  # raises for a queue that does not exist
        queues = [queues[query.queue]]
    bounds = [each or Bounds(0, 0) for each in backend.bounds(queues).wait(WAIT_S)]
    offsets = page.decode_position(Offsets)
    if offsets is None:
        offsets = _first_offsets(backend, queues, bounds, query, page)
    offsets += [each.next if page.descending else each.min for each in bounds[len(offsets) :]]
    walk = _MessageWalk(backend, queues, bounds, offsets[: len(queues)], descending=page.descending)
    records: list[StoredRecord] = []
    while len(records) < page.size and walk.examined < EXAMINED_MAX:
        batch = walk.read_batch(page.size - len(records))
        if not batch:
            break
        records += [record for record in batch if page.text is None or _has_text(record, page.text)]
    total = None if page.text is not None else sum(each.next - each.min for each in bounds)
    is_complete = backend.gapless and query.offset is None and query.time_ms is None
    return ItemPage(
        records,
        page.encode_position(walk.offsets) if walk.has_more() else None,
        total if is_complete else None,
    )


def _first_offsets(
    backend: Backend, queues: Sequence[QueueRef], bounds: Sequence[Bounds], query: Any, page: PageRequest
) -> Offsets:
    """Return the offset with which the list begins in each queue; of a descending one, the end."""
    if query.offset is not None:
        return [query.offset]
    if query.time_ms is not None:
        return [backend.offset_for_time(queue, query.time_ms).wait(WAIT_S) for queue in paced(queues)]
    return [each.next if page.descending else each.min for each in bounds]


def _has_text(record: StoredRecord, text: str) -> bool:
    """Return whether the key, the tags or the id contains the text."""
    try:
        content = delivery.decode(record.delivery)
    except DamagedError:
        return text in record.message_id.hex()
    names = (content.key.decode("utf-8", "replace"), content.tag.decode("utf-8", "replace"))
    return any(text in name for name in (*names, record.message_id.hex()))


class _MessageWalk:
    """Reads the messages of several queues in the order of their times. `offsets`: where it continues in each
    queue; `examined`: the number of messages so far."""

    def __init__(
        self, backend: Backend, queues: Sequence[QueueRef], bounds: Sequence[Bounds], offsets: Offsets,
        *, descending: bool,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._queues = queues
        self._bounds = bounds
        self._descending = descending
        self.offsets = [
            min(max(offset, each.min), each.next) for offset, each in zip(offsets, bounds, strict=True)
        ]
        self.examined = 0

    def has_more(self) -> bool:
        """Return whether there are messages behind those that were read."""
        ends = [each.min if self._descending else each.next for each in self._bounds]
        return self.offsets != ends

    def read_batch(self, count: int) -> list[StoredRecord]:
        """Return the next messages, at most `count`; none at the end."""
        candidates: list[tuple[int, int, StoredRecord]] = []
        used = 0
        for index, queue in enumerate(paced(self._queues)):
            records = self._read_queue(index, queue, count, used)
            candidates += [
                (time_ms, index, record)
                for time_ms, record in zip(self._ordered_times(records), records, strict=True)
            ]
            candidates = self._keep_first(candidates, count)
            used = sum(len(record.delivery) for _, _, record in candidates)
        for _, index, record in candidates:
            self.offsets[index] = record.offset if self._descending else record.offset + 1
        self.examined += len(candidates)
        return [record for _, _, record in candidates]

    def _read_queue(self, index: int, queue: QueueRef, count: int, used: int) -> list[StoredRecord]:
        """Read the next messages of a queue. Offsets without a message are passed over."""
        bounds = self._bounds[index]
        if not self._descending:
            records = read(
                self._backend, queue, self.offsets[index], count, SEARCH_BYTES_MAX, used_bytes=used
            )
            records = [record for record in records if record.offset < bounds.next]
            if not records:
                self.offsets[index] = bounds.next
            return records
        while self.offsets[index] > bounds.min:
            window = Bounds(bounds.min, self.offsets[index])
            records = read_last(self._backend, queue, window, count, used)
            if records:
                return records[::-1]
            self.offsets[index] = max(bounds.min, self.offsets[index] - BACK_MAX)
        return []

    def _ordered_times(self, records: Sequence[StoredRecord]) -> Iterator[int]:
        """Return a time for each message of a queue that follows the order of the walk even if the clock was
        set back."""
        order: Callable[[int, int], int] = min if self._descending else max
        return accumulate((record.stored_ms for record in records), order)

    def _keep_first(
        self, candidates: list[tuple[int, int, StoredRecord]], count: int
    ) -> list[tuple[int, int, StoredRecord]]:
        """Return the first candidates in the order of the walk. Those of a queue keep their order."""
        sign = -1 if self._descending else 1
        return sorted(candidates, key=lambda each: (sign * each[0], each[1]))[:count]
