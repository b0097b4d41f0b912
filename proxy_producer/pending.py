"""PendingSend: one accepted call that sends messages, from its acceptance to its answer.

There is one for each call: a single send, a batch, a delay command, the messages of a transaction or of an
acknowledgement. These differ in their Destination alone: where the records go, and how the caller is
answered.

* On the fast path the service has chosen the queue of one record and calls `append`.
* On the slow path `start` creates missing topics, waits for rate limits, then for internal topics, chooses
  the queues and calls `destination.store_messages`.

A send is answered exactly once and leaves the in-flight counts exactly once. `answered` guards the first;
`settled`, `reject_unsent` or `_leave_flow` does the second. The module is
that one life cycle, in its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from backend.completion import Completion
from backend.internal_topics import schedule_record
from backend.records import AppendResult, AppendStatus, CommitBatch, NewRecord
from ddmq_rpc.api import Call, ErrorKind
from proxy_producer import wire
from proxy_producer.core.delay_requests import schedule_id
from proxy_producer.core.rejections import SendRejection, failure_of, timed_out, to_rejection
from proxy_producer.delay.context import command_record
from proxy_producer.flow import Flow
from proxy_producer.topics import CachedTopic, InternalTopic, RateLimiter, longest_wait
from proxy_producer.wire import RequestKind, SendRequest

_STORED = AppendStatus.STORED
_NO_RATE_DELAY = 0.0, ""


class SendMember:
    """One accepted message of a send.

    `index`: its position in the call. `record`: the message for its own topic. `topic`: None while the topic
    does not exist. `request`: None for a message of the fast path, which has no delay.
    """

    __slots__ = ("body_bytes", "hash_id", "index", "partition_id", "record", "request", "topic")

    def __init__(
        self,
        index: int,
        record: NewRecord,
        body_bytes: int,
        partition_id: int,
        hash_id: int,
        topic: CachedTopic | None,
        request: SendRequest | None,
    ) -> None:
        self.index = index
        self.record = record
        self.body_bytes = body_bytes
        self.partition_id = partition_id
        self.hash_id = hash_id
        self.topic = topic
        self.request = request

    def check_mode(self, topic: CachedTopic) -> SendRejection | None:
        """Return code 18 or 19 if the topic's delay mode does not fit this message, else None."""
        request = self.request
        if request is None or not (request.level or request.command is not None):
            return topic.check_plain_send(request is not None and request.chronos)
        return topic.check_delayed_send()


@mypyc_attr(allow_interpreted_subclasses=True)
class Destination:
    """The strategy of a send: it stores the records and answers the caller.

    `partial`: messages are rejected one by one; else one rejection stops the whole call.
    """

    def __init__(self, partial: bool = False) -> None:
        self.partial = partial

    def store_messages(self, send: PendingSend) -> None:
        """Store the messages of a send whose topics exist, queues are chosen and rate limits allow it."""
        send.store_records([send.stored_record(member) for member in send.members])

    def settle_send(self, send: PendingSend) -> None:
        """Handle the backend's result. The caller may have been answered before, at its deadline."""
        if send.answered:
            send.flow.counts.count_late(send.is_stored())
        elif send.error is not None:
            send.reject_messages(to_rejection(send.error))
        else:
            self.answer_call(send, send.value)

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        """Answer the caller and count the messages. `results`: one for each member of the send, in order.

        Empty `results` mean that nothing is stored or that the outcome is unknown. `send.rejections` has the
        rejections.
        """
        raise NotImplementedError


class PendingSend(Completion[list[AppendResult]]):
    """One call that sends messages, from its acceptance to its answer. Creating it counts it as in flight.

    `deadline`: monotonic seconds. `rejections`: the rejections by index in the call; `members` are all other
    messages. `records`: the records that were passed to the backend, one for each member.
    """

    __slots__ = (
        "answered", "call", "deadline", "destination", "flow", "frame_bytes", "members",
        "missing", "rate_delay", "records", "rejections", "sent", "size", "waits_for",
    )  # fmt: skip

    def __init__(
        self,
        flow: Flow,
        call: Call,
        deadline: float,
        members: list[SendMember],
        destination: Destination,
        rejections: dict[int, SendRejection] | None = None,
    ) -> None:
        self.done = False
        self.error = None
        self._callbacks = None
        self.flow = flow
        self.call = call
        self.deadline = deadline
        self.members = members
        self.destination = destination
        self.rejections: dict[int, SendRejection] = rejections or {}
        self.size = len(members) + len(self.rejections)
        self.records: Sequence[NewRecord] = ()
        self.frame_bytes = frame_bytes = call.frame_bytes
        self.answered = False
        self.sent = False
        self.missing = 0  # topics that are being created
        self.waits_for = "a rate limit"  # for the rejection when the time is up
        self.rate_delay = _NO_RATE_DELAY  # seconds, and the rate limit that caused the delay
        flow.inflight += 1
        flow.inflight_bytes += frame_bytes

    # --- to the backend

    def append(self, records: Sequence[NewRecord]) -> None:
        """Append the records to the backend. Raises the backend's error, which the caller must answer."""
        self.records = records
        self.sent = True
        try:
            self.flow.backend.append(records, self.deadline, self)
        except BaseException:
            self._leave_flow()
            raise

    def store_records(self, records: Sequence[NewRecord], *, atomic: bool = False) -> None:
        """Append the records to the backend; with `atomic`, either all or none are stored.

        On an error, answer and raise.
        """
        self.records = records
        self.sent = True
        backend = self.flow.backend
        try:
            if atomic:
                backend.commit(CommitBatch(records), self.deadline, self)
            else:
                backend.append(records, self.deadline, self)
        except BaseException:
            self._abort_call()
            raise

    def _leave_flow(self) -> None:
        """Remove the send from the in-flight counts after the backend raised an error and so will not settle
        it."""
        if not self.done:
            self.done = True
            self.answered = True
            self.flow.leave(self, self.frame_bytes)

    def _abort_call(self) -> None:
        """Remove the send from the in-flight counts and answer its call with an internal error."""
        if not self.done:
            self._leave_flow()
            self.call.reply_error(ErrorKind.INTERNAL_ERROR, "the send failed inside the proxy")

    # --- the slow path

    def start(self) -> None:
        """Run the slow path: create missing topics, wait for rate limits, and store the messages."""
        self.flow.watch(self)
        names: dict[str, None] = {}
        for member in self.members:
            if member.topic is None and member.request is not None and member.request.adds_message:
                names[member.record.topic] = None
        if names:
            self._create_topics(list(names))
        else:
            self._pass_limits()

    def _create_topics(self, names: list[str]) -> None:
        topics = self.flow.topics
        self.missing = 1  # holds the send until all creations have begun
        for name in names:
            self.missing += 1
            rejection = topics.check_creation(name)  # the names before may have used up the bound
            if rejection is None:
                topics.create(name, self)
            else:
                self.topic_settled(name, rejection)
        self._count_down_missing()

    def topic_settled(self, name: str, topic: CachedTopic | SendRejection) -> None:
        """Continue with a topic that exists now, or reject its messages because it could not be created."""
        if self.answered:
            return
        if isinstance(topic, SendRejection):
            self._drop_topic(name, topic)
        else:
            for member in self.members:
                if member.record.topic == name:
                    member.topic = topic
        self._count_down_missing()

    def _count_down_missing(self) -> None:
        self.missing -= 1
        if not self.missing and not self.answered:
            self._check_modes()
            self._pass_limits()

    def _check_modes(self) -> None:
        """Check write permission and delay mode of all topics again, because settings may have changed
        meanwhile."""
        rejections: dict[str, SendRejection] = {}
        for member in self.members:
            topic = member.topic
            if topic is not None and topic.name not in rejections:
                rejection = topic.check_writable() or member.check_mode(topic)
                if rejection is not None:
                    rejections[topic.name] = rejection
        for name, rejection in rejections.items():
            self._drop_topic(name, rejection)

    def _drop_topic(self, name: str, rejection: SendRejection) -> None:
        """Reject all messages of one topic."""
        for member in self.members:
            if member.record.topic == name:
                self.rejections[member.index] = rejection
        if self.destination.partial:
            self.members = [member for member in self.members if member.index not in self.rejections]

    def _pass_limits(self) -> None:
        """Wait for the rate limits of all topics, and reject messages that would wait too long."""
        may_go = not self.rejections or self.destination.partial
        wait_s = self._reserve_tokens() if may_go else 0.0
        if not self.members or (self.rejections and not self.destination.partial):
            self.flow.leave(self, self.frame_bytes)
            self._answer_unstored()
        elif wait_s > 0:
            self.flow.defer(self, wait_s)
        else:
            self.release()

    def _reserve_tokens(self) -> float:
        """Take rate-limit tokens for all messages; return the seconds until they may go.

        Reject topics that are too slow.
        """
        tally: dict[CachedTopic, tuple[int, int]] = {}
        for member in self.members:
            topic = member.topic
            if topic is not None and topic.limiters:
                messages, body_bytes = tally.get(topic, (0, 0))
                tally[topic] = messages + 1, body_bytes + member.body_bytes
        flow = self.flow
        longest_s = 0.0
        slowest: RateLimiter | None = None
        for topic, (messages, body_bytes) in list(tally.items()):
            now = flow.monotonic()
            wait_s, limiter = longest_wait(topic.limiters, messages, body_bytes, now)
            rejection = flow.check_rate(wait_s, limiter, self.deadline, now)
            if rejection is not None:
                del tally[topic]
                self._drop_topic(topic.name, rejection)
            elif wait_s > longest_s:
                longest_s, slowest = wait_s, limiter
        if self.rejections and not self.destination.partial:
            return 0.0
        for topic, (messages, body_bytes) in tally.items():
            for limiter in topic.limiters:
                limiter.take_tokens(messages, body_bytes)
        if slowest is not None:
            self.rate_delay = longest_s, slowest.describe()
        return longest_s

    def release(self) -> None:
        """Continue after the rate limits: wait for internal topics, choose queues, and store the messages."""
        internal = self._missing_internal_topic()
        if internal is not None:
            self.waits_for = "an internal topic"
            internal.when_ready(self._on_internal_topic)
            return
        advanced: set[CachedTopic] = set()  # messages that may go anywhere go to one queue for each topic
        for member in self.members:
            topic = member.topic
            if topic is not None:
                if topic not in advanced:
                    advanced.add(topic)
                    topic.round_robin += 1
                record = member.record
                record.queue_id = topic.choose_queue(record.key, member.partition_id, member.hash_id)
        try:
            self.destination.store_messages(self)
        except BaseException:
            self._abort_call()
            raise

    def _missing_internal_topic(self) -> InternalTopic | None:
        """Return the first internal topic that a message needs and that does not exist yet, or None."""
        for member in self.members:
            request = member.request
            if request is None:
                continue
            if request.command is not None:
                if not self.flow.delay.commands.ready:
                    return self.flow.delay.commands
            elif request.level and not self.flow.levels.topic.ready:
                return self.flow.levels.topic
        return None

    def _on_internal_topic(self, rejection: SendRejection | None) -> None:
        if self.answered:
            return
        if rejection is None:
            self.release()
        else:
            self.reject_unsent(rejection)

    def stored_record(self, member: SendMember) -> NewRecord:
        """Return the record to store: the message itself, or its delay command or delay-level record."""
        record, request = member.record, member.request
        if request is None:
            return record
        delay = self.flow.delay
        if request.command is not None:
            if request.delay is None:
                request.command = delay.complete_command(request)
        elif request.level:
            return schedule_record(record, request.level, self.flow.levels.table)
        elif request.chronos and request.kind is not RequestKind.PREPARED:
            request.command = delay.relays.make_command(record, request.queue_choice)
        command = request.command
        return record if command is None else command_record(record, command, delay.commands.queues)

    # --- the answer

    def settled(self) -> None:
        """Handle the backend's result: leave the in-flight counts and let the destination answer."""
        flow = self.flow
        flow.inflight -= 1
        flow.inflight_bytes -= self.frame_bytes
        flow.unanswered.discard(self)
        self.destination.settle_send(self)

    def expire(self) -> None:
        """Answer code 12 at the deadline, with what the call was waiting for and whether it may still be
        stored."""
        waited_ms = round((self.deadline - self.call.received_at) * 1_000)
        if self.sent:
            self.flow.unanswered.discard(self)
            self.reject_messages(timed_out(waited_ms, "the backend", sent=True))
        else:
            waits_for = "the topic's creation" if self.missing else self.waits_for
            self.reject_unsent(timed_out(waited_ms, waits_for, sent=False))

    def reject_unsent(self, rejection: SendRejection) -> None:
        """Reject all messages, none of which was passed to the backend, and leave the in-flight counts."""
        self.flow.leave(self, self.frame_bytes)
        self.reject_messages(rejection)

    def reject_messages(self, rejection: SendRejection) -> None:
        """Reject all messages with `rejection`. It states whether they may be stored."""
        for member in self.members:
            self.rejections[member.index] = rejection
        self._answer_unstored()

    def _answer_unstored(self) -> None:
        self.answered = True
        self.destination.answer_call(self, ())

    def is_stored(self) -> bool:
        """Return whether the backend stored all messages."""
        return self.error is None and all(result.status is _STORED for result in self.value)

    def count_stored(self, results: Sequence[AppendResult], *, traced: bool = False) -> int:
        """Count and return the number of stored messages; add a rejection for each of the others.

        It also marks the call as answered. `traced`: the messages are in the trace already.
        """
        self.answered = True
        latency_us = (self.flow.monotonic() - self.call.received_at) * 1e6
        if len(self.members) != 1 or not results:
            return self._count_several(results, latency_us, traced)
        member, result = self.members[0], results[0]
        if result.status is not _STORED:
            self.rejections[member.index] = failure_of(result)
            return 0
        topic = member.topic
        if topic is not None:
            counts, is_new = topic.counts, result.first is None
            counts.latency.observe(latency_us)
            counts.add_stored(1, 0 if is_new else 1, member.body_bytes if is_new else 0)
            if topic.trace is not None and not traced:
                self.trace_stored(results)
        return 1

    def _count_several(self, results: Sequence[AppendResult], latency_us: float, traced: bool) -> int:
        """Count the messages of a batch as count_stored does. The latency is observed once for each topic."""
        tally: dict[CachedTopic, tuple[int, int, int]] = {}
        topic: CachedTopic | None = None
        stored = messages = duplicates = body_bytes = 0
        for member, result in zip(self.members, results, strict=False):
            if result.status is not _STORED:
                self.rejections[member.index] = failure_of(result)
                continue
            stored += 1
            if member.topic is not topic:  # nearly always for the first message alone
                if topic is not None:
                    tally[topic] = messages, duplicates, body_bytes
                topic = member.topic
                messages = duplicates = body_bytes = 0
                if topic is not None:
                    messages, duplicates, body_bytes = tally.get(topic, (0, 0, 0))
            messages += 1
            if result.first is None:
                body_bytes += member.body_bytes
            else:
                duplicates += 1
        if topic is not None:
            tally[topic] = messages, duplicates, body_bytes
        is_traced = False
        for topic, (messages, duplicates, body_bytes) in tally.items():
            topic.counts.latency.observe(latency_us)
            topic.counts.add_stored(messages, duplicates, body_bytes)
            is_traced = is_traced or topic.trace is not None
        if is_traced and not traced:
            self.trace_stored(results)
        return stored

    def trace_stored(self, results: Sequence[AppendResult]) -> None:
        """Add the stored messages of traced topics to the trace."""
        for member, record, result in zip(self.members, self.records, results, strict=False):
            topic = member.topic
            if topic is None or topic.trace is None or result.status is not _STORED:
                continue
            topic.trace.add_stored(self.call, record, result, self.flow.monotonic(), self.rate_delay)


class SingleDestination(Destination):
    """Stores and answers a single plain send.

    `extended`: the caller reads the Result fields that ddmq added.
    """

    def __init__(self, extended: bool) -> None:
        super().__init__()
        self._extended = extended

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        if send.rejections or not send.count_stored(results):
            reject_send(send.flow, send.call, send.members[0].topic, send.rejections[0])
        elif self._extended:
            send.call.reply(result_of(send.members[0], send.records[0], results[0]))
        else:
            send.call.reply_encoded(wire.OK[send.call.wire])


PLAIN_SEND = SingleDestination(extended=False)
EXTENDED_SEND = SingleDestination(extended=True)


def reject_send(flow: Flow, call: Call, topic: CachedTopic | None, rejection: SendRejection) -> None:
    """Answer a single send with a rejection and count it."""
    flow.counts.count_rejected(None if topic is None else topic.name, rejection)
    call.reply(wire.rejected_result(rejection))


def result_of(member: SendMember, record: NewRecord, result: AppendResult) -> Any:
    """Return the Result, with the fields that ddmq added, of a message that was stored as `record`."""
    request = member.request
    if request is not None and request.command is not None:
        return wire.delayed_result(
            record, b"" if request.command.unless_cancelled else schedule_id(request.command)
        )
    if request is not None and request.level:
        return wire.scheduled_result(record, result)
    return wire.stored_result(record, result)
