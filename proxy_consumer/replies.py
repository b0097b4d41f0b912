"""`reply`: acknowledges one message together with new messages; either all of it is committed or nothing.

The message is reserved under its lease (core/replying.py), its replies pass the checks of every send (by the
ReplySender of the producer proxy, which the composition passes in), and are committed together with the
finish. Errors of the commit: FencedError: nothing is stored, and the queue is checked; any other but
RemoteError: nothing is stored and the lease continues; RemoteError: the outcome is unknown, so the queues are
acquired again under a new epoch, which fences the commit if it is still on its way, and the caller asks
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from backend.completion import Completion
from backend.records import AppendResult, CommitBatch, NewRecord, StoredRecord
from ddmq_client.idl.codes import OK_TEXT, Code, ReplyOutcome
from ddmq_common.errors import FencedError, RemoteError, TryLaterError, UnknownTopicError
from ddmq_common.metrics.catalogue import REPLIES
from ddmq_common.names import DELAY_TOPIC, SCHEDULE_TOPIC
from ddmq_rpc.api import Call
from proxy_consumer.answers import IDL
from proxy_consumer.core import replying
from proxy_consumer.core.replying import Ack, RecordedReply, Replied, ReservationResult, reply_id
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.forwarding import Forwarding
from proxy_consumer.groups.consistency import CLIENT_ID_BYTES_MAX
from proxy_consumer.peers import PassedReply
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Group, Subscription

OFFSET_MAX = (1 << 63) - 1
SEARCHES_MAX = 64  # concurrent searches for the replies of earlier acknowledgements
MOVES = "send the acknowledgement again, also to another proxy"


class ReplySender(Protocol):
    """Turns replies into records; implemented by proxy_producer/replies.py."""

    def begin(
        self, call: Call, request: Any, id_of: Callable[[int], bytes], deadline: float, keeper: Any
    ) -> None:
        """Check the `messages` of the request and build their records, with ids by index.

        `keeper`, a PendingAck, commits them and is called with the outcome.
        """


class ReplyHandling:
    """The handler of `reply` at one proxy. `sender` None: this proxy cannot send messages."""

    def __init__(
        self,
        runtime: Runtime,
        groups: Mapping[bytes, Group],
        forwarding: Forwarding,
        sender: ReplySender | None,
    ) -> None:
        self.runtime = runtime
        self.sender = sender
        self.replied = Replied()
        self._searches = 0
        self._groups = groups
        self._forwarding = forwarding

    def reply(self, call: Call) -> None:
        """Handle a client's RPC call `reply`: it acknowledges a message and sends others in one step."""
        request = call.args.request
        group = None if request.context is None else self._groups.get(request.context.groupId)
        answer = AnswerOnce(self, call, "" if group is None else group.name)
        rejection = self._find_request_error(request) or self._find_transfer(request.context)
        if rejection is not None:
            answer.reject_ack(*rejection)
            return
        queue = None if group is None else group.queues.get((request.context.topic, request.context.qid))
        if group is None or queue is None:
            self._forward_ack(answer, group, request)
            return
        ack = Ack(group.name, queue.ref, request.offset, request.lease)
        earlier = self.replied.earlier_reply(ack)
        if earlier is not None and earlier.lease_id == request.lease:
            answer.report_outcome(Code.OK, OK_TEXT, ReplyOutcome.STORED_BEFORE, earlier.results)
            return
        reservation = replying.reserve_message(queue, request.offset, request.lease)
        if reservation is ReservationResult.RESERVED:
            PendingAck(self, answer, group.subscription_of(queue), queue, ack).begin()
        elif reservation is ReservationResult.BUSY:
            answer.reject_ack(Code.BUSY, f"this acknowledgement is being committed; {MOVES}")
        elif reservation is ReservationResult.LEASE_EXPIRED:
            group.subscription_of(queue).buffer.tally.late.value += 1
            text = f"the lease {request.lease} of offset {request.offset} is over; nothing is stored"
            answer.report_outcome(Code.ILLEGAL_MESSAGE, text, ReplyOutcome.LEASE_OVER)
        else:
            self._answer_finished(answer, ack, earlier)

    def _find_request_error(self, request: Any) -> tuple[Code, str] | None:
        """Return why a request is invalid or not possible at this proxy; None if it is valid."""
        if self.runtime.stopping:
            return Code.SHUTTING_DOWN, f"this proxy is shutting down; {MOVES}"
        can = self.runtime.backend.capabilities
        if not can.atomic:
            what = f"the engine {can.engine} cannot commit messages with an acknowledgement"
            return Code.ILLEGAL_MESSAGE, f"{what}; allowed here: to send first, then to acknowledge"
        if self.sender is None:
            return Code.NO_SERVICE, "this proxy sends no messages; allowed: acknowledgements without any"
        if request.context is None or request.context.groupId not in self._groups:
            return (
                Code.ILLEGAL_MESSAGE,
                "the request names no group that exists; allowed: a message's context",
            )
        if not request.messages:
            return Code.ILLEGAL_MESSAGE, "the acknowledgement carries no messages; allowed: 1 or more"
        if request.offset is None or not 0 <= request.offset <= OFFSET_MAX:
            return Code.ILLEGAL_MESSAGE, f"offset is {request.offset}; allowed: that of a delivered message"
        if request.lease is None or request.lease <= 0:
            what = f"lease is {request.lease}"
            return Code.ILLEGAL_MESSAGE, f"{what}; allowed: the leaseId of a delivered message"
        if len(request.clientId or b"") > CLIENT_ID_BYTES_MAX:
            what = f"clientId has {len(request.clientId)} bytes"
            return Code.ILLEGAL_MESSAGE, f"{what}; allowed: at most {CLIENT_ID_BYTES_MAX}"
        return None

    def _find_transfer(self, context: Any) -> tuple[Code, str] | None:
        """Return a rejection if the queue was lost a moment ago and its new owner is not known yet."""
        until = self.runtime.lost.get((context.groupId, context.topic, context.qid))
        if until is None or until <= self.runtime.now():
            return None
        return Code.BUSY, f"the queue is between two owners; {MOVES}"

    def _forward_ack(self, answer: AnswerOnce, group: Group | None, request: Any) -> None:
        """Forward an acknowledgement of a queue that this proxy does not own, unless it was forwarded
        already."""
        context = request.context
        if group is None or not self._forwarding.queue_exists(group, context):
            what = "the context names no queue of the group"
            answer.reject_ack(Code.ILLEGAL_MESSAGE, f"{what}; allowed: a message's")
            return
        if request.forwardedBy is not None or not self._forwarding.may_be_elsewhere(group, context):
            answer.reject_ack(Code.BUSY, f"this proxy does not hold the queue; {MOVES}")
            return

        def on_passed(error: Exception | None) -> None:
            if error is None and passed.answer is not None:
                if passed.answer.code == Code.BUSY:
                    self._forwarding.forget_holders()
                answer.relay_answer(passed.answer)
                return
            self._forwarding.forget_holders()
            code = Code.TIMED_OUT if passed.sent else Code.BUSY
            answer.reject_ack(code, f"{error}; {MOVES}")

        passed = PassedReply(request, self.deadline_of(answer.call), on_passed)
        self._forwarding.pass_on(group, context, passed)

    def deadline_of(self, call: Call) -> float:
        """Return the caller's deadline in monotonic seconds."""
        requested_ms, cap_ms = call.args.request.timeout, self.runtime.config.commit_timeout_ms
        timeout_ms = requested_ms if requested_ms and 0 < requested_ms < cap_ms else cap_ms
        return call.received_at + timeout_ms / 1000

    # --- acknowledgements that may have been stored before

    def _answer_finished(self, answer: AnswerOnce, ack: Ack, recorded: RecordedReply | None) -> None:
        if recorded is not None:
            text = (
                f"the lease {ack.lease_id} is over, and the message finished under another; nothing is stored"
            )
            answer.report_outcome(Code.ILLEGAL_MESSAGE, text, ReplyOutcome.LEASE_OVER)
            return
        if self._searches >= SEARCHES_MAX:
            answer.reject_ack(
                Code.BUSY, f"{SEARCHES_MAX} earlier acknowledgements are being searched for; {MOVES}"
            )
            return
        can = self.runtime.backend.capabilities
        first = answer.call.args.request.messages[0].topic or b""
        topics = (first.decode("utf-8", "replace"), SCHEDULE_TOPIC, DELAY_TOPIC) if can.find_by_key else ()
        self._searches += 1
        self._search_reply(answer, reply_id(ack, 0), list(topics))

    def _search_reply(self, answer: AnswerOnce, message_id: bytes, topics: list[str]) -> None:
        """Search these topics for the first message of an acknowledgement; answer whether it was stored."""
        backend = self.runtime.backend
        while topics and backend.topic(topics[0]) is None:
            del topics[0]
        if not topics:
            self._searches -= 1
            text = "the message is finished; whether by this acknowledgement is not known here"
            answer.report_outcome(Code.ILLEGAL_MESSAGE, text, ReplyOutcome.FINISHED)
            return

        def on_read(answered: Completion[list[StoredRecord]]) -> None:
            if answered.error is None and answered.value:
                self._searches -= 1
                answer.report_outcome(Code.OK, OK_TEXT, ReplyOutcome.STORED_BEFORE)
            elif answered.error is None or isinstance(answered.error, UnknownTopicError):
                self._search_reply(answer, message_id, topics[1:])
            else:
                self._searches -= 1
                answer.reject_ack(
                    Code.BUSY, f"whether it is stored cannot be seen: {answered.error}; {MOVES}"
                )

        backend.find(topics[0], message_id=message_id, count_max=1).then(on_read)


_OUTCOMES = {
    ReplyOutcome.STORED: "stored",
    ReplyOutcome.STORED_BEFORE: "stored before",
    ReplyOutcome.LEASE_OVER: "lease over",
    ReplyOutcome.FINISHED: "finished",
}
_RETRYABLE = (Code.BUSY, Code.NO_SUCH_QUEUE, Code.SHUTTING_DOWN)
_UNKNOWN = (Code.TIMED_OUT, Code.BACKEND_FAILED)


class AnswerOnce:
    """The response to one call. Only the first response is sent."""

    def __init__(self, replies: ReplyHandling, call: Call, group: str) -> None:
        self.call = call
        self._replies = replies
        self._group = group
        self._answered = False

    def reject_ack(self, code: int, text: str) -> None:
        """Reject the call: nothing was stored, or (codes 10, 12) the outcome is unknown. The caller may retry
        it."""
        kind = "again" if code in _RETRYABLE else "unknown" if code in _UNKNOWN else "refused"
        self._give_answer(kind, IDL.ReplyResponse(code=int(code), msg=text))

    def report_outcome(
        self, code: int, text: str, outcome: ReplyOutcome, results: Sequence[Any] | None = None
    ) -> None:
        """Respond with the outcome of the acknowledgement."""
        response = IDL.ReplyResponse(code=int(code), msg=text, outcome=int(outcome), results=results)
        self._give_answer(_OUTCOMES[outcome], response)

    def relay_answer(self, response: Any) -> None:
        """Send the client the response that another proxy gave to this call. That proxy has counted it."""
        if not self._answered:
            self._answered = True
            self.call.reply(response)

    def _give_answer(self, kind: str, response: Any) -> None:
        if not self._answered:
            self._answered = True
            self._replies.runtime.metrics.cell(REPLIES, self._group, kind).value += 1
            self.call.reply(response)


class PendingAck:
    """One acknowledgement from the reservation of its message to its end; commits its replies."""

    def __init__(
        self,
        replies: ReplyHandling,
        answer: AnswerOnce,
        subscription: Subscription,
        queue: SubscribedQueue,
        ack: Ack,
    ) -> None:
        self._replies = replies
        self._runtime = replies.runtime
        self._answer = answer
        self._subscription = subscription
        self._queue = queue
        self._ack = ack

    @property
    def _owns_queue(self) -> bool:
        """Whether this proxy still owns the queue."""
        return self._subscription.buffer.holds_queue(self._queue)

    @property
    def _offset(self) -> int:
        return self._ack.offset

    def begin(self) -> None:
        """Have the sender check the replies; the message has been reserved."""
        runtime, call, sender = self._runtime, self._answer.call, self._replies.sender
        assert sender is not None
        runtime.open_commits += 1
        id_of = partial(reply_id, self._ack)
        sender.begin(call, call.args.request, id_of, self._replies.deadline_of(call), self)

    # --- ReplyKeeper

    def commit(self, records: list[NewRecord], into: Completion[list[AppendResult]]) -> None:
        """Commit the replies with the finish. Raises DdmqError, and stores nothing, if this proxy lost the
        queue."""
        runtime = self._runtime
        if not self._owns_queue:
            raise TryLaterError(f"the queue is not this proxy's any more; {MOVES}")
        delta = self._queue.build_finish(self._ack.group, self._offset)
        batch = CommitBatch(records=records, progress=(delta,))
        runtime.backend.commit(batch, runtime.commit_deadline(), into=into)

    def on_rejected(self, code: int, text: str) -> None:
        self._end_reservation()
        self._answer.reject_ack(code, text)

    def on_deadline(self, code: int, text: str) -> None:
        self._answer.reject_ack(code, text)

    def on_stored(self, results: Sequence[Any]) -> None:
        wire_results = [
            IDL.ReplyResult(
                messageId=one.messageId,
                queueId=one.queueId,
                offset=one.offset,
                durability=one.durability,
                delayId=one.delayId,
            )
            for one in results
        ]
        self._replies.replied.record_reply(self._ack, wire_results)
        offset, subscription = self._offset, self._subscription
        if self._owns_queue:
            tally = subscription.buffer.tally
            job = self._queue.table.jobs.get(offset)
            lease = replying.finish_reserved(self._queue, offset)
            tally.acked.value += 1
            tally.process.observe((self._runtime.now() - lease.since) * 1e6)
            if job is not None:
                subscription.retries.on_finished(job)
        self._release_message()
        self._answer.report_outcome(Code.OK, OK_TEXT, ReplyOutcome.STORED, wire_results)

    def on_failed(self, error: Exception, code: int, text: str) -> None:
        self._runtime.progress_failed(error)
        subscription = self._subscription
        if isinstance(error, RemoteError):
            if self._owns_queue:
                subscription.reload_queues()
            self._release_message()
            self._answer.reject_ack(Code.TIMED_OUT, f"{text}; ask again to learn whether it is stored")
        elif isinstance(error, FencedError):
            subscription.refence(self._queue, lambda: self.on_rejected(Code.BUSY, f"{error}; {MOVES}"))
        else:
            self.on_rejected(code, text)

    # --- its end

    def _end_reservation(self) -> None:
        if self._owns_queue:
            replying.end_reservation(self._queue, self._offset)
        self._release_message()

    def _release_message(self) -> None:
        """Stop handling the message, and continue the work that waited for its reservation."""
        self._runtime.open_commits -= 1
        if self._owns_queue:
            self._subscription.buffer.on_news(self._queue)
            self._subscription.after_results((self._queue,))
            self._subscription.serve()
