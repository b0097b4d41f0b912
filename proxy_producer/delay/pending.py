"""One accepted delay order on its way: to the inner topic, and for some callers on to its outcome.

A PendingSend whose record goes to DELAY_TOPIC while its counts, limits and modes are those of the target
topic. The order is written into the record last: an order whose caller waits names the reply queue, and
that is known only when outcomes can be heard. Once such an order is stored, running out of time is no code
12 any more: the order will be carried out, so the answer is 0 and "pending".
"""

from __future__ import annotations

import msgspec

from backend.records import AppendResult, NewRecord
from ddmq_common.delay_command import (
    ADD,
    ADDED,
    COMMAND_PROPERTY,
    PENDING,
    DelayCommand,
    DelayOutcome,
    encode_command,
)
from ddmq_rpc.api import Call
from proxy_producer import replies
from proxy_producer.core.delay_checks import echoed_id
from proxy_producer.core.refusal import Refusal
from proxy_producer.delay.outcomes import OutcomeDesk
from proxy_producer.flow import Flow
from proxy_producer.internal_topic import InternalTopic
from proxy_producer.pending import PendingSend
from proxy_producer.topics import Topic


class DelayShared:
    """What all orders of one proxy share."""

    __slots__ = ("flow", "inner", "outcomes")

    def __init__(self, flow: Flow, inner: InternalTopic, outcomes: OutcomeDesk) -> None:
        self.flow = flow
        self.inner = inner
        self.outcomes = outcomes


class PendingDelay(PendingSend):
    """State of one order. `order` None: it stands in the record already (the usual add of an old client).

    `waits`: the caller is told the outcome. `ours`: it may be told what old clients are not.
    """

    __slots__ = ("delay_id", "order", "reply_id", "shared", "stored", "waits")

    def __init__(
        self,
        shared: DelayShared,
        call: Call,
        record: NewRecord,
        deadline: float,
        body_bytes: int,
        ours: bool,
        topic: Topic | None,
        delay_id: bytes,
        order: DelayCommand | None = None,
        waits: bool = False,
    ) -> None:
        self.done = False  # all that PendingSend sets, in one call less: this is the hot path
        self.error = None
        self._callbacks = None
        self.flow = shared.flow
        self.call = call
        self.record = record
        self.deadline = deadline
        self.body_bytes = body_bytes
        self.frame_bytes = call.frame_bytes
        self.ours = ours
        self.topic = topic
        self.level = 0
        self.answered = False
        self.sent = False
        self.shared = shared
        self.delay_id = delay_id
        self.order = order
        self.waits = waits
        self.reply_id = 0
        self.stored = False

    # --- on the way

    def advance(self, route: tuple[int, int, bool]) -> None:
        """As a send: create the target, pass its limits. A change of what exists needs neither."""
        self.route = route
        self.flow.watch(self)
        order = self.order
        if self.topic is not None:
            self._pass_gates(self.topic)
        elif order is not None and order.op == ADD:
            self.flow.topics.create(order.topic, self)
        else:
            self.release()

    def _mode_fault(self, topic: Topic) -> Refusal | None:
        return topic.delayed_fault()

    def _held_by(self) -> str:
        return "a rate limit or the delay service's inner topics"

    def release(self) -> None:
        """Nothing holds it any more but the inner topics."""
        self.shared.inner.when_ready(self._inner_ready)

    def _inner_ready(self, fault: Refusal | None) -> None:
        if self.answered:
            return
        if fault is not None:
            self._refuse_unsent(fault)
        elif self.waits:
            self.shared.outcomes.when_ready(self)
        else:
            self._write()

    def outcomes_ready(self, fault: Refusal | None) -> None:
        """Where outcomes cannot be heard, the order goes all the same and its caller is told "pending"."""
        if self.answered:
            return
        place = None if fault is not None else self.shared.outcomes.expect(self)
        if place is not None and self.order is not None:
            self.order = msgspec.structs.replace(self.order, reply_queue=place[0], reply_id=place[1])
            self.reply_id = place[1]
        self._write()

    def _write(self) -> None:
        if self.order is not None:
            self.record.queue_id = self.order.shard % self.shared.inner.queues
            self.record.system = {COMMAND_PROPERTY: encode_command(self.order)}
        self._send_careful()

    # --- the answer

    def _answer_stored(self, result: AppendResult) -> None:
        if self.order is None and self.topic is not None:  # nearly all there are
            call, flow, counts = self.call, self.flow, self.topic.counts
            self.answered = True
            counts.latency.observe((flow.monotonic() - call.received_at) * 1e6)
            counts.stored.value += 1
            counts.stored_bytes.value += self.body_bytes
            replies.delay_stored(call, self.delay_id)
            return
        self.stored = True
        if self.reply_id:
            self.flow.watch(self)  # until the outcome comes, or the time is up
            return
        if self.waits:
            self._tell(PENDING)
        else:
            self._tell(ADDED if self.ours else 0)

    def decided(self, outcome: DelayOutcome) -> None:
        """What became of it; the append's own answer may still be on its way."""
        self.reply_id = 0
        if not self.answered:
            self.flow.unanswered.discard(self)
            self._tell(outcome.code, outcome)

    def _tell(self, code: int, outcome: DelayOutcome | None = None) -> None:
        """Code 0, and with it `code`: DelayResult field 100."""
        call, flow = self.call, self.flow
        self._answered_stored()
        if code == PENDING:
            flow.counts.outcome("pending")
        if code:
            due_ms = self.order.due_ms if self.order is not None else 0
            call.reply(replies.delay_decided(self.delay_id, code, due_ms, outcome))
        else:
            replies.delay_stored(call, self.delay_id)

    def _answered_stored(self) -> None:
        """The order is durable and its caller hears so: counted under the message's topic."""
        self.answered = True
        if self.topic is not None:
            counts = self.topic.counts
            counts.latency.observe((self.flow.monotonic() - self.call.received_at) * 1e6)
            counts.stored.value += 1
            counts.stored_bytes.value += self.body_bytes

    def expire(self) -> None:
        """Out of time: pending when the order is durable, else code 12."""
        self.shared.outcomes.forget(self.reply_id)
        self.reply_id = 0
        if not self.stored:
            super().expire()
            return
        self.flow.unanswered.discard(self)
        self._tell(PENDING)

    def _answer(self, fault: Refusal) -> None:
        self.shared.outcomes.forget(self.reply_id)
        self.reply_id = 0
        self.answered = True
        if self.order is not None and self.order.op != ADD:
            self.flow.counts.change_refused(fault)
        else:
            self.flow.counts.refused(self.topic.name if self.topic else None, fault)
        self.call.reply(replies.delay_refused(fault, echoed_id(fault.code, self.delay_id)))


class PendingDialect(PendingDelay):
    """A plain send that is an order all the same: it is answered as a plain send. `level` 0: not a delay,
    but what an old delay server sends.
    """

    __slots__ = ()

    def _mode_fault(self, topic: Topic) -> Refusal | None:
        return topic.delayed_fault() if self.level else topic.plain_fault(True)

    def _tell(self, code: int, outcome: DelayOutcome | None = None) -> None:
        self._answered_stored()
        call = self.call
        if self.ours:
            call.reply(replies.delayed(self.record, self.delay_id))
        else:
            call.reply_encoded(replies.OK[call.wire])

    def _answer(self, fault: Refusal) -> None:
        PendingSend._answer(self, fault)
