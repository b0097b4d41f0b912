"""The admin HTTP API: health, metrics, and the queries and changes that the command line makes.

| request | answer |
|---|---|
| GET /health · /ready | 200 while the process lives · 200 when it takes sends, else 503 with the reason |
| GET /metrics | Prometheus text |
| GET /topics?internal=0·count=·after= · /topics/NAME | rows · one topic with its queues |
| POST /topics/NAME {create, queues, …} · DELETE /topics/NAME | the topic · {} |
| GET /topics/NAME/messages?id=·key=·queue=&offset=·time_ms=·count=·group= | messages |
| GET /messages/ID | the message with that id, in whatever topic |
| /groups… | the consumer groups: group_routes.py |
| GET /dlq · /dlq/GROUP?reason=·topic=·since_ms=·from=·count= | groups with dead letters · the open ones |
| POST /dlq/GROUP/resend {all, offsets, …} · POST /dlq/GROUP/purge {all, before_ms} | what was done |
| GET /delay · /delay/messages?topic=·from_ms=·to_ms=·count=·after= | what waits, counted · by due time |
| GET /delay/messages/ID · /delay/count?topic=·from_ms=·to_ms= | one by its delay id or uuid · how many |
| POST /delay/backup {folder} | a copy of the pending messages in a new folder of the server |
| GET /stats | everything `ddmq stats` shows |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.lock import BoundedSemaphore

from backend.port import Backend, Health
from backend.records import StoredRecord
from ddmq.server.admin import dlq, dlq_changes, groups, queries, topics
from ddmq.server.admin.group_routes import GroupRoutes
from ddmq.server.admin.message_state import MessageStates
from ddmq.server.admin.other_parts import OtherParts
from ddmq.server.config import BACKUPS
from ddmq.server.delays.routes import DelayRoutes
from ddmq.server.http.forwarding import FORWARDED
from ddmq.server.http.pace import breathe, paced
from ddmq.server.http.routing import AdminRequest, AdminRouter, Text
from ddmq_common.clock import Clock
from ddmq_common.errors import UnsupportedError
from ddmq_common.metrics.registry import ANSWERS_S, Registry
from delay_service.service import DelayService
from proxy_consumer.service import ConsumerService

PAGE_CHEAP_S = 0.05  # processor time; a metrics page that takes less is made anew each time
PAGE_RESTS = 10  # others after so many times what they took
PAGE_KEPT_S = 10.0  # at most


class AdminApi:
    """The routes over one process's parts; `consumer` is None where that part runs elsewhere.

    `names`: what the server is called by those who reach it, beside loopback. `backups`: where backups go.
    `others`: the processes whose counters belong to the answer as well.
    """

    def __init__(
        self,
        backend: Backend,
        consumer: ConsumerService | None,
        metrics: Registry,
        clock: Clock,
        health: Callable[[], Health],
        timers: DelayService | None = None,
        names: Iterable[str] = (),
        backups: Path = Path(BACKUPS),
        others: OtherParts | None = None,
    ) -> None:
        self._backend = backend
        self._consumer = consumer
        self._metrics = metrics
        self._clock = clock
        self._health = health
        self._others = others or OtherParts()
        self.groups = GroupRoutes(backend, self._consumer_here, metrics, clock)
        self._delay = DelayRoutes(backend, timers, clock, backups)
        self.router = AdminRouter(names)
        self._looking = BoundedSemaphore()
        self._making = BoundedSemaphore()
        self._made, self._page_until = Text("text/plain", b""), -math.inf
        self._add_routes()

    def _add_routes(self) -> None:
        routes: dict[tuple[str, str], Callable[[AdminRequest], Any]] = {
            ("GET", "/health"): lambda _: {"alive": True} | self._health()._asdict(),
            ("GET", "/ready"): lambda _: self._ready(),
            ("GET", "/metrics"): lambda _: self._page(),
            ("GET", "/topics"): lambda r: queries.topics(
                self._backend, internal=_flag(r, "internal"), page=r.page()
            ),
            ("GET", "/topics/{topic}"): lambda r: queries.topic_detail(self._backend, r.path["topic"]),
            ("POST", "/topics/{topic}"): self._post_topic,
            ("DELETE", "/topics/{topic}"): self._delete_topic,
            ("GET", "/topics/{topic}/messages"): self._messages,
            ("GET", "/messages/{id}"): self._message,
            ("GET", "/dlq"): lambda r: dlq.rows(self._backend, r.page()),
            ("GET", "/dlq/{group}"): self._dead_letters,
            ("POST", "/dlq/{group}/resend"): lambda r: dlq_changes.resend(
                self._backend, self._clock, r.path["group"], r.body
            ),
            ("POST", "/dlq/{group}/purge"): lambda r: dlq_changes.purge(
                self._backend, self._clock, r.path["group"], r.body
            ),
            ("GET", "/stats"): self._stats,
        }
        for (method, pattern), handler in (routes | self.groups.table() | self._delay.table()).items():
            self.router.add(method, pattern, handler)

    def _page(self) -> Text:
        """The metrics; a page that was hard to make is given again for a while."""
        with self._making:
            if self._page_until <= self._clock.monotonic():
                began = time.thread_time()
                self._metrics.fill()
                spent = time.thread_time() - began
                gevent.sleep(ANSWERS_S)
                payload, more = self._exposition()
                self._made = Text("text/plain; version=0.0.4", payload)
                self._page_until = self._clock.monotonic() + _kept_s(spent + more)
            return self._made

    def _exposition(self) -> tuple[bytes, float]:
        """The page and the processor time it took; others run between its pieces, which may be many."""
        parts, spent, began = [], 0.0, time.thread_time()
        for part in self._metrics.exposition_pieces():
            parts.append(part)
            spent += time.thread_time() - began
            breathe()
            began = time.thread_time()
        return b"".join(parts), spent

    def _ready(self) -> Text:
        health = self._health()
        return Text("application/json", msgspec.json.encode(health._asdict()), 200 if health.ready else 503)

    def _post_topic(self, request: AdminRequest) -> Any:
        settings = dict(request.body)
        change = topics.create if settings.pop("create", True) else topics.update
        return queries.topic_row(change(self._backend, self._clock, request.path["topic"], settings))

    def _delete_topic(self, request: AdminRequest) -> Any:
        topics.delete(self._backend, self._clock, request.path["topic"])
        return {}

    def _messages(self, request: AdminRequest) -> Any:
        """One after another: each may hold many messages."""
        with self._looking:
            return self._found(request)

    def _found(self, request: AdminRequest) -> list[dict[str, Any]]:
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
        live = None if self._consumer is None else self._consumer.message_state
        return MessageStates(self._backend, query["group"], live).add(rows, found)

    def _message(self, request: AdminRequest) -> Any:
        return self._rows(queries.find_by_id(self._backend, None, request.path["id"]), request.query)

    def _consumer_here(self) -> ConsumerService:
        if self._consumer is None:
            raise UnsupportedError(
                "no consumer proxy in this process; ask the admin port of the one that has it"
            )
        return self._consumer

    def _dead_letters(self, request: AdminRequest) -> Any:
        start = request.number("from", 0)
        count = min(request.number("count", 20), dlq.SHOWN_MAX)
        return dlq.show(self._backend, request.path["group"], dlq.choice_of(request.query), start, count)

    def _stats(self, request: AdminRequest) -> Any:
        if FORWARDED in request.query:
            return {"counters": self._metrics.snapshot(paced)}
        found: dict[str, Any] = {"health": self._health()._asdict(), "at_ms": self._clock.wall_ms()}
        found["topics"] = queries.topics(self._backend, internal=True)
        if self._consumer is not None:
            found["groups"] = groups.rows(self._backend, self._consumer, self._clock)
        found["counters"], found["silent_parts"] = self._others.merged(self._metrics.snapshot(paced))
        return found


def _flag(request: AdminRequest, name: str) -> bool:
    return request.query.get(name, "0") not in ("0", "false", "")


def _kept_s(spent_s: float) -> float:
    return 0.0 if spent_s < PAGE_CHEAP_S else min(spent_s * PAGE_RESTS, PAGE_KEPT_S)
