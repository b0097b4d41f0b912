"""Trace events of sends: when a message came, from whom, and when it was stored."""

from __future__ import annotations

from typing import Any

from backend.port import Backend
from backend.records import AppendResult, NewRecord
from backend.traces import Facts, TraceWriter, one_in_of
from ddmq_common.trace.events import TraceKind
from ddmq_common.trace.sampling import OFF, is_sampled, limit_of
from ddmq_rpc.api import Call


class TopicTrace:
    """The trace of one topic's sends. `limit`: which message ids belong to the sample."""

    __slots__ = ("_limit", "_topic", "_writer")

    def __init__(self, writer: TraceWriter, topic: str, limit: int) -> None:
        self._writer = writer
        self._topic = topic
        self._limit = limit

    def add_stored(
        self, call: Call, record: NewRecord, result: AppendResult, now_s: float, held: tuple[float, str]
    ) -> None:
        """Trace a message that is stored at `now_s`, if it is of the sample and was not stored before.

        `held`: seconds, and the rate limit that held it for so long.
        """
        if result.first is not None or not is_sampled(record.message_id, self._limit):
            return
        writer, now_ms = self._writer, self._writer.now_ms()
        sent_ms = now_ms - round((now_s - call.received_at) * 1_000)
        facts: Facts = {"topic": self._topic, "client": _client_of(call), "address": call.peer}
        if held[0]:
            facts |= {"held_ms": round(held[0] * 1_000), "held_by": held[1]}
        writer.add(record.message_id, TraceKind.SENT, "", facts, sent_ms)
        position: Facts = {"topic": record.topic, "queue": record.queue_id, "offset": result.offset}
        writer.add(record.message_id, TraceKind.STORED, "", position, now_ms)


def trace_of(backend: Backend, writer: TraceWriter | None, topic: str) -> TopicTrace | None:
    """Return how a topic is traced now; None: it is not."""
    limit = OFF if writer is None else limit_of(one_in_of(backend, topic))
    return None if writer is None or limit == OFF else TopicTrace(writer, topic, limit)


def _client_of(call: Call) -> str:
    """Return the sender's client id. The arguments are there until the call is answered."""
    args: Any = getattr(call.args, "request", call.args)  # a prepare has its messages there
    messages = getattr(args, "messages", None)
    message = (
        messages[0] if messages else getattr(args, "message", None) or getattr(args, "delayMessage", None)
    )
    client: bytes = getattr(message, "clientId", None) or b""
    return client.decode("utf-8", "replace")
