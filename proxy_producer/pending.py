"""One accepted send of any kind: its own completion, from acceptance to its answer.

The usual way is straight: the service hands the record to the backend with this object as completion, and
`settled` answers. The careful way goes through `advance`: the topic is created first, or a rate limit makes
it wait, or an internal topic is to be had. Kinds of sends differ in two things alone: where they go on the
careful way, their `destination`, and how their callers are answered, their `answers`. Those of messages
without a due time stand here; those of the delay service's commands in delay/sends.py.
Whatever happens, it is answered exactly once and leaves the in-flight counts exactly once: `answered` guards
the first, `settled` or `Flow.settled` does the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from backend.completion import Completion
from backend.internal_topics import schedule_record
from backend.port import Backend
from backend.records import AppendResult, AppendStatus, NewRecord
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import Levels
from ddmq_common.names import SCHEDULE_TOPIC
from ddmq_common.queue_choice import choose
from ddmq_rpc.api import Call, Fault
from proxy_producer import wire
from proxy_producer.core.refusals import SendRefusal, failure_of, refusal_of, timed_out
from proxy_producer.flow import Flow
from proxy_producer.topics import InternalTopic, KnownTopic, longest

_STORED = AppendStatus.STORED


class Answers(Protocol):
    """How the caller of one kind of sends is answered."""

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        """Its record is stored: answer, at once or when there is more to tell."""

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        """It was not accepted, is not stored, or nobody knows: answer so, and count it."""


class Destination(Protocol):
    """Where one send on the careful way goes. `held_by`: what it may wait for on its way."""

    @property
    def held_by(self) -> str: ...

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        """Codes 18 and 19, for a topic that did not exist when the send was checked."""

    def append(self, send: PendingSend) -> None:
        """No limit holds the send any more: let `send.send_careful` follow, or `send.refuse_unsent`."""


class PendingSend(Completion[list[AppendResult]]):
    """State of one send. Making one accepts it: it counts against the bounds from then on.

    `topic`: whose limits and counts are its own; None as long as it does not exist. `on_settled()`: runs when
    the backend has settled it, after the answer, whenever that was.
    """

    __slots__ = (
        "answered", "answers", "body_bytes", "call", "deadline", "destination", "flow", "frame_bytes", "held",
        "on_settled", "ours", "record", "sent", "topic",
    )  # fmt: skip

    def __init__(
        self,
        flow: Flow,
        call: Call,
        record: NewRecord,
        deadline: float,
        body_bytes: int,
        ours: bool,
        topic: KnownTopic | None,
        answers: Answers,
    ) -> None:
        self.done = False
        self.error = None
        self._callbacks = None
        self.flow = flow
        self.call = call
        self.record = record
        self.deadline = deadline
        self.body_bytes = body_bytes
        self.frame_bytes = frame_bytes = call.frame_bytes
        self.ours = ours
        self.topic = topic
        self.answers = answers
        self.answered = False
        self.sent = False
        self.on_settled: Callable[[], None] | None = None
        flow.inflight += 1
        flow.inflight_bytes += frame_bytes

    # --- on the way to the backend

    def send(self) -> None:
        """Hand the record to the backend; its queue has been chosen."""
        self.sent = True
        try:
            self.flow.backend.append((self.record,), self.deadline, self)
        except BaseException:
            self._forget()
            raise

    def send_careful(self) -> None:
        """The same from a place that no call waits for."""
        try:
            self.send()
        except BaseException:
            self.call.fault(Fault.INTERNAL_ERROR, "the send failed inside the proxy")
            raise

    def advance(self, destination: Destination, name: str | None) -> None:
        """The careful way: create topic `name` if it is missing (None: it need not be there), wait for rate
        limits if need be."""
        self.destination = destination
        if self.topic is not None:
            self._pass_limits(self.topic)
        elif name is not None:
            self.flow.topics.create(name, self)
        else:
            self.release()
        if not (self.done or self.answered):
            self.flow.watch(self)

    def topic_settled(self, name: str, found: KnownTopic | SendRefusal) -> None:
        """The topic exists now, or does not and will not."""
        if self.answered:
            return
        if isinstance(found, SendRefusal):
            self.refuse_unsent(found)
            return
        self.topic = found
        fault = found.write_fault() or self.destination.mode_fault(found)
        if fault is not None:
            self.refuse_unsent(fault)
        else:
            self._pass_limits(found)

    def _pass_limits(self, topic: KnownTopic) -> None:
        if not topic.limiters:
            self.release()
            return
        flow = self.flow
        now = flow.monotonic()
        wait_s, limiter = longest(topic.limiters, 1, self.body_bytes, now)
        fault = flow.rate_fault(wait_s, limiter, self.deadline, now)
        if fault is not None:
            self.refuse_unsent(fault)
            return
        for one in topic.limiters:
            one.take(1, self.body_bytes)
        if wait_s > 0:
            self.held = wait_s, "" if limiter is None else limiter.shown()
            flow.defer(self, wait_s)
        else:
            self.release()

    def release(self) -> None:
        """No limit holds it any more."""
        self.destination.append(self)

    def wait_for(self, topic: InternalTopic, go_on: Callable[[], None]) -> None:
        """`go_on` follows when the internal topic is there; where it cannot be had, the send is refused."""
        if topic.ready:
            go_on()
        else:
            topic.when_ready(partial(self._waited, go_on))

    def _waited(self, go_on: Callable[[], None], fault: SendRefusal | None) -> None:
        if self.answered:
            return
        if fault is None:
            go_on()
        else:
            self.refuse_unsent(fault)

    def choose_queue(self, place: tuple[int, int]) -> None:
        """The queue of the topic that (partitionId, hashId) `place` means."""
        topic = self.topic
        if topic is None:
            raise RuntimeError("a send was released before its topic was known")
        topic.turn += 1
        key = self.record.key if topic.by_key else b""
        self.record.queue_id = choose(place[0], place[1], topic.queues, topic.turn, key)

    # --- the answer

    def settled(self) -> None:
        """The backend's answer is here: answer the caller, unless the sweep has."""
        flow = self.flow
        flow.inflight -= 1
        flow.inflight_bytes -= self.frame_bytes
        if self.answered:
            flow.counts.late(self.error is None and self.value[0].status is _STORED)
        else:
            flow.unanswered.discard(self)
            self._answer_settled()
        if self.on_settled is not None:
            self.on_settled()

    def _answer_settled(self) -> None:
        if self.error is not None:
            self._refuse(refusal_of(self.error))
            return
        result = self.value[0]
        if result.status is _STORED:
            self.answers.stored(self, result)
        else:
            self._refuse(failure_of(result))

    def count_stored(self, *, before: bool = False) -> None:
        """Its caller is told that it is stored, or was `before`: counted under the message's topic."""
        self.answered = True
        if self.topic is not None:
            counts = self.topic.counts
            counts.latency.observe((self.flow.monotonic() - self.call.received_at) * 1e6)
            counts.stored.value += 1
            if before:
                counts.duplicates.value += 1
            else:
                counts.stored_bytes.value += self.body_bytes

    def expire(self) -> None:
        """Out of time: say what it was waiting for, and whether it can be stored."""
        waited_ms = round((self.deadline - self.call.received_at) * 1_000)
        if self.sent:
            self.flow.unanswered.discard(self)
            self._refuse(timed_out(waited_ms, "the backend", sent=True))
        else:
            doing = self.destination.held_by if self.topic else "the topic's creation"
            self.refuse_unsent(timed_out(waited_ms, doing, sent=False))

    def refuse_unsent(self, fault: SendRefusal) -> None:
        """It does not get to the backend."""
        self.flow.settled(self, self.frame_bytes)
        self._refuse(fault)

    def _refuse(self, fault: SendRefusal) -> None:
        self.answered = True
        self.answers.refused(self, fault)

    def _forget(self) -> None:
        """The backend raised: it will not settle this; whoever called hears of the error."""
        if not self.done:
            self.done = True
            self.answered = True
            self.flow.settled(self, self.frame_bytes)


@dataclass(slots=True)
class SendAnswers:
    """A plain send is answered with a constant; callers that know fields of ours are `told` more."""

    told: Callable[[NewRecord, AppendResult], Any]

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        send.count_stored(before=result.first is not None)
        if send.ours:
            send.call.reply(self.told(send.record, result))
        else:
            send.call.reply_encoded(wire.OK[send.call.wire])

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        refuse(send.flow, send.call, send.topic, fault)


def refuse(flow: Flow, call: Call, topic: KnownTopic | None, fault: SendRefusal) -> None:
    """Answer a send of a message that is not stored, and count it."""
    flow.counts.refused(None if topic is None else topic.name, fault)
    call.reply(wire.refused(fault))


SEND_ANSWERS = SendAnswers(wire.stored)


@dataclass(slots=True)
class ToTopic:
    """A send without any delay. `chronos`: a delay service sends it, also to topics for delayed ones."""

    place: tuple[int, int]
    chronos: bool
    held_by = "a rate limit"

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        return topic.plain_fault(self.chronos)

    def append(self, send: PendingSend) -> None:
        send.choose_queue(self.place)
        send.send_careful()


class DelayLevels:
    """What DELAY=n means to one producer proxy, and the topic that has a queue for each level."""

    def __init__(self, backend: Backend, table: Levels, clock: Clock, timeout_s: float) -> None:
        self.table = table
        self.topic = InternalTopic(backend, SCHEDULE_TOPIC, len(table), clock, timeout_s)


@dataclass(slots=True)
class ToLevel:
    """A send with a delay level: its record goes to the levels' topic instead, with its queue chosen."""

    levels: DelayLevels
    level: int
    place: tuple[int, int]
    held_by = "a rate limit or the delay levels' topic"

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        return topic.delayed_fault()

    def append(self, send: PendingSend) -> None:
        send.choose_queue(self.place)
        send.record = schedule_record(send.record, self.level, self.levels.table)
        send.wait_for(self.levels.topic, send.send_careful)


LEVEL_ANSWERS = SendAnswers(wire.scheduled)
