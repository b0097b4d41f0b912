"""TraceWriter: stores the trace events of one process in RMQ_SYS_TRACE_TOPIC (docs/formats-trace.md).

`add` stores an event in memory; a second later, or when many bytes are waiting, events are packed into
records, one for each message, and appended. Rules:
* A trace never slows, refuses or loses a message: no caller waits for anything here. Events beyond a bound
  (of memory, of bytes a day, of the store) are dropped and counted with the reason.
* One append is under way at a time; at the end of the process `drain` appends the remaining events.
* The setting `trace/TOPIC` states that one in so many messages of a topic is traced; it is followed here.
Times are on the clock of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol
from zlib import crc32

from backend.completion import Completion, succeeded
from backend.port import Backend
from backend.records import AppendResult, AppendStatus, Durability, NewRecord, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.delivery import encode
from ddmq_common.errors import DdmqError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import TRACE_PREFIX, TRACE_TOPIC
from ddmq_common.token_bucket import TokenBucket
from ddmq_common.trace.events import TEXT_MAX, Fact, TraceBatch, TraceEvent, TraceKind, encode_batch
from ddmq_common.trace.sampling import OFF, limit_of

log = logging.getLogger("ddmq.trace")
QUEUES = 4
EVENTS_MAX = 20_000  # in memory
BYTES_MAX = 20 << 20  # in memory
FLUSH_S = 1.0
FLUSH_BYTES = 2 << 20  # so many waiting bytes are appended at once
APPEND_RECORDS = 1_000  # per append
APPEND_S = 10.0
RETENTION_MS = 3 * 24 * 3_600_000  # on an engine with retention per topic
DAY_S = 86_400.0
EVENT_BYTES = 1_000  # assumed per event in memory, without its texts and waits
WAIT_BYTES = 160  # assumed per wait
Facts = dict[str, Fact]


class TraceTimer(Protocol):
    """A timer that fires once (ddmq_common.hub_timer)."""

    def once(self, seconds: float, ring: Callable[[], object]) -> None: ...

    def stop(self) -> None: ...


class _BufferedEvent(NamedTuple):
    """A trace event in memory. `later` returns facts that were not known when the event was added."""

    number: int
    kind: TraceKind
    at_ms: int
    group: str
    facts: Facts
    later: Callable[[], Facts] | None
    size: int


class TraceWriter:
    """Stores the trace events of one process, named `process`; `instance` distinguishes its starts.

    `limits`: the range of traced ids by topic (sampling.py); no message of other topics is traced.
    """

    def __init__(
        self,
        backend: Backend,
        metrics: Registry,
        clock: Clock,
        process: str,
        instance: str,
        bytes_per_day: int,
        timer: TraceTimer | None = None,
    ) -> None:
        self.limits: dict[str, int] = {}
        self.process = process[:TEXT_MAX]
        self._instance = instance
        self._backend = backend
        self._metrics = metrics
        self._clock = clock
        self._timer = timer or HubTimer(ref=False)
        self._events: dict[bytes, list[_BufferedEvent]] = {}
        self._count = self._bytes = self._number = 0
        self._ringing = self._hurried = False
        self._appending: Completion[list[AppendResult]] | None = None
        now = clock.monotonic()
        self._day = TokenBucket(bytes_per_day / 2 / DAY_S, bytes_per_day / 2, now)
        self._stored = metrics.cell(catalogue.TRACE_STORED)
        self.now_ms = backend.clock_ms
        for key in backend.settings(TRACE_PREFIX):
            self._on_setting_changed(key)
        self._unwatch = backend.watch_settings(self._on_setting_changed, TRACE_PREFIX)

    def close(self) -> None:
        """Stop following the settings and appending."""
        self._unwatch()
        self._timer.stop()

    def _on_setting_changed(self, key: str) -> None:
        topic = key.removeprefix(TRACE_PREFIX)
        limit = limit_of(one_in_of(self._backend, topic))
        if limit == OFF:
            self.limits.pop(topic, None)
        else:
            self.limits[topic] = limit

    # --- taking events

    def add(
        self,
        message_id: bytes,
        kind: TraceKind,
        group: str,
        facts: Facts,
        at_ms: int | None = None,
        later: Callable[[], Facts] | None = None,
    ) -> None:
        """Add an event of a message, at `at_ms` or now.

        `later` is called within a second, and the facts that it returns are added.
        """
        if self._count >= EVENTS_MAX or self._bytes >= BYTES_MAX:
            self.count_dropped("memory")
            return
        self._number += 1
        self._count += 1
        size = EVENT_BYTES
        for value in facts.values():
            if isinstance(value, str):
                size += len(value)
            elif isinstance(value, list):
                size += WAIT_BYTES * len(value)
        self._bytes += size
        at_ms = self.now_ms() if at_ms is None else at_ms
        event = _BufferedEvent(self._number, kind, at_ms, group, facts, later, size)
        events = self._events.get(message_id)
        if events is None:
            self._events[message_id] = [event]
        else:
            events.append(event)
        if not self._ringing or (self._bytes >= FLUSH_BYTES and not self._hurried):
            self._set_timer()

    def count_dropped(self, reason: str, count: int = 1) -> None:
        """Count events that are not stored, with the reason."""
        self._metrics.cell(catalogue.TRACE_DROPPED, reason).value += count

    def _set_timer(self) -> None:
        if self._appending is None:
            self._ringing, self._hurried = True, self._bytes >= FLUSH_BYTES
            self._timer.once(0.0 if self._hurried else FLUSH_S, self.flush)

    # --- storing them

    def flush(self) -> None:
        """Append the events in memory, unless an append is under way."""
        self._ringing = self._hurried = False
        if self._events and self._appending is None:
            self._append(self._take_batch())

    def _take_batch(self) -> list[tuple[int, NewRecord]]:
        """Remove the oldest events and return their records, each with its number of events."""
        batch: list[tuple[int, NewRecord]] = []
        now, wall_ms = self._clock.monotonic(), self._clock.wall_ms()
        for message_id in list(self._events)[:APPEND_RECORDS]:
            events = self._events.pop(message_id)
            self._count -= len(events)
            self._bytes -= sum([event.size for event in events])
            record = self._make_record(message_id, events, wall_ms)
            if self._day.wait_s(len(record.delivery), now):
                self.count_dropped("day", len(events))
                continue
            self._day.take_tokens(len(record.delivery))
            batch.append((len(events), record))
        return batch

    def _make_record(self, message_id: bytes, events: list[_BufferedEvent], wall_ms: int) -> NewRecord:
        trace_events = [
            TraceEvent(
                number, int(kind), at_ms, group, _shorten_facts(facts if later is None else facts | later())
            )
            for number, kind, at_ms, group, facts, later, _ in events
        ]
        body = encode_batch(TraceBatch(self.process, self._instance, trace_events))
        return NewRecord(
            TRACE_TOPIC, queue_of(message_id, QUEUES), message_id, wall_ms, encode(b"", body, b"", None)
        )

    def _append(self, batch: list[tuple[int, NewRecord]]) -> None:
        if not batch:
            self._on_append_done([], None)
            return
        self._appending = Completion()
        deadline = self._clock.monotonic() + APPEND_S
        if self._backend.topic(TRACE_TOPIC) is not None:
            self._send(batch, deadline)
            return

        def send_if_ready(topic: Completion[TopicInfo]) -> None:
            if topic.error is None:
                self._send(batch, deadline)
            else:
                self._on_append_done(batch, topic.error)

        try:
            self._backend.put_topic(topic_info(self._backend), deadline).then(send_if_ready)
        except DdmqError as error:
            self._on_append_done(batch, error)

    def _send(self, batch: list[tuple[int, NewRecord]], deadline: float) -> None:
        try:
            appended = self._backend.append([record for _, record in batch], deadline)
        except DdmqError as error:
            self._on_append_done(batch, error)
            return
        appended.then(
            lambda completion: self._on_append_done(
                batch, completion.error, None if completion.error else completion.value
            )
        )

    def _on_append_done(
        self,
        batch: list[tuple[int, NewRecord]],
        error: Exception | None,
        results: list[AppendResult] | None = None,
    ) -> None:
        if error is not None:
            log.warning("trace events could not be stored", extra={"error": str(error)})
            self.count_dropped("failed", sum(count for count, _ in batch))
        for (count, _), result in zip(batch, results or (), strict=False):
            if result.status is AppendStatus.STORED:
                self._stored.value += count
            else:
                refused = result.status is AppendStatus.REFUSED
                topic_deleted = isinstance(result.error, UnknownTopicError)
                self.count_dropped("refused" if refused and not topic_deleted else "failed", count)
        appending, self._appending = self._appending, None
        if self._events:
            self._set_timer()
        if appending is not None:
            appending.succeed([])

    def drain(self, deadline: float) -> Completion[None]:
        """Append the events in memory until `deadline` (monotonic seconds); always succeeds."""
        drained: Completion[None] = Completion()

        def append_rest(_: object = None) -> None:
            if self._appending is not None:
                self._appending.then(append_rest)
            elif self._events and self._clock.monotonic() < deadline:
                self.flush()
                append_rest()
            else:
                drained.succeed(None)

        if not self._events and self._appending is None:
            return succeeded(None)
        append_rest()
        return drained


def queue_of(message_id: bytes, queues: int) -> int:
    """Return the number of the queue that holds the trace events of a message."""
    return crc32(message_id) % queues


def one_in_of(backend: Backend, topic: str) -> int:
    """Return n if the settings select one in n messages of a topic for tracing; 0 if none are traced."""
    text = backend.setting(TRACE_PREFIX + topic) or b""
    return int(text) if text.isdigit() and len(text) < 10 else 0


def topic_info(backend: Backend) -> TopicInfo:
    """Return the settings of the trace topic to create, without a sync of its own if possible."""
    can = backend.capabilities
    durability = Durability.WRITTEN if Durability.WRITTEN in can.durability else min(can.durability)
    retention_ms = RETENTION_MS if can.engine == "kafka" else None
    return TopicInfo(TRACE_TOPIC, 0, QUEUES, durability, delay="none", retention_ms=retention_ms)


def _shorten_facts(facts: Mapping[str, Fact]) -> Facts:
    return {
        name: value[:TEXT_MAX] if isinstance(value, str) else value
        for name, value in facts.items()
        if value not in ("", None)
    }
