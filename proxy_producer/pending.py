"""One accepted sendSync, sendAsync or sendOneway: its own completion, from acceptance to its answer.

The usual way is straight: the service appends the record with this object as completion, and `settled`
answers. The other ways go through `advance`: the topic is created first, or a rate limit makes it wait, or
the message has a delay level and goes to the schedule topic instead.
Whatever happens, it is answered exactly once and released exactly once: `answered` guards the first,
`settled` or `Flow.settled` does the second.
"""

from __future__ import annotations

from backend.completion import Completion
from backend.records import AppendResult, AppendStatus, NewRecord
from ddmq_client.idl.codes import Code
from ddmq_common.queue_choice import choose
from ddmq_rpc.api import Call, Fault
from proxy_producer import replies
from proxy_producer.core.limits import longest
from proxy_producer.core.outcomes import outcome_of, refusal_of, timed_out
from proxy_producer.core.refusal import Refusal, refusal
from proxy_producer.flow import Flow
from proxy_producer.topics import Topic

_STORED = AppendStatus.STORED


class PendingSend(Completion[list[AppendResult]]):
    """State of one send. `route` is (partitionId, hashId, fromChronos) until the queue is chosen.

    `level`: the delay level asked for, 0 = none; set it before `advance`.
    """

    __slots__ = (
        "answered", "body_bytes", "call", "deadline", "flow", "frame_bytes", "level", "ours", "record",
        "route", "sent", "topic",
    )  # fmt: skip

    def __init__(
        self,
        flow: Flow,
        call: Call,
        record: NewRecord,
        deadline: float,
        body_bytes: int,
        ours: bool,
        topic: Topic | None,
    ) -> None:
        self.done = False
        self.error = None
        self._callbacks = None
        self.flow = flow
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

    # --- on the way to the backend

    def send(self) -> None:
        """Hand the record to the backend; its queue has been chosen."""
        self.sent = True
        try:
            self.flow.append((self.record,), self.deadline, self)
        except BaseException:
            self._forget()
            raise

    def advance(self, route: tuple[int, int, bool]) -> None:
        """The careful way: create the topic if it is missing, wait for rate limits if need be."""
        self.route = route
        self.flow.watch(self)
        if self.topic is None:
            self.flow.topics.create(self.record.topic, self)
        else:
            self._pass_gates(self.topic)

    def topic_settled(self, name: str, fault: Refusal | None) -> None:
        """The topic exists now, or does not and will not."""
        if self.answered:
            return
        topic = self.flow.topics.find(name)
        if fault is None and topic is None:
            fault = refusal(
                Code.NO_SUCH_QUEUE, "topic_missing", f"topic {name!r} was deleted meanwhile", "send it again"
            )
        self.topic = topic
        if fault is None and topic is not None:
            fault = topic.write_fault() or self._mode_fault(topic)
        if fault is not None:
            self._refuse_unsent(fault)
        elif topic is not None:
            self._pass_gates(topic)

    def _mode_fault(self, topic: Topic) -> Refusal | None:
        return topic.delayed_fault() if self.level else topic.plain_fault(self.route[2])

    def _pass_gates(self, topic: Topic) -> None:
        flow = self.flow
        now = flow.monotonic()
        wait_s, gate = longest(topic.gates, 1, self.body_bytes, now)
        fault = flow.rate_fault(wait_s, gate, self.deadline, now)
        if fault is not None:
            self._refuse_unsent(fault)
            return
        for one in topic.gates:
            one.take(1, self.body_bytes)
        if wait_s > 0:
            flow.defer(self, wait_s)
        else:
            self.release()

    def release(self) -> None:
        """Nothing holds it any more: choose the queue and append."""
        topic = self.topic
        if topic is None:
            raise RuntimeError("a send was released before its topic was known")
        partition_id, hash_id, _ = self.route
        topic.turn += 1
        self.record.queue_id = choose(partition_id, hash_id, topic.queues, topic.turn)
        if self.level:
            self.record = self.flow.levels.wrap(self.record, self.level)
            self.flow.levels.topic.when_ready(self._levels_ready)
        else:
            self._send_careful()

    def _levels_ready(self, fault: Refusal | None) -> None:
        if self.answered:
            return
        if fault is None:
            self._send_careful()
        else:
            self._refuse_unsent(fault)

    def _send_careful(self) -> None:
        try:
            self.send()
        except BaseException:
            self.call.fault(Fault.INTERNAL_ERROR, "the send failed inside the proxy")
            raise

    # --- the answer

    def settled(self) -> None:
        """The backend's answer is here: answer the caller, unless the sweep has."""
        flow = self.flow
        flow.inflight -= 1
        flow.inflight_bytes -= self.frame_bytes
        if self.answered:
            flow.counts.late(self.error is None and self.value[0].status is _STORED)
            return
        flow.unanswered.discard(self)
        if self.error is not None:
            self._answer(refusal_of(self.error))
            return
        result = self.value[0]
        if result.status is _STORED:
            self._answer_stored(result)
        else:
            self._answer(outcome_of(result))

    def _answer_stored(self, result: AppendResult) -> None:
        call, flow = self.call, self.flow
        self.answered = True
        if self.topic is not None:
            counts = self.topic.counts
            counts.latency.observe((flow.monotonic() - call.received_at) * 1e6)
            counts.stored.value += 1
            counts.stored_bytes.value += self.body_bytes
        if self.ours:
            reply = replies.scheduled if self.level else replies.stored
            call.reply(reply(self.record, result))
        else:
            call.reply_encoded(replies.OK[call.wire])

    def expire(self) -> None:
        """Out of time: say what it was waiting for, and whether it can be stored."""
        waited_ms = round((self.deadline - self.call.received_at) * 1_000)
        doing = "the backend" if self.sent else self._held_by() if self.topic else "the topic's creation"
        fault = timed_out(waited_ms, doing, self.sent)
        if self.sent:
            self.flow.unanswered.discard(self)
            self._answer(fault)
        else:
            self._refuse_unsent(fault)

    def _held_by(self) -> str:
        return "a rate limit or the delay levels' topic" if self.level else "a rate limit"

    def _refuse_unsent(self, fault: Refusal) -> None:
        self.flow.settled(self, self.frame_bytes)
        self._answer(fault)

    def _answer(self, fault: Refusal) -> None:
        self.answered = True
        self.flow.counts.refused(self.topic.name if self.topic else None, fault)
        self.call.reply(replies.refused(fault))

    def _forget(self) -> None:
        """The backend raised: it will not settle this; whoever called hears of the error."""
        if not self.done:
            self.done = True
            self.answered = True
            self.flow.settled(self, self.frame_bytes)
