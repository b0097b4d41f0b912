"""Requests for messages: by id, key, offset or time, and what became of each for a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gevent.lock import BoundedSemaphore

from backend.port import Backend
from backend.records import StoredRecord
from ddmq.server.admin import queries
from ddmq.server.admin.message_state import Live, MessageStates
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import AdminRequest


class MessageSearch:
    """`live`: what the consumer proxy of this process knows of a message; None where it runs elsewhere."""

    def __init__(self, backend: Backend, live: Live | None) -> None:
        self._backend = backend
        self._live = live
        self._looking = BoundedSemaphore()

    def by_id(self, request: AdminRequest) -> Any:
        """The message with the id in the path, in whatever topic: a list of one or none."""
        return self._rows(queries.find_by_id(self._backend, None, request.path["id"]), request.query)

    def in_topic(self, request: AdminRequest) -> Any:
        """Messages of a topic. Searches take turns: each may hold many messages."""
        with self._looking:
            return self._in_topic(request)

    def _in_topic(self, request: AdminRequest) -> list[dict[str, Any]]:
        topic, query = request.path["topic"], request.query
        count = min(request.number("count", 10), queries.FIND_MAX)
        if "id" in query:
            found = queries.find_by_id(self._backend, topic, query["id"])
        elif "key" in query:
            found = queries.find_by_key(self._backend, topic, query["key"], count)
        elif "offset" in query:
            found = queries.find_by_offset(
                self._backend, topic, request.number("queue", 0), request.number("offset", 0), count
            )
        elif "time_ms" in query:
            found = queries.find_by_time(self._backend, topic, request.number("time_ms", 0), count)
        else:
            found = queries.newest(self._backend, topic, count)
        return self._rows(found, query)

    def _rows(self, found: Sequence[StoredRecord], query: Mapping[str, str]) -> list[dict[str, Any]]:
        """Rows, which share what an answer may hold; with `group=` each says what became of it there."""
        share = queries.ANSWER_BYTES_MAX // max(len(found), 1)
        whole = len(found) == 1 or "offset" in query
        rows = [queries.message_row(record, None if whole else share) for record in paced(found)]
        if "group" not in query:
            return rows
        return MessageStates(self._backend, query["group"], self._live).add(rows, found)
