"""Replies: messages that a consumer sends together with the acknowledgement of another.

They pass the checks, limits and rates of plain sends (admission.py, PREPARED), wait for their topics, and are
made records. Who commits them is their keeper: the consumer proxy, which holds the message that is
acknowledged, and adds its finish. What is told to whom is the keeper's affair, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from backend.completion import Completion
from backend.internal_topics import schedule_record
from backend.records import AppendResult, NewRecord
from ddmq_client.idl.codes import Code
from ddmq_common.delays.command import COMMAND_PROPERTY, DelayCommand, encode_command
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_TOPIC, SCHEDULE_TOPIC
from ddmq_rpc.api import Call
from proxy_producer import wire
from proxy_producer.admission import DRAINING, Admission
from proxy_producer.batches import worst
from proxy_producer.config import ProducerConfig, TransactionLimits
from proxy_producer.core.delay_requests import schedule_id
from proxy_producer.core.identity import KEY_PROPERTY
from proxy_producer.core.refusals import SendRefusal, illegal, refusal, refusal_of
from proxy_producer.delay.context import DelayContext
from proxy_producer.delay.sends import DelaySends
from proxy_producer.delaying import DelayingBatch
from proxy_producer.flow import Flow
from proxy_producer.pending import DelayLevels
from proxy_producer.wire import BatchMember, RequestKind, SendRequest

IdOf = Callable[[int], bytes]  # the message id of the reply at a place


class ReplyKeeper(Protocol):
    """Who has the message that is acknowledged, and its caller. One of `refused`, `stored` and `failed`
    follows, once."""

    def commit(self, records: list[NewRecord], into: Completion[list[AppendResult]]) -> None:
        """Store them together with the message's end, all or nothing."""

    def refused(self, code: int, text: str) -> None:
        """Nothing is stored, nor will be."""

    def late(self, code: int, text: str) -> None:
        """The caller's time is up; the commit is under way."""

    def stored(self, results: Sequence[Any]) -> None:
        """It is committed: a Result of the wire for each."""

    def failed(self, error: Exception, code: int, text: str) -> None:
        """The commit failed: nothing is stored, or nobody knows (RemoteError)."""


class ReplySends:
    """They belong to one process."""

    def __init__(
        self,
        flow: Flow,
        admission: Admission,
        delay: DelayContext,
        delay_sends: DelaySends,
        levels: DelayLevels,
        config: ProducerConfig,
        wall_ms: Callable[[], int],
    ) -> None:
        self.flow = flow
        self.delay = delay
        self.levels = levels
        self.placed = delay_sends.placed
        self._admission = admission
        self._config = config
        self._wall_ms = wall_ms

    def reconfigure(self, config: ProducerConfig) -> None:
        """Other bounds from now on."""
        self._config = config

    def begin(self, call: Call, request: Any, id_of: IdOf, deadline: float, keeper: ReplyKeeper) -> None:
        """Take in the `messages` of a ReplyRequest."""
        found = self._members(request, id_of, call.frame_bytes)
        if not isinstance(found, SendRefusal):
            PendingReply(self, call, deadline, *found, keeper).start()
            return
        again = partial(self.begin, call, request, id_of, deadline, keeper)
        if found.code is Code.NO_SERVICE and self.delay.presence.look_again(again):
            return  # a delay service that has just begun is noticed before it is refused
        self.flow.counts.refused(None, found, len(request.messages))
        keeper.refused(found.code, found.text)

    def _members(
        self, request: Any, id_of: IdOf, frame_bytes: int
    ) -> SendRefusal | tuple[list[BatchMember], dict[int, SendRequest]]:
        """The messages, and by place what those asked for that wait; or the first fault."""
        limits, born_ms, count = self._config.transactions, self._wall_ms(), len(request.messages)
        if count > limits.messages_max:
            return _long(f"{count} messages", limits)
        fault = DRAINING if self.flow.draining else self.flow.bound_fault(frame_bytes)
        if fault is not None:
            return fault
        members: list[BatchMember] = []
        asked: dict[int, SendRequest] = {}
        admission, size = self._admission, 0
        for place, message in enumerate(request.messages):
            found: NewRecord | SendRefusal | None = _key_fault(message.properties)
            topic, sent = None if message.dueTimes else admission.known.get(message.topic), None
            if found is None and topic is not None:
                found = admission.usual(UsualReply(message), topic, born_ms)
            if found is None:
                sent = _request_of(message, born_ms)
                found = admission.fault(sent) or sent.record(b"")
            if isinstance(found, SendRefusal):
                return found if count == 1 else worst({place: found}, count, 0)
            if sent is not None and (sent.level or sent.command is not None):
                asked[place] = sent
            found.message_id = id_of(place)
            size += len(found.delivery)
            if size > limits.bytes_max:
                return _long(f"messages of {size} bytes and more", limits)
            chronos = sent is not None and sent.chronos
            where = message.partitionId, message.hashId
            members.append(BatchMember(place, found, len(message.body), *where, chronos))
        return members, asked


def _long(what: str, limits: TransactionLimits) -> SendRefusal:
    allowed = f"{limits.messages_max} messages and {limits.bytes_max} bytes together, as in a transaction"
    return illegal("reply_long", f"the acknowledgement has {what}", f"allowed: at most {allowed}")


class UsualReply:
    """A wire ReplyMessage as `Admission.usual` looks at messages: it has neither key nor number."""

    __slots__ = ("body", "key", "properties", "tags", "topic")
    value = idempotencyKey = sequence = None  # noqa: N815 - the wire's names

    def __init__(self, message: Any) -> None:
        self.topic, self.body, self.properties = message.topic, message.body, message.properties
        self.key, self.tags = message.key, message.tags


def _request_of(message: Any, born_ms: int) -> SendRequest:
    """What a wire ReplyMessage asks for."""
    request = SendRequest(
        RequestKind.PREPARED,
        message.topic or b"",
        message.key or b"",
        message.tags or b"",
        message.body or b"",
        message.properties,
        (message.partitionId, message.hashId),
        True,
        born_ms,
        0,
    )
    request.due_times = bool(message.dueTimes)
    return request


def _key_fault(properties: Mapping[bytes, bytes] | None) -> SendRefusal | None:
    if not properties or KEY_PROPERTY not in properties:
        return None
    what = f"a message that is sent with an acknowledgement has the property {KEY_PROPERTY.decode()}"
    return illegal("reply_key", what, "allowed: none; by its lease the acknowledgement is stored once")


class PendingReply(DelayingBatch):
    """State of one acknowledgement; making one accepts it."""

    __slots__ = ("_keeper", "_sends", "_stored")

    def __init__(
        self,
        sends: ReplySends,
        call: Call,
        deadline: float,
        members: list[BatchMember],
        asked: Mapping[int, SendRequest],
        keeper: ReplyKeeper,
    ) -> None:
        super().__init__(sends.flow, sends.delay, sends.levels, call, deadline, members, asked)
        self._sends = sends
        self._keeper = keeper
        self._stored: list[tuple[NewRecord, DelayCommand | None]] = []

    def _store(self) -> None:
        health = self.flow.backend.health()
        if not health.ready:  # a commit would get past a disk that is nearly full
            self._refuse_unsent(refusal(Code.BUSY, "backend_bound", health.reason, "send it again"))
            return
        self._choose_queues()
        self._stored = [self._placed(member) for member in self.members]
        self.sent = True
        try:
            self._keeper.commit([record for record, _ in self._stored], self)
        except DdmqError as error:
            self.fail(error)

    def _placed(self, member: BatchMember) -> tuple[NewRecord, DelayCommand | None]:
        """Where it goes: to its topic, a delay level, or the delay service."""
        record, request = member.record, self._asked.get(member.place)
        if request is None:
            return record, None
        if request.command is None:
            return schedule_record(record, request.level, self._levels.table), None
        command = self._sends.placed(request, request.command)
        return NewRecord(
            DELAY_TOPIC, command.shard % self._commands.queues, record.message_id, record.born_ms,
            record.delivery, flags=record.flags, system={COMMAND_PROPERTY: encode_command(command)},
        ), command  # fmt: skip

    # --- the end

    def _records(self) -> list[NewRecord]:
        return [record for record, _ in self._stored]

    def settled(self) -> None:
        """The commit's outcome is here; the keeper hears of it also when its caller was told before."""
        self.flow.settled(self, self.frame_bytes)
        was_told, self.answered = self.answered, True
        if self.error is not None:
            fault = refusal_of(self.error)
            if not was_told:
                self.flow.counts.refused(None, fault, self.size)
            self._keeper.failed(self.error, fault.code, fault.text)
            return
        if was_told:
            self.flow.counts.late(True)
        else:
            self._count_stored(self.value)
        pairs = zip(self._stored, self.value, strict=True)
        self._keeper.stored([_result(*each, result) for each, result in pairs])

    def _finish(self, results: Sequence[AppendResult]) -> None:
        """It does not get to the backend, or its time is up."""
        self.answered = True
        fault = worst(self.faults, self.size, 0) if self.size > 1 else self.faults[0]
        self.flow.counts.refused(None, fault, self.size)
        tell = self._keeper.late if self.sent else self._keeper.refused
        tell(fault.code, fault.text)


def _result(record: NewRecord, command: DelayCommand | None, stored: AppendResult) -> Any:
    if command is not None:
        return wire.delayed(record, schedule_id(command))
    plain = record.topic != SCHEDULE_TOPIC
    return wire.stored(record, stored) if plain else wire.scheduled(record, stored)
