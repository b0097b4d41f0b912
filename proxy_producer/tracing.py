"""What a producer proxy tells of traced messages: when each came, from whom, and when it was stored.

An untraced topic has the plain answers, so nobody asks for each message whether it is traced; a traced one
has TracedAnswers in front of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from backend.port import Backend
from backend.records import AppendResult, AppendStatus, NewRecord
from backend.traces import Facts, TraceWriter, one_in_of
from ddmq_common.trace.events import TraceKind
from ddmq_common.trace.sampling import OFF, is_sampled, limit_of
from ddmq_rpc.api import Call
from proxy_producer.core.refusals import SendRefusal


class TopicAnswers(Protocol):
    """How sends to one topic are answered (pending.Answers, of any PendingSend)."""

    def stored(self, send: Any, result: AppendResult) -> None: ...

    def refused(self, send: Any, fault: SendRefusal) -> None: ...


class TopicTrace:
    """Of one traced topic. `limit`: which ids."""

    __slots__ = ("_limit", "_topic", "_writer")

    def __init__(self, writer: TraceWriter, topic: str, limit: int) -> None:
        self._writer = writer
        self._topic = topic
        self._limit = limit

    def wanted(self, record: NewRecord) -> bool:
        """Whether the message is of the sample."""
        return is_sampled(record.message_id, self._limit)

    def stored(
        self, call: Call, record: NewRecord, result: AppendResult, now_s: float, held_s: float, held_by: str
    ) -> None:
        """A message that is `wanted` is stored, at `now_s`. What was stored before is another send's."""
        if result.first is not None:
            return
        writer, now_ms = self._writer, self._writer.now_ms()
        sent_ms = now_ms - round((now_s - call.received_at) * 1_000)
        facts: Facts = {"topic": self._topic, "client": _client(call), "address": call.peer}
        if held_s:
            facts |= {"held_ms": round(held_s * 1_000), "held_by": held_by}
        writer.add(record.message_id, TraceKind.SENT, "", facts, sent_ms)
        place: Facts = {"topic": record.topic, "queue": record.queue_id, "offset": result.offset}
        writer.add(record.message_id, TraceKind.STORED, "", place, now_ms)

    def batch(self, call: Call, sent: Iterable[tuple[str, NewRecord, AppendResult]], now_s: float) -> None:
        """The same for what a batch has of this topic; each with the topic that it was sent to."""
        for topic, record, result in sent:
            stored = result.status is AppendStatus.STORED and topic == self._topic
            if stored and self.wanted(record):
                self.stored(call, record, result, now_s, 0.0, "")


class TracedAnswers:
    """Answers of sends to a traced topic."""

    __slots__ = ("_answers", "_trace")

    def __init__(self, answers: TopicAnswers, trace: TopicTrace) -> None:
        self._answers = answers
        self._trace = trace

    def stored(self, send: Any, result: AppendResult) -> None:
        if self._trace.wanted(send.record):
            held_s, held_by = getattr(send, "held", (0.0, ""))  # set where it was held
            self._trace.stored(send.call, send.record, result, send.flow.monotonic(), held_s, held_by)
        self._answers.stored(send, result)

    def refused(self, send: Any, fault: SendRefusal) -> None:
        self._answers.refused(send, fault)


def trace_of(backend: Backend, writer: TraceWriter | None, topic: str) -> TopicTrace | None:
    """How a topic is traced now; None: not at all."""
    limit = OFF if writer is None else limit_of(one_in_of(backend, topic))
    return None if writer is None or limit == OFF else TopicTrace(writer, topic, limit)


def _client(call: Call) -> str:
    """What the sender calls itself; the arguments are there until the call is answered."""
    args: Any = getattr(call.args, "request", call.args)  # of a prepare
    messages = getattr(args, "messages", None)
    message = (
        messages[0] if messages else getattr(args, "message", None) or getattr(args, "delayMessage", None)
    )
    client: bytes = getattr(message, "clientId", None) or b""
    return client.decode("utf-8", "replace")
