"""One accepted sendBatchSync or sendBatch: one append for all its messages, one answer.

The two differ in one thing. sendBatchSync is whole: the first fault refuses all of it before anything is
stored, and its answer is 0 only if all are stored. sendBatch answers for each message, so a fault
concerns its own message only. Order within a queue is the order of the messages in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from backend.completion import Completion
from backend.records import AppendResult, AppendStatus, NewRecord
from ddmq_client.idl.codes import FAILED_PREFIX, Code
from ddmq_common.queue_choice import choose
from ddmq_rpc.api import Call, Fault
from proxy_producer import wire
from proxy_producer.core.refusals import SendRefusal, failure_of, refusal_of, timed_out
from proxy_producer.delay.context import Relays
from proxy_producer.flow import Flow
from proxy_producer.topics import KnownTopic, longest
from proxy_producer.wire import BatchMember

_STORED = AppendStatus.STORED


class PendingBatch(Completion[list[AppendResult]]):
    """State of one batch; making one accepts it. `faults`: by place, what is wrong with messages that are not
    stored. `relays`: what an old delay server sends goes by them."""

    __slots__ = (
        "answered", "call", "deadline", "each", "faults", "flow", "frame_bytes", "members", "missing",
        "relays", "sent", "size", "topics",
    )  # fmt: skip

    def __init__(
        self,
        flow: Flow,
        relays: Relays,
        call: Call,
        deadline: float,
        size: int,
        members: list[BatchMember],
        faults: dict[int, SendRefusal],
        each: bool,
    ) -> None:
        super().__init__()
        self.flow = flow
        self.relays = relays
        self.call = call
        self.deadline = deadline
        self.frame_bytes = call.frame_bytes
        self.size = size
        self.members = members
        self.faults = faults
        self.each = each
        self.topics: dict[str, KnownTopic] = {}
        self.missing = 0
        self.answered = False
        self.sent = False
        flow.inflight += 1
        flow.inflight_bytes += call.frame_bytes

    # --- on the way to the backend

    def start(self) -> None:
        """The bounds have been passed: make sure that all topics exist, then go on."""
        flow = self.flow
        flow.watch(self)
        names = dict.fromkeys(member.record.topic for member in self.members)
        self.missing = 1  # holds the batch until all creations have been asked for
        for name in names:
            topic = flow.topics.find(name)
            if topic is not None:
                self.topics[name] = topic
                continue
            fault = flow.topics.creation_fault(name)  # again: the members before may have filled the bound
            self.missing += 1
            if fault is None:
                flow.topics.create(name, self)
            else:
                self.topic_settled(name, fault)
        self._one_less_missing()

    def topic_settled(self, name: str, found: KnownTopic | SendRefusal) -> None:
        """One of the missing topics exists now, or will not."""
        if self.answered:
            return
        if isinstance(found, SendRefusal):
            self._drop_topic(name, found)
        else:
            self.topics[name] = found
        self._one_less_missing()

    def _one_less_missing(self) -> None:
        self.missing -= 1
        if not self.missing and not self.answered:
            self._check_modes()
            self._pass_limits()

    def _check_modes(self) -> None:
        """Topics that did not exist when the messages were checked may have come with other rules."""
        for name, topic in self.topics.items():
            fault = topic.write_fault()
            if fault is None and not topic.takes_plain:
                chronos = all(m.chronos for m in self.members if m.record.topic == name)
                fault = topic.plain_fault(chronos)
            if fault is not None:
                self._drop_topic(name, fault)

    def _pass_limits(self) -> None:
        """Wait for the rate limits of all topics; those that would wait too long are dropped."""
        limited = any(topic.limiters for topic in self.topics.values())
        wait_s = self._longest_wait() if limited else 0.0
        if not self.members or (self.faults and not self.each):
            self._finish_unsent()
            return
        if limited:
            for topic, (messages, body_bytes) in self._tally(self.members).items():
                for limiter in topic.limiters:
                    limiter.take(messages, body_bytes)
        if wait_s > 0:
            self.flow.defer(self, wait_s)
        else:
            self.release()

    def _longest_wait(self) -> float:
        """Seconds until all that is left may go; takes nothing."""
        flow = self.flow
        now = flow.monotonic()
        longest_s = 0.0
        for topic, (messages, body_bytes) in self._tally(self.members).items():
            wait_s, limiter = longest(topic.limiters, messages, body_bytes, now)
            fault = flow.rate_fault(wait_s, limiter, self.deadline, now)
            if fault is not None:
                self._drop_topic(topic.name, fault)
            else:
                longest_s = max(longest_s, wait_s)
        return longest_s

    def _tally(self, members: Sequence[BatchMember]) -> dict[KnownTopic, tuple[int, int]]:
        """Messages and body bytes by topic."""
        topics = self.topics
        if len(topics) == 1 and members:  # nearly always: no need to look each one up
            topic = topics[members[0].record.topic]
            return {topic: (len(members), sum([member.body_bytes for member in members]))}
        tally: dict[KnownTopic, tuple[int, int]] = {}
        for member in members:
            topic = topics[member.record.topic]
            messages, body_bytes = tally.get(topic, (0, 0))
            tally[topic] = (messages + 1, body_bytes + member.body_bytes)
        return tally

    def _drop_topic(self, name: str, fault: SendRefusal) -> None:
        """The messages of one topic are not sent."""
        for member in self.members:
            if member.record.topic == name:
                self.faults[member.place] = fault
        self.members = [member for member in self.members if member.record.topic != name]

    def release(self) -> None:
        """Choose the queues and append: one queue for all of a topic that mind none."""
        turns: dict[str, int] = {}
        records: list[NewRecord] = []
        topics = self.topics
        for _, record, _, partition_id, hash_id, chronos in self.members:
            topic = topics[record.topic]
            turn = turns.get(record.topic)
            if turn is None:
                topic.turn = turn = turns[record.topic] = topic.turn + 1
            key = record.key if topic.by_key else b""
            record.queue_id = choose(partition_id, hash_id, topic.queues, turn, key)
            records.append(self.relays.relayed(record, (partition_id, hash_id)) if chronos else record)
        self.sent = True
        try:
            self.flow.backend.append(records, self.deadline, self)
        except BaseException:
            self._forget()
            raise

    # --- the answer

    def settled(self) -> None:
        """The backend's answers are here: answer the caller, unless the sweep has."""
        self.flow.settled(self, self.frame_bytes)
        results = self.value if self.error is None else []
        if self.answered:
            stored = bool(results) and all(result.status is _STORED for result in results)
            self.flow.counts.late(stored)
            return
        if self.error is not None:
            self._fail_all(refusal_of(self.error))
        self._finish(results)

    def expire(self) -> None:
        """Out of time: what was not refused before gets code 12."""
        waited_ms = round((self.deadline - self.call.received_at) * 1_000)
        doing = "the backend" if self.sent else "a rate limit or a topic's creation"
        self._fail_all(timed_out(waited_ms, doing, self.sent))
        if self.sent:
            self.flow.unanswered.discard(self)
            self._finish(())
        else:
            self._finish_unsent()

    def _fail_all(self, fault: SendRefusal) -> None:
        for member in self.members:
            self.faults[member.place] = fault
        self.members = []

    def _finish_unsent(self) -> None:
        self.flow.settled(self, self.frame_bytes)
        self._finish(())

    def _finish(self, results: Sequence[AppendResult]) -> None:
        """Count, and answer: `results` belong to `members`."""
        self.answered = True
        flow, call = self.flow, self.call
        faults = self.faults
        stored = self._count_stored(results)
        if self.each:
            self._count_faults()
            call.reply(self._each_result(results))
        elif faults:
            fault = worst(faults, self.size, stored)
            flow.counts.refused(None, fault, self.size - stored)
            call.reply(wire.refused(fault))
        else:
            call.reply_encoded(wire.OK[call.wire])

    def _records(self) -> Iterable[NewRecord]:
        """What was stored of each member."""
        return (member.record for member in self.members)

    def _count_stored(self, results: Sequence[AppendResult]) -> int:
        """How many are stored; the others become faults."""
        stored = self.members[: len(results)]
        failed = [at for at, result in enumerate(results) if result.status is not _STORED]
        if failed:
            for at in failed:
                self.faults[self.members[at].place] = failure_of(results[at])
            stored = [member for member in stored if member.place not in self.faults]
        latency_us = (self.flow.monotonic() - self.call.received_at) * 1e6
        for topic, (messages, body_bytes) in self._tally(stored).items():
            topic.counts.latency.observe(latency_us)
            topic.counts.stored.value += messages
            topic.counts.stored_bytes.value += body_bytes
            if topic.trace is not None:
                sent_to = (member.record.topic for member in self.members)
                together = zip(sent_to, self._records(), results, strict=False)
                topic.trace.batch(self.call, together, self.flow.monotonic())
        for member, result in zip(self.members, results, strict=False):
            if result.first is not None:
                counts = self.topics[member.record.topic].counts
                counts.duplicates.value += 1
                counts.stored_bytes.value -= member.body_bytes
        return len(stored)

    def _count_faults(self) -> None:
        for fault in self.faults.values():
            self.flow.counts.refused(None, fault)

    def _each_result(self, results: Sequence[AppendResult]) -> list[Any]:
        answers: list[Any] = [None] * self.size
        for place, fault in self.faults.items():
            answers[place] = wire.refused(fault)
        for member, result in zip(self.members, results, strict=False):
            if answers[member.place] is None:
                answers[member.place] = wire.stored(member.record, result)
        return answers

    def _forget(self) -> None:
        """The backend raised: it will not settle this."""
        if not self.done:
            self.done = True
            self.answered = True
            self.flow.settled(self, self.frame_bytes)
            self.call.fault(Fault.INTERNAL_ERROR, "the batch failed inside the proxy")


def worst(faults: Mapping[int, SendRefusal], size: int, stored: int) -> SendRefusal:
    """One refusal for a whole batch: 12 if the fate of any message is unknown, else the first in order."""
    place = min(faults)
    for at, fault in faults.items():
        if fault.code == Code.TIMED_OUT:
            place = at
            break
    code, reason, text = faults[place]
    said = text.removeprefix(FAILED_PREFIX).lstrip()
    summary = f"{FAILED_PREFIX} {stored} of {size} messages are stored; message {place}: {said}"
    return SendRefusal(code, reason, summary)
