"""The state of single messages for one group: done, in flight, retrying, dead, or not yet.

Progress says what is finished. A finished message may have gone on: to the retry path or to the dead
letters, where its id finds it. Of an unfinished one the proxy that holds its queue knows more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backend.port import Backend
from backend.records import ProgressView, QueueRef, StoredRecord
from ddmq.server.admin.offsets import is_broadcast
from ddmq.server.admin.queries import WAIT_S
from ddmq.server.http.routing import NoSuchGroupError
from ddmq_common import names
from ddmq_common.errors import CallerError, UnsupportedError
from proxy_consumer.groups.group import group_key, subscription_key
from proxy_consumer.groups.message_states import DONE, NOT_YET, RETRYING, LiveState

COUNT_MAX = 100
DEAD = "dead"
EACH_ITS_OWN = "broadcast: every instance has its own place"
Live = Callable[[str, str, QueueRef, int], LiveState | None]


class MessageStates:
    """The answers to one request about one group. `live`: what the proxy here knows; None elsewhere."""

    def __init__(self, backend: Backend, group: str, live: Live | None) -> None:
        if backend.setting(group_key(group)) is None:
            raise NoSuchGroupError(f"group {group!r} does not exist; `ddmq group list` shows those that do")
        self._backend = backend
        self._group = group
        self._live = live
        self._views: dict[tuple[str, QueueRef], ProgressView] = {}

    def add(self, rows: Sequence[dict[str, Any]], records: Sequence[StoredRecord]) -> list[dict[str, Any]]:
        """The rows with `state`, and what is known besides."""
        if len(rows) > COUNT_MAX:
            raise CallerError(f"{len(rows)} messages with their state are asked for; allowed: {COUNT_MAX}")
        return [row | self._of(record) for row, record in zip(rows, records, strict=True)]

    def _of(self, record: StoredRecord) -> dict[str, Any]:
        key = subscription_key(self._group, record.topic)
        if self._backend.setting(key) is None:
            return {"state": f"{self._group} does not consume {record.topic}"}
        if is_broadcast(self._backend, self._group, record.topic):
            return {"state": EACH_ITS_OWN}
        info = self._backend.topic(record.topic)
        if info is None:
            return {"state": "gone with its topic"}
        queue = QueueRef(info.name, info.incarnation, record.queue_id)
        view = self._view(self._group, queue)
        if _finished(view, record.offset):
            return self._moved_on(record) or {"state": DONE}
        return self._unfinished(record.topic, queue, record.offset, view)

    def _unfinished(self, topic: str, queue: QueueRef, offset: int, view: ProgressView) -> dict[str, Any]:
        live = None if self._live is None else self._live(self._group, topic, queue, offset)
        if live is not None:
            said = {"state": live.state, "deliveries": live.deliveries}
            return said | ({"last_error": live.error} if live.error else {})
        if offset in view.attempts:
            return {"state": RETRYING}
        return {
            "state": NOT_YET,
            "note": "its queue is not held by this proxy: another may have it in flight",
        }

    def _moved_on(self, record: StoredRecord) -> dict[str, Any] | None:
        """Finished here because it went to the dead letters or along the retry path."""
        for topic, state in (
            (names.dlq_topic(self._group), DEAD),
            (names.retry_topic(self._group), RETRYING),
        ):
            for found in self._find(topic, record.message_id):
                queue = self._queue(found)
                if state == DEAD:
                    return {"state": DEAD, "dead_letter_offset": found.offset}
                if queue is not None and not _finished(self._view(self._group, queue), found.offset):
                    view = self._view(self._group, queue)
                    return self._unfinished(record.topic, queue, found.offset, view) | {"on_retry_path": True}
        for found in self._find(names.SCHEDULE_TOPIC, record.message_id):
            queue = self._queue(found)
            if queue is not None and not _finished(self._view(names.LEVELS_GROUP, queue), found.offset):
                return {"state": RETRYING, "on_retry_path": True, "due_ms": found.due_ms}
        return None

    def _find(self, topic: str, message_id: bytes) -> list[StoredRecord]:
        if self._backend.topic(topic) is None:
            return []
        try:
            return self._backend.find(topic, message_id=message_id).wait(WAIT_S)
        except UnsupportedError:
            return []

    def _queue(self, record: StoredRecord) -> QueueRef | None:
        info = self._backend.topic(record.topic)
        return None if info is None else QueueRef(info.name, info.incarnation, record.queue_id)

    def _view(self, group: str, queue: QueueRef) -> ProgressView:
        view = self._views.get((group, queue))
        if view is None:
            view = self._views[group, queue] = self._backend.progress(group, [queue]).wait(WAIT_S)[0]
        return view


def _finished(view: ProgressView, offset: int) -> bool:
    if offset < (view.committed or 0):
        return True
    return any(start <= offset < end for start, end in view.finished)
